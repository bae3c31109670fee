"""Decides which buckets, and below them which rows of raw, make up a span exactly. Pure arithmetic on
microseconds; it never reads data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tidemill.model.completeness import NOTHING_HELPS, PUT_BACK, Available, Missing, damaged
from tidemill.model.levels import LEVELS, Level
from tidemill.model.time import (
    MAX_INSTANT,
    MIN_INSTANT,
    WEEK,
    Interval,
    align,
    cut,
    format_instant,
    joined,
    open_span,
)

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
        return f"{self.source} {open_span(self.span) or self.span}"


@dataclass(frozen=True, slots=True)
class Cover:
    """Pieces that make up a span, and the parts of it that have expired everywhere; both by time, and
    together they are the span, each instant once."""

    pieces: tuple[CoverPiece, ...] = ()
    missing: tuple[Interval, ...] = ()

    @property
    def coarsest(self) -> Level | None:
        """The coarsest level; None if there is only raw, or nothing."""
        levels = [piece.level for piece in self.pieces if piece.level is not None]
        return max(levels, key=lambda level: level.width, default=None)

    def spans_of(self, level: Level | None) -> list[Interval]:
        """What is read from a level (None: from raw), neighbours joined."""
        return joined(piece.span for piece in self.pieces if piece.level == level)

    @property
    def by_level(self) -> dict[Level, list[Interval]]:
        """The levels that are read, coarsest first, with their spans."""
        found = {level: self.spans_of(level) for level in reversed(LEVELS)}
        return {level: spans for level, spans in found.items() if spans}

    @property
    def raw(self) -> list[Interval]:
        """What is read from raw. Neighbours stay separate if a cell ends between them."""
        return [piece.span for piece in self.pieces if piece.level is None]


def cover(span: Interval, available: Available, coarsest: Level = LEVELS[-1]) -> Cover:
    """The coarsest buckets inside the span, finer ones towards both ends, and raw below the finest. What has
    expired from a level is read from a coarser one that lies inside, or else from a finer one.

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
    """For cells of any widths, from each edge to the next: each is covered separately."""
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
        for piece, is_lost in cut(Interval(since, span.end), available.lost.get(RAW, ())):
            yield piece if is_lost else CoverPiece(None, piece)
        return
    *finer, level = levels
    kept_from = available.level_from(level.name)
    start = span.start if kept_from is None else max(span.start, kept_from)
    inside = inward(Interval(min(start, span.end), span.end), level.width)
    if inside.start == inside.end:
        yield from _covered(span, available, finer)
        return
    yield from _covered(Interval(span.start, inside.start), available, finer)
    for piece, is_lost in cut(inside, available.lost.get(level.name, ())):
        if is_lost:
            yield from _covered(piece, available, finer)
        else:
            yield CoverPiece(level, piece)
    yield from _covered(Interval(inside.end, span.end), available, finer)


def gone_for_good(missing: Interval, available: Available) -> Iterator[Missing]:
    """What an answer reports about a part of its span that has no data any more: lost with damaged files, or
    expired."""
    lost = [span for name in available.lost for span in _lost_in(missing, name, available)]
    for span, is_lost in cut(missing, lost):
        if is_lost:
            sources = [name for name, spans in available.lost.items() if any(map(span.overlaps, spans))]
            remedy = PUT_BACK if RAW in sources else NOTHING_HELPS
            yield damaged(_valid(span), " and ".join(sources), remedy)
        else:
            yield expired(span, available)


def _lost_in(missing: Interval, name: str, available: Available) -> Iterator[Interval]:
    """The whole buckets of a span that a source has lost."""
    level = next((level for level in LEVELS if level.name == name), None)
    kept_from = available.raw if level is None else available.level_from(name)
    start = missing.start if kept_from is None else min(max(missing.start, kept_from), missing.end)
    had = Interval(start, missing.end)
    if level is not None:
        had = inward(had, level.width)
    for span in available.lost[name]:
        if span.overlaps(had):
            yield Interval(max(span.start, had.start), min(span.end, had.end))


def _valid(span: Interval) -> Interval:
    return Interval(max(span.start, MIN_INSTANT), max(min(span.end, MAX_INSTANT), MIN_INSTANT))


def expired(missing: Interval, available: Available) -> Missing:
    """What an answer reports about a part of its span that has expired."""
    gone = [
        level.name for level in LEVELS if (available.level_from(level.name) or missing.start) > missing.start
    ]
    sources = [*gone, *([RAW] if available.raw is not None and available.raw > missing.start else [])]
    kept = [level for level in LEVELS if level.name not in gone]
    finest = kept[0].name if kept else None
    return Missing(
        _valid(missing),
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
    """The whole buckets of `width` inside `span`; empty if there are none."""
    start = ceil(span.start, width)
    return Interval(start, max(start, align(span.end, width)))


def outward(span: Interval, width: int) -> Interval:
    """The buckets of `width` that `span` touches."""
    return Interval(align(span.start, width), ceil(span.end, width))
