"""The contents of a stream at an instant of arrival, by its ledger: which rows counted then, and which of
them are gone since. It only reads.

The first record with an id counts, in ledger order. So what had been accepted by an instant is exactly the
rows of raw of slices that had landed by then, except for slices that were retracted since, and for others
that have had more accepted since one was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.model.completeness import Missing
from tidemill.model.slices import CountedAs, SliceEntry, SliceStatus
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, Interval, format_instant

if TYPE_CHECKING:
    from tidemill.ingest.retraction_log import RetractionLog
    from tidemill.storage.state.protocol import State


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
    waits: bool = False  # for slices that had landed by then to be decided, perhaps again

    @property
    def changed(self) -> bool:
        """Whether an answer about the span differs now."""
        return self.slices_after > 0 or bool(self.missing)


def past_of(
    state: State, log: RetractionLog, stream: str, at: int, span: Interval | None, *, of_keys: bool = False
) -> Past:
    """The past as far as it concerns `span` (None: all of time); `of_keys`: of an answer that depends on the
    keys that were admitted, which a slice of any time may have been the first to have."""
    offset = state.offset_at(at)
    after = state.slices(stream, SliceStatus.ACCEPTED, after=offset, outcome=CountedAs.ACCEPTED)
    touching = [entry for entry in after if _touches(entry, span)]
    gone = [one for one in _taken_back(state, log, stream, at) if one.entry.seq <= offset]
    lost = [one for one in gone if of_keys or one.touches(span)]
    before = state.slices(stream, SliceStatus.ACCEPTED, newest=True, limit=1, before=offset + 1)
    return Past(
        at=at,
        offset=offset,
        without=frozenset(entry.id for entry in after if entry.slice.arrival <= at),
        slices_after=len(touching),
        reaches_back_to=max((one.at for one in lost), default=None),
        missing=tuple(
            missing
            for one in lost
            for missing in ([_other_keys(one, span)] if of_keys else _missing(one, offset, span))
        ),
        watermark=after[0].watermark if after else None,
        newest=before[0].slice.arrival if before else None,
        waits=bool(state.slices(stream, SliceStatus.PENDING, limit=1, before=offset + 1)),
    )


def _touches(entry: SliceEntry, span: Interval | None) -> bool:
    seen = entry.observed
    return seen is not None and (span is None or (seen.start < span.end and seen.end > span.start))


@dataclass(frozen=True, slots=True)
class _TakenBack:
    """A slice that was retracted `at` an instant, and the slices of which more is accepted since: events with
    ids that were taken before."""

    entry: SliceEntry
    at: int
    freed: tuple[SliceEntry, ...] = ()

    def touches(self, span: Interval | None) -> bool:
        return any(_touches(entry, span) for entry in (self.entry, *self.freed))


def _taken_back(state: State, log: RetractionLog, stream: str, after: int) -> list[_TakenBack]:
    """What was retracted after an instant."""
    retracted = state.slices(stream, SliceStatus.RETRACTED)
    gone = {e.id: e for e in retracted if e.retracted_at is not None and e.retracted_at > after}
    again = {line.act.slice: line.act.again for line in log.lines(state)} if gone else {}
    found = []
    for name, entry in gone.items():
        others = ((state.slice(other), before) for other, before in again.get(name, {}).items())
        freed = tuple(e for e, before in others if e is not None and e.counts.accepted > before)
        found.append(_TakenBack(entry, entry.retracted_at or 0, freed))
    return found


def _missing(one: _TakenBack, offset: int, span: Interval | None) -> Iterator[Missing]:
    """The parts of the span that are unknown for the time when slices up to `offset` had landed."""
    what, when = f"slice {one.entry.id[:12]}", format_instant(one.at)
    remedy = f"ask AS OF {when} or later"
    if _touches(one.entry, span):
        detail = f"{what} counted then and was retracted at {when}: its rows are gone"
        yield Missing(_inside(one.entry, span), "retracted", detail, remedy)
    for other in one.freed:
        if other.seq <= offset and _touches(other, span):
            detail = f"some rows of slice {other.id[:12]} count only since {what} was retracted at {when}"
            yield Missing(_inside(other, span), "retracted", detail, remedy)


def _other_keys(one: _TakenBack, span: Interval | None) -> Missing:
    """Nothing is known by key: the slice may have had keys that were admitted because of it."""
    when = format_instant(one.at)
    return Missing(
        span or Interval(MIN_INSTANT, MAX_INSTANT),
        "retracted",
        f"slice {one.entry.id[:12]} was retracted at {when}: which keys were admitted before is not known",
        f"ask AS OF {when} or later, or for all keys together",
    )


def _inside(entry: SliceEntry, span: Interval | None) -> Interval:
    """The part of a span that a slice touches."""
    seen = entry.observed or Interval(MIN_INSTANT, MIN_INSTANT)
    low, high = (span.start, span.end) if span is not None else (MIN_INSTANT, MAX_INSTANT)
    return Interval(max(seen.start, low, MIN_INSTANT), min(seen.end, high, MAX_INSTANT))


@dataclass(frozen=True, slots=True)
class Change:
    """A slice that changed the contents of a span: it was accepted, or retracted."""

    at: int  # its arrival, or when it was retracted
    entry: SliceEntry
    retracted: bool = False

    @property
    def position(self) -> tuple[int, int, int]:
        return self.at, self.entry.seq, int(self.retracted)


def changes_since(
    state: State, log: RetractionLog, stream: str, after: int, span: Interval | None
) -> list[Change]:
    """Slices that changed the contents of a span (None: all of time) after an instant of arrival, oldest
    first."""
    offset = state.offset_at(after)
    accepted = state.slices(stream, SliceStatus.ACCEPTED, after=offset, outcome=CountedAs.ACCEPTED)
    found = [Change(entry.slice.arrival, entry) for entry in accepted if _touches(entry, span)]
    gone = _taken_back(state, log, stream, after)
    found += [Change(one.at, one.entry, retracted=True) for one in gone if one.touches(span)]
    return sorted(found, key=lambda one: one.position)
