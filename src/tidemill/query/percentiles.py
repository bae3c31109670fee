"""Percentiles of the cells of an answer from their merged bins: the rule of `model.metrics.percentile`, for
all cells at once and in integers. Never rounds but once, half to even, to `DIGITS` beyond the samples'.
"""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from tidemill.model.metrics import Bins
from tidemill.query.groups import flat, group_numbers
from tidemill.query.ratio import DIGITS, ratio
from tidemill.query.values import Column

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

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
    scale = column.measure.scale
    ranks = _ranks(below[ends] - below[starts], column.quantile)
    at = np.searchsorted(below, below[starts] + ranks, "left") - 1  # every bin holds a sample: below ascends
    at = np.minimum(at, max(len(which) - 1, 0))  # cells without one: not looked at
    inner = ranks - (below[at] - below[starts])
    empty = starts == ends
    found = (
        None
        if none or low is None or high is None
        else Decimal(estimated(column.bins, int(which[bin]), rank, int(held[bin]), low, high))
        for none, bin, rank, low, high in zip(
            empty.tolist(),
            at.tolist(),
            inner.tolist(),
            _samples(least, scale),
            _samples(most, scale),
            strict=True,
        )
    )
    return pa.array(list(found), type=pa.decimal128(38, 0))


def _ranks(totals: NDArray[np.int64], share: Fraction) -> NDArray[np.int64]:
    """Of how many samples the percentile is the greatest, at least one."""
    import numpy as np

    if share.numerator * int(totals.max(initial=0)) < 2**62:
        return np.maximum(1, -(-totals * share.numerator // share.denominator))
    exact = (max(1, -(-total * share.numerator // share.denominator)) for total in totals.tolist())
    return np.array(list(exact), dtype=np.int64)


def estimated(bins: Bins, bin: int, rank: int, count: int, least: int, most: int) -> int:
    """`bins.estimate` in millionths, half to even."""
    start, end = bins.span(bin)
    low, high = max(least, start), min(most, end)
    if low >= high:
        return min(max(low, least), most) * _SCALE
    if bins.edges is not None:  # rounding keeps the order, so it can come before the limits
        return min(max(_middle(start, end), least * _SCALE), most * _SCALE)
    part = ratio((high - low) * rank, count)
    assert part is not None
    return low * _SCALE + part


@lru_cache(maxsize=4096)
def _middle(start: int, end: int) -> int:
    """What a log-scale bin estimates, in millionths: as far from its least as from its greatest sample."""
    middle = ratio(2 * start * end, abs(start + end))
    assert middle is not None
    return middle if start > 0 else -middle


def _samples(column: pa.ChunkedArray, scale: int) -> list[int | None]:
    """Values as the integers that they are counted as."""
    import pyarrow.types as types

    values: list[int | None] = flat(column).to_pylist()
    if not types.is_decimal(column.type):
        return values
    return [None if value is None else int(Decimal(value).scaleb(scale)) for value in values]
