"""Which buckets, and below them which rows of raw, make up a span exactly: the one place that decides it.
Pure arithmetic on microseconds; it never looks at data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tidemill.model.completeness import Available, Missing
from tidemill.model.levels import LEVELS, Level
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, WEEK, Interval, align, format_instant

RAW: Final = "raw"
BEGINNING: Final = align(MIN_INSTANT, WEEK)  # no bucket starts earlier
ALL_TIME: Final = Interval(BEGINNING, align(MAX_INSTANT - 1, WEEK) + WEEK)


@dataclass(frozen=True, slots=True)
class CoverPiece:
    """A part of a span, and where it is read from: whole buckets of a level, or raw."""

    level: Level | None  # None: raw
    span: Interval

    @property
    def source(self) -> str:
        return self.level.name if self.level is not None else RAW

    def __str__(self) -> str:
        return f"{self.source} {self.span}"


@dataclass(frozen=True, slots=True)
class Cover:
    """Pieces that make up a span, and the parts of it that nothing has any more; both by time, and together
    they are the span, each instant once."""

    pieces: tuple[CoverPiece, ...] = ()
    missing: tuple[Interval, ...] = ()

    @property
    def coarsest(self) -> Level | None:
        """None: there is only raw, or nothing."""
        levels = [piece.level for piece in self.pieces if piece.level is not None]
        return max(levels, key=lambda level: level.width, default=None)

    def spans_of(self, level: Level | None) -> list[Interval]:
        """What is read from a level (None: from raw), neighbours as one."""
        return joined(piece.span for piece in self.pieces if piece.level == level)

    @property
    def by_level(self) -> dict[Level, list[Interval]]:
        """The levels that are read, the coarsest first, and what of each."""
        found = {level: self.spans_of(level) for level in reversed(LEVELS)}
        return {level: spans for level, spans in found.items() if spans}

    @property
    def raw(self) -> list[Interval]:
        """What is read from raw. Neighbours stay apart where a cell ends between them."""
        return [piece.span for piece in self.pieces if piece.level is None]


def cover(span: Interval, available: Available, coarsest: Level = LEVELS[-1]) -> Cover:
    """The coarsest buckets that lie inside the span, finer ones towards both ends, and raw below the finest.
    What a level has no more is read from a coarser one that lies inside, or else from a finer one.

    For cells of one width, `coarsest` is the largest level that divides it: no bucket then crosses the edge
    of a cell, and no coarser one fits a cell.
    """
    levels = LEVELS[: LEVELS.index(coarsest) + 1]
    found = list(_covered(span, available, levels))
    return Cover(
        tuple(piece for piece in found if isinstance(piece, CoverPiece)),
        tuple(joined(piece for piece in found if isinstance(piece, Interval))),
    )


def cover_cells(edges: Sequence[int], available: Available) -> Cover:
    """For cells of any widths, from each edge to the next: each is covered by itself."""
    covers = [cover(Interval(start, end), available) for start, end in pairwise(edges)]
    return Cover(
        tuple(piece for each in covers for piece in each.pieces),
        tuple(joined(span for each in covers for span in each.missing)),
    )


def _covered(
    span: Interval, available: Available, levels: Sequence[Level]
) -> Iterator[CoverPiece | Interval]:
    """By time; an interval without a level is missing."""
    if span.start == span.end:
        return
    if not levels:
        since = span.start if available.raw is None else min(max(span.start, available.raw), span.end)
        if span.start < since:
            yield Interval(span.start, since)
        if since < span.end:
            yield CoverPiece(None, Interval(since, span.end))
        return
    *finer, level = levels
    kept_from = available.level_from(level.name)
    start = span.start if kept_from is None else max(span.start, kept_from)
    inside = inward(Interval(min(start, span.end), span.end), level.width)
    if inside.start == inside.end:
        yield from _covered(span, available, finer)
        return
    yield from _covered(Interval(span.start, inside.start), available, finer)
    yield CoverPiece(level, inside)
    yield from _covered(Interval(inside.end, span.end), available, finer)


def expired(missing: Interval, available: Available) -> Missing:
    """What an answer says of a part of its span that nothing has any more."""
    gone = [
        level.name for level in LEVELS if (available.level_from(level.name) or missing.start) > missing.start
    ]
    sources = [*gone, *([RAW] if available.raw is not None and available.raw > missing.start else [])]
    kept = [level for level in LEVELS if level.name not in gone]
    finest = kept[0].name if kept else None
    return Missing(
        Interval(max(missing.start, MIN_INSTANT), max(min(missing.end, MAX_INSTANT), MIN_INSTANT)),
        "expired",
        f"{' and '.join([', '.join(sources[:-1]), sources[-1]] if len(sources) > 1 else sources)} "
        f"of {_until(missing)} expired",
        f"let the span and its intervals start and end on whole {finest} buckets: those are kept"
        if finest is not None
        else "none: nothing of that time is kept; set a longer retention for what comes",
    )


def _until(span: Interval) -> str:
    if span.start <= MIN_INSTANT:
        return f"everything before {format_instant(span.end)}"
    return str(span)


def ceil(us: int, width: int) -> int:
    return -(-us // width) * width


def inward(span: Interval, width: int) -> Interval:
    """The whole buckets of `width` inside `span`; empty when there is none."""
    start = ceil(span.start, width)
    return Interval(start, max(start, align(span.end, width)))


def outward(span: Interval, width: int) -> Interval:
    """The buckets of `width` that `span` touches."""
    return Interval(align(span.start, width), ceil(span.end, width))


def joined(spans: Iterable[Interval]) -> list[Interval]:
    """Those that follow one another as one; they come by time and do not overlap."""
    found: list[Interval] = []
    for span in spans:
        if found and found[-1].end == span.start:
            found[-1] = Interval(found[-1].start, span.end)
        elif span.start < span.end:
            found.append(span)
    return found
