"""The kinds of windows in which arrivals are gathered: how long one lasts, and when its time is over.

Pure arithmetic on instants; an arrival at the instant at which a window closes is not in it.
"""

from __future__ import annotations

from tidemill.config.gateway import AdaptiveWindow, BufferWindow, FixedWindow, SessionWindow, SlidingWindow
from tidemill.model.time import SECOND


def duration_of(window: BufferWindow, rate: float) -> int:
    """How long a window may last at `rate` events per second."""
    match window:
        case FixedWindow():
            return window.size
        case SlidingWindow():
            return window.step
        case SessionWindow():
            return window.max
        case AdaptiveWindow():
            if rate <= 0:
                return window.max
            duration = min(window.target * SECOND / rate, float(window.max))  # a tiny rate makes it infinite
            return max(window.min, round(duration))


def closes_at(window: BufferWindow, since: int, last: int, rate: float) -> int:
    """When the time of a window is over whose first arrival was at `since` and whose last one was at
    `last`."""
    match window:
        case FixedWindow():
            return _next_multiple(since, window.size)
        case SlidingWindow():
            return _next_multiple(since, window.step)
        case SessionWindow():
            return min(last + window.gap, since + window.max)
        case AdaptiveWindow():
            return since + duration_of(window, rate)


def least_of(window: BufferWindow) -> int:
    """How long a window lasts at least if a sender waits for it."""
    return window.min if isinstance(window, AdaptiveWindow) else 0


def is_moved(window: BufferWindow, recent: float, before: float) -> bool:
    """Whether a change of the rate matters to a window.

    An adaptive one that would last as long at both rates gains nothing from closing: at low rates, counts
    vary by half all the time.
    """
    if isinstance(window, AdaptiveWindow):
        return duration_of(window, recent) != duration_of(window, before)
    return True


def _next_multiple(since: int, length: int) -> int:
    return (since // length + 1) * length
