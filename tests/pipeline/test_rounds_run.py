"""The daemon's rounds: no pause while there is work, awake when something lands, nothing left at the end."""

from __future__ import annotations

import logging
import threading

import pytest
from tests.support.patience import PATIENCE

from tidemill.model.errors import BusyError, ConfigError
from tidemill.model.time import MINUTE, SECOND
from tidemill.pipeline import rounds
from tidemill.pipeline.reports import StreamTick, TickReport
from tidemill.raw.compaction.packer import Packed, PackRound, PackStep

AN_HOUR = 3600.0


class Pauses(threading.Event):
    """Does not wait, and keeps how long it should have; the last of them ends the run."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.left, self.found = count, []

    def wait(self, timeout: float | None = None) -> bool:
        self.found.append(timeout)
        if len(self.found) == self.left:
            self.set()
        return self.is_set()


def report(*, idle: bool) -> TickReport:
    work = [] if idle else [StreamTick("s", merged_runs=1, tiles=[object()])]  # type: ignore[list-item]
    return TickReport(0, work, 0.0)


class Pipeline:
    """Slices that landed and have to be worked off, one a round."""

    def __init__(self) -> None:
        self.landed = 0
        self.rounds: list[str] = []
        self.stop, self.wake = threading.Event(), threading.Event()
        self.asleep = threading.Event()  # it found nothing to do

    def land(self) -> None:
        self.landed += 1
        self.wake.set()

    def tick(self) -> TickReport:
        idle = not self.landed
        self.landed -= not idle
        self.rounds.append("idle" if idle else "work")
        if idle:
            self.asleep.set()
        return report(idle=idle)

    def run(self, *, woken: bool = True) -> None:
        rounds.run(self.tick, self.stop, AN_HOUR, None, self.wake if woken else None)


def test_an_idle_daemon_goes_on_as_soon_as_something_lands():
    line = Pipeline()
    thread = threading.Thread(target=line.run)
    thread.start()
    assert line.asleep.wait(PATIENCE)
    line.asleep.clear()
    line.land()
    assert line.asleep.wait(PATIENCE)
    line.stop.set()
    line.wake.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert [one for one in line.rounds if one == "work"] == ["work"]


def test_what_lands_while_a_round_looks_is_for_the_next_round():
    line = Pipeline()

    def tick() -> TickReport:
        done = line.tick()
        if len(line.rounds) == 1:
            line.land()  # this round is over the place where it would have seen it
        if len(line.rounds) == 2:
            line.stop.set()
            line.wake.set()
        return done

    rounds.run(tick, line.stop, AN_HOUR, None, line.wake)
    assert line.rounds[:2] == ["idle", "work"]


def test_what_landed_before_the_stop_is_worked_off():
    line = Pipeline()
    for _ in range(3):
        line.land()
    line.stop.set()
    line.run()
    assert line.rounds == ["work", "work", "work", "idle"]


def test_without_a_wake_up_the_round_under_way_is_the_last():
    line = Pipeline()
    line.landed = 3
    line.stop.set()
    line.run(woken=False)
    assert line.rounds == []


def test_another_process_at_work_is_no_reason_to_hang_at_the_end(caplog):
    def busy() -> TickReport:
        raise BusyError("another process ticks")

    stop = threading.Event()
    stop.set()
    with caplog.at_level(logging.WARNING):
        rounds.run(busy, stop, AN_HOUR, None, threading.Event())
    assert "what is left waits for the next start" in caplog.text


def test_an_error_that_no_try_makes_better_ends_it():
    def wrong() -> TickReport:
        raise ConfigError("wrong")

    with pytest.raises(ConfigError):
        rounds.run(wrong, threading.Event(), AN_HOUR, None, threading.Event())


# -- the pace of packing


PACKED = Packed(PackStep("s", ("a",), 1, 1, 1, ("2024-01-15",)), ("p",), 1, 0.0)


def looked(*looks: PackRound | None) -> TickReport:
    return TickReport(0, [StreamTick("s", packed=look) for look in looks], 0.0)


def test_a_group_that_is_not_full_makes_the_pause_shorter_and_a_full_one_takes_it_away():
    full, partial, nothing = (
        looked(PackRound([PACKED], 1, 5 * SECOND)),
        looked(PackRound([], 2, 5 * SECOND)),
        looked(PackRound([], 0, 30 * SECOND)),
    )
    reports, stop = iter([full, full, partial, full, nothing, looked(None)]), Pauses(3)
    rounds.run(lambda: next(reports), stop, AN_HOUR, None)
    assert stop.found == [5.0, 30.0, AN_HOUR]
    assert next(reports, None) is None


def test_the_pause_is_never_longer_than_the_interval_of_the_run():
    assert rounds.rest_after(looked(PackRound([], 2, 5 * SECOND)), 1.0) == 1.0
    assert rounds.rest_after(looked(PackRound([], 0, MINUTE)), 1.0) == 1.0


def test_the_stream_that_wants_to_be_looked_at_first_counts():
    report = looked(PackRound([], 0, MINUTE), None, PackRound([], 3, 2 * SECOND))
    assert report.idle
    assert rounds.rest_after(report, AN_HOUR) == 2.0


def test_a_round_that_packed_is_not_idle():
    assert not looked(PackRound([PACKED], 0, SECOND)).idle
