"""Quarantine, replayed: records that were not accepted leave it as a new slice, to be judged again.

A crash between the landing and the emptying of quarantine is finished by the next round: no record is judged
twice, and none is lost on the way.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from tidemill.config import Stream
from tidemill.ingest.landing import Landed, Landing, ReplayPiece
from tidemill.model.slices import SliceStatus, slice_id
from tidemill.raw.quarantine import REASONS, REPLAY, QuarantineReplay, take_away, take_out
from tidemill.raw.quarantine_tenants import recorded, senders
from tidemill.storage import layout
from tidemill.storage.state.protocol import Ledger
from tidemill.storage.tables.table import Table


def replay(
    warehouse: Path, stream: Stream, state: Ledger, landing: Landing, now: int, reason: str | None
) -> list[Landed]:
    """Land what is in quarantine; nothing when it is empty.

    Windows count the rejects of a slice as of that slice, so that a stream with datasets gets one slice for
    each that records were rejected from.
    """
    table = Table.existing(layout.quarantine(warehouse, stream.name))
    found = take_out(table, reason) if table is not None else None
    if table is None or found is None:
        return []
    pieces = [
        ReplayPiece(
            content=_undecided(state, stream.name, piece.content)[1],
            name=f"replay of {piece.records} records of {len(piece.slices)} slices",
            metadata=_senders(state, piece),
            replays=_root(state, piece) if stream.aggregation_span is not None else None,
        )
        for piece in _pieces(stream, found)
    ]
    landed = landing.land_replays(stream.name, pieces, arrival=now, source=REPLAY)
    take_away(table, found, reason, now)
    return landed


def _pieces(stream: Stream, found: QuarantineReplay) -> list[QuarantineReplay]:
    return [found] if stream.aggregation_span is None else found.by_slice()


def _root(state: Ledger, piece: QuarantineReplay) -> str:
    """The slice that the records came in first, however often they were replayed."""
    (name,) = piece.slices
    entry = state.slice(name)
    return name if entry is None or entry.slice.replays is None else entry.slice.replays


def _senders(state: Ledger, found: QuarantineReplay) -> str | None:
    """A record that names no tenant stays with whose token it came, wherever it goes."""
    entries = {name: state.slice(name) for name in {name for name, _ in found.unnamed.values()}}
    senders_of = {name: senders(entry.slice.metadata) for name, entry in entries.items() if entry is not None}
    sent = {
        at: senders_of[name][line]
        for at, (name, line) in found.unnamed.items()
        if line in senders_of.get(name, {})
    }
    return recorded(sent) if sent else None


def finish_replays(warehouse: Path, stream: Stream, state: Ledger, now: int) -> None:
    """A process may die when a replayed slice has landed and its records are still in quarantine: they
    are taken out before it is judged. Which ones they are, the slice's id says."""
    pending = state.slices(stream.name, SliceStatus.PENDING)
    waiting = {entry.id for entry in pending if entry.slice.source == REPLAY}
    table = Table.existing(layout.quarantine(warehouse, stream.name)) if waiting else None
    if table is None:
        return
    for reason in (None, *REASONS):
        found = take_out(table, reason)
        if found is None:
            continue
        ids = {_undecided(state, stream.name, piece.content)[0] for piece in _pieces(stream, found)}
        if ids <= waiting:
            take_away(table, found, reason, now)


def _undecided(state: Ledger, stream: str, content: bytes) -> tuple[str, bytes]:
    """A slice of these records that was not judged yet, and its id. The same bytes are the same slice, so
    records that come out of quarantine as they went in get one more blank line behind them."""
    while True:
        name = slice_id(stream, None, hashlib.sha256(content).hexdigest())
        entry = state.slice(name)
        if entry is None or entry.status is SliceStatus.PENDING:
            return name, content
        content += b"\n"
