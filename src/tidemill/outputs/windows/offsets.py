"""Caches what the ledger says of the slices whose rows a window may contain.

It is updated as slices are accepted, and a retraction empties it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.model.slices import SliceEntry, SliceStatus
from tidemill.model.time import MIN_INSTANT, Interval
from tidemill.outputs.windows.extract import RowPosition
from tidemill.storage.state.ledger import newer
from tidemill.storage.state.protocol import State


@dataclass(frozen=True, slots=True)
class _KnownSlice:
    position: RowPosition
    observed: Interval
    watermark: int


class SliceOffsets:
    """The accepted slices of one stream."""

    def __init__(self, state: State, stream: str) -> None:
        self._state = state
        self._stream = stream
        self._known: dict[str, _KnownSlice] = {}
        self._decided = 0  # ledger offset up to which all are known
        self._raw = -1
        self._retractions = 0  # retractions that were applied when the ledger was read

    def refresh(self, raw: int, *, again: bool) -> None:
        """Read the slices that came since, up to this version of raw; all of them if one was retracted, since
        others are decided again then."""
        retractions = self._state.retractions()
        if again or retractions != self._retractions:
            self._known, self._decided, self._raw = {}, 0, -1
            self._retractions = retractions
        if raw == self._raw:
            return
        entries, self._decided = newer(self._state, self._stream, self._decided)
        for entry in entries:
            self._learn(entry)
        self._raw = raw

    def _learn(self, entry: SliceEntry) -> None:
        if entry.status is SliceStatus.ACCEPTED and entry.observed is not None:
            watermark = entry.watermark if entry.watermark is not None else MIN_INSTANT
            self._known[entry.id] = _KnownSlice(RowPosition(entry.seq, entry.name), entry.observed, watermark)

    def touching(self, span: Interval) -> dict[str, RowPosition]:
        """Slices with rows that may count at an instant of `span`, on time or late."""
        return {
            name: known.position
            for name, known in self._known.items()
            if known.observed.start < span.end
            and (known.observed.end > span.start or known.watermark >= span.start - 1)
        }
