"""Exact arithmetic over runs of values: sums that cannot overflow, averages and deviations rounded once.

Nothing depends on the order of the values in a run. Runs are never empty; missing values are zeros that the
caller does not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tidemill.formats.arrays import Ints, Mask

Doubles = NDArray[np.float64]
_LOW32: Final = np.uint64(0xFFFFFFFF)
_EXACT: Final = 1 << 53  # integers below it are exact as doubles


@dataclass(frozen=True, slots=True)
class ValueRuns:
    """Where consecutive runs begin in a column."""

    starts: Ints
    total: int  # of the column

    @property
    def lengths(self) -> Ints:
        return np.diff(np.append(self.starts, self.total))

    @property
    def stops(self) -> Ints:
        return np.append(self.starts[1:], self.total) if self.starts.size else self.starts

    def sum(self, values: Ints) -> Ints:
        """The sums of runs, for sums that fit; use `sums` for others."""
        return np.add.reduceat(values, self.starts) if self.total else values

    def least(self, values: Ints) -> Ints:
        return np.minimum.reduceat(values, self.starts) if self.total else values

    def greatest(self, values: Ints) -> Ints:
        return np.maximum.reduceat(values, self.starts) if self.total else values


@dataclass(frozen=True, slots=True)
class Sums:
    """128-bit integers, as two words."""

    low: NDArray[np.uint64]
    high: Ints

    @property
    def small(self) -> Mask:
        """Which of them are exact as doubles."""
        values = self.low.view(np.int64)
        found: Mask = (self.high == values >> 63) & (values < _EXACT) & (values > -_EXACT)
        return found

    def integers(self) -> list[int]:
        return [(h << 64) | low for low, h in zip(self.low.tolist(), self.high.tolist(), strict=True)]


def sums(runs: ValueRuns, values: Ints) -> Sums:
    """The sum of each run."""
    if not runs.total:
        return Sums(values.view(np.uint64), values)
    most = max(int(values.max()), -int(values.min()))
    if most * int(runs.lengths.max()) < 1 << 63:
        low = runs.sum(values)
        return Sums(low.view(np.uint64), low >> 63)
    return _joined(runs.sum((values.view(np.uint64) & _LOW32).view(np.int64)), runs.sum(values >> 32))


def _joined(low: Ints, high: Ints) -> Sums:
    """low + high * 2**32."""
    middle = high + (low >> 32)
    word = (low.view(np.uint64) & _LOW32) | (middle.view(np.uint64) << np.uint64(32))
    return Sums(word, middle >> 32)


def averages(total: Sums, counts: Ints, scale: int) -> Doubles:
    """The double nearest to sum / (count * 10**scale); zero if nothing counts."""
    divisors = np.maximum(counts, 1)
    unit = 10**scale
    most = int(divisors.max(initial=1)) * unit
    if most < _EXACT:  # then the division of doubles is rounded only once
        easy = total.small
        found: Doubles = total.low.view(np.int64) / (divisors * unit)
    else:
        easy = np.zeros(counts.size, np.bool_)
        found = np.zeros(counts.size)
    hard = np.flatnonzero(~easy)
    if hard.size:
        whole = Sums(total.low[hard], total.high[hard]).integers()
        found[hard] = [s / (n * unit) for s, n in zip(whole, divisors[hard].tolist(), strict=True)]
    return found + 0.0


def deviations(runs: ValueRuns, values: Ints, valid: Mask | None, counts: Ints, scale: int) -> Doubles:
    """The double nearest to the standard deviation of a sample; zero below two values.

    Values are taken relative to the least one, so that squares stay small if values are close together.
    """
    if not runs.total:
        return np.empty(0)
    far = values if valid is None else np.where(valid, values, np.iinfo(np.int64).max)
    offset = np.repeat(runs.least(far), runs.lengths)
    distance = values.view(np.uint64) - offset.view(np.uint64)  # wraps around to the true distance
    if valid is not None:
        distance[~valid] = 0
    low, high = distance & _LOW32, distance >> np.uint64(32)
    first = _word_sums(runs, distance)
    squares = _word_sums(runs, low * low)
    if high.any():
        between, above = _word_sums(runs, low * high), _word_sums(runs, high * high)
        squares = [a + (b << 33) + (c << 64) for a, b, c in zip(squares, between, above, strict=True)]
    unit = 10 ** (2 * scale)
    return np.array(
        [
            _root(n * square - total * total, n * (n - 1) * unit) if n > 1 else 0.0
            for n, total, square in zip(counts.tolist(), first, squares, strict=True)
        ],
        np.float64,
    )


def _word_sums(runs: ValueRuns, words: NDArray[np.uint64]) -> list[int]:
    """Sums of unsigned words."""
    high = runs.sum((words >> np.uint64(32)).view(np.int64))
    low = runs.sum((words & _LOW32).view(np.int64))
    return [(h << 32) + x for h, x in zip(high.tolist(), low.tolist(), strict=True)]


def _root(numerator: int, denominator: int) -> float:
    """The double nearest to the square root of a fraction: its integer root, scaled to 60 bits or more, with
    one more bit for whether anything was cut off, rounds like the exact one."""
    if not numerator:
        return 0.0
    shift = max(0, 64 - (numerator.bit_length() - denominator.bit_length()) // 2)
    scaled, rest = divmod(numerator << (2 * shift), denominator)
    root = math.isqrt(scaled)
    cut = bool(rest) or root * root != scaled
    try:
        return (root << 1 | cut) / (2 << shift)
    except OverflowError:  # only for doubles near the greatest one
        return math.inf


def float_sums(runs: ValueRuns, values: Doubles, valid: Mask | None) -> list[float | None]:
    """The exact sum of each run, rounded once; NaN for infinities of both signs."""
    there, cuts = _cut(runs, values, valid)
    flat = there.tolist()
    return [_sum(flat[cut]) if cut.start < cut.stop else None for cut in cuts]


def float_averages(runs: ValueRuns, values: Doubles, valid: Mask | None) -> list[float | None]:
    """The rounded sum divided by the count."""
    _, cuts = _cut(runs, values, valid)
    totals = float_sums(runs, values, valid)
    return [
        None if total is None else total / (cut.stop - cut.start)
        for total, cut in zip(totals, cuts, strict=True)
    ]


def float_deviations(runs: ValueRuns, values: Doubles, valid: Mask | None) -> list[float | None]:
    """The double nearest to the deviation of a sample; None below two values, NaN if one is infinite."""
    there, cuts = _cut(runs, values, valid)
    endless = np.concatenate(([0], np.cumsum(np.isinf(there)))).tolist()
    # A double is an integer of 53 bits times a power of two.
    parts, powers = np.frexp(np.where(np.isinf(there), 0.0, there))
    numbers, shifts = np.ldexp(parts, 53).astype(np.int64).tolist(), powers.tolist()
    found: list[float | None] = []
    for cut in cuts:
        if cut.stop - cut.start < 2:
            found.append(None)
        elif endless[cut.stop] > endless[cut.start]:
            found.append(math.nan)
        else:
            found.append(_deviation(numbers[cut], shifts[cut]))
    return found


def _cut(runs: ValueRuns, values: Doubles, valid: Mask | None) -> tuple[Doubles, list[slice]]:
    """The values that are present, by run."""
    starts, stops = runs.starts, runs.stops
    if valid is not None:
        before = np.concatenate(([0], np.cumsum(valid)))
        starts, stops, values = before[starts], before[stops], values[valid]
    return values, [slice(a, b) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]


def _sum(run: Sequence[float]) -> float:
    try:
        return math.fsum(run) + 0.0
    except ValueError:  # infinity minus infinity
        return math.nan
    except OverflowError:  # an overflow on the way or at the end, depending on the order
        endless = {value for value in run if math.isinf(value)}
        if endless:
            return endless.pop() if len(endless) == 1 else math.nan
        exact = sum(map(Fraction, run), Fraction(0))
        try:
            return float(exact)
        except OverflowError:
            return math.inf if exact > 0 else -math.inf


def _deviation(numbers: Sequence[int], powers: Sequence[int]) -> float:
    least = min(powers)
    scaled = [number << (power - least) for number, power in zip(numbers, powers, strict=True)]
    count, total = len(scaled), sum(scaled)
    above = count * sum([number * number for number in scaled]) - total * total
    below = count * (count - 1)
    shift = 2 * (least - 53)
    return _root(above << shift, below) if shift > 0 else _root(above, below << -shift)
