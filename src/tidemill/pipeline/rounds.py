"""One round: finish what a crash left, accept, pack, and refresh every output of every stream; and how long
the daemon pauses between two rounds.

Each package does its own work, and a round with nothing to do costs a few look-ups. Each piece of work
belongs to one stream or one output, and so do its errors: `Guard` keeps them there.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from tidemill.config import Stream
from tidemill.ingest.interrupted_landings import adopt, adopt_for
from tidemill.ingest.retraction_log import RetractionLog, is_deciding_again
from tidemill.model.errors import (
    BusyError,
    ConfigError,
    LeaseLostError,
    StorageError,
    TidemillError,
    as_tidemill_error,
)
from tidemill.model.time import SECOND
from tidemill.outputs.contract import Refreshed, RoundStart, Stage
from tidemill.outputs.datasets.output import Evaluated
from tidemill.outputs.index.indexer import Indexed
from tidemill.outputs.rollups.output import RolledUp
from tidemill.outputs.vectors.chainer import ChainRound
from tidemill.outputs.windows.output import Results
from tidemill.pipeline.reports import StreamTick, TickReport
from tidemill.raw.accept.catch_up import merge_runs
from tidemill.raw.failed_slices import try_again
from tidemill.raw.replay import finish_replays
from tidemill.storage import layout
from tidemill.storage.leases import EVENTS_JOB, LANDING_JOB, SCRUB_JOB, HeldLeases, tenure_of
from tidemill.storage.state.faults import (
    RAW,
    WAREHOUSE,
    Guard,
    RoundFaults,
    Unguarded,
    delay_after,
    one_by_one,
)
from tidemill.storage.tables.table import tidy

if TYPE_CHECKING:
    from pathlib import Path

    from tidemill.outputs.windows.refresh import WindowRefresh
    from tidemill.pipeline.events.delivery import Delivered
    from tidemill.pipeline.progress import Pulse
    from tidemill.pipeline.workers import Workers
    from tidemill.raw.accept.batch import Batch
    from tidemill.raw.compaction.packer import Packed, PackRound
    from tidemill.raw.retract import RetractionPlan

# Imports inside functions keep start-up short: reading the state loads neither Arrow nor Delta.

log = logging.getLogger(__name__)

OBJECTS_PER_COLLECTION: Final = 50_000
BUILDS_PER_ROUND: Final = 512  # windows; then what has landed meanwhile is accepted
LONGEST_PAUSE: Final = 60.0  # seconds between two rounds that fail as a whole
TABLES_OF_RAW: Final[tuple[layout.TableKind, ...]] = ("raw", "quarantine")
# Work that is not an output, by its name in faults.
SOURCES, PACK, LANDINGS, COMPRESSION = "sources", "pack", "landings", "compression"  # of one stream
LEASE: Final = "lease"  # of one stream, or of the warehouse
GATEWAY_LOGS, BUILDERS, EVENTS, SCRUB = "gateway logs", "builders", "events", "scrub"  # of the warehouse


def run(
    tick: Callable[[], TickReport],
    stop: threading.Event,
    interval: float,
    on_tick: Callable[[TickReport], None] | None,
    wake: threading.Event | None = None,
    pulse: Pulse | None = None,
) -> None:
    """Run rounds until `stop` is set, without a pause while there is work; `wake` ends a pause. With `wake`,
    what landed before `stop` is processed before it ends.

    A round that fails as a whole (the state is unreachable, the disk is full) is tried again after a growing
    pause, and reported to `pulse`. Only an error of the configuration ends the run.
    """
    last = False  # whether this is the last round
    failures = Failures(interval)
    while not (last := stop.is_set()) or wake is not None:
        if wake is not None:
            wake.clear()  # before the round looks: what lands meanwhile is for the next one
        try:
            report = tick()
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the next round may be better
            problem = as_tidemill_error(error)
            if pulse is not None:
                pulse.failed(problem)
            if last:
                log.warning("%s; what is left waits for the next start", problem)
                return
            stop.wait(failures.pause_after(problem))
            continue
        failures.over()
        if pulse is not None:
            pulse.finished(report)
        if on_tick is not None:
            on_tick(report)
        if not report.idle:
            continue
        if last:
            return
        (wake or stop).wait(rest_after(report, interval))


def run_until_idle(workers: Workers, clock: Callable[[], int], patience: float = 0.0) -> list[TickReport]:
    """Run rounds until one finds nothing to do and no background work is left. For each round, wait up to
    `patience` seconds for the round of another process."""
    reports = []
    while True:
        # waiting is for the whole warehouse: then no stream is left to another process
        warehouse = workers.warehouse
        with warehouse.working("tick", patience) if patience > 0 else warehouse.sharing() as leases:
            report = tick(workers, clock, leases, patient=False)
        reports.append(report)
        if report.idle and not workers.packer.wait():
            return reports


def running_clock(now: int) -> Callable[[], int]:
    """A running clock that shows `now` at this moment."""
    began = time.monotonic_ns()
    return lambda: now + (time.monotonic_ns() - began) // 1000


class Failures:
    """Rounds that failed as a whole, in a row: each kind is logged once, and the pause grows."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._count = 0
        self._last: tuple[str, str] | None = None

    def pause_after(self, error: TidemillError) -> float:
        """Log the error if it is new; seconds until the next round."""
        if (error.code, str(error)) != self._last:
            log.warning("%s; trying again (%s)", error, error.hint or error.code)
        self._last = (error.code, str(error))
        self._count += 1
        if isinstance(error, BusyError):  # the other process may be done soon
            return self._interval
        return max(self._interval, min(delay_after(self._count) / SECOND, LONGEST_PAUSE))

    def over(self) -> None:
        if self._last is not None:
            log.info("rounds work again")
        self._count, self._last = 0, None


