"""Columns as integers to group and sort by: codes that distinguish values, ranks that keep their order.

Exact for every type of a field. Minus zero and zero are one value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemill.formats.arrays import Ints, Mask
from tidemill.formats.arrow import one, unscaled

# Imports inside functions keep start-up short: results are read without Numba.

_TABLE: Final = 1 << 22  # up to this size an array of all codes is cheaper than hashing
_CODES_PER_ROW: Final = 4  # counting so many is cheaper than comparing rows
_BUT_SIGN: Final = np.int64(2**63 - 1)


def integers(column: pa.ChunkedArray | pa.Array) -> Ints:
    """A column of int64 without nulls."""
    return np.asarray(one(column).to_numpy(zero_copy_only=False), np.int64)


def validity(array: pa.Array) -> Mask | None:
    """Which rows have a value; None: all."""
    return np.asarray(array.is_valid()) if array.null_count else None


def decimals(low: NDArray[np.uint64], high: Ints, kind: pa.DataType, valid: Mask | None = None) -> pa.Array:
    """128-bit integers as decimals of the type's scale, by their two little-endian words."""
    words = np.empty((low.size, 2), np.uint64)
    words[:, 0] = low
    words[:, 1] = high.view(np.uint64)
    bitmap = None
    if valid is not None and not valid.all():
        words[~valid] = 0
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, low.size, [bitmap, pa.py_buffer(words)])


def doubles(array: pa.Array) -> NDArray[np.float64]:
    """Floats, zero at nulls."""
    filled = array.fill_null(0.0) if array.null_count else array
    values: NDArray[np.float64] = filled.to_numpy(zero_copy_only=False) + 0.0  # minus zero plus zero is zero
    return values


@dataclass(frozen=True, slots=True)
class Ranked:
    """Values of a column as integers in the same order; 0 at nulls."""

    values: Ints
    valid: Mask | None
    restore: Callable[[Ints, Mask | None], pa.Array]  # turns such integers into values of the column's type


def plain(array: pa.Array) -> pa.Array:
    """A column as results have it: strings without a dictionary, zero without a sign."""
    if pa.types.is_dictionary(array.type):
        return array.dictionary_decode()
    return pc.add(array, 0.0) if pa.types.is_floating(array.type) else array


def ranked(column: pa.ChunkedArray | pa.Array) -> Ranked:
    """The ranks of a column: strings in order of their UTF-8 bytes, false before true."""
    array = one(column)
    valid = validity(array)
    kind = array.type
    if pa.types.is_dictionary(kind) or pa.types.is_string(kind):
        return _ranked_text(array, valid)
    if pa.types.is_floating(kind):
        return Ranked(_turned(doubles(array).view(np.int64)), valid, _restore_float)
    if pa.types.is_decimal(kind):
        values = unscaled(array)
        if valid is not None:
            values[~valid] = 0

        def restore_decimal(numbers: Ints, there: Mask | None) -> pa.Array:
            return decimals(numbers.view(np.uint64), numbers >> 63, kind, there)

        return Ranked(values, valid, restore_decimal)
    whole = array.cast(pa.int64())
    if valid is not None:
        whole = whole.fill_null(0)

    def restore(numbers: Ints, there: Mask | None) -> pa.Array:
        return pa.array(numbers, mask=_absent(there)).cast(kind)

    return Ranked(integers(whole), valid, restore)


def _restore_float(numbers: Ints, there: Mask | None) -> pa.Array:
    return pa.array(_turned(numbers).view(np.float64), mask=_absent(there))


def _turned(bits: Ints) -> Ints:
    """Bits of doubles as integers in the same order, and back: for negatives the bits are inverted."""
    turned: Ints = bits ^ ((bits >> 63) & _BUT_SIGN)
    return turned


def _ranked_text(array: pa.Array, valid: Mask | None) -> Ranked:
    words = coded(array)
    texts = words.dictionary
    order = pc.sort_indices(texts)  # Arrow compares the bytes
    rank = np.empty(len(texts), np.int64)
    rank[integers(order.cast(pa.int64()))] = np.arange(len(texts))
    indices = words.indices.fill_null(0) if words.indices.null_count else words.indices
    positions = np.asarray(indices.to_numpy(zero_copy_only=False))
    values = rank[positions] if len(texts) else np.zeros(len(array), np.int64)
    if valid is not None:
        values[~valid] = 0
    in_order = texts.take(order)

    def restore(numbers: Ints, there: Mask | None) -> pa.Array:
        return in_order.take(pa.array(numbers, mask=_absent(there)))

    return Ranked(values, valid, restore)


def _absent(there: Mask | None) -> Mask | None:
    return None if there is None or there.all() else ~there


def coded(array: pa.Array) -> pa.DictionaryArray:
    """Dictionary-encoded, each value once and null only as null."""
    if not pa.types.is_dictionary(array.type):
        return array.dictionary_encode()
    texts = array.dictionary
    if texts.null_count or len(texts.unique()) != len(texts):
        return array.dictionary_decode().dictionary_encode()
    return array


@dataclass(frozen=True, slots=True)
class Codes:
    """For each row a number below `size`, equal if the values are; in no particular order."""

    values: Ints
    size: int


def codes(column: pa.ChunkedArray | pa.Array) -> Codes:
    """The codes of a column; null is a value of its own."""
    array = one(column)
    kind = array.type
    if pa.types.is_floating(kind):
        array = pa.array(doubles(array), mask=_absent(validity(array)))
    elif pa.types.is_decimal(kind):
        array = pa.array(unscaled(array), mask=_absent(validity(array)))
    words = coded(array)
    size = len(words.dictionary)
    indices = words.indices
    if indices.null_count:
        return Codes(integers(indices.fill_null(size)), size + 1)
    return Codes(integers(indices), size)


def combined(parts: Sequence[Codes], rows: int) -> Codes:
    """One code for each combination."""
    whole = Codes(np.zeros(rows, np.int64), 1)
    for part in parts:
        if part.size > 1:
            whole = part if whole.size == 1 else _both(whole, part)
    return whole


def _both(left: Codes, right: Codes) -> Codes:
    size = left.size * right.size
    assert size < 1 << 63, (left.size, right.size)  # each is less than the number of rows
    values = left.values * right.size + right.values
    if size <= _TABLE:
        return Codes(values, size)
    found = pa.array(values).dictionary_encode()
    return Codes(integers(found.indices), len(found.dictionary))


def stable_order(values: Ints, size: int) -> Ints:
    """Rows sorted by codes below `size`; stable."""
    if size <= 1:
        return np.arange(values.size)
    if size > _CODES_PER_ROW * values.size:
        return np.argsort(values, kind="stable")
    from tidemill.outputs.windows.numba_loops import counting_order

    return counting_order(values, size)


def spans(starts: Ints, lengths: Ints) -> Ints:
    """`starts[0], starts[0] + 1, …` for each of the lengths, one after another."""
    total = int(lengths.sum())
    begins = np.cumsum(lengths) - lengths
    found: Ints = np.repeat(starts - begins, lengths)
    found += np.arange(total)
    return found
