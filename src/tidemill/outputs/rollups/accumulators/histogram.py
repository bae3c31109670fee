"""Histograms: a counter of one value that also counts the samples in each bin.

A cell has the bins that hold samples (`bins`, ascending) and their counts (`bin_counts`, at least 1). Merging
works as for counters and adds the counts of each bin; it is associative and commutative, and no cells are the
identity. The bin of a sample does not depend on other samples, so 1m cells made from 5s cells equal those
made from events.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from tidemill.formats.arrays import Ints, Offsets, Words
from tidemill.formats.arrow import one
from tidemill.model.metrics import MOST, Bins
from tidemill.outputs.rollups.accumulators import counter
from tidemill.outputs.rollups.accumulators.values import Folded
from tidemill.outputs.rollups.grouping import Groups
from tidemill.outputs.rollups.spec import Metric

_ONE_EACH: Final = np.empty(0, np.int64)  # means counts that are all 1
_SHELF_BITS: Final = 6  # of the mantissa: the values of a shelf differ by less than 1/64


def fields(metric: Metric) -> list[pa.Field]:
    bins = [pa.field("bins", pa.list_(pa.int32())), pa.field("bin_counts", pa.list_(pa.int64()))]
    return [*counter.fields(metric), *bins]


def accumulate(metric: Metric, groups: Groups, events: pa.Table) -> Folded:
    assert metric.bins is not None
    samples = groups.chosen(events.column(f"m{metric.measures[0].at}"))
    of = groups.of
    if samples.null_count:
        of = of[np.asarray(pc.is_valid(samples))]
        samples = samples.drop_null()
    bins = bins_of(metric.bins, samples.to_numpy())
    columns = counter.accumulate(metric, groups, events).columns
    return Folded({**columns, **_lists(of, bins, _ONE_EACH, groups.size)})


def merge(metric: Metric, groups: Groups, cells: pa.Table) -> Folded:
    bins, counts = one(cells.column("bins")), one(cells.column("bin_counts"))
    of = np.repeat(groups.of, bins.value_lengths().to_numpy())
    columns = counter.merge(metric, groups, cells).columns
    lists = _lists(of, bins.flatten().to_numpy(), counts.flatten().to_numpy(), groups.size)
    return Folded({**columns, **lists})


def _lists(of: Ints, bins: Offsets, counts: Ints, size: int) -> dict[str, pa.Array]:
    offsets, bin, count = _tallied(of, bins, counts, size)
    at = pa.array(offsets)
    return {
        "bins": pa.ListArray.from_arrays(at, pa.array(bin)),
        "bin_counts": pa.ListArray.from_arrays(at, pa.array(count)),
    }


@njit(cache=True, nogil=True)
def _tallied(of: Ints, bins: Offsets, counts: Ints, size: int) -> tuple[Offsets, Offsets, Ints]:
    """Where each group begins; its bins ascending, each once; and the sums of their counts."""
    begin = np.zeros(size + 1, np.int64)
    for i in range(of.size):
        begin[of[i] + 1] += 1
    for g in range(size):
        begin[g + 1] += begin[g]
    gathered, weights = np.empty(of.size, np.int32), np.ones(of.size, np.int64)
    at = begin[:-1].copy()
    for i in range(of.size):
        gathered[at[of[i]]] = bins[i]
        if counts.size:
            weights[at[of[i]]] = counts[i]
        at[of[i]] += 1
    offsets = np.zeros(size + 1, np.int32)
    tally = np.zeros(1 << 13, np.int64)
    found = 0  # results overwrite input that was already read
    for g in range(size):
        own, mine_weights = gathered[begin[g] : begin[g + 1]], weights[begin[g] : begin[g + 1]]
        if own.size:
            least, most = np.int64(own.min()), np.int64(own.max())
            if most - least < min(tally.size, 16 * own.size + 64):  # bins close enough to count in an array
                for i in range(own.size):
                    tally[own[i] - least] += mine_weights[i]
                for k in range(most - least + 1):
                    if tally[k]:
                        gathered[found], weights[found] = least + k, tally[k]
                        tally[k] = 0
                        found += 1
            else:
                order = np.argsort(own)
                sorted_bins, sorted_weights = own[order], mine_weights[order]
                for i in range(order.size):
                    if i and sorted_bins[i] == sorted_bins[i - 1]:
                        weights[found - 1] += sorted_weights[i]
                    else:
                        gathered[found], weights[found] = sorted_bins[i], sorted_weights[i]
                        found += 1
        offsets[g + 1] = found
    return offsets, gathered[:found], weights[:found]


def bins_of(bins: Bins, samples: Ints) -> Offsets:
    """The bin of each sample, as defined by `Bins.of`."""
    if bins.bounds is not None:
        bounds, before = _bounds(bins.bounds)
        return (np.searchsorted(bounds, samples) + before).astype(np.int32)
    assert bins.edges is not None
    # As unsigned: the magnitude of -2^63 does not fit a signed integer.
    magnitude = np.abs(samples).view(np.uint64)
    return _log_scaled(samples, magnitude, _shelf(magnitude), *_edges(bins.edges))


@lru_cache(maxsize=64)
def _bounds(bounds: tuple[int, ...]) -> tuple[Ints, int]:
    """The bounds that a sample can be at or below, and how many lie before them."""
    within = [min(bound, MOST - 1) for bound in bounds if bound >= -MOST]
    return np.array(within, np.int64), len(bounds) - len(within)


def _shelf(magnitude: Words) -> Ints:
    """The shelf of a magnitude, by exponent and first bits; monotonic."""
    bits = magnitude.astype(np.float64).view(np.int64) >> (52 - _SHELF_BITS)
    return np.maximum(bits - ((1023 << _SHELF_BITS) - 1), 0)


@lru_cache(maxsize=64)
def _edges(edges: tuple[int, ...]) -> tuple[Words, Ints]:
    """The edges, and for each shelf how many edges lie on earlier shelves."""
    words = np.array(edges, np.uint64)
    shelves = _shelf(words)
    return words, np.searchsorted(shelves, np.arange(int(shelves[-1]) + 2)).astype(np.int64)


@njit(cache=True, nogil=True)
def _log_scaled(samples: Ints, magnitude: Words, shelf: Ints, edges: Words, begin: Ints) -> Offsets:
    """The first edge that is not less; only the edges of the sample's own shelf need to be compared."""
    out = np.empty(samples.size, np.int32)
    for i in range(samples.size):
        low, high = begin[shelf[i]], begin[shelf[i] + 1]
        while low < high:
            middle = (low + high) // 2
            if edges[middle] < magnitude[i]:
                low = middle + 1
            else:
                high = middle
        out[i] = low if samples[i] >= 0 else -low
    return out