def rest_after(report: TickReport, interval: float) -> float:
    """Seconds until the next round, after one that found nothing to do: at most as long as streams that wait
    for more slices asked for."""
    return interval if report.rest is None else min(interval, report.rest / SECOND)


def finish_retractions(workers: Workers, stream: str) -> None:
    """Finish the retraction of a stream that a process that died had begun."""
    if RetractionLog(workers.root).unfinished(workers.state, stream) is not None:
        from tidemill.raw.retract import finish_retractions

        finish_retractions(workers.warehouse, workers.acceptor, stream)


def take_up_logs(workers: Workers, now: int) -> None:
    """Land what gateways that died had acknowledged."""
    record = layout.slice_log(workers.root, layout.GATEWAYS)
    if not (layout.gateway_logs(workers.root).is_dir() or record.exists()):
        return
    from tidemill.ingest.gateway.log_recovery import take_up

    project, until = workers.project, now + workers.project.gateway.receipts
    take_up(project.warehouse, project.streams, workers.state, workers.warehouse.landing, until)


@contextmanager
def _fewer_collections() -> Iterator[None]:
    """A round of a sparse feed holds tens of thousands of tiles, none of them in a reference cycle. Searching
    for cycles after every 700 allocations, Python's default, is an eighth of the time of such a round."""
    youngest, *older = gc.get_threshold()
    gc.set_threshold(max(youngest, OBJECTS_PER_COLLECTION), *older)
    try:
        yield
    finally:
        gc.set_threshold(youngest, *older)


@_fewer_collections()
def tick(
    workers: Workers,
    clock: Callable[[], int],
    leases: HeldLeases,
    *,
    patient: bool,
    wake: threading.Event | None = None,
) -> TickReport:
    """One round over the streams that no other process works on; each stream is leased when its turn comes.
    Once `wake` is set, something has landed: the round builds a few more datasets of each stream, and leaves
    the rest of a long queue to the next. A round that is not `patient` and gets no stream raises BusyError;
    one that was replaced by another process, LeaseLostError.
    """
    try:
        return _round(workers, clock, leases, patient=patient, wake=wake)
    except LeaseLostError:
        for name in workers.project.streams:  # another process continues from what is on disk
            workers.forget(name)
        raise


