"""Whether the pipeline of this process makes progress: rounds that finish, queues that get shorter.

It only observes; `/readyz` reads it. Times are monotonic.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tidemill.model.time import MINUTE, SECOND, format_duration
from tidemill.storage.state.protocol import Queue

if TYPE_CHECKING:
    from tidemill.model.errors import TidemillError
    from tidemill.pipeline.reports import TickReport

INTERVALS: Final = 60  # intervals without a round after which the pipeline counts as stalled …
PATIENCE: Final = 5 * MINUTE  # … but not before this; also how long a queue may be stuck


class Pulse:
    """The progress of the pipeline of one process; it can stall only while one runs."""

    def __init__(self, timer: Callable[[], int], queue: Queue) -> None:
        self._timer = timer
        self._queue = queue
        self._guard = threading.Lock()
        self._running: float | None = None  # the interval of the running pipeline, in seconds
        self._moved_at = 0  # when a round, or a step of one, finished
        self._error: str | None = None  # the code of the error of the last round
        self._queued: tuple[int, int] = (0, 0)  # windows, and since when none of them was built
        self._unsent: dict[str, int] = {}  # sinks that fail, and since when

    def begin(self, interval: float) -> None:
        with self._guard:
            self._running, self._moved_at, self._error = interval, self._timer(), None

    def end(self) -> None:
        with self._guard:
            self._running = None

    def beat(self) -> None:
        """A step of a round is done: a long round is not a stalled one."""
        self._moved_at = self._timer()

    def failed(self, error: TidemillError) -> None:
        """A round failed as a whole."""
        with self._guard:
            self._error = error.code

    def finished(self, report: TickReport) -> None:
        now, waiting = self._timer(), self._queue.queue_length()
        with self._guard:
            self._moved_at, self._error = now, None
            before, since = self._queued
            moved = waiting < before or any(one.dataset is not None for one in report.builds)
            self._queued = (waiting, now if moved or not before else since)
            for sink in report.delivered:
                if sink.error is None or sink.delivered:
                    self._unsent.pop(sink.sink, None)
                else:
                    self._unsent.setdefault(sink.sink, now)

    def stall(self) -> str | None:
        """Why the pipeline counts as stalled; None if it does not, or none runs in this process."""
        with self._guard:
            if self._running is None:
                return None
            idle = self._timer() - self._moved_at
            if idle < max(int(self._running * SECOND) * INTERVALS, PATIENCE):
                return None
            last = "" if self._error is None else f"; the last one failed ({self._error})"
            return f"no round has finished for {_rough(idle)}{last}"

    def stuck_queue(self) -> str | None:
        """Which queue does not get shorter; None if all do, or are empty."""
        with self._guard:
            if self._running is None:
                return None
            now, (waiting, since) = self._timer(), self._queued
            if waiting and now - since >= PATIENCE:
                return f"none of {waiting} queued windows was built for {_rough(now - since)}"
            stuck = [now - at for at in self._unsent.values() if now - at >= PATIENCE]
            if stuck:
                what = "1 sink has" if len(stuck) == 1 else f"{len(stuck)} sinks have"
                return f"{what} taken no event for {_rough(max(stuck))}"
            return None


def _rough(duration: int) -> str:
    return format_duration(duration // SECOND * SECOND)
