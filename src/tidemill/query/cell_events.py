"""The events that the numbers of a cell count, and the rows of raw for a page of them.

An entry is an event in one role: an event of counters, gauges and histograms, an object in a state, or a
transition. It only reads.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.formats.arrays import Ints, Mask
from tidemill.formats.arrow import one
from tidemill.formats.conditions import holds
from tidemill.formats.read_plan import plan_for
from tidemill.model.completeness import ROUND
from tidemill.model.errors import StorageError
from tidemill.model.time import Interval
from tidemill.outputs.rollups.accumulators.histogram import bins_of
from tidemill.outputs.rollups.events import metric_plan, passing, with_columns
from tidemill.outputs.rollups.observations import coded_text
from tidemill.outputs.rollups.spec import Metric, spec_for
from tidemill.outputs.rollups.state_history import Recollection, recollect
from tidemill.query.cell_states import STATE_TEXTS, StateEntries
from tidemill.query.dimensions import TENANT
from tidemill.query.heatmap import ends_of
from tidemill.query.plan import HEATMAP, Plan
from tidemill.query.raw_events import RawEvents
from tidemill.query.source import RawRequest

if TYPE_CHECKING:
    from tidemill.ingest.warehouse import Warehouse
    from tidemill.query.raw_scan import FoundRows

_ORDER: Final = ("event_time", "tenant", "event_id", "slice", "line")
_METRICS: Final = "~metrics"
_TYPES: Final = {"event_time": pa.int64(), "line": pa.int64(), "late": pa.bool_(), _METRICS: pa.int64()}
_ENTRY: Final = pa.schema(
    [(name, _TYPES.get(name, pa.string())) for name in (*_ORDER, "late", _METRICS, *STATE_TEXTS)]
)
_MOST_SPANS: Final = 64  # spans of time that one read of raw names
_TRIES: Final = 5  # observation files may be merged meanwhile: then the current ones are read


class CellEvents:
    """The events of one cell: its time, and the values of its groups."""

    def __init__(self, warehouse: Warehouse, plan: Plan, span: Interval, group: Mapping[str, object]) -> None:
        self._warehouse = warehouse
        self._plan, self._span, self._group = plan, span, group
        self._stream = warehouse.project.stream(plan.stream)
        self._spec = spec_for(self._stream)
        self._names = tuple(dict.fromkeys(rows.metric for rows in plan.rows))
        plain = dict.fromkeys(r.metric for r in plan.rows if r.rule is None and not r.in_state)
        self._plain = [self._spec.metric(name) for name in plain]
        self._read = metric_plan(plan_for(self._stream, warehouse.project.limits))
        snapshot = warehouse.snapshot("raw", plan.stream)
        self._raw = RawEvents(warehouse.root, self._stream, warehouse.project.limits, snapshot)

    def counted(self) -> pa.Table:
        """All entries, in order of event time."""
        for _ in range(_TRIES):
            try:
                found = [*self._of_events(), *self._of_states()]
            except FileNotFoundError:
                self.__dict__.pop("_known", None)  # merged into another file since the log was read
                continue
            whole = pa.concat_tables([_ENTRY.empty_table(), *found]).combine_chunks()
            order = [*_ORDER, "rule", "from_state"]
            return whole.sort_by([(name, "ascending") for name in order])
        raise StorageError("the state history changes faster than it can be read", hint="try again")

    # -- events of counters, gauges and histograms

    def _of_events(self) -> list[pa.Table]:
        if not self._plain:
            return []
        names = frozenset(metric.name for metric in self._plain)
        plan = self._plan
        request = RawRequest(names, plan.tenant, [self._span], plan.filter, plan.past)
        return [self._marked(found) for found in self._raw.found_rows(request, ("watermark",))]

    def _marked(self, found: FoundRows) -> pa.Table:
        rows = found.table
        events = with_columns(self._read, rows, found.fields)
        metric_bits = np.zeros(events.num_rows, np.int64)
        for metric in self._plain:
            metric_bits |= self._counts(metric, events).astype(np.int64) << self._names.index(metric.name)
        time = one(rows.column("event_time")).cast(pa.int64())
        watermark = one(rows.column("watermark")).cast(pa.int64())
        columns = {
            "event_time": time,
            **{name: one(rows.column(name)) for name in ("tenant", "event_id", "slice", "line")},
            "late": pc.fill_null(pc.less_equal(time, watermark), False),
            _METRICS: pa.array(metric_bits),
            **{name: pa.nulls(events.num_rows, pa.string()) for name in STATE_TEXTS},
        }
        return pa.table(columns).filter(pa.array(metric_bits > 0)).select(_ENTRY.names).cast(_ENTRY)

    def _counts(self, metric: Metric, events: pa.Table) -> Mask:
        """Which events the metric counts in the cell."""
        keep = passing(metric, events)
        keep = np.ones(events.num_rows, np.bool_) if keep is None else keep.copy()
        keep &= self._has_value(metric, events)
        if self._plan.heatmap is not None:
            keep &= self._in_bin(metric, events)
        keys = self._keys(metric, events)
        columns = {each.column: one(keys.column(f"k{i}")) for i, each in enumerate(metric.dimensions)}
        return keep & rows_of_group(
            self._plan, self._group, {**columns, TENANT.column: one(keys.column("tenant"))}
        )

    def _has_value(self, metric: Metric, events: pa.Table) -> Mask:
        """Events without a value do not count where only values are selected."""
        parts = [part for part in self._plan.parts if any(rows.metric == metric.name for rows in part.rows)]
        measures = {part.measure.column for part in parts if part.measure is not None}
        if any(part.measure is None for part in parts) or not measures:
            return np.ones(events.num_rows, np.bool_)
        held = np.zeros(events.num_rows, np.bool_)
        for measure in metric.measures:
            if measure.column in measures:
                held |= np.asarray(one(events.column(f"m{measure.at}")).is_valid())
        return held

    def _in_bin(self, metric: Metric, events: pa.Table) -> Mask:
        """Events whose sample lies in the bin of the cell."""
        assert metric.bins is not None, metric.name
        measure = metric.measures[0]
        bounds = [self._group[name] for name in HEATMAP[:2]]
        ends = tuple(None if end is None else int(Decimal(str(end)).scaleb(measure.scale)) for end in bounds)
        samples: Ints = one(events.column(f"m{measure.at}")).fill_null(0).to_numpy(zero_copy_only=False)
        bins = bins_of(metric.bins, samples)
        bins_of_cell = [bin for bin in set(bins.tolist()) if ends_of(metric.bins, bin) == ends]
        return np.isin(bins, np.array(bins_of_cell, np.int64))

    def _keys(self, metric: Metric, events: pa.Table) -> pa.Table:
        """Tenant and dimensions as rollups have them: for a metric with `max_cardinality`, keys that were not
        admitted become one."""
        columns: dict[str, pa.Array] = {"tenant": coded_text(events.column("tenant"))}
        for i, each in enumerate(metric.dimensions):
            values = events.column(f"d{each.at}")
            columns[f"k{i}"] = coded_text(values) if each.type == "string" else one(values)
        keys = pa.table(columns)
        return self._known.renamed(metric.name, keys) if metric.limit is not None else keys

    # -- objects in states, and transitions

    def _of_states(self) -> list[pa.Table]:
        state_rows = [rows for rows in self._plan.rows if rows.in_state or rows.rule is not None]
        if not state_rows:
            return []
        slices = {entry.seq: entry.id for entry in self._warehouse.state.slices(self._plan.stream)}
        found = []
        for rows in state_rows:
            entries = StateEntries(self._spec.metric(rows.metric), rows, self._known, self._plan)
            for table in entries.within(
                self._span, lambda columns: rows_of_group(self._plan, self._group, columns)
            ):
                seqs = table.column("seq").to_pylist()
                metric_bit = 1 << self._names.index(rows.metric)
                columns = {name: table.column(name) for name in ("event_time", "tenant", "event_id")} | {
                    "slice": pa.array([slices.get(seq) for seq in seqs], pa.string()),
                    "line": pa.nulls(table.num_rows, pa.int64()),
                    "late": pa.nulls(table.num_rows, pa.bool_()),
                    _METRICS: pa.array([metric_bit] * table.num_rows, pa.int64()),
                    **{name: table.column(name) for name in STATE_TEXTS},
                }
                found.append(pa.table(columns).select(_ENTRY.names).cast(_ENTRY))
        return found

    @cached_property
    def _known(self) -> Recollection:
        """The observations of objects and the admitted keys."""
        found = recollect(self._warehouse.root, self._spec)
        if found is None:
            raise StorageError(
                f"the state history of {self._plan.stream} is not built yet, and the answer depends on it",
                hint=f"run `{ROUND}`, then ask again",
            )
        return found

    # -- a page

    def rows(self, page: pa.Table) -> list[Mapping[str, object]]:
        """The rows of raw for a page of entries, each with its role. If raw of an event has expired, what the
        state history has of it, without its payload."""
        entries = page.to_pylist()
        by_line: dict[tuple[object, ...], Mapping[str, object]] = {}
        by_id: dict[tuple[object, ...], Mapping[str, object]] = {}
        slices = pa.array(sorted({str(entry["slice"]) for entry in entries if entry["slice"] is not None}))
        plan = self._plan
        request = RawRequest(frozenset(self._names), plan.tenant, _spans(page), None, plan.past)
        for rows in self._raw.with_payloads(request, ("event_type", "arrival", "watermark")):
            for row in rows.filter(pc.is_in(rows.column("slice"), slices)).to_pylist():
                by_line[row["slice"], row["line"]] = row
                by_id.setdefault((row["slice"], row["tenant"], row["event_id"]), row)
        found: list[Mapping[str, object]] = []
        for entry in entries:
            position = (entry["slice"], entry["line"])
            row = by_line.get(position) or by_id.get((entry["slice"], entry["tenant"], entry["event_id"]))
            found.append({**(row or self._remembered(entry)), **self._counted_as(entry)})
        return found

    @staticmethod
    def _remembered(entry: Mapping[str, object]) -> dict[str, object]:
        time = pa.scalar(entry["event_time"], pa.timestamp("us", "UTC")).as_py()
        known = {"event_time": time, **{name: entry[name] for name in ("tenant", "event_id", "slice")}}
        return {**known, **dict.fromkeys(("line", "payload", "event_type", "arrival", "watermark"))}

    def _counted_as(self, entry: Mapping[str, object]) -> dict[str, object]:
        metric_bits = entry[_METRICS]
        assert isinstance(metric_bits, int), entry
        named = [name for number, name in enumerate(self._names) if metric_bits >> number & 1]
        return {"metrics": named, **{name: entry[name] for name in STATE_TEXTS if entry[name] is not None}}


def rows_of_group(plan: Plan, group: Mapping[str, object], columns: Mapping[str, pa.Array]) -> Mask:
    """Which rows belong to a group and pass WHERE; `columns` by their names in the rollups."""
    (size,) = {len(column) for column in columns.values()}
    keep = np.ones(size, np.bool_)
    for each in plan.groups:
        keep &= _equal(columns[each.column], group[each.name])
    if plan.where is not None:

        def column_of(field: str) -> tuple[pa.Array, int]:
            return _plain(columns[plan.dimensions[field].column]), 0

        keep &= holds(plan.where, column_of)
    return keep


def _spans(page: pa.Table) -> Sequence[Interval]:
    """A few spans of time that hold all entries of a page, separated at the largest distances."""
    times = np.unique(page.column("event_time").to_numpy())
    if not times.size:
        return []
    gaps = np.diff(times)
    widest = np.sort(np.argsort(-gaps, kind="stable")[: _MOST_SPANS - 1])
    cuts = [0, *(int(at) + 1 for at in widest if gaps[at] > 1), times.size]
    return [Interval(int(times[low]), int(times[high - 1]) + 1) for low, high in itertools.pairwise(cuts)]


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _equal(column: pa.Array, value: object) -> Mask:
    values = _plain(column)
    if value is None:
        return np.asarray(pc.is_null(values))
    try:
        scalar = pa.scalar(value, values.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError):  # of another type: no event has it
        return np.zeros(len(values), np.bool_)
    return np.asarray(pc.fill_null(pc.equal(values, scalar), False))
