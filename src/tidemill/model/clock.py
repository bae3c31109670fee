"""The wall clock, watched by a clock that never steps.

An arrival is an instant of the wall clock; how long something waits is measured by the other one, the timer.
So a wall clock that is set back or forward moves no deadline, and the step is noticed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tidemill.model.time import MINUTE, SECOND, format_duration, format_instant

log = logging.getLogger(__name__)

STEP: Final = MINUTE  # how much the two may differ before it counts as a step
_AT_ONCE: Final = SECOND  # readings that are further apart do not show a step

Clock = Callable[[], int]


@dataclass(frozen=True, slots=True)
class ClockSteps:
    """Steps of the wall clock of more than a minute, since its process started."""

    forward: int = 0
    back: int = 0
    last_at: int | None = None  # what the wall clock showed after the last one
    last_by: int = 0  # microseconds; negative: back


class WatchedClock:
    """Call it for what the wall clock shows, in microseconds. Thread-safe.

    Without a timer the clock itself is the timer, as one that is set by hand may be.
    """

    def __init__(self, wall: Clock, timer: Clock | None = None) -> None:
        self._wall = wall
        self._timer = timer
        self._guard = threading.Lock()
        self._ahead: int | None = None  # readings of the clock and of the timer, when last read
        self._steps = ClockSteps()

    @classmethod
    def of(cls, clock: Clock) -> WatchedClock:
        """`clock` itself if it is watched already; otherwise a watched clock over it, with its method
        `monotonic` as the timer, if it has one."""
        return clock if isinstance(clock, cls) else cls(clock, getattr(clock, "monotonic", None))

    def __call__(self) -> int:
        if self._timer is None:
            return self._wall()
        before = self._timer()
        now = self._wall()
        if self._timer() - before < _AT_ONCE:
            self._compare(now, before)
        return now

    def timer(self) -> int:
        """Microseconds since some instant; never goes back, and no step of the wall clock moves it."""
        return self._wall() if self._timer is None else self._timer()

    @property
    def steps(self) -> ClockSteps:
        return self._steps

    @property
    def wall(self) -> Clock:
        """The underlying wall clock."""
        return self._wall

    def _compare(self, now: int, timer: int) -> None:
        with self._guard:
            by = now - timer - self._ahead if self._ahead is not None else 0
            self._ahead = now - timer
            if abs(by) <= STEP:
                return
            was = self._steps
            self._steps = ClockSteps(was.forward + (by > 0), was.back + (by < 0), now, by)
        if by < 0:
            what = f"back by {format_duration(-by)}: arrivals go on from the last one until it has caught up"
        else:
            what = f"forward by {format_duration(by)}, or the machine slept for so long"
        log.warning("the clock of the machine went %s; it shows %s", what, format_instant(now))
