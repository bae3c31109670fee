"""Opening the state, and putting a fresh state in the place of the old one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.storage.state.conftest import batch_of, build_of, slice_of

from tidemill.model.errors import StorageError
from tidemill.storage import layout
from tidemill.storage.state.opening import open_fresh, open_store, replace_with_fresh
from tidemill.storage.state.protocol import BatchRecord, ClockState, Progress


def test_a_store_exists_once_it_was_opened(tmp_path: Path) -> None:
    assert not layout.state(tmp_path).exists()
    state = open_store(tmp_path)
    state.enter(slice_of(1))
    state.close()
    assert layout.state(tmp_path).exists()
    again = open_store(tmp_path)
    assert again.landings() == 1
    again.close()


def test_a_fresh_state_takes_the_place_of_the_old_one_at_once(tmp_path: Path) -> None:
    old = open_store(tmp_path)
    old.enter_all([slice_of(1), slice_of(2)])
    fresh = open_fresh(tmp_path)
    fresh.restore(old.slices()[:1], [batch_of("b1", [1], {0: [1]})])
    fresh.apply_tiles("requests", 3, [build_of(0, [1])])
    filled = fresh.dump()
    assert old.landings() == 2  # nobody sees it before it is whole
    old.close()
    fresh.close()
    replace_with_fresh(tmp_path)
    state = open_store(tmp_path)
    assert state.dump() == filled
    assert state.enter(slice_of(2)).seq == 2
    state.close()


def test_a_fresh_state_without_an_old_one_is_the_first(tmp_path: Path) -> None:
    open_fresh(tmp_path).close()
    assert not layout.state(tmp_path).exists()
    replace_with_fresh(tmp_path)
    assert layout.state(tmp_path).exists()


def test_what_an_interrupted_recovery_left_is_gone_with_the_next(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    left = open_fresh(tmp_path)
    left.enter(slice_of(1))
    left.close()
    fresh = open_fresh(tmp_path)
    assert fresh.landings() == 0
    fresh.close()
    state = open_store(tmp_path)
    assert state.landings() == 0
    state.close()


def test_a_fresh_state_that_is_not_there_cannot_take_a_place(tmp_path: Path) -> None:
    state = open_store(tmp_path)
    state.enter(slice_of(1))
    with pytest.raises(StorageError):
        replace_with_fresh(tmp_path)
    state.close()
    again = open_store(tmp_path)
    assert again.landings() == 1
    again.close()


def test_a_restored_state_keeps_the_layout_it_was_given(tmp_path: Path) -> None:
    fresh = open_fresh(tmp_path)
    fresh.declare_layout("requests", 3600_000_000)
    fresh.set_delivered("sink", 7)
    fresh.restore([], [])
    assert (fresh.span("requests"), fresh.delivered("sink")) == (3600_000_000, 7)
    fresh.close()


def test_a_fresh_state_brings_its_own_clocks_progress_and_marks(tmp_path: Path) -> None:
    """Nothing of the old one: what its marks say may be what was lost."""
    old = open_store(tmp_path)
    old.set_checkpoint("requests", "minutes", "old")
    old.set_checkpoint("requests", "sessions", "old")
    clocks = [ClockState("file", 90, 80, 70), ClockState("api", 90, 80, 70)]
    old.apply_batch(BatchRecord("requests", "b1", 1, 1, [], clocks, {}, progress=Progress(80, 9, 8, 7, 6)))
    old.close()
    fresh = open_fresh(tmp_path)
    record = BatchRecord("requests", "b1", 1, 1, [], clocks[:1], {}, progress=Progress(5, 4, 3, 2, 1))
    fresh.restore([], [record])
    fresh.set_checkpoint("requests", "minutes", "new")
    fresh.close()
    replace_with_fresh(tmp_path)
    state = open_store(tmp_path)
    assert state.clocks("requests") == [ClockState("file", 90, 80, 70)]
    assert state.progress("requests") == Progress(5, 4, 3, 2, 1)
    assert state.checkpoints("requests") == {"minutes": "new"}
    state.close()


def test_a_state_in_use_is_not_restored(tmp_path: Path) -> None:
    state = open_store(tmp_path)
    state.enter(slice_of(1))
    with pytest.raises(StorageError, match="only an empty state"):
        state.restore([], [])
    assert state.landings() == 1
    state.close()
