"""A clock that moves only when a test says so. It never reads the wall clock."""

from __future__ import annotations

from tidemill.model.errors import InputError
from tidemill.model.time import format_duration, format_instant, parse_duration


class FakeClock:
    """Call it for the instant it shows, in microseconds."""

    def __init__(self, start: int) -> None:
        self._now = start

    def __call__(self) -> int:
        return self._now

    def advance(self, duration: int | str) -> int:
        """Move on by microseconds, or by a duration such as `5s`; returns the new instant."""
        step = parse_duration(duration) if isinstance(duration, str) else duration
        if step < 0:
            raise InputError(
                f"a clock does not advance by {format_duration(step)}", hint="use set() to go back"
            )
        self._now += step
        return self._now

    def set(self, instant: int) -> None:
        """Show `instant`, be it earlier or later."""
        self._now = instant

    def __repr__(self) -> str:
        return f"FakeClock({format_instant(self._now)})"
