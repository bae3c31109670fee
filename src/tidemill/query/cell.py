"""From one number of an answer to what it is made from: pieces of time, tiles, slices, and events.

It only reads. The events of a cell are found with the same filters and conditions that made its number, so
that they add up to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from tidemill.model.errors import InputError, NotFoundError, QueryError
from tidemill.model.levels import LEVELS, TileState
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, Interval, format_instant, from_datetime
from tidemill.query.answer import Answer
from tidemill.query.cell_events import CellEvents
from tidemill.query.cell_grid import edges as edges_of
from tidemill.query.cover import CoverPiece
from tidemill.query.plan import BUCKET, HEATMAP, Plan

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.ingest.warehouse import Warehouse
    from tidemill.model.slices import SliceEntry

MOST_TILES: Final = 1_000
MOST_SLICES: Final = 1_000


@dataclass(frozen=True, slots=True)
class CellSlice:
    """A slice, and how many events of the cell came in it."""

    entry: SliceEntry
    rows: int
    late: int | None  # None: unknown for events that put objects into states


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of an answer: its values, and what they are made of.

    An event is listed once for each thing it counts as: as an event of metrics (`metrics` names them), as the
    one that put an object into the `state` it is in, or as a transition (`rule`, `from_state`, `to_state`).
    """

    answer: Answer
    span: Interval
    group: Mapping[str, object]
    values: Mapping[str, object]
    pieces: Sequence[CoverPiece]
    tiles: Sequence[TileState]
    slices: Sequence[CellSlice]  # those with most events first
    slices_total: int
    total: int  # events
    events: Sequence[Mapping[str, object]]  # a page of them, by event time
    more: bool


def cell_of(
    warehouse: Warehouse,
    answer: Answer,
    plan: Plan,
    start: int | None,
    group: Mapping[str, object],
    offset: int,
    limit: int,
) -> Cell:
    """The cell of the row of `answer` that begins at `start` and has these values of its groups."""
    _check(plan, start, group)
    row, names = _row(answer, plan, start, group), _names(plan)
    span = _span(plan, start)
    events = CellEvents(warehouse, plan, span, {name: row[name] for name in names})
    found = events.counted()
    page = found.slice(offset, limit)
    pieces = [each for each in (_clipped(piece, span) for piece in answer.pieces) if each is not None]
    slices = _slices(warehouse, found)
    return Cell(
        answer=answer,
        span=span,
        group={name: row[name] for name in names},
        values={name: value for name, value in row.items() if name not in (BUCKET, *names)},
        pieces=pieces,
        tiles=list(_tiles(warehouse, plan.stream, pieces)),
        slices=slices[:MOST_SLICES],
        slices_total=len(slices),
        total=found.num_rows,
        events=events.rows(page),
        more=found.num_rows > offset + limit,
    )


def _check(plan: Plan, start: int | None, group: Mapping[str, object]) -> None:
    if plan.format != "rows":
        raise QueryError("a cell is a part of a row, not of a series", hint="leave FORMAT series out")
    if _is_bucketed(plan) and start is None:
        raise InputError("a cell of buckets needs a start", where="start", hint="use the bucket of the row")
    if not _is_bucketed(plan) and start is not None:
        raise InputError(
            "the answer has no buckets: its cells are totals",
            where="start",
            hint="leave start out (on the command line: --cell total), or add INTERVAL to the query",
        )
    names = _names(plan)
    if set(group) != set(names):
        what = "each GROUP BY, lower and upper" if plan.heatmap is not None else "each GROUP BY"
        hint = ", ".join(sorted(names)) or "none"
        raise InputError(f"the group of a cell has a value for {what}", where="group", hint=hint)


def _is_bucketed(plan: Plan) -> bool:
    return plan.is_bucketed or plan.step is not None


def _names(plan: Plan) -> list[str]:
    """The columns that, with the bucket, identify a row of the answer."""
    bounds = HEATMAP[:2] if plan.heatmap is not None else ()
    return [*(each.name for each in plan.groups), *bounds]


def _is(found: object, expected: object) -> bool:
    """Whether a value of the answer is the given one; decimals may be given as text."""
    if isinstance(found, Decimal) and isinstance(expected, str):
        try:
            return found == Decimal(expected)
        except ArithmeticError:
            return False
    return found == expected


def _row(answer: Answer, plan: Plan, start: int | None, group: Mapping[str, object]) -> dict[str, object]:
    for row in answer.table.to_pylist():
        bucket = row.get(BUCKET)
        same = not _is_bucketed(plan) or (isinstance(bucket, datetime) and from_datetime(bucket) == start)
        if same and all(_is(row[name], value) for name, value in group.items()):
            found: dict[str, object] = row
            return found
    when = f" at {format_instant(start)}" if start is not None else ""
    raise NotFoundError(
        f"the answer has no row{when} with the group {dict(group)}", hint="name a row of the answer"
    )


def _span(plan: Plan, start: int | None) -> Interval:
    whole = plan.read or Interval(MIN_INSTANT, MAX_INSTANT)
    if start is None:
        return whole
    if plan.interval is not None:
        end = start + plan.interval
    elif plan.grid is not None:
        later = [cell for cell in plan.grid.cells if cell > start]
        end = later[0] if later else plan.grid.end
    else:  # of the calendar, over all data
        assert plan.step is not None, plan
        end = edges_of(plan.step, Interval(start, start + 1))[-1]
    return Interval(max(start, whole.start), min(end, whole.end))


def _clipped(piece: CoverPiece, span: Interval) -> CoverPiece | None:
    start, end = max(piece.span.start, span.start), min(piece.span.end, span.end)
    return replace(piece, span=Interval(start, end)) if start < end else None


def _tiles(warehouse: Warehouse, stream: str, pieces: Sequence[CoverPiece]) -> Iterator[TileState]:
    """Tiles that the pieces are read from, coarsest level first."""
    left = MOST_TILES
    for level in reversed(LEVELS):
        spans = [
            Interval(level.tile_of(max(piece.span.start, MIN_INSTANT)), piece.span.end)
            for piece in pieces
            if piece.level == level
        ]
        for tile in warehouse.state.tiles(stream, level.name, spans)[:left] if spans else ():
            left -= 1
            yield tile


def _slices(warehouse: Warehouse, found: pa.Table) -> list[CellSlice]:
    """The slices of the events, those with most of them first."""
    counts = found.group_by("slice").aggregate([("slice", "count"), ("late", "sum"), ("late", "count")])
    known = []
    for row in counts.to_pylist():
        entry = warehouse.state.slice(row["slice"])
        if entry is not None:
            late = row["late_sum"] if row["late_count"] == row["slice_count"] else None
            known.append(CellSlice(entry, row["slice_count"], late))
    return sorted(known, key=lambda each: (-each.rows, each.entry.seq))
