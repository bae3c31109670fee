"""The rate monitor: how fast events come, when that is told to have changed, and that it stays small."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.ingest.gateway.rates import SAMPLES, RateMonitor
from tidemill.model.time import DAY, HOUR, MILLISECOND, SECOND

START = 1_700_000_000 * SECOND


def fed(monitor: RateMonitor, start: int, until: int, every: int, count: int = 1) -> int:
    """`count` events every so often in [start, until); the last instant."""
    last = start
    for now in range(start, until, every):
        monitor.record(now, count)
        last = now
    return last


def test_nothing_is_no_rate() -> None:
    monitor = RateMonitor()
    assert monitor.rate(START) == 0.0
    assert monitor.rate(START + DAY) == 0.0
    assert not monitor.changed(0.01)


def test_the_rate_is_what_came_over_the_time_since_the_first_of_it() -> None:
    monitor = RateMonitor(span=10 * SECOND)
    for second, count in ((0, 10), (1, 20), (2, 30)):
        monitor.record(START + second * SECOND, count)
    assert monitor.rate(START + 2 * SECOND) == 30.0
    assert monitor.rate(START + 4 * SECOND) == 15.0  # and nothing since


def test_a_single_sample_is_all_that_came_in_a_span() -> None:
    """Over the time between first and last it would be anything."""
    monitor = RateMonitor(span=2 * SECOND)
    monitor.record(START, 100)
    assert monitor.rate(START) == monitor.rate(START + SECOND) == 50.0


def test_requests_within_a_millisecond_are_a_single_sample() -> None:
    monitor = RateMonitor()
    for microsecond in range(1000):
        monitor.record(START + microsecond, 1)
    assert monitor.rate(START + 1000) == 1000.0


@pytest.mark.parametrize("rate", [10, 1000, 10_000, 50_000])
def test_a_steady_rate_is_told_as_it_is(rate: int) -> None:
    monitor = RateMonitor()
    every = SECOND // rate
    last = fed(monitor, START, START + 3 * SECOND, every)
    assert monitor.rate(last) == pytest.approx(rate, rel=0.11 if rate == 10 else 0.01)


def test_what_is_older_than_the_span_does_not_count() -> None:
    monitor = RateMonitor()
    monitor.record(START, 1_000_000)
    monitor.record(START + 2 * SECOND, 5)
    monitor.record(START + 2 * SECOND + 500 * MILLISECOND, 5)
    assert monitor.rate(START + 2 * SECOND + 500 * MILLISECOND) == 20.0


def test_the_rate_falls_to_zero_when_nothing_comes_any_more() -> None:
    monitor = RateMonitor()
    last = fed(monitor, START, START + SECOND, MILLISECOND, 50)
    rates = [monitor.rate(last + step * 100 * MILLISECOND) for step in range(12)]
    assert rates[0] == pytest.approx(50_000, rel=0.01)
    assert all(later < earlier for earlier, later in itertools.pairwise(rates[:11]))
    assert rates[-1] == 0.0
    assert monitor.rate(last + DAY) == 0.0


def test_a_clock_that_goes_back_stands_still() -> None:
    monitor = RateMonitor(span=10 * SECOND)
    monitor.record(START + 5 * SECOND, 1)
    monitor.record(START, 1)
    monitor.record(START + 6 * SECOND, 2)
    assert monitor.rate(START) == monitor.rate(START + 6 * SECOND) == 4.0


def test_memory_stays_the_same_at_100_000_records_a_second() -> None:
    monitor = RateMonitor()
    before = monitor.size
    last = fed(monitor, START, START + 2 * SECOND, 10)
    assert monitor.rate(last) == pytest.approx(100_000, rel=0.01)
    assert monitor.size == before < 8192


@given(
    st.integers(1, 5000),
    st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 50)), max_size=2 * SAMPLES),
)
def test_the_rate_is_that_of_a_plain_model(span: int, steps: list[tuple[int, int]]) -> None:
    """Samples are what came less than `apart` after the first of them; the rest is the seed's formula."""
    monitor = RateMonitor(span)
    apart = span // (SAMPLES - 2) + 1
    samples: list[list[int]] = []
    now = 0
    for step, count in steps:
        now += step
        if samples and now - samples[-1][0] < apart:
            samples[-1][1] += count
        else:
            samples.append([now, count])
        monitor.record(now, count)
        inside = [one for one in samples if one[0] >= now - span]
        total = sum(one[1] for one in inside)
        if len(inside) == 1:
            assert monitor.rate(now) == pytest.approx(total * SECOND / span)
        else:
            over = max(now - inside[0][0], MILLISECOND)
            assert monitor.rate(now) == pytest.approx(total * SECOND / over)


