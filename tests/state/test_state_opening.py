"""Opening the store that a project names, and putting a fresh state in the place of the old one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from tests.state.conftest import PREFIXES, accept, batch_of, build_of, lay, name_of, queue, slice_of
from tests.state.redis_server import RedisServer

from tidemill.config.project import StateStore
from tidemill.model.errors import ConfigError, StorageError
from tidemill.state.opening import open_fresh, open_store, replace_with_fresh, store_exists, store_name
from tidemill.state.protocol import BatchRecord, ClockState, Progress


@pytest.fixture(params=["redis", "sqlite"])
def where(request: pytest.FixtureRequest) -> StateStore:
    if request.param == "sqlite":
        return StateStore()
    server: RedisServer = request.getfixturevalue("redis_server")
    return StateStore(kind="redis", url=server.url, prefix=f"opened{next(PREFIXES)}")


@dataclass(frozen=True)
class Elsewhere:
    kind: str
    url: str | None = None
    prefix: str = "tidemill"


def test_a_store_exists_once_it_was_opened(where: StateStore, tmp_path: Path) -> None:
    assert not store_exists(where, tmp_path)
    state = open_store(where, tmp_path)
    state.enter(slice_of(1))
    state.close()
    assert store_exists(where, tmp_path)
    again = open_store(where, tmp_path)
    assert again.landings() == 1
    again.close()


def test_a_fresh_state_takes_the_place_of_the_old_one_at_once(where: StateStore, tmp_path: Path) -> None:
    old = open_store(where, tmp_path)
    old.enter_all([slice_of(1), slice_of(2)])
    fresh = open_fresh(where, tmp_path)
    fresh.restore(old.slices()[:1], [batch_of("b1", [1], {0: [1]})])
    fresh.apply_tiles("requests", 3, [build_of(0, [1])])
    filled = fresh.dump()
    assert old.landings() == 2  # nobody sees it before it is whole
    old.close()
    fresh.close()
    replace_with_fresh(where, tmp_path)
    state = open_store(where, tmp_path)
    assert state.dump() == filled
    assert state.enter(slice_of(2)).seq == 2
    state.close()


def test_a_fresh_state_without_an_old_one_is_the_first(where: StateStore, tmp_path: Path) -> None:
    open_fresh(where, tmp_path).close()
    assert not store_exists(where, tmp_path)
    replace_with_fresh(where, tmp_path)
    assert store_exists(where, tmp_path)


def test_what_an_interrupted_recovery_left_is_gone_with_the_next(where: StateStore, tmp_path: Path) -> None:
    open_store(where, tmp_path).close()
    left = open_fresh(where, tmp_path)
    left.enter(slice_of(1))
    left.close()
    fresh = open_fresh(where, tmp_path)
    assert fresh.landings() == 0
    fresh.close()
    state = open_store(where, tmp_path)
    assert state.landings() == 0
    state.close()


def test_a_fresh_state_that_is_not_there_can_not_take_a_place(where: StateStore, tmp_path: Path) -> None:
    state = open_store(where, tmp_path)
    state.enter(slice_of(1))
    with pytest.raises(StorageError):
        replace_with_fresh(where, tmp_path)
    state.close()
    again = open_store(where, tmp_path)
    assert again.landings() == 1
    again.close()


def test_a_restored_state_keeps_the_layout_it_was_given(where: StateStore, tmp_path: Path) -> None:
    fresh = open_fresh(where, tmp_path)
    fresh.lay_out("requests", 3600_000_000)
    fresh.set_delivered("sink", 7)
    fresh.restore([], [])
    assert (fresh.span("requests"), fresh.delivered("sink")) == (3600_000_000, 7)
    fresh.close()


def test_a_fresh_state_brings_its_own_clocks_progress_and_marks(where: StateStore, tmp_path: Path) -> None:
    """Nothing of the old one: what its marks say may be what was lost."""
    old = open_store(where, tmp_path)
    old.set_mark("requests", "minutes", "old")
    old.set_mark("requests", "sessions", "old")
    clocks = [ClockState("file", 90, 80, 70), ClockState("api", 90, 80, 70)]
    old.apply_batch(BatchRecord("requests", "b1", 1, 1, [], clocks, {}, progress=Progress(80, 9, 8, 7, 6)))
    old.close()
    fresh = open_fresh(where, tmp_path)
    record = BatchRecord("requests", "b1", 1, 1, [], clocks[:1], {}, progress=Progress(5, 4, 3, 2, 1))
    fresh.restore([], [record])
    fresh.set_mark("requests", "minutes", "new")
    fresh.close()
    replace_with_fresh(where, tmp_path)
    state = open_store(where, tmp_path)
    assert state.clocks("requests") == [ClockState("file", 90, 80, 70)]
    assert state.progress("requests") == Progress(5, 4, 3, 2, 1)
    assert state.marks("requests") == {"minutes": "new"}
    state.close()


def test_an_open_redis_state_sees_the_new_one_and_the_old_keys_go(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    where = StateStore(kind="redis", url=redis_server.url, prefix=f"opened{next(PREFIXES)}")
    state = open_store(where, tmp_path)
    queue(state, {1: range(700)})
    fresh = open_fresh(where, tmp_path)
    fresh.restore([], [])
    accept(fresh, 7)
    lay(fresh, {7: [1]})
    fresh.close()
    replace_with_fresh(where, tmp_path)
    assert [entry.id for entry in state.slices()] == [name_of(7)]
    assert len(state.windows()) == 1
    with redis.Redis(port=redis_server.port, decode_responses=True) as client:
        names = {name.split(":", 2)[1] for name in client.scan_iter(f"{where.prefix}:*", count=1000)}
        current = client.get(f"{where.prefix}:current")
    assert names == {"current", "format", "generations", "said", current}
    state.close()


def test_a_state_in_use_is_not_restored(where: StateStore, tmp_path: Path) -> None:
    state = open_store(where, tmp_path)
    state.enter(slice_of(1))
    with pytest.raises(StorageError, match="only an empty state"):
        state.restore([], [])
    assert state.landings() == 1
    state.close()


def test_people_are_told_where_the_state_is_without_its_password(tmp_path: Path) -> None:
    assert store_name(StateStore(), tmp_path) == str(tmp_path / "state.db")
    where = StateStore(kind="redis", url="redis://me:secret@host:1234/5?password=secret", prefix="mine")
    assert store_name(where, tmp_path) == "redis://host:1234/5 mine:"


@pytest.mark.parametrize("act", [open_store, store_exists, open_fresh, replace_with_fresh, store_name])
def test_an_unknown_kind_of_store_is_an_error_that_names_the_kinds(
    act: Callable[[Elsewhere, Path], object], tmp_path: Path
) -> None:
    for where in (Elsewhere("etcd"), Elsewhere("redis")):
        with pytest.raises(ConfigError, match="no store of kind") as caught:
            act(where, tmp_path)
        assert "sqlite" in caught.value.hint
        assert "redis" in caught.value.hint
