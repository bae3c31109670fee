"""The values of one measure in a cell: count, sum, minimum and maximum.

Merging adds counts and sums, and takes the lesser minimum and the greater maximum; no values (0, 0, null,
null) are the identity. It is associative and commutative to the bit: sums are 128-bit integers of a declared
scale, in two words (low, high). An event without a value adds none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from tidemill.formats.arrays import Ints, Mask, Words
from tidemill.formats.arrow import one
from tidemill.outputs.rollups.grouping import Groups

_MAX, _MIN = np.iinfo(np.int64).max, np.iinfo(np.int64).min
_ALL = np.empty(0, np.bool_)  # means a mask that is true everywhere

Sums = tuple[Ints, Words, Ints, Ints, Ints]


def fields(i: int) -> list[pa.Field]:
    return [
        pa.field(f"v{i}_count", pa.int64()),
        pa.field(f"v{i}_low", pa.uint64()),
        pa.field(f"v{i}_high", pa.int64()),
        pa.field(f"v{i}_min", pa.int64()),
        pa.field(f"v{i}_max", pa.int64()),
    ]


def accumulate(groups: Groups, values: pa.ChunkedArray, i: int) -> Mapping[str, pa.Array]:
    """The values of events that have one."""
    chosen = groups.chosen(values)
    return _columns(i, _of_events(groups.of, filled(chosen, 0), present(chosen), groups.size))


def merge(groups: Groups, cells: pa.Table, i: int) -> Mapping[str, pa.Array]:
    counts, low, high, least, most = (one(cells.column(field.name)) for field in fields(i))
    sums = _of_cells(
        groups.of,
        counts.to_numpy(),
        low.to_numpy(),
        high.to_numpy(),
        filled(least, _MAX),
        filled(most, _MIN),
        groups.size,
    )
    return _columns(i, sums)


def present(array: pa.Array) -> Mask:
    """A mask of the rows with a value; empty if all have one."""
    return np.asarray(pc.is_valid(array)) if array.null_count else _ALL


def filled(array: pa.Array, value: int) -> Ints:
    return (pc.fill_null(array, value) if array.null_count else array).to_numpy()


def _columns(i: int, sums: Sums) -> Mapping[str, pa.Array]:
    counts, low, high, least, most = sums
    empty = counts == 0
    mask = empty if empty.any() else None
    return {
        f"v{i}_count": pa.array(counts),
        f"v{i}_low": pa.array(low),
        f"v{i}_high": pa.array(high),
        f"v{i}_min": pa.array(least, mask=mask),
        f"v{i}_max": pa.array(most, mask=mask),
    }


@njit(cache=True, nogil=True)
def _of_events(of: Ints, values: Ints, present: Mask, size: int) -> Sums:
    counts, high = np.zeros(size, np.int64), np.zeros(size, np.int64)
    low = np.zeros(size, np.uint64)
    least, most = np.full(size, _MAX, np.int64), np.full(size, _MIN, np.int64)
    everywhere = present.size == 0
    for i in range(of.size):
        if everywhere or present[i]:
            g, value = of[i], values[i]
            word = np.uint64(value)
            counts[g] += 1
            low[g] += word
            high[g] += (value >> 63) + np.int64(low[g] < word)
            least[g] = min(least[g], value)
            most[g] = max(most[g], value)
    return counts, low, high, least, most


@njit(cache=True, nogil=True)
def _of_cells(
    of: Ints, count: Ints, low_word: Words, high_word: Ints, lesser: Ints, greater: Ints, size: int
) -> Sums:
    counts, high = np.zeros(size, np.int64), np.zeros(size, np.int64)
    low = np.zeros(size, np.uint64)
    least, most = np.full(size, _MAX, np.int64), np.full(size, _MIN, np.int64)
    for i in range(of.size):
        g = of[i]
        counts[g] += count[i]
        low[g] += low_word[i]
        high[g] += high_word[i] + np.int64(low[g] < low_word[i])
        least[g] = min(least[g], lesser[i])
        most[g] = max(most[g], greater[i])
    return counts, low, high, least, most


@dataclass(frozen=True, slots=True)
class Folded:
    columns: Mapping[str, pa.Array]
    group: Ints | None = None  # of each cell; None: one cell for each group
