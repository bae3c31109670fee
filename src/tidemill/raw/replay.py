"""Replays quarantine: records that were not accepted land again as a new slice and are decided again.

If the process dies after that slice has landed and before the records have left quarantine, the next round
finishes the replay: no record is decided twice, and none is lost.
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
    """Land what is in quarantine; nothing if it is empty.

    Windows count rejects for the slice that they came in, so a stream with datasets gets one slice for each
    slice that records were rejected from.
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
    """A record that names no tenant keeps the tenant of the token it came with."""
    entries = {name: state.slice(name) for name in {name for name, _ in found.unnamed.values()}}
    senders_of = {name: senders(entry.slice.metadata) for name, entry in entries.items() if entry is not None}
    sent = {
        at: senders_of[name][line]
        for at, (name, line) in found.unnamed.items()
        if line in senders_of.get(name, {})
    }
    return recorded(sent) if sent else None


def finish_replays(warehouse: Path, stream: Stream, state: Ledger, now: int) -> None:
    """Finish replays that a crash interrupted after the slice had landed: take its records out of quarantine
    before the slice is decided. The slice's id says which records they are."""
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
    """Id and content of a slice of these records that is not decided yet. Equal bytes are the same slice, so
    blank lines are appended until the id is free."""
    while True:
        name = slice_id(stream, None, hashlib.sha256(content).hexdigest())
        entry = state.slice(name)
        if entry is None or entry.status is SliceStatus.PENDING:
            return name, content
        content += b"\n"
