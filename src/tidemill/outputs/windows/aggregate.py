"""Exact aggregates of assigned rows: one result for each window and group.

Sums of integers and decimals are exact; those of floats are the exactly rounded sum (`math.fsum`), so no
result depends on the order of addition. avg and stddev (of a sample) are the nearest double of the exact
value; only the avg of floats is that of their rounded sum. Percentiles are nearest-rank: a value that
occurred. Nulls do not count, except for count without a column; first and last are those of the rows that
have a value. Without a value an aggregate other than count is null, and so is stddev below two. What
infinities leave undefined (sum and avg of both signs, stddev of any) is NaN. Minus zero is zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from tidemill.config.stream import Stream
from tidemill.formats.arrays import Ints
from tidemill.formats.arrow import one
from tidemill.model.slices import set_hash
from tidemill.model.streaming import Aggregate, Function, WindowSpec
from tidemill.outputs.windows.aggregate_functions import Measured, Picked, folded
from tidemill.outputs.windows.codes import (
    coded,
    codes,
    combined,
    integers,
    plain,
    ranked,
    spans,
    stable_order,
)
from tidemill.outputs.windows.exact_arithmetic import ValueRuns
from tidemill.outputs.windows.row_scope import BYTES, FIELD, LATE, NAME, TENANT, TIME, field_type

if TYPE_CHECKING:
    from tidemill.outputs.windows.assign import Assigned

GROUP: Final = "g."  # prefix of the columns of `WindowSpec.grouped_by`
VALUE: Final = "a."  # prefix of the aggregates

_TABLE: Final = 1 << 25  # pairs of result and slice that are marked in an array instead of sorted

_TYPES: Final[dict[str | None, pa.DataType]] = {
    "integer": pa.int64(),
    "float": pa.float64(),
    "boolean": pa.bool_(),
}  # all others are strings


def value_type(aggregate: Aggregate) -> pa.DataType:
    """The type of an aggregate's column: count int64; sum decimal128(38, scale) or float64; avg, stddev
    float64; others as the field."""
    match aggregate.function:
        case Function.COUNT:
            return pa.int64()
        case Function.AVG | Function.STDDEV:
            return pa.float64()
        case Function.SUM:
            return pa.float64() if aggregate.type == "float" else pa.decimal128(38, aggregate.scale)
        case _:
            if aggregate.type == "decimal":
                return pa.decimal128(18, aggregate.scale)
            return _TYPES.get(aggregate.type, pa.string())


def fresh_schema(spec: WindowSpec, stream: Stream) -> pa.Schema:
    """tenant (string); start, end, ordinal (int64); `WindowSpec.grouped_by` as `g.`+column, typed as the
    fields are; rows, late_rows, first_time, last_time, bytes, slices (int64; a count); hash (string,
    `set_hash` of the names of the slices its rows came from); closed (bool); then the aggregates as
    `a.`+name."""
    fields = [("tenant", pa.string())]
    fields += [(name, pa.int64()) for name in ("start", "end", "ordinal")]
    fields += [(GROUP + column, field_type(stream, column)) for column in spec.grouped_by]
    counted = ("rows", "late_rows", "first_time", "last_time", "bytes", "slices")
    fields += [(name, pa.int64()) for name in counted]
    fields += [("hash", pa.string()), ("closed", pa.bool_())]
    fields += [(VALUE + one.name, value_type(one)) for one in spec.aggregates]
    return pa.schema(fields)


@dataclass(frozen=True, slots=True)
class Members:
    """Which slices the rows of each result came from: codes of their names, result by result."""

    names: tuple[str, ...]
    starts: Ints  # per result
    codes: Ints

    @property
    def lengths(self) -> Ints:
        return np.diff(np.append(self.starts, self.codes.size))

    @property
    def hashes(self) -> pa.Array:
        """The hash of the names, for each result."""
        hashes = [set_hash([name]) for name in self.names]
        counts = self.lengths
        which = self.codes[self.starts]  # results that are made from one slice
        sets: dict[bytes, int] = {}
        for at in np.flatnonzero(counts > 1).tolist():
            members = self.codes[self.starts[at] : self.starts[at] + counts[at]]
            found = sets.setdefault(members.tobytes(), len(hashes))
            if found == len(hashes):
                hashes.append(set_hash(self.names[i] for i in members.tolist()))
            which[at] = found
        return pa.array(hashes, pa.string()).take(pa.array(which))

    def take(self, results: Ints) -> Members:
        """The members of these results, with only the names that they use."""
        lengths = self.lengths[results]
        used, codes = np.unique(self.codes[spans(self.starts[results], lengths)], return_inverse=True)
        names = tuple(self.names[code] for code in used.tolist())
        return Members(names, np.cumsum(lengths) - lengths, codes.astype(np.int64))

    def followed_by(self, other: Members) -> Members:
        """The results of both, one after another."""
        names = tuple(dict.fromkeys((*self.names, *other.names)))
        positions = {name: code for code, name in enumerate(names)}
        other_codes = np.array([positions[name] for name in other.names], np.int64)
        codes = np.concatenate([self.codes, other_codes[other.codes] if other_codes.size else other.codes])
        return Members(names, np.concatenate([self.starts, other.starts + self.codes.size]), codes)

    def regrouped(self, number: Ints, results: int) -> Members:
        """The members of results that these are parts of: `number` is the result of each part."""
        pairs = np.repeat(number * len(self.names), self.lengths) + self.codes
        return _members(self.names, pairs, results)


def _members(names: tuple[str, ...], pairs: Ints, results: int) -> Members:
    """Members from pairs of a result and a name, in any order and with repeats."""
    result, code = np.divmod(_distinct(pairs, results * len(names)), len(names))
    counts = np.bincount(result, minlength=results)
    return Members(names, np.cumsum(counts) - counts, code)


def aggregate(spec: WindowSpec, stream: Stream, rows: pa.Table, assigned: Assigned) -> pa.Table:
    """Results of all windows, open ones too, by (start, tenant, ordinal, group), nulls of a group first."""
    if not assigned.row.size:
        return fresh_schema(spec, stream).empty_table()
    columns, members = aggregated(spec, rows, assigned)
    return made(spec, stream, columns, members.lengths, members.hashes)


def made(
    spec: WindowSpec,
    stream: Stream,
    columns: Mapping[str, pa.Array | pa.ChunkedArray],
    slices: Ints,
    hashes: pa.Array,
) -> pa.Table:
    """A table of results, sorted."""
    whole = {**columns, "slices": pa.array(slices), "hash": hashes}
    schema = fresh_schema(spec, stream)
    return _in_order(spec, pa.table([whole[name] for name in schema.names], schema=schema))


def aggregated(spec: WindowSpec, rows: pa.Table, assigned: Assigned) -> tuple[dict[str, pa.Array], Members]:
    """The columns of the results, and the slices that each is made from."""
    found = _results(spec, rows, assigned)
    picked, runs, heads = found.picked, found.picked.runs, pa.array(found.head)
    columns: dict[str, pa.Array] = {
        "tenant": plain(one(rows.column(TENANT)).take(heads)),
        "start": pa.array(assigned.start[found.window]),
        "end": pa.array(assigned.end[found.window]),
        "ordinal": pa.array(assigned.ordinal[found.window]),
    }
    for name in spec.grouped_by:
        columns[GROUP + name] = plain(one(rows.column(FIELD + name)).take(heads))
    time = picked.of(integers(rows.column(TIME)))
    columns["rows"] = pa.array(runs.lengths)
    columns["late_rows"] = pa.array(runs.sum(picked.of(integers(rows.column(LATE).cast(pa.int64())))))
    columns["first_time"] = pa.array(runs.least(time))
    columns["last_time"] = pa.array(runs.greatest(time))
    columns["bytes"] = pa.array(runs.sum(picked.of(integers(rows.column(BYTES)))))
    columns["closed"] = pa.array(assigned.closed[found.window])
    measured: dict[str, Measured] = {}
    for aggregate in spec.aggregates:
        if aggregate.column is None:
            columns[VALUE + aggregate.name] = columns["rows"]
            continue
        if aggregate.column not in measured:
            measured[aggregate.column] = Measured(one(rows.column(FIELD + aggregate.column)), picked)
        columns[VALUE + aggregate.name] = folded(aggregate, measured[aggregate.column])
    return columns, _made_of(rows, picked)


@dataclass(frozen=True, slots=True)
class _Results:
    """Each run of the picked rows is one result."""

    picked: Picked
    window: Ints  # per result
    head: Ints  # per result: index of its first row


def _results(spec: WindowSpec, rows: pa.Table, assigned: Assigned) -> _Results:
    row, window = assigned.row, assigned.window
    within = [name for name in spec.group_by if name not in spec.key]
    group = combined([codes(rows.column(FIELD + name)) for name in within], rows.num_rows)
    if group.size == 1:
        starts = np.flatnonzero(np.diff(window, prepend=-1))
    else:
        windows = assigned.start.size
        assert windows * group.size < 1 << 63, (windows, group.size)
        pairs = window * group.size + group.values[row]
        order = stable_order(pairs, windows * group.size)
        row = row[order]
        starts = np.flatnonzero(np.diff(pairs[order], prepend=-1))
        window = window[order]
    as_they_are = row.size == rows.num_rows and bool((row == np.arange(row.size)).all())
    picked = Picked(None if as_they_are else row, ValueRuns(starts, row.size))
    return _Results(picked, window[starts], row[starts])


def _made_of(rows: pa.Table, picked: Picked) -> Members:
    words = coded(one(rows.column(NAME)))
    names = tuple(words.dictionary.to_pylist())
    results = picked.runs.starts.size
    firsts = np.repeat(np.arange(results) * len(names), picked.runs.lengths)
    return _members(names, firsts + picked.of(integers(words.indices)), results)


def _distinct(values: Ints, size: int) -> Ints:
    """The distinct values below `size`, sorted."""
    if size > _TABLE:
        return np.unique(values[np.diff(values, prepend=-1) != 0])
    there = np.zeros(size, np.bool_)
    there[values] = True
    return np.flatnonzero(there)


def _in_order(spec: WindowSpec, table: pa.Table) -> pa.Table:
    """The order by (start, tenant, ordinal, group), which is unique."""
    keys: list[Ints] = []  # least significant first
    for name in reversed(["start", "tenant", "ordinal", *(GROUP + column for column in spec.grouped_by)]):
        rank = ranked(table.column(name))
        keys.append(rank.values)
        if rank.valid is not None:
            keys.append(rank.valid.astype(np.int64))
    order = np.lexsort(keys)
    in_place = bool((order == np.arange(order.size)).all())
    return table if in_place else table.take(pa.array(order)).combine_chunks()
