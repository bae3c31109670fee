"""The cells of a bucketed answer: half-open, with the edges policy applied. Pure arithmetic on microseconds;
it never reads data."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.model.time import Interval
from tidemill.query.language.ast import Edges


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
