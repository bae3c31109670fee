"""One round: take up what a crash left, accept, pack, and refresh every output of every stream; and how long
the daemon rests between two rounds.

It decides nothing: each package does its own work, and a round with nothing to do costs a few look-ups.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tidemill.config import Stream
from tidemill.ingest.adopt import adopt, adopt_for
from tidemill.ingest.retractions import RetractionLog, is_judging_again
from tidemill.model.errors import Retry, TidemillError
from tidemill.model.time import SECOND
from tidemill.outputs.contract import Refreshed, RoundStart, Stage
from tidemill.outputs.datasets.output import Evaluated
from tidemill.outputs.index.indexer import Indexed
from tidemill.outputs.rollups.output import RolledUp
from tidemill.outputs.vectors.chainer import ChainRound
from tidemill.outputs.windows.output import Results
from tidemill.pipeline.reports import StreamTick, TickReport
from tidemill.storage import layout
from tidemill.storage.state.faults import RoundFaults, one_by_one
from tidemill.storage.tables.tidy import tidy

if TYPE_CHECKING:
    from tidemill.pipeline.workers import Workers
    from tidemill.raw.compaction.packer import Packed
    from tidemill.raw.retract import RetractionPlan

log = logging.getLogger(__name__)

OBJECTS_PER_COLLECTION: Final = 50_000
BUILDS_PER_ROUND: Final = 512  # windows; then what has landed meanwhile is accepted


def run(
    tick: Callable[[], TickReport],
    stop: threading.Event,
    interval: float,
    on_tick: Callable[[TickReport], None] | None,
    wake: threading.Event | None = None,
) -> None:
    """Round after round until `stop` is set, without a pause while there is work; one that waits for work
    goes on when `wake` is set. With `wake`, what landed before `stop` is worked off before it ends."""
    last = False  # whether what is done now is the rest
    while not (last := stop.is_set()) or wake is not None:
        if wake is not None:
            wake.clear()  # before the round looks: what lands while it does is for the next
        try:
            report = tick()
        except TidemillError as error:
            if error.retry is Retry.NEVER:
                raise
            if last:
                log.warning("%s; what is left waits for the next start", error)
                return
            log.warning("%s; trying again", error)
            stop.wait(interval)
            continue
        if on_tick is not None:
            on_tick(report)
        if not report.idle:
            continue
        if last:
            return
        (wake or stop).wait(rest_after(report, interval))


def rest_after(report: TickReport, interval: float) -> float:
    """Seconds until the next round, after one that found nothing to do: at most as long as those who wait for
    more to come asked for."""
    return interval if report.rest is None else min(interval, report.rest / SECOND)


def finish_retractions(workers: Workers, stream: str) -> None:
    """Carry out what a process that died had begun to take back of a stream."""
    if RetractionLog(workers.root).unfinished(workers.state, stream) is not None:
        from tidemill.raw.retract import finish_retractions

        finish_retractions(workers.warehouse, workers.acceptor, stream)


def take_up_logs(workers: Workers, now: int) -> None:
    """Land what gateways that died had acknowledged."""
    if not layout.gateway_logs(workers.root).is_dir():
        return
    from tidemill.ingest.gateway.taking_up import take_up

    project, until = workers.project, now + workers.project.gateway.receipts
    take_up(project.warehouse, project.streams, workers.state, workers.warehouse.landing, until)


@contextmanager
def _fewer_collections() -> Iterator[None]:
    """A round of a sparse feed holds tens of thousands of tiles, none of them in a cycle. To look for cycles
    after every 700 of them, as Python does by itself, is an eighth of the time that such a round takes."""
    youngest, *older = gc.get_threshold()
    gc.set_threshold(max(youngest, OBJECTS_PER_COLLECTION), *older)
    try:
        yield
    finally:
        gc.set_threshold(youngest, *older)


@_fewer_collections()
def tick(workers: Workers, clock: Callable[[], int], *, patient: bool) -> TickReport:
    """One round. The caller must hold the tick lock."""
    now, began = clock(), time.perf_counter()
    faults = RoundFaults(workers.state, now, workers.unrecorded_faults)
    adopt(workers.root, workers.state, fault=faults.record)
    take_up_logs(workers, now)
    names = [name for name in workers.project.streams if not (patient and faults.is_waiting(name))]
    done = tick_streams(workers, names, now, faults)
    builds = workers.dataset_builders.build(clock, BUILDS_PER_ROUND)
    built = refresh_after_builds(workers, names, now, faults)
    done = [_with(one, built.get(one.stream, {})) for one in done]
    delivered = workers.delivery.deliver(clock()) if workers.project.events.sinks else []
    expired = workers.retention.expire_due(now, [name for name in names if name not in faults.found])
    faults.finish(names)
    return TickReport(
        now=now,
        streams=done,
        seconds=time.perf_counter() - began,
        builds=builds,
        delivered=delivered,
        results={
            name: one.windows for name, of in built.items() for one in of.values() if isinstance(one, Results)
        },
        expired=expired,
        faults=list(faults.found.values()),
        errors=faults.errors,
    )


def tick_streams(workers: Workers, names: Iterable[str], now: int, faults: RoundFaults) -> list[StreamTick]:
    """One stream after the other; what is wrong with one does not keep the others waiting."""
    done: list[StreamTick] = []
    for name in names:
        with faults.apart(name):
            done.append(tick_stream(workers, workers.project.stream(name), now))
    return done


def refresh_after_builds(
    workers: Workers, names: Iterable[str], now: int, faults: RoundFaults
) -> dict[str, dict[str, Refreshed | None]]:
    """Refresh what may be made of datasets, too; what was done, by stream and output."""
    done: dict[str, dict[str, Refreshed | None]] = {}
    for name in names:
        if name not in faults.found:
            with faults.apart(name):
                outputs = (one for one in workers.outputs(name) if one.stage is Stage.BUILT)
                done[name] = {output.name: output.refresh(RoundStart(now)) for output in outputs}
    return done


def tick_stream(workers: Workers, stream: Stream, now: int) -> StreamTick:
    """Accept what has landed, pack, and refresh what is made of the slices, but for what waits for builds."""
    finish_retractions(workers, stream.name)
    workers.sources.watch(stream, now)
    newest = workers.state.slices(stream.name, newest=True, limit=1)
    start = RoundStart(now, newest[0].seq if newest else 0)
    done = settle(workers, stream, start)
    packed = workers.packer.pack_due(stream, now) if stream.pack.enabled else None
    if packed is not None and not packed.idle:  # the index has what was packed again at once
        done = replace(done, indexed=_both(done.indexed, _index(workers, stream.name, start)))
    outputs = workers.outputs(stream.name)
    if done.idle:
        done = replace(done, compacted=sum(output.compact(now) for output in outputs))
    settled = {one.name: one.refresh(start) for one in outputs if one.stage is Stage.SETTLED}
    return _with(replace(done, packed=packed), settled)


def settle(workers: Workers, stream: Stream, start: RoundStart) -> StreamTick:
    """Accept what has landed or can be read by now, and bring in line with it what is made of batches."""
    from tidemill.raw.accept.catch_up import merge_runs
    from tidemill.raw.replay import finish_replays
    from tidemill.raw.retry import try_again

    name, now = stream.name, start.now
    try_again(workers.warehouse, stream, now)
    outputs = [output for output in workers.outputs(name) if output.stage is Stage.ACCEPTED]
    if not _has_raw_work(workers, name) and not any(output.has_work() for output in outputs):
        return _with(StreamTick(name), {one.name: one.refresh(start) for one in outputs})
    acceptor = workers.acceptor(name)
    workers.catch_up(name)
    finish_replays(workers.root, stream, workers.state, now)
    batch = acceptor.accept(now)
    if batch is not None:
        for output in workers.outputs(name):
            output.accepted(batch)
    done = {output.name: output.refresh(start) for output in outputs}
    acceptor.finish()
    if is_judging_again(workers.state, name):
        return _with(StreamTick(name, batch), done)
    merged = len(merge_runs(acceptor))
    tidy((acceptor.raw, acceptor.quarantine), workers.project.engine.keep_replaced, now)
    return _with(StreamTick(name, batch, merged_runs=merged), done)


def _index(workers: Workers, stream: str, start: RoundStart) -> Indexed | None:
    done = workers.output(stream, "index").refresh(start)
    return done if isinstance(done, Indexed) else None


def _with(tick: StreamTick, done: Mapping[str, Refreshed | None]) -> StreamTick:
    """With what the outputs did; those that the product does not know of are told apart by their names."""
    others = dict(tick.others)
    for name, one in done.items():
        match one:
            case None | Results():  # the report of the round has those
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


def _has_raw_work(workers: Workers, stream: str) -> bool:
    """Whether there is something to accept, or a process that died left something behind; answered without
    opening a table that nobody wrote to."""
    if workers.state.pending(stream, 1):
        return True
    seen = workers.state.table_versions(stream)
    for name in ("raw", "quarantine"):
        table = workers.warehouse.existing(name, stream)
        if (table.version if table is not None else 0) != seen.get(name, 0):
            return True
        if any(layout.staging(layout.table(workers.root, name, stream)).glob("*")):
            return True
    found = {path.name for path in layout.gate(workers.root, stream).glob("*")}
    return found != set(workers.state.runs(stream))


def retract(workers: Workers, plan: RetractionPlan) -> None:
    """Take a slice back, as planned. The caller must hold the tick lock. What a crash left unfinished of its
    stream is finished first."""
    from tidemill.raw.retract import retract

    stream = plan.entry.slice.stream
    adopt_for(workers.root, workers.state, [stream])
    finish_retractions(workers, stream)
    if layout.raw(workers.root, stream).is_dir():
        workers.catch_up(stream)
    retract(workers.warehouse, workers.acceptor, plan)


def pack(workers: Workers, stream: str | None, *, rebuild: bool) -> list[Packed]:
    """Accept what has landed and pack the groups that are full then; with `rebuild` all slices anew. The
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
    while not settle(workers, stream, RoundStart(now)).idle:
        pass
    found = workers.packer.pack(stream, now, rebuild=rebuild)
    if found:
        _index(workers, stream.name, RoundStart(now))
    return found