def _round(
    workers: Workers,
    clock: Callable[[], int],
    leases: HeldLeases,
    *,
    patient: bool,
    wake: threading.Event | None,
) -> TickReport:
    now, began = clock(), time.perf_counter()
    faults = RoundFaults(workers.state, workers.root, now, workers.fault_memory, patient=patient)

    def is_leased(name: str) -> bool | None:  # None: the lease could not be requested
        scope = name if name in workers.project.streams else WAREHOUSE
        return faults.attempt(scope, LEASE, lambda: leases.take(name))

    if is_leased(LANDING_JOB):
        _adopt(workers, faults)
        faults.attempt(WAREHOUSE, GATEWAY_LOGS, lambda: take_up_logs(workers, now))
    leased = _leased(workers.project.streams, is_leased, patient=patient)  # each when its turn comes
    done = tick_streams(workers, leased, now, faults)
    in_step = [one.stream for one in done]
    builds = faults.attempt(
        WAREHOUSE,
        BUILDERS,
        lambda: workers.dataset_builders.build(clock, BUILDS_PER_ROUND, streams=in_step, hurry=wake),
    )
    built = refresh_after_builds(workers, in_step, now, faults)
    done = [_with(one, built.get(one.stream, {})) for one in done]
    delivered = (
        faults.attempt(WAREHOUSE, EVENTS, lambda: _delivered(workers, clock()))
        if is_leased(EVENTS_JOB)
        else None
    )
    expired = workers.retention.expire_due(
        now, [name for name in in_step if not faults.is_faulty(name)], faults
    )
    if patient and is_leased(SCRUB_JOB):  # a daemon
        faults.attempt(WAREHOUSE, SCRUB, lambda: workers.scrubbing.step(now))
    faults.finish()
    for stream in {fault.stream for fault in faults.found if fault.stream in workers.project.streams}:
        workers.forget(stream)
    report = TickReport(
        now=now,
        streams=done,
        seconds=time.perf_counter() - began,
        builds=builds or (),
        delivered=delivered or (),
        results={
            name: one.windows for name, of in built.items() for one in of.values() if isinstance(one, Results)
        },
        expired=expired,
        faults=faults.found,
        errors=faults.errors,
    )
    if report.idle:
        with suppress(StorageError):  # the next writer reports it
            workers.state.trim_log()
            workers.copies.trim(now)
    return report


def _leased(names: Iterable[str], is_leased: Callable[[str], bool | None], *, patient: bool) -> Iterator[str]:
    """The streams that no other process works on; each is leased when the ones before it are done."""
    all_taken, every = True, list(names)
    for name in every:
        found = is_leased(name)
        all_taken = all_taken and found is False
        if found:
            yield name
    if every and all_taken and not patient:
        raise BusyError(
            "other processes are working on every stream of this warehouse",
            hint="wait for them, or stop `tidemill run`",
        )


def _adopt(workers: Workers, faults: RoundFaults) -> None:
    """Finish landings that a crash interrupted; problems with the folder of one stream stay with that
    stream."""
    errors: dict[str, StorageError] = {}

    def keep(stream: str, error: StorageError) -> None:
        errors.setdefault(stream, error)

    if faults.attempt(WAREHOUSE, LANDINGS, lambda: adopt(workers.root, workers.state, fault=keep)) is None:
        return
    for name in workers.project.streams:
        if name not in errors:
            faults.attempt(name, LANDINGS, lambda: None)
    for name, error in errors.items():
        faults.record(name, LANDINGS, error)


def _delivered(workers: Workers, now: int) -> Sequence[Delivered]:
    return workers.delivery.deliver(now) if workers.project.events.sinks else ()


def tick_streams(workers: Workers, names: Iterable[str], now: int, guard: Guard) -> list[StreamTick]:
    """One stream after the other. Streams that must wait are left out: raw has something that the state does
    not know, and outputs made from it now would be wrong."""
    found = (tick_stream(workers, workers.project.stream(name), now, guard) for name in names)
    return [one for one in found if one is not None]


def refresh_after_builds(
    workers: Workers, names: Iterable[str], now: int, guard: Guard
) -> dict[str, dict[str, Refreshed | None]]:
    """Refresh outputs that may depend on datasets; what was done, by stream and output."""
    return {name: _refreshed(workers, name, Stage.BUILT, RoundStart(now), guard) for name in names}


def _refreshed(
    workers: Workers, stream: str, stage: Stage, start: RoundStart, guard: Guard
) -> dict[str, Refreshed | None]:
    """What each output of the stage did; one that fails is left out."""
    return {
        output.name: guard.attempt(stream, output.name, partial(output.refresh, start))
        for output in workers.outputs(stream)
        if output.stage is stage
    }


