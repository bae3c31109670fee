"""What the ledger says of the slices whose rows a window may hold, asked for once and then followed.

A cache: nothing is decided here, and a retraction empties it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidemill.model.slices import SliceEntry, SliceStatus
from tidemill.model.time import MIN_INSTANT, Interval
from tidemill.state.protocol import State
from tidemill.streaming.rows import Place

_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class _Known:
    place: Place
    observed: Interval
    watermark: int


class Places:
    """The accepted slices of one stream."""

    def __init__(self, state: State, stream: str) -> None:
        self._state = state
        self._stream = stream
        self._known: dict[str, _Known] = {}
        self._newest = 0  # place in the ledger up to which all are known
        self._raw = -1

    def look(self, raw: int, *, anew: bool) -> None:
        """Learn of slices that came since, up to this version of raw; of all of them when some went."""
        if anew:
            self._known, self._newest, self._raw = {}, 0, -1
        if raw == self._raw:
            return
        limit = _AT_ONCE
        while True:
            entries = self._state.slices(self._stream, newest=True, limit=limit)
            if len(entries) < limit or entries[-1].seq <= self._newest:
                break
            limit *= 4
        waiting = [entry.seq for entry in entries if entry.status is SliceStatus.PENDING]
        for entry in entries:
            self._learn(entry)
        # Those that are pending now are looked at again, and so is everything after them.
        self._newest = min(waiting, default=max((e.seq for e in entries), default=0) + 1) - 1
        self._raw = raw

    def _learn(self, entry: SliceEntry) -> None:
        if entry.status is SliceStatus.ACCEPTED and entry.observed is not None:
            met = entry.watermark if entry.watermark is not None else MIN_INSTANT
            self._known[entry.id] = _Known(Place(entry.seq, entry.name), entry.observed, met)

    def touching(self, span: Interval) -> dict[str, Place]:
        """Slices with rows that may count at an instant of `span`: where they are, or came late."""
        return {
            name: known.place
            for name, known in self._known.items()
            if known.observed.start < span.end
            and (known.observed.end > span.start or known.watermark >= span.start)
        }
