"""A wall clock that is put forward or back is noticed, and moves no timer."""

from __future__ import annotations

import logging

import pytest

from tidemill.model.clock import ClockSteps, WatchedClock
from tidemill.model.time import DAY, HOUR, MINUTE, SECOND
from tidemill.testing import FakeClock, SteppableClock

START = 1_700_000_000 * SECOND


def test_a_step_either_way_is_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    wall = FakeClock(START)
    clock = WatchedClock.of(wall)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            wall.advance("10m")
            assert clock() == wall()
        wall.step("-1h")
        assert [clock() for _ in range(3)] == [wall()] * 3
        wall.step(DAY)
        clock()
    assert clock.steps == ClockSteps(forward=1, back=1, last_at=START + 30 * MINUTE - HOUR + DAY, last_by=DAY)
    assert [record.message.partition(";")[0] for record in caplog.records] == [
        "the clock of the machine went back by 1h: arrivals go on from the last one until it has caught up",
        "the clock of the machine went forward by 1d, or the machine slept for so long",
    ]


def test_a_clock_that_is_only_corrected_has_not_stepped() -> None:
    wall = FakeClock(START)
    clock = WatchedClock.of(wall)
    for correction in (MINUTE, -MINUTE, -SECOND, 59 * SECOND):
        clock()
        wall.step(correction)
    clock()
    assert clock.steps == ClockSteps()


def test_the_timer_goes_on_while_the_wall_clock_steps() -> None:
    wall = FakeClock(START)
    clock = WatchedClock.of(wall)
    before = clock.timer()
    wall.step("-1h")
    assert clock.timer() == before
    wall.advance("5s")
    assert clock.timer() == before + 5 * SECOND


def test_a_clock_without_a_timer_is_its_own() -> None:
    ticks = iter(range(100))
    clock = WatchedClock.of(lambda: next(ticks))
    assert (clock(), clock.timer(), clock()) == (0, 1, 2)
    assert WatchedClock.of(clock) is clock


def test_readings_that_are_far_apart_say_nothing_of_a_step() -> None:
    """The process was stopped between looking at the one and at the other."""
    timer = iter([0, 0, 10, 10 + HOUR, HOUR + 20, HOUR + 20])
    wall = iter([START, START + 10 + HOUR, START + HOUR + 20])
    clock = WatchedClock(lambda: next(wall), lambda: next(timer))
    for _ in range(3):
        clock()
    assert clock.steps == ClockSteps()


def test_a_steppable_clock_goes_by_itself() -> None:
    hand = FakeClock(0)
    clock = SteppableClock(START, hand)
    hand.advance("3s")
    assert clock() == START + 3 * SECOND
    assert clock.step("-1h") == START + 3 * SECOND - HOUR
    assert clock.monotonic() == 3 * SECOND
