"""What metrics are: their kinds, the transitions of a state metric, and the bins of a histogram.

Pure rules that the pipeline, queries and the oracle share; nothing here reads events.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import Final

NONE_STATE: Final = "(none)"  # the state of an object before it was first seen
OTHER: Final = "__other__"  # the key for everything beyond a metric's `max_cardinality`
CHANGE: Final = "change"  # the transitions that every state metric counts: from the last state to the new one
MOST: Final = 2**63  # no sample is further from 0


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    STATE = "state"
    RATIO = "ratio"


@dataclass(frozen=True, slots=True)
class DeclaredMetric:
    """The part of a metric's declaration that decides the contents of its rows."""

    core: str  # a hash of what decides every one of its numbers
    columns: frozenset[str]  # its other dimensions and measures, with their types

    def lacking(self, earlier: DeclaredMetric | None) -> frozenset[str] | None:
        """The columns that rows of an earlier declaration lack; None: none of their numbers is right."""
        return None if earlier is None or earlier.core != self.core else self.columns - earlier.columns


def dimension_id(column: str, kind: str) -> str:
    return f"{column}:{kind}"


def measure_id(column: str, kind: str, scale: int) -> str:
    return f"{column}:{kind}:{scale}"


@dataclass(frozen=True, slots=True)
class TransitionRule:
    """Which changes of an object's state are counted, and from where.

    A change is an observation whose state differs from the one before (the first one included); it counts
    when its new state is in `to` (None: any). From: the state just left (`from_last`; `(none)` at first
    sight), or else every distinct state in `from_states` (None: any) that the object was seen in before,
    other than the new one, each counted once. After the first observation of a state in `until` the object is
    no longer followed (that observation itself still counts).
    """

    name: str
    from_last: bool = True
    from_states: tuple[str, ...] | None = None
    to: tuple[str, ...] | None = None
    until: tuple[str, ...] = ()

    @property
    def is_local(self) -> bool:
        """Whether two neighbouring observations decide it, whatever came before them."""
        return self.from_last and not self.until


@dataclass(frozen=True, slots=True)
class Bins:
    """Where the samples of a histogram are counted. Samples are integers: the value times 10^scale.

    With `bounds` (ascending, scaled): bin i holds samples in (bounds[i - 1], bounds[i]], the last one those
    above all bounds. With `edges`: log-scale; bin 0 holds 0, bin k samples in (edges[k - 1], edges[k]] and
    bin -k their negatives; edges[0] is 0. Exact integer comparisons either way: the same everywhere.
    """

    bounds: tuple[int, ...] | None = None
    edges: tuple[int, ...] | None = None
    accuracy: Decimal | None = None  # relative, of a log-scale percentile

    def of(self, sample: int) -> int:
        """The bin of one sample."""
        if self.bounds is not None:
            return bisect_left(self.bounds, sample)
        assert self.edges is not None
        found = bisect_left(self.edges, abs(sample))
        return found if sample >= 0 else -found

    def span(self, bin: int) -> tuple[int, int]:
        """The least and greatest sample of a bin; the outermost end where 64 bits do."""
        if self.bounds is not None:
            low = self.bounds[bin - 1] + 1 if bin > 0 else -MOST
            return low, self.bounds[bin] if bin < len(self.bounds) else MOST - 1
        assert self.edges is not None
        if bin == 0:
            return 0, 0
        low, high = self.edges[abs(bin) - 1] + 1, self.edges[abs(bin)]
        return (low, high) if bin > 0 else (-high, -low)

    def estimate(self, bin: int, rank: int, count: int, least: int, most: int) -> Fraction:
        """The sample that is the `rank`th (from 1) of the `count` in a bin, as well as the bin tells.

        Log-scale: the one value whose relative distance to both ends is the same. Declared bounds: as if the
        samples were spread evenly. Never outside the `least` and `most` of all samples.
        """
        low, high = (max(least, self.span(bin)[0]), min(most, self.span(bin)[1]))
        if low >= high:
            return Fraction(min(max(low, least), most))
        if self.edges is not None:
            low, high = self.span(bin)
            middle = Fraction(2 * low * high, low + high)
            return min(max(middle, Fraction(least)), Fraction(most))
        return low + (high - low) * Fraction(rank, count)


def bounded(bounds: Sequence[Decimal], scale: int) -> Bins:
    """Declared bounds, each rounded down to what a sample of this scale can be."""
    scaled = (int((Fraction(bound) * 10**scale).__floor__()) for bound in bounds)
    return Bins(bounds=tuple(dict.fromkeys(scaled)))


@lru_cache(maxsize=64)
def log_scaled(accuracy: Decimal) -> Bins:
    """Bins so narrow that an estimate is within `accuracy` of the sample, relative to it.

    A bin of the integers low … high estimated as 2 low high / (low + high) is off by (high - low) /
    (high + low) at both ends; each is as wide as that allows. Small integers have a bin each: they are exact.
    """
    share = Fraction(accuracy)
    edges = [0]
    while edges[-1] < MOST:
        low = edges[-1] + 1  # the least sample of the next bin
        high = int(low * (1 + share) / (1 - share))
        edges.append(min(max(low, high), MOST))
    return Bins(edges=tuple(edges), accuracy=accuracy)


def percentile(bins: Bins, counts: Mapping[int, int], quantile: Fraction, least: int, most: int) -> Fraction:
    """The least sample that at least this share of the samples is not above (nearest rank), estimated from
    how many samples each bin holds; there must be one. Scaled as the samples are."""
    rank = max(1, -(-quantile.numerator * sum(counts.values()) // quantile.denominator))
    for bin in sorted(counts):
        if rank <= counts[bin]:
            return bins.estimate(bin, rank, counts[bin], least, most)
        rank -= counts[bin]
    raise AssertionError("the quantile is at most 1")
