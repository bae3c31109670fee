"""From one number of an answer to what it is made of: pieces of time, tiles, slices, and events.

Looks only. Which events a cell counts is decided by the same filters and conditions that made its number, so
that they add up to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.formats.arrow import one
from tidemill.formats.conditions import holds
from tidemill.formats.plan import plan_for
from tidemill.model.errors import InputError, NotFoundError, QueryError
from tidemill.model.levels import LEVELS, TileState
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, Interval, format_instant, from_datetime
from tidemill.outputs.rollups.events import metric_plan, passing, with_columns
from tidemill.outputs.rollups.spec import Metric, spec_for
from tidemill.query.answer import Answer
from tidemill.query.cover import CoverPiece
from tidemill.query.declared import TENANT
from tidemill.query.plan import BUCKET, Plan
from tidemill.query.raw import RawEvents
from tidemill.query.source import RawAsked

if TYPE_CHECKING:
    import duckdb

    from tidemill.ingest.warehouse import Warehouse
    from tidemill.model.slices import SliceEntry

MOST_TILES: Final = 1_000
MOST_SLICES: Final = 1_000
_ORDER: Final = ("event_time", "tenant", "event_id", "slice", "line")
_METRICS: Final = "~metrics"


@dataclass(frozen=True, slots=True)
class CellSlice:
    """A slice, and how many events of the cell came with it."""

    entry: SliceEntry
    rows: int
    late: int


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of an answer: its values, and what they are made of."""

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
    """Of the row of `answer` that begins at `start` and has these values of its groups."""
    _check(plan, start, group)
    row = _row(answer, plan, start, group)
    span = _span(answer, plan, start)
    events = _Events(warehouse, plan, span, group)
    found = events.counted()
    page = found.slice(offset, limit)
    pieces = [each for each in (_clipped(piece, span) for piece in answer.pieces) if each is not None]
    slices = events.slices(found)
    names = [each.name for each in plan.groups]
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
    if any(rows.in_state or rows.rule is not None for rows in plan.rows):
        raise QueryError(
            "the events of states and transitions are not listed: they are of objects, over all of time",
            hint="search for the events of an object, or trace one",
        )
    if plan.format != "rows" or plan.heatmap is not None:
        raise QueryError("cells are of rows with values", hint="leave FORMAT series and bins out")
    if plan.is_bucketed and start is None:
        raise InputError("a cell of buckets has a start", where="start", hint="give the bucket of the row")
    names = {each.name for each in plan.groups}
    if set(group) != names:
        known = ", ".join(sorted(names)) or "none"
        raise InputError("the group of a cell has a value for each GROUP BY", where="group", hint=known)


def _row(answer: Answer, plan: Plan, start: int | None, group: Mapping[str, object]) -> dict[str, object]:
    for row in answer.table.to_pylist():
        bucket = row.get(BUCKET)
        same = not plan.is_bucketed or (isinstance(bucket, datetime) and from_datetime(bucket) == start)
        if same and all(row[name] == value for name, value in group.items()):
            found: dict[str, object] = row
            return found
    when = f" at {format_instant(start)}" if start is not None else ""
    raise NotFoundError(
        f"the answer has no row{when} with the group {dict(group)}", hint="name a row of the answer"
    )


def _span(answer: Answer, plan: Plan, start: int | None) -> Interval:
    whole = plan.read or Interval(MIN_INSTANT, MAX_INSTANT)
    if start is None:
        return whole
    if plan.interval is not None:
        end = start + plan.interval
    else:
        assert plan.grid is not None, plan
        later = [cell for cell in plan.grid.cells if cell > start]
        end = later[0] if later else plan.grid.end
    return Interval(max(start, whole.start), min(end, whole.end))


def _clipped(piece: CoverPiece, span: Interval) -> CoverPiece | None:
    start, end = max(piece.span.start, span.start), min(piece.span.end, span.end)
    return replace(piece, span=Interval(start, end)) if start < end else None


def _tiles(warehouse: Warehouse, stream: str, pieces: Sequence[CoverPiece]) -> Iterator[TileState]:
    """Tiles that the pieces are read from, the coarsest level first."""
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


