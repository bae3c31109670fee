"""Clocks that tests set by hand. They never read the wall clock, unless a test passes it in."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.model.errors import InputError
from tidemill.model.time import format_duration, format_instant, parse_duration


class FakeClock:
    """A clock to call for the current instant in microseconds. `monotonic` is for timeouts."""

    def __init__(self, start: int) -> None:
        self._now = self._timer = start

    def __call__(self) -> int:
        return self._now

    def monotonic(self) -> int:
        """Advances with the clock, and never goes back."""
        return self._timer

    def advance(self, duration: int | str) -> int:
        """Advance by microseconds, or by a duration such as `5s`; returns the new instant."""
        step = _micros(duration)
        if step < 0:
            raise InputError(
                f"a clock does not advance by {format_duration(step)}", hint="use set() to go back"
            )
        self._now += step
        self._timer += step
        return self._now

    def set(self, instant: int) -> None:
        """Show `instant`; if it is later than now, that much time passes."""
        self._timer += max(0, instant - self._now)
        self._now = instant

    def step(self, duration: int | str) -> int:
        """Put the clock forward (`1h`) or back (`-1h`); no time passes."""
        self._now += _micros(duration)
        return self._now

    def __repr__(self) -> str:
        return f"FakeClock({format_instant(self._now)})"


class SteppableClock:
    """A wall clock that runs by itself, as `monotonic` (microseconds) does, and that a test can put forward
    and back: for code that runs in threads and really waits."""

    def __init__(self, start: int, monotonic: Callable[[], int]) -> None:
        self._start = start - monotonic()
        self.monotonic = monotonic

    def __call__(self) -> int:
        return self._start + self.monotonic()

    def step(self, duration: int | str) -> int:
        """Put the clock forward (`1h`) or back (`-1h`); returns what it shows."""
        self._start += _micros(duration)
        return self()


def _micros(duration: int | str) -> int:
    if isinstance(duration, int):
        return duration
    return -parse_duration(duration[1:]) if duration.startswith("-") else parse_duration(duration)
