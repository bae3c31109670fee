"""Bins of many samples at once are those of the reference, and percentiles are as accurate as declared."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples

from tidemill.model.levels import LEVELS
from tidemill.model.metrics import Bins, MetricKind, log_scaled, percentile
from tidemill.outputs.rollups.accumulators.histogram import bins_of
from tidemill.outputs.rollups.cells import accumulate, merge
from tidemill.outputs.rollups.spec import Measure, Metric, RollupSpec

LEAST, MOST = -(2**63), 2**63 - 1
INT64 = st.one_of(
    st.integers(LEAST, MOST),
    st.builds(lambda bits, off: max(LEAST, min(MOST, 2**bits + off)), st.integers(0, 63), st.integers(-2, 2)),
    st.builds(lambda bits, off: max(LEAST, off - 2**bits), st.integers(0, 63), st.integers(-2, 2)),
)
ACCURACIES = [Decimal("0.0005"), Decimal("0.01"), Decimal("0.05"), Decimal("0.5")]
seeded = examples(150)


@seeded
@given(samples=st.lists(INT64, max_size=50), accuracy=st.sampled_from(ACCURACIES))
def test_log_scale_bins_of_many_are_those_of_each(samples: list[int], accuracy: Decimal) -> None:
    bins = log_scaled(accuracy)
    found = bins_of(bins, np.array(samples, np.int64))
    assert found.dtype == np.int32
    assert found.tolist() == [bins.of(sample) for sample in samples]


@seeded
@given(
    samples=st.lists(INT64, max_size=50),
    bounds=st.lists(st.one_of(INT64, st.integers(-(2**70), 2**70)), min_size=1, max_size=20, unique=True),
)
def test_declared_bins_of_many_are_those_of_each(samples: list[int], bounds: list[int]) -> None:
    """Also with bounds that no sample can reach."""
    bins = Bins(bounds=tuple(sorted(bounds)))
    samples = samples + [bound for bound in bounds if LEAST <= bound <= MOST]
    assert bins_of(bins, np.array(samples, np.int64)).tolist() == [bins.of(sample) for sample in samples]


@pytest.mark.parametrize("accuracy", ACCURACIES)
def test_every_edge_and_its_neighbours_are_in_the_right_bin(accuracy: Decimal) -> None:
    bins = log_scaled(accuracy)
    assert bins.edges is not None
    around = [sign * (edge + off) for edge in bins.edges for off in (-1, 0, 1) for sign in (1, -1)]
    samples = [sample for sample in around if LEAST <= sample <= MOST]
    assert LEAST in samples
    assert bins_of(bins, np.array(samples, np.int64)).tolist() == [bins.of(sample) for sample in samples]


@pytest.mark.parametrize("accuracy", [Decimal("0.01"), Decimal("0.05")])
def test_percentiles_of_a_million_samples_are_within_the_declared_accuracy(accuracy: Decimal) -> None:
    """Lognormal over many orders of magnitude, with zeros and negatives; merged from 5s up to 7d."""
    random = np.random.default_rng(7)
    size = 1_000_000
    samples = (random.lognormal(9, 3, size)).astype(np.int64)
    samples[:100_000] *= -1
    samples[100_000:150_000] = 0
    metric = Metric(
        "h", MetricKind.HISTOGRAM, (), (Measure("v", "decimal", 3, 0),), bins=log_scaled(accuracy)
    )
    spec = RollupSpec("s", (metric,))
    times = random.integers(0, 7_200_000_000, size)
    parts = []
    for number in range(4):  # as four slices would bring them
        own = slice(number, size, 4)
        tenant = pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(samples[own].size, np.int32)), pa.array(["t"])
        )
        events = pa.table({"tenant": tenant, "event_time": times[own], "m0": samples[own]})
        parts.append(accumulate(spec, events, LEVELS[0].width))
    cells = merge(spec, parts, LEVELS[0].width)
    for level in LEVELS[1:]:
        cells = merge(spec, [cells], level.width)
    (cell,) = cells["h"].to_pylist()
    assert (cell["count"], cell["v0_count"]) == (size, size)
    assert (cell["v0_high"] << 64) + cell["v0_low"] == int(samples.sum())
    counts = dict(zip(cell["bins"], cell["bin_counts"], strict=True))
    assert sum(counts.values()) == size
    assert metric.bins is not None
    quantiles = [Fraction(n, 1000) for n in (1, 10, 50, 99, 100, 101, 140, 250, 500, 750, 900, 950, 990, 999)]
    for quantile in [*quantiles, Fraction(1)]:
        exact = int(np.percentile(samples, float(quantile * 100), method="inverted_cdf"))
        reported = percentile(metric.bins, counts, quantile, cell["v0_min"], cell["v0_max"])
        assert abs(reported - exact) <= Fraction(accuracy) * abs(exact), (quantile, exact, reported)