def tick_stream(workers: Workers, stream: Stream, now: int, guard: Guard) -> StreamTick | None:
    """Accept what has landed, pack, and refresh outputs, except for those that wait for builds. None: the
    stream must wait."""
    name = stream.name
    if not guard.attempt(name, RAW, lambda: _is_retracted(workers, name)) and _is_retracting(workers, name):
        return None
    guard.attempt(name, SOURCES, lambda: workers.sources.watch(stream, now))
    newest = workers.state.slices(name, newest=True, limit=1)
    start = RoundStart(now, newest[0].seq if newest else 0)
    done = settle(workers, stream, start, guard)
    if done is None:
        return None
    packed = (
        guard.attempt(name, PACK, lambda: workers.packer.pack_due(stream, now), _is_packed)
        if stream.pack.enabled
        else None
    )
    columns = guard.attempt(name, PACK, lambda: workers.packer.remake_due(stream, now))
    # the index then has what was packed or made again
    if (packed is not None and not packed.idle) or (columns is not None and not columns.idle):
        again = guard.attempt(name, "index", lambda: _index(workers, name, start))
        done = replace(done, indexed=_both(done.indexed, again))
    if done.idle:
        merged = (
            guard.attempt(name, one.name, partial(one.compact, now)) or 0 for one in workers.outputs(name)
        )
        done = replace(done, compacted=sum(merged))
    done = _with(
        replace(done, packed=packed, columns=columns), _refreshed(workers, name, Stage.SETTLED, start, guard)
    )
    if done.idle:
        compressed = guard.attempt(name, COMPRESSION, lambda: workers.compression.step(name))
        done = replace(done, compressed=compressed or 0)
    return done


def _is_retracting(workers: Workers, stream: str) -> bool:
    """Whether something of the stream is being retracted, or that is unknown."""
    try:
        return RetractionLog(workers.root).unfinished(workers.state, stream) is not None
    except TidemillError:  # the attempt to finish it has reported why
        return True


def _is_retracted(workers: Workers, stream: str) -> bool:
    finish_retractions(workers, stream)
    return True


def _is_packed(packed: PackRound | None) -> bool:
    """Whether packing is done. Parts that are still being prepared do not count: that may still fail."""
    return packed is None or not packed.under_way


def settle(workers: Workers, stream: Stream, start: RoundStart, guard: Guard) -> StreamTick | None:
    """Accept what has landed or can be read by now, and update what depends on batches. None: the state does
    not know everything in raw, and could not be updated."""
    name = stream.name
    outputs = [output for output in workers.outputs(name) if output.stage is Stage.ACCEPTED]
    has_work = guard.attempt(name, RAW, lambda: _has_raw_work(workers, stream, start.now))
    work = [guard.attempt(name, output.name, output.has_work) for output in outputs]
    if has_work is False and not any(work):
        return _with(StreamTick(name), _refreshed(workers, name, Stage.ACCEPTED, start, guard))
    guard.attempt(name, RAW, lambda: workers.catch_up_raw(name))
    if not _is_in_step(workers, name):
        return None
    for output in workers.outputs(name):
        guard.attempt(name, output.name, output.catch_up)
    accepted = guard.attempt(name, RAW, lambda: _accept(workers, stream, start.now))
    if accepted is None and not _is_in_step(workers, name):
        return None
    batch = accepted.batch if accepted is not None else None
    if batch is not None:
        for output in workers.outputs(name):
            guard.attempt(name, output.name, partial(output.accepted, batch))
    done = _refreshed(workers, name, Stage.ACCEPTED, start, guard)
    merged = guard.attempt(name, RAW, lambda: _finish_batch(workers, name, start.now)) or 0
    return _with(StreamTick(name, batch, merged_runs=merged), done)


@dataclass(frozen=True, slots=True)
class _Accepted:
    batch: Batch | None  # None: there was nothing to accept


def _accept(workers: Workers, stream: Stream, now: int) -> _Accepted:
    finish_replays(workers.root, stream, workers.state, now)
    return _Accepted(workers.acceptor(stream.name).accept(now))


def _finish_batch(workers: Workers, stream: str, now: int) -> int:
    """Empty staging, and merge runs of ids unless slices that were sent back still wait; how many were
    merged."""
    acceptor = workers.acceptor(stream)
    acceptor.finish()
    if is_deciding_again(workers.state, stream):
        return 0
    merged = len(merge_runs(acceptor))
    tidy((acceptor.raw, acceptor.quarantine), workers.project.engine.keep_replaced, now)
    return merged


