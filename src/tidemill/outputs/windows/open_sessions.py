"""Open sessions as aggregates so far, carried from one fold to the next in place of their rows, so that a
fold costs only what is new.

Only if every aggregate of two parts follows exactly from those of the parts. A late row of a key makes its
sessions again from raw, and what was carried of it is void.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.config.stream import Stream
from tidemill.formats.arrays import Ints, Mask
from tidemill.formats.arrow import one
from tidemill.model.streaming import Aggregate, Function, WindowKind, WindowSpec
from tidemill.outputs.windows.aggregate import GROUP, VALUE, Members, aggregated, fresh_schema, made
from tidemill.outputs.windows.assign import Assigned
from tidemill.outputs.windows.codes import codes, combined, decimals, integers
from tidemill.outputs.windows.exact_arithmetic import Sums, averages
from tidemill.outputs.windows.keys import Key, key_codes
from tidemill.storage.checksums import read_arrow, write_arrow

_SLICES: Final = "slices"
_NAMES: Final = b"tidemill.slices"
_COUNTED: Final = ("rows", "late_rows", "bytes")
_MERGED: Final = (Function.COUNT, Function.MIN, Function.MAX, Function.FIRST, Function.LAST)
_SUMMED: Final = (Function.SUM, Function.AVG)


def carries_sums(spec: WindowSpec) -> bool:
    """Whether its open windows can be carried this way."""
    return spec.kind is WindowKind.SESSION and all(
        each.function in _MERGED or (each.function in _SUMMED and each.type != "float")
        for each in spec.aggregates
    )


def in_parts(spec: WindowSpec) -> WindowSpec:
    """The window with aggregates that can be merged: an average becomes a sum and a count."""
    kept = [each for each in spec.aggregates if each.function is not Function.AVG]
    averaged = {each.column: each for each in spec.aggregates if each.function is Function.AVG}
    for each in averaged.values():
        kept += [replace(each, name=_part(f, each), function=f) for f in (Function.SUM, Function.COUNT)]
    return replace(spec, aggregates=tuple(kept))


def _part(function: Function, aggregate: Aggregate) -> str:
    return f"{function.value} of {aggregate.column}"  # declared aggregates have no spaces in their names


@dataclass(frozen=True, slots=True)
class SessionParts:
    """Results of windows, by `in_parts`, without their slices …"""

    table: pa.Table
    members: Members  # … which are here

    def filter(self, keep: Mask) -> SessionParts:
        return SessionParts(self.table.filter(pa.array(keep)), self.members.take(np.flatnonzero(keep)))


def schema_of(spec: WindowSpec, stream: Stream) -> pa.Schema:
    return pa.schema(
        [each for each in fresh_schema(in_parts(spec), stream) if each.name not in ("hash", _SLICES)]
    )


def no_parts(spec: WindowSpec, stream: Stream) -> SessionParts:
    return SessionParts(
        schema_of(spec, stream).empty_table(), Members((), np.empty(0, np.int64), np.empty(0, np.int64))
    )


def parts_of(spec: WindowSpec, stream: Stream, rows: pa.Table, assigned: Assigned) -> SessionParts:
    """The parts of new rows."""
    if not assigned.row.size:
        return no_parts(spec, stream)
    columns, members = aggregated(in_parts(spec), rows, assigned)
    schema = schema_of(spec, stream)
    return SessionParts(pa.table([columns[name] for name in schema.names], schema=schema), members)


# -- on disk


def write_parts(path: Path, parts: SessionParts) -> None:
    lists = pa.ListArray.from_arrays(
        pa.array(np.append(parts.members.starts, parts.members.codes.size).astype(np.int32)),
        pa.array(parts.members.codes.astype(np.int32)),
    )
    table = parts.table.append_column(_SLICES, lists)
    write_arrow(path, table.replace_schema_metadata({_NAMES: json.dumps(list(parts.members.names)).encode()}))


def read_parts(spec: WindowSpec, stream: Stream, paths: Sequence[str]) -> SessionParts:
    """What was carried, of all buckets."""
    found = no_parts(spec, stream)
    for path in paths:
        table = read_arrow(path)
        lists = one(table.column(_SLICES))
        names = tuple(json.loads(table.schema.metadata[_NAMES]))
        starts = integers(lists.offsets)[:-1]
        members = Members(names, starts, integers(lists.values))
        whole = pa.concat_tables([found.table, table.drop_columns([_SLICES]).cast(found.table.schema)])
        found = SessionParts(whole.combine_chunks(), found.members.followed_by(members))
    return found


# -- what is new added to what was carried


def merged(
    spec: WindowSpec, old: SessionParts, new: SessionParts, watermark: int | None, *, flush: bool
) -> SessionParts:
    """Sessions of the new rows, which all come after the open ones: the first of a key continues the open one
    of that key if it is near enough."""
    if not old.table.num_rows:
        return new
    both = _BothParts(spec, old.table, new.table)
    start, end, closed = both.windows(watermark, flush)
    groups = [GROUP + name for name in spec.grouped_by if name not in spec.key]
    table = pa.concat_tables([old.table, new.table]).unify_dictionaries()
    result = combined(
        [both.key, codes(pa.array(start)), *(codes(table.column(name)) for name in groups)], start.size
    ).values
    _, first, number = np.unique(result, return_index=True, return_inverse=True)
    last = np.zeros(first.size, np.int64)
    last[number] = np.arange(number.size)  # of two, the new one: it comes second
    columns = _merge_columns(spec, table, first, last)
    columns |= {
        "start": pa.array(start[first]),
        "end": pa.array(end[first]),
        "closed": pa.array(closed[first]),
    }
    return SessionParts(
        pa.table([columns[name] for name in table.column_names], schema=table.schema),
        old.members.followed_by(new.members).regrouped(number, first.size),
    )


class _BothParts:
    """Open windows, then new ones: which of them continue."""

    def __init__(self, spec: WindowSpec, old: pa.Table, new: pa.Table) -> None:
        self._spec = spec
        self._olds = old.num_rows
        table = pa.concat_tables([old, new])
        names = ["tenant", *(GROUP + name for name in spec.key)]
        self.key = combined([codes(table.column(name)) for name in names], table.num_rows)
        self._start, self._end = (integers(table.column(name)) for name in ("start", "end"))
        self._closed = np.asarray(one(table.column("closed")).to_numpy(zero_copy_only=False), np.bool_)

    def windows(self, watermark: int | None, flush: bool) -> tuple[Ints, Ints, Mask]:
        """Start, end and whether it has ended, of each result."""
        key, olds = self.key.values, self._olds
        start, end, closed = self._start.copy(), self._end.copy(), self._closed.copy()
        begun = np.full(int(key.max()) + 1, _NEVER)  # by key: where its open session starts and …
        begun[key[:olds]] = start[:olds]
        last = np.full(begun.size, _NEVER)  # … when its last row was
        last[key[:olds]] = end[:olds] - self._spec.gap
        first = np.full(begun.size, _FOREVER)  # where the first of the new ones starts
        np.minimum.at(first, key[olds:], start[olds:])
        goes_on = (last != _NEVER) & (first != _FOREVER)
        goes_on[goes_on] = first[goes_on] - last[goes_on] < self._spec.apart
        joined = np.flatnonzero(goes_on[key[olds:]] & (start[olds:] == first[key[olds:]])) + olds
        ends, over = np.full(begun.size, _NEVER), np.zeros(begun.size, np.bool_)
        ends[key[joined]], over[key[joined]] = end[joined], closed[joined]
        start[joined] = begun[key[joined]]
        own = key[:olds]
        reached = np.full(olds, flush) if watermark is None else flush | (end[:olds] <= watermark)
        closed[:olds] = np.where(goes_on[own], over[own], reached)
        end[:olds] = np.where(goes_on[own], ends[own], end[:olds])
        return start, end, closed


_NEVER: Final = np.iinfo(np.int64).min
_FOREVER: Final = np.iinfo(np.int64).max


def _merge_columns(
    spec: WindowSpec, table: pa.Table, first: Ints, last: Ints
) -> dict[str, pa.Array | pa.ChunkedArray]:
    """Each result from its one part, or from both: `first` and `last` are rows of the table, equal if it has
    one."""
    single = first == last
    one_of, other = pa.array(first), pa.array(last, mask=single)

    def both(name: str) -> tuple[pa.Array, pa.Array]:
        column = one(table.column(name))
        return column.take(one_of), column.take(other)

    columns: dict[str, pa.Array | pa.ChunkedArray] = {
        name: table.column(name).take(one_of) for name in ("tenant", "ordinal")
    }
    columns |= {GROUP + name: table.column(GROUP + name).take(one_of) for name in spec.grouped_by}
    for name in _COUNTED:
        columns[name] = _added(*both(name))
    columns["first_time"] = pc.min_element_wise(*both("first_time"))
    columns["last_time"] = pc.max_element_wise(*both("last_time"))
    for each in in_parts(spec).aggregates:
        columns[VALUE + each.name] = _merge(each.function, *both(VALUE + each.name))
    return columns


def _added(a: pa.Array, b: pa.Array) -> pa.Array:
    return pc.add(a, b.fill_null(0))


def _merge(function: Function, a: pa.Array, b: pa.Array) -> pa.Array:
    match function:
        case Function.COUNT:
            return _added(a, b)
        case Function.MIN:
            return pc.min_element_wise(a, b)
        case Function.MAX:
            return pc.max_element_wise(a, b)
        case Function.FIRST:
            return pc.coalesce(a, b)
        case Function.LAST:
            return pc.coalesce(b, a)
        case _:
            x, y = _words(a), _words(b)
            low = x.low + y.low
            high = x.high + y.high + (low < x.low)
            there = np.asarray(a.is_valid()) | np.asarray(b.is_valid())
            return decimals(low, high, a.type, there)


def _words(array: pa.Array) -> Sums:
    """Decimals as 128-bit integers; zero at nulls."""
    if not len(array):
        return Sums(np.empty(0, np.uint64), np.empty(0, np.int64))
    words = np.frombuffer(array.buffers()[1], np.uint64).reshape(-1, 2)[
        array.offset : array.offset + len(array)
    ]
    there = np.asarray(array.is_valid())
    return Sums(np.where(there, words[:, 0], 0), np.where(there, words[:, 1], 0).view(np.int64))


# -- results


def finished(spec: WindowSpec, stream: Stream, parts: SessionParts, *, hashed: bool) -> pa.Table:
    """The results as `aggregate` gives them. Unless `hashed`, open ones have no hash: they are not published,
    and it would be computed again each time from ever more slices."""
    table = parts.table
    if not table.num_rows:
        return fresh_schema(spec, stream).empty_table()
    columns = {name: table.column(name) for name in table.column_names}
    for each in spec.aggregates:
        if each.function is Function.AVG:
            counts = integers(table.column(VALUE + _part(Function.COUNT, each)))
            total = _words(one(table.column(VALUE + _part(Function.SUM, each))))
            columns[VALUE + each.name] = pa.array(averages(total, counts, each.scale), mask=counts == 0)
    closed = np.asarray(one(table.column("closed")).to_numpy(zero_copy_only=False), np.bool_)
    which = np.flatnonzero(closed | hashed)
    hashes = pa.array([""] * table.num_rows, pa.string())
    mask = np.zeros(table.num_rows, np.bool_)
    mask[which] = True
    hashes = pc.replace_with_mask(hashes, pa.array(mask), parts.members.take(which).hashes)
    return made(spec, stream, columns, parts.members.lengths, hashes)


def first_starts(spec: WindowSpec, table: pa.Table) -> dict[Key, int]:
    """For each key the start of its open session."""
    found, values = key_codes(
        [table.column(name) for name in ("tenant", *(GROUP + name for name in spec.key))]
    )
    start = np.full(len(values), _FOREVER)
    np.minimum.at(start, found, integers(table.column("start")))
    return {(str(key[0]), tuple(key[1:])): at for key, at in zip(values, start.tolist(), strict=True)}
