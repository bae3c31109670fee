"""The SQL of failed slices: which are due, which still cannot be read, which are decided again.

Every function runs inside a transaction that the caller has opened. A slice that is decided again gets a new
ledger offset, and everything that refers to it is updated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tidemill.model.slices import SliceEntry, SliceStatus
from tidemill.storage.state import slice_rules
from tidemill.storage.state.database import Connection
from tidemill.storage.state.ledger_sql import ENTRY, entry_by_id, last_offset, rewrite, unknown
from tidemill.storage.state.retractions_sql import forget_batches
from tidemill.storage.state.rows import from_row

NEVER: Final = (1 << 63) - 1
_BY_TIME: Final = (
    f"SELECT {ENTRY} FROM slices INDEXED BY slices_retry WHERE stream = ? AND status = 'failed'"
    " AND retry_at IS NOT NULL AND (retry_at <= ? OR retry_at > ?) ORDER BY retry_at LIMIT ?"
)
_BY_DECLARATION: Final = (
    f"SELECT {ENTRY} FROM slices INDEXED BY slices_unread WHERE stream = ? AND status = 'failed'"
    " AND retry_at IS NULL AND failed_as {} ? LIMIT ?"
)


def failing(
    db: Connection, stream: str, now: int, declared: str, limit: int, longest: int | None = None
) -> list[SliceEntry]:
    latest = min(now + longest, NEVER) if longest is not None else NEVER  # later: the clock was put back
    rows = db.execute(_BY_TIME, (stream, now, latest, limit)).fetchall()
    for other in ("<", ">"):
        rest = limit - len(rows)
        rows += db.execute(_BY_DECLARATION.format(other), (stream, declared, rest)).fetchall()
    return sorted((from_row(row) for row in rows), key=lambda entry: entry.seq)


def postpone(db: Connection, slice_id: str, error: str, retry_at: int) -> None:
    _change(db, slice_id, lambda entry: slice_rules.postponed(entry, error, retry_at))


def prioritise(db: Connection, stream: str) -> int:
    rows = db.execute("SELECT id FROM slices WHERE stream = ? AND status = 'failed'", (stream,)).fetchall()
    for (slice_id,) in rows:
        _change(db, slice_id, slice_rules.prioritised)
    return len(rows)


def _change(db: Connection, slice_id: str, fate: Callable[[SliceEntry], SliceEntry]) -> None:
    entry = entry_by_id(db, slice_id)
    if entry is not None and entry.status is SliceStatus.FAILED:
        rewrite(db, entry, fate(entry))


def send_again(db: Connection, slice_ids: Sequence[str]) -> list[SliceEntry]:
    # until the commit: the offset and its references change one by one
    db.execute("PRAGMA defer_foreign_keys = ON")
    sent = []
    for slice_id in slice_ids:
        before = entry_by_id(db, slice_id)
        if before is None:
            raise unknown(slice_id, "of its landing")
        after = slice_rules.sent_again(before, last_offset(db) + 1)
        db.execute("UPDATE slices SET seq = ? WHERE seq = ?", (after.seq, before.seq))
        if before.attempt:  # it was accepted once: something may be left that was built with it
            for table in ("tile_slices", "window_slices"):
                db.execute(f"UPDATE {table} SET slice = ? WHERE slice = ?", (after.seq, before.seq))
        rewrite(db, before, after)
        forget_batches(db, before.slice.stream, [before])
        sent.append(after)
    return sent
