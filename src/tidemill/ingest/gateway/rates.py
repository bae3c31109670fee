"""How many events arrive each second, and whether that changed.

Memory does not depend on how many arrive: arrivals close to each other are one sample. Reads no clock.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import Final

from tidemill.model.time import MILLISECOND, SECOND

SAMPLES: Final = 256  # of arrivals in a span
TICKS: Final = 5  # rates that are kept of each span; with more, a step would look like many small ones
RECENT: Final = 5
BEFORE: Final = 10
LEAST: Final = 10  # rates, before a change is reported at all


class RateMonitor:
    """The rate of one feed. Not thread-safe.

    The rate is the number of events in the last `span` divided by the time since the first of them. A single
    sample gives no time, so it counts as one span.

    Changes are detected by rates that are taken every fifth of a span from the first arrival on, with or
    without arrivals: a thousand requests in a millisecond are not ten rates.
    """

    def __init__(self, span: int = SECOND) -> None:
        assert span > 0, span
        self._span = span
        # Minimum distance of two samples, so that at most SAMPLES are in a span.
        self._apart = span // (SAMPLES - 2) + 1
        self._times = array("q", bytes(8 * SAMPLES))
        self._counts = array("q", bytes(8 * SAMPLES))
        self._head = 0  # position of the oldest one in the ring
        self._held = 0
        self._newest = -1  # its position
        self._total = 0
        self._last = 0  # the latest instant seen
        self._every = max(1, span // TICKS)
        self._tick: int | None = None  # when the next rate is recorded; None before the first arrival
        self._history: deque[float] = deque(maxlen=RECENT + BEFORE)
        self._means: tuple[float, float] | None = None  # of the history as it is

    @property
    def size(self) -> int:
        """Bytes that it takes; constant."""
        return 2 * 8 * SAMPLES + 32 * (RECENT + BEFORE) + 1024

    def record(self, now: int, count: int) -> None:
        """Add `count` events. An instant before the last one counts as that one."""
        if now < self._last:
            now = self._last
        if self._tick is None:
            self._tick = now + self._every
        elif now >= self._tick:
            self._remember(now)
        self._last = now
        self._total += count
        if self._held and now - self._times[self._newest] < self._apart:
            self._counts[self._newest] += count
            return
        self._forget(now)
        self._newest = (self._head + self._held) % SAMPLES
        self._held += 1
        self._times[self._newest] = now
        self._counts[self._newest] = count

    def rate(self, now: int) -> float:
        """Events per second; 0 if nothing came for a span."""
        if now < self._last:
            now = self._last
        if self._tick is not None and now >= self._tick:
            self._remember(now)
        self._last = now
        return self._rate(now)

    def means(self) -> tuple[float, float] | None:
        """The means of the last five rates and of the ten before; None while there are fewer than ten in
        all."""
        return self._means

    def changed(self, threshold: float) -> bool:
        """Whether the last five rates differ from those before by more than `threshold` of them.

        As of the last instant given to `record` or `rate`. Rates below one a second count as one.
        """
        if self._means is None:
            return False
        recent, before = self._means
        return abs(recent - before) / max(before, 1.0) > threshold

    def settle(self) -> None:
        """The change was handled and is not reported again.

        The recorded rates are dropped, and nothing is recorded for a span: after that no rate includes
        arrivals from before this instant. So the next change is reported three spans from here, at the
        earliest.
        """
        self._history.clear()
        self._means = None
        if self._tick is not None:
            self._tick = self._last + self._span

    def _rate(self, now: int) -> float:
        self._forget(now)
        if self._held == 0:
            return 0.0
        if self._held == 1:
            return self._total * SECOND / self._span
        return self._total * SECOND / max(now - self._times[self._head], MILLISECOND)

    def _forget(self, now: int) -> None:
        oldest = now - self._span
        while self._held and self._times[self._head] < oldest:
            self._total -= self._counts[self._head]
            self._head = (self._head + 1) % SAMPLES
            self._held -= 1

    def _remember(self, now: int) -> None:
        """Record the rates at the ticks up to `now`; of a long silence, those that still matter."""
        assert self._tick is not None
        kept = RECENT + BEFORE
        missed = (now - self._tick) // self._every + 1
        if missed > kept:
            self._tick += (missed - kept) * self._every
        while self._tick <= now:
            self._history.append(self._rate(self._tick))
            self._tick += self._every
        if len(self._history) >= LEAST:
            rates = list(self._history)
            recent, before = rates[-RECENT:], rates[:-RECENT]
            self._means = sum(recent) / len(recent), sum(before) / len(before)
