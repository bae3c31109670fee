"""`recover`: rebuilds the state from the warehouse: the logs of landings and retractions, the parts of raw
and of the rollups.

The new state is made beside the old one and takes its place at the end, so that a crash leaves either.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidemill.config import Project
from tidemill.config.project import StateStore
from tidemill.ingest.gateway.log_folders import live_folders
from tidemill.ingest.interrupted_landings import Adopted, adopt
from tidemill.ingest.landing_log import LandingLog, scan_slices
from tidemill.ingest.retraction_log import RetractionLine, RetractionLog, with_retractions
from tidemill.ingest.slice_logs import record_logs, repair_logs, restore_logs
from tidemill.ingest.warehouse import Progress as ShowProgress
from tidemill.ingest.warehouse import Warehouse
from tidemill.model.clock import Clock
from tidemill.model.damage import Damage, FileKind
from tidemill.model.errors import BusyError, StorageError
from tidemill.pipeline.recover_damage import OutdatedLedgerError, RecoveryDamage
from tidemill.pipeline.recover_landings import forgotten_expiries, forgotten_retractions, lost_acts, salvage
from tidemill.pipeline.recover_stream import batches_in_raw
from tidemill.pipeline.workers import Workers
from tidemill.raw.accept.catch_up import rebuild_runs
from tidemill.raw.batch_removal import remove_batches
from tidemill.storage import layout
from tidemill.storage.files import remove_tree
from tidemill.storage.leases import HeldLeases, working
from tidemill.storage.locks import exclusive
from tidemill.storage.state import opening
from tidemill.storage.state.protocol import BatchRecord
from tidemill.storage.tables.log import take_version
from tidemill.storage.tables.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

UNKNOWN_RUN: Final = "unknown.run"


@dataclass(frozen=True, slots=True)
class Recovered:
    slices: int
    batches: int
    tiles: int
    datasets: int
    results: int  # commits of streaming windows whose events were published again
    state: str  # its file, or its address
    set_aside: Mapping[str, str] = field(default_factory=dict)  # damaged files, and where they are now
    left: Sequence[Damage] = ()  # what could not be recovered


def recover_state(
    project: Project,
    *,
    spark: SparkSession | None = None,
    clock: Clock,
    progress: ShowProgress | None = None,
) -> Recovered:
    warehouse = project.warehouse
    _check_no_gateway(warehouse)
    with ExitStack() as stack:
        held = _hold_all(stack, project)
        lost = _restore_logs(warehouse, project.state)
        if stack.enter_context(opening.claimed(warehouse, project.state)):
            _shut_out(project, clock())
        damage: RecoveryDamage | None = None
        result: Recovered | None = None
        while result is None:  # each time a damaged part of raw was set aside
            fresh = opening.open_fresh(warehouse, project.state)
            opened = Warehouse(project, fresh, spark=spark, clock=clock, progress=progress)
            with closing(opened), closing(Workers(opened)) as workers, suppress(OutdatedLedgerError):
                damage = RecoveryDamage(workers, damage)
                result = _fill(workers, damage, opening.name_of(warehouse, project.state), lost)
        if held is not None:
            held.confirm()  # otherwise the new state would lack what another process has done
            held.abandon()
        opening.replace_with_fresh(warehouse, project.state)
    return result


def _hold_all(stack: ExitStack, project: Project) -> HeldLeases | None:
    """Keep all other processes from working, by the leases of the state that is to be replaced; they end with
    it. None if that state cannot be used: then no process on another machine can work with it either."""
    warehouse, store = project.warehouse, project.state
    try:
        if opening.exists(warehouse, store):
            old = stack.enter_context(closing(opening.open_store(warehouse, store)))
            streams = {*project.streams, *layout.streams_with_raw(warehouse)}
            return stack.enter_context(working(warehouse, old, project.engine.lease, streams, "recover"))
    except StorageError as error:
        log.warning("the leases of the state in use cannot be read: %s", error)
    stack.enter_context(exclusive(layout.tick_lock(warehouse), "recover"))
    return None


def _shut_out(project: Project, now: int) -> None:
    """Another machine may be at work, with a state of its own. Commits that it begins from now on are
    refused; those that it was about to make find their versions taken, and are refused when they look
    again."""
    for stream in {*project.streams, *layout.streams_with_raw(project.warehouse)}:
        for table in layout.tables_of(project.warehouse, stream):
            take_version(table, now)


def _check_no_gateway(warehouse: Path) -> None:
    """What a gateway lands while the state is rebuilt would be only in the old one. (A daemon waits for the
    lock, and continues with the new state.)"""
    if live := live_folders(warehouse):
        raise BusyError(
            f"gateway {live[0].name} is running on this warehouse; cannot recover now",
            where=str(warehouse),
            hint="stop `tidemill serve` or `tidemill up`, then run the same again",
        )


def _restore_logs(warehouse: Path, store: StateStore) -> list[Damage]:
    """Before the state is made from the logs: put back lines that the logs have lost and that the old state
    or the copies of the logs still have. Returns what is lost everywhere."""
    try:
        if opening.exists(warehouse, store):
            with closing(opening.open_store(warehouse, store)) as old:
                repair_logs(warehouse, old)
    except StorageError as error:
        log.warning("the state in use does not show what the logs have lost: %s", error)
    return restore_logs(warehouse)


def _fill(workers: Workers, damage: RecoveryDamage, target: str, lost: Sequence[Damage]) -> Recovered:
    warehouse = workers.root
    has_log = layout.slice_log(warehouse, layout.LANDINGS).exists()
    found_slices = salvage(workers, scan_slices(warehouse), certain=has_log and not lost)
    retractions = RetractionLog(warehouse)
    lines = list(retractions.lines())
    if forgotten := forgotten_retractions(workers, found_slices.entries, lines):
        retractions.put_back(forgotten)
        lines += forgotten
    damage.leave([*lost, *found_slices.lost, *lost_acts(forgotten, ())])
    for line in {line.act.stream: line for line in lines}.values():
        damage.attempt(line.act.stream, partial(_finish, workers, line))
    entries = with_retractions(found_slices.entries, lines)
    seqs = {entry.id: entry.seq for entry in entries}
    records: list[BatchRecord] = []
    unread: set[str] = set()  # a round takes these up once their files are put back
    for stream in workers.project.streams:
        found_batches = damage.attempt(stream, partial(batches_in_raw, workers, stream, entries))
        records += found_batches or []
        unread |= {stream} if found_batches is None else set()
    records.sort(key=lambda record: min((seqs[result.slice] for result in record.results), default=0))
    workers.state.restore(entries, [replace(record, runs=()) for record in records], len(lines))
    damage.has_ledger = True
    if found_slices.lost:
        LandingLog(warehouse).rewrite(workers.state)
        _forget_ledger_offsets(workers)
    record_logs(warehouse, workers.state)
    damage.leave(_unknown(adopt(warehouse, workers.state, thorough=True)))
    for stream in workers.project.streams:
        if stream in unread or not layout.raw(warehouse, stream).is_dir():
            continue
        if damage.attempt(stream, partial(_recover_gate, workers, stream)) is None:
            # A run that is missing stops every round: nothing is accepted without its ids.
            workers.state.replace_runs(stream, [], [UNKNOWN_RUN])
    damage.finish()
    if expired := damage.attempt("", partial(forgotten_expiries, workers, workers.warehouse.clock())):
        workers.warehouse.expiries.append(expired)
        damage.leave(lost_acts((), expired))
    found = Counter[str]()
    for stream in workers.project.streams:
        for output in [one.name for one in workers.outputs(stream)]:
            found[output] += damage.attempt(stream, partial(_recover_output, workers, stream, output)) or 0
    tiles, datasets, results = (found[name] for name in ("rollups", "datasets", "windows"))
    return Recovered(
        len(entries), len(records), tiles, datasets, results, target, damage.set_aside, damage.left
    )


def _forget_ledger_offsets(workers: Workers) -> None:
    """Remove what holds ledger offsets that have changed; it is made again from raw."""
    for stream in workers.project.streams:
        remove_tree(layout.state_history(workers.root, stream))


def _unknown(adopted: Adopted) -> list[Damage]:
    """Whole slices that neither the log nor raw knows: never acknowledged, or their lines are lost."""
    reason = (
        "no log knows this slice: its landing was never acknowledged, or the line about it is lost; if it"
        " should count, land it with `tidemill ingest`"
    )
    return [Damage(file, FileKind.SLICE, Path(file).parent.name, reason) for file in adopted.set_aside]


def _recover_gate(workers: Workers, stream: str) -> bool:
    acceptor = workers.acceptor(stream)
    workers.state.replace_runs(stream, workers.state.runs(stream), rebuild_runs(acceptor))
    # If all batches were undone, none of them has the version, and the log must not be read from its start.
    seen = {"raw": acceptor.raw.version, "quarantine": acceptor.quarantine.version}
    workers.state.record_seen(stream, seen)
    return True


def _recover_output(workers: Workers, stream: str, output: str) -> int:
    """Recover one output, opened again, since files of it may have been set aside."""
    return workers.output(stream, output).recover(workers.warehouse.clock())


def _finish(workers: Workers, line: RetractionLine) -> None:
    """Finish the last retraction of a stream if a crash interrupted it; no slice was decided since then."""
    for name in ("raw", "quarantine"):
        table = Table.existing(workers.root / name / line.act.stream)
        if table is not None and line.undone:
            remove_batches(
                table,
                line.undone,
                {"retracted": line.act.slice},
                line.act.at,
                workers.warehouse.engine,
                missing=not line.act.slice,
            )
