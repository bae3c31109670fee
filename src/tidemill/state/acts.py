"""What each act of the state writes and reads, as statements inside a transaction somebody else opened.

Nothing here begins, commits or rolls back, and nothing leaves totals or tile hashes behind the rows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tidemill.model.errors import StorageError
from tidemill.model.levels import BASE
from tidemill.model.slices import NewSlice, SliceEntry, SliceStatus, set_hash
from tidemill.model.tiles import BaseTile, TileKey, TileState
from tidemill.state.protocol import BatchRecord, SliceResult, TileBuild
from tidemill.state.rows import SLICE_COLUMNS, Value, bounds, contribution, from_row, rejects_text, to_row

ENTRY = ", ".join(SLICE_COLUMNS)
TILE = "level, start, hash, revision, part, rows"
_INSERT_ENTRY = f"INSERT INTO slices ({ENTRY}) VALUES ({', '.join('?' * len(SLICE_COLUMNS))})"


def enter(db: sqlite3.Connection, new: NewSlice) -> SliceEntry:
    known = entry_by_id(db, new.id)
    if known is not None:
        db.execute("UPDATE slices SET landings = landings + 1 WHERE seq = ?", (known.seq,))
        _add(db, known.slice.stream, {"landings": 1})
        return replace(known, landings=known.landings + 1)
    (last,) = db.execute("SELECT coalesce(max(seq), 0) FROM slices").fetchone()
    entry = SliceEntry(seq=last + 1, slice=new)
    insert(db, entry)
    return entry


def insert(db: sqlite3.Connection, entry: SliceEntry) -> None:
    db.execute(_INSERT_ENTRY, to_row(entry))
    _add(db, entry.slice.stream, contribution(entry))


def entry_by_id(db: sqlite3.Connection, slice_id: str) -> SliceEntry | None:
    row = db.execute(f"SELECT {ENTRY} FROM slices WHERE id = ?", (slice_id,)).fetchone()
    return from_row(row) if row else None


def _add(db: sqlite3.Connection, stream: str, parts: dict[str, int]) -> None:
    db.executemany(
        "INSERT INTO totals (stream, name, value) VALUES (?, ?, ?)"
        " ON CONFLICT (stream, name) DO UPDATE SET value = value + excluded.value",
        [(stream, name, value) for name, value in parts.items() if value],
    )


def has_batch(db: sqlite3.Connection, stream: str, batch: str) -> bool:
    found = db.execute("SELECT 1 FROM batches WHERE stream = ? AND batch = ?", (stream, batch)).fetchone()
    return found is not None


def apply_batch(db: sqlite3.Connection, record: BatchRecord) -> bool:
    if has_batch(db, record.stream, record.batch):
        return False
    stream = record.stream
    db.execute("INSERT INTO batches (stream, batch) VALUES (?, ?)", (stream, record.batch))
    saw_version(db, stream, "raw", record.raw_version)
    saw_version(db, stream, "quarantine", record.quarantine_version)
    for result in record.results:
        _decide(db, stream, record.batch, result)
    db.executemany(
        "INSERT INTO clocks (stream, source, max_seen, watermark) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (stream, source) DO UPDATE SET max_seen = max(max_seen, excluded.max_seen),"
        " watermark = max(watermark, excluded.watermark)",  # neither ever goes back
        [(stream, clock.source, clock.max_seen, clock.watermark) for clock in record.clocks],
    )
    last = db.execute("SELECT coalesce(max(place), -1) FROM runs WHERE stream = ?", (stream,))
    append_runs(db, stream, last.fetchone()[0] + 1, record.runs)
    seqs = _seqs(db, stream, {slice_id for ids in record.tiles.values() for slice_id in ids})
    for start, ids in record.tiles.items():
        db.executemany(
            "INSERT INTO tile_slices (stream, start, slice, desired, observed) VALUES (?, ?, ?, 1, 0)"
            " ON CONFLICT (stream, start, slice) DO UPDATE SET desired = 1",
            [(stream, start, seqs[slice_id]) for slice_id in ids],
        )
        _rehash(db, stream, start)
    return True


def _decide(db: sqlite3.Connection, stream: str, batch: str, result: SliceResult) -> None:
    """Write a slice's outcome; what it added to the totals before (a failed try) is taken back."""
    before = entry_by_id(db, result.slice)
    if before is None or before.slice.stream != stream:
        raise _unknown(result.slice, stream)
    after = replace(
        before,
        status=SliceStatus.ACCEPTED if result.error is None else SliceStatus.FAILED,
        counts=result.counts,
        observed=result.observed,
        watermark=result.watermark,
        batch=batch,
        error=result.error,
    )
    counts = after.counts
    db.execute(
        "UPDATE slices SET status = ?, records = ?, accepted = ?, duplicate = ?, conflict = ?, rejected = ?,"
        " late = ?, rejects = ?, observed_start = ?, observed_end = ?, watermark = ?, batch = ?, error = ?"
        " WHERE seq = ?",
        (
            after.status.value, counts.records, counts.accepted, counts.duplicate, counts.conflict,
            counts.rejected, counts.late, rejects_text(counts.rejects), *bounds(after.observed),
            after.watermark, after.batch, after.error, after.seq,
        ),
    )  # fmt: skip
    change = contribution(after)
    for name, value in contribution(before).items():
        change[name] = change.get(name, 0) - value
    _add(db, stream, change)


