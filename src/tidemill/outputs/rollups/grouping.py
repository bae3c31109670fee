"""Groups rows by keys: encodes columns as integers in the order of their values, and rows by those codes.

Each column is encoded once. Groups are sorted by their keys, nulls first.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from tidemill.formats.arrays import Ints, Mask
from tidemill.formats.arrow import one

_WORD: Final = 1 << 63  # combined keys stay below it
_LITERAL: Final = 1 << 40  # integers in a smaller range are their own codes
_MOST_RUNS: Final = 32  # keys in at most so many ascending runs are merged; others are sorted or hashed
_SAMPLE: Final = 2048  # rows that show whether most keys are distinct: then sorting is quicker than hashing
_MANY: Final = 1 << 19  # rows; more of them are sorted in more passes, each of which stays in the cache


@dataclass(frozen=True, slots=True)
class GroupCodes:
    """A column as integers below `span`, in the order of its values; null is 0."""

    of: Ints
    span: int


@dataclass(frozen=True, slots=True)
class Groups:
    """Which rows belong together; `rows` are the rows that were grouped (None: all)."""

    of: Ints  # the group of each grouped row
    first: Ints  # of each group, one of its rows, by number in the table
    rows: Ints | None = None

    @property
    def size(self) -> int:
        return int(self.first.size)

    def take(self, column: pa.ChunkedArray | pa.Array) -> pa.Array:
        """The value of each group in a column that it was grouped by."""
        return one(column).take(pa.array(self.first))

    def chosen(self, column: pa.ChunkedArray | pa.Array) -> pa.Array:
        """The grouped rows of a column."""
        array = one(column)
        return array if self.rows is None else array.take(pa.array(self.rows))

    def counts(self) -> Ints:
        return np.bincount(self.of, minlength=self.size).astype(np.int64, copy=False)

    def sums(self, numbers: Ints) -> Ints:
        """The sum over each group of one number for each grouped row."""
        return _sums(self.of, numbers, self.size)


class GroupKeys:
    """Columns to group the rows of a table by: its own, and `bucket`, which is passed in."""

    def __init__(self, table: pa.Table, bucket: Ints, width: int) -> None:
        self._table = table
        self._bucket = bucket
        self._width = width
        self._codes: dict[str, GroupCodes] = {}
        self._groups: dict[Hashable, Groups] = {}

    def groups(self, names: Sequence[str], rows: Ints | None = None, chosen_by: Hashable = None) -> Groups:
        """Group by these columns, the most significant first. `chosen_by` identifies the choice of `rows`."""
        key = (tuple(names), chosen_by)
        if key not in self._groups:
            codes = [self._coded(name) for name in names]
            if rows is not None:
                codes = [GroupCodes(code.of[rows], code.span) for code in codes]
            of, first = grouped(codes)
            self._groups[key] = Groups(of, first if rows is None else rows[first], rows)
        return self._groups[key]

    def _coded(self, name: str) -> GroupCodes:
        if name not in self._codes:
            if name == "bucket":
                self._codes[name] = _numbers(self._bucket // self._width, None)
            else:
                self._codes[name] = coded(self._table.column(name))
        return self._codes[name]


def coded(column: pa.ChunkedArray | pa.Array) -> GroupCodes:
    array = one(column)
    if pa.types.is_dictionary(array.type):
        return _texts(array)
    if pa.types.is_boolean(array.type):
        return GroupCodes(np.asarray(pc.fill_null(array.cast(pa.int64()), -1)) + 1, 3)
    if not array.null_count:
        return _numbers(array.to_numpy(), None)
    least = pc.min(array)  # so that the value at nulls does not widen the span
    filled = pc.fill_null(array, least if least.is_valid else 0)
    return _numbers(filled.to_numpy(), np.asarray(pc.is_null(array)))


def _texts(array: pa.DictionaryArray) -> GroupCodes:
    """Strings, ranked by their bytes."""
    size = len(array.dictionary)
    rank = np.zeros(size + 1, np.int64)
    rank[:size] = pc.rank(array.dictionary, tiebreaker="dense").to_numpy()
    indices = array.indices
    filled = pc.fill_null(indices, size) if indices.null_count else indices
    return GroupCodes(rank[filled.to_numpy()], size + 1)


def _numbers(values: Ints, absent: Mask | None) -> GroupCodes:
    if not values.size:
        return GroupCodes(values, 1)
    least, most = int(values.min()), int(values.max())
    if most - least < _LITERAL:
        codes, span = values - least + 1, most - least + 2
    else:
        _, inverse = np.unique(values, return_inverse=True)
        codes, span = inverse.astype(np.int64) + 1, int(inverse.max()) + 2
    return GroupCodes(codes if absent is None else np.where(absent, 0, codes), span)


def grouped(columns: Sequence[GroupCodes]) -> tuple[Ints, Ints]:
    """The group of each row, and a row of each group; groups are numbered in the order of their codes."""
    key, total = np.zeros(columns[0].of.size, np.int64), 1
    for column in columns:
        if total * column.span >= _WORD:  # replace the codes so far by ranks, which are fewer than the rows
            key, first = _grouped(key, total)
            total = max(1, first.size)
        key = key * column.span + column.of
        total *= column.span
    return _grouped(key, total)


def _grouped(key: Ints, total: int) -> tuple[Ints, Ints]:
    if total <= 2 * key.size + 256:
        return _by_position(key, total)
    begins = _run_begins(key, _MOST_RUNS)
    if begins.size:
        return _numbered(key, _merged_runs(key, begins))
    if _by_hash(key[:_SAMPLE])[1].size > min(key.size, _SAMPLE) // 4:
        return _numbered(key, _sorted_order(key, total.bit_length(), 8 if key.size > _MANY else 11))
    of, distinct, first = _by_hash(key)
    order = np.argsort(distinct)
    rank = np.empty(order.size, np.int64)
    rank[order] = np.arange(order.size)
    return rank[of], first[order]


@njit(cache=True, nogil=True)
def _by_position(key: Ints, total: int) -> tuple[Ints, Ints]:
    """For keys that are few enough for an array."""
    position = np.zeros(total, np.int64)
    for i in range(key.size):
        position[key[i]] = 1
    size = 0
    for k in range(total):
        if position[k]:
            position[k] = size
            size += 1
    of = np.empty(key.size, np.int64)
    first = np.empty(size, np.int64)
    for i in range(key.size - 1, -1, -1):
        of[i] = position[key[i]]
        first[of[i]] = i
    return of, first


@njit(cache=True, nogil=True)
def _run_begins(key: Ints, most: int) -> Ints:
    """Where each ascending run of keys begins, and their end; empty if there are more than `most` runs."""
    begins = np.empty(most + 1, np.int64)
    begins[0], runs = 0, 1
    for i in range(1, key.size):
        if key[i] < key[i - 1]:
            if runs == most:
                return begins[:0]
            begins[runs] = i
            runs += 1
    begins[runs] = key.size
    return begins[: runs + 1]


@njit(cache=True, nogil=True)
def _merged_runs(key: Ints, begins: Ints) -> Ints:
    """The rows in the order of their keys, equal ones in their own order. Neighbouring runs are merged until
    one is left: cells that are merged come sorted, from a few sources."""
    order, merged = np.arange(key.size), np.empty(key.size, np.int64)
    while begins.size > 2:
        fewer = np.empty(begins.size // 2 + 1, np.int64)
        for pair in range(begins.size // 2):
            low, middle = begins[2 * pair], begins[2 * pair + 1]
            high = begins[min(2 * pair + 2, begins.size - 1)]
            left, right, at = low, middle, low
            while left < middle and right < high:
                if key[order[right]] < key[order[left]]:
                    merged[at] = order[right]
                    right += 1
                else:
                    merged[at] = order[left]
                    left += 1
                at += 1
            merged[at : at + middle - left] = order[left:middle]
            merged[at + middle - left : high] = order[right:high]
            fewer[pair] = low
        fewer[-1] = key.size
        begins = fewer
        order, merged = merged, order
    return order


@njit(cache=True, nogil=True)
def _sorted_order(key: Ints, bits: int, digit: int) -> Ints:
    """The rows in the order of their keys, which have so many bits; equal ones in their own order. A pass for
    each `digit` bits, the lowest first."""
    order, next_order = np.arange(key.size), np.empty(key.size, np.int64)
    keys, next_keys = key.copy(), np.empty(key.size, np.int64)
    mask = (1 << digit) - 1
    for shift in range(0, bits, digit):
        begin = np.zeros((1 << digit) + 1, np.int64)
        for i in range(keys.size):
            begin[((keys[i] >> shift) & mask) + 1] += 1
        for value in range(1 << digit):
            begin[value + 1] += begin[value]
        for i in range(keys.size):
            value = (keys[i] >> shift) & mask
            next_keys[begin[value]], next_order[begin[value]] = keys[i], order[i]
            begin[value] += 1
        keys, next_keys = next_keys, keys
        order, next_order = next_order, order
    return order


@njit(cache=True, nogil=True)
def _numbered(key: Ints, order: Ints) -> tuple[Ints, Ints]:
    """The group of each row and the first row of each group, of rows whose keys ascend in this order."""
    of, first = np.empty(key.size, np.int64), np.empty(key.size, np.int64)
    size = 0
    for i in range(order.size):
        row = order[i]
        if i == 0 or key[row] != key[order[i - 1]]:
            first[size] = row
            size += 1
        of[row] = size - 1
    return of, first[:size].copy()


@njit(cache=True, nogil=True)
def _by_hash(key: Ints) -> tuple[Ints, Ints, Ints]:
    """The number of each row's key, the distinct keys, and the first row of each."""
    bits = 10
    table = np.full(1 << bits, -1, np.int64)
    distinct = np.empty(1 << bits, np.int64)
    first = np.empty(1 << bits, np.int64)
    of = np.empty(key.size, np.int64)
    size = 0
    for i in range(key.size):
        if i and key[i] == key[i - 1]:  # rows are sorted by tenant and time: neighbours are often equal
            of[i] = of[i - 1]
            continue
        mask = table.size - 1
        at = _slot(key[i], bits)
        while table[at] >= 0 and distinct[table[at]] != key[i]:
            at = (at + 1) & mask
        if table[at] < 0:
            table[at] = size
            distinct[size] = key[i]
            first[size] = i
            size += 1
            of[i] = size - 1
            if 2 * size > table.size:
                bits += 1
                table = np.full(1 << bits, -1, np.int64)
                wider, wider_first = np.empty(1 << bits, np.int64), np.empty(1 << bits, np.int64)
                wider[:size], wider_first[:size] = distinct[:size], first[:size]
                distinct, first = wider, wider_first
                for k in range(size):
                    at = _slot(distinct[k], bits)
                    while table[at] >= 0:
                        at = (at + 1) & (table.size - 1)
                    table[at] = k
        else:
            of[i] = table[at]
    return of, distinct[:size].copy(), first[:size].copy()


@njit(cache=True, nogil=True)
def _slot(key: int, bits: int) -> np.int64:
    """Fibonacci hashing: the high bits of a product."""
    return np.int64((np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - bits))


@njit(cache=True, nogil=True)
def _sums(of: Ints, numbers: Ints, size: int) -> Ints:
    out = np.zeros(size, np.int64)
    for i in range(of.size):
        out[of[i]] += numbers[i]
    return out
