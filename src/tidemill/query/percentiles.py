"""Percentiles of the cells of an answer from their merged bins: the rule of `model.metrics.percentile`, for
all cells at once and in integers. Never rounds but once, half to even, to `DIGITS` beyond the samples'.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Final

from tidemill.model.metrics import Bins
from tidemill.query.groups import flat, group_numbers
from tidemill.query.ratio import DIGITS, ratio
from tidemill.query.values import Column

if TYPE_CHECKING:
    import pyarrow as pa

_SCALE: Final = 10**DIGITS


def percentiles(
    hits: pa.Table,
    bins: pa.Table,
    least: pa.ChunkedArray,
    most: pa.ChunkedArray,
    column: Column,
    keys: list[str],
) -> pa.Array:
    """For each of `hits` the percentile in millionths of what the samples are counted in, as
    decimal128(38, 0); null where there is no sample. `bins` has the same keys, `bin` and `n`."""
    import numpy as np
    import pyarrow as pa

    assert column.quantile is not None
    assert column.bins is not None
    assert column.measure is not None
    numbers = group_numbers([hits, bins], keys)
    of_hits, of_bins = numbers[: hits.num_rows], numbers[hits.num_rows :]
    which, held = flat(bins.column("bin")).to_numpy(), flat(bins.column("n")).to_numpy()
    order = np.lexsort((which, of_bins))
    which, held, of_bins = which[order], held[order], of_bins[order]
    below = np.concatenate([[0], np.cumsum(held)])  # samples before each bin, over all cells
    starts, ends = np.searchsorted(of_bins, of_hits, "left"), np.searchsorted(of_bins, of_hits, "right")
    share, scale = column.quantile, column.measure.scale
    found: list[int | None] = []
    for start, end, low, high in zip(
        starts.tolist(), ends.tolist(), _samples(least, scale), _samples(most, scale), strict=True
    ):
        if start == end or low is None or high is None:
            found.append(None)
            continue
        total = int(below[end] - below[start])
        rank = max(1, -(-share.numerator * total // share.denominator))
        at = int(np.searchsorted(below[start : end + 1], int(below[start]) + rank, "left")) + start - 1
        inner = rank - int(below[at] - below[start])
        found.append(estimated(column.bins, int(which[at]), inner, int(held[at]), low, high))
    return pa.array([None if each is None else Decimal(each) for each in found], type=pa.decimal128(38, 0))


def estimated(bins: Bins, bin: int, rank: int, count: int, least: int, most: int) -> int:
    """`bins.estimate` in millionths, half to even."""
    start, end = bins.span(bin)
    low, high = max(least, start), min(most, end)
    if low >= high:
        return min(max(low, least), most) * _SCALE
    if bins.edges is not None:  # rounding keeps the order, so it can come before the limits
        middle = (
            ratio(2 * start * end, start + end) if start > 0 else -(ratio(2 * start * end, -start - end) or 0)
        )
        assert middle is not None
        return min(max(middle, least * _SCALE), most * _SCALE)
    part = ratio((high - low) * rank, count)
    assert part is not None
    return low * _SCALE + part


def _samples(column: pa.ChunkedArray, scale: int) -> list[int | None]:
    """Values as the integers that they are counted as."""
    import pyarrow.types as types

    values: list[int | None] = flat(column).to_pylist()
    if not types.is_decimal(column.type):
        return values
    return [None if value is None else int(Decimal(value).scaleb(scale)) for value in values]
