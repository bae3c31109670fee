"""An open project: land slices, tick, query; one short method for each verb. docs/python.md is generated from
it.

Opening is cheap: it starts no JVM and loads neither Arrow nor Delta. A command that only reads the state
needs none of them. So methods import what they alone need. The wall clock is read here and nowhere below.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from tidemill.config import Project
from tidemill.config.project import bucket_url
from tidemill.ingest import arguments
from tidemill.ingest.files import land_bytes, land_commands, land_files
from tidemill.ingest.interrupted_landings import has_landings
from tidemill.ingest.landing import Landed, LandedMany
from tidemill.ingest.plugins import open_project
from tidemill.ingest.warehouse import Progress, Warehouse
from tidemill.model.clock import WatchedClock
from tidemill.model.errors import BusyError, StorageError
from tidemill.model.slices import CountedAs, Format, Reject, SliceEntry, SliceStatus
from tidemill.pipeline.progress import Pulse
from tidemill.pipeline.scrub_progress import scrub_status
from tidemill.pipeline.workers import Workers
from tidemill.query.catalog import catalog
from tidemill.storage.files import storage_errors
from tidemill.storage.layout import TableKind
from tidemill.storage.state import opening
from tidemill.storage.state.faults import WAREHOUSE, Fault, faults_of
from tidemill.storage.state.protocol import State

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from tidemill.engine import Engine
    from tidemill.eventtime import Watermark
    from tidemill.ingest.feeds import Sources
    from tidemill.model.completeness import Missing, Pending
    from tidemill.outputs.datasets.builder import BuildOutcome
    from tidemill.outputs.datasets.changes import RevisionChanges
    from tidemill.outputs.datasets.reader import RebuildStep, WindowReader
    from tidemill.outputs.datasets.timeline import Timeline
    from tidemill.outputs.vectors.chain_view import ChainView
    from tidemill.outputs.vectors.chainer import Chainer
    from tidemill.outputs.windows.refresh import WindowRefresh
    from tidemill.pipeline.metrics import Meter
    from tidemill.pipeline.move import Moved, MovePlan
    from tidemill.pipeline.overview import StreamOverview
    from tidemill.pipeline.rebuild import Rebuilder
    from tidemill.pipeline.recover import Recovered
    from tidemill.pipeline.repair import Repaired, RepairPlan
    from tidemill.pipeline.reports import StreamStatus, TickReport
    from tidemill.pipeline.retention import Retention
    from tidemill.pipeline.scrub import Scrubbed
    from tidemill.pipeline.scrub_progress import ScrubStatus
    from tidemill.pipeline.trace import EventTrace
    from tidemill.pipeline.verify import Audit
    from tidemill.query import Answer, Explanation
    from tidemill.query.as_of import Change
    from tidemill.query.catalog import StreamFacts
    from tidemill.query.cell import Cell
    from tidemill.query.plain_sql.service import SqlAnswer
    from tidemill.query.search.search import SearchPage, SearchPlan
    from tidemill.query.service import Asked
    from tidemill.raw.compaction.packer import Packed, Packer
    from tidemill.raw.quarantine import Place
    from tidemill.raw.retract import RetractionPlan
    from tidemill.raw.tail import Feed
    from tidemill.storage.tables.snapshot import Snapshot

# Imports inside functions keep start-up short: opening a project loads neither Arrow nor Delta.


log = logging.getLogger(__name__)


def wall_clock() -> int:
    return time.time_ns() // 1000


def monotonic_clock() -> int:
    """The clock for waits: no step of the wall clock moves it."""
    return time.monotonic_ns() // 1000


class Mill:
    """An open project. Use it as a context manager, or call `close`.

    `project` is the checked configuration, `state` the ledger and all other state, and `clock` the
    function that returns the time in microseconds since the epoch. `warehouse`, `workers` and `pulse` are
    the parts behind the methods, for the server and the command line; they can change in any release.
    """

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
        self.clock = WatchedClock(clock, monotonic_clock) if clock is wall_clock else WatchedClock.of(clock)
        self.pulse = Pulse(self.clock.timer, state)

        def step(stream: str, name: str, done: float) -> None:
            self.pulse.beat()
            if progress is not None:
                progress(stream, name, done)

        self.warehouse = Warehouse(project, state, clock=self.clock, spark=spark, progress=step)
        self.workers = Workers(self.warehouse, self.clock.timer)

    @classmethod
    def open(
        cls,
        path: str | Path = ".",
        *,
        spark: SparkSession | None = None,
        clock: Callable[[], int] = wall_clock,
        progress: Progress | None = None,
    ) -> Self:
        """Open the project at `path`: a `tidemill.yaml`, or the folder that holds one.

        Work that needs Spark uses the session `spark`, or starts one. `progress` is called with a stream, the
        name of a step and the share of it that is done. Raises StorageError if the warehouse has slices but
        its state is missing: see `recover`.
        """
        project = open_project(path)
        warehouse = project.warehouse
        with storage_errors("create the warehouse", warehouse):
            warehouse.mkdir(parents=True, exist_ok=True)
        with storage_errors("look for slices", warehouse):
            has_slices = has_landings(warehouse)
        if has_slices and not opening.exists(warehouse, project.state):
            raise StorageError(
                f"the warehouse has slices, but there is no state in "
                f"{opening.name_of(warehouse, project.state)}",
                where=str(warehouse),
                hint="run `tidemill recover`: it rebuilds the state from the warehouse",
            )
        state = opening.open_store(warehouse, project.state)
        return cls(project, state, spark=spark, clock=clock, progress=progress)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop background work, and the Spark session if the mill started it. The mill cannot be used
        then."""
        self.workers.close()
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
        """Land files (paths, globs, folders, `-` for standard input) as slices, and return when they are
        durable.

        `start` and `end` declare the span that the files cover. With `empty` there are no files: nothing
        happened in that span. `many_windows` allows a span of more windows than `max_slice_windows` of the
        stream. The result has the `landed` slices and the files that were `refused`, each with its error.
        """
        bounds = arguments.declared_bounds(self.project.stream(stream), start, end, many=many_windows)
        names = [str(file) for file in files]
        return land_files(self.warehouse, stream, names, bounds, source, format, progress, empty=empty)

    def ingest_command(self, files: Sequence[str | Path]) -> LandedMany:
        """Land the stored objects that IngestDataCommands name. `files` are JSON files with the commands, or
        `-` for standard input. The result is as for `ingest`."""
        return land_commands(
            self.project, self.warehouse.landing, [str(file) for file in files], self.warehouse.arrival()
        )

    def land(
        self,
        stream: str,
        content: bytes,
        *,
        name: str = "bytes", source: str = "api", format: str | Format | None = None,
        start: str | int | None = None, end: str | int | None = None, many_windows: bool = False,
    ) -> Landed:  # fmt: skip
        """Land `content` as one slice, and return it when it is durable: its `entry` of the ledger, and
        whether it is `new`. `name` is what the ledger calls it; the other arguments are as for `ingest`."""
        bounds = arguments.declared_bounds(self.project.stream(stream), start, end, many=many_windows)
        return land_bytes(self.warehouse, stream, content, bounds, name, source, format)

    # -- the pipeline

    @property
    def engine(self) -> Engine:
        """What runs work on Spark or, when it is small, in this process; `engine.session` is the Spark
        session."""
        return self.warehouse.engine

    def tick(self, now: int | None = None, *, patient: bool = False) -> TickReport:
        """Run one round: finish what a crash left, accept what has landed, bring every output up to date, and
        deliver events. Returns a report of what was done; `idle` says that there was nothing to do.

        A stream or an output that fails does not stop the others: it is in `faults` of the report. With
        `patient`, what failed before is skipped until its next try is due. Only one process works on a
        stream at a time: those that others work on are left to them; BusyError if they work on all. `now` is
        the time of the round, by default the time of the clock.
        """
        from tidemill.pipeline import rounds

        with self.warehouse.sharing() as leases:
            clock = self.clock if now is None else rounds.running_clock(now)
            return rounds.tick(self.workers, clock, leases, patient=patient)

    def flush(self, stream: str | None = None) -> dict[str, list[WindowRefresh]]:
        """Publish the streaming windows that are still open, as they are, with the trigger `stop`. Returns
        what was published, by stream. The watermark does not move, and a window that gets more rows is
        published again."""
        from tidemill.pipeline import rounds

        names = [self.project.stream(stream).name] if stream is not None else list(self.project.streams)
        return rounds.flush(self.workers, names, self.clock())

    def run_until_idle(self, patience: float = 0.0) -> list[TickReport]:
        """Run rounds until one finds nothing to do and no background work is left. Returns their reports. For
        each round, wait up to `patience` seconds for the round of another process."""
        from tidemill.pipeline import rounds

        return rounds.run_until_idle(self.workers, self.clock, patience)

    def run(
        self,
        stop: threading.Event,
        interval: float,
        on_tick: Callable[[TickReport], None] | None = None,
        on_flush: Callable[[dict[str, list[WindowRefresh]]], None] = lambda _flushed: None,
        wake: threading.Event | None = None,
    ) -> None:
        """Run rounds until `stop` is set, at most `interval` seconds apart when there is nothing to do; then
        flush, if the project says so. Each report goes to `on_tick`. Set `wake` to start the next round at
        once."""
        from tidemill.pipeline import rounds

        def tick() -> TickReport:
            with self.warehouse.sharing() as leases:
                return rounds.tick(self.workers, self.clock, leases, patient=True, wake=wake)

        self.pulse.begin(interval)
        try:
            rounds.run(tick, stop, interval, on_tick, wake, self.pulse)
        finally:
            self.pulse.end()
        if self.project.engine.flush_on_stop and any(one.windows for one in self.project.streams.values()):
            try:
                flushed = self.flush()
            except BusyError as error:
                log.info("open windows are left to the processes that go on: %s", error)
            else:
                on_flush(flushed)

    # -- windows, datasets, events

    def results(
        self, stream: str, window: str, *, start: str | int | None = None, end: str | int | None = None,
        tenant: str | None = None, revisions: bool = False,
    ) -> pa.Table:  # fmt: skip
        """The current results of a streaming window as an Arrow table, ordered by start; with `revisions`,
        all revisions of them."""
        from tidemill.outputs.windows.reader import read_results

        declared = self.project.stream(stream)
        span = arguments.span(start, end)
        return read_results(
            self.project.warehouse,
            declared,
            window,
            span,
            tenant,
            revisions=revisions,
            checkpoint_texts=self.state.checkpoints(stream),
        )

    def missing_results(
        self, stream: str, window: str, *, start: str | int | None = None, end: str | int | None = None
    ) -> list[Missing]:
        """What the results of a streaming window lack: spans that were lost with damaged files and that
        nothing can compute again, and values that do not fit the type of their field, which was changed."""
        from tidemill.outputs.windows.reader import missing_results, spec_named

        declared = self.project.stream(stream)
        spec, known = spec_named(declared, window), self.state.checkpoints(stream)
        return missing_results(self.warehouse.expiries, declared, spec, known, arguments.span(start, end))

    def pending_results(self, stream: str, window: str) -> list[Pending]:
        """What the results of a streaming window do not include yet: slices that wait or failed, retractions
        under way, rows that came since the last round. Each says what will add it."""
        from tidemill.outputs.windows.reader import spec_named
        from tidemill.query.service import pending_results

        declared = self.project.stream(stream)
        return list(pending_results(self.warehouse, declared, spec_named(declared, window)))

    @property
    def windows(self) -> WindowReader:
        """Lists windows and their datasets, says why one waits, and what a rebuild would do."""
        return self.workers.windows

    def timeline(
        self, stream: str, *, start: str | int | None = None, end: str | int | None = None, limit: int = 2000
    ) -> Timeline:
        """The windows of a stream over time, one by one if there are at most `limit`, else how many of each
        state lie in each stretch; the newest slices beside them, and what no slice covers."""
        from tidemill.pipeline.status import timeline_of

        span = None if start is None and end is None else arguments.span(start, end)
        return timeline_of(self.workers, stream, span, limit)

    def window_changes(
        self, stream: str, window: str | int, *, old: int | None = None, new: int | None = None,
        tenant: str | None = None, offset: int = 0, limit: int = 50,
    ) -> RevisionChanges:  # fmt: skip
        """What changed from one revision of the window that holds an instant to another, by default from the
        last but one to the last: counts, and the changed rows after the first `offset`."""
        from tidemill.outputs.datasets.changes import changes_between, chosen

        details = self.windows.window(stream, arguments.instant(window))
        first, last = chosen(details.revisions, old, new)
        return changes_between(self.project.warehouse, first, last, tenant, offset, limit)

    def build(
        self,
        stop: threading.Event,
        interval: float,
        on_build: Callable[[Sequence[BuildOutcome]], None],
        concurrency: int | None = None,
        *,
        once: bool = False,
    ) -> None:
        """Build queued datasets until `stop` is set, or with `once` until the queue is empty. Each batch of
        outcomes goes to `on_build`. Several builders can run beside the daemon, in this process or others:
        they need no lock, since each takes a lease on what it builds."""
        self.workers.dataset_builders.work(self.clock, stop, interval, on_build, concurrency, once=once)

    def rebuild(self, steps: Sequence[RebuildStep]) -> list[BuildOutcome]:
        """Build the datasets of a plan made by `windows.plan_rebuild`, and return the outcome of each."""
        keys = set(self.windows.rebuild(steps))
        with self.warehouse.working("tick"):
            for name in sorted({key.stream for key in keys}):
                self.workers.dataset_builders.coordinate(self.project.stream(name), self.clock())
            return [
                outcome
                for outcome in self.workers.dataset_builders.build(self.clock, None)
                if outcome.key in keys
            ]

    @cached_property
    def remake(self) -> Rebuilder:
        """Rebuilds rollups, the index and damaged window results from raw."""
        from tidemill.pipeline.rebuild import Rebuilder

        return Rebuilder(self.workers)

    @property
    def sources(self) -> Sources:
        """Lands what the manifests of request/response feeds list as complete."""
        return self.workers.sources

    @property
    def packer(self) -> Packer:
        """Plans the packing of small slices into large parts, and lists what each packed part holds."""
        return self.workers.packer

    def pack(self, stream: str | None = None, *, rebuild: bool = False) -> list[Packed]:
        """Accept what has landed, then pack the groups of slices that are full; with `rebuild`, pack all
        slices again. Returns what was packed."""
        from tidemill.pipeline import rounds

        with self.warehouse.working("pack"):
            return rounds.pack(self.workers, stream, rebuild=rebuild)

    def export(
        self, stream: str, windows: Sequence[str | int], to: str, target: Path, revision: int | None = None
    ) -> list[Path]:
        """Write the datasets of the windows that hold these instants as `to` (parquet, arrow or csv). If
        `target` is a folder, each goes to a file of its own in it, else all go to that one file. Returns the
        files."""
        from tidemill.outputs.datasets.dataset_builders import export

        starts = [arguments.instant(window) for window in windows]
        return export(self.project.warehouse, self.windows, stream, starts, to, target, revision)

    def events(
        self, after: int = 0, limit: int = 1000, stream: str | None = None
    ) -> list[tuple[int, dict[str, object]]]:
        """The CloudEvents published after the offset `after`, oldest first, each as a pair of its offset and
        the event."""
        from tidemill.pipeline.status import published_events

        return published_events(self.workers, after, limit, stream)

    @cached_property
    def meter(self) -> Meter:
        """Prometheus metrics of the project; a program that calls `tick` itself passes each report to
        `meter.tick`."""
        from tidemill.ingest.gateway.status import ingest_health
        from tidemill.pipeline.metrics import Meter
        from tidemill.raw.tail.late import LateCounts

        tries, late = self.project.builder.attempts, LateCounts(self.workers.feed)
        health = partial(ingest_health, self.warehouse)
        return Meter(self.project.streams, self.state, self.clock, tries, late.of, health)

    def plan_retraction(self, slice_id: str, reason: str) -> RetractionPlan:
        """Plan the retraction of a slice: the steps, and the slices that are decided again. Changes
        nothing."""
        from tidemill.raw.retract import plan_retraction

        return plan_retraction(self.warehouse, slice_id, reason, self.clock())

    def retract(self, plan: RetractionPlan) -> SliceEntry:
        """Retract a slice as planned, and return its entry. The next rounds decide the affected slices
        again."""
        from tidemill.pipeline import rounds

        with self.warehouse.working("tick"):
            rounds.retract(self.workers, plan)
        return self.slice(plan.slice)

    @property
    def retention(self) -> Retention:
        """Plans what the retention of a stream expires, and expires it."""
        return self.workers.retention

    # -- status and tables

    def snapshot(self, kind: TableKind, stream: str) -> Snapshot | None:
        """The current parts of the table `kind` (`raw`, `rollups`, `index` …) of a stream; None before its
        first commit. Safe to call from any thread."""
        return self.warehouse.snapshot(kind, stream)

    def ledger(
        self, stream: str | None = None, status: str | SliceStatus | None = None, limit: int | None = None,
        *, outcome: str | CountedAs | None = None, reason: str | Reject | None = None,
    ) -> list[SliceEntry]:  # fmt: skip
        """The entries of the ledger, newest first, of one stream or status if named; with `outcome` or
        `reason`, those with records of that outcome, or rejected by that reason."""
        if stream is not None:
            self.project.stream(stream)
        return self.state.slices(
            stream,
            SliceStatus(status) if status is not None else None,
            newest=True,
            limit=limit,
            outcome=CountedAs(outcome) if outcome is not None else None,
            reason=Reject(reason) if reason is not None else None,
        )

    def slice(self, id_or_prefix: str) -> SliceEntry:
        """The ledger entry of a slice, by its id or the first characters of it; NotFoundError if there is
        none."""
        return self.warehouse.slice(id_or_prefix)

    def status(self) -> list[StreamStatus]:
        """The status of each stream: slices, rows, watermark, what waits and what failed. What cannot be read
        is in `faults` of its stream."""
        from tidemill.pipeline.status import status_of

        return [status_of(self.workers, name) for name in self.project.streams]

    def overview(self) -> list[StreamOverview]:
        """Each stream at a glance: rate, watermark, outcomes, queue, freshness, and problems with remedies.
        It reads the state alone, so it can be called every second."""
        from tidemill.pipeline.overview import overview_of

        return [overview_of(self.workers, name) for name in self.project.streams]

    def faults(self) -> list[Fault]:
        """The faults of work that is for all streams, such as landing what dead gateways left; those of a
        stream are in its status."""
        return faults_of(self.state, WAREHOUSE)

    def scrub_status(self) -> ScrubStatus:
        """When all files were last read and compared with their checksums, and which are known to be
        damaged."""
        return scrub_status(self.state)

    def watermark(self, stream: str) -> int | None:
        """The current watermark of a stream, the lowest of its sources that are not idle, in microseconds
        since the epoch; None if it has none yet."""
        return self.workers.watermark(stream)

    def quarantine(
        self, stream: str, *, reason: str | None = None, slice: str | None = None, limit: int | None = None,
        after: Place | None = None, tenant: str | None = None, outcome: str | None = None,
    ) -> pa.Table:  # fmt: skip
        """Records that were not accepted, verbatim, each with the reason, as an Arrow table; of one reason or
        one outcome (`conflict`, `rejected`). `after` is the last row of the page before."""
        from tidemill.pipeline.status import quarantined

        return quarantined(self.workers, stream, reason, slice, limit, after, tenant, outcome)

    def replay(self, stream: str, *, reason: str | None = None, patience: float = 0.0) -> list[Landed]:
        """Land the records in quarantine again, to be decided again, and return the slices: one, or for a
        stream with datasets one for each slice that the records came from; none if quarantine is empty. A
        round that runs is waited for, so many seconds (`patience`) at most."""
        from tidemill.raw.replay import replay

        declared = self.project.stream(stream)
        with self.warehouse.working("replay", patience):
            landing, root = self.warehouse.landing, self.project.warehouse
            return replay(root, declared, self.state, landing, self.warehouse.arrival(), reason)

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
    ) -> Iterator[pa.RecordBatch | Watermark | Missing]:
        """Iterate over accepted rows, as record batches in order of event time (or of arrival), with the
        watermarks between them, and first what raw has lost for good. With `follow` it goes on until `stop`
        is set, and then yields the rows still buffered."""
        from tidemill.raw.tail import tail

        end, at = stop or threading.Event(), arguments.instant(since) if since is not None else None
        return tail(
            self.feed(stream), ordered=ordered, follow=follow, since=at, limit=limit, tenant=tenant,
            stop=end, wait=lambda: end.wait(interval),
        )  # fmt: skip

    def feed(self, stream: str) -> Feed:
        """The accepted rows of a stream, as the functions of `tidemill.raw.tail` take them: `tail`,
        `late_rows`, `late_totals`."""
        return self.workers.feed(stream)

    # -- querying

    def ask(
        self, query: Asked, *, tenant: str | None = None, all_tenants: bool = False, strict: bool = False,
        engine: str = "duckdb", check_tenant: bool = True, as_of: str | int | None = None,
    ) -> Answer | Explanation:  # fmt: skip
        """Answer a query, given as text or as a JSON document: `table` has the rows, `completeness` says what
        is missing from them. For `EXPLAIN` the answer is an Explanation.

        If the stream has several tenants, name one or ask for `all_tenants`. With `strict`, an incomplete
        answer raises IncompleteError. With `check_tenant=False`, a tenant without events is not an error.
        `as_of` is an instant, or how long ago: the answer is what it was then, as `AS OF` in the text.
        """
        from tidemill.query.service import TenantChoice, ask

        tenants = TenantChoice(tenant, all_tenants, check_tenant)
        return ask(
            self.warehouse, self.workers.querier, query, tenants, strict=strict, engine=engine, as_of=as_of
        )

    def query(
        self, query: Asked, *, tenant: str | None = None, all_tenants: bool = False, strict: bool = False,
        engine: str = "duckdb", as_of: str | int | None = None,
    ) -> pa.Table:  # fmt: skip
        """The rows of a query as an Arrow table; arguments as for `ask`."""
        from tidemill.query.service import rows_of

        return rows_of(
            self.ask(query, tenant=tenant, all_tenants=all_tenants, strict=strict, engine=engine, as_of=as_of)
        )

    def cell(
        self, query: Asked, start: str | int | None = None, group: Mapping[str, object] | None = None, *,
        tenant: str | None = None, all_tenants: bool = False, check_tenant: bool = True,
        as_of: str | int | None = None, offset: int = 0, limit: int = 50,
    ) -> Cell:  # fmt: skip
        """What one row of the answer to a query is made of: the row whose bucket begins at `start` (of a
        total: None) and whose groups have the values of `group`. The result has the pieces of time and the
        tiles that its number was read from, the slices, and the events after the first `offset`, by time."""
        from tidemill.query.service import TenantChoice, cell

        tenants = TenantChoice(tenant, all_tenants, check_tenant)
        at = None if start is None else arguments.instant(start)
        return cell(
            self.warehouse,
            self.workers.querier,
            query,
            tenants,
            at,
            group or {},
            as_of=as_of,
            offset=offset,
            limit=limit,
        )

    def changes(
        self, stream: str, after: str | int, *, start: str | int | None = None, end: str | int | None = None
    ) -> list[Change]:
        """The slices that changed a span of a stream after an instant of arrival, oldest first: each arrived,
        or was retracted, `at` an instant. `ask` with `as_of` gives an answer between two of them."""
        from tidemill.query.service import changes_since

        span = None if start is None and end is None else arguments.span(start, end)
        return changes_since(self.warehouse, stream, arguments.instant(after), span)

    def sql(
        self, statement: str, *, tenant: str | None = None, all_tenants: bool = False, strict: bool = False,
        memory: str | int | None = None, timeout: str | None = None,
    ) -> SqlAnswer:  # fmt: skip
        """Run one SQL statement over the views `raw.<stream>`, `rollups.<stream>`, `datasets.<stream>`,
        `windows.<stream>_<window>` and `quarantine.<stream>`, all at one snapshot. `table` of the answer has
        the rows, `batches()` gives them as they are made, and `completeness` says by stream what is missing.

        `tenant`, `all_tenants` and `strict` are as for `ask`. `memory` (bytes, or `2GiB`) and `timeout`
        (`5m`) override those of the project.
        """
        from tidemill.config.values import parse_size
        from tidemill.model.time import parse_duration
        from tidemill.query.plain_sql.service import SqlLimits, run_sql
        from tidemill.query.service import TenantChoice

        defaults = self.project.sql
        limits = SqlLimits(
            defaults.memory if memory is None else parse_size(memory),
            defaults.timeout if timeout is None else parse_duration(timeout),
        )
        return run_sql(self.warehouse, statement, TenantChoice(tenant, all_tenants), limits, strict=strict)

    def sql_views(self) -> dict[str, list[tuple[str, str]]]:
        """The views that `sql` can read, by name, each with the names and types of its columns."""
        from tidemill.query.plain_sql.service import list_views

        return {str(view): columns for view, columns in list_views(self.warehouse)}

    def search(
        self, stream: str, asked: Asked = "", *, tenant: str | None = None, all_tenants: bool = False,
        cursor: str | None = None, limit: int | None = None, total: bool = False, strict: bool = False,
        engine: Literal["local", "spark"] = "local", check_tenant: bool = True,
    ) -> SearchPage | SearchPlan:  # fmt: skip
        """Find accepted events by what they hold. Returns a page: `rows`, the `cursor` of the next page, and
        with `total` how many there are. `tenant`, `all_tenants`, `strict` and `check_tenant` are as for
        `ask`."""
        from tidemill.query.search.service import find
        from tidemill.query.service import TenantChoice

        tenants = TenantChoice(tenant, all_tenants, check_tenant)
        return find(
            self.warehouse, stream, asked, tenants, cursor, limit, total=total, strict=strict, engine=engine
        )

    def catalog(self, stream: str | None = None, tenant: str | None = None) -> list[StreamFacts]:
        """What can be queried: fields, metrics, windows, tenants and indexed attributes of each stream."""
        return catalog(self.warehouse, stream, tenant)

    def trace(
        self, event_id: str, *, stream: str | None = None, tenant: str | None = None
    ) -> list[EventTrace]:
        """What became of the event with an id, in one stream or in all: each arrival and its outcome, the row
        in raw, and every tile, dataset and window result that it is in. NotFoundError if no stream has it."""
        from tidemill.pipeline.trace import trace

        names = [self.project.stream(stream).name] if stream is not None else list(self.project.streams)
        return trace(self.workers, event_id, names, tenant)

    # -- vectors

    @property
    def chains(self) -> Chainer:
        """Compacts the chains of vectors, plans that, and gives deltas in batches."""
        return self.workers.chains

    def vectors(
        self, stream: str, ids: Sequence[str | int], at: str | int | None = None, *, tenant: str | None = None
    ) -> pa.Table:
        """Vectors now, or at an instant, as an Arrow table with a row for each id: `vector_id`, `exists`,
        `ts`, `values`, `overflow` and `pending`."""
        until = None if at is None else arguments.instant(at)
        return self.workers.vector_reader.vectors(self.project.stream(stream).name, ids, until, tenant)

    def chain(self, stream: str, vector_id: str | int, *, tenant: str | None = None) -> ChainView:
        """The chain of a vector: its checkpoints, its pending deltas, and their sizes."""
        from tidemill.outputs.vectors.chain_view import chain_of

        vectors = self.workers.vector_reader
        return chain_of(vectors, self.project.stream(stream), str(vector_id), self.clock(), tenant)

    # -- verifying and repairing

    def plan_repair(self, stream: str | None = None) -> RepairPlan:
        """Look for damaged files of one stream, or of all, and plan what is done about each. Changes
        nothing."""
        from tidemill.pipeline.repair import find_damages, plan_repair

        names = [self.project.stream(stream).name] if stream is not None else list(self.project.streams)
        return plan_repair(self.workers, find_damages(self.workers, names))

    def repair(self, stream: str | None = None) -> Repaired:
        """Set damaged files of one stream, or of all, aside in `_damaged/` of the warehouse, and make their
        contents again from slices or raw. The result has the steps, and in `left` what is still damaged."""
        from tidemill.pipeline.repair import repair_streams

        names = [self.project.stream(stream).name] if stream is not None else list(self.project.streams)
        return repair_streams(self.workers, names, self.clock)

    def plan_move(self, url: str) -> MovePlan:
        """What `move` would send to the bucket at `url`. Changes nothing."""
        from tidemill.pipeline.move import plan_move

        return plan_move(self.workers, bucket_url(url))

    def move(self, url: str) -> Moved:
        """Send all files of the warehouse, which must be a folder, to the bucket at `url`, for example
        `s3://bucket/prefix`. The folder stays as it is. Then name the bucket in `tidemill.yaml` and call
        `recover`. If it is interrupted, call it again."""
        from tidemill.pipeline.move import move

        with self.warehouse.working("move"):
            return move(self.workers, bucket_url(url), self.clock())

    def scrub(self, stream: str | None = None) -> Scrubbed:
        """Read every file of one stream, or of all, and compare it with its checksum. It takes no lock, so it
        can run beside a daemon. The result is `ok`, or has `damages` that say which files are damaged."""
        from tidemill.pipeline.scrub import scrub_all

        return scrub_all(self.warehouse, [self.project.stream(stream).name] if stream is not None else None)

    def verify(self, stream: str | None = None) -> Audit:
        """Recompute the outputs of one stream, or of all, from raw and compare; other files are compared with
        their checksums. The result is `ok`, or has `findings` that say what differs."""
        from tidemill.pipeline.verify import audit

        names = [stream] if stream is not None else list(self.project.streams)
        with self.warehouse.working("tick"):
            return audit(self.workers, names)


def recover(
    path: str | Path = ".",
    *,
    spark: SparkSession | None = None,
    clock: Callable[[], int] = wall_clock,
    progress: Progress | None = None,
) -> Recovered:
    """Rebuild the state of the project at `path` from its warehouse, and return how much was found in it.
    Arguments are those of `Mill.open`."""
    from tidemill.pipeline.recover import recover_state

    project = open_project(path)
    return recover_state(project, spark=spark, clock=clock, progress=progress)
