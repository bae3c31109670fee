"""The SQL of retractions: the ledger, tiles, windows, clocks and batches become as if the slice had never
arrived.

Every function runs inside a transaction that the caller has opened. The entry of the slice stays in the
ledger.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from tidemill.model.levels import BASE
from tidemill.model.slices import SliceEntry, SliceStatus
from tidemill.storage.state import progress_sql, windows_sql
from tidemill.storage.state.database import Connection
from tidemill.storage.state.ledger_sql import entry_of, record_version, rehash, rewrite
from tidemill.storage.state.protocol import NO_PROGRESS, ClockState, Progress, Retraction
from tidemill.storage.state.slice_rules import after_retraction

NOBODY: Final = 0  # no slice has this offset


def applied(db: Connection) -> int:
    return int(db.execute("SELECT value FROM counters WHERE name = 'retractions'").fetchone()[0])


def set_applied(db: Connection, count: int) -> None:
    db.execute("UPDATE counters SET value = ? WHERE name = 'retractions'", (count,))


def apply(
    db: Connection,
    act: Retraction,
    clocks: Sequence[ClockState],
    raw_version: int,
    quarantine_version: int,
    progress: Progress = NO_PROGRESS,
) -> bool:
    retracted = entry_of(db, act.stream, act.slice) if act.slice else None
    if retracted is not None and retracted.status is SliceStatus.RETRACTED:
        return False
    set_applied(db, applied(db) + 1)
    slices = [] if retracted is None else [retracted]
    slices += [entry_of(db, act.stream, slice_id) for slice_id in act.again if slice_id != act.slice]
    for before in slices:
        rewrite(db, before, after_retraction(before, act))
    forget_batches(db, act.stream, slices)
    progress_sql.replace(db, act.stream, clocks, progress)
    record_version(db, act.stream, "raw", raw_version)
    record_version(db, act.stream, "quarantine", quarantine_version)
    seqs = json.dumps([entry.seq for entry in slices])
    _leave_tiles(db, act.stream, seqs)
    windows_sql.leave(db, act.stream, seqs, NOBODY if retracted is None else retracted.seq)
    return True


def forget_batches(db: Connection, stream: str, slices: Sequence[SliceEntry]) -> None:
    """Delete the batches that have no slice left, with one query for all of them."""
    touched = json.dumps(sorted({entry.batch for entry in slices if entry.batch is not None}))
    db.execute(
        "DELETE FROM batches WHERE stream = ? AND batch IN (SELECT value FROM json_each(?))"
        " AND batch NOT IN (SELECT batch FROM slices WHERE stream = ? AND batch IS NOT NULL)",
        (stream, touched, stream),
    )


def _leave_tiles(db: Connection, stream: str, seqs: str) -> None:
    of_them = "stream = ? AND slice IN (SELECT CAST(value AS bigint) FROM json_each(?))"
    starts = db.execute(
        f"SELECT DISTINCT start FROM tile_slices WHERE desired != 0 AND {of_them}", (stream, seqs)
    ).fetchall()
    db.execute(f"UPDATE tile_slices SET desired = 0 WHERE desired != 0 AND {of_them}", (stream, seqs))
    db.execute(f"DELETE FROM tile_slices WHERE desired = 0 AND observed = 0 AND {of_them}", (stream, seqs))
    rehash(db, stream, [start for (start,) in starts])
    db.executemany(
        "DELETE FROM tiles WHERE stream = ? AND level = ? AND start = ? AND hash IS NULL AND NOT EXISTS"
        " (SELECT 1 FROM tile_slices t WHERE t.stream = tiles.stream AND t.start = tiles.start)",
        [(stream, BASE.name, start) for (start,) in starts],
    )
