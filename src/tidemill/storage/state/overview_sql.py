"""A few columns of very many windows and slices, read without making whole entries."""

from __future__ import annotations

from typing import Final

from tidemill.model.slices import SliceGlance, SliceStatus
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, Interval
from tidemill.model.windows import Phase, WindowGlance, WindowGroup
from tidemill.storage.state.database import Connection

_START: Final = "coalesce(declared_start, observed_start)"
_END: Final = "coalesce(declared_end, observed_end)"
_OVERLAPS: Final = f"stream = ? AND status <> 'retracted' AND {_START} < ? AND {_END} > ?"


def windows(db: Connection, stream: str, width: int, within: Interval | None) -> list[WindowGlance]:
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


def groups(
    db: Connection, stream: str, width: int, within: Interval, stretch: int, cutoff: str, now: int
) -> list[WindowGroup]:
    """Count windows by stretch of time and by what decides their state. `cutoff` is the reason of windows
    that wait for their cutoff."""
    rows = db.execute(
        "SELECT stretch, phase, is_sealed, is_due, count(*), min(start), max(start) FROM ("
        " SELECT start, phase, start - ((start % ?) + ?) % ? AS stretch,"
        " CASE WHEN sealed IS NULL THEN 0 ELSE 1 END AS is_sealed,"
        " CASE WHEN reason = ? AND check_at <= ? THEN 1 ELSE 0 END AS is_due"
        " FROM windows WHERE stream = ? AND start >= ? AND start < ? AND span = ?) AS each_window"
        " GROUP BY stretch, phase, is_sealed, is_due ORDER BY stretch",
        (stretch, stretch, stretch, cutoff, now, stream, within.start, within.end, width),
    )
    return [
        WindowGroup(at, Phase(phase), bool(sealed), bool(due), count, first, last)
        for at, phase, sealed, due, count, first, last in rows.fetchall()
    ]


def first_arrivals(db: Connection, stream: str, within: Interval) -> dict[int, int]:
    rows = db.execute(
        "SELECT m.start, min(coalesce(o.arrival, s.arrival)) FROM window_slices m"
        " JOIN slices s ON s.seq = m.slice LEFT JOIN slices o ON o.id = s.replays"
        " WHERE m.stream = ? AND m.start >= ? AND m.start < ? AND m.member = 1 GROUP BY m.start",
        (stream, within.start, within.end),
    )
    return dict(rows.fetchall())


def extent(db: Connection, stream: str, width: int) -> Interval | None:
    first, last = db.execute(
        "SELECT min(start), max(start) FROM windows WHERE stream = ? AND span = ?", (stream, width)
    ).fetchone()
    return None if first is None else Interval(first, last + width)


def offset_at(db: Connection, instant: int) -> int:
    arrived = "SELECT max(seq) FROM slices WHERE arrival <= ? AND retried = 0"
    last: int | None = db.execute(arrived, (instant,)).fetchone()[0]
    return last or 0


def slices(db: Connection, stream: str, span: Interval, limit: int) -> list[SliceGlance]:
    rows = db.execute(
        f"SELECT id, name, {_START}, {_END}, arrival, late, declared_start IS NOT NULL, accepted, status"
        f" FROM slices WHERE {_OVERLAPS} ORDER BY seq DESC LIMIT ?",
        (stream, span.end, span.start, limit),
    )
    return [
        SliceGlance(id_, name, start, end, arrival, late, bool(declared), accepted, SliceStatus(status))
        for id_, name, start, end, arrival, late, declared, accepted, status in rows.fetchall()
    ]


def covered(db: Connection, stream: str, span: Interval) -> list[tuple[int, int]]:
    rows = db.execute(
        f"SELECT {_START}, {_END} FROM slices WHERE {_OVERLAPS} ORDER BY 1", (stream, span.end, span.start)
    )
    return rows.fetchall()
