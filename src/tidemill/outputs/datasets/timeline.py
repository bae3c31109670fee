"""Windows over time, for a picture of them: each with its state or, where they are too many, how many of each
state lie in a stretch; and beside them slices by what they cover, and what nothing covers. It only reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tidemill.model.slices import SliceGlance
from tidemill.model.time import Interval, align
from tidemill.model.windows import WindowGlance, WindowStatus
from tidemill.outputs.datasets.reader import WindowReader
from tidemill.storage.state.protocol import State

MOST_LISTED: Final = 20_000
MOST_STRETCHES: Final = 1_000


@dataclass(frozen=True, slots=True)
class Stretch:
    """How many windows of each state start in `[start, start + width)`."""

    start: int
    counts: dict[WindowStatus, int]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The windows of a span. Of `windows` and `stretches` one is None."""

    span: Interval  # that is shown
    extent: Interval | None  # of all windows there are
    width: int  # of a window
    total: int  # windows in the span
    windows: Sequence[tuple[WindowGlance, WindowStatus]] | None
    stretches: Sequence[Stretch] | None
    stretch: int  # how long a stretch is
    slices: Sequence[SliceGlance]  # newest first
    slices_total: int
    gaps: Sequence[Interval]  # of the windows there are, what no slice covers


def timeline(
    reader: WindowReader, state: State, stream: str, width: int, span: Interval | None, limit: int
) -> Timeline:
    """Of the windows of `width` that overlap `span` (None: all), one by one if there are at most `limit`."""
    extent = state.window_extent(stream, width)
    shown = span or extent or Interval(0, 0)
    reach = Interval(align(shown.start, width), max(shown.end, align(shown.start, width)))
    glances = state.window_glances(stream, width, reach)
    statuses = reader.statuses(stream, glances)
    listed = len(glances) <= limit
    stretch = width if listed else stretch_for(shown, width, min(limit, MOST_STRETCHES))
    covered = state.covered(stream, shown)
    inside = _both(shown, extent)
    return Timeline(
        span=shown,
        extent=extent,
        width=width,
        total=len(glances),
        windows=list(zip(glances, statuses, strict=True)) if listed else None,
        stretches=None if listed else stretches(glances, statuses, stretch),
        stretch=stretch,
        slices=state.slice_glances(stream, shown, limit),
        slices_total=len(covered),
        gaps=list(gaps(covered, inside))[:limit] if inside is not None else [],
    )


def stretch_for(span: Interval, width: int, most: int) -> int:
    """A power of two of windows, so that zooming halves stretches; about `most` of them at most."""
    stretch = width
    while (span.end - span.start) > stretch * max(1, most):
        stretch *= 2
    return stretch


def stretches(glances: Sequence[WindowGlance], statuses: Sequence[WindowStatus], width: int) -> list[Stretch]:
    """Those that have a window, by start."""
    found: dict[int, dict[WindowStatus, int]] = {}
    for glance, status in zip(glances, statuses, strict=True):
        counts = found.setdefault(align(glance.start, width), {})
        counts[status] = counts.get(status, 0) + 1
    return [Stretch(start, found[start]) for start in sorted(found)]


def gaps(covered: Iterable[tuple[int, int]], within: Interval) -> Iterator[Interval]:
    """What of a span none of the intervals covers; they come by start."""
    reached = within.start
    for start, end in covered:
        if start > reached:
            yield Interval(reached, min(start, within.end))
        reached = max(reached, end)
        if reached >= within.end:
            return
    if reached < within.end:
        yield Interval(reached, within.end)


def _both(span: Interval, extent: Interval | None) -> Interval | None:
    if extent is None:
        return None
    start, end = max(span.start, extent.start), min(span.end, extent.end)
    return Interval(start, end) if start < end else None
