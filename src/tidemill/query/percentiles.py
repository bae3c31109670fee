"""Percentiles of the cells of an answer from their bins: the rule of `model.metrics.percentile`, for all
cells at once and in integers. Rounded once, half to even, to `DIGITS` more decimals than the samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from tidemill.model.metrics import Bins
from tidemill.query.dimensions import BIN_COUNTS, BINS
from tidemill.query.groups import flat, group_numbers
from tidemill.query.ratio import DIGITS, decimals, ratio

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

_SCALE: Final = 10**DIGITS
_SMALL: Final = 10**12  # smaller samples are estimated together: their millionths fit 64 bits
_AT_ONCE: Final = 4_000_000  # counters that are summed at once: cells times bins


@dataclass(frozen=True, slots=True)
class BinPosition:
    """For each cell, where the sample of a rank is: its bin, its rank there, and how many the bin holds."""

    bin: NDArray[np.int64]
    rank: NDArray[np.int64]
    held: NDArray[np.int64]  # 0: the cell has no sample


def positions(
    hits: pa.Table, bins: pa.Table, keys: list[str], quantiles: Iterable[Fraction]
) -> dict[Fraction, BinPosition]:
    """The positions for each of `hits` and each quantile. `bins` has the same keys; its rows are merged by
    them."""
    import numpy as np

    numbers = group_numbers([hits, bins], keys)
    of_hits, of_rows = numbers[: hits.num_rows], numbers[hits.num_rows :]
    order = np.argsort(of_rows, kind="stable")
    which, held = (flat(bins.column(name)).take(order) for name in (BINS, BIN_COUNTS))
    cells = np.repeat(of_rows[order], which.value_lengths().fill_null(0).to_numpy(zero_copy_only=False))
    bin_of, count_of = (each.flatten().to_numpy(zero_copy_only=False) for each in (which, held))
    first = int(bin_of.min(initial=0))
    width = int(bin_of.max(initial=0)) - first + 1
    total = int(numbers.max(initial=-1)) + 1
    made = {q: BinPosition(*(np.zeros(total, np.int64) for _ in range(3))) for q in quantiles}
    step = max(1, _AT_ONCE // width)
    for start in range(0, total, step):
        size = min(step, total - start)
        low, high = np.searchsorted(cells, [start, start + size])
        sums = np.zeros(size * width, np.int64)
        at = (cells[low:high] - start) * width + (bin_of[low:high] - first)
        np.add.at(sums, at, count_of[low:high])
        _locate(sums.reshape(size, width), first, slice(start, start + size), made)
    return {q: BinPosition(p.bin[of_hits], p.rank[of_hits], p.held[of_hits]) for q, p in made.items()}


def _locate(sums: NDArray[np.int64], first: int, cells: slice, made: dict[Fraction, BinPosition]) -> None:
    """Fill in `made` for these cells; `sums` has a row for each and a column for each bin from `first` on."""
    import numpy as np

    upto = np.cumsum(sums, axis=1)
    rows = np.arange(len(sums))
    for quantile, position in made.items():
        ranks = _ranks(upto[:, -1], quantile)
        at = (upto >= ranks[:, None]).argmax(axis=1)
        held = sums[rows, at]
        position.bin[cells], position.held[cells] = at + first, held
        position.rank[cells] = ranks - (upto[rows, at] - held)


def _ranks(totals: NDArray[np.int64], share: Fraction) -> NDArray[np.int64]:
    """The rank of the percentile among so many samples, at least 1."""
    import numpy as np

    if share.numerator * int(totals.max(initial=0)) < 2**62:
        return np.maximum(1, -(-totals * share.numerator // share.denominator))
    exact = (max(1, -(-total * share.numerator // share.denominator)) for total in totals.tolist())
    return np.array(list(exact), dtype=np.int64)


def estimates(
    bins: Bins, position: BinPosition, least: pa.ChunkedArray, most: pa.ChunkedArray, scale: int
) -> pa.Array:
    """The estimates in millionths of the unit of samples, as decimal128(38, 0); null if there are no
    samples."""
    import numpy as np
    import pyarrow as pa

    lows, highs = _samples(least, scale), _samples(most, scale)
    empty = (position.held == 0) | np.array([low is None for low in lows], dtype=bool)
    small = all(low is None or low > -_SMALL for low in lows) and all(
        high is None or high < _SMALL for high in highs
    )
    if bins.edges is not None and small:
        floor = np.array([low or 0 for low in lows], dtype=np.int64)
        ceiling = np.array([high or 0 for high in highs], dtype=np.int64)
        return decimals(_log_scaled(bins, position.bin, floor, ceiling, empty), empty)
    ranked = zip(
        position.bin.tolist(), position.rank.tolist(), position.held.tolist(), lows, highs, strict=True
    )
    found = [
        None if not held or low is None or high is None else estimated(bins, bin, rank, held, low, high)
        for bin, rank, held, low, high in ranked
    ]
    return pa.array([None if each is None else Decimal(each) for each in found], type=pa.decimal128(38, 0))


def _log_scaled(
    bins: Bins,
    bin_of: NDArray[np.int64],
    least: NDArray[np.int64],
    most: NDArray[np.int64],
    empty: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """`estimated` of log-scale bins, for samples whose millionths fit."""
    import numpy as np

    known, at = np.unique(np.where(empty, 0, bin_of), return_inverse=True)
    spans = [bins.span(bin) for bin in known.tolist()]
    middles = np.array([_middle(start, end) if start < end else 0 for start, end in spans], dtype=np.int64)[
        at
    ]
    starts, ends = (np.array([span[side] for span in spans], dtype=np.int64)[at] for side in (0, 1))
    low, high = np.maximum(least, starts), np.minimum(most, ends)
    between = np.clip(middles, least * _SCALE, most * _SCALE)
    return np.where(low >= high, np.clip(low, least, most) * _SCALE, between)


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
    """The estimate of a log-scale bin, in millionths: halfway between its least and its greatest sample."""
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
