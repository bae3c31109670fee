"""One round for each stream: take up what a crash left, accept, roll up, index, pack, look after the windows
of datasets; and how long the daemon rests between two rounds.

It decides nothing: each room does its own work, and a round with nothing to do costs a few
look-ups.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tidemill.config import Stream
from tidemill.ingest.adopt import adopt, adopt_for
from tidemill.ingest.retractions import RetractionLog, is_judging_again
from tidemill.model.errors import Retry, TidemillError
from tidemill.model.time import SECOND
from tidemill.pipeline.reports import StreamTick, TickReport
from tidemill.storage import layout
from tidemill.storage.state.faults import Round, one_by_one
from tidemill.storage.tables.tidy import tidy

if TYPE_CHECKING:
    from tidemill.outputs.index.indexer import Indexed
    from tidemill.outputs.rollups.planning import Fresh
    from tidemill.outputs.rollups.roller import Roller
    from tidemill.pipeline.workers import Workers
    from tidemill.raw.accept.batch import Batch
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
    faults = Round(workers.state, now, workers.unrecorded_faults)
    adopt(workers.root, workers.state, fault=faults.record)
    take_up_logs(workers, now)
    names = [name for name in workers.project.streams if not (patient and faults.is_waiting(name))]
    done = tick_streams(workers, names, now, faults)
    builds = workers.yard.build(clock, BUILDS_PER_ROUND)
    streaming = [name for name in names if workers.project.stream(name).windows]
    results = workers.flow.refresh_all(streaming, now, faults) if streaming else {}
    delivered = workers.delivery.deliver(clock()) if workers.project.events.sinks else []
    expired = workers.retention.expire_due(now, [name for name in names if name not in faults.found])
    faults.finish(names)
    return TickReport(
        now=now,
        streams=done,
        seconds=time.perf_counter() - began,
        builds=builds,
        delivered=delivered,
        results=results,
        expired=expired,
        faults=list(faults.found.values()),
        errors=faults.errors,
    )


def tick_streams(workers: Workers, names: Iterable[str], now: int, faults: Round) -> list[StreamTick]:
    """One stream after the other; what is wrong with one does not keep the others waiting."""
    done: list[StreamTick] = []
    for name in names:
        with faults.apart(name):
            done.append(tick_stream(workers, workers.project.stream(name), now))
    return done


def tick_stream(workers: Workers, stream: Stream, now: int) -> StreamTick:
    finish_retractions(workers, stream.name)
    workers.sources.watch(stream, now)
    newest = workers.state.slices(stream.name, newest=True, limit=1)
    done = settle(workers, stream, now)
    packed = workers.packer.pack_due(stream, now) if stream.pack.enabled else None
    if packed is not None and not packed.idle:  # the index has what was packed again at once
        done = replace(done, indexed=_both(done.indexed, index(workers, stream, now)))
    if done.idle and stream.pack.enabled and stream.metrics:
        done = replace(done, compacted=compact_idle(workers, stream, now))
    done = replace(done, packed=packed, chains=workers.chains.round(stream.name, now))
    if stream.aggregation_span is None:
        return done
    seen = newest[0].seq if newest else 0
    done = replace(done, windows=workers.yard.coordinate(stream, now, seen))
    return replace(done, damaged=workers.yard.damage.look(stream.name, busy=not done.idle))


def compact_idle(workers: Workers, stream: Stream, now: int) -> int:
    """In a round that did nothing for the stream: merge the small parts of rollups that wait, once nothing
    was written there for `pack.idle`. How many went. (A round with work spares what it wrote itself.)"""
    from tidemill.outputs.rollups.compaction import crowded_parts

    rollups = workers.warehouse.existing("rollups", stream.name)
    if rollups is None or not workers.quiet_rollups.is_due(
        stream.name, rollups.version, stream.pack.idle, now
    ):
        return 0
    if workers.packer.is_held_back(stream) or not crowded_parts(rollups.snapshot().parts):
        return 0
    roller = workers.roller(stream.name)
    roller.catch_up()
    return roller.compact()


def settle(workers: Workers, stream: Stream, now: int) -> StreamTick:
    """Accept what has landed or can be read by now, and bring rollups and index in line with it."""
    from tidemill.raw.retry import try_again

    try_again(workers.warehouse, stream, now)
    done = _accept_and_roll(workers, stream, now) if _has_work(workers, stream) else StreamTick(stream.name)
    return replace(done, indexed=index(workers, stream, now))


def _accept_and_roll(workers: Workers, stream: Stream, now: int) -> StreamTick:
    from tidemill.raw.accept.catch_up import catch_up, merge_runs
    from tidemill.raw.replay import finish_replays

    acceptor, roller = workers.acceptor(stream.name), workers.roller(stream.name)
    catch_up(acceptor)
    roller.catch_up()
    finish_replays(workers.root, stream, workers.state, now)
    batch = acceptor.accept(now)
    fresh = _taken_up(workers, roller, batch) if batch is not None and batch.taps is not None else None
    if is_judging_again(
        workers.state, stream.name
    ):  # tiles wait until all that a retraction sent back is there
        acceptor.finish()
        return StreamTick(stream.name, batch)
    workers.warehouse.progress(stream.name, "tiles", 0.0)
    was = roller.declared_before
    tiles = roller.refresh(fresh, now)
    _record_declaration(workers, stream, now, was_current=was == roller.spec.declared)
    workers.warehouse.progress(stream.name, "tiles", 1.0)
    acceptor.finish()
    merged = merge_runs(acceptor)
    roller.chronicle.tidy()
    tidy((acceptor.raw, acceptor.quarantine, roller.table), workers.project.engine.keep_replaced, now)
    return StreamTick(stream.name, batch, tiles, len(merged))


def _record_declaration(workers: Workers, stream: Stream, now: int, *, was_current: bool) -> None:
    """All tiles that raw is there for are made for the metrics as they are declared now. A warehouse that
    has no log of that yet begins one; all that it holds is taken to be current if the state says so."""
    from tidemill.outputs.rollups.spec import declared_metrics

    log, metrics = workers.warehouse.declarations, declared_metrics(stream)
    known = log.of(stream.name)
    if metrics or known:
        sealed = None if was_current and not known else workers.warehouse.expiries.seal(stream.name)
        log.built(stream.name, metrics, sealed, now)


def index(workers: Workers, stream: Stream, now: int) -> Indexed | None:
    """Bring the index in line with raw, where there is something to index."""
    if is_judging_again(workers.state, stream.name) or workers.warehouse.existing("raw", stream.name) is None:
        return None
    indexer = workers.indexer(stream.name)
    if indexer is None:
        return None
    workers.warehouse.progress(stream.name, "index", 0.0)
    done = indexer.refresh(now)
    workers.warehouse.progress(stream.name, "index", 1.0)
    tidy([indexer.table], workers.project.engine.keep_replaced, now)
    return done


def _both(first: Indexed | None, then: Indexed | None) -> Indexed | None:
    if first is None or then is None:
        return then
    return replace(
        then,
        built=first.built + then.built,
        removed=first.removed + then.removed,
        entries=first.entries + then.entries,
    )


def _taken_up(workers: Workers, roller: Roller, batch: Batch) -> Fresh | None:
    """What the batch left for the tiles, with what it changes in those that it has no rows in."""
    assert batch.taps is not None
    places: dict[str, int] = {}
    if roller.chronicle.needed:
        found = (workers.state.slice(result.slice) for result in batch.record.results)
        places = {entry.id: entry.seq for entry in found if entry is not None}
    return roller.take_up(batch.id, batch.record.tiles, places, batch.taps)


def _has_work(workers: Workers, stream: Stream) -> bool:
    """Whether a tick could change anything; answered without opening a table that nobody wrote to."""
    if workers.state.pending(stream.name, 1) or (stream.metrics and workers.state.stale_tiles(stream.name)):
        return True
    seen = workers.state.table_versions(stream.name)
    for name in ("raw", "quarantine", "rollups"):
        table = workers.warehouse.existing(name, stream.name)
        if (table.version if table is not None else 0) != seen.get(name, 0):
            return True
    if stream.kept_metrics and workers.warehouse.existing("rollups", stream.name) is not None:
        from tidemill.outputs.rollups.roller import DECLARED
        from tidemill.outputs.rollups.spec import declared_as

        if workers.state.marks(stream.name).get(DECLARED) != declared_as(stream):
            return True
    return _left_behind(workers, stream.name)


def _left_behind(workers: Workers, stream: str) -> bool:
    """Whether a process that died left something in staging, or id runs other than those known."""
    warehouse = workers.root
    for table in (layout.raw, layout.quarantine, layout.rollups):
        if any(layout.staging(table(warehouse, stream)).glob("*")):
            return True
    found = {path.name for path in layout.gate(warehouse, stream).glob("*")}
    return found != set(workers.state.runs(stream))


def retract(workers: Workers, plan: RetractionPlan) -> None:
    """Take a slice back, as planned. The caller must hold the tick lock. What a crash left unfinished of its
    stream is finished first."""
    from tidemill.raw.accept.catch_up import catch_up
    from tidemill.raw.retract import retract

    stream = plan.entry.slice.stream
    adopt_for(workers.root, workers.state, [stream])
    finish_retractions(workers, stream)
    if layout.raw(workers.root, stream).is_dir():
        catch_up(workers.acceptor(stream))
        workers.roller(stream).catch_up()
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
    while not settle(workers, stream, now).idle:
        pass
    found = workers.packer.pack(stream, now, rebuild=rebuild)
    if found:
        index(workers, stream, now)
    return found
