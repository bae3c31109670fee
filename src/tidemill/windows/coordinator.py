"""Finds which windows of a stream are stale or have become ready, and queues them.

It enters new slices in the windows they touch and judges the windows that something happened to, or whose
time has come: never all of them. It builds nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemill.config import Stream
from tidemill.lake.snapshot import Range, Snapshot
from tidemill.model.failpoints import failpoint
from tidemill.model.slices import SliceEntry, SliceStatus
from tidemill.model.time import Interval, format_duration
from tidemill.model.windows import Judged, Member, Window
from tidemill.state.protocol import State
from tidemill.windows.announce import withdrawn
from tidemill.windows.pending import PendingSlices
from tidemill.windows.rules import WindowRules, judge, windows_of

log = logging.getLogger(__name__)

AT_ONCE: Final = 1_000  # slices laid, or windows judged, in one transaction
SPARSE: Final = 10_000  # a slice without declared bounds that spans more windows touches those it has rows in


@dataclass(slots=True)
class Coordinated:
    """What one look at the windows of a stream did."""

    laid: int = 0  # slices entered in their windows
    judged: int = 0
    queued: int = 0
    withdrawn: int = 0
    ignored: int = 0  # slices newly found late for a window
    waiting: Counter[str] = field(default_factory=Counter)  # windows left waiting, by reason

    @property
    def idle(self) -> bool:
        return not (self.laid or self.queued or self.withdrawn)


class Coordinator:
    """Watches over the windows of one stream."""

    def __init__(
        self,
        stream: Stream,
        rules: WindowRules,
        state: State,
        raw: Callable[[], Snapshot | None],
        columns: Callable[[str], str | None] = lambda _file: None,
    ) -> None:
        self.stream = stream
        self.rules = rules
        self.state = state
        self._raw = raw
        self._columns = columns  # of a dataset file, by name

    def coordinate(self, now: int, seen: int | None = None) -> Coordinated:
        """Bring the queue up to date with the ledger and with `now`. `seen`: the newest place in the ledger
        when the round began; None: the round begins here."""
        if any(entry.attempt for entry in self.state.slices(self.stream.name, SliceStatus.PENDING)):
            return Coordinated()  # sent back by a retraction: windows have not lost what is on its way
        done = Coordinated(laid=self.lay())
        failpoint("windows.after_lay")
        while found := self.state.due(self.stream.name, now, AT_ONCE):
            pending = PendingSlices(self.state.undecided(self.stream.name), self.rules.future, seen)
            judged = [self._judge(window, members, now, pending) for window, members in found]
            void = set(self.state.judge(judged))
            for (window, members), decision in zip(found, judged, strict=True):
                if decision.key not in void:
                    _count(done, window, members, decision)
            if len(void) == len(judged):  # builders moved all of them on meanwhile; the next round sees why
                break
        failpoint("windows.after_judge")
        return done

    def lay(self) -> int:
        """Enter slices in the windows they touch; how many."""
        name, laid = self.stream.name, 0
        span, declared = self.rules.span, self.rules.declared
        known = self.state.layout(name)
        if known is not None and known[0] == span and known[1] != declared:
            log.info("windows are evaluated again: their rules or columns changed", extra={"stream": name})
        elif known is None or known[0] != span:
            log.info("windows are now of %s", format_duration(span), extra={"stream": name})
        self.state.lay_out(name, span, declared)
        while entries := self.state.unlaid(name, AT_ONCE):
            self.state.lay(name, {entry.id: self._kept(self._touched(entry)) for entry in entries})
            laid += len(entries)
        return laid

    def _judge(self, window: Window, members: Sequence[Member], now: int, pending: PendingSlices) -> Judged:
        if window.file is not None and window.columns is None:  # built before columns were recorded
            window = replace(window, columns=self._columns(window.file))
        decision = judge(window, members, self.rules, now, pending)
        if not decision.withdraw:
            return decision
        reason = decision.detail or decision.reason or "a slice was retracted"
        return replace(decision, events=[withdrawn(window.key, window.revision, reason, now)])

    def _kept(self, starts: Iterable[int]) -> Iterable[int]:
        """Without windows whose datasets have expired."""
        if self.rules.kept_from is None:
            return starts
        return [start for start in starts if not self.rules.is_forgotten(start)]

    def _touched(self, entry: SliceEntry) -> Iterable[int]:
        """Starts of the windows that a slice touches: by its bounds, and by rows outside of them."""
        span, bounds = self.rules.span, entry.bounds
        if bounds is None:  # nothing declared and nothing accepted
            return ()
        starts = windows_of(bounds, span)
        declared = entry.slice.declared
        if declared is None:
            return self._with_rows(entry, None) if len(starts) > SPARSE else starts
        observed = entry.observed
        if observed is None or (declared.start <= observed.start and observed.end <= declared.end):
            return starts
        return sorted({*starts, *self._with_rows(entry, declared)})

    def _with_rows(self, entry: SliceEntry, outside: Interval | None) -> set[int]:
        """Starts of the windows that hold rows of the slice (outside of these bounds)."""
        snapshot, observed = self._raw(), entry.observed
        assert snapshot is not None
        assert observed is not None
        ranges: dict[str, Range] = {
            "event_time": (observed.start, observed.end - 1),
            "slice": (entry.id, entry.id),
        }
        found: set[int] = set()
        for path in snapshot.paths(snapshot.select(None, ranges)):
            table = pq.read_table(path, partitioning=None, columns=["slice", "event_time"])
            mine = table.filter(pc.equal(table.column("slice").cast(pa.string()), entry.id))
            at = mine.column("event_time").cast(pa.int64()).to_numpy()
            if outside is not None:
                at = at[(at < outside.start) | (at >= outside.end)]
            found.update((np.unique(at // self.rules.span) * self.rules.span).tolist())
        return found


def _count(done: Coordinated, window: Window, members: Sequence[Member], decision: Judged) -> None:
    done.judged += 1
    done.withdrawn += decision.withdraw
    known = {member.name for member in members if member.ignored is not None}
    done.ignored += len(decision.ignored.keys() - known)
    if not decision.ready:
        done.waiting[decision.reason or ""] += 1
    elif decision.desired != window.observed or decision.withdraw:
        done.queued += 1
