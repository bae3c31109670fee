"""Accepted slices of one stream in ledger order, and a watermark that followers can rely on.

Each entry is read once, so that a call costs only what is new. It only reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidemill.config.stream import Stream
from tidemill.ingest.expiry_log import Loss
from tidemill.ingest.landing_notes import is_landing
from tidemill.ingest.retraction_log import is_deciding_again
from tidemill.model.errors import BusyError
from tidemill.model.slices import SliceEntry, SliceStatus
from tidemill.model.time import MIN_INSTANT, SECOND
from tidemill.raw.watermark import watermark_at
from tidemill.storage.state.ledger import newer
from tidemill.storage.state.protocol import State

# A landing reads the clock a moment before others can see that it is in progress.
SETTLE: Final = 2 * SECOND


@dataclass(frozen=True, slots=True)
class Feed:
    """A stream, and the ledger of its slices."""

    warehouse: Path
    stream: Stream
    state: State
    clock: Callable[[], int]
    lost: Callable[[], Sequence[Loss]] = tuple  # parts of raw that are lost for good


class AcceptedOffsets:
    """The accepted slices, by id, with their ledger offsets."""

    def __init__(self, feed: Feed) -> None:
        self.seqs: dict[str, int] = {}
        self._feed = feed
        self._decided = 0  # all entries up to here have their outcome
        self._retractions = feed.state.retractions()

    def check(self) -> None:
        """Raise BusyError while slices that a retraction sent back wait: the offset is then unknown."""
        name = self._feed.stream.name
        if is_deciding_again(self._feed.state, name):
            raise BusyError(
                f"slices of {name} wait to be decided again after a retraction",
                hint="`tidemill run --once` decides them",
            )

    def newly_accepted(self) -> list[SliceEntry]:
        """Slices accepted since the last call; all of them after a retraction."""
        acts = self._feed.state.retractions()
        if acts != self._retractions:
            self._retractions, self._decided = acts, 0
            self.seqs.clear()
        new, self._decided = newer(self._feed.state, self._feed.stream.name, self._decided)
        found = [entry for entry in new if entry.status is SliceStatus.ACCEPTED and entry.id not in self.seqs]
        self.seqs.update((entry.id, entry.seq) for entry in found)
        return found


class StreamWatermark:
    """How far a stream has come. What was published must hold: no slice may be in progress that is on time
    and older."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._instant = MIN_INSTANT

    def current(self, *, live: bool) -> int | None:
        """The current watermark; with `live`, only as far as landings in progress cannot contradict it. Call
        it before looking at the ledger, which then contains what moved it."""
        stream, state = self._feed.stream, self._feed.state
        now = self._feed.clock() - (SETTLE if live else 0)
        landing = live and is_landing(self._feed.warehouse)
        pending = state.pending(stream.name, 1)[:1]
        if pending:
            now = min(now, pending[0].slice.arrival)
        if not landing:
            self._instant = max(self._instant, now)
        progress = state.progress(stream.name)
        clocks = state.clocks(stream.name)
        if stream.in_event_time:
            return watermark_at(stream, clocks, progress, self._instant)
        # By arrival: what arrived at this very instant may still be in progress.
        return self._instant - 1 if self._instant > MIN_INSTANT else None
