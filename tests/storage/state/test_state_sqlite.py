"""What is particular to the SQLite state: the file, its version, its errors, its indexes."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from tests.storage.state.conftest import (
    accept,
    assign,
    build_all,
    build_of,
    judge_due,
    name_of,
    queue,
    slice_of,
)

from tidemill.model.errors import StorageError
from tidemill.model.slices import Codec, Counts, Format, NewSlice, SliceEntry, SliceStatus, set_hash
from tidemill.model.time import HOUR, MINUTE
from tidemill.model.windows import Phase
from tidemill.storage.state import queue_sql, windows_sql
from tidemill.storage.state.ddl import VERSIONS
from tidemill.storage.state.protocol import NO_PROGRESS, BatchRecord, ClockState, Progress, Retraction, State
from tidemill.storage.state.rows import SLICE_COLUMNS, WINDOW_COLUMNS, to_row
from tidemill.storage.state.sql_state import STALE
from tidemill.storage.state.sqlite import LOG_BYTES, VERSION, open_state, storage_errors


def test_it_is_in_wal_mode_with_full_sync(tmp_path: Path) -> None:
    state = open_state(tmp_path / "state.db")
    with state._read() as db:  # type: ignore[attr-defined]
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA synchronous").fetchone() == (2,)
        assert db.execute("PRAGMA foreign_keys").fetchone() == (1,)
    state.close()


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    open_state(path).close()
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(StorageError, match=f"schema version {VERSION + 1}, this Tidemill knows {VERSION}"):
        open_state(path)
    assert path.read_bytes() == before


def test_a_foreign_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE theirs (x)")
    with pytest.raises(StorageError, match="not the state of a warehouse"):
        open_state(path)


def test_a_damaged_file_says_how_to_get_it_back(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(b"this is no database at all" * 100)
    with pytest.raises(StorageError, match="damaged") as caught:
        open_state(path)
    assert "tidemill recover" in caught.value.hint


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="folder"):
        open_state(tmp_path / "no" / "state.db")


def test_a_disk_that_sqlite_cannot_use_may_be_full(tmp_path: Path) -> None:
    """On a full disk SQLite says only that there was an I/O error."""
    with pytest.raises(StorageError) as caught, storage_errors(tmp_path / "state.db"):
        raise sqlite3.OperationalError("disk I/O error")
    assert "has free space" in caught.value.hint


def test_reading_goes_on_while_another_connection_writes(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    state = open_state(path)
    state.enter(NewSlice("ab", "s", "file", "n", Format.JSON, Codec.NONE, "p", 1, 1))
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE slices SET name = 'changed'")
    reader = open_state(path)
    assert [entry.slice.name for entry in reader.slices()] == ["n"]
    writer.execute("COMMIT")
    assert [entry.slice.name for entry in reader.slices()] == ["changed"]
    writer.close()
    reader.close()
    state.close()


def test_stale_tiles_are_found_by_the_partial_index_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    open_state(path).close()
    with sqlite3.connect(path) as db:
        plan = db.execute(
            "EXPLAIN QUERY PLAN SELECT * FROM tiles INDEXED BY tiles_stale"
            f" WHERE {STALE} AND stream = 's' ORDER BY start"
        ).fetchall()
    assert [step[3] for step in plan] == ["SEARCH tiles USING INDEX tiles_stale (stream=?)"]


# -- a file of an older Tidemill

RELEASED = ["ee65246cce4a1c39", "635e7f919f1489c9", "5b7d436e7ebba9bd"]  # the steps of versions 1 to 3

FIRST_SCHEMA = """
CREATE TABLE slices (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, stream TEXT NOT NULL, source TEXT NOT NULL,
    name TEXT NOT NULL, format TEXT NOT NULL, codec TEXT NOT NULL, path TEXT NOT NULL, size INTEGER NOT NULL,
    arrival INTEGER NOT NULL, declared_start INTEGER, declared_end INTEGER, status TEXT NOT NULL,
    records INTEGER NOT NULL, accepted INTEGER NOT NULL, duplicate INTEGER NOT NULL,
    conflict INTEGER NOT NULL, rejected INTEGER NOT NULL, late INTEGER NOT NULL, rejects TEXT NOT NULL,
    observed_start INTEGER, observed_end INTEGER, watermark INTEGER, batch TEXT, error TEXT,
    landings INTEGER NOT NULL
);
CREATE INDEX slices_by_stream ON slices (stream, seq);
CREATE INDEX slices_by_status ON slices (stream, status, seq);
CREATE TABLE totals (
    stream TEXT NOT NULL, name TEXT NOT NULL, value INTEGER NOT NULL, PRIMARY KEY (stream, name)
) WITHOUT ROWID;
CREATE TABLE batches (stream TEXT NOT NULL, batch TEXT NOT NULL, PRIMARY KEY (stream, batch)) WITHOUT ROWID;
CREATE TABLE versions (
    stream TEXT NOT NULL, part_of TEXT NOT NULL, version INTEGER NOT NULL, PRIMARY KEY (stream, part_of)
) WITHOUT ROWID;
CREATE TABLE clocks (
    stream TEXT NOT NULL, source TEXT NOT NULL, max_seen INTEGER NOT NULL, watermark INTEGER NOT NULL,
    PRIMARY KEY (stream, source)
) WITHOUT ROWID;
CREATE TABLE runs (
    stream TEXT NOT NULL, place INTEGER NOT NULL, name TEXT NOT NULL, PRIMARY KEY (stream, place),
    UNIQUE (stream, name)
) WITHOUT ROWID;
CREATE TABLE tiles (
    stream TEXT NOT NULL, level TEXT NOT NULL, start INTEGER NOT NULL, desired TEXT, hash TEXT,
    revision INTEGER NOT NULL, part TEXT, rows INTEGER NOT NULL, PRIMARY KEY (stream, level, start)
) WITHOUT ROWID;
CREATE INDEX tiles_stale ON tiles (stream, start) WHERE level = '5s' AND desired IS NOT hash;
CREATE TABLE tile_slices (
    stream TEXT NOT NULL, start INTEGER NOT NULL, slice INTEGER NOT NULL REFERENCES slices (seq),
    desired INTEGER NOT NULL, observed INTEGER NOT NULL, PRIMARY KEY (stream, start, slice)
) WITHOUT ROWID;
"""


def first_file(path: Path) -> None:
    """A file as version 1 wrote it: slice 1 accepted and rolled up, 2 accepted, 3 pending, 4 failed."""
    ids = [name_of(number) for number in (1, 2, 3, 4)]
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(FIRST_SCHEMA)
        for seq, (slice_id, status) in enumerate(
            zip(ids, ("accepted", "accepted", "pending", "failed"), strict=True), 1
        ):
            done = status == "accepted"
            db.execute(
                f"INSERT INTO slices VALUES ({', '.join('?' * 26)})",
                (
                    seq, slice_id, "requests", "file", f"{seq}.ndjson", "ndjson", "gz", f"p{seq}", 100, seq,
                    None, None, status, 10 * done, 8 * done, done, 0, done, 3 * done, "{}",
                    5 if done else None, 50 if done else None, 7, "b1" if done else None, None, 1,
                ),
            )  # fmt: skip
        totals = {"accepted_slices": 2, "pending_slices": 1, "failed_slices": 1, "landings": 4, "bytes": 400}
        counts = {"records": 20, "accepted": 16, "duplicate": 2, "rejected": 2, "late": 6}
        db.executemany("INSERT INTO totals VALUES ('requests', ?, ?)", (totals | counts).items())
        db.execute("INSERT INTO batches VALUES ('requests', 'b1')")
        db.execute("INSERT INTO versions VALUES ('requests', 'raw', 1), ('requests', 'quarantine', 11)")
        db.execute("INSERT INTO clocks VALUES ('requests', 'file', 1000, 900)")
        db.execute("INSERT INTO runs VALUES ('requests', 0, 'run-b1')")
        db.execute(
            "INSERT INTO tiles VALUES ('requests', '5s', 0, ?, ?, 1, 'p1.parquet', 10)",
            (set_hash(ids[:2]), set_hash(ids[:1])),
        )
        db.execute("INSERT INTO tile_slices VALUES ('requests', 0, 1, 1, 1), ('requests', 0, 2, 1, 0)")
        db.execute("PRAGMA application_id = 0x74696465")
        db.execute("PRAGMA user_version = 1")


def second_file(path: Path) -> None:
    """A file as version 2 wrote it: three sources were heard of, one of which the ledger does not know."""
    told = [  # source, status, accepted, arrival: in the order of the ledger
        ("file", SliceStatus.ACCEPTED, 8, 100),
        ("api", SliceStatus.ACCEPTED, 8, 110),
        ("file", SliceStatus.ACCEPTED, 3, 130),
        ("file", SliceStatus.ACCEPTED, 1, 120),  # the newest, though it says to have arrived before
        ("api", SliceStatus.ACCEPTED, 0, 140),
        ("api", SliceStatus.FAILED, 0, 150),
        ("file", SliceStatus.RETRACTED, 5, 160),
        ("file", SliceStatus.PENDING, 0, 170),
    ]
    entries = [
        SliceEntry(
            seq,
            replace(slice_of(seq, stream), source=source, arrival=arrival),
            status,
            Counts(records=accepted, accepted=accepted),
        )
        for seq, (stream, (source, status, accepted, arrival)) in enumerate(
            [*(("requests", row) for row in told), ("other", ("file", SliceStatus.ACCEPTED, 1, 999))], 1
        )
    ]
    columns = SLICE_COLUMNS[: SLICE_COLUMNS.index("retried")]  # that there were
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode = WAL")
        for step in VERSIONS[:2]:
            db.executescript(step)
        db.executemany(
            f"INSERT INTO slices ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})",
            [to_row(entry)[: len(columns)] for entry in entries],
        )
        db.execute(
            "INSERT INTO clocks (stream, source, max_seen, watermark) VALUES ('requests', 'file', 60, 50),"
            " ('requests', 'api', 50, 40), ('requests', 'gone', 70, 60)"
        )
        db.execute("INSERT INTO batches (stream, batch) VALUES ('requests', 'b1')")
        db.execute("PRAGMA application_id = 0x74696465")
        db.execute("PRAGMA user_version = 2")


def test_a_step_that_was_released_is_never_edited() -> None:
    """Files exist that took it as it was; what they lack is the next step's."""
    assert [hashlib.sha256(step.encode()).hexdigest()[:16] for step in VERSIONS[:3]] == RELEASED


