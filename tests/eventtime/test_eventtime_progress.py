"""The watermark of a stream: the least of its active sources', whoever falls silent and comes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.eventtime import Clock, SourceClock, StreamClock
from tidemill.model.time import SECOND

HOLD = 10 * SECOND


def test_before_the_first_event_there_is_no_watermark() -> None:
    clock = StreamClock(0, HOLD)
    assert clock.at(10**18) == clock
    assert (clock.watermark, clock.emitted) == (None, 0)


def test_the_least_source_holds_the_stream() -> None:
    clock = StreamClock(1 * SECOND).see("a", 20 * SECOND, 0).see("b", 5 * SECOND, 0)
    assert clock.watermark == 19 * SECOND  # never goes back, though b is behind
    clock = clock.see("a", 40 * SECOND, 1)
    assert clock.watermark == 19 * SECOND
    clock = clock.see("b", 30 * SECOND, 2)
    assert (clock.watermark, clock.emitted) == (29 * SECOND, 2)


def test_a_silent_source_leaves_after_the_timeout_and_comes_back_without_sending_time_back() -> None:
    clock = StreamClock(0, HOLD).see("a", 5, 0).see("b", 50, 1).see("b", 60, 9 * SECOND)
    assert clock.watermark == 5
    assert clock.at(HOLD - 1).watermark == 5
    assert clock.at(HOLD).watermark == 60
    back = clock.see("b", 70, HOLD).see("a", 6, HOLD + 1)
    assert back.watermark == 70
    assert back.see("b", 80, HOLD + 2).watermark == 70  # a holds it again
    assert back.see("a", 75, HOLD + 2).watermark == 70  # b holds it
    assert back.see("b", 80, HOLD + 2).see("a", 75, HOLD + 3).watermark == 75


def test_when_all_are_idle_those_heard_of_last_still_hold_it() -> None:
    clock = StreamClock(0, HOLD).see("a", 1, 0).see("b", 10, 5).see("c", 20, 5)
    assert [clock.at(t).watermark for t in (0, HOLD, 100 * HOLD)] == [1, 10, 10]


def test_without_a_timeout_a_source_is_waited_for_for_ever() -> None:
    clock = StreamClock(0).see("a", 1, 0).see("b", 10, 5)
    assert clock.at(10**17).watermark == 1


def test_a_larger_tolerance_never_sends_time_back_and_a_smaller_one_holds_with_the_next_slice() -> None:
    known = {"a": SourceClock(Clock(5, watermark=95, max_seen=100), 0)}
    reopened = StreamClock(50, None, known, watermark=95, emitted=3)
    assert reopened.at(9) == reopened
    assert reopened.see("a", 120, 1).watermark == 95
    assert reopened.see("a", 150, 1).watermark == 100
    assert StreamClock(0, None, known, watermark=95).see("a", 90, 1).watermark == 100


def test_what_the_buffer_let_go_moves_it_and_is_counted() -> None:
    clock = StreamClock(100).see("a", 50, 0)
    assert (clock.watermark, clock.emitted) == (-50, 1)
    clock = clock.forced(40)
    assert (clock.watermark, clock.emitted) == (40, 2)
    assert clock.forced(40) == clock
    assert clock.forced(30) == clock
    assert clock.see("a", 130, 1).watermark == 40
    assert clock.see("a", 150, 1).watermark == 50


slices = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 100), st.integers(0, 20)), min_size=1, max_size=20
)


@given(slices, st.integers(0, 30), st.integers(1, 40), st.lists(st.integers(0, 30), max_size=3))
def test_looking_in_between_changes_nothing_but_the_count(
    fed: list[tuple[str, int, int]], tolerance: int, timeout: int, looks: list[int]
) -> None:
    """The closed form: idleness at an instant is the same whether or not somebody looked before it."""
    plain = looked = StreamClock(tolerance, timeout)
    now, before = 0, None
    for source, newest, pause in fed:
        for look in sorted(looks):
            looked = looked.at(now + min(look, pause))
        now += pause
        assert plain.at(now).watermark == looked.at(now).watermark
        plain, looked = plain.see(source, newest, now), looked.see(source, newest, now)
        assert plain.watermark == looked.watermark
        assert plain.watermark is not None
        assert before is None or plain.watermark >= before
        before = plain.watermark
        # it is never past what every active source has
        active = [s for s in plain.sources.values() if now < s.arrival + timeout]
        assert plain.watermark <= max(s.clock.watermark or 0 for s in plain.sources.values())
        assert active
