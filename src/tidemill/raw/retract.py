"""`retract`: takes a slice back; afterwards everything is as if it had never arrived.

The plan is a list of steps, and the run does exactly those. Nothing is decided here: what may depend on the
slice leaves raw and quarantine, and those slices go through the gate again, in ledger order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidemill.ingest.expiry_log import QUARANTINE
from tidemill.ingest.retraction_log import RetractionLine, RetractionLog, line_of
from tidemill.model.errors import InputError
from tidemill.model.failpoints import failpoint
from tidemill.model.slices import SliceEntry, SliceStatus
from tidemill.model.time import MIN_INSTANT, format_instant
from tidemill.raw.accept.catch_up import ensure_runs, rebuild_runs
from tidemill.raw.accept.slice_clocks import Passing, SliceClocks, recorded
from tidemill.raw.batch_removal import (
    clocks_left,
    progress_left,
    quarantined_rows,
    readings_left,
    remove_batches,
)
from tidemill.raw.expiry import slices_expired
from tidemill.raw.quarantine import REPLAY
from tidemill.raw.watermark import TimeRules
from tidemill.storage import layout
from tidemill.storage.state.protocol import Retraction
from tidemill.storage.state.slice_rules import after_retraction
from tidemill.storage.tables.table import Table

if TYPE_CHECKING:
    from tidemill.ingest.warehouse import Warehouse
    from tidemill.raw.accept.batch import Acceptor

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecordRetracted:
    """The slice is marked as retracted; its bytes and the reason stay in the ledger."""

    slice: str
    name: str
    reason: str
    accepted: int  # records that were accepted from it

    def __str__(self) -> str:
        return (
            f"retract slice {self.slice[:12]} ({self.name}), {self.accepted} records accepted: {self.reason}"
        )


@dataclass(frozen=True, slots=True)
class Undo:
    """The parts of a batch leave raw and quarantine."""

    batch: str
    slices: Sequence[str]
    accepted: int

    def __str__(self) -> str:
        return f"undo batch {self.batch} of {len(self.slices)} slices, {self.accepted} records accepted"


@dataclass(frozen=True, slots=True)
class DecideAgain:
    """A slice of an undone batch goes through the gate again."""

    slice: str
    name: str
    accepted: int

    def __str__(self) -> str:
        return f"accept slice {self.slice[:12]} ({self.name}) again, {self.accepted} records accepted before"


Step = RecordRetracted | Undo | DecideAgain


@dataclass(frozen=True, slots=True)
class RetractionPlan:
    """The steps of a retraction, in order; `why` explains how far it reaches."""

    entry: SliceEntry
    reason: str
    at: int
    why: str
    steps: Sequence[Step]

    @property
    def slice(self) -> str:
        return self.entry.id

    @property
    def undone(self) -> tuple[str, ...]:
        return tuple(step.batch for step in self.steps if isinstance(step, Undo))

    @property
    def again(self) -> tuple[str, ...]:
        return tuple(step.slice for step in self.steps if isinstance(step, DecideAgain))


def plan_retraction(warehouse: Warehouse, slice_id: str, reason: str, now: int) -> RetractionPlan:
    """The plan for a slice, by its id or a prefix of it. Nothing is changed."""
    entry = warehouse.slice(slice_id)
    stream = entry.slice.stream
    declared = warehouse.project.stream(stream)
    if not reason.strip():
        raise InputError("a retraction needs a reason", hint="give it with --reason")
    if entry.status is SliceStatus.RETRACTED:
        when = format_instant(entry.retracted_at) if entry.retracted_at is not None else "before"
        raise InputError(
            f"slice {entry.id[:12]} was retracted at {when}: {entry.retract_reason}",
            hint="`tidemill ledger --status retracted` lists them; its records can land again in other bytes",
        )
    entries = warehouse.state.slices(stream)
    held = _quarantined_rows(warehouse, stream, entries) if entry.slice.source == REPLAY else {}
    rules, in_order = TimeRules.of(declared), declared.in_order
    plan = plan_over(entries, entry, reason.strip(), now, rules=rules, held=held, in_order=in_order)
    _check_not_sealed(warehouse, plan, entries)
    return plan


def _quarantined_rows(warehouse: Warehouse, stream: str, entries: Sequence[SliceEntry]) -> dict[str, int]:
    """Rows in quarantine by slice. Those that have expired would be gone anyway."""
    expired = warehouse.expiries.horizons(stream).get(QUARANTINE, MIN_INSTANT)
    old = {e.id: e.counts.conflict + e.counts.rejected for e in entries if e.slice.arrival < expired}
    return {**quarantined_rows(Table.existing(layout.quarantine(warehouse.root, stream))), **old}


def _check_not_sealed(warehouse: Warehouse, plan: RetractionPlan, entries: Sequence[SliceEntry]) -> None:
    """What was made from raw that has expired cannot be made again, with or without the slice."""
    stream = plan.entry.slice.stream
    sealed, raw = warehouse.expiries.seal(stream), Table.existing(layout.raw(warehouse.root, stream))
    if sealed is None or raw is None or not plan.undone:
        return
    gone = slices_expired(raw)
    undone, expired = set(plan.undone), {entry.batch for entry in entries if entry.id in gone}
    for entry in entries:
        early = entry.observed is not None and entry.observed.start < sealed
        if entry.batch in undone and (early or entry.batch in expired):
            which = "it" if entry.id == plan.slice else f"slice {entry.id[:12]}, decided again with it,"
            raise InputError(
                f"slice {plan.slice[:12]} cannot be retracted: raw before {format_instant(sealed)} has "
                f"expired, and {which} is of that time, or of a batch that is",
                hint="what was made of it is sealed; a longer retention.raw keeps slices retractable longer",
            )


def plan_over(
    entries: Sequence[SliceEntry],
    entry: SliceEntry,
    reason: str,
    at: int,
    *,
    rules: TimeRules,
    held: Mapping[str, int],
    in_order: bool = False,
) -> RetractionPlan:
    """The plan, from the ledger of the stream alone (`held`: for a replayed slice, rows in quarantine by
    slice; `rules`: what the stream declares about event time; `in_order`: its metrics depend on earlier
    events)."""
    undone, why = _affected_batches(entries, entry, rules, in_order=in_order)
    if entry.slice.source == REPLAY and (replayed := _replayed_batches(entries, entry, held) - undone):
        undone |= replayed
        why += "; records that it replayed from quarantine are decided in their first slice"
    members: dict[str, list[SliceEntry]] = {}
    for other in entries:  # in ledger order, which is then that of the batches
        if other.batch in undone and other.status is not SliceStatus.RETRACTED:
            members.setdefault(str(other.batch), []).append(other)
    steps: list[Step] = [RecordRetracted(entry.id, entry.slice.name, reason, entry.counts.accepted)]
    steps += [
        Undo(batch, [e.id for e in found], sum(e.counts.accepted for e in found))
        for batch, found in members.items()
    ]
    again = sorted((e for found in members.values() for e in found if e.id != entry.id), key=lambda e: e.seq)
    steps += [DecideAgain(e.id, e.slice.name, e.counts.accepted) for e in again]
    return RetractionPlan(entry, reason, at, why, steps)


def _affected_batches(
    entries: Sequence[SliceEntry], gone: SliceEntry, rules: TimeRules, *, in_order: bool
) -> tuple[set[str], str]:
    """The batches to undo: the slice's own, and all later ones if anything in them may depend on it."""
    if gone.status is SliceStatus.FAILED:
        return set(), "nothing was accepted from it: it could not be read"
    later = [e for e in entries if e.seq > gone.seq and e.status is SliceStatus.ACCEPTED]
    own = {str(gone.batch)} if gone.status is SliceStatus.ACCEPTED else set()
    why = _why_later(entries, gone, later, rules)
    if why is None and in_order and later and gone.observed is not None:
        why = "the metrics of the stream look at what came before"
    if why is not None:
        return own | {str(e.batch) for e in later}, f"it and all that followed: {why}"
    if not own:
        return own, "it was not accepted yet"
    return own, "only the batch it was accepted in: nothing that followed can be due to it"


