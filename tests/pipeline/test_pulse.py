"""When the pipeline of a process counts as stalled, and its queues as stuck."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from tidemill.model.errors import BusyError
from tidemill.model.time import MINUTE, SECOND
from tidemill.pipeline.events.delivery import Delivered
from tidemill.pipeline.progress import Pulse
from tidemill.pipeline.reports import TickReport
from tidemill.storage.state.protocol import Queue
from tidemill.testing import FakeClock


@dataclass
class Queued:
    waiting: int = 0

    def queue_length(self, stream: str | None = None) -> int:
        return self.waiting


def started(interval: float = 1.0) -> tuple[Pulse, FakeClock, Queued]:
    clock, queue = FakeClock(0), Queued()
    pulse = Pulse(clock, cast("Queue", queue))
    pulse.begin(interval)
    return pulse, clock, queue


def report(*delivered: Delivered) -> TickReport:
    return TickReport(0, [], 0.0, delivered=delivered)


def test_a_pipeline_stalls_when_no_round_and_no_step_of_one_finishes():
    pulse, clock, _ = started()
    clock.advance(5 * MINUTE - 1)
    assert pulse.stall() is None
    clock.advance(SECOND)
    assert pulse.stall() == "no round has finished for 5m"
    pulse.beat()  # a long round, not a stalled one
    assert pulse.stall() is None
    clock.advance(5 * MINUTE)
    pulse.failed(BusyError("another process is at work"))
    assert pulse.stall() == "no round has finished for 5m; the last one failed (busy)"
    pulse.finished(report())
    assert pulse.stall() is None


def test_long_intervals_have_longer_patience():
    pulse, clock, _ = started(60.0)
    clock.advance(59 * MINUTE)
    assert pulse.stall() is None
    clock.advance(MINUTE)
    assert pulse.stall() == "no round has finished for 1h"


def test_where_no_pipeline_runs_nothing_stalls():
    pulse, clock, _ = started()
    pulse.end()
    clock.advance(60 * MINUTE)
    assert (pulse.stall(), pulse.stuck_queue()) == (None, None)


def test_a_queue_is_stuck_when_it_does_not_get_shorter():
    pulse, clock, queue = started()
    queue.waiting = 3
    pulse.finished(report())
    clock.advance(4 * MINUTE)
    queue.waiting = 2
    pulse.finished(report())
    clock.advance(4 * MINUTE)
    queue.waiting = 9
    pulse.finished(report())
    assert pulse.stuck_queue() is None
    clock.advance(MINUTE)
    assert pulse.stuck_queue() == "none of 9 queued windows was built for 5m"
    queue.waiting = 0
    pulse.finished(report())
    assert pulse.stuck_queue() is None


def test_a_sink_that_takes_nothing_is_stuck_until_it_takes_an_event():
    pulse, clock, _ = started()
    pulse.finished(report(Delivered("hook", 0, "refused")))
    clock.advance(5 * MINUTE)
    pulse.finished(report(Delivered("hook", 0, "refused")))
    assert pulse.stuck_queue() == "1 sink has taken no event for 5m"
    pulse.finished(report(Delivered("hook", 1)))
    assert pulse.stuck_queue() is None
