"""Histograms: a counter of one value (the summary, `bin` null), and a row for each bin that holds samples.

A row of a bin has only `count`, at least 1: how many samples the bin holds. Merging merges the summaries as
counters and adds the counts of each bin: associative, commutative, no cells its identity. The bin of a sample
never depends on other samples, so 1m from 5s is 1m from events.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.metrics import MOST, Bins
from tidemill.records.arrays import Ints, Offsets, Words
from tidemill.records.arrow import one
from tidemill.rollups.accumulators import counter
from tidemill.rollups.accumulators.folded import Folded
from tidemill.rollups.grouping import Codes, Groups, coded, grouped
from tidemill.rollups.spec import Metric


def fields(metric: Metric) -> list[pa.Field]:
    return [pa.field("bin", pa.int32()), *counter.fields(metric)]


def accumulate(metric: Metric, groups: Groups, events: pa.Table) -> Folded:
    assert metric.bins is not None
    samples = groups.chosen(events.column(f"m{metric.measures[0].at}"))
    of = groups.of
    if samples.null_count:
        valid = np.asarray(pc.is_valid(samples))
        samples, of = samples.drop_null(), of[valid]
    bins = bins_of(metric.bins, samples.to_numpy()).astype(np.int64)
    least = int(bins.min(initial=0))
    span = int(bins.max(initial=0)) - least + 1
    keys, counts = np.unique(of * span + (bins - least), return_counts=True)
    summary = counter.accumulate(metric, groups, events).columns
    return _interleaved(summary, groups.size, keys // span, keys % span + least, counts)


def merge(metric: Metric, groups: Groups, cells: pa.Table) -> Folded:
    bin = one(cells.column("bin"))
    is_bin = np.asarray(pc.is_valid(bin))
    of_summaries = Groups(groups.of[~is_bin], groups.first)
    summary = counter.merge(metric, of_summaries, cells.filter(pa.array(~is_bin))).columns
    of, bins = groups.of[is_bin], bin.drop_null().to_numpy().astype(np.int64)
    counts = one(cells.column("count")).to_numpy()[is_bin]
    group, first = grouped([Codes(of, max(1, groups.size)), coded(pa.array(bins))])
    counts = Groups(group, first).sums(counts)
    return _interleaved(summary, groups.size, of[first], bins[first], counts)


def _interleaved(summary: Mapping[str, pa.Array], size: int, of: Ints, bins: Ints, counts: Ints) -> Folded:
    """Each summary, then its bins; `of` (ascending) is the group of each bin."""
    place_of_bin = np.arange(of.size) + of + 1
    place_of_summary = np.arange(size) + np.searchsorted(of, np.arange(size))
    group = np.empty(size + of.size, np.int64)
    group[place_of_bin], group[place_of_summary] = of, np.arange(size)
    is_bin = np.zeros(group.size, np.bool_)
    is_bin[place_of_bin] = True
    bin, count = np.zeros(group.size, np.int32), np.empty(group.size, np.int64)
    bin[place_of_bin], count[place_of_bin] = bins, counts
    count[place_of_summary] = summary["count"].to_numpy()
    at = pa.array(group, mask=is_bin)
    columns = {name: column.take(at) for name, column in summary.items()}
    return Folded({"bin": pa.array(bin, mask=~is_bin), **columns, "count": pa.array(count)}, group)


def bins_of(bins: Bins, samples: Ints) -> Offsets:
    """The bin of each sample, as `Bins.of` has it."""
    if bins.bounds is not None:
        bounds, before = _bounds(bins.bounds)
        return (np.searchsorted(bounds, samples) + before).astype(np.int32)
    assert bins.edges is not None
    # the magnitude of -2^63 has no place in 64 bits with a sign, but it has without
    found = np.searchsorted(_edges(bins.edges), np.abs(samples).view(np.uint64)).astype(np.int32)
    return np.where(samples < 0, -found, found)


@lru_cache(maxsize=64)
def _edges(edges: tuple[int, ...]) -> Words:
    return np.array(edges, np.uint64)


@lru_cache(maxsize=64)
def _bounds(bounds: tuple[int, ...]) -> tuple[Ints, int]:
    """Those that a sample can be at or below, and how many lie before them."""
    within = [min(bound, MOST - 1) for bound in bounds if bound >= -MOST]
    return np.array(within, np.int64), len(bounds) - len(within)
