"""A project that is open: land slices, tick, ask; one short method for each verb.

Opening is cheap: it starts no JVM and loads neither Arrow nor Delta, since a command that only asks the state
needs none of them. So methods import what they alone need. The wall clock is read here and nowhere below.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from tidemill.config import Project
from tidemill.ingest import arguments as given
from tidemill.ingest.adopt import has_landings
from tidemill.ingest.landing import Landed, LandedMany
from tidemill.ingest.plugins import open_project
from tidemill.ingest.warehouse import Progress, Warehouse
from tidemill.model.errors import StorageError
from tidemill.model.slices import Format, SliceEntry, SliceStatus
from tidemill.pipeline.reports import StreamStatus, TickReport
from tidemill.pipeline.workers import Workers
from tidemill.storage.files import storage_errors
from tidemill.storage.locks import exclusive
from tidemill.storage.state.faults import Round
from tidemill.storage.state.opening import open_store, state_file
from tidemill.storage.state.protocol import State

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from tidemill.engine import Engine
    from tidemill.eventtime import Watermark
    from tidemill.ingest.feeds import Sources
    from tidemill.outputs.datasets.builder import Outcome
    from tidemill.outputs.datasets.reader import Desk, RebuildStep
    from tidemill.outputs.vectors.chainer import Chainer
    from tidemill.outputs.vectors.reading import VectorDesk
    from tidemill.outputs.vectors.view import ChainView
    from tidemill.outputs.windows.refresh import Refreshed
    from tidemill.pipeline.metrics import Meter
    from tidemill.pipeline.rebuild import Remaker
    from tidemill.pipeline.recover import Recovered
    from tidemill.pipeline.retention import Keeper
    from tidemill.pipeline.verify import Audit
    from tidemill.query import Answer, Explanation, Querier
    from tidemill.query.catalog import StreamFacts
    from tidemill.query.search.searching import Found, SearchPlan
    from tidemill.query.service import Asked
    from tidemill.raw.compaction.packer import Packed, Packer
    from tidemill.raw.quarantine import Place
    from tidemill.raw.retract import RetractionPlan
    from tidemill.raw.tail import Feed
    from tidemill.storage.tables.snapshot import Snapshot


def wall_clock() -> int:
    return time.time_ns() // 1000


def _running(now: int) -> Callable[[], int]:
    """A clock that was set to `now` this moment."""
    began = time.monotonic_ns()
    return lambda: now + (time.monotonic_ns() - began) // 1000


class Mill:
    """A project that is open. Use it as a context manager, or call `close`."""

    def __init__(
        self,
        project: Project,
        state: State,
        *,
        spark: SparkSession | None = None,
        clock: Callable[[], int] = wall_clock,
        progress: Progress | None = None,
    ) -> None:
        self.project = project
        self.state = state
        self.clock = clock
        self.warehouse = Warehouse(project, state, clock=clock, spark=spark, progress=progress)
        self.workers = Workers(self.warehouse)
        self._guard = threading.Lock()
        self._asked: Querier | None = None

    @classmethod
    def open(
        cls,
        path: str | Path = ".",
        *,
        spark: SparkSession | None = None,
        clock: Callable[[], int] = wall_clock,
        progress: Progress | None = None,
    ) -> Self:
        """The project at `path` (a `tidemill.yaml`, or the folder it is in)."""
        project = open_project(path)
        warehouse = project.warehouse
        with storage_errors("create the warehouse", warehouse):
            warehouse.mkdir(parents=True, exist_ok=True)
        if has_landings(warehouse) and not state_file(warehouse).exists():
            raise StorageError(
                f"the warehouse has slices, but there is no state in {state_file(warehouse)}",
                where=str(warehouse),
                hint="run `tidemill recover`: it rebuilds the state from the warehouse",
            )
        return cls(project, open_store(warehouse), spark=spark, clock=clock, progress=progress)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.workers.close()
        if self._asked is not None:
            self._asked.close()
        self.warehouse.close()

    # -- landing

    def ingest(
        self,
        stream: str,
        files: Sequence[str | Path],
        *,
        start: str | int | None = None,
        end: str | int | None = None,
        source: str = "file",
        format: str | Format | None = None,
        progress: Callable[[], None] | None = None,
        empty: bool = False,
        many_windows: bool = False,
    ) -> LandedMany:
        """Land files (paths, globs, folders, `-` for standard input); returns once they are durable. With
        `empty` there are none: nothing happened between `start` and `end`. With `many_windows` these may span
        more windows than `max_slice_windows` of the stream."""
        from tidemill.ingest.files import land_files

        bounds = given.bounds(self.project.stream(stream), start, end, many=many_windows)
        names = [str(file) for file in files]
        return land_files(self.warehouse, stream, names, bounds, source, format, progress, empty=empty)

    def ingest_command(self, files: Sequence[str | Path]) -> LandedMany:
        """Land what IngestDataCommands (JSON files, `-`: standard input) name: objects already in storage."""
        from tidemill.ingest.files import land_commands

        return land_commands(
            self.project, self.warehouse.landing, [str(file) for file in files], self.clock()
        )

    def land(
        self,
        stream: str,
        content: bytes,
        *,
        name: str = "bytes", source: str = "api", format: str | Format | None = None,
        start: str | int | None = None, end: str | int | None = None, many_windows: bool = False,
    ) -> Landed:  # fmt: skip
        """Land one slice given as bytes; `many_windows` as for `ingest`."""
        from tidemill.ingest.files import land_bytes

        bounds = given.bounds(self.project.stream(stream), start, end, many=many_windows)
        return land_bytes(self.warehouse, stream, content, bounds, name, source, format)

    # -- the pipeline

    @property
    def engine(self) -> Engine:
        return self.warehouse.engine

    def tick(self, now: int | None = None, *, patient: bool = False) -> TickReport:
        """One round: take up what a crash left, accept, roll up, pack, look after windows, build, tell.

        A stream that cannot be worked on does not keep the others waiting: `faults` of the report has it.
        When `patient`, one that failed before is left alone until its next try. Only one process at a time
        works on a warehouse; another one gets BusyError.
        """
        from tidemill.pipeline import rounds

        with self._working():
            return rounds.tick(self.workers, self.clock if now is None else _running(now), patient=patient)

    def flush(self, stream: str | None = None) -> dict[str, list[Refreshed]]:
        """A graceful stop: windows that are still open come out as they are, with trigger `stop`. The
        watermark stays where it is; if more rows come for such a window, it comes out again."""
        names = [self.project.stream(stream).name] if stream is not None else list(self.project.streams)
        now = self.clock()
        with self._working():
            return self.workers.flow.refresh_all(names, now, Round(self.state, now, {}), flush=True)

    def run_until_idle(self) -> list[TickReport]:
        """Tick until a round finds nothing to do and nothing is under way in the background."""
        reports = []
        while True:
            report = self.tick()
            reports.append(report)
            if report.idle and not self.packer.wait():
                return reports

    def run(
        self,
        stop: threading.Event,
        interval: float,
        on_tick: Callable[[TickReport], None] | None = None,
        on_flush: Callable[[dict[str, list[Refreshed]]], None] = lambda _flushed: None,
        wake: threading.Event | None = None,
    ) -> None:
        """The daemon: ticks until `stop` is set, then flushes. Who lands in this process sets `wake`, too."""
        from tidemill.pipeline import rounds

        rounds.run(lambda: self.tick(patient=True), stop, interval, on_tick, wake)
        if self.project.engine.flush_on_stop and self._has_streaming:
            on_flush(self.flush())

    # -- windows, datasets, events

    @property
    def _has_streaming(self) -> bool:
        return any(stream.windows for stream in self.project.streams.values())

    def results(
        self, stream: str, window: str, *, start: str | int | None = None, end: str | int | None = None,
        tenant: str | None = None, revisions: bool = False,
    ) -> pa.Table:  # fmt: skip
        """What stands of a streaming window, by start; with `revisions` all that ever stood."""
        from tidemill.outputs.windows.reader import read_results

        declared = self.project.stream(stream)
        span = given.span(start, end)
        return read_results(self.project.warehouse, declared, window, span, tenant, revisions=revisions)

    @property
    def windows(self) -> Desk:
        """Answers about windows: what there is, why one waits, what a rebuild would do."""
        return self.workers.windows

    def build(
        self,
        stop: threading.Event,
        interval: float,
        on_build: Callable[[Sequence[Outcome]], None],
        concurrency: int | None = None,
        *,
        once: bool = False,
    ) -> None:
        """A builder beside the daemon, in this or another process: takes from the queue until `stop` is set,
        or with `once` until it is empty. It needs no lock: leases keep builders apart."""
        self.workers.yard.work(self.clock, stop, interval, on_build, concurrency, once=once)

    def rebuild(self, steps: Sequence[RebuildStep]) -> list[Outcome]:
        """Do what a plan of `windows.plan_rebuild` says."""
        keys = set(self.windows.rebuild(steps))
        with self._working():
            for name in sorted({key.stream for key in keys}):
                self.workers.yard.coordinate(self.project.stream(name), self.clock())
            return [outcome for outcome in self.workers.yard.build(self.clock, None) if outcome.key in keys]

    @cached_property
    def remake(self) -> Remaker:
        """Makes rollups and index again from raw."""
        from tidemill.pipeline.rebuild import Remaker

        return Remaker(self.workers)

    @property
    def sources(self) -> Sources:
        """Lands what raw manifests of request/response feeds say is complete."""
        return self.workers.sources

    @property
    def packer(self) -> Packer:
        """Says what waits to be packed, and what is in large parts of raw."""
        return self.workers.packer

    def pack(self, stream: str | None = None, *, rebuild: bool = False) -> list[Packed]:
        """Accept what has landed and pack the groups that are full then; with `rebuild` all slices anew."""
        from tidemill.pipeline import rounds

        with self._working("pack"):
            return rounds.pack(self.workers, stream, rebuild=rebuild)

    def export(
        self, stream: str, windows: Sequence[str | int], to: str, target: Path, revision: int | None = None
    ) -> list[Path]:
        """Write the datasets of windows as parquet, arrow or csv to a file (for one) or into a folder."""
        from tidemill.outputs.datasets.maintenance import export

        starts = [given.instant(window) for window in windows]
        return export(self.project.warehouse, self.windows, stream, starts, to, target, revision)

    def events(
        self, after: int = 0, limit: int = 1000, stream: str | None = None
    ) -> list[tuple[int, dict[str, object]]]:
        """CloudEvents of the outbox behind the place `after`, each with its place."""
        from tidemill.pipeline.status import told

        return told(self.workers, after, limit, stream)

    @cached_property
    def meter(self) -> Meter:
        """Prometheus metrics; who runs the mill tells it of each round."""
        from tidemill.pipeline.metrics import Meter
        from tidemill.raw.tail.late import LateCounts

        tries, late = self.project.builder.attempts, LateCounts(self.workers.feed)
        return Meter(self.project.streams, self.state, self.clock, tries, late.of)

    def plan_retraction(self, slice_id: str, reason: str) -> RetractionPlan:
        """What taking a slice back does: the steps, and which slices are judged again."""
        from tidemill.raw.retract import plan_retraction

        return plan_retraction(self.warehouse, slice_id, reason, self.clock())

    def retract(self, plan: RetractionPlan) -> SliceEntry:
        """Take a slice back, as planned; the next rounds judge again what has to be."""
        from tidemill.pipeline import rounds

        with self._working():
            rounds.retract(self.workers, plan)
        return self.slice(plan.slice)

    @property
    def retention(self) -> Keeper:
        """Plans what goes by the retention of its stream, and lets it go."""
        return self.workers.retention

    @contextmanager
    def _working(self, what: str = "tick") -> Iterator[None]:
        with exclusive(self.project.warehouse / ".tick.lock", what):
            yield

    # -- looking

    def snapshot(self, kind: str, stream: str) -> Snapshot | None:
        """What a table holds now, for any thread that looks; None before anybody wrote to it."""
        return self.warehouse.snapshot(kind, stream)

    def ledger(
        self, stream: str | None = None, status: str | SliceStatus | None = None, limit: int | None = None
    ) -> list[SliceEntry]:
        """Slices, newest first."""
        if stream is not None:
            self.project.stream(stream)
        return self.state.slices(
            stream, SliceStatus(status) if status is not None else None, newest=True, limit=limit
        )

    def slice(self, id_or_prefix: str) -> SliceEntry:
        return self.warehouse.slice(id_or_prefix)

    def status(self) -> list[StreamStatus]:
        from tidemill.pipeline.status import status_of

        return [status_of(self.workers, name) for name in self.project.streams]

    def watermark(self, stream: str) -> int | None:
        """Of the stream as of now: the least of those of its sources that are not idle."""
        return self.workers.watermark(stream)

    def quarantine(
        self, stream: str, *, reason: str | None = None, slice: str | None = None, limit: int | None = None,
        after: Place | None = None, tenant: str | None = None,
    ) -> pa.Table:  # fmt: skip
        """What was not accepted, verbatim, with the reason; behind the row `after`."""
        from tidemill.pipeline.status import quarantined

        return quarantined(self.workers, stream, reason, slice, limit, after, tenant)

    def replay(self, stream: str, *, reason: str | None = None) -> list[Landed]:
        """Land what is in quarantine, to be judged again: as one slice, or, for a stream with datasets, one
        for each slice that records were rejected from. Nothing lands when quarantine is empty."""
        from tidemill.raw.replay import replay

        declared = self.project.stream(stream)
        with self._working():
            landing, root = self.warehouse.landing, self.project.warehouse
            return replay(root, declared, self.state, landing, self.clock(), reason)

    # -- event time

    def tail(
        self,
        stream: str,
        *,
        ordered: bool = True,
        follow: bool = False,
        since: str | int | None = None,
        limit: int | None = None,
        tenant: str | None = None,
        stop: threading.Event | None = None,
        interval: float = 1.0,
    ) -> Iterator[pa.RecordBatch | Watermark]:
        """Accepted rows, in order of event time (else as they came), and the watermarks between them. With
        `follow` it goes on until `stop` is set; then what is still buffered comes out, and no watermark."""
        from tidemill.raw.tail import tail

        end, at = stop or threading.Event(), given.instant(since) if since is not None else None
        return tail(
            self.feed(stream), ordered=ordered, follow=follow, since=at, limit=limit, tenant=tenant,
            stop=end, wait=lambda: end.wait(interval),
        )  # fmt: skip

    def feed(self, stream: str) -> Feed:
        """What `tidemill.raw.tail` reads: `tail`, `late_rows`, `late_totals`."""
        return self.workers.feed(stream)

    # -- asking

    @property
    def _querier(self) -> Querier:
        """One for all threads."""
        from tidemill.query.service import querier_of

        with self._guard:
            if self._asked is None:
                self._asked = querier_of(self.warehouse)
            return self._asked

    def ask(
        self, query: Asked, *, tenant: str | None = None, all_tenants: bool = False, strict: bool = False,
        engine: str = "duckdb", check_tenant: bool = True,
    ) -> Answer | Explanation:  # fmt: skip
        """Answer a query (text or JSON document), with the facts that say how far it can be trusted.

        Where a stream has several tenants, one is named or `all_tenants` are asked for. With `strict` an
        answer that lacks something is an IncompleteError. `check_tenant=False`: one without events may be.
        """
        from tidemill.query.service import Whose, ask

        whose = Whose(tenant, all_tenants, check_tenant)
        return ask(self.warehouse, self._querier, query, whose, strict=strict, engine=engine)

    def query(
        self, query: Asked, *, tenant: str | None = None, all_tenants: bool = False, strict: bool = False,
        engine: str = "duckdb",
    ) -> pa.Table:  # fmt: skip
        """The rows of a query as Arrow."""
        from tidemill.query.service import rows_of

        return rows_of(self.ask(query, tenant=tenant, all_tenants=all_tenants, strict=strict, engine=engine))

    def search(
        self, stream: str, asked: Asked = "", *, tenant: str | None = None, all_tenants: bool = False,
        cursor: str | None = None, limit: int | None = None, total: bool = False, strict: bool = False,
        engine: Literal["local", "spark"] = "local", check_tenant: bool = True,
    ) -> Found | SearchPlan:  # fmt: skip
        """Accepted events by what they hold, a page at a time. Whose they are, and `strict`: as for `ask`."""
        from tidemill.query.search.service import find
        from tidemill.query.service import Whose

        whose = Whose(tenant, all_tenants, check_tenant)
        return find(
            self.warehouse, stream, asked, whose, cursor, limit, total=total, strict=strict, engine=engine
        )

    def catalog(self, stream: str | None = None, tenant: str | None = None) -> list[StreamFacts]:
        """What there is to ask for."""
        from tidemill.query.catalog import catalog

        return catalog(self.warehouse, stream, tenant)

    # -- vectors

    @property
    def chains(self) -> Chainer:
        """Chains of vectors: compacted, planned, and deltas in batches."""
        return self.workers.chains

    @property
    def vector_desk(self) -> VectorDesk:
        """Answers about vectors: what they are, and the chains they are made of."""
        return self.workers.vector_desk

    def vectors(
        self, stream: str, ids: Sequence[str | int], at: str | int | None = None, *, tenant: str | None = None
    ) -> pa.Table:
        """A row for each id, now or at an instant: vector_id, exists, ts, values, overflow and pending."""
        until = None if at is None else given.instant(at)
        return self.vector_desk.vectors(self.project.stream(stream).name, ids, until, tenant)

    def chain(self, stream: str, vector_id: str | int, *, tenant: str | None = None) -> ChainView:
        """What the chain of a vector holds: checkpoints, pending deltas, and what they take."""
        from tidemill.outputs.vectors.view import chain_of

        return chain_of(self.vector_desk, self.project.stream(stream), str(vector_id), self.clock(), tenant)

    # -- proving

    def verify(self, stream: str | None = None) -> Audit:
        """Recompute everything from raw and compare."""
        from tidemill.pipeline.verify import audit

        names = [stream] if stream is not None else list(self.project.streams)
        with self._working():
            return audit(self.workers, names)


def recover(
    path: str | Path = ".",
    *,
    spark: SparkSession | None = None,
    clock: Callable[[], int] = wall_clock,
    progress: Progress | None = None,
) -> Recovered:
    """Rebuild the state of the project at `path` from its warehouse."""
    from tidemill.pipeline.recover import recover_state

    project = open_project(path)
    return recover_state(project, spark=spark, clock=clock, progress=progress)
