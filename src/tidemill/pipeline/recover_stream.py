"""Takes up one stream that the state knows nothing of, though it has raw: it was not declared while `recover`
made the state, or could not be read. A round does this once it is declared, and can be read, again."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tidemill.ingest.retraction_log import RetractionLog, sent_back
from tidemill.model.errors import DamageError, StorageError
from tidemill.model.slices import SliceEntry, SliceStatus
from tidemill.raw.accept.catch_up import rebuild_runs
from tidemill.raw.batch_removal import clocks_left, progress_left, remove_batches
from tidemill.raw.damaged_parts import have_expired
from tidemill.raw.footers import PACKED, BatchFooter
from tidemill.raw.part_names import batch_of
from tidemill.raw.recovered_batches import PartFacts, part_facts, records_of
from tidemill.raw.retract import finish_retractions
from tidemill.raw.watermark import TimeRules
from tidemill.storage import layout
from tidemill.storage.state.protocol import BatchRecord, Progress, SliceResult
from tidemill.storage.tables.log import TAKEN_OVER
from tidemill.storage.tables.parts import read_footer
from tidemill.storage.tables.snapshot import Part
from tidemill.storage.tables.table import RESHAPED, Table

if TYPE_CHECKING:
    from tidemill.pipeline.workers import Workers

log = logging.getLogger(__name__)

_SAME_ROWS: Final = frozenset({PACKED, RESHAPED, TAKEN_OVER})  # commits of raw that change no row
BEGUN: Final = 1  # the version of raw with its first batch: a crash leaves no more than that unrecorded


def is_unknown(workers: Workers, stream: str) -> bool:
    """Whether the state has nothing of a stream that has raw."""
    if workers.state.table_versions(stream).get("raw", 0):
        return False
    raw = Table.existing(layout.raw(workers.root, stream))
    return raw is not None and raw.version > BEGUN


def recover_stream(workers: Workers, stream: str) -> None:
    """Enter what raw and the outputs have of the stream. The state knows the version of raw at the end: until
    then, all of it is repeated after a crash. DamageError names a file that is to be repaired first."""
    state, acceptor = workers.state, workers.acceptor(stream)
    log.warning("the state does not know this stream: it is recovered", extra={"stream": stream})
    entries = state.slices(stream)
    offsets = {entry.id: entry.seq for entry in entries}
    records = batches_in_raw(workers, stream, entries)
    for record in sorted(records, key=lambda one: min(offsets[result.slice] for result in one.results)):
        state.apply_batch(replace(record, runs=(), raw_version=0))
    state.replace_runs(stream, state.runs(stream), rebuild_runs(acceptor))
    for output in workers.outputs(stream):
        output.recover(workers.warehouse.clock())
    decide_in_order(workers, stream, "raw was damaged while the stream was not declared")
    seen = {"raw": acceptor.raw.version, "quarantine": acceptor.quarantine.version}
    state.record_seen(stream, seen)


def decide_in_order(workers: Workers, stream: str, reason: str) -> None:
    """Send slices that wait before others that were decided back to the gate: as after a retraction, they are
    compared with the watermark at their ledger offset."""
    state = workers.state
    entries = state.slices(stream)
    last = max((e.seq for e in entries if e.status is SliceStatus.ACCEPTED), default=0)
    again = [e for e in entries if e.status is SliceStatus.PENDING and e.seq < last]
    if again:
        line = sent_back(stream, reason, workers.warehouse.clock(), (), again, {})
        RetractionLog(workers.root).append(state, line)
        finish_retractions(workers.warehouse, workers.acceptor, stream)


# -- what raw has


def _batch_of(raw: Table, quarantine: Table, part: Part) -> str:
    """The batch of a part of quarantine. DamageError if it cannot be read, and its slices can be decided
    again; otherwise the part stays, and `repair` names it."""
    try:
        return BatchFooter.from_footer(read_footer(quarantine.root / part.path)).batch
    except DamageError:
        batch = batch_of(part)
        if batch is None or not have_expired(raw, {batch}, ()):
            raise
        return batch


def _current(records: Sequence[BatchRecord], entries: Sequence[SliceEntry]) -> list[BatchRecord]:
    """Without slices that could not be read and were retracted, or tried again since: only their old batches
    are in raw."""
    gone = {entry.id for entry in entries if entry.status is SliceStatus.RETRACTED}
    tried = {entry.id: entry.retried for entry in entries if entry.retried}

    def is_current(result: SliceResult) -> bool:
        return result.slice not in gone and result.retried == tried.get(result.slice, 0)

    left = [replace(record, results=[*filter(is_current, record.results)]) for record in records]
    return [record for record in left if record.results]


def batches_in_raw(workers: Workers, stream: str, entries: Sequence[SliceEntry]) -> list[BatchRecord]:
    """The batches that raw has of a stream, as the state would have recorded them."""
    raw = Table.existing(layout.raw(workers.root, stream))
    quarantine = Table.existing(layout.quarantine(workers.root, stream))
    if raw is None:
        return []
    workers.warehouse.progress(stream, "recover", 0.0)
    size = sum(part.size for part in raw.snapshot().parts)
    facts = workers.warehouse.engine.run(part_facts, raw.snapshot().paths(), "recover raw", size)
    workers.warehouse.progress(stream, "recover", 1.0)
    if quarantine is not None:
        # It is committed before raw: what a crash left of a batch that raw does not have is removed.
        listed = {_batch_of(raw, quarantine, part) for part in quarantine.snapshot().parts}
        lost = listed - {fact.footer.batch for fact in facts if isinstance(fact.footer, BatchFooter)}
        remove_batches(quarantine, lost, {"dropped": ",".join(sorted(lost))}, workers.warehouse.clock())
    version = quarantine.version if quarantine is not None else 0
    records = _current(list(records_of(stream, facts, raw.version, version).values()), entries)
    progress = _progress(TimeRules.of(workers.project.stream(stream)), raw, facts, _ledger(entries, records))
    return [replace(record, progress=progress) for record in records]


def _progress(
    rules: TimeRules, raw: Table, facts: Sequence[PartFacts], ledger: Sequence[SliceEntry]
) -> Progress:
    """As it was recorded last, unless a batch was undone since."""
    recorded = (fact.footer.progress for fact in facts if isinstance(fact.footer, BatchFooter))
    listed = [one for one in recorded if one is not None]
    if not listed:  # written by a version that had clocks only
        return Progress(min((clock.watermark for clock in clocks_left(raw)), default=None))
    last = max(listed, key=lambda one: one.version)
    return last.progress if _has_kept_rows(raw, last.version) else progress_left(raw, rules, ledger)


def _has_kept_rows(raw: Table, version: int) -> bool:
    """Whether the table has had the same rows since a version of it; False if its log no longer says. The
    rules of event time may have changed since, so what was recorded is not to be computed by those of now."""
    if raw.version == version:
        return True
    try:
        return all(not _SAME_ROWS.isdisjoint(commit.info) for commit in raw.commits(after=version))
    except StorageError:
        return False


def _ledger(entries: Sequence[SliceEntry], records: Sequence[BatchRecord]) -> list[SliceEntry]:
    """The entries with their outcomes from the records of their streams."""
    results = {result.slice: result for record in records for result in record.results}
    streams = {record.stream for record in records}
    listed = [(entry, results.get(entry.id)) for entry in entries if entry.slice.stream in streams]
    return [
        entry
        if result is None
        else replace(
            entry,
            status=SliceStatus.ACCEPTED if result.error is None else SliceStatus.FAILED,
            observed=result.observed,
            watermark=result.watermark,
        )
        for entry, result in listed
    ]
