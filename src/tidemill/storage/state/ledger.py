"""Follows the ledger of a stream: reads the entries after the known ones, at a cost that depends only on what
is new."""

from __future__ import annotations

from typing import Final

from tidemill.model.slices import SliceEntry, SliceStatus
from tidemill.storage.state.protocol import State

_FIRST: Final = 256  # entries read at once


def newer(state: State, stream: str, decided: int) -> tuple[list[SliceEntry], int]:
    """Entries after the offset `decided`, in ledger order, and the offset up to which all entries are decided
    now. Entries after that are returned again the next time."""
    limit: int | None = _FIRST if decided else None
    while True:
        found = state.slices(stream, newest=True, limit=limit)
        if limit is None or len(found) < limit or found[-1].seq <= decided:
            break
        limit *= 4
    new = [entry for entry in reversed(found) if entry.seq > decided]
    for entry in new:
        if entry.status is SliceStatus.PENDING:
            break
        decided = entry.seq
    return new, decided
