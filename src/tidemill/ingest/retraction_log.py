"""The retraction log `slices/retractions.ndjson`: one durable line for each retraction.

The line is the commit point, and records everything that the retraction changes: which batches are undone,
which slices go through the gate again, and the outcome of the retracted one. So a crash at any later point is
finished from it, and the ledger can be rebuilt. Lines are never removed.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from tidemill.ingest.append_log import LineFile, Tail
from tidemill.model.errors import DamageError, StorageError
from tidemill.model.failpoints import failpoint
from tidemill.model.slices import Counts, SliceEntry, SliceStatus
from tidemill.model.time import Interval
from tidemill.storage import layout
from tidemill.storage.state.protocol import Ledger, Logs, Retraction, SliceResult, State

log = logging.getLogger(__name__)

LOST: Final = "lost"  # in place of how a slice was read: the part that said so is damaged


@dataclass(frozen=True, slots=True)
class RetractionLine:
    """A retraction with what it undoes. `outcome` is the outcome of the slice, None if it was not decided."""

    act: Retraction
    undone: Sequence[str]  # batches whose parts leave raw and quarantine
    decisions: Mapping[str, int]  # of the slices sent back, and of the one retracted
    outcome: SliceResult | None = None
    batch: str | None = None  # that decided `outcome`
    readings: Mapping[str, str] = field(default_factory=dict)  # how slices sent back were read, where known


class RetractionLog:
    """The log of one warehouse."""

    def __init__(self, warehouse: Path) -> None:
        self._file = LineFile(warehouse, layout.RETRACTIONS, _parse)

    def append(self, state: State, line: RetractionLine) -> RetractionLine:
        """Make it durable and return it with its number. The stream must have no unfinished retraction."""
        with self._file.locked(state):
            tail = self._settle(state)
            waiting = {one.act.stream for one in self._unapplied(state, _number(tail))}
            assert line.act.stream not in waiting, "an act of the stream is unfinished"
            numbered = replace(line, act=replace(line.act, n=_number(tail) + 1))
            self._file.append([_text(numbered)], tail, "record the retraction")
            self._file.record(state)
        failpoint("retract.after_log")
        return numbered

    def unfinished(self, state: State, stream: str) -> RetractionLine | None:
        """The retraction of a stream that is in progress, or was interrupted by a crash: only its last one
        can be.

        While there is one, raw may already lack what it removes while the state does not know. A reader of
        raw that does not hold the tick lock must check this after it took its snapshot.
        """
        return self.all_unfinished(state).get(stream)

    def all_unfinished(self, state: State) -> dict[str, RetractionLine]:
        """The same for all streams that have one. One that cannot be finished holds up only its own
        stream."""
        if not self._file.path.exists() and not state.retractions():
            return {}
        with self._file.locked(state):
            found = self._unapplied(state, _number(self._settle(state)))
        return {line.act.stream: line for line in found}

    def lines(self, state: Logs | None = None) -> Iterator[RetractionLine]:
        """All lines, in order. DamageError if one is missing or changed."""
        yield from self._file.all(state.log_head(self._file.name) if state is not None else None)

    def readings(self, state: Logs, slices: Collection[str]) -> dict[str, str]:
        """How the records of slices that were sent back were read before, where that is known."""
        found: dict[str, str] = {}
        for line in self.lines(state):
            for name in line.act.again.keys() & slices:
                found[name] = line.readings.get(name, "")
        return {name: reading for name, reading in found.items() if reading}

    def record(self, state: State) -> None:
        """Record the log in the state, after `recover` made a new one."""
        self._file.take(state)

    def put_back(self, lines: Sequence[RetractionLine]) -> None:
        """Append retractions that the log has lost, while there is no state."""
        with self._file.locked():
            self._file.append([_text(line) for line in lines], self._file.tail(), "record the retractions")

    def repair(self, state: State) -> bool:
        """If the log is damaged, rewrite it from the state: from its copy of the lines, else from the ledger.
        Whether it was."""
        with self._file.locked(state):
            damaged = self._file.is_damaged(state)
            if damaged:
                self._rewrite(state)
            else:
                self._settle(state)
        return damaged

    def _settle(self, state: State) -> Tail[RetractionLine]:
        """The last line of the log, after it was repaired."""
        head = state.log_head(self._file.name)
        try:
            tail = self._file.tail(head)
        except DamageError as error:
            if head is None or self._file.is_another(head):
                raise
            log.warning("the log of retractions is rewritten from the state: %s", error)
            return self._rewrite(state)
        if state.retractions() > _number(tail):  # the log was lost, or is an old copy
            return self._rewrite(state)
        return tail

    def _rewrite(self, state: State) -> Tail[RetractionLine]:
        if not self._file.restore(state):
            state.forget_log(self._file.name)
            self._file.replace([_text(line) for line in retractions_in(state.slices())])
        self._file.record(state)
        return self._file.tail()

    def _unapplied(self, state: State, last: int) -> list[RetractionLine]:
        """Retractions that the state does not know yet, at most one for each stream."""
        known = state.retractions()
        if known == last:  # the usual case: nothing is read
            return []
        found = _not_applied(state, self._file.all(state.log_head(self._file.name)))
        if len({line.act.stream for line in found}) < len(found):
            raise StorageError(
                f"the state knows {known} retractions, the warehouse has {last}",
                where=str(self._file.path),
                hint="run `tidemill recover`: it rebuilds the state from the warehouse",
            )
        return found


def _number(tail: Tail[RetractionLine]) -> int:
    return tail.line.act.n if tail.line is not None else 0


def _not_applied(state: Ledger, lines: Iterable[RetractionLine]) -> list[RetractionLine]:
    """A slice is retracted once, so its entry shows whether the retraction was applied. Slices can be sent
    back more often: their entries count how often."""
    found: list[RetractionLine] = []
    sent: Counter[str] = Counter()  # by slice, in the lines so far
    for line in lines:
        sent.update(line.act.again.keys())
        name = line.act.slice or next(iter(line.act.again), "")
        entry = state.slice(name) if name else None
        if line.act.slice:
            is_applied = entry is not None and entry.status is SliceStatus.RETRACTED
        else:
            is_applied = entry is not None and entry.attempt >= sent[name]
        if not is_applied:
            found.append(line)
    return found


def is_deciding_again(state: Ledger, stream: str) -> bool:
    """Whether slices that were sent back still wait; outputs made now would miss them for a moment. Slices
    that were never decided come after all that were, so it is enough to look at the oldest pending one."""
    return any(entry.attempt for entry in state.pending(stream, 1)[:1])


def retractions_in(entries: Sequence[SliceEntry]) -> list[RetractionLine]:
    """The retractions according to a ledger. Which of them sent a slice back is not known any more, only how
    often: it is attributed to the last ones that can have done it, which gives the same ledger."""
    gone = [entry for entry in entries if entry.status is SliceStatus.RETRACTED]
    gone.sort(key=lambda entry: (entry.retracted_at or 0, entry.seq))
    again: list[dict[str, SliceEntry]] = [{} for _ in gone]
    for entry in entries:
        if entry.attempt:
            end = gone.index(entry) if entry in gone else len(gone)
            acts = [n for n in range(end) if gone[n].slice.stream == entry.slice.stream]
            for n in acts[-entry.attempt :]:
                again[n][entry.id] = entry
    return [
        line_of(n, entry, entry.retract_reason or "", entry.retracted_at or 0, (), list(sent.values()), {})
        for n, (entry, sent) in enumerate(zip(gone, again, strict=True), 1)
    ]


def _read_as(again: Sequence[SliceEntry], readings: Mapping[str, str]) -> dict[str, str]:
    """By slice what is known by batch."""
    return {e.id: readings[e.batch] for e in again if e.batch is not None and e.batch in readings}


def sent_back(
    stream: str,
    reason: str,
    at: int,
    undone: Sequence[str],
    again: Sequence[SliceEntry],
    readings: Mapping[str, str],
) -> RetractionLine:
    """The line for slices that go through the gate again because the results of these batches are damaged.
    `readings`: how batches read their records, where known."""
    return RetractionLine(
        act=Retraction(
            n=0,
            stream=stream,
            slice="",
            reason=reason,
            at=at,
            again={e.id: _accepted(e) for e in again},
        ),
        undone=tuple(undone),
        decisions={e.id: e.decision for e in again},
        readings={**{e.id: LOST for e in again}, **_read_as(again, readings)},
    )


def _accepted(entry: SliceEntry) -> int:
    return entry.accepted_before if entry.accepted_before is not None else entry.counts.accepted


def line_of(
    n: int,
    entry: SliceEntry,
    reason: str,
    at: int,
    undone: Sequence[str],
    again: Sequence[SliceEntry],
    readings: Mapping[str, str],
) -> RetractionLine:
    """The line for retracting `entry`; this entry and the entries of `again` are as the ledger has them.
    `readings`: how batches read their records, where known."""
    evaluated = entry.batch is not None or entry.counts.records or entry.error
    return RetractionLine(
        act=Retraction(
            n=n,
            stream=entry.slice.stream,
            slice=entry.id,
            reason=reason,
            at=at,
            again={e.id: _accepted(e) for e in again},
        ),
        undone=tuple(undone),
        decisions={e.id: e.decision for e in (entry, *again)},
        outcome=SliceResult(
            entry.id, entry.counts, entry.observed, entry.watermark, entry.error, entry.decision
        )
        if evaluated
        else None,
        batch=entry.batch,
        readings=_read_as(again, readings),
    )


def _text(line: RetractionLine) -> bytes:
    outcome = line.outcome
    fields = {
        **asdict(line.act),
        "undone": list(line.undone),
        "judgements": dict(line.decisions),
        "batch": line.batch,
        **({"readings": dict(line.readings)} if line.readings else {}),
        "outcome": None
        if outcome is None
        else {
            **asdict(outcome.counts),
            "observed": [outcome.observed.start, outcome.observed.end] if outcome.observed else None,
            "watermark": outcome.watermark,
            "error": outcome.error,
        },
    }
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def _parse(text: bytes) -> RetractionLine | None:
    try:
        fields = json.loads(text)
        act = Retraction(
            n=int(fields["n"]),
            stream=str(fields["stream"]),
            slice=str(fields["slice"]),
            reason=str(fields["reason"]),
            at=int(fields["at"]),
            again={str(name): int(count) for name, count in fields["again"].items()},
        )
        decisions = {str(name): int(count) for name, count in fields["judgements"].items()}
        return RetractionLine(
            act=act,
            undone=tuple(str(batch) for batch in fields["undone"]),
            decisions=decisions,
            outcome=_outcome(act.slice, fields["outcome"], decisions) if fields["outcome"] else None,
            batch=str(fields["batch"]) if fields["batch"] is not None else None,
            readings={str(name): str(one) for name, one in fields.get("readings", {}).items()},
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None


def _outcome(slice_id: str, fields: Mapping[str, object], decisions: Mapping[str, int]) -> SliceResult:
    rejects, observed, watermark = fields["rejects"], fields["observed"], fields["watermark"]
    if not isinstance(rejects, dict) or not isinstance(observed, list | None):
        raise TypeError("not an outcome")
    numbers = ("records", "accepted", "duplicate", "conflict", "rejected", "late")
    counts = {name: int(str(fields[name])) for name in numbers}
    return SliceResult(
        slice=slice_id,
        counts=Counts(**counts, rejects={str(code): int(count) for code, count in rejects.items()}),
        observed=Interval(int(observed[0]), int(observed[1])) if observed else None,
        watermark=int(str(watermark)) if watermark is not None else None,
        error=str(fields["error"]) if fields["error"] is not None else None,
        decision=decisions[slice_id],
    )


def with_retractions(entries: Sequence[SliceEntry], lines: Sequence[RetractionLine]) -> list[SliceEntry]:
    """A ledger of landings only, with the effects of the retractions. The outcomes of the slices after that
    are in raw."""
    found = {entry.id: entry for entry in entries}
    for line in lines:
        act = line.act
        for name, accepted in act.again.items():
            if name in found:
                found[name] = replace(
                    found[name],
                    attempt=found[name].attempt + 1,
                    decision=line.decisions[name],
                    accepted_before=accepted,
                )
        if act.slice in found:
            found[act.slice] = _retracted(found[act.slice], line)
    return list(found.values())


def _retracted(entry: SliceEntry, line: RetractionLine) -> SliceEntry:
    retracted = replace(
        entry,
        status=SliceStatus.RETRACTED,
        decision=line.decisions[entry.id],
        accepted_before=None,
        retracted_at=line.act.at,
        retract_reason=line.act.reason,
    )
    if line.outcome is None:
        return retracted
    return replace(
        retracted,
        counts=line.outcome.counts,
        observed=line.outcome.observed,
        watermark=line.outcome.watermark,
        error=line.outcome.error,
    )
