"""Which cells a bucketed answer has: half-open, aligned to the epoch, with the edges policy applied.
Pure arithmetic on microseconds; it never looks at data.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.language.ast import Edges
from tidemill.model.errors import QueryError
from tidemill.model.levels import BASE, LEVELS, Level
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, Interval, align, format_instant


@dataclass(frozen=True, slots=True)
class Grid:
    """The cells of an answer, the part of the span it reads, and the cells it may not put a number on."""

    cells: range
    read: Interval  # made of whole buckets of the level
    hidden: tuple[int, ...] = ()  # partial cells under EDGES null


def ceil(us: int, width: int) -> int:
    return -(-us // width) * width


def inward(span: Interval, width: int) -> Interval:
    """The whole buckets of `width` inside `span`; empty when there is none."""
    start = ceil(span.start, width)
    return Interval(start, max(start, align(span.end, width)))


def outward(span: Interval, width: int) -> Interval:
    """The buckets of `width` that `span` touches."""
    return Interval(align(span.start, width), ceil(span.end, width))


def lay(span: Interval, level: Level, interval: int, edges: Edges) -> Grid:
    """The grid of `span`. A bucket of the level that straddles a bound is never counted in part:
    `include` takes the whole level buckets inside the span, so a cell may hold less than its width."""
    inside = inward(span, level.width)
    if edges == "exclude":
        whole = inward(span, interval)
        grid = Grid(range(whole.start, whole.end, interval), whole)
    elif edges == "include":
        grid = Grid(inside.windows(interval), inside)
    else:
        cells = span.windows(interval)
        ends = {cells[0], cells[-1]} if cells else set[int]()
        hidden = sorted(c for c in ends if c < span.start or c + interval > span.end)
        grid = Grid(cells, inside, tuple(hidden))
    if grid.cells and (grid.cells[0] < MIN_INSTANT or grid.cells[-1] + interval > MAX_INSTANT):
        raise QueryError(
            "the buckets of this span reach outside the years 1 to 9999", hint="use a shorter span"
        )
    return grid


def level_of_total(span: Interval) -> Level:
    """The coarsest level whose buckets make up `span` exactly."""
    for level in reversed(LEVELS):
        if span.start % level.width == 0 and span.end % level.width == 0:
            return level
    near = outward(span, BASE.width)
    raise QueryError(
        f"a total over {span} can not be exact: the span is not made of whole {BASE.name} buckets",
        hint=f"use BETWEEN {format_instant(near.start)} AND {format_instant(near.end)}, "
        "or USING ROLLUP or INTERVAL with EDGES",
    )
