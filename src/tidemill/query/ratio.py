"""Exact quotients as decimals: `num / den` with a fixed number of decimals, rounded half to even. Integers
only, never floats; whole columns at once if 64 bits are enough, else one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

DIGITS: Final = 6  # decimals of avg beyond those of its measure; all decimals of rate
_SCALE: Final = 10**DIGITS
_SAFE_DEN: Final = 2**63 // _SCALE - 1  # a remainder times the scale stays below 64 bits
_SAFE_QUOTIENT: Final = 2**62 // _SCALE


def ratio(num: int, den: int) -> int | None:
    """`num / den` in units of 10^-6, half to even; null if `den` is zero."""
    if den == 0:
        return None
    whole, rest = divmod(abs(num) * _SCALE, den)
    if 2 * rest > den or (2 * rest == den and whole % 2):
        whole += 1
    return whole if num >= 0 else -whole


def ratios(nums: pa.Array, dens: NDArray[np.int64]) -> pa.Array:
    """The same for a column of decimal128(38, 0) without nulls: a decimal128(38, 0) of millionths."""
    import numpy as np

    assert nums.null_count == 0
    assert len(nums) == len(dens)
    words = np.frombuffer(nums.buffers()[1], dtype=np.int64).reshape(-1, 2)
    words = words[nums.offset : nums.offset + len(nums)]
    low = words[:, 0]
    fits = bool((words[:, 1] == low >> 63).all() and (low > -(2**63)).all() and (dens <= _SAFE_DEN).all())
    if fits:
        size, under = np.abs(low), np.maximum(dens, 1)
        whole, rest = np.divmod(size, under)
        if (whole < _SAFE_QUOTIENT).all():
            part, left = np.divmod(rest * _SCALE, under)
            up = (left > under - left) | ((left == under - left) & (part % 2 == 1))
            return decimals((whole * _SCALE + part + up) * np.sign(low), dens == 0)
    return _one_by_one(nums, dens)


def _one_by_one(nums: pa.Array, dens: NDArray[np.int64]) -> pa.Array:
    from decimal import Decimal

    import pyarrow as pa

    found = [ratio(int(num), int(den)) for num, den in zip(nums.to_pylist(), dens.tolist(), strict=True)]
    exact = [None if value is None else Decimal(value) for value in found]
    return pa.array(exact, type=pa.decimal128(38, 0))


def decimals(values: NDArray[np.int64], null: NDArray[np.bool_]) -> pa.Array:
    """64-bit integers as decimal128(38, 0)."""
    import numpy as np
    import pyarrow as pa

    words = np.empty((len(values), 2), dtype=np.int64)
    words[:, 0], words[:, 1] = values, values >> 63
    bits = pa.array(~null).buffers()[1] if null.any() else None
    return pa.Array.from_buffers(pa.decimal128(38, 0), len(values), [bits, pa.py_buffer(words)])