class _Events:
    """The events that a cell counts."""

    def __init__(self, warehouse: Warehouse, plan: Plan, span: Interval, group: Mapping[str, object]) -> None:
        self._warehouse = warehouse
        self._plan, self._span, self._group = plan, span, group
        self._stream = warehouse.project.stream(plan.stream)
        self._names = tuple(dict.fromkeys(rows.metric for rows in plan.rows))
        spec = spec_for(self._stream)
        self._metrics = [spec.metric(name) for name in self._names]
        limits = warehouse.project.limits
        self._read = metric_plan(plan_for(self._stream, limits))
        snapshot = warehouse.snapshot("raw", plan.stream)
        self._raw = RawEvents(warehouse.root, self._stream, limits, snapshot)
        limited = [each.name for each in self._metrics if each.limit is not None]
        if limited and (plan.groups or plan.where is not None):
            raise QueryError(
                f"{limited[0]} has a max_cardinality: which events are __other__ is not listed",
                hint="leave GROUP BY and WHERE out, or search for the events",
            )

    def counted(self) -> pa.Table:
        """Where they are, when, and which metrics count them, in order."""
        plan = self._plan
        asked = RawAsked(frozenset(self._names), plan.tenant, [self._span], plan.filter, plan.past)
        found = [self._none()]
        with _connection() as cursor:
            for rows in self._raw.events(asked, cursor, ("watermark",)):
                found.append(self._marked(rows))
        whole = pa.concat_tables(found).combine_chunks()
        return whole.sort_by([(name, "ascending") for name in _ORDER])

    def _none(self) -> pa.Table:
        types = {"event_time": pa.int64(), "line": pa.int64(), "late": pa.bool_(), _METRICS: pa.int64()}
        names = (*_ORDER, "late", _METRICS)
        return pa.schema([(name, types.get(name, pa.string())) for name in names]).empty_table()

    def _marked(self, rows: pa.Table) -> pa.Table:
        events = with_columns(self._read, rows)
        marks = np.zeros(events.num_rows, np.int64)
        for number, metric in enumerate(self._metrics):
            marks |= self._counts(metric, events).astype(np.int64) << number
        time = one(rows.column("event_time")).cast(pa.int64())
        met = one(rows.column("watermark")).cast(pa.int64())
        columns = {
            "event_time": time,
            **{name: one(rows.column(name)) for name in ("tenant", "event_id", "slice", "line")},
            "late": pc.fill_null(pc.less_equal(time, met), False),
            _METRICS: pa.array(marks),
        }
        table = pa.table({name: columns[name] for name in (*_ORDER, "late", _METRICS)})
        return table.filter(pa.array(marks > 0)).cast(self._none().schema)

    def _counts(self, metric: Metric, events: pa.Table) -> np.ndarray:
        """Which events the metric counts in the cell."""
        columns = {each.column: f"d{each.at}" for each in metric.dimensions} | {TENANT.column: "tenant"}
        keep = passing(metric, events)
        keep = np.ones(events.num_rows, np.bool_) if keep is None else keep.copy()
        for each in self._plan.groups:
            keep &= _equal(one(events.column(columns[each.column])), self._group[each.name])
        if self._plan.where is not None:
            dimensions = self._plan.dimensions

            def column_of(field: str) -> tuple[pa.Array, int]:
                return _plain(one(events.column(columns[dimensions[field].column]))), 0

            keep &= holds(self._plan.where, column_of)
        return keep

    def slices(self, found: pa.Table) -> list[CellSlice]:
        counts = found.group_by("slice").aggregate([("slice", "count"), ("late", "sum")]).to_pylist()
        entries = [(self._warehouse.state.slice(row["slice"]), row) for row in counts]
        known = [
            CellSlice(entry, row["slice_count"], row["late_sum"])
            for entry, row in entries
            if entry is not None
        ]
        return sorted(known, key=lambda each: (-each.rows, each.entry.seq))

    def rows(self, page: pa.Table) -> list[Mapping[str, object]]:
        """The rows of raw of a page, each with the metrics that count it."""
        if not page.num_rows:
            return []
        places = {(row["slice"], row["line"]): row[_METRICS] for row in page.to_pylist()}
        times = page.column("event_time")
        span = Interval(pc.min(times).as_py(), pc.max(times).as_py() + 1)
        plan = self._plan
        asked = RawAsked(frozenset(self._names), plan.tenant, [span], None, plan.past)
        more = ("event_type", "arrival", "watermark")
        found: dict[tuple[str, int], Mapping[str, object]] = {}
        with _connection() as cursor:
            for rows in self._raw.events(asked, cursor, more):
                wanted = pc.is_in(rows.column("slice"), pa.array(sorted({name for name, _ in places})))
                for row in rows.filter(wanted).to_pylist():
                    place = (row["slice"], row["line"])
                    if place in places:
                        found[place] = {**row, "metrics": self._named(places[place])}
        return [found[place] for place in places]

    def _named(self, marks: int) -> list[str]:
        return [name for number, name in enumerate(self._names) if marks >> number & 1]


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _equal(column: pa.Array, value: object) -> np.ndarray:
    values = _plain(column)
    if value is None:
        return np.asarray(pc.is_null(values))
    try:
        wanted = pa.scalar(value, values.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError):  # of another type: no event has it
        return np.zeros(len(values), np.bool_)
    return np.asarray(pc.fill_null(pc.equal(values, wanted), False))


def _connection() -> duckdb.DuckDBPyConnection:
    import duckdb

    return duckdb.connect(":memory:", config={"threads": 2, "temp_directory": ""})