def _why_later(
    entries: Sequence[SliceEntry], gone: SliceEntry, later: Sequence[SliceEntry], rules: TimeRules
) -> str | None:
    """Why later slices may depend on the slice; None if they cannot."""
    if not later:
        return None
    if gone.status is SliceStatus.PENDING:
        return "they met the watermark that it left before it was sent back"
    if any(e.status is SliceStatus.PENDING and e.attempt for e in entries):
        return "slices before them are still to be decided again"
    if any(e.status is SliceStatus.FAILED and e.batch == gone.batch for e in entries):
        return "a slice of its batch could not be read before, and may be now"
    for e in later:
        if e.counts.duplicate or e.counts.conflict:
            return f"slice {e.id[:12]} has duplicates or conflicts, which may be with it"
    if gone.observed is None:
        return None  # nothing of it was accepted, so no clock moved
    met = _other_watermark(entries, gone, rules)
    if met is not None:
        return f"slice {met[:12]} met the watermark that it left"
    return _later_progress(entries, gone, later)


def _other_watermark(entries: Sequence[SliceEntry], gone: SliceEntry, rules: TimeRules) -> str | None:
    """The first slice that is not decided again anyway and met another watermark than it would have met
    without the retracted one. The size limit of the buffer is ignored: without a slice it releases less, so
    if no slice met what it released, none will."""
    by_id = {e.id: e for e in entries}
    clocks = SliceClocks(replace(rules, max_bytes=None))
    for each in recorded(entries):
        entry = by_id[each.slice]
        if entry.id == gone.id:
            continue
        if entry.seq > gone.seq:
            now = Passing(each.slice, each.source, each.arrival, each.newest)
            met = clocks.pass_by(now)
            if entry.batch != gone.batch and met != entry.watermark:
                return entry.id
        else:
            clocks.pass_by(each)
    return None