def test_clocks_and_progress_of_a_file_of_version_2_are_what_they_were(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    second_file(path)
    state = open_state(path)
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (VERSION,)
    assert state.clocks("requests") == [
        ClockState("api", 50, 40, 110),
        ClockState("file", 60, 50, 120),
        ClockState("gone", 70, 60, 0),
    ]
    assert state.progress("requests") == Progress(40, 0, 0, 0, 0)
    assert (state.clocks("other"), state.progress("other")) == ([], NO_PROGRESS)
    assert (state.checkpoints("requests"), len(state.slices())) == ({}, 9)
    clocks = [ClockState("api", 55, 45, 180)]
    assert state.apply_batch(BatchRecord("requests", "b2", 1, 1, [], clocks, {}, progress=Progress(45, 1, 2)))
    assert state.clocks("requests")[0] == ClockState("api", 55, 45, 180)
    assert state.progress("requests") == Progress(45, 1, 2)
    state.close()


def test_the_state_of_an_older_tidemill_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    first_file(path)
    state = open_state(path)
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (VERSION,)
    first = state.slice(name_of(1))
    assert first is not None
    assert (first.status, first.counts.accepted, first.batch) == (SliceStatus.ACCEPTED, 8, "b1")
    assert (first.name, first.attempt, first.slice.metadata, first.retracted_at) == (
        name_of(1),
        0,
        None,
        None,
    )
    assert state.totals("requests")["accepted"] == 16
    assert state.clocks("requests") == [ClockState("file", 1000, 900, 2)]  # its slice 2 arrived then
    assert state.progress("requests") == Progress(watermark=900)
    (tile,) = state.stale_tiles("requests")
    assert (tile.desired, tile.observed) == ({name_of(1), name_of(2)}, {name_of(1)})
    assert [entry.seq for entry in state.unassigned_slices("requests", 10)] == [
        1,
        2,
    ]  # windows are laid from the start
    state.apply_tiles("requests", 2, [build_of(0, [1, 2], 2)])
    assert state.stale_tiles("requests") == []
    assign(state, {1: [0], 2: [0, 1]})
    judge_due(state)
    assert len(build_all(state)) == 2
    act = Retraction(1, "requests", name_of(2), "wrong", 9, {})
    assert state.apply_retraction(act, [], 2, 12)
    assert state.totals("requests")["accepted"] == 8
    assert state.enter(slice_of(5)).seq == 5
    state.close()
    open_state(path).close()


def test_slices_that_failed_before_they_were_tried_again_are_tried_once(tmp_path: Path) -> None:
    second_file(tmp_path / "state.db")
    state = open_state(tmp_path / "state.db")
    (failed,) = state.failing("requests", 0, "as it is", 10)
    assert (failed.seq, failed.failures, failed.retry_at) == (6, 1, None)
    (sent,) = state.send_again([failed.id])
    assert (sent.seq, sent.retried) == (10, 1)
    state.close()


@pytest.mark.parametrize("older", [first_file, second_file])
def test_an_older_file_has_the_same_tables_as_a_new_one(
    tmp_path: Path, older: Callable[[Path], None]
) -> None:
    older(tmp_path / "old.db")
    tables = []
    for name in ("old.db", "new.db"):
        open_state(tmp_path / name).close()
        with sqlite3.connect(tmp_path / name) as db:
            objects = db.execute("SELECT type, name FROM sqlite_master ORDER BY 1, 2").fetchall()
            columns = {name: db.execute(f"PRAGMA table_info({name})").fetchall() for _, name in objects}
        tables.append((objects, columns))
    assert tables[0] == tables[1]


def test_a_step_that_fails_leaves_the_older_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.db"
    first_file(path)
    with sqlite3.connect(path) as db:
        before = db.execute("SELECT sql FROM sqlite_master ORDER BY name").fetchall()
    broken = (VERSIONS[0], VERSIONS[1] + "; CREATE TABLE slices (again)")
    monkeypatch.setattr("tidemill.storage.state.sqlite.VERSIONS", broken)
    with pytest.raises(StorageError, match="already exists"):
        open_state(path)
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT sql FROM sqlite_master ORDER BY name").fetchall() == before
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
    monkeypatch.undo()
    open_state(path).close()


def test_several_that_open_an_older_file_at_once_bring_it_up_to_date_once(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    first_file(path)
    with ThreadPoolExecutor(4) as pool:
        states = list(pool.map(open_state, [path] * 8))
    assert {len(state.unassigned_slices("requests", 10)) for state in states} == {2}
    for state in states:
        state.close()


# -- what it costs


@pytest.mark.parametrize(
    ("query", "steps"),
    [
        (f"{windows_sql.CHANGED} ORDER BY start LIMIT ?", ["SEARCH windows USING INDEX windows_due"]),
        (f"{windows_sql.CHECKED} ORDER BY start LIMIT ?", ["SEARCH windows USING INDEX windows_check"]),
        (f"{queue_sql.QUEUED} {queue_sql.ORDER} LIMIT ?", ["SEARCH windows USING INDEX windows_queue"]),
        (f"{queue_sql.LEASED} AND lease_until <= ?", ["SCAN windows USING INDEX windows_leases"]),
        (f"{queue_sql.LEASED} AND owner = ?", ["SEARCH windows USING INDEX windows_leases"]),
        (queue_sql.LENGTH, ["SEARCH windows USING COVERING INDEX windows_queue"]),
        (f"{queue_sql.LENGTH} AND stream = ?", ["SEARCH windows USING COVERING INDEX windows_queue"]),
        (
            windows_sql.UNASSIGNED,
            ["SEARCH slices USING INTEGER PRIMARY KEY", "SEARCH unlaid USING PRIMARY KEY"],
        ),
    ],
)
def test_what_is_due_queued_or_unlaid_is_found_by_its_own_index(
    tmp_path: Path, query: str, steps: list[str]
) -> None:
    """A partial index holds what is due, queued or leased and nothing else: to scan it is to read that."""
    path = tmp_path / "state.db"
    open_state(path).close()
    with sqlite3.connect(path) as db:
        plan = db.execute(f"EXPLAIN QUERY PLAN {query}", ["0"] * query.count("?")).fetchall()
    reads = [step[3].split(" (")[0] for step in plan if step[3].startswith(("SEARCH", "SCAN"))]
    assert reads == steps


_OTHERS = ", ".join(column for column in WINDOW_COLUMNS if column != "start")


def test_a_hundred_thousand_built_windows_cost_nothing(tmp_path: Path) -> None:
    """Counted in steps of SQLite's machine, which do not depend on how busy this one is."""
    state = open_state(tmp_path / "state.db")
    queue(state, {number: [number] for number in range(1, 4)})
    build_all(state)
    costs = []
    for built in (0, 100_000):
        with state._write() as db:  # type: ignore[attr-defined]
            db.executemany(
                f"INSERT INTO windows (start, {_OTHERS}) SELECT ?, {_OTHERS} FROM windows LIMIT 1",
                [((1000 + number) * HOUR,) for number in range(built)],
            )
        number = 10 + bool(built)
        queue(state, {number: [number]})
        accept(state, 20 + number)
        assign(state, {20 + number: [number]})
        costs.append(
            (
                _steps(state, lambda: state.due("requests", 1 << 60, 100)),
                _steps(state, lambda: state.queue_length()),
                _steps(state, lambda: state.take("me", 0, MINUTE, 1)),
                _steps(state, lambda: state.unassigned_slices("requests", 100)),
            )
        )
        judge_due(state)
        state.release("me")
        build_all(state)
    few, many = costs
    assert state.window_counts("requests")[Phase.BUILT] == 100_005
    assert all(after <= before + 2 for before, after in zip(few, many, strict=True)), costs


def _steps(state: State, act: Callable[[], object]) -> int:
    """Hundreds of instructions that an act took."""
    counted = [0]

    def count() -> int:
        counted[0] += 1
        return 0

    with state._read() as db:  # type: ignore[attr-defined]
        pass
    db.set_progress_handler(count, 100)  # the connection is back in the pool: the act takes it from there
    act()
    db.set_progress_handler(None, 0)
    return counted[0]


@pytest.mark.long
def test_thousands_of_windows_are_laid_judged_and_completed_in_a_few_seconds(tmp_path: Path) -> None:
    """Twice as many cost about twice as much: nothing in it looks at all the others."""
    costs = []
    for count in (1000, 4000):
        state = open_state(tmp_path / f"{count}.db")
        accept(state, *range(20))
        lay_all = {number: range(number, count, 20) for number in range(20)}
        counts = [_steps(state, lambda state=state, all_of=lay_all: assign(state, all_of))]
        counts.append(_steps(state, lambda state=state: judge_due(state)))
        counts.append(_steps(state, lambda state=state: build_all(state)))
        assert state.window_counts("requests")[Phase.BUILT] == count
        costs.append(counts)
        state.close()
    assert all(many <= 6 * few for few, many in zip(*costs, strict=True)), costs


def test_the_log_of_writes_is_given_back_unless_somebody_reads(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    log = tmp_path / "state.db-wal"
    state = open_state(path)
    state.enter_all([slice_of(number) for number in range(4000)])
    assert log.stat().st_size > LOG_BYTES
    with sqlite3.connect(path) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM slices").fetchone() == (4000,)
        state.enter(slice_of(5000))
        state.trim_log()
        assert log.stat().st_size > 0
        reader.execute("ROLLBACK")
    state.trim_log()
    assert log.stat().st_size == 0
    assert len(state.slices("requests")) == 4001
    state.close()
