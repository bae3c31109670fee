"""The open window of one feed: gathers durable entries until a trigger closes it.

Every entry comes out once, in one window, in order of arrival. It has no lock, no clock and no file: the
caller locks, and passes the time of a monotonic clock. Windows are described by arrivals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from tidemill.config import Stream
from tidemill.config.gateway import GatewaySettings as Settings
from tidemill.config.gateway import SessionWindow, SlidingWindow
from tidemill.ingest.gateway.distinct_keys import count_keys, keys_of
from tidemill.ingest.gateway.memory import ENTRY_BYTES
from tidemill.ingest.gateway.rates import RateMonitor
from tidemill.ingest.gateway.sliding_statistics import Panes
from tidemill.ingest.gateway.triggers import Custom, OpenWindow, custom_triggers, trigger_of
from tidemill.ingest.gateway.window_durations import closes_at, duration_of, is_moved, least_of
from tidemill.ingest.gateway.window_landing import ClosedWindow, closed
from tidemill.model.gateway import BufferState, CloseTrigger, Entry, WindowStats
from tidemill.model.slices import Format

FEEDS: Final = 8  # sliding ones whose keys fit within memory.windows


@dataclass(frozen=True, slots=True)
class Taken:
    """A closed window, before its statistics are computed."""

    entries: tuple[Entry, ...]
    trigger: str


class Buffer:
    """The windows of one stream and source.

    A window whose time is over at the next arrival is set aside then, so that a late look does not extend it;
    the same if a file or a request with bounds arrives, which is a window of its own. Windows that are set
    aside are due at once, with the reason for which they were closed.
    """

    def __init__(
        self,
        stream: Stream,
        source: str,
        settings: Settings,
        monitor: RateMonitor | None = None,
        custom: Sequence[Custom] | None = None,  # None: looked up by name in the settings
    ) -> None:
        self.stream = stream
        self.source = source
        self.monitor = monitor if monitor is not None else RateMonitor()
        self._kind = settings.window
        self._triggers = settings.triggers
        self._custom = custom_triggers(settings.triggers.custom) if custom is None else tuple(custom)
        most = settings.memory.windows // FEEDS
        self._panes = Panes(self._kind, most) if isinstance(self._kind, SlidingWindow) else None
        self._session = self._kind if isinstance(self._kind, SessionWindow) else None
        self._set_aside: deque[Taken] = deque()
        self._entries: list[Entry] = []
        self._events = 0
        self._bytes = 0
        self._since = 0
        self._last = 0
        self._until = 0  # arrivals from here on are not in the open window
        self._ahead = 0  # by how much the wall clock was ahead of this clock when the window began
        self._arrival_ahead = 0  # … and the last arrival
        self._is_wanted = False

    # -- gathering

    def add(self, entry: Entry, at: int | None = None, ahead: int = 0) -> None:
        """Add an entry; entries come in the order of the log, and so of arrival. `at` is its time by the
        monotonic clock (None: the arrival), and `ahead` how much further the wall clock is."""
        submission = entry.submission
        at = entry.arrival if at is None else at
        self._arrival_ahead = entry.arrival - at
        self.monitor.record(at, submission.records)
        if (alone := submission.alone) is not None:
            self._put_aside(alone)
            self._set_aside.append(Taken((entry,), alone.value))
            return
        if self._entries and max(at, at + ahead - self._ahead) >= self._until:
            self._put_aside(CloseTrigger.TIME)
        if self._entries and (full := self._full(submission.records, len(submission.content))) is not None:
            self._put_aside(full)
        if not self._entries:
            self._begin(at, ahead)
        self._entries.append(entry)
        self._events += submission.records
        self._bytes += len(submission.content)
        self._last = at
        if self._session is not None:  # each arrival postpones its end
            self._until = min(at + self._session.gap, self._since + self._session.max)
        if (full := self._full(1, 1)) is not None:
            self._put_aside(full)

    def _full(self, events: int, size: int) -> CloseTrigger | None:
        """Whether so many more do not fit in the open window: a request is not split, so a window has at most
        its number of events, unless a single request has more."""
        triggers = self._triggers
        if triggers.count is not None and self._events + events > triggers.count:
            return CloseTrigger.COUNT
        if triggers.bytes is not None and self._bytes + size > triggers.bytes:
            return CloseTrigger.BYTES
        return None

    def hurry(self) -> None:
        """A sender waits for the open window: it is due once it has lasted the minimum of its kind."""
        self._is_wanted = bool(self._entries)

    def _begin(self, at: int, ahead: int) -> None:
        self._since = self._last = at
        self._ahead = ahead
        # An adaptive window has no edge to miss; it only ends at its maximum.
        self._until = self._closes_at(0.0)

    def _closes_at(self, rate: float) -> int:
        """When the time of the open window is over; some kinds end at edges of the wall clock."""
        since, last = self._since + self._ahead, self._last + self._ahead
        return closes_at(self._kind, since, last, rate) - self._ahead

    def _put_aside(self, trigger: CloseTrigger) -> None:
        if self._entries:
            self._set_aside.append(self._emptied(trigger.value))

    def _emptied(self, trigger: str) -> Taken:
        taken = Taken(tuple(self._entries), trigger)
        self._entries = []
        self._events = self._bytes = 0
        self._is_wanted = False
        if trigger == CloseTrigger.RATE_CHANGE:
            self.monitor.settle()
        return taken

    # -- looking

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to close, neither open nor set aside."""
        return not self._entries and not self._set_aside

    def is_idle(self, now: int) -> bool:
        """Whether a new buffer would do as well: it is empty, nothing came lately, and no sliding window
        reaches back to anything."""
        seen = self._panes is None or self._panes.is_over(now + self._arrival_ahead)
        return self.is_empty and seen and self.monitor.rate(now) == 0.0

    @property
    def held(self) -> int:
        """Bytes of memory of its open window; for `triggers.large_from`."""
        return self._bytes + ENTRY_BYTES * len(self._entries)

    @property
    def kept(self) -> int:
        """Bytes of memory for its closed windows."""
        return self._panes.size if self._panes is not None else 0

    def state(self, now: int) -> BufferState:
        rate = self.monitor.rate(now)
        return BufferState(
            stream=self.stream.name,
            source=self.source,
            kind=self._kind.kind,
            duration=duration_of(self._kind, rate),
            rate=rate,
            events=self._events,
            bytes=self._bytes,
            since=self._entries[0].arrival if self._entries else None,
        )

    def due(self, now: int, share: float = 0.0, large_from: int = 1) -> str | None:
        """Why a window should be closed now, or None.

        `share` is `MemoryTracker.share()`. At the share that `triggers.memory` sets, windows with
        `large_from` bytes (see `triggers.large_from`) or more are due.
        """
        if self._set_aside:
            return self._set_aside[0].trigger
        return self._reason(now, share, large_from)

    def next_look(self, now: int) -> int | None:
        """When time alone makes a window due, as things are; None if it is empty.

        A change of the rate moves it, so call it again after arrivals.
        """
        if self._set_aside:
            return now
        if not self._entries:
            return None
        times = self._closes_at(self.monitor.rate(now)), self._wanted_at()
        return min(time for time in times if time is not None)

    def _reason(self, now: int, share: float, large_from: int) -> str | None:
        if not self._entries:
            return None
        rate = self.monitor.rate(now)
        window = OpenWindow(
            stream=self.stream.name,
            source=self.source,
            since=self._since + self._ahead,
            last=self._last + self._ahead,
            now=now + self._ahead,
            events=self._events,
            bytes=self._bytes,
            rate=rate,
            pressure=share,
            held=self.held,
        )
        return trigger_of(
            window,
            self._triggers,
            self._custom,
            closes_at=self._closes_at(rate) + self._ahead,
            wanted_at=self._wanted_at(self._ahead),
            rate_changed=self._rate_changed(),
            large_from=large_from,
        )

    def _wanted_at(self, ahead: int = 0) -> int | None:
        return self._since + ahead + least_of(self._kind) if self._is_wanted else None

    def _rate_changed(self) -> bool:
        threshold, means = self._triggers.rate_change, self.monitor.means()
        if threshold is None or means is None or not self.monitor.changed(threshold):
            return False
        return is_moved(self._kind, *means)

    # -- letting out

    def take_due(self, now: int, share: float = 0.0, large_from: int = 1) -> list[Taken]:
        """Close the windows that are due, each with its reason. Cheap: `finish` does the counting."""
        reason = self._reason(now, share, large_from)
        return self._take(reason)

    def take(self, trigger: str) -> list[Taken]:
        """Close everything, the open window for this reason."""
        return self._take(trigger)

    def close(self, trigger: str) -> list[ClosedWindow]:
        """`take` and `finish` in one."""
        return [self.finish(taken) for taken in self.take(trigger)]

    def finish(self, taken: Taken) -> ClosedWindow:
        """The window with its statistics. Reads every line, so it runs without the lock that `add` needs: it
        shares no data, as long as windows are finished one by one in the order they were taken."""
        entries = taken.entries
        if self._panes is None:
            contents = (one.submission.content for one in entries if one.submission.format is Format.NDJSON)
            return closed(entries, taken.trigger, count_keys(contents, self.stream))
        window = closed(entries, taken.trigger, keys=0)
        return replace(window, output=replace(window.output, stats=self._slid(self._panes, entries)))

    def _take(self, trigger: str | None) -> list[Taken]:
        taken = list(self._set_aside)
        self._set_aside.clear()
        if trigger is not None and self._entries:
            taken.append(self._emptied(trigger))
        return taken

    def _slid(self, panes: Panes, entries: Sequence[Entry]) -> WindowStats:
        for _, found in groupby(entries, key=lambda entry: panes.number_of(entry.arrival)):
            alike = list(found)
            events = sum(entry.submission.records for entry in alike)
            size = sum(len(entry.submission.content) for entry in alike)
            panes.add(alike[0].arrival, alike[-1].arrival, events, size, self._keys(alike))
        since = entries[0].arrival
        return panes.stats(until=closes_at(self._kind, since, since, 0.0))

    def _keys(self, entries: Sequence[Entry]) -> set[int]:
        """The keys of lines; files are not read here."""
        lines = [e.submission.content for e in entries if e.submission.format is Format.NDJSON]
        return keys_of(b"".join(lines), self.stream)
