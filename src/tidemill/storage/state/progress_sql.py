"""The SQL of event-time progress: the clocks and the progress of a stream, and the checkpoints of its
streaming windows.

Every function runs inside a transaction that the caller has opened. Only a retraction can set the time back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidemill.storage.state.database import Connection, greater
from tidemill.storage.state.protocol import NO_PROGRESS, ClockState, Progress

_ADVANCE_CLOCK: Final = (
    "INSERT INTO clocks (stream, source, max_seen, watermark, arrival) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT (stream, source) DO UPDATE SET"
    f" max_seen = {greater('clocks.max_seen', 'excluded.max_seen')},"
    f" watermark = {greater('clocks.watermark', 'excluded.watermark')},"
    f" arrival = {greater('clocks.arrival', 'excluded.arrival')}"
)
# Before the first watermark there is none, and nothing is greater than null.
_ADVANCE: Final = (
    "INSERT INTO progress (stream, watermark, emitted, buffered_rows, buffered_bytes, released_early)"
    " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (stream) DO UPDATE SET"
    " watermark = CASE WHEN progress.watermark IS NULL OR excluded.watermark > progress.watermark"
    " THEN excluded.watermark ELSE progress.watermark END,"
    f" emitted = {greater('progress.emitted', 'excluded.emitted')},"
    " buffered_rows = excluded.buffered_rows, buffered_bytes = excluded.buffered_bytes,"
    f" released_early = {greater('progress.released_early', 'excluded.released_early')}"
)


def advance(db: Connection, stream: str, clocks: Iterable[ClockState], progress: Progress) -> None:
    """Apply the progress of a batch; only the size of the buffer can decrease."""
    db.executemany(
        _ADVANCE_CLOCK,
        [(stream, clock.source, clock.max_seen, clock.watermark, clock.arrival) for clock in clocks],
    )
    db.execute(
        _ADVANCE,
        (
            stream, progress.watermark, progress.emitted, progress.buffered_rows, progress.buffered_bytes,
            progress.released_early,
        ),
    )  # fmt: skip


def replace(db: Connection, stream: str, clocks: Iterable[ClockState], progress: Progress) -> None:
    """Apply the progress of a retraction, whatever was known before."""
    db.execute("DELETE FROM clocks WHERE stream = ?", (stream,))
    db.execute("DELETE FROM progress WHERE stream = ?", (stream,))
    advance(db, stream, clocks, progress)


def clocks(db: Connection, stream: str) -> list[ClockState]:
    rows = db.execute(
        "SELECT source, max_seen, watermark, arrival FROM clocks WHERE stream = ? ORDER BY source", (stream,)
    ).fetchall()
    return [ClockState(*row) for row in rows]


def progress(db: Connection, stream: str) -> Progress:
    row = db.execute(
        "SELECT watermark, emitted, buffered_rows, buffered_bytes, released_early FROM progress"
        " WHERE stream = ?",
        (stream,),
    ).fetchone()
    return Progress(*row) if row else NO_PROGRESS


def checkpoints(db: Connection, stream: str) -> dict[str, str]:
    return dict(db.execute("SELECT name, mark FROM marks WHERE stream = ?", (stream,)).fetchall())


def set_checkpoint(db: Connection, stream: str, window: str, checkpoint: str | None) -> None:
    if checkpoint is None:
        db.execute("DELETE FROM marks WHERE stream = ? AND name = ?", (stream, window))
        return
    db.execute(
        "INSERT INTO marks (stream, name, mark) VALUES (?, ?, ?)"
        " ON CONFLICT (stream, name) DO UPDATE SET mark = excluded.mark",
        (stream, window, checkpoint),
    )
