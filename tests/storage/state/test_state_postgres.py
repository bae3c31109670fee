"""The state on a PostgreSQL server: what the tests that run on both databases cannot say of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.storage.state.conftest import (
    Opener,
    PostgresOpener,
    Schemas,
    accept,
    batch_of,
    build_all,
    build_of,
    event_of,
    name_of,
    queue,
    slice_of,
)

from tidemill.config.project import StateStore
from tidemill.model.errors import BusyError, ConfigError, StorageError
from tidemill.model.time import MINUTE
from tidemill.storage import layout
from tidemill.storage.state import opening, queue_sql
from tidemill.storage.state.postgres_dialect import postgres_statement
from tidemill.storage.state.protocol import State

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")


@pytest.fixture
def opener(schemas: Schemas) -> Iterator[PostgresOpener]:
    yield schemas.new_store()
    schemas.empty()


@pytest.fixture
def state(opener: PostgresOpener) -> Iterator[State]:
    with closing(opener()) as opened:
        yield opened


def store_of(schemas: Schemas, schema: str | None = None) -> StateStore:
    return StateStore.model_validate({"url": schemas.server.url, "schema": schema})


def story(state: State) -> None:
    """A bit of everything that has rows."""
    state.enter_all([slice_of(number) for number in range(1, 7)])
    state.apply_batch(batch_of("b1", [1, 2, 3], {0: [1], 5: [2, 3]}))
    state.apply_tiles("requests", 2, [build_of(0, [1])])
    queue(state, {4: [1, 2], 5: [2]})
    build_all(state)
    state.set_checkpoint("requests", "minutes", "1", [event_of("e1")])


def test_it_holds_the_same_as_a_file(state: State, tmp_path: Path) -> None:
    with closing(Opener(tmp_path / "state.db")()) as other:
        story(state)
        story(other)
        assert state.dump() == other.dump()
        assert len(state.dump()["windows"]) == 2


# -- connections


def test_idle_connections_that_the_server_closed_are_replaced(schemas: Schemas, state: State) -> None:
    state.enter(slice_of(1))
    assert schemas.server.end_sessions() >= 1
    assert state.slice(name_of(1)) is not None
    assert schemas.server.end_sessions() >= 1
    assert state.enter(slice_of(2)).seq == 2


def test_an_act_whose_connection_is_lost_leaves_nothing_and_can_be_done_again(
    schemas: Schemas, state: State
) -> None:
    class Losing(list[str]):
        """Runs that lose the connection when they are read, which is in the middle of the batch."""

        def __iter__(self) -> Iterator[str]:
            schemas.server.end_sessions()
            return super().__iter__()

    state.enter(slice_of(1))
    record = batch_of("b1", [1], {0: [1]})
    with pytest.raises(StorageError, match="state cannot be used") as caught:
        state.apply_batch(replace(record, runs=Losing(["run"])))
    assert caught.value.retry.value == "later"
    assert (state.has_batch("requests", "b1"), state.stale_tiles("requests")) == (False, [])
    assert state.apply_batch(record)
    assert len(state.stale_tiles("requests")) == 1


def test_a_server_that_was_killed_and_started_again_has_all_that_was_acknowledged(
    schemas: Schemas, state: State
) -> None:
    accept(state, 1, 2)
    schemas.server.stop()
    with pytest.raises(StorageError, match="state cannot be used") as caught:
        state.enter(slice_of(3))
    assert "check that the server runs" in caught.value.hint
    schemas.server.start()
    assert state.totals("requests")["accepted_slices"] == 2
    assert state.enter(slice_of(3)).seq == 3


def test_a_process_that_holds_the_state_keeps_others_from_writing_for_a_while_only(
    opener: PostgresOpener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.storage.state.postgres.BUSY_SECONDS", 0.05)
    one, other = opener(), opener()
    one.enter(slice_of(1))
    with one._write():  # type: ignore[attr-defined]
        assert other.slice(name_of(1)) is not None  # who reads does not wait
        with pytest.raises(BusyError, match="state is locked by another process"):
            other.enter(slice_of(2))
    assert other.enter(slice_of(2)).seq == 2
    one.close()
    other.close()


def test_a_transaction_whose_process_is_stopped_is_ended_by_the_server(opener: PostgresOpener) -> None:
    """A process that is paused in the middle of an act does not keep all others from theirs."""
    one, other = opener(), opener()
    holding = one._write()  # type: ignore[attr-defined]
    held = holding.__enter__()
    held.execute("UPDATE counters SET value = 7 WHERE name = 'retractions'")
    limit = "idle_in_transaction_session_timeout"
    assert held.execute(f"SHOW {limit}").fetchall() == [("1min",)]
    held.execute(f"SET {limit} = '50ms'")  # that of `other` stays: this process may be slow
    assert other.enter(slice_of(1)).seq == 1  # waits until the server has ended the other
    with pytest.raises(StorageError, match="state cannot be used"):
        holding.__exit__(None, None, None)
    assert other.retractions() == 0
    one.close()
    other.close()


def test_who_takes_windows_does_not_wait_for_an_act_that_is_under_way(opener: PostgresOpener) -> None:
    one, other = opener(), opener()
    queue(one, {1: [1], 2: [2], 3: [3]})
    with one._write() as db:  # type: ignore[attr-defined]
        db.execute(f"{queue_sql.QUEUED} AND start = ? {queue_sql.LOCKED}", (3_600_000_000,)).fetchall()
        taken = other.take("b", 0, MINUTE, 10)  # but what is being changed, it leaves alone
    assert [build.key.start // 3_600_000_000 for build in taken] == [2, 3]
    assert [build.key.start // 3_600_000_000 for build in other.take("b", 0, MINUTE, 10)] == [1]
    one.close()
    other.close()


def test_many_takers_beside_a_writer_never_get_the_same_window(opener: PostgresOpener) -> None:
    with closing(opener()) as state:
        queue(state, {number: [number] for number in range(1, 25)})
        taken: list[int] = []

        def take(owner: str) -> None:
            with closing(opener()) as mine:
                while builds := mine.take(owner, 0, MINUTE, 2):
                    taken.extend(build.key.start for build in builds)

        threads = [threading.Thread(target=take, args=(f"b{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        accept(state, 100, 101)
        for thread in threads:
            thread.join()
        while builds := state.take("last", 0, MINUTE, 10):  # those that others held at that moment
            taken.extend(build.key.start for build in builds)
        assert len(taken) == len(set(taken)) == 24


# -- names and secrets


@pytest.mark.parametrize(
    "url",
    ["postgresql://tide:s3cr%24t@127.0.0.1:1/postgres", "postgresql://tide:s3cr%24t@127.0.0.1:x/postgres"],
)
def test_no_error_shows_the_password(url: str) -> None:
    with pytest.raises((StorageError, ConfigError)) as caught:
        PostgresOpener(url, "tide")()
    shown = f"{caught.value} {caught.value.hint} {caught.value.where} {caught.value.__cause__}"
    assert "s3cr" not in shown
    assert "s3cr" not in repr(StateStore.model_validate({"url": url}))


def test_a_password_of_the_environment_is_used(schemas: Schemas, monkeypatch: pytest.MonkeyPatch) -> None:
    """The url has none; trust is what the server of the tests goes by, so it is seen in the connection."""
    from tidemill.storage.state.postgres import Server

    monkeypatch.setenv("PGPASSWORD", "of the environment")
    with Server(schemas.server.url).connect() as link:
        assert link.info.password == "of the environment"


def test_a_schema_of_somebody_else_is_left_alone(schemas: Schemas) -> None:
    schema = schemas.server.new_schema()
    schemas.server.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.accounts (n int)")
    with pytest.raises(StorageError, match="is not the state of a warehouse"):
        PostgresOpener(schemas.server.url, schema)()
    opening_drops = store_of(schemas, schema)
    assert not opening.exists(Path("/nowhere"), opening_drops)
    assert schemas.server.execute(f"SELECT * FROM {schema}.accounts") == []


def test_a_state_of_a_newer_version_is_refused(schemas: Schemas, opener: PostgresOpener) -> None:
    opener().close()
    schemas.server.execute(f"UPDATE {opener.schema}.about SET version = version + 1")
    with pytest.raises(StorageError, match="this Tidemill knows"):
        opener()
    schemas.server.execute(f"UPDATE {opener.schema}.about SET version = version - 1")


def test_two_warehouses_share_a_server_and_each_keeps_its_name(schemas: Schemas, tmp_path: Path) -> None:
    store = store_of(schemas)
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
        assert not opening.exists(folder, store)
    with closing(opening.open_store(one, store)) as state:
        state.enter(slice_of(1))
    with closing(opening.open_store(other, store)) as state:
        assert state.slices() == []
    moved = one.rename(tmp_path / "moved")  # or mounted elsewhere
    assert opening.name_of(moved, store) != opening.name_of(other, store)
    with closing(opening.open_store(moved, store)) as again:
        assert len(again.slices()) == 1
    layout.identity(moved).write_text("../public")
    with pytest.raises(StorageError, match="not one that Tidemill gave"):
        opening.open_store(moved, store)


def test_a_fresh_state_takes_the_place_of_the_one_in_use_at_once(schemas: Schemas, tmp_path: Path) -> None:
    store = store_of(schemas)
    with closing(opening.open_store(tmp_path, store)) as old:
        old.enter(slice_of(1))
        opening.open_fresh(tmp_path, store).close()  # of a try that came to nothing
        with closing(opening.open_fresh(tmp_path, store)) as fresh:
            assert fresh.slices() == []
            fresh.enter_all([slice_of(2), slice_of(3)])
            assert [entry.id for entry in old.slices()] == [name_of(1)]
        opening.replace_with_fresh(tmp_path, store)
        assert [entry.id for entry in old.slices()] == [name_of(2), name_of(3)]  # as all others see it
        assert old.enter(slice_of(4)).seq == 3
    with pytest.raises(StorageError, match="there is no fresh state"):
        opening.replace_with_fresh(tmp_path, store)


def test_a_zero_character_is_not_in_the_way(state: State) -> None:
    state.enter(replace(slice_of(1), name="a\0b"))
    assert state.slices()[0].slice.name == "a\ufffdb"


# -- the text of statements


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("SELECT a FROM t INDEXED BY i WHERE a = ?", "SELECT a FROM t WHERE a = %s"),
        ("a LIKE '%x' AND b IS NOT NULL", "a LIKE '%%x' AND b IS NOT NULL"),
        ("c IS NOT d", "c IS DISTINCT FROM d"),
        ("SELECT 1 /* FOR UPDATE SKIP LOCKED */", "SELECT 1 FOR UPDATE SKIP LOCKED"),
        ("SELECT value FROM json_each(?)", "SELECT value FROM json_array_elements_text(CAST(%s AS json))"),
    ],
)  # fmt: skip
def test_what_postgresql_reads_instead(written: str, read: str) -> None:
    assert postgres_statement(written) == read
