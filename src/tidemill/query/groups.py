"""Follows rows of an answer through the cells of their group: running totals, and values carried over gaps.
Works on whole columns, independent of plans and files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

BEFORE: Final = -(2**63)  # a cell before all others


def flat(column: pa.ChunkedArray) -> pa.Array:
    """One array, also of a column without chunks."""
    import pyarrow as pa

    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole


def group_numbers(tables: Sequence[pa.Table], keys: list[str]) -> NDArray[np.int64]:
    """A number for each row of all tables, equal if all keys are equal; null equals null."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = np.zeros(sum(table.num_rows for table in tables), dtype=np.int64)
    for key in keys:
        chunks = [flat(table.column(key)) for table in tables]
        codes = pc.dictionary_encode(pa.concat_arrays(chunks), null_encoding="encode")
        of_key = codes.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        numbers = np.unique(numbers * (len(codes.dictionary) + 1) + of_key, return_inverse=True)[1]
    return numbers.reshape(-1).astype(np.int64)


def running_total(
    groups: NDArray[np.int64], cells: NDArray[np.int64], net: NDArray[np.int64]
) -> NDArray[np.int64]:
    """For each row the sum of `net` over its group up to and including its cell."""
    import numpy as np

    order = np.lexsort((cells, groups))
    sums = np.cumsum(net[order])
    starts = _starts(groups[order])
    totals = np.empty(len(net), dtype=np.int64)
    totals[order] = sums - (sums - net[order])[starts]
    return totals


def carried(
    column: pa.ChunkedArray,
    groups: NDArray[np.int64],
    cells: NDArray[np.int64],
    gap: NDArray[np.bool_],
    lost: NDArray[np.bool_],
) -> pa.ChunkedArray:
    """The column with each gap filled by the last value of its group in an earlier cell, if any, and if no
    cell between is lost."""
    import numpy as np
    import pyarrow as pa

    order = np.lexsort((cells, groups))
    has = ((flat(column.is_valid()).to_numpy(zero_copy_only=False) & ~gap) | lost)[order]
    positions = np.arange(len(order))
    last = np.maximum.accumulate(np.where(has, positions, -1)) if len(order) else positions
    none = last < _starts(groups[order])
    source = np.empty(len(order), dtype=np.int64)
    source[order] = np.where(gap[order] & ~none, order[last], order)
    empty = np.empty(len(order), dtype=bool)
    empty[order] = gap[order] & none
    return pa.chunked_array([flat(column)]).take(pa.array(source, mask=empty))


def _starts(sorted_groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each of the sorted rows, where its group starts."""
    import numpy as np

    first = np.ones(len(sorted_groups), dtype=bool)
    first[1:] = sorted_groups[1:] != sorted_groups[:-1]
    starts: NDArray[np.int64] = np.maximum.accumulate(np.where(first, np.arange(len(first)), 0))
    return starts