def saw_version(db: sqlite3.Connection, stream: str, table: str, version: int) -> None:
    db.execute(
        "INSERT INTO versions (stream, part_of, version) VALUES (?, ?, ?)"
        " ON CONFLICT (stream, part_of) DO UPDATE SET version = max(version, excluded.version)",
        (stream, table, version),
    )


def runs(db: sqlite3.Connection, stream: str) -> list[str]:
    rows = db.execute("SELECT name FROM runs WHERE stream = ? ORDER BY place", (stream,)).fetchall()
    return [name for (name,) in rows]


def append_runs(db: sqlite3.Connection, stream: str, place: int, names: Sequence[str]) -> None:
    db.executemany(
        "INSERT INTO runs (stream, place, name) VALUES (?, ?, ?)",
        [(stream, place + i, name) for i, name in enumerate(names)],
    )


def base_tile(db: sqlite3.Connection, stream: str, row: tuple[Value, ...]) -> BaseTile:
    state = tile_state(row)
    members = _members(db, stream, state.key.start)
    return BaseTile(
        state,
        desired=frozenset(slice_id for slice_id, _, desired, _ in members if desired),
        observed=frozenset(slice_id for slice_id, _, _, observed in members if observed),
    )


def tile_state(row: tuple[Value, ...]) -> TileState:
    level, start, hash_, revision, part, rows = row
    assert isinstance(start, int)
    assert isinstance(revision, int)
    assert isinstance(rows, int)
    return TileState(
        TileKey(str(level), start),
        hash=None if hash_ is None else str(hash_),
        revision=revision,
        part=None if part is None else str(part),
        rows=rows,
    )


def apply_tile(db: sqlite3.Connection, stream: str, build: TileBuild) -> None:
    key = build.key
    if key.level == BASE.name:
        assert build.hash == set_hash(build.slices), f"5s tile {key.start}: hash is not that of its slices"
        _observe(db, stream, key.start, build.slices)
    db.execute(
        "INSERT INTO tiles (stream, level, start, desired, hash, revision, part, rows)"
        " VALUES (?, ?, ?, NULL, ?, ?, ?, ?) ON CONFLICT (stream, level, start) DO UPDATE SET"
        " hash = excluded.hash, revision = excluded.revision, part = excluded.part, rows = excluded.rows",
        (stream, key.level, key.start, build.hash, build.revision, build.part, build.rows),
    )


def _observe(db: sqlite3.Connection, stream: str, start: int, ids: frozenset[str]) -> None:
    """Make `ids` the observed set, touching only the members that change."""
    members = _members(db, stream, start)
    flips = [
        (int(slice_id in ids), stream, start, seq)
        for slice_id, seq, _, observed in members
        if bool(observed) != (slice_id in ids)
    ]
    db.executemany("UPDATE tile_slices SET observed = ? WHERE stream = ? AND start = ? AND slice = ?", flips)
    strangers = ids - {slice_id for slice_id, *_ in members}
    if strangers or not members:  # made of something that nobody asked for: stays visible as stale
        seqs = _seqs(db, stream, strangers)
        db.executemany(
            "INSERT INTO tile_slices (stream, start, slice, desired, observed) VALUES (?, ?, ?, 0, 1)",
            [(stream, start, seqs[slice_id]) for slice_id in strangers],
        )
        _rehash(db, stream, start)


def _rehash(db: sqlite3.Connection, stream: str, start: int) -> None:
    desired = set_hash(slice_id for slice_id, _, wanted, _ in _members(db, stream, start) if wanted)
    db.execute(
        "INSERT INTO tiles (stream, level, start, desired, hash, revision, part, rows)"
        " VALUES (?, ?, ?, ?, NULL, 0, NULL, 0)"
        " ON CONFLICT (stream, level, start) DO UPDATE SET desired = excluded.desired",
        (stream, BASE.name, start, desired),
    )


def _members(db: sqlite3.Connection, stream: str, start: int) -> list[tuple[str, int, int, int]]:
    return db.execute(
        "SELECT s.id, t.slice, t.desired, t.observed FROM tile_slices t JOIN slices s ON s.seq = t.slice"
        " WHERE t.stream = ? AND t.start = ?",
        (stream, start),
    ).fetchall()


def _seqs(db: sqlite3.Connection, stream: str, ids: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for slice_id in ids:
        row = db.execute("SELECT seq FROM slices WHERE id = ? AND stream = ?", (slice_id, stream)).fetchone()
        if row is None:
            raise _unknown(slice_id, stream)
        found[slice_id] = row[0]
    return found


def _unknown(slice_id: str, stream: str) -> StorageError:
    return StorageError(
        f"slice {slice_id} is not in the ledger of stream {stream}",
        hint="run `tidemill recover` to rebuild the state from the warehouse",
    )
