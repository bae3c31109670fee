"""The watermark of one source: how far event time has come, and which events are late.

A clock is a value: `advance` returns a new one, and a watermark never goes back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Clock:
    """Event-time progress that tolerates a disorder of `tolerance` microseconds.

    There is no watermark before the first event. Absurd times must be rejected before a clock sees them: one
    event of the year 9000 would make everything after it late.
    """

    tolerance: int
    watermark: int | None = None
    max_seen: int | None = None

    def __post_init__(self) -> None:
        assert self.tolerance >= 0, self.tolerance

    def is_late(self, ts: int) -> bool:
        """Return whether `ts` is at or before the watermark; with tolerance 0 an equal timestamp is late."""
        return self.watermark is not None and ts <= self.watermark

    def advance(self, max_ts: int) -> Clock:
        """Return the clock after events up to `max_ts` were seen."""
        max_seen = max_ts if self.max_seen is None else max(self.max_seen, max_ts)
        target = max_seen - self.tolerance
        # A clock that is reopened with a larger tolerance has a target behind its watermark.
        watermark = target if self.watermark is None else max(self.watermark, target)
        return replace(self, watermark=watermark, max_seen=max_seen)
