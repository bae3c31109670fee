"""The kernel that applies deltas to many vectors at once.

Bit for bit the same as applying them one after the other: no step is reordered, fused or left out. Which
deltas there are, and which were merged, is decided elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidemill.formats.arrays import Bytes, Ints, Mask, Offsets
from tidemill.formats.delta_arrays import ADD, DELETE, OFFSET, REPLACE, SCALE, SET, Deltas, Floats
from tidemill.formats.kernels import Kernel


@dataclass(frozen=True, slots=True)
class FoldedVectors:
    """Vectors after their deltas, in the order of names: row v of `matrix` is meaningful if `exists`."""

    matrix: Floats
    exists: Mask
    last: Ints  # the row of the last delta applied; -1: none
    left_out: Mask  # rows that were not applied, since a component would no longer be finite


def fold(
    base: Floats | None,
    base_exists: Mask | None,
    deltas: Deltas,
    dimension: int,
    until: int | None = None,
    *,
    finite: bool = False,
) -> FoldedVectors:
    """The vectors after their deltas, without those later than `until`; with `finite` also without those
    after which a component would not be finite.

    `base` has a row for each name of `deltas`, the vectors before (None: none existed); it is not changed.
    Rows of `deltas` are in order for each vector (see `order_of`).
    """
    count = len(deltas.names)
    if base is None or base_exists is None:
        matrix, exists = np.zeros((count, dimension), np.float64), np.zeros(count, np.bool_)
    else:
        assert base.shape == (count, dimension), "one row for each name"
        matrix, exists = np.array(base, np.float64, order="C"), base_exists.copy()
    last = np.full(count, -1, np.int64)
    left_out = np.zeros(len(deltas), np.bool_)
    limit = until if until is not None else np.iinfo(np.int64).max
    _fold.for_steps(len(deltas) * dimension)(
        matrix, exists, last, left_out, limit, finite, deltas.vectors, deltas.ts, deltas.ops,
        deltas.dense, deltas.index_at, deltas.indices, deltas.value_at, deltas.values,
    )  # fmt: skip
    return FoldedVectors(matrix, exists, last, left_out)


@Kernel
def _fold(
    matrix: Floats,
    exists: Mask,
    last: Ints,
    left_out: Mask,
    until: int,
    finite: bool,
    vectors: Ints,
    ts: Ints,
    ops: Bytes,
    dense: Mask,
    index_at: Ints,
    indices: Offsets,
    value_at: Ints,
    values: Floats,
) -> None:
    for row in range(vectors.size):
        if ts[row] > until:
            continue
        v = vectors[row]
        op = ops[row]
        vector = matrix[v]
        if not exists[v]:
            vector[:] = 0.0
        if finite and op in (ADD, OFFSET, SCALE):
            span = index_at[row], index_at[row + 1], value_at[row], value_at[row + 1]
            if _overflows(vector, op, dense[row], indices, values, span):
                left_out[row] = True
                continue
        last[v] = row
        exists[v] = op != DELETE
        if op == DELETE:
            continue
        if dense[row]:
            _apply_dense(vector, op, values, value_at[row], value_at[row + 1])
        else:
            _apply_sparse(vector, op, indices, index_at[row], index_at[row + 1], values, value_at[row])


@Kernel
def _apply_dense(vector: Floats, op: int, values: Floats, low: int, high: int) -> None:
    """Apply an operation to all elements; its operand is values[low:high], one for all or one for each."""
    if op in (REPLACE, SET):
        for i in range(vector.size):
            vector[i] = values[low + i]
    elif op == ADD:
        for i in range(vector.size):
            vector[i] = vector[i] + values[low + i]
    elif op == OFFSET:
        x = values[low]
        for i in range(vector.size):
            vector[i] = vector[i] + x
    elif high - low == 1:
        x = values[low]
        for i in range(vector.size):
            vector[i] = vector[i] * x
    else:
        for i in range(vector.size):
            vector[i] = vector[i] * values[low + i]


@Kernel
def _apply_sparse(
    vector: Floats, op: int, indices: Offsets, first: int, end: int, values: Floats, low: int
) -> None:
    """Apply an operation to the elements that indices[first:end] names; operands begin at values[low]."""
    count = end - first
    if op == SET:
        for k in range(count):
            vector[indices[first + k]] = values[low + k]
    elif op == ADD:
        for k in range(count):
            i = indices[first + k]
            vector[i] = vector[i] + values[low + k]
    elif op == OFFSET:
        x = values[low]
        for k in range(count):
            i = indices[first + k]
            vector[i] = vector[i] + x
    else:
        for k in range(count):
            i = indices[first + k]
            vector[i] = vector[i] * values[low + k]


@Kernel
def _overflows(
    vector: Floats, op: int, dense: bool, indices: Offsets, values: Floats, span: tuple[int, int, int, int]
) -> bool:
    """Whether adding or scaling would make a component infinite or NaN."""
    first, index_end, low, value_end = span
    single = value_end - low == 1  # one value for all components, or one component
    for k in range(vector.size if dense else index_end - first):
        old = vector[k] if dense else vector[indices[first + k]]
        x = values[low] if single else values[low + k]
        if not np.isfinite(old * x if op == SCALE else old + x):
            return True
    return False


__all__ = ["FoldedVectors", "fold"]
