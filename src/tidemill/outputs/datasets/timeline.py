"""Windows over time, for a chart: each with its state or, if they are too many, counts of states for each
stretch; with slices by what they cover, and gaps. It only reads."""

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
    """The windows of a span. One of `windows` and `stretches` is None."""

    span: Interval  # that is shown
    extent: Interval | None  # of all windows there are
    width: int  # of a window
    total: int  # windows in the span
    windows: Sequence[tuple[WindowGlance, WindowStatus]] | None
    stretches: Sequence[Stretch] | None
    stretch: int  # length of a stretch
    slices: Sequence[SliceGlance]  # newest first
    slices_total: int
    gaps: Sequence[Interval]  # what no slice covers, within the extent


def timeline(
    reader: WindowReader, state: State, stream: str, width: int, span: Interval | None, limit: int
) -> Timeline:
    """The windows of `width` that overlap `span` (None: all), one by one if there are at most `limit`."""
    extent = state.window_extent(stream, width)
    shown = span or extent or Interval(0, 0)
    reach = Interval(align(shown.start, width), max(shown.end, align(shown.start, width)))
    inside, within = _both(shown, extent), _both(reach, extent) or Interval(0, 0)
    most = (within.end - within.start) // width  # windows that can be there
    stretch = stretch_for(shown, width, min(limit, MOST_STRETCHES))
    counts = reader.counts(stream, width, within, stretch) if most > limit else None
    total = sum(sum(one.values()) for one in (counts or {}).values())
    glances = None
    if counts is None or total <= limit:
        glances, counts = state.window_glances(stream, width, within), None
    covered = state.covered(stream, shown)
    return Timeline(
        span=shown,
        extent=extent,
        width=width,
        total=total if glances is None else len(glances),
        windows=None
        if glances is None
        else list(zip(glances, reader.statuses(stream, glances), strict=True)),
        stretches=None if counts is None else [Stretch(at, counts[at]) for at in sorted(counts)],
        stretch=width if counts is None else stretch,
        slices=state.slice_glances(stream, shown, limit),
        slices_total=len(covered),
        gaps=list(gaps(covered, inside))[:limit] if inside is not None else [],
    )


def stretch_for(span: Interval, width: int, most: int) -> int:
    """The length of a stretch: a power of two of windows, so that zooming halves it; about `most`
    stretches."""
    stretch = width
    while (span.end - span.start) > stretch * max(1, most):
        stretch *= 2
    return stretch


def gaps(covered: Iterable[tuple[int, int]], within: Interval) -> Iterator[Interval]:
    """The parts of a span that none of the intervals, sorted by start, covers."""
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
