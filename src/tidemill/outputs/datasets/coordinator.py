"""Finds which windows of a stream are stale or have become ready, and queues them.

It assigns new slices to the windows they touch, and evaluates only the windows that changed or whose check
time has come. It builds nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from tidemill.config import Stream
from tidemill.formats.arrays import Ints
from tidemill.model.failpoints import failpoint
from tidemill.model.slices import SliceEntry, SliceStatus
from tidemill.model.time import Interval, format_duration
from tidemill.model.windows import Evaluation, Member, Window
from tidemill.outputs.datasets.announce import withdrawn
from tidemill.outputs.datasets.pending_slices import PendingSlices
from tidemill.outputs.datasets.rules import (
    COVERAGE,
    GAP,
    OBSERVED,
    WATERMARK,
    WindowRules,
    evaluate,
    windows_of,
)
from tidemill.outputs.datasets.slice_spans import event_times, has_rows_of_its_own, rows_held, runs_of
from tidemill.storage.state.protocol import State
from tidemill.storage.tables.snapshot import Snapshot

log = logging.getLogger(__name__)

AT_ONCE: Final = 1_000  # slices assigned, or windows evaluated, in one transaction


@dataclass(slots=True)
class Coordinated:
    """What one coordination of a stream did."""

    assigned: int = 0  # slices assigned to their windows
    evaluated: int = 0
    queued: int = 0
    withdrawn: int = 0
    ignored: int = 0  # slices newly found late for a window
    waiting: Counter[str] = field(default_factory=Counter)  # windows left waiting, by reason

    @property
    def idle(self) -> bool:
        return not (self.assigned or self.queued or self.withdrawn)


class Coordinator:
    """Watches over the windows of one stream."""

    def __init__(
        self,
        stream: Stream,
        rules: WindowRules,
        state: State,
        raw: Callable[[], Snapshot | None],
        columns: Callable[[str], str | None],
        expired: Callable[[], Mapping[str, Iterable[int]]],
    ) -> None:
        self.stream = stream
        self.rules = rules
        self.state = state
        self._raw = raw
        self._columns = columns  # the columns of a dataset file, by name
        self._expired = expired  # by slice, the starts of the windows that its expired rows were in

    def coordinate(self, now: int, seen: int | None = None) -> Coordinated:
        """Bring the queue up to date with the ledger and with `now`. `seen` is the newest ledger offset when
        the round began; None: now."""
        if any(entry.attempt for entry in self.state.slices(self.stream.name, SliceStatus.PENDING)):
            # Slices were sent back by a retraction: windows must not lose what is about to return.
            return Coordinated()
        done = Coordinated(assigned=self.assign())
        failpoint("windows.after_lay")
        if self.rules.by_watermark and self.rules.watermark is not None:
            self.state.mark_reached_due(self.stream.name, WATERMARK, self.rules.watermark)
            self.state.mark_receded_due(self.stream.name, self.rules.watermark)
        if self.rules.raw_from is not None:
            # No later slice can complete windows that began before it.
            for reason in (COVERAGE, GAP, WATERMARK):
                self.state.mark_reached_due(
                    self.stream.name, reason, self.rules.raw_from + self.rules.span - 1
                )
        while found := self.state.due(self.stream.name, now, AT_ONCE):
            pending = PendingSlices(self.state.undecided(self.stream.name), self.rules.future, seen)
            evaluated = [self._evaluate(window, members, now, pending) for window, members in found]
            void = set(self.state.evaluate(evaluated))
            for (window, members), decision in zip(found, evaluated, strict=True):
                if decision.key not in void:
                    _count(done, window, members, decision)
            if len(void) == len(
                evaluated
            ):  # builders changed all of them meanwhile; the next round evaluates them
                break
        failpoint("windows.after_evaluate")
        return done

    def assign(self) -> int:
        """Assign slices to the windows they touch; how many."""
        name, assigned = self.stream.name, 0
        span, declared = self.rules.span, self.rules.declared
        known = self.state.layout(name)
        if known is not None and known[0] == span and known[1] != declared:
            log.info("windows are evaluated again: their rules or columns changed", extra={"stream": name})
        elif known is None or known[0] != span:
            log.info("windows are now of %s", format_duration(span), extra={"stream": name})
        self.state.declare_layout(name, span, declared)
        while entries := self.state.unassigned_slices(name, AT_ONCE):
            self._assign(entries)
            assigned += len(entries)
        return assigned

    def _evaluate(
        self, window: Window, members: Sequence[Member], now: int, pending: PendingSlices
    ) -> Evaluation:
        if window.file is not None and window.columns is None:  # built before columns were recorded
            window = replace(window, columns=self._columns(window.file))
        decision = evaluate(window, members, self.rules, now, pending)
        if not decision.withdraw:
            return decision
        reason = decision.detail or decision.reason or "a slice was retracted"
        return replace(decision, events=[withdrawn(window.key, window.revision, reason, now)])

    def _kept(self, starts: Iterable[int]) -> Iterable[int]:
        """The windows without those whose datasets have expired."""
        if self.rules.kept_from is None:
            return starts
        return [start for start in starts if not self.rules.is_forgotten(start)]

    def _assign(self, entries: Sequence[SliceEntry]) -> None:
        """Assign slices to the windows they touch: by declared bounds, by their rows, and by what they
        cover."""
        span = self.rules.span
        windows = {entry.id: self._declared_windows(entry) for entry in entries}
        runs: dict[str, dict[int, list[Interval]]] = {}
        unread = {entry.id: entry for entry in entries if has_rows_of_its_own(entry)}
        for entry, times in event_times(self._raw, list(unread.values())):
            windows[entry.id].update((np.unique(times // span) * span).tolist())
            if entry.slice.declared is None:
                runs[entry.id] = self._covered(times)
                windows[entry.id].update(runs[entry.id])
            if times.size >= rows_held(entry):
                del unread[entry.id]
        for entry, starts in self._touched_before(list(unread.values())):
            windows[entry.id].update(starts)
            if entry.observed is not None and runs.get(entry.id):
                runs[entry.id].update({start: [entry.observed] for start in starts})
        kept = {slice_id: self._kept(sorted(starts)) for slice_id, starts in windows.items()}
        self.state.assign(self.stream.name, kept, runs)

    def _declared_windows(self, entry: SliceEntry) -> set[int]:
        declared = entry.slice.declared
        return set() if declared is None else set(windows_of(declared, self.rules.span))

    def _touched_before(self, entries: Sequence[SliceEntry]) -> Iterator[tuple[SliceEntry, set[int]]]:
        """Slices with expired rows, and the windows those touched. All of these windows are sealed; the times
        of the rows are no longer known."""
        if not entries or self.rules.raw_from is None:
            return
        expired = self._expired()
        for entry in entries:
            yield entry, set(expired.get(entry.id, ()))

    def _covered(self, times: Ints) -> dict[int, list[Interval]]:
        """The spans that rows at these times cover, by window."""
        if self.rules.coverage != OBSERVED:
            return {}
        found: dict[int, list[Interval]] = {}
        for run in runs_of(times, self.rules.gap_tolerance):
            for start in windows_of(run, self.rules.span):
                end = start + self.rules.span
                found.setdefault(start, []).append(Interval(max(run.start, start), min(run.end, end)))
        return found


def _count(done: Coordinated, window: Window, members: Sequence[Member], decision: Evaluation) -> None:
    done.evaluated += 1
    done.withdrawn += decision.withdraw
    known = {member.name for member in members if member.ignored is not None}
    done.ignored += len(decision.ignored.keys() - known)
    if not decision.ready:
        done.waiting[decision.reason or ""] += 1
    elif decision.desired != window.observed or decision.withdraw:
        done.queued += 1