def _later_progress(
    entries: Sequence[SliceEntry], gone: SliceEntry, later: Sequence[SliceEntry]
) -> str | None:
    """Later batches recorded the progress of its source, which depends on the slice to the end."""
    assert gone.observed is not None
    source = [e for e in entries if e.slice.source == gone.slice.source and e.status is SliceStatus.ACCEPTED]
    others = [(e, e.observed.end) for e in source if e.id != gone.id and e.observed is not None]
    ahead = all(end < gone.observed.end for _, end in others)
    last = all(e.slice.arrival < gone.slice.arrival for e, _ in others)
    later_ones = [e for e in later if e.slice.source == gone.slice.source and e.batch != gone.batch]
    if later_ones and (ahead or last):
        return f"slice {later_ones[0].id[:12]} left the clock of its source as it had"
    return None


def _replayed_batches(entries: Sequence[SliceEntry], gone: SliceEntry, held: Mapping[str, int]) -> set[str]:
    """Batches of earlier slices that have fewer rows in quarantine than were put there: without the replayed
    slice they would still have them."""
    return {
        str(e.batch)
        for e in entries
        if e.seq < gone.seq
        and e.status is SliceStatus.ACCEPTED
        and e.counts.conflict + e.counts.rejected > held.get(e.id, 0)
    }


# -- doing it


@dataclass(frozen=True, slots=True)
class Retracted:
    """What was done; the slices of `plan.again` are pending until the next rounds."""

    plan: RetractionPlan
    act: Retraction


def retract(warehouse: Warehouse, acceptor: Callable[[str], Acceptor], plan: RetractionPlan) -> Retracted:
    """Carry out the plan, which is made again first, since the ledger may have changed.

    The caller must hold the tick lock, and have finished what a crash interrupted.
    """
    plan = plan_retraction(warehouse, plan.entry.id, plan.reason, plan.at)
    known = {entry.id: entry for entry in warehouse.state.slices(plan.entry.slice.stream)}
    again = [known[name] for name in plan.again]
    raw = Table.existing(layout.raw(warehouse.root, plan.entry.slice.stream))
    readings = readings_left(raw, plan.undone) if raw is not None and again else {}
    line = line_of(0, plan.entry, plan.reason, plan.at, plan.undone, again, readings)
    line = RetractionLog(warehouse.root).append(warehouse.state, line)
    _carry_out(warehouse, acceptor, line)
    return Retracted(plan, line.act)


def finish_retractions(
    warehouse: Warehouse, acceptor: Callable[[str], Acceptor], stream: str
) -> Retraction | None:
    """Finish the retraction of the stream that a crash interrupted, if there is one, before anything of the
    stream is accepted."""
    line = RetractionLog(warehouse.root).unfinished(warehouse.state, stream)
    if line is None:
        return None
    context = {"stream": line.act.stream, "slice": line.act.slice}
    log.warning("finishing a retraction that a dead process had begun", extra=context)
    _carry_out(warehouse, acceptor, line)
    return line.act


def _carry_out(warehouse: Warehouse, acceptor_of: Callable[[str], Acceptor], line: RetractionLine) -> None:
    """Every step may be repeated: a crash between any two of them is finished by doing all of them again."""
    act, state, stream = line.act, warehouse.state, line.act.stream
    versions = state.table_versions(stream)
    raw_version, quarantine_version = versions.get("raw", 0), versions.get("quarantine", 0)
    clocks, progress = state.clocks(stream), state.progress(stream)
    if line.undone:
        acceptor = acceptor_of(stream)
        acceptor.raw.expect(raw_version)  # a table that is missing must not be treated as empty
        acceptor.quarantine.expect(quarantine_version)
        info = {"retracted": act.slice} if act.slice else {"sent_back": act.reason}
        lost = not act.slice  # the damaged files were set aside before
        remove_batches(acceptor.raw, line.undone, info, act.at, acceptor.engine, missing=lost)
        failpoint("retract.after_raw")
        remove_batches(acceptor.quarantine, line.undone, info, act.at, missing=lost)
        failpoint("retract.after_quarantine")
        clocks = clocks_left(acceptor.raw)
        concerned = {act.slice, *act.again}
        left = [after_retraction(e, act) if e.id in concerned else e for e in state.slices(stream)]
        progress = progress_left(acceptor.raw, acceptor.time, left)
        raw_version, quarantine_version = acceptor.raw.version, acceptor.quarantine.version
        state.replace_runs(stream, state.runs(stream), rebuild_runs(acceptor))
    state.apply_retraction(act, clocks, raw_version, quarantine_version, progress)
    failpoint("retract.after_state")
    if line.undone:
        ensure_runs(acceptor)
    context = {"stream": stream, "slice": act.slice}
    log.info("%d slices are decided again", len(act.again), extra=context)
