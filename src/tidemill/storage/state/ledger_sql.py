"""The SQL of the ledger and of tiles.

Every function runs inside a transaction that the caller has opened, and keeps totals and tile hashes in step
with the rows.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tidemill.model.errors import StorageError
from tidemill.model.levels import BASE, BY_NAME, TO_BE_MADE, BaseTile, TileKey, TileState
from tidemill.model.slices import (
    NewSlice,
    SliceEntry,
    SliceStatus,
    contribution_name,
    contribution_of,
    hash_of,
)
from tidemill.storage.state import progress_sql, slice_rules
from tidemill.storage.state.database import Connection, greater
from tidemill.storage.state.protocol import BatchRecord, SliceResult, TileBuild
from tidemill.storage.state.rows import (
    SLICE_COLUMNS,
    Value,
    bounds,
    contribution,
    decision_code,
    from_row,
    rejects_text,
    repeats_text,
    to_row,
)

ENTRY = ", ".join(SLICE_COLUMNS)
TILE = "level, start, hash, revision, part, rows"
_UPDATE_ENTRY = (
    "UPDATE slices SET status = ?, records = ?, accepted = ?, duplicate = ?, conflict = ?, rejected = ?,"
    " late = ?, rejects = ?, observed_start = ?, observed_end = ?, watermark = ?, repeats = ?, batch = ?,"
    " error = ?,"
    " attempt = ?, judgement = ?, accepted_before = ?, retracted_at = ?, retract_reason = ?, retried = ?,"
    " failures = ?, retry_at = ?, failed_as = ? WHERE seq = ?"
)
_FORGET_TILE_SLICES = (
    "DELETE FROM tile_slices WHERE stream = ? AND start = ? AND desired = 0 AND observed = 0"
)
_UNBLOCK = "UPDATE windows SET due = 1, blocked_by = NULL WHERE blocked_by = ?"
_Member = tuple[int, int, int]  # of a 5s tile: the ledger offset of the slice, desired, observed
_INSERT_ENTRY = f"INSERT INTO slices ({ENTRY}) VALUES ({', '.join('?' * len(SLICE_COLUMNS))})"


class _TileSlices(NamedTuple):
    """The slices of a 5s tile; shared by all tiles that have the same ones."""

    members: Sequence[tuple[str, _Member]]  # with their ids
    desired: frozenset[str]
    observed: frozenset[str]
    has_left: bool  # whether a slice is no longer desired


def enter(db: Connection, new: NewSlice) -> SliceEntry:
    known = entry_by_id(db, new.id)
    if known is not None:
        again = slice_rules.landed_again(known)
        db.execute(
            "UPDATE slices SET landings = ?, retry_at = ? WHERE seq = ?",
            (again.landings, again.retry_at, known.seq),
        )
        _add(db, known.slice.stream, {"landings": 1})
        return again
    entry = SliceEntry(seq=last_offset(db) + 1, slice=new)
    insert(db, entry)
    return entry


def last_offset(db: Connection) -> int:
    return int(db.execute("SELECT coalesce(max(seq), 0) FROM slices").fetchone()[0])


def last_arrival(db: Connection, newest: int) -> int | None:
    row = db.execute(
        "SELECT max(arrival) FROM (SELECT arrival FROM slices ORDER BY seq DESC LIMIT ?) AS newest", (newest,)
    ).fetchone()
    return None if row[0] is None else int(row[0])


def insert(db: Connection, entry: SliceEntry) -> None:
    db.execute(_INSERT_ENTRY, to_row(entry))
    _add(db, entry.slice.stream, contribution(entry))
    if entry.status is SliceStatus.ACCEPTED:
        _unassigned(db, entry)


def rewrite(db: Connection, before: SliceEntry, after: SliceEntry) -> None:
    """Replace an entry by another of the same slice, and update the totals."""
    counts = after.counts
    db.execute(
        _UPDATE_ENTRY,
        (
            after.status.value, counts.records, counts.accepted, counts.duplicate, counts.conflict,
            counts.rejected, counts.late, rejects_text(counts.rejects), *bounds(after.observed),
            after.watermark, repeats_text(after.repeats), after.batch, after.error, after.attempt,
            after.decision, after.accepted_before, after.retracted_at, after.retract_reason,
            after.retried, after.failures, after.retry_at,
            after.failed_as, after.seq,
        ),
    )  # fmt: skip
    db.execute(_UNBLOCK, (before.seq,))  # windows that wait for it are evaluated again
    change = contribution(after)
    for name, value in contribution(before).items():
        change[name] = change.get(name, 0) - value
    _add(db, after.slice.stream, change)


def _unassigned(db: Connection, entry: SliceEntry) -> None:
    db.execute(
        "INSERT INTO unlaid (stream, slice) VALUES (?, ?) ON CONFLICT DO NOTHING",
        (entry.slice.stream, entry.seq),
    )


def entry_by_id(db: Connection, slice_id: str) -> SliceEntry | None:
    row = db.execute(f"SELECT {ENTRY} FROM slices WHERE id = ?", (slice_id,)).fetchone()
    return from_row(row) if row else None


def entry_of(db: Connection, stream: str, slice_id: str) -> SliceEntry:
    entry = entry_by_id(db, slice_id)
    if entry is None or entry.slice.stream != stream:
        raise unknown(slice_id, stream)
    return entry


def _add(db: Connection, stream: str, parts: dict[str, int]) -> None:
    db.executemany(
        "INSERT INTO totals (stream, name, value) VALUES (?, ?, ?)"
        " ON CONFLICT (stream, name) DO UPDATE SET value = totals.value + excluded.value",
        [(stream, name, value) for name, value in parts.items() if value],
    )


def has_batch(db: Connection, stream: str, batch: str) -> bool:
    found = db.execute("SELECT 1 FROM batches WHERE stream = ? AND batch = ?", (stream, batch)).fetchone()
    return found is not None


def apply_batch(db: Connection, record: BatchRecord) -> bool:
    if has_batch(db, record.stream, record.batch):
        return False
    stream = record.stream
    db.execute("INSERT INTO batches (stream, batch) VALUES (?, ?)", (stream, record.batch))
    record_version(db, stream, "raw", record.raw_version)
    record_version(db, stream, "quarantine", record.quarantine_version)
    for result in record.results:
        _decide(db, stream, record.batch, result)
    progress_sql.advance(db, stream, record.clocks, record.progress)
    last = db.execute("SELECT coalesce(max(place), -1) FROM runs WHERE stream = ?", (stream,))
    append_runs(db, stream, last.fetchone()[0] + 1, record.runs)
    want(db, stream, record.tiles)
    return True


def want(db: Connection, stream: str, tiles: Mapping[int, frozenset[str]]) -> None:
    """Add slices to the desired sets of 5s tiles."""
    decision_codes = _decision_codes(db, stream, {slice_id for ids in tiles.values() for slice_id in ids})
    db.executemany(
        "INSERT INTO tile_slices (stream, start, slice, desired, observed) VALUES (?, ?, ?, ?, 0)"
        " ON CONFLICT (stream, start, slice) DO UPDATE SET desired = excluded.desired",
        [(stream, start, *decision_codes[slice_id]) for start, ids in tiles.items() for slice_id in ids],
    )
    rehash(db, stream, tiles)


def leave_tiles(db: Connection, stream: str, tiles: Mapping[int, frozenset[str]]) -> None:
    """Remove slices from the desired sets of 5s tiles."""
    pairs = [(stream, start, slice_id) for start, ids in tiles.items() for slice_id in ids]
    of_it = "stream = ? AND start = ? AND slice = (SELECT seq FROM slices WHERE id = ?)"
    db.executemany(f"UPDATE tile_slices SET desired = 0 WHERE {of_it}", pairs)
    db.executemany(_FORGET_TILE_SLICES, [(stream, start) for start in tiles])
    rehash(db, stream, tiles)


def _decision_codes(db: Connection, stream: str, ids: Collection[str]) -> dict[str, tuple[int, int]]:
    """For each slice its ledger offset and its decision code."""
    rows = db.execute(
        "SELECT id, seq, judgement FROM slices WHERE stream = ? AND id IN (SELECT value FROM json_each(?))",
        (stream, json.dumps(sorted(ids))),
    )
    found = {str(id_): (int(seq), decision_code(int(decision))) for id_, seq, decision in rows}
    for missing in sorted(ids - found.keys()):
        raise unknown(missing, stream)
    return found


def _decide(db: Connection, stream: str, batch: str, result: SliceResult) -> None:
    """Write the outcome of a slice; what an earlier, failed try added to the totals is subtracted."""
    before = entry_of(db, stream, result.slice)
    if before.status is SliceStatus.RETRACTED:
        raise StorageError(
            f"batch {batch} decides slice {result.slice}, which was retracted",
            hint="run `tidemill recover` to rebuild the state from the warehouse",
        )
    after = slice_rules.decided(before, batch, result)
    rewrite(db, before, after)
    if after.status is SliceStatus.ACCEPTED:
        _unassigned(db, after)


def record_version(db: Connection, stream: str, table: str, version: int) -> None:
    db.execute(
        "INSERT INTO versions (stream, part_of, version) VALUES (?, ?, ?)"
        " ON CONFLICT (stream, part_of) DO UPDATE SET"
        f" version = {greater('versions.version', 'excluded.version')}",
        (stream, table, version),
    )


def runs(db: Connection, stream: str) -> list[str]:
    rows = db.execute("SELECT name FROM runs WHERE stream = ? ORDER BY place", (stream,)).fetchall()
    return [name for (name,) in rows]


def append_runs(db: Connection, stream: str, offset: int, names: Sequence[str]) -> None:
    db.executemany(
        "INSERT INTO runs (stream, place, name) VALUES (?, ?, ?)",
        [(stream, offset + i, name) for i, name in enumerate(names)],
    )


def base_tiles(db: Connection, stream: str, rows: Sequence[tuple[Value, ...]]) -> list[BaseTile]:
    states = [tile_state(row) for row in rows]
    slices = _slices_of(db, stream, [state.key.start for state in states])
    return [
        BaseTile(state, found.desired, found.observed)
        for state in states
        for found in (slices[state.key.start],)
    ]


def tile_state(row: tuple[Any, ...]) -> TileState:
    level, start, hash_, revision, part, rows = row
    return TileState(TileKey(level, start), hash_, revision, part, rows)


def apply_tiles(db: Connection, stream: str, builds: Iterable[TileBuild]) -> None:
    known = list(builds)
    base = [build for build in known if build.key.level == BASE.name]
    for build in base:
        assert build.hash == hash_of(build.slices), f"5s tile {build.key.start}: not the hash of its slices"
    _observe(db, stream, {build.key.start: build.slices for build in base})
    db.executemany(
        "INSERT INTO tiles (stream, level, start, desired, hash, revision, part, rows)"
        " VALUES (?, ?, ?, NULL, ?, ?, ?, ?) ON CONFLICT (stream, level, start) DO UPDATE SET"
        " hash = excluded.hash, revision = excluded.revision, part = excluded.part, rows = excluded.rows",
        [(stream, b.key.level, b.key.start, b.hash, b.revision, b.part, b.rows) for b in known],
    )


def move_tiles(db: Connection, stream: str, moved: Iterable[TileBuild]) -> None:
    db.executemany(
        "UPDATE tiles SET part = ?, rows = ? WHERE stream = ? AND level = ? AND start = ?",
        [(build.part, build.rows, stream, build.key.level, build.key.start) for build in moved],
    )


def _observe(db: Connection, stream: str, tiles: Mapping[int, frozenset[str]]) -> None:
    """Set the observed sets of 5s tiles to these names."""
    slices = _slices_of(db, stream, tiles)
    current = [start for start, names in tiles.items() if slices[start].desired == names]
    db.execute(
        "UPDATE tile_slices SET observed = desired WHERE stream = ? AND observed != desired"
        " AND start IN (SELECT CAST(value AS bigint) FROM json_each(?))",
        (stream, json.dumps(current)),
    )
    for start in tiles.keys() - set(current):  # its desired set changed while it was built, or before
        _observe_one(db, stream, start, slices[start].members, tiles[start])
    left = [start for start in tiles if slices[start].has_left]
    db.executemany(_FORGET_TILE_SLICES, [(stream, start) for start in left])
    rehash(db, stream, [start for start in tiles if not slices[start].desired])


def _observe_one(
    db: Connection, stream: str, start: int, members: Sequence[tuple[str, _Member]], names: frozenset[str]
) -> None:
    """Set the observed set of one tile; only members that change are written."""
    decision_codes = {id_: decision_code(decision) for id_, decision in map(contribution_of, names)}
    flips = [
        (decision_codes.get(id_, 0), stream, start, seq)
        for id_, (seq, _, observed) in members
        if observed != decision_codes.get(id_, 0)
    ]
    db.executemany("UPDATE tile_slices SET observed = ? WHERE stream = ? AND start = ? AND slice = ?", flips)
    unknown = decision_codes.keys() - {
        id_ for id_, *_ in members
    }  # not in the desired set: the tile shows as stale
    offsets = _decision_codes(db, stream, unknown)
    db.executemany(
        "INSERT INTO tile_slices (stream, start, slice, desired, observed) VALUES (?, ?, ?, 0, ?)",
        [(stream, start, offsets[id_][0], decision_codes[id_]) for id_ in unknown],
    )


def miss_tiles(db: Connection, stream: str, above: Sequence[tuple[str, int]]) -> None:
    """Mark the first 5s tile below each missing tile: it is stale then, and all tiles above it are made again
    from those below them. Where there is none, nothing is left of what the missing tile was made of: a tile
    made of nothing is entered there."""
    for level, start in above:
        span = (start, start + BY_NAME[level].tile)
        of_base = "FROM tiles WHERE stream = ? AND level = ? AND start >= ? AND start < ?"
        (first,) = db.execute(f"SELECT min(start) {of_base}", (stream, BASE.name, *span)).fetchone()
        if first is None:
            first = start
            rehash(db, stream, [first])  # it is stale, since it has no hash yet
        db.execute(
            "UPDATE tiles SET hash = ? WHERE stream = ? AND level = ? AND start = ? AND hash IS NOT NULL",
            (TO_BE_MADE, stream, BASE.name, first),
        )


def lose_tiles(db: Connection, stream: str, parts: Collection[str]) -> int:
    lost = db.execute(
        "SELECT level, start FROM tiles WHERE stream = ? AND part IN (SELECT value FROM json_each(?))",
        (stream, json.dumps(sorted(parts))),
    ).fetchall()
    db.executemany(
        "UPDATE tiles SET hash = NULL, part = NULL, rows = 0 WHERE stream = ? AND level = ? AND start = ?",
        [(stream, level, start) for level, start in lost],
    )
    db.executemany(
        "UPDATE tile_slices SET observed = 0 WHERE stream = ? AND start = ?",
        [(stream, start) for level, start in lost if level == BASE.name],
    )
    miss_tiles(db, stream, [(level, start) for level, start in lost if level != BASE.name])
    return len(lost)


def rehash(db: Connection, stream: str, starts: Collection[int]) -> None:
    """Compute the hashes of the desired sets of 5s tiles again, after these changed."""
    slices = _slices_of(db, stream, starts)
    db.executemany(
        "INSERT INTO tiles (stream, level, start, desired, hash, revision, part, rows)"
        " VALUES (?, ?, ?, ?, NULL, 0, NULL, 0)"
        " ON CONFLICT (stream, level, start) DO UPDATE SET desired = excluded.desired",
        [(stream, BASE.name, start, hash_of(slices[start].desired)) for start in starts],
    )


def _slices_of(db: Connection, stream: str, starts: Collection[int]) -> dict[int, _TileSlices]:
    """The slices of each of these 5s tiles. Many tiles have the same ones: each set is made once."""
    found: dict[int, list[_Member]] = {start: [] for start in starts}
    for row in db.execute(
        "SELECT t.start, t.slice, t.desired, t.observed FROM json_each(?) j"
        " CROSS JOIN tile_slices t ON t.stream = ? AND t.start = CAST(j.value AS bigint)",
        (json.dumps(sorted(starts)), stream),
    ):
        found[row[0]].append(row[1:])
    keys = {start: tuple(members) for start, members in found.items()}
    distinct = set(keys.values())
    ids = dict(
        db.execute(
            "SELECT seq, id FROM slices WHERE seq IN (SELECT CAST(value AS bigint) FROM json_each(?))",
            (json.dumps(sorted({seq for members in distinct for seq, _, _ in members})),),
        ).fetchall()
    )
    made = {members: _tile_slices([(ids[member[0]], member) for member in members]) for members in distinct}
    return {start: made[key] for start, key in keys.items()}


def _tile_slices(members: Sequence[tuple[str, _Member]]) -> _TileSlices:
    return _TileSlices(
        members,
        frozenset([_name(id_, desired) for id_, (_, desired, _) in members if desired]),
        frozenset([_name(id_, observed) for id_, (_, _, observed) in members if observed]),
        not all(desired for _, (_, desired, _) in members),
    )


@lru_cache(maxsize=1024)
def _name(slice_id: str, code: int) -> str:
    """The name of a slice with a decision code."""
    return contribution_name(slice_id, code - decision_code(0))


def unknown(slice_id: str, stream: str) -> StorageError:
    return StorageError(
        f"slice {slice_id} is not in the ledger of stream {stream}",
        hint="run `tidemill recover` to rebuild the state from the warehouse",
    )
