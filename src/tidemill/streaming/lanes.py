"""A lane: rows of one tenant and key (of one window, on a grid) in the order in which they count, cut up.

A lane gains rows only at its end, or where late rows may still reach: what lies before that never changes,
and must not be kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tidemill.model.predicates import Predicate
from tidemill.model.streaming import Value, WindowKind, WindowResult, WindowSpec
from tidemill.model.time import Interval
from tidemill.streaming.accumulators import StreamRow, condition_value, result_of

Group = tuple[Value, ...]


class LaneKey(NamedTuple):
    tenant: str
    key: Group  # values of `WindowSpec.key`
    start: int | None = None  # of the window, on a grid


class Placed(NamedTuple):
    """A row at the instant that it counts at."""

    at: int
    seq: int
    line: int
    row: StreamRow


@dataclass(frozen=True, slots=True)
class Cut:
    """Rows of a lane that are one window."""

    start: int
    end: int
    first: int  # index of its first row
    rows: Sequence[Placed]
    full: bool = False  # its last row ended it (count, state)
    ordinal: int = 0  # among windows of the lane that start at the same instant

    @property
    def last(self) -> int:
        return self.rows[-1].at

    @property
    def interval(self) -> Interval:
        return Interval(self.start, self.end)

    def results(self, spec: WindowSpec) -> dict[Group, WindowResult]:
        groups: dict[Group, list[StreamRow]] = {}
        for placed in self.rows:
            groups.setdefault(placed.row.values(spec.grouped_by), []).append(placed.row)
        return {group: result_of(spec, group, self.start, self.end, rows) for group, rows in groups.items()}


@dataclass(slots=True)
class Lane:
    """Rows that may still be needed, and how many windows that are gone began at the last such instant."""

    rows: list[Placed] = field(default_factory=list)
    gone_start: int | None = None
    gone_ordinals: int = 0

    def insert(self, placed: Placed) -> None:
        insort(self.rows, placed, key=_place)

    def upto(self, instant: int) -> list[Placed]:
        return self.rows[: bisect_right(self.rows, instant, key=_at)]

    def next_after(self, instant: int) -> list[int]:
        """When the first row after an instant counts, if there is one."""
        index = bisect_right(self.rows, instant, key=_at)
        return [row.at for row in self.rows[index : index + 1]]

    def numbered(self, cuts: Sequence[Cut]) -> list[Cut]:
        """With their ordinals; windows that are gone count."""
        start, used = self.gone_start, self.gone_ordinals
        told: list[Cut] = []
        for cut in cuts:
            start, used = cut.start, used + 1 if cut.start == start else 1
            told.append(Cut(cut.start, cut.end, cut.first, cut.rows, cut.full, used - 1))
        return told

    def let_go(self, cuts: Sequence[Cut], final: int, horizon: int) -> None:
        """Forget the first `final` windows, and rows before the horizon that are in none of the others."""
        keep = bisect_left(self.rows, horizon, key=_at)
        if final < len(cuts):
            keep = min(keep, cuts[final].first)
        del self.rows[:keep]
        if final:
            self.gone_start, self.gone_ordinals = cuts[final - 1].start, cuts[final - 1].ordinal + 1


def _place(placed: Placed) -> tuple[int, int, int]:
    return placed[:3]


def _at(placed: Placed) -> int:
    return placed.at


def cut_lane(spec: WindowSpec, lane: LaneKey, rows: Sequence[Placed], scales: Mapping[str, int]) -> list[Cut]:
    """The windows of these rows, in order."""
    if not rows:
        return []
    match spec.kind:
        case WindowKind.TUMBLING | WindowKind.SLIDING:
            assert lane.start is not None
            return [Cut(lane.start, lane.start + spec.size, 0, rows)]
        case WindowKind.SESSION:
            return _sessions(spec, rows)
        case WindowKind.COUNT:
            return [
                _piece(rows, first, first + spec.count, full=first + spec.count <= len(rows))
                for first in range(0, len(rows), spec.count)
            ]
        case WindowKind.STATE:
            return _states(spec, rows, scales)


def _sessions(spec: WindowSpec, rows: Sequence[Placed]) -> list[Cut]:
    first = 0
    found: list[Cut] = []
    for index in range(1, len(rows) + 1):
        if index == len(rows) or rows[index].at - rows[index - 1].at >= spec.apart:
            found.append(Cut(rows[first].at, rows[index - 1].at + spec.gap, first, rows[first:index]))
            first = index
    return found


def _states(spec: WindowSpec, rows: Sequence[Placed], scales: Mapping[str, int]) -> list[Cut]:
    assert spec.open is not None
    assert spec.emit is not None
    first: int | None = None
    found: list[Cut] = []
    for index, placed in enumerate(rows):
        if first is None and _holds(spec.open, placed.row, scales):
            first = index
        if first is not None and _holds(spec.emit, placed.row, scales):
            found.append(_piece(rows, first, index + 1, full=True))
            first = None
    if first is not None:
        found.append(_piece(rows, first, len(rows), full=False))
    return found


def _piece(rows: Sequence[Placed], first: int, stop: int, *, full: bool) -> Cut:
    held = rows[first:stop]
    return Cut(held[0].at, held[-1].at + 1, first, held, full)


def _holds(condition: Predicate, row: StreamRow, scales: Mapping[str, int]) -> bool:
    return condition.holds(lambda column: condition_value(row, column, scales))
