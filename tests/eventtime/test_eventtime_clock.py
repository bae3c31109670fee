"""The watermark arithmetic of one source, in seconds for the reader."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.eventtime import Clock
from tidemill.model.time import SECOND


def test_there_is_no_watermark_before_the_first_event() -> None:
    clock = Clock(tolerance=0)
    assert clock.watermark is None
    assert not clock.is_late(-(10**18))


def test_v1_v2_watermark_follows_the_largest_time_by_the_tolerance() -> None:
    clock = Clock(1 * SECOND).advance(3 * SECOND)
    assert clock == Clock(1 * SECOND, watermark=2 * SECOND, max_seen=3 * SECOND)
    assert [clock.is_late(s * SECOND) for s in (1, 2, 3)] == [True, True, False]
    assert clock.advance(4 * SECOND).watermark == 3 * SECOND


def test_v3_at_tolerance_zero_an_equal_time_is_late() -> None:
    clock = Clock(0).advance(2 * SECOND)
    assert clock.watermark == 2 * SECOND
    assert [clock.is_late(s * SECOND) for s in (2, 1)] == [True, True]
    assert not clock.is_late(2 * SECOND + 1)


def test_v4_to_v7_watermarks_of_the_tumbling_example() -> None:
    clock = Clock(7 * SECOND).advance(7 * SECOND)
    assert clock.watermark == 0
    clock = clock.advance(17 * SECOND)
    assert clock.watermark == 10 * SECOND
    assert clock.is_late(2 * SECOND)
    assert clock.advance(2 * SECOND) == clock
    assert clock.advance(27 * SECOND).watermark == 20 * SECOND


def test_clock_reopened_with_a_larger_tolerance_does_not_go_back() -> None:
    reopened = Clock(60 * SECOND, watermark=9 * SECOND, max_seen=10 * SECOND)
    assert reopened.advance(11 * SECOND) == Clock(60 * SECOND, 9 * SECOND, 11 * SECOND)
    assert reopened.advance(70 * SECOND).watermark == 10 * SECOND


def test_times_before_1970_have_watermarks_too() -> None:
    assert Clock(5).advance(-10) == Clock(5, watermark=-15, max_seen=-10)


@given(st.integers(0, 100), st.lists(st.integers(-1000, 1000), min_size=1), st.integers(1, 5))
def test_watermark_is_monotonic_and_does_not_depend_on_how_a_feed_is_cut(
    tolerance: int, times: list[int], size: int
) -> None:
    one_by_one = Clock(tolerance)
    for ts in times:
        after = one_by_one.advance(ts)
        assert one_by_one.watermark is None or (after.watermark or 0) >= one_by_one.watermark
        assert after.max_seen is not None
        assert after.is_late(ts) == (ts <= after.max_seen - tolerance)
        one_by_one = after
    cut = Clock(tolerance)
    for start in range(0, len(times), size):
        cut = cut.advance(max(times[start : start + size]))
    assert cut == one_by_one == Clock(tolerance, max(times) - tolerance, max(times))
