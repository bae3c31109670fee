"""Cells: for each metric one row per (tenant, dimensions, bucket), and the one operation on them, merging.

Merging is associative and commutative, with no cells as identity, for each kind (the accumulators say why):
the order of merging never changes a bit. Cells of state metrics are not made here: they depend on earlier
events.

The cells of a metric have: tenant, k0 … (its dimensions), for a state metric state, rule, from and to, bucket
(microseconds), then the columns of its accumulator. They are sorted by all of these keys, nulls first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from tidemill.formats.arrays import Ints, Mask
from tidemill.formats.arrow import one
from tidemill.model.metrics import MetricKind
from tidemill.model.names import unfit_column
from tidemill.outputs.rollups.accumulators import counter, gauge, histogram, state
from tidemill.outputs.rollups.accumulators.values import Folded
from tidemill.outputs.rollups.events import passing
from tidemill.outputs.rollups.grouping import GroupKeys, Groups
from tidemill.outputs.rollups.spec import Metric, RollupSpec

Cells = Mapping[str, pa.Table]
"""The cells of each metric, in the order of the spec. Those of what does not fit a changed type are there
only if there are some: they hardly ever are."""

TEXT: Final = pa.dictionary(pa.int32(), pa.string())
STATE_KEYS: Final = ("state", "rule", "from", "to")
_KEY_TYPES: Final = {"string": TEXT, "integer": pa.int64(), "boolean": pa.bool_()}
_FIELDS: Final = {
    MetricKind.COUNTER: counter.fields,
    MetricKind.GAUGE: gauge.fields,
    MetricKind.HISTOGRAM: histogram.fields,
    MetricKind.STATE: state.fields,
}
_ACCUMULATE: Final = {
    MetricKind.COUNTER: counter.accumulate,
    MetricKind.GAUGE: gauge.accumulate,
    MetricKind.HISTOGRAM: histogram.accumulate,
}
_MERGE: Final = {
    MetricKind.COUNTER: counter.merge,
    MetricKind.GAUGE: gauge.merge,
    MetricKind.HISTOGRAM: histogram.merge,
    MetricKind.STATE: state.merge,
}


def cell_schema(metric: Metric) -> pa.Schema:
    fields = [pa.field("tenant", TEXT)]
    fields += [pa.field(f"k{i}", _KEY_TYPES[d.type]) for i, d in enumerate(metric.dimensions)]
    if metric.kind is MetricKind.STATE:
        fields += [pa.field(name, TEXT) for name in STATE_KEYS]
    fields.append(pa.field("bucket", pa.int64()))
    return pa.schema([*fields, *_FIELDS[metric.kind](metric)])


def no_cells(spec: RollupSpec) -> Cells:
    return {metric.name: cell_schema(metric).empty_table() for metric in spec.declared_metrics}


def with_empty(spec: RollupSpec, cells: Cells) -> Cells:
    """The same, with a table for each metric and for what does not fit, also if it is empty."""
    return {
        metric.name: cells[metric.name] if metric.name in cells else cell_schema(metric).empty_table()
        for metric in spec.metrics
    }


def accumulate(spec: RollupSpec, events: pa.Table, width: int, *, by_time: bool = False) -> Cells:
    """Cells of accepted events: tenant, event_time (microseconds or timestamp), event_id, d0 …, m0 …

    State metrics get none: what an event adds to them depends on those before it. `by_time`: sorted by bucket
    first.
    """
    bucket = buckets_of(one(events.column("event_time")).cast(pa.int64()).to_numpy(), width)
    keys = GroupKeys(events, bucket, width)
    found = dict(no_cells(spec))
    for metric in spec.metrics:
        if metric.kind is MetricKind.STATE or not events.num_rows:
            continue
        if metric.unfit is not None and unfit_column(metric.unfit) not in events.column_names:
            continue
        mask = passing(metric, events)
        rows = None if mask is None else np.flatnonzero(mask)
        if metric.unfit is not None and (rows is None or not rows.size):
            continue
        names = ["tenant", *(f"d{d.at}" for d in metric.dimensions)]
        order = ["bucket", *names] if by_time else [*names, "bucket"]
        groups = keys.groups(order, rows, (metric.filter, metric.unfit))
        folded = _ACCUMULATE[metric.kind](metric, groups, events)
        found[metric.name] = _table(metric, [events.column(name) for name in names], bucket, groups, folded)
    return found


def merge(spec: RollupSpec, many: Sequence[Cells], width: int) -> Cells:
    """The merged cells of all inputs, with buckets of `width`, sorted; an input may lack a metric."""
    found: dict[str, pa.Table] = {}
    for metric in spec.metrics:
        whole = [cells[metric.name] for cells in many if metric.name in cells]
        if metric.unfit is None or any(table.num_rows for table in whole):
            found[metric.name] = _merged(metric, whole, width)
    return found


def of_tiles(cells: Cells, starts: Sequence[int], tile: int, *, inside: bool = True) -> Cells:
    """The cells of the tiles that begin at `starts`; or those of all other tiles."""
    found = {}
    for name, table in cells.items():
        chosen = within_tiles(one(table.column("bucket")).to_numpy(), starts, tile)
        chosen = chosen if inside else ~chosen
        found[name] = table if chosen.all() else table.filter(pa.array(chosen))
    return found


def within_tiles(instants: Ints, starts: Sequence[int], tile: int) -> Mask:
    """Which instants lie in one of the tiles that begin at `starts` (ascending)."""
    begins = np.asarray(starts, np.int64)
    if not begins.size:
        return np.zeros(instants.size, np.bool_)
    at = np.searchsorted(begins, instants, side="right") - 1
    found: Mask = (at >= 0) & (instants < begins[at] + tile)
    return found


def buckets_of(time: Ints, width: int) -> Ints:
    return time - time % width


def _merged(metric: Metric, tables: Sequence[pa.Table], width: int) -> pa.Table:
    whole = [table for table in tables if table.num_rows]
    if not whole:
        return cell_schema(metric).empty_table()
    cells = whole[0] if len(whole) == 1 else pa.concat_tables(whole).unify_dictionaries()
    cells = cells.combine_chunks()
    bucket = buckets_of(one(cells.column("bucket")).to_numpy(), width)
    names = cells.column_names[: cells.column_names.index("bucket")]
    groups = GroupKeys(cells, bucket, width).groups([*names, "bucket"])
    folded = _MERGE[metric.kind](metric, groups, cells)
    return _table(metric, [cells.column(name) for name in names], bucket, groups, folded)


def _table(
    metric: Metric, keys: Sequence[pa.ChunkedArray], bucket: Ints, groups: Groups, folded: Folded
) -> pa.Table:
    first = groups.first if folded.group is None else groups.first[folded.group]
    at = pa.array(first)
    schema = cell_schema(metric)
    columns = [one(key).take(at) for key in keys]
    columns.append(pa.array(bucket[first]))
    columns += [folded.columns[name] for name in schema.names[len(columns) :]]
    return pa.Table.from_arrays(columns, schema=schema)