# -- changes


def test_d2_below_ten_samples_no_change_is_told() -> None:
    monitor = RateMonitor()  # takes a rate every 200 ms, the first one 200 ms after the first arrival
    fed(monitor, START, START + SECOND, MILLISECOND)
    fed(monitor, START + SECOND, START + 2 * SECOND, MILLISECOND, 1000)
    monitor.rate(START + 1999 * MILLISECOND)
    assert monitor.means() is None
    assert not monitor.changed(0.5)
    monitor.rate(START + 2 * SECOND)
    assert monitor.means() is not None
    assert monitor.changed(0.5)


def test_d2_the_last_five_rates_are_held_against_the_ten_before() -> None:
    monitor = RateMonitor()
    for tick in range(16):
        monitor.record(START + tick * SECOND // 5, 10 if tick < 10 else 40)
    # One sample of 10 counts as all of a second. Then what came before each tick: n samples in n fifths of a
    # second, at most five of them; from the eleventh tick on, one more of them is a sample of 40 each time.
    before = [10.0, *[50.0] * 9]
    recent = [80.0, 110.0, 140.0, 170.0, 200.0]
    assert monitor.means() == (pytest.approx(sum(recent) / 5), pytest.approx(sum(before) / 10))
    assert monitor.changed(2.0)  # 140 against 46
    assert not monitor.changed(2.1)


@pytest.mark.parametrize(
    ("faster", "reported"), [(1, False), (1.4, False), (1.7, True), (20, True), (0.2, True)]
)
def test_a_change_is_told_beyond_the_threshold(faster: float, reported: bool) -> None:
    monitor = RateMonitor()
    fed(monitor, START, START + 4 * SECOND, MILLISECOND, 100)
    heard = False
    for now in range(START + 4 * SECOND, START + 9 * SECOND, MILLISECOND):
        monitor.record(now, int(100 * faster))
        heard = heard or monitor.changed(0.5)
    assert heard is reported
    assert not monitor.changed(0.5), "it is steady again"


def test_silence_is_a_change_and_then_the_new_state() -> None:
    monitor = RateMonitor()
    last = fed(monitor, START, START + 3 * SECOND, MILLISECOND, 10)
    monitor.rate(last + 1_200 * MILLISECOND)
    assert monitor.changed(0.5)
    monitor.rate(last + 5 * SECOND)
    assert monitor.means() == (0.0, 0.0)
    assert not monitor.changed(0.5)


def test_a_burst_of_requests_in_a_millisecond_is_not_ten_rates() -> None:
    monitor = RateMonitor()
    for microsecond in range(1000):
        monitor.record(START + microsecond, 100)
        monitor.rate(START + microsecond)
    assert monitor.means() is None


def test_below_one_a_second_the_change_is_measured_against_one() -> None:
    monitor = RateMonitor(span=100 * SECOND)
    last = fed(monitor, START, START + 400 * SECOND, 20 * SECOND, 2)  # 0.1 a second
    monitor.record(last + 20 * SECOND, 40)
    monitor.rate(last + 100 * SECOND)
    means = monitor.means()
    assert means is not None
    assert means[0] > 3 * means[1]
    assert not monitor.changed(0.5)


def test_after_a_long_silence_only_rates_that_matter_are_made_up_for() -> None:
    monitor = RateMonitor()
    fed(monitor, START, START + 2 * SECOND, MILLISECOND)
    monitor.record(START + HOUR, 1)  # would be 18 000 rates
    assert monitor.means() == (0.0, 0.0)


def test_a_change_that_was_acted_upon_is_not_told_again() -> None:
    monitor = RateMonitor()
    fed(monitor, START, START + 3 * SECOND, MILLISECOND, 1)
    reported: list[int] = []
    for now in range(START + 3 * SECOND, START + 13 * SECOND, MILLISECOND):
        monitor.record(now, 100)
        if monitor.changed(0.5):
            reported.append(now)
            monitor.settle()
    assert len(reported) == 1
    assert reported[0] <= START + 3 * SECOND + 400 * MILLISECOND


def test_the_next_change_is_told_three_spans_after_one_was_acted_upon_at_the_earliest() -> None:
    monitor = RateMonitor()
    fed(monitor, START, START + 3 * SECOND, MILLISECOND, 1)
    reported: list[int] = []
    now = START + 3 * SECOND
    for count in (100, 1) * 20:  # up and down every 900 ms
        for _ in range(900):
            now += MILLISECOND
            monitor.record(now, count)
            if monitor.changed(0.5):
                reported.append(now)
                monitor.settle()
    assert len(reported) >= 2
    assert all(later - earlier >= 28 * SECOND // 10 for earlier, later in itertools.pairwise(reported))
