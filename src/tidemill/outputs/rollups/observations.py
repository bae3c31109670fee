"""Observations: which object was seen in which state, one row for each event that a state metric follows.

A table of observations is a function of its events; earlier events do not matter here.

A table has: high, low (the 128-bit key of metric, tenant and object), time (microseconds), event_id, tenant,
state, k0 … (the dimensions), and `slice` or, once it is known, `seq`, its ledger offset. It is sorted by
(high, low, time, event_id): the observations of an object are consecutive and in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.formats.arrays import Ints, Mask
from tidemill.formats.arrow import one
from tidemill.formats.hashing import SEED_OBSERVATIONS
from tidemill.formats.key_runs import hash_keys, sorted_order
from tidemill.outputs.rollups.cells import TEXT, cell_schema
from tidemill.outputs.rollups.events import passing
from tidemill.outputs.rollups.spec import Metric
from tidemill.storage.ipc import read_ipc, write_ipc

SEEN: Final = ".seen"


def observation_schema(metric: Metric) -> pa.Schema:
    """The schema of observations with ledger offsets."""
    return pa.schema(
        [
            ("high", pa.uint64()),
            ("low", pa.uint64()),
            ("time", pa.int64()),
            ("event_id", pa.string()),
            ("tenant", TEXT),
            ("state", TEXT),
            *(cell_schema(metric).field(f"k{i}") for i in range(len(metric.dimensions))),
            ("seq", pa.int64()),
        ]
    )


def no_observations(metric: Metric) -> pa.Table:
    return observation_schema(metric).empty_table()


def observed(metric: Metric, events: pa.Table) -> pa.Table:
    """The observations of accepted events, in the order of the events; with their slices."""
    following = metric.following
    assert following is not None, metric.name
    rows = _followed(metric, events)
    if rows is not None:
        events = events.take(pa.array(rows))
    tenant = coded_text(events.column("tenant"))
    high, low = hash_keys(
        tenant, _text(events.column(f"d{following.object}")), seed=SEED_OBSERVATIONS, within=metric.name
    )
    columns: dict[str, pa.Array | pa.ChunkedArray] = {
        "high": pa.array(high),
        "low": pa.array(low),
        "time": one(events.column("event_time")).cast(pa.int64()),
        "event_id": pc.fill_null(one(events.column("event_id")), ""),
        "tenant": tenant,
        "state": coded_text(events.column(f"d{following.state}")),
    }
    for i, d in enumerate(metric.dimensions):
        values = events.column(f"d{d.at}")
        columns[f"k{i}"] = coded_text(values) if d.type == "string" else one(values)
    columns["slice"] = coded_text(events.column("slice"))
    return pa.table(columns)


def _followed(metric: Metric, events: pa.Table) -> Ints | None:
    """Rows that pass the filter and have both object and state; None: all."""
    assert metric.following is not None
    mask: Mask | None = passing(metric, events)
    for at in (metric.following.object, metric.following.state):
        column = events.column(f"d{at}")
        if column.null_count:
            valid = np.asarray(one(column).is_valid())
            mask = valid if mask is None else mask & valid
    return None if mask is None or mask.all() else np.flatnonzero(mask)


def in_order(observations: pa.Table) -> pa.Table:
    """Sorted by object, time and event id (and by state, if a stream without a gate repeats an id)."""
    order = order_of(observations)
    if order is None:
        return observations
    return observations.take(pa.array(order)).combine_chunks()


def order_of(observations: pa.Table, rows: Ints | None = None) -> Ints | None:
    """The order of rows (of `rows`, or of all); None if they are already in order."""
    high, low, time = (one(observations.column(name)).to_numpy() for name in ("high", "low", "time"))
    if rows is not None:
        high, low, time = high[rows], low[rows], time[rows]
    order = None
    if high.size > 1 and not bool((high[1:] > high[:-1]).all()):
        order = sorted_order(high, low, time)
        high, low, time = high[order], low[order], time[order]
    tied = np.flatnonzero((high[1:] == high[:-1]) & (low[1:] == low[:-1]) & (time[1:] == time[:-1]))
    if rows is not None:
        order = rows if order is None else rows[order]
    if tied.size:
        order = _ties_by_id(observations, np.arange(high.size) if order is None else order, tied)
    return order


def _ties_by_id(observations: pa.Table, order: Ints, tied: Ints) -> Ints:
    """Sort rows of one object and instant by id; `tied` are the positions followed by an equal one."""
    positions = np.union1d(tied, tied + 1)
    begins = np.ones(positions.size, np.bool_)
    begins[1:] = ~np.isin(positions[1:] - 1, tied, assume_unique=True)
    rows = pa.array(order[positions])
    named = pa.table(
        {
            "group": np.cumsum(begins),
            "id": one(observations.column("event_id")).take(rows),
            "state": one(observations.column("state")).take(rows).cast(pa.string()),
        }
    )
    by_id = pc.sort_indices(named, [("group", "ascending"), ("id", "ascending"), ("state", "ascending")])
    out = order.copy()
    out[positions] = order[positions[by_id.to_numpy()]]
    return out


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """All rows in one table, each column in one chunk with one dictionary."""
    if len(tables) == 1:
        return tables[0].combine_chunks()
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def positioned(observations: pa.Table, seqs: Mapping[str, int]) -> pa.Table:
    """With ledger offsets instead of the names of slices."""
    slices = one(observations.column("slice"))
    positions = np.array([seqs[name] for name in slices.dictionary.to_pylist()] or [0], np.int64)
    at = observations.schema.get_field_index("slice")
    column = pa.array(positions[slices.indices.to_numpy(zero_copy_only=False)])
    return observations.set_column(at, "seq", column)


def write_seen(path: Path, observations: pa.Table) -> None:
    """Write observations for `read_seen`, in staging, in any order."""
    write_ipc(path, observations)


def read_seen(
    metric: Metric, files: Sequence[str], seqs: Mapping[str, int], keys: tuple[int, int]
) -> pa.Table:
    """The observations of the objects whose keys lie in a range (low <= high lane < high), sorted."""
    tables = [read_ipc(path) for path in files]
    inside = [_within(table, keys) for table in tables]
    held = sum(rows.size for rows in inside)
    if not held:
        return no_observations(metric)
    if held * 4 < sum(
        table.num_rows for table in tables
    ):  # otherwise copying everything once is cheaper than copying some twice
        tables = [table.take(pa.array(rows)) for table, rows in zip(tables, inside, strict=True)]
        return in_order(
            joined([positioned(table.combine_chunks(), seqs) for table in tables if table.num_rows])
        )
    starts = np.cumsum([0, *(table.num_rows for table in tables[:-1])])
    rows = np.concatenate([start + rows for start, rows in zip(starts, inside, strict=True)])
    whole = joined([positioned(table, seqs) for table in tables])
    order = order_of(whole, rows if held < whole.num_rows else None)
    return whole if order is None else whole.take(pa.array(order)).combine_chunks()


def _within(seen: pa.Table, keys: tuple[int, int]) -> Ints:
    highs = one(seen.column("high")).to_numpy()
    return np.flatnonzero((highs >= np.uint64(keys[0])) & (highs <= np.uint64(keys[1] - 1)))


def coded_text(column: pa.ChunkedArray | pa.Array) -> pa.DictionaryArray:
    """A column as dictionary-encoded strings (numbers and booleans as JSON spells them)."""
    array = one(column)
    if not pa.types.is_dictionary(array.type):
        array = (array if pa.types.is_string(array.type) else array.cast(pa.string())).dictionary_encode()
    return array if array.type.equals(TEXT) else array.cast(TEXT)


def _text(column: pa.ChunkedArray | pa.Array) -> pa.StringArray:
    array = one(column)
    return array if pa.types.is_string(array.type) else array.cast(pa.string())