def _is_in_step(workers: Workers, stream: str) -> bool:
    """Whether raw is at the version that the state knows. Otherwise a batch was committed that could not be
    recorded, or raw was lost: outputs made from it now would be wrong."""
    try:
        table = workers.warehouse.existing("raw", stream)
    except Exception:  # noqa: BLE001 - an attempt has said what is wrong with it
        return False
    version = table.version if table is not None else 0
    return version == workers.state.table_versions(stream).get("raw", 0)


def _index(workers: Workers, stream: str, start: RoundStart) -> Indexed | None:
    done = workers.output(stream, "index").refresh(start)
    return done if isinstance(done, Indexed) else None


def _with(tick: StreamTick, done: Mapping[str, Refreshed | None]) -> StreamTick:
    """The report with what the outputs did; unknown outputs by their names."""
    others = dict(tick.others)
    for name, one in done.items():
        match one:
            case None | Results():  # those are in the report of the round
                continue
            case RolledUp():
                tick = replace(tick, tiles=one.tiles)
            case Indexed():
                tick = replace(tick, indexed=one)
            case ChainRound():
                tick = replace(tick, chains=one)
            case Evaluated():
                tick = replace(tick, windows=one.windows, damaged=one.damaged)
            case _:
                others[name] = one
    return replace(tick, others=others)


def _both(first: Indexed | None, then: Indexed | None) -> Indexed | None:
    if first is None or then is None:
        return then
    return replace(
        then,
        built=first.built + then.built,
        removed=first.removed + then.removed,
        entries=first.entries + then.entries,
    )


def _has_raw_work(workers: Workers, stream: Stream, now: int) -> bool:
    """Whether there is something to accept, or a process that died left something; without opening tables
    that have not changed. Failed slices that are due are sent to the gate first."""
    name = stream.name
    try_again(workers.warehouse, stream, now)
    if workers.state.pending(name, 1):
        return True
    seen = workers.state.table_versions(name)
    for kind in TABLES_OF_RAW:
        table = workers.warehouse.existing(kind, name)
        if (table.version if table is not None else 0) != seen.get(kind, 0):
            return True
        if any(layout.staging(layout.table(workers.root, kind, name)).glob("*")):
            return True
    return not _has_all_runs(layout.gate(workers.root, name), frozenset(workers.state.runs(name)))


def _has_all_runs(folder: Path, runs: frozenset[str]) -> bool:
    """Whether a folder has exactly these runs; one in a bucket is listed once for each set of them."""
    known = tenure_of(folder)
    if known is not None and known.intact.get(folder) == runs:
        return True
    if runs != {path.name for path in folder.glob("*")}:
        return False
    if known is not None:
        known.intact[folder] = runs
    return True


def flush(workers: Workers, streams: Sequence[str], now: int) -> dict[str, list[WindowRefresh]]:
    """Publish the streaming windows that are still open, as they are. Returns what was published, by
    stream."""
    faults = RoundFaults(workers.state, workers.root, now, workers.fault_memory)
    with workers.warehouse.working("tick"):
        return workers.streaming_windows.refresh_all(streams, now, faults, flush=True)


def retract(workers: Workers, plan: RetractionPlan) -> None:
    """Retract a slice, as planned. The caller must hold the tick lock. What a crash left of its stream is
    finished first."""
    from tidemill.raw.retract import retract

    stream = plan.entry.slice.stream
    adopt_for(workers.root, workers.state, [stream])
    finish_retractions(workers, stream)
    if layout.raw(workers.root, stream).is_dir():
        workers.catch_up(stream)
    retract(workers.warehouse, workers.acceptor, plan)


def pack(workers: Workers, stream: str | None, *, rebuild: bool) -> list[Packed]:
    """Accept what has landed and pack the groups that are full then; with `rebuild` all slices again. The
    caller must hold the tick lock."""
    project, now = workers.project, workers.warehouse.clock()
    names = [project.stream(stream).name] if stream is not None else list(project.streams)
    adopt_for(workers.root, workers.state, names)
    take_up_logs(workers, now)
    done: list[Packed] = []
    one_by_one(names, lambda name: done.extend(_packed(workers, project.stream(name), now, rebuild=rebuild)))
    return done


def _packed(workers: Workers, stream: Stream, now: int, *, rebuild: bool) -> list[Packed]:
    finish_retractions(workers, stream.name)
    while (done := settle(workers, stream, RoundStart(now), Unguarded())) is not None and not done.idle:
        pass
    found = workers.packer.pack(stream, now, rebuild=rebuild)
    if found:
        _index(workers, stream.name, RoundStart(now))
    return found
