"""A wall clock that is put back or forward: events land as before, each once, and arrivals never go back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.ingest.gateway.test_buffer import entry, let_out, made
from tests.ingest.gateway.test_gateway import House, sent

from tidemill.mill import monotonic_clock
from tidemill.model.time import DAY, HOUR, MILLISECOND, SECOND
from tidemill.testing import SteppableClock

START = 1_700_000_000 * SECOND
KINDS: dict[str, dict[str, object]] = {
    "adaptive": {"kind": "adaptive", "min": "1ms", "max": "20ms"},
    "fixed": {"kind": "fixed", "size": "20ms"},
    "sliding": {"kind": "sliding", "size": "40ms", "step": "20ms"},
    "session": {"kind": "session", "gap": "10ms", "max": "20ms"},
}


def landed(house: House) -> tuple[list[str], list[int]]:
    """Ids of the events in ledger order, and the arrivals of their slices."""
    ids = [json.loads(line)["id"] for line in house.lines("a")]
    return ids, [entry.slice.arrival for entry in house.state.slices("a")]


@pytest.mark.parametrize("step", [-HOUR, DAY])
@pytest.mark.parametrize("kind", KINDS)
def test_events_land_in_their_order_though_the_clock_steps(tmp_path: Path, kind: str, step: int) -> None:
    house = House(tmp_path / "p", window=KINDS[kind])
    clock = SteppableClock(START, monotonic_clock)
    with house.open(clock) as gateway:
        entries = [sent(gateway, "a", "0")]
        clock.step(step)
        for number in range(1, 4):
            before = len(house.outputs)  # the event may land before the next line runs
            entries.append(sent(gateway, "a", str(number)))
            house.wait_for(before + 1)  # its time is over by the timer, not by the wall clock
        seen = gateway.status().clock
    ids, arrivals = landed(house)
    assert ids == ["0", "1", "2", "3"]
    assert arrivals == sorted(arrivals)
    assert [one.arrival for one in entries] == sorted(one.arrival for one in entries)
    assert (seen.back, seen.forward) == ((1, 0) if step < 0 else (0, 1))
    if step > 0:
        assert entries[-1].arrival >= START + DAY


def test_who_waits_is_served_while_the_clock_is_an_hour_back(tmp_path: Path) -> None:
    house = House(tmp_path / "p", window={"kind": "adaptive", "min": "1ms", "max": "20ms"})
    clock = SteppableClock(START, monotonic_clock)
    with house.open(clock) as gateway:
        first = sent(gateway, "a", "0")
        clock.step("-1h")
        gateway.hurry(first.id)
        house.wait_for(1)
        assert gateway.receipt(first.id) is not None
        second = sent(gateway, "a", "1")
        gateway.hurry(second.id)
        house.wait_for(2)
        assert gateway.flush(["a"], 30.0).pending == 0
    assert landed(house)[0] == ["0", "1"]


def test_arrivals_go_on_behind_the_last_one_after_a_restart(tmp_path: Path) -> None:
    house = House(tmp_path / "p", window=KINDS["fixed"])
    clock = SteppableClock(START, monotonic_clock)
    with house.open(clock) as gateway:
        sent(gateway, "a", "0")
    clock.step("-1h")
    for number in range(1, 3):
        with house.open(clock) as gateway:  # a process that has seen no step
            assert gateway.status().clock.last_at is None
            sent(gateway, "a", str(number))
    ids, arrivals = landed(house)
    assert ids == ["0", "1", "2"]
    assert arrivals == [arrivals[0], arrivals[0] + 1, arrivals[0] + 2]


def test_once_the_clock_has_caught_up_it_says_the_arrivals_again(tmp_path: Path) -> None:
    house = House(tmp_path / "p", window=KINDS["fixed"])
    clock = SteppableClock(START, monotonic_clock)
    with house.open(clock) as gateway:
        first = sent(gateway, "a", "0")
        clock.step("-1h")
        second = sent(gateway, "a", "1")
        clock.step("2h")
        third = sent(gateway, "a", "2")
    assert second.arrival == first.arrival + 1
    assert third.arrival >= START + HOUR


# -- a buffer alone, with both clocks set by hand


def test_a_fixed_window_ends_at_a_multiple_that_the_wall_clock_shows() -> None:
    buffer = made({"kind": "fixed", "size": "1s"})
    ahead = START - 5 * SECOND  # the timer shows five seconds
    buffer.add(entry(1, START + 400 * MILLISECOND), 5 * SECOND + 400 * MILLISECOND, ahead)
    assert buffer.next_look(5 * SECOND + 400 * MILLISECOND) == 6 * SECOND
    assert let_out(buffer, 6 * SECOND - 1) == []
    (window,) = let_out(buffer, 6 * SECOND)
    assert (window.output.start, window.output.trigger) == (START + 400 * MILLISECOND, "time")


def test_a_window_lasts_as_long_as_it_should_while_the_wall_clock_is_back() -> None:
    """After a step back, windows go by what the wall clock shows then, not by arrivals, which stand still."""
    buffer = made({"kind": "fixed", "size": "1s"})
    buffer.add(entry(1, START + 900 * MILLISECOND), 900 * MILLISECOND, START)
    back = START - HOUR
    buffer.add(entry(2, START + 900 * MILLISECOND + 1), 950 * MILLISECOND, back)
    buffer.add(entry(3, START + 900 * MILLISECOND + 2), 1000 * MILLISECOND, back)
    buffer.add(entry(4, START + 900 * MILLISECOND + 3), 1990 * MILLISECOND, back)
    windows = let_out(buffer, 2000 * MILLISECOND)
    assert [window.lsns for window in windows] == [(1, 2), (3, 4)]


def test_a_window_is_over_when_the_wall_clock_jumps_beyond_its_end() -> None:
    buffer = made({"kind": "fixed", "size": "1s"})
    buffer.add(entry(1, START), 0, START)
    buffer.add(entry(2, START + DAY + 1), 1, START + DAY)
    assert [window.lsns for window in let_out(buffer, 2)] == [(1,)]
    assert [window.lsns for window in let_out(buffer, SECOND)] == [(2,)]
