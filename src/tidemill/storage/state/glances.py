"""Very many windows and slices at a glance: a few columns of each, read without making whole entries."""

from __future__ import annotations

import sqlite3
from typing import Final

from tidemill.model.slices import SliceGlance, SliceStatus
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, Interval
from tidemill.model.windows import Phase, WindowGlance

_START: Final = "coalesce(declared_start, observed_start)"
_END: Final = "coalesce(declared_end, observed_end)"
_OVERLAPS: Final = f"stream = ? AND status <> 'retracted' AND {_START} < ? AND {_END} > ?"


def windows(db: sqlite3.Connection, stream: str, width: int, within: Interval | None) -> list[WindowGlance]:
    span = within or Interval(MIN_INSTANT, MAX_INSTANT)
    rows = db.execute(
        "SELECT start, version, phase, reason, check_at, sealed, revision, rows FROM windows"
        " WHERE stream = ? AND start >= ? AND start < ? AND span = ? ORDER BY start",
        (stream, span.start, span.end, width),
    )
    phases = {phase.value: phase for phase in Phase}
    return [
        WindowGlance(start, version, phases[phase], *rest) for start, version, phase, *rest in rows.fetchall()
    ]


def first_arrivals(db: sqlite3.Connection, stream: str, within: Interval) -> dict[int, int]:
    rows = db.execute(
        "SELECT m.start, min(coalesce(o.arrival, s.arrival)) FROM window_slices m"
        " JOIN slices s ON s.seq = m.slice LEFT JOIN slices o ON o.id = s.replays"
        " WHERE m.stream = ? AND m.start >= ? AND m.start < ? AND m.member = 1 GROUP BY m.start",
        (stream, within.start, within.end),
    )
    return dict(rows.fetchall())


def extent(db: sqlite3.Connection, stream: str, width: int) -> Interval | None:
    first, last = db.execute(
        "SELECT min(start), max(start) FROM windows WHERE stream = ? AND span = ?", (stream, width)
    ).fetchone()
    return None if first is None else Interval(first, last + width)


def offset_at(db: sqlite3.Connection, instant: int) -> int:
    arrived = "SELECT max(seq) FROM slices WHERE arrival <= ? AND retried = 0"
    last: int | None = db.execute(arrived, (instant,)).fetchone()[0]
    return last or 0


def slices(db: sqlite3.Connection, stream: str, span: Interval, limit: int) -> list[SliceGlance]:
    rows = db.execute(
        f"SELECT id, name, {_START}, {_END}, arrival, late, declared_start IS NOT NULL, accepted, status"
        f" FROM slices WHERE {_OVERLAPS} ORDER BY seq DESC LIMIT ?",
        (stream, span.end, span.start, limit),
    )
    return [
        SliceGlance(id_, name, start, end, arrival, late, bool(declared), accepted, SliceStatus(status))
        for id_, name, start, end, arrival, late, declared, accepted, status in rows.fetchall()
    ]


def covered(db: sqlite3.Connection, stream: str, span: Interval) -> list[tuple[int, int]]:
    rows = db.execute(
        f"SELECT {_START}, {_END} FROM slices WHERE {_OVERLAPS} ORDER BY 1", (stream, span.end, span.start)
    )
    return rows.fetchall()
