"""What a stream has that its answers do not include yet: slices that wait or failed, retractions, tiles. It
reads only the state; its cost depends on what is pending, not on the size of the stream."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from tidemill.model.completeness import ROUND, Arrivals, Pending
from tidemill.model.levels import BASE
from tidemill.model.slices import SliceEntry, SliceStatus
from tidemill.model.time import Interval, format_instant
from tidemill.raw.tenant_clock import OwnRows, last_arrival

if TYPE_CHECKING:
    from tidemill.model.levels import BaseTile
    from tidemill.storage.state.protocol import Ledger, Retraction, State


def arrivals_of(
    state: State,
    stream: str,
    span: Interval | None,
    watermark: int | None,
    *,
    tiles: bool,
    retraction: Retraction | None = None,
    own: Mapping[str, OwnRows] | None = None,
) -> Arrivals:
    """For an answer that anything in `span` (None: any time) can change; `tiles`: it is made from them.
    `retraction` is the one in progress, in any stream; `own` is what a tenant has, by slice, if the answer is
    about that tenant alone."""
    stale = state.stale_tiles(stream) if tiles else []
    found = [
        *_slices(state, stream),
        *_retraction(retraction, stream),
        *_tiles([tile for tile in stale if span is None or _meets(tile, span)]),
    ]
    waiting = frozenset(name for tile in stale for name in tile.desired - tile.observed)
    as_of = _as_of(state, stream, waiting) if own is None else _as_of_tenant(state, own, waiting)
    return Arrivals(watermark, tuple(found), as_of)


def _slices(state: Ledger, stream: str) -> Iterator[Pending]:
    totals = state.totals(stream)
    if totals["pending_slices"]:
        waiting = state.slices(stream, SliceStatus.PENDING)
        again = [entry for entry in waiting if entry.attempt]
        landed = [entry for entry in waiting if not entry.attempt]
        if landed:
            yield _landed(landed)
        if again:
            yield _sent_back(again)
    if totals["failed_slices"]:
        yield _failed(state.slices(stream, SliceStatus.FAILED), stream)


def _landed(entries: Sequence[SliceEntry]) -> Pending:
    size = sum(entry.slice.size for entry in entries)
    return Pending(
        what="landed",
        count=len(entries),
        bytes=size,
        detail=f"{_many(entries, 'has', 'have')} landed ({size:,} bytes) and "
        f"{'is' if len(entries) == 1 else 'are'} not accepted yet",
        remedy=f"The next round accepts {_them(entries)}: `{ROUND}`",
        start=_start(entries),
    )


def _sent_back(entries: Sequence[SliceEntry]) -> Pending:
    records = sum(entry.accepted_before or 0 for entry in entries)
    return Pending(
        what="retraction",
        count=len(entries),
        records=records,
        bytes=sum(entry.slice.size for entry in entries),
        detail=f"a retraction sent {_many(entries)} with {records:,} accepted records back to the gate",
        remedy=f"The next round decides {_them(entries)} again: `{ROUND}`",
        start=_start(entries),
    )


def _failed(entries: Sequence[SliceEntry], stream: str) -> Pending:
    size = sum(entry.slice.size for entry in entries)
    tries = [entry.tried_next for entry in entries if entry.tried_next is not None]
    tried = f"the next try is at {format_instant(min(tries))}, or with" if tries else "once it is fixed, use"
    return Pending(
        what="failed",
        count=len(entries),
        bytes=size,
        detail=f"{_many(entries)} ({size:,} bytes) could not be read",
        remedy=f"`tidemill ledger {stream} --status failed` says why; {tried} "
        f"`tidemill retry {stream} --slices`, "
        f"or take {_them(entries)} out with `tidemill retract {entries[0].id[:12]} --reason …`",
        start=_start(entries),
    )


def _retraction(act: Retraction | None, stream: str) -> Iterator[Pending]:
    if act is not None and act.stream == stream:
        yield Pending(
            what="retraction",
            count=1,
            records=sum(act.again.values()),
            detail=f"the retraction of slice {act.slice[:12]} is under way",
            remedy=f"The next round finishes it: `{ROUND}`",
        )


def _tiles(stale: Sequence[BaseTile]) -> Iterator[Pending]:
    if stale:
        count = len(stale)
        yield Pending(
            what="tiles",
            count=count,
            detail=f"{count:,} {BASE.name} tile{'s' * (count != 1)} of the rollups "
            f"wait{'s' * (count == 1)} to be built with accepted or retracted slices",
            remedy=f"The next round builds {'it' if count == 1 else 'them'}: `{ROUND}`",
            start=min(tile.state.key.start for tile in stale),
        )


def _as_of_tenant(state: Ledger, own: Mapping[str, OwnRows], waiting: Collection[str]) -> int | None:
    """The newest arrival of a tenant's own events that all tiles include."""

    def is_included(slice_id: str) -> bool:
        entry = state.slice(slice_id)
        return entry is not None and entry.name not in waiting

    return last_arrival(own, is_included)


def _as_of(state: Ledger, stream: str, waiting: Collection[str]) -> int | None:
    """The newest arrival that all tiles include."""
    newest = state.slices(stream, SliceStatus.ACCEPTED, newest=True, limit=len(waiting) + 1)
    return max((entry.slice.arrival for entry in newest if entry.name not in waiting), default=None)


def _meets(tile: BaseTile, span: Interval) -> bool:
    start = tile.state.key.start
    return start < span.end and span.start < start + BASE.tile


def _start(entries: Sequence[SliceEntry]) -> int | None:
    """The first instant of their declared bounds; None if one has none."""
    bounds = [entry.slice.declared for entry in entries]
    known = [each.start for each in bounds if each is not None]
    return min(known) if len(known) == len(bounds) else None


def _many(entries: Sequence[SliceEntry], one: str = "", several: str = "") -> str:
    verb = one if len(entries) == 1 else several
    return f"{len(entries):,} slice{'s' * (len(entries) != 1)}{' ' * bool(verb)}{verb}"


def _them(entries: Sequence[SliceEntry]) -> str:
    return "it" if len(entries) == 1 else "them"
