"""What is to be computed of a window: from what, which windows, and how it is split into buckets.

Pure planning: nothing is read or run here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tidemill.model.streaming import Close, LatePolicy, Trigger, WindowKind, WindowSpec
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, Interval
from tidemill.outputs.windows.checkpoints import Checkpoint
from tidemill.outputs.windows.extract import RowScope
from tidemill.outputs.windows.keys import Key
from tidemill.storage.tables.snapshot import Part, Snapshot
from tidemill.storage.tables.table import Table

BUCKET_BYTES: Final = 4 << 20  # bytes of raw that are worth a task of their own …
MOST_BYTES: Final = 64 << 20  # … and that one may hold in memory
# Windows may begin before the first instant.
ALL: Final = Interval(MIN_INSTANT - MAX_INSTANT, 2 * MAX_INSTANT)
_SAMPLES: Final = 64


@dataclass(frozen=True, slots=True)
class Task:
    """What has to be computed."""

    scope: RowScope
    starts: Sequence[Interval] = ()  # by_time: the starts of the windows to compute …
    only: Sequence[Interval] | None = None  # … and of those that may be published; None: by the watermark
    again: Mapping[Key, int] = field(default_factory=dict)
    whole: bool = False
    gone: bool = False  # slices may have gone since the results were computed
    held_from: int | None = None  # no result with an earlier start is concerned; None: any may be
    carried: Sequence[str] = ()
    floor: int | None = None  # windows for a row that start before this are already published
    flush: bool = False
    trigger: Trigger = Trigger.WATERMARK


def first_trigger(spec: WindowSpec, *, flush: bool) -> Trigger:
    """Why a window is published for the first time."""
    if flush:
        return Trigger.STOP
    return {WindowKind.COUNT: Trigger.COUNT, WindowKind.STATE: Trigger.STATE}.get(
        spec.kind, Trigger.WATERMARK
    )


def processing_watermark(spec: WindowSpec, now: int) -> int:
    """Up to where a window is complete at a tick, in processing time: rows may still arrive in the instant of
    the tick, and join a window that includes its own end."""
    return now - spec.next_open


def closing(spec: WindowSpec, before: int | None, watermark: int) -> list[Interval]:
    """Starts of windows of the grid that end after `before` and at or before the watermark."""
    low = ALL.start if before is None else before - spec.size + 1
    high = watermark - spec.size + 1
    first = -(-low // spec.step) * spec.step
    return [Interval(low, high)] if first < high else []


def parts_for(spec: WindowSpec, raw: Snapshot, spans: Sequence[Interval]) -> list[Part]:
    """Parts of raw that may hold a row that counts at an instant of one of the spans."""
    found: dict[str, Part] = {}
    for span in spans:
        columns = ["event_time"]
        if spec.late is LatePolicy.NEXT_WINDOW:  # a late row counts at the watermark that it met
            columns.append("watermark")
        for column in columns:
            low = span.start - (spec.next_open if column == "watermark" else 0)
            for part in raw.select(None, {column: (low, span.end - 1)}):
                found.setdefault(part.path, part)
    return [found[path] for path in sorted(found)]


def buckets_for(size: int, cores: int) -> int:
    """How many buckets the work is split into: one for each core if it is large enough, more to bound
    memory."""
    return max(1, min(cores, size // BUCKET_BYTES), -(-size // MOST_BYTES))


def cuts_for(spec: WindowSpec, parts: Sequence[Part], starts: Sequence[Interval], buckets: int) -> list[int]:
    """Starts of windows at which a bucket ends and the next begins, so that all have about as many rows."""
    if buckets == 1 or not parts or not starts:
        return []
    times, weights = [], []
    for part in parts:
        low, high = part.mins.get("event_time"), part.maxs.get("event_time")
        if isinstance(low, int) and isinstance(high, int):
            times.append(np.linspace(low, high, _SAMPLES))
            weights.append(np.full(_SAMPLES, max(1, part.rows) / _SAMPLES))
    if not times:
        return []
    at = np.clip(np.concatenate(times), starts[0].start, starts[-1].end)
    order = np.argsort(at)
    share = np.cumsum(np.concatenate(weights)[order])
    positions = np.searchsorted(share, share[-1] * np.arange(1, buckets) / buckets)
    cuts = (at[order][positions] // spec.step).astype(np.int64) * spec.step
    return sorted(set(cuts.tolist()))


def clipped(intervals: Sequence[Interval], low: int, high: int) -> list[Interval]:
    """The part of sorted intervals that lies in `[low, high)`."""
    found = (
        Interval(max(i.start, low), min(i.end, high)) for i in intervals if i.start < high and i.end > low
    )
    return [one for one in found if one.start < one.end]


@dataclass(frozen=True, slots=True)
class WindowInputs:
    """What results are made from: raw, and the watermark of the stream, at one moment."""

    raw: Table
    watermark: int | None
    now: int
    flush: bool = False  # a graceful stop: open windows are published as they are
    # Raw before this instant has expired: windows that begin before it do not change.
    sealed: int | None = None
    forgotten: int | None = None  # datasets that end before this instant have expired

    def sealed_for(self, spec: WindowSpec) -> int | None:
        """Windows that begin before this instant are never computed again."""
        gone = [self.sealed, self.forgotten] if spec.close is Close.COMPLETE else [self.sealed]
        return max((instant for instant in gone if instant is not None), default=None)

    @property
    def snapshot(self) -> Snapshot:
        return self.raw.snapshot()


@dataclass(frozen=True, slots=True)
class WindowWork:
    """What is to be computed of a window."""

    inputs: WindowInputs
    checkpoint: Checkpoint  # to record when it is done
    task: Task
    batch: int
