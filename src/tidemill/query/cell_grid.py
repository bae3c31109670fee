"""The cells of an answer: half-open, with the edges policy applied. They are fixed durations, or days, weeks,
months, quarters and years as a clock in some time zone shows them. Pure functions of their arguments; nothing
here reads data or the wall clock.

Three rules cover every clock change:
- A calendar cell starts at the first instant whose wall clock has reached its local start. A midnight that is
  skipped therefore starts when the clock jumps over it, and one that is shown twice starts the first time.
- A cell that would be empty (Samoa had no 30 December 2011) does not exist.
- Fixed durations below a day in a zone start wherever the local clock shows a multiple of them.
  When the clock goes back and shows one twice, both start a cell: an hour stays an hour.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tidemill.model.errors import QueryError
from tidemill.model.time import DAY, MAX_INSTANT, MIN_INSTANT, WEEK, Interval, format_duration
from tidemill.model.zones import UTC_NAMES, first_instant, offset_at, stretches, zone_named
from tidemill.query.language.ast import Edges, Unit

# Cells of one answer that are computed one by one: the weeks of all time are fewer.
MAX_CELLS: Final = 600_000
MONDAY: Final = 0
_THURSDAY: Final = 3  # 1970-01-01
_MONTHS: Final = {"month": 1, "quarter": 3, "year": 12}
_SHORT: Final = {"week": "w", "month": "mo", "quarter": "q", "year": "y"}


@dataclass(frozen=True, slots=True)
class CalendarStep:
    """How long the cells of an answer are, and where they start.

    `count` is in microseconds, or in calendar units. Without a zone, or in UTC, microseconds are counted from
    the epoch; in another zone whole days are local days and shorter steps follow the local clock.
    """

    count: int
    unit: Unit = "us"
    zone: str | None = None
    origin: int | None = None  # an instant at which a cell starts
    week_start: int = MONDAY  # of weeks without an origin

    @property
    def is_utc(self) -> bool:
        return self.zone is None or self.zone in UTC_NAMES

    @property
    def width(self) -> int | None:
        """The length of every cell in microseconds; None if cells differ."""
        if not self.is_utc or self.unit not in ("us", "week"):
            return None
        return self.count if self.unit == "us" else self.count * WEEK

    @property
    def phase(self) -> int:
        """With a width: the remainder that the start of every cell leaves when divided by it."""
        assert self.width is not None
        return _local_phase(self, self.width)

    def __str__(self) -> str:
        length = format_duration(self.count) if self.unit == "us" else f"{self.count}{_SHORT[self.unit]}"
        return length if self.zone is None else f"{length} {self.zone}"


def edges(step: CalendarStep, span: Interval) -> Sequence[int]:
    """The sorted starts of all cells that `span` overlaps, then the end of the last one. The first is at or
    before the start of the span, the last at or after its end; empty for an empty span. Cut off outside of
    the years 1 to 9999."""
    if span.start == span.end:
        return ()
    if step.width is not None:
        return _even(step.width, step.phase, span)
    starts = _clock_starts(step, span) if _follows_clock(step) else _calendar_starts(step, span)
    return _covering(starts, span)


# -- fixed durations


def _even(width: int, phase: int, span: Interval) -> range | list[int]:
    first = span.start - (span.start - phase) % width
    last = span.end + (phase - span.end) % width
    if first >= MIN_INSTANT and last <= MAX_INSTANT:
        return range(first, last + 1, width)
    inner = range(first + width, last, width)
    _check_count(len(inner))
    return [max(first, MIN_INSTANT), *inner, min(last, MAX_INSTANT)]


def _follows_clock(step: CalendarStep) -> bool:
    return step.unit == "us" and step.count % DAY != 0


def _clock_starts(step: CalendarStep, span: Interval) -> Iterator[int]:
    """Instants at which the local clock shows a multiple of the step, or jumps over one."""
    assert step.zone is not None
    _check_count((span.end - span.start) // step.count)
    zone, phase = zone_named(step.zone), _local_phase(step, step.count)
    wide = Interval(span.start - step.count - 2 * DAY, span.end + step.count + 2 * DAY)
    previous: int | None = None  # what the clock would have shown at the start of the stretch
    for stretch, offset in stretches(zone, wide):
        local = stretch.start + offset
        first = local + (phase - local) % step.count
        if previous is not None and previous <= first - step.count < local:
            yield stretch.start
        yield from range(first - offset, stretch.end, step.count)
        previous = stretch.end + offset


# -- calendar units


def _calendar_starts(step: CalendarStep, span: Interval) -> Iterator[int]:
    """Starts of cells from one before the span to one after it, each once."""
    zone = None if step.is_utc else zone_named(step.zone or "")
    local = span.start + (offset_at(zone, span.start) if zone else 0)
    if step.unit in ("us", "week"):
        width = step.count * (WEEK if step.unit == "week" else 1)
        phase = _local_phase(step, width)
        _check_count((span.end - span.start) // width)
        walls = _walls_of_days(local, width, phase)
    else:
        walls = _walls_of_months(local, step)
    previous: int | None = None
    for wall in walls:
        start = first_instant(zone, wall) if zone else wall
        if previous is None or start > previous:
            yield start
            previous = start
        if start >= span.end:
            return


def _walls_of_days(local: int, width: int, phase: int) -> Iterator[int]:
    wall = local - (local - phase) % width - width
    while True:
        yield wall
        wall += width


def _walls_of_months(local: int, step: CalendarStep) -> Iterator[int]:
    """Months count from the year 0, so that quarters, years and decades start as usual. With an origin they
    count from it, on its day (or the last one of a shorter month) and at its hour."""
    months = _MONTHS[step.unit] * step.count
    base, day, clock = 0, 1, 0
    if step.origin is not None:
        wall = step.origin + (0 if step.is_utc else offset_at(zone_named(step.zone or ""), step.origin))
        year, month, day = _date_of(wall // DAY)
        base, clock = year * 12 + month - 1, wall % DAY
    year, month, _ = _date_of(local // DAY)
    index = (year * 12 + month - 1 - base) // months - 1
    while True:
        year, month = divmod(base + index * months, 12)
        yield _days_before(year, month + 1) * DAY + (min(day, _length(year, month + 1)) - 1) * DAY + clock
        index += 1


def _local_phase(step: CalendarStep, width: int) -> int:
    """The remainder of the local starts of cells of a fixed number of days, hours … divided by their
    width."""
    if step.origin is not None:
        offset = 0 if step.is_utc else offset_at(zone_named(step.zone or ""), step.origin)
        return (step.origin + offset) % width
    return (-((_THURSDAY - step.week_start) % 7) * DAY) % width if step.unit == "week" else 0


def _covering(starts: Iterator[int], span: Interval) -> list[int]:
    found = [min(max(start, MIN_INSTANT), MAX_INSTANT) for start in starts]
    found = sorted(set(found))
    return found[bisect_right(found, span.start) - 1 : bisect_left(found, span.end) + 1]


def _check_count(cells: int) -> None:
    if cells > MAX_CELLS:
        raise QueryError(
            f"the span has more than {MAX_CELLS} intervals", hint="use a longer INTERVAL or a shorter span"
        )


# -- dates as numbers of days since 1970, of any year (`datetime` ends at 1 and 9999)


def _days_before(year: int, month: int) -> int:
    """Days from 1970-01-01 to the first of the month, in the Gregorian calendar."""
    shifted, months = (year - 1, month + 9) if month <= 2 else (year, month - 3)  # years start in March
    return 365 * shifted + shifted // 4 - shifted // 100 + shifted // 400 + (153 * months + 2) // 5 - 719_468


def _length(year: int, month: int) -> int:
    return _days_before(year + month // 12, month % 12 + 1) - _days_before(year, month)


@lru_cache(maxsize=1024)
def _date_of(days: int) -> tuple[int, int, int]:
    """Year, month and day."""
    year = 1970 + days * 400 // 146_097
    while _days_before(year, 1) > days:
        year -= 1
    while _days_before(year + 1, 1) <= days:
        year += 1
    month = next(m for m in range(12, 0, -1) if _days_before(year, m) <= days)
    return year, month, days - _days_before(year, month) + 1


@dataclass(frozen=True, slots=True)
class CellGrid:
    """The cells of an answer, by their starts; each ends where the next one starts."""

    cells: Sequence[int]  # a range if all have one width
    end: int  # of the last one
    read: Interval  # the part of them inside the span
    hidden: tuple[int, ...] = ()  # partial cells under EDGES null: they have no number

    @property
    def edges(self) -> list[int]:
        """Where reads must be cut: at both ends, and at every start of a cell between them."""
        if self.read.start == self.read.end:
            return []
        return [self.read.start, *(c for c in self.cells if c > self.read.start), self.read.end]


def cells_over(span: Interval, interval: int, edges: Edges) -> CellGrid:
    """The grid of `span` with cells of one width, aligned to the epoch."""
    cells = span.windows(interval)
    return cells_between(span, cells, cells[-1] + interval if cells else span.end, edges)


def overlapped(cells: Sequence[int], data: Interval) -> Sequence[int]:
    """From the cell in which the data start to the one in which they end."""
    return cells[max(0, bisect_right(cells, data.start) - 1) : bisect_left(cells, data.end)]


def cells_between(span: Interval, cells: Sequence[int], end: int, edges: Edges) -> CellGrid:
    """The grid of `span` with the cells that it touches. Those at its ends may extend beyond it: `include`
    counts the part inside the span, `exclude` leaves them out, `null` shows them without a number."""
    if not cells:
        return CellGrid(cells, end, Interval(span.start, span.start))
    first = cells[0] < span.start
    last = end > span.end
    if edges == "null":
        partial = ([cells[0]] if first else []) + ([cells[-1]] if last else [])
        return CellGrid(cells, end, span, tuple(dict.fromkeys(partial)))
    if edges == "include":
        return CellGrid(cells, end, span)
    whole = cells[first : len(cells) - last]
    if not whole:
        return CellGrid(whole, span.start, Interval(span.start, span.start))
    end = cells[-1] if last else end
    return CellGrid(whole, end, Interval(whole[0], end))
