"""The contents of a stream at an instant of arrival, by its ledger: which rows counted then, and which of
them are gone since. It only reads.

The first record with an id counts, in ledger order. So what had been accepted by an instant is exactly the
rows of raw of slices that had landed by then, except for slices that were retracted since.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.model.completeness import Missing
from tidemill.model.slices import CountedAs, SliceEntry, SliceStatus
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, Interval, format_instant

if TYPE_CHECKING:
    from tidemill.storage.state.protocol import Ledger


@dataclass(frozen=True, slots=True)
class Past:
    """A stream as it was at the instant of arrival `at`."""

    at: int
    offset: int  # ledger offset: slices up to it had landed; 0: none
    without: frozenset[str] = frozenset()  # ids of slices that had arrived, but could be read only later
    slices_after: int = 0  # slices that changed the span since
    reaches_back_to: int | None = None  # for earlier arrivals something is missing from the span
    missing: tuple[Missing, ...] = ()
    watermark: int | None = None  # as it was; None: there was none, or it is unknown
    newest: int | None = None  # arrival of the newest slice that counts

    @property
    def changed(self) -> bool:
        """Whether an answer about the span differs now."""
        return self.slices_after > 0 or bool(self.missing)


def past_of(state: Ledger, stream: str, at: int, span: Interval | None) -> Past:
    """The past as far as it concerns `span` (None: all of time)."""
    offset = state.offset_at(at)
    after = state.slices(stream, SliceStatus.ACCEPTED, after=offset, outcome=CountedAs.ACCEPTED)
    touching = [entry for entry in after if _touches(entry, span)]
    gone = [
        entry
        for entry in state.slices(stream, SliceStatus.RETRACTED)
        if entry.seq <= offset and entry.retracted_at is not None and entry.retracted_at > at
    ]
    lost = [entry for entry in gone if _touches(entry, span)]
    before = state.slices(stream, SliceStatus.ACCEPTED, newest=True, limit=1, before=offset + 1)
    return Past(
        at=at,
        offset=offset,
        without=frozenset(entry.id for entry in after if entry.slice.arrival <= at),
        slices_after=len(touching),
        reaches_back_to=max((entry.retracted_at or 0 for entry in lost), default=None),
        missing=tuple(_missing(entry, span) for entry in lost),
        watermark=after[0].watermark if after else None,
        newest=before[0].slice.arrival if before else None,
    )


def _touches(entry: SliceEntry, span: Interval | None) -> bool:
    seen = entry.observed
    return seen is not None and (span is None or (seen.start < span.end and seen.end > span.start))


def _missing(entry: SliceEntry, span: Interval | None) -> Missing:
    seen = entry.observed or Interval(MIN_INSTANT, MIN_INSTANT)
    low, high = (span.start, span.end) if span is not None else (MIN_INSTANT, MAX_INSTANT)
    lost = Interval(max(seen.start, low, MIN_INSTANT), min(seen.end, high, MAX_INSTANT))
    when = format_instant(entry.retracted_at) if entry.retracted_at is not None else "since"
    return Missing(
        lost,
        "retracted",
        f"slice {entry.id[:12]} counted then and was retracted at {when}: its rows are gone",
        f"ask AS OF {when} or later",
    )


@dataclass(frozen=True, slots=True)
class Change:
    """A slice that changed the contents of a span: it was accepted, or retracted."""

    at: int  # its arrival, or when it was retracted
    entry: SliceEntry
    retracted: bool = False

    @property
    def position(self) -> tuple[int, int, int]:
        return self.at, self.entry.seq, int(self.retracted)


def changes_since(state: Ledger, stream: str, after: int, span: Interval | None) -> list[Change]:
    """Slices that changed the contents of a span (None: all of time) after an instant of arrival, oldest
    first."""
    offset = state.offset_at(after)
    accepted = state.slices(stream, SliceStatus.ACCEPTED, after=offset, outcome=CountedAs.ACCEPTED)
    gone = state.slices(stream, SliceStatus.RETRACTED)
    found = [Change(entry.slice.arrival, entry) for entry in accepted if _touches(entry, span)]
    found += [
        Change(entry.retracted_at, entry, retracted=True)
        for entry in gone
        if entry.retracted_at is not None and entry.retracted_at > after and _touches(entry, span)
    ]
    return sorted(found, key=lambda one: one.position)
