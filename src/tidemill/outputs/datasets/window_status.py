"""The state of a window as shown to users: from what is stored of it, the time, and landed slices; and for
each reason why a window waits, what ends the wait. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tidemill.model.time import Interval, format_instant
from tidemill.model.windows import Member, Phase, Window, WindowGlance, WindowGroup, WindowKey, WindowStatus
from tidemill.outputs.datasets.pending_slices import PendingSlices
from tidemill.outputs.datasets.rules import (
    CUTOFF,
    WindowRules,
    has_one_on_time,
    last_arrival,
    readiness,
    undecided_of,
    was_served,
)

KeptWindow = Callable[[], "tuple[Window, Sequence[Member]] | None"]


class StatusRule:
    """Computes the state of windows of one stream at one instant."""

    def __init__(self, rules: WindowRules, pending: PendingSlices, now: int) -> None:
        self._rules = rules
        self._pending = pending
        self._now = now

    def needs_members(self, glance: WindowGlance) -> bool:
        """Whether the state depends on the members, not only on what is stored of the window."""
        if glance.phase is Phase.WAITING:
            return self._may_be_ready(glance)
        if glance.phase is not Phase.BUILT:
            return False
        interval = self._interval(glance)
        if self._rules.is_sealed(interval) or self._now <= last_arrival(interval, self._rules):
            return False
        return self._may_be_incomplete(glance)

    def of_all(self, group: WindowGroup) -> WindowStatus | None:
        """The state of all windows of a group; None: it is not the same, or more has to be known of each."""
        if group.phase is Phase.WAITING:
            return None if group.is_due else WindowStatus.WAITING
        if group.phase is not Phase.BUILT:
            return WindowStatus(group.phase.value)
        first, last = (Interval(start, start + self._rules.span) for start in (group.first, group.last))
        if self._rules.is_sealed(last):
            return WindowStatus.FINAL
        if self._rules.is_sealed(first):
            return None
        if self._now <= last_arrival(first, self._rules):
            return WindowStatus.BUILT
        if self._now <= last_arrival(last, self._rules) or self._pending:
            return None
        return None if self._rules.allow_incomplete and not group.is_sealed else WindowStatus.FINAL

    def of(
        self, glance: WindowGlance, kept: KeptWindow, first_arrivals: Mapping[int, int] | None = None
    ) -> WindowStatus:
        """The state. `kept` gives the window with its members; it is called only if they decide. A caller
        that has read the first arrival of a member of each window, by start, avoids most calls."""
        if glance.phase is Phase.WAITING:
            ready = self._may_be_ready(glance) and self._is_ready(kept())
            return WindowStatus.READY if ready else WindowStatus.WAITING
        if glance.phase is not Phase.BUILT:
            return WindowStatus(glance.phase.value)
        interval = self._interval(glance)
        if self._rules.is_sealed(interval):
            return WindowStatus.FINAL
        last = last_arrival(interval, self._rules)
        if self._now <= last:
            return WindowStatus.BUILT
        if self._may_be_incomplete(glance) and not self._was_served(glance, kept, first_arrivals):
            return WindowStatus.BUILT
        return WindowStatus.BUILT if self._pending.touching(interval, last) else WindowStatus.FINAL

    def _interval(self, glance: WindowGlance) -> Interval:
        return Interval(glance.start, glance.start + self._rules.span)

    def _may_be_incomplete(self, glance: WindowGlance) -> bool:
        """Whether the window may have been built incomplete."""
        return self._rules.allow_incomplete and glance.sealed is None

    def _was_served(
        self, glance: WindowGlance, kept: KeptWindow, first_arrivals: Mapping[int, int] | None
    ) -> bool:
        if first_arrivals is not None and not self._rules.by_watermark:
            first = first_arrivals.get(glance.start)
            return has_one_on_time(self._interval(glance), first, self._rules)
        found = kept()
        return found is not None and was_served(*found, self._rules)

    def _may_be_ready(self, glance: WindowGlance) -> bool:
        return glance.reason == CUTOFF and glance.check_at is not None and glance.check_at <= self._now

    def _is_ready(self, found: tuple[Window, Sequence[Member]] | None) -> bool:
        """Whether the next round would queue it: only time can have changed since it was evaluated."""
        if found is None:
            return False
        window, members = found
        used = [member for member in members if member.desired]
        undecided = undecided_of(window, members, self._rules, self._pending)
        return readiness(window.key.interval, used, self._rules, self._now, undecided).ready


_MISSING: Final = (
    "land what is missing and say what it covers: `tidemill ingest {stream} FILE --start {start} --end "
    "{end}`; where nothing happened: `tidemill ingest {stream} --empty --start {start} --end {end}` (or a "
    "part of that); or declare a longer `gap_tolerance`, or `coverage: watermark`"
)
_REMEDIES: Final[Mapping[str, str]] = {
    "cutoff": "wait until then, or declare a shorter `subject_to_change_window`",
    "pending": "`tidemill run --once` decides what is pending; for a slice that cannot be read, put its file "
    "back or take it out with `tidemill retract SLICE`",
    "coverage": _MISSING,
    "gap": _MISSING,
    "watermark": "newer events move the watermark; a source that is silent for good is left out by "
    "`event_time: {{idle_timeout: …}}`; or say what is complete: "
    "`tidemill ingest {stream} --empty --start {start} --end {end}`",
    "empty": "land a slice for it: `tidemill ingest {stream} FILE --start {start} --end {end}`",
    "sealed": "none: raw of its time has expired (`retention.raw`)",
    "failed": "fix what the error names, then `tidemill retry {stream} --window {start}`",
}


def remedy(reason: str, key: WindowKey) -> str | None:
    text = _REMEDIES.get(reason)
    if text is None:
        return None
    return text.format(stream=key.stream, start=format_instant(key.start), end=format_instant(key.end))
