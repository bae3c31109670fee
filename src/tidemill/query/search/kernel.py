"""The kernel of a search: the matching rows of one raw part, in order, as positions without payloads.

The index is used first, narrow columns next, then the columns of fields; a payload is read only if those are
not enough, for rows that passed the others, and only as long as rows are needed. Can run in any process.
Nothing is written here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.formats.arrays import Ints, Mask
from tidemill.formats.arrow import one
from tidemill.model.conditions.ast import Condition, paths_in
from tidemill.model.conditions.evaluation import truth, values_at
from tidemill.model.time import Interval
from tidemill.outputs.index.entries import (
    EntryGroup,
    Tally,
    index_source,
    metadata_of,
    payload_source,
    text_group,
)
from tidemill.outputs.index.numbers import number_of
from tidemill.query.search.column_filter import ColumnFilter, column_filter
from tidemill.query.search.cursor import Key
from tidemill.query.search.index_matcher import Matcher, name_of
from tidemill.raw.footers import declared_in
from tidemill.raw.part_payloads import PartPayloads
from tidemill.storage.tables.parts import open_part

Order = Literal["ts", "arrival"]
COLUMN: Final[Mapping[Order, str]] = {"ts": "event_time", "arrival": "arrival"}
TENANT: Final = "tenant"
_FIRST_ROWS: Final = 256  # rows whose payloads are read at first
_KEPT_BYTES: Final = 64 << 20  # bytes of payloads that are cached, since the next rows may need them again
_LEAST, _MOST = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class SearchScope:
    """What is searched, the same in every part."""

    where: Condition | None
    filter: Condition | None
    indexed: tuple[str, ...]
    span: Interval | None
    tenant: str | None
    order: Order
    descending: bool
    bound: int
    after: Key | None
    limit: int  # rows that are needed at most
    total: bool


@dataclass(frozen=True, slots=True)
class FindUnit:
    scope: SearchScope
    number: int  # of the part, among those that are considered
    raw: str
    rows: int
    index: str | None  # None: not indexed
    seqs: Callable[[str], int | None]  # ledger offset of a slice


@dataclass(frozen=True, slots=True)
class Hits:
    """Rows in the order of the search, no more than needed; and statistics."""

    number: int
    value: Ints
    seq: Ints
    line: Ints
    row: Ints
    total: int | None
    entries: int  # index entries that were read
    groups: int  # row groups of the index that were read
    fetched: int  # rows of raw whose narrow columns were read
    filtered: int  # rows whose payload was read


def find(unit: FindUnit) -> Iterator[Hits]:
    yield _Finder(unit).hits()


@dataclass(frozen=True, slots=True)
class SlicesUnit:
    raw: str


def slices_of(unit: SlicesUnit) -> Iterator[tuple[str, ...]]:
    """The slices that rows of a part are from."""
    with open_part(unit.raw, ("slice",), metadata=metadata_of(unit.raw)) as file:
        column = file.read(["slice"], use_threads=False).column("slice")
        yield tuple(sorted({text for chunk in column.chunks for text in chunk.dictionary.to_pylist()}))


@dataclass(frozen=True, slots=True)
class KnownRows:
    """Ledger offsets of slices, for a process without access to the ledger."""

    seqs: Mapping[str, int]

    def __call__(self, slice: str) -> int | None:
        return self.seqs.get(slice)


class _Finder:
    def __init__(self, unit: FindUnit) -> None:
        self._unit = unit
        self._scope = unit.scope
        self._metadata = metadata_of(unit.raw)
        sizes = [self._metadata.row_group(g).num_rows for g in range(self._metadata.num_row_groups)]
        self._starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)
        # Conditions on payloads, each with whether `tenant` in it is the column of raw.
        self._conditions = [(self._scope.filter, False)] if self._scope.filter is not None else []
        self._filters: dict[int, ColumnFilter | None] = {}
        self._tally = Tally()
        self._fetched = 0
        self._filtered = 0

    def hits(self) -> Hits:
        unit, scope = self._unit, self._scope
        with open_part(unit.raw, ("tenant", "slice"), metadata=self._metadata) as file:
            self._file = file
            self._declared = declared_in(file, unit.raw)
            conditions = [scope.filter, scope.where]
            paths = [".".join(path.segments) for each in conditions for path in paths_in(each)]
            self._payloads = _Payloads(file, PartPayloads(self._declared, paths))
            mask = self._by_index()
            value, seq, line, row = self._narrow(mask)
            order = np.lexsort((line, seq, value))
            if scope.descending:
                order = order[::-1]
            value, seq, line, row = value[order], seq[order], line[order], row[order]
            total: int | None = None
            if not scope.total:
                passed = self._first(row, np.flatnonzero(self._beyond(value, seq, line)))
            else:
                passed = np.flatnonzero(self._passing(row))
                total = passed.size
                beyond = self._beyond(value[passed], seq[passed], line[passed])
                passed = passed[beyond][: scope.limit]
        return Hits(
            unit.number, value[passed], seq[passed], line[passed], row[passed],
            total, self._tally.entries, self._tally.groups, self._fetched, self._filtered,
        )  # fmt: skip

    # -- the index

    def _by_index(self) -> Mask:
        """Rows that may match; what the index cannot decide is left to their payloads."""
        scope, unit = self._scope, self._unit
        everything = np.ones(unit.rows, np.bool_)
        if scope.where is None:
            return everything
        if unit.index is None:
            self._conditions.insert(0, (scope.where, self._names_tenant()))
            return everything
        with index_source(unit.index, unit.rows, self._extra()) as source:
            self._tally = source.tally
            return Matcher(source).rows(scope.where)

    def _names_tenant(self) -> bool:
        """Whether `tenant` in WHERE is the column of raw, which a search over all tenants can name."""
        if self._scope.tenant is not None or TENANT in self._scope.indexed:
            return False
        return any(path.segments == (TENANT,) for path in paths_in(self._scope.where))

    def _extra(self) -> dict[str, list[EntryGroup]]:
        if not self._names_tenant():
            return {}
        column = self._file.read([TENANT], use_threads=False).column(TENANT)
        return {TENANT: [text_group(one(column.cast(pa.string())))]}

    # -- narrow columns

    def _narrow(self, mask: Mask) -> tuple[Ints, Ints, Ints, Ints]:
        pieces: list[tuple[Ints, Ints, Ints, Ints]] = []
        column = COLUMN[self._scope.order]
        names = list(dict.fromkeys(["event_time", "tenant", "slice", "line", column]))
        enough = _Enough(self._scope) if not self._conditions else None
        for edge, group in self._groups():
            if enough is not None and enough.without(edge):
                break
            start, end = self._starts[group], self._starts[group + 1]
            rows = np.flatnonzero(mask[start:end])
            if not rows.size or not self._may_hold(group) or not self._may_pass(group):
                continue
            table = self._file.read_row_group(group, names, use_threads=False)
            self._fetched += rows.size
            keep, seq = self._kept(table, rows)
            rows = rows[keep]
            if rows.size:
                value, seq = _ints(table.column(column))[rows], seq[keep]
                line = one(table.column("line")).to_numpy()[rows]
                pieces.append((value, seq, line, rows + start))
                if enough is not None:
                    enough.add(value[self._beyond(value, seq, line)])
        if not pieces:
            empty = np.empty(0, np.int64)
            return empty, empty, empty, empty
        value, seq, line, row = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
        return value, seq, line, row

    def _groups(self) -> list[tuple[int, int]]:
        """Row groups, each with an instant that none of its rows precedes, in that order."""
        groups = range(self._metadata.num_row_groups)
        if self._scope.order != "ts":
            return [(0, group) for group in groups]
        side = 1 if self._scope.descending else 0
        edges = [self._time(group)[side] for group in groups]
        return sorted(zip(edges, groups, strict=True), reverse=self._scope.descending)

    def _kept(self, table: pa.Table, rows: Ints) -> tuple[Mask, Ints]:
        """Which of these rows of a group belong to the tenant, the span and the visible slices."""
        scope = self._scope
        slices = one(table.column("slice"))
        offsets = [self._unit.seqs(slice) for slice in slices.dictionary.to_pylist()]
        code = slices.indices.to_numpy(zero_copy_only=False)[rows]
        seq = np.array([offset if offset is not None else _MOST for offset in offsets], np.int64)[code]
        keep: Mask = seq <= scope.bound
        if scope.span is not None:
            time = _ints(table.column("event_time"))[rows]
            keep &= (time >= scope.span.start) & (time < scope.span.end)
        if scope.tenant is not None:
            tenants = one(table.column("tenant"))
            is_theirs = np.array([name == scope.tenant for name in tenants.dictionary.to_pylist()], np.bool_)
            keep &= is_theirs[tenants.indices.to_numpy(zero_copy_only=False)[rows]]
        return keep, seq

    def _may_hold(self, group: int) -> bool:
        scope = self._scope
        low, high = self._time(group)
        if scope.span is not None and (high < scope.span.start or low >= scope.span.end):
            return False
        if is_before(low, high, scope):
            return False
        if scope.tenant is not None:
            low_name, high_name = self._bounds(group, "tenant", raw=False)
            if isinstance(low_name, str) and isinstance(high_name, str):
                return low_name <= scope.tenant <= high_name
        return True

    def _time(self, group: int) -> tuple[int, int]:
        """Its first and last instant, as far as known."""
        first, last = self._bounds(group, "event_time")
        return first if isinstance(first, int) else _LEAST, last if isinstance(last, int) else _MOST

    def _bounds(self, group: int, column: str, *, raw: bool = True) -> tuple[object, object]:
        offset = self._file.schema_arrow.get_field_index(column)
        statistics = self._metadata.row_group(group).column(offset).statistics
        if statistics is None or not statistics.has_min_max:
            return None, None
        return (statistics.min_raw, statistics.max_raw) if raw else (statistics.min, statistics.max)

    def _beyond(self, value: Ints, seq: Ints, line: Ints) -> Mask:
        """Rows after the end of the last page."""
        after = self._scope.after
        if after is None:
            return np.ones(value.size, np.bool_)
        sign = -1 if self._scope.descending else 1
        found: Mask = np.zeros(value.size, np.bool_)
        same: Mask = np.ones(value.size, np.bool_)
        for value_of_row, last in zip((value, seq, line), after, strict=True):
            found |= same & ((value_of_row > last) if sign > 0 else (value_of_row < last))
            same &= value_of_row == last
        return found

    def _may_pass(self, group: int) -> bool:
        """Whether a row of the group can pass the conditions on fields, by the statistics of its columns."""
        filters = (self._by_columns(number) for number in range(len(self._conditions)))
        return all(each is None or each.may_match(group) for each in filters)

    def _by_columns(self, number: int) -> ColumnFilter | None:
        """The condition on the columns of the part; None: payloads are needed."""
        if number not in self._filters:
            condition, with_tenant = self._conditions[number]
            found = None if with_tenant else column_filter(condition, self._declared, self._file)
            self._filters[number] = found
        return self._filters[number]

    # -- fields

    def _first(self, row: Ints, candidates: Ints) -> Ints:
        """The first candidates that pass, as many as are needed; tried in growing batches."""
        found: list[Ints] = []
        count, done, step = 0, 0, max(_FIRST_ROWS, 2 * self._scope.limit)
        while done < candidates.size and count < self._scope.limit:
            these = candidates[done : done + step]
            passed = these[self._passing(row[these])]
            found.append(passed)
            count += passed.size
            done += step
            step *= 4
        return np.concatenate([np.empty(0, np.int64), *found])[: self._scope.limit]

    def _passing(self, row: Ints) -> Mask:
        """Rows whose payload meets all conditions; row groups are read one after the other."""
        if not self._conditions:
            return np.ones(row.size, np.bool_)
        self._filtered += row.size
        passed = np.zeros(row.size, np.bool_)
        groups = np.searchsorted(self._starts, row, "right") - 1
        for group in np.unique(groups).tolist():
            of_group = np.flatnonzero(groups == group)
            passed[of_group] = self._passing_in_group(group, pa.array(row[of_group] - self._starts[group]))
        return passed

    def _passing_in_group(self, group: int, inside: pa.Array) -> Mask:
        passed = np.ones(len(inside), np.bool_)
        for number in range(len(self._conditions)):
            found = self._by_columns(number)
            if found is None:
                passed &= self._by_payload(number, group, inside)
                continue
            true, unknown = found.rows([group], inside)
            if unknown.any():
                left = np.flatnonzero(unknown)
                true[left] = self._by_payload(number, group, inside.take(pa.array(left)))
            passed &= true
        return passed

    def _by_payload(self, number: int, group: int, inside: pa.Array) -> Mask:
        condition, with_tenant = self._conditions[number]
        extra: dict[str, list[EntryGroup]] = {}
        if with_tenant:
            column = self._file.read_row_group(group, [TENANT], use_threads=False).column(TENANT)
            extra[TENANT] = [text_group(one(column.cast(pa.string())).take(inside))]
        return holds(condition, self._payloads.of(group).take(inside), extra)


def is_before(low: int, high: int, scope: SearchScope) -> bool:
    """Whether all rows between these instants were on earlier pages and need not be counted."""
    if scope.total or scope.after is None or scope.order != "ts":
        return False
    return low > scope.after[0] if scope.descending else high < scope.after[0]


class _Enough:
    """Whether the rows found fill the page, so that no later group can add to it."""

    def __init__(self, scope: SearchScope) -> None:
        self._scope = scope
        self._values: list[Ints] = []
        self._count = 0

    def add(self, values: Ints) -> None:
        self._values.append(values)
        self._count += values.size

    def without(self, edge: int) -> bool:
        scope = self._scope
        if scope.total or scope.order != "ts" or self._count < scope.limit:
            return False
        values = np.sort(np.concatenate(self._values))
        if scope.descending:
            return bool(edge < values[-scope.limit])
        return bool(edge > values[scope.limit - 1])


def holds(condition: Condition, payload: pa.StringArray, extra: Mapping[str, Sequence[EntryGroup]]) -> Mask:
    """For which payloads it is true."""
    paths = list(paths_in(condition))
    if any(
        "." in step for path in paths for step in path.segments
    ):  # a key with a dot is in no declared path
        return np.array([_is_true(condition, text) for text in payload.to_pylist()], np.bool_)
    names = sorted({name_of(path) for path in paths} - set(extra))
    return Matcher(payload_source(payload, names, extra)).rows(condition)


@lru_cache(maxsize=4096)
def _number(text: str) -> Decimal:
    return number_of(text)


_DECODER: Final = json.JSONDecoder(parse_float=_number, parse_int=_number)


def _is_true(condition: Condition, payload: str) -> bool:
    value = _DECODER.decode(payload)
    return truth(condition, lambda path: values_at(value, path)) is True


class _Payloads:
    """Payloads of a part by row group; the last few are cached."""

    def __init__(self, file: pq.ParquetFile, payloads: PartPayloads) -> None:
        self._file = file
        self._payloads = payloads
        self._kept: dict[int, pa.StringArray] = {}

    def of(self, group: int) -> pa.StringArray:
        found = self._kept.pop(group, None)
        if found is None:
            names = self._payloads.names
            found = self._payloads.of(self._file.read_row_group(group, names, use_threads=False))
        self._kept[group] = found
        while len(self._kept) > 1 and sum(each.nbytes for each in self._kept.values()) > _KEPT_BYTES:
            del self._kept[next(iter(self._kept))]
        return found


def _ints(column: pa.ChunkedArray) -> Ints:
    values: Ints = one(column).view(pa.int64()).to_numpy()
    return values
