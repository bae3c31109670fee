"""Prometheus metrics of a running mill: counters of what it did, gauges of the state of its streams.

Gauges are read from the state when they are scraped, so they are right whichever process did the work;
counters count the work of this process. Served on loopback unless configured otherwise.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tidemill.config import Stream
from tidemill.model.errors import MachineError
from tidemill.model.gateway import GatewayStatus, Pressure
from tidemill.model.streaming import Fate
from tidemill.model.time import SECOND
from tidemill.model.windows import Phase
from tidemill.pipeline.reports import source_statuses
from tidemill.pipeline.scrub_progress import scrub_status
from tidemill.raw.tail.late import LateTotals
from tidemill.raw.watermark import idle_sources, watermark_of
from tidemill.storage.state.faults import WAREHOUSE, faults_of
from tidemill.storage.state.protocol import State

if TYPE_CHECKING:
    from tidemill.ingest.gateway.status import IngestHealth
    from tidemill.outputs.datasets.builder import BuildOutcome
    from tidemill.pipeline.reports import TickReport

LateOf = Callable[[str, int], LateTotals]  # of a stream with so many late rows

LOOPBACK: Final = "127.0.0.1"
_OF_CHAINS: Final = {  # numbers of a `ChainStatus`
    "parts": "Parts of the chain table",
    "bytes": "Bytes of them",
    "checkpoints": "Checkpoints",
    "pending": "Deltas that are in no checkpoint",
    "overflowed": "Checkpoints with a component that is no finite number, or was kept from it",
}
_SECONDS: Final = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)


class Meter:
    """Everything that is measured, in a registry of its own."""

    def __init__(
        self,
        streams: Mapping[str, Stream],
        state: State,
        clock: Callable[[], int],
        tries: int,
        late: LateOf,
        ingest: Callable[[], IngestHealth],
    ) -> None:
        self.registry = CollectorRegistry()
        self._tries = tries
        counter, gauge = self._counter, self._gauge
        self._records = counter("records", "Records decided, by outcome", "outcome")
        self._rejects = counter("rejects", "Records rejected, by reason", "reason")
        self._faults = counter(
            "stream_faults", "Rounds in which an output of a stream could not be worked on", "output", "code"
        )
        self._tiles = counter("tiles_built", "Rollup tiles built")
        self._indexed = counter("index_parts_built", "Parts of the index built")
        self._packs = counter("packs", "Groups of slices packed into large parts of raw")
        self._packed = counter("slices_packed", "Slices in them")
        self._skipped = counter("windows_skipped", "Windows looked at and left waiting, by reason", "reason")
        self._queued = counter("windows_queued", "Windows queued")
        self._started = counter("windows_started", "Tries to build a window")
        self._built = counter("windows_built", "Windows built, by what triggered it", "reason")
        self._failed = counter(
            "windows_failed", "Failed tries: `try` comes again, `set_aside` does not", "reason"
        )
        self._ignored = counter("slices_ignored", "Slices ignored for a window, by reason", "reason")
        self._withdrawn = counter("datasets_withdrawn", "Datasets withdrawn after a retraction")
        self._results = counter("window_results", "Published results of streaming windows", "window")
        self._taken_back = counter(
            "window_results_withdrawn", "Withdrawn results of streaming windows", "window"
        )
        self._chained = counter("chain_deltas", "Deltas put into chains")
        self._compacted = counter("chains_compacted", "Chains compacted, by reason", "reason")
        self._merged = counter("chain_deltas_merged", "Deltas merged into checkpoints")
        self._remade = counter("chains_remade", "Chains made again, since a delta came before a checkpoint")
        self._chains = {name: gauge(f"chain_{name}", what) for name, what in _OF_CHAINS.items()}
        self._seconds = Histogram(
            "tidemill_build_seconds",
            "Time to build a window",
            ("stream",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._unpacked = gauge(
            "slices_unpacked", "Slices that wait for others to be packed with, after the last round"
        )
        self._damaged = gauge(
            "datasets_damaged", "Datasets whose files are missing or damaged, after the last round"
        )
        self.registry.register(_StreamSamples(streams, state, clock, late))
        self.registry.register(_Ingest(ingest))
        self._gateway = _Gateway()
        self.registry.register(self._gateway)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"tidemill_{name}", text, ("stream", *labels), registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"tidemill_{name}", text, ("stream",), registry=self.registry)

    def tick(self, report: TickReport) -> None:
        """Count what a round did."""
        for done in report.streams:
            if done.batch is not None:
                for result in done.batch.record.results:
                    counts = result.counts
                    for outcome in ("accepted", "duplicate", "conflict", "rejected"):
                        self._records.labels(done.stream, outcome).inc(getattr(counts, outcome))
                    for reason, count in counts.rejects.items():
                        self._rejects.labels(done.stream, reason).inc(count)
            self._tiles.labels(done.stream).inc(len(done.tiles))
            if done.indexed is not None:
                self._indexed.labels(done.stream).inc(done.indexed.built)
            if done.packed is not None:
                self._packs.labels(done.stream).inc(len(done.packed.packed))
                self._packed.labels(done.stream).inc(sum(len(one.slices) for one in done.packed.packed))
                self._unpacked.labels(done.stream).set(done.packed.waiting)
            if done.chains is not None:
                self._chained.labels(done.stream).inc(done.chains.folded.deltas)
                self._remade.labels(done.stream).inc(done.chains.folded.remade)
                for name, gauge in self._chains.items() if done.chains.current is not None else ():
                    gauge.labels(done.stream).set(getattr(done.chains.current, name))
                if done.chains.compacted is not None:
                    self._merged.labels(done.stream).inc(done.chains.compacted.deltas)
                    for reason, count in done.chains.compacted.reasons.items():
                        self._compacted.labels(done.stream, reason).inc(count)
            if done.windows is not None:
                self._damaged.labels(done.stream).set(done.damaged)
                for reason, count in done.windows.waiting.items():
                    self._skipped.labels(done.stream, reason).inc(count)
                self._queued.labels(done.stream).inc(done.windows.queued)
                self._ignored.labels(done.stream, "late").inc(done.windows.ignored)
                self._withdrawn.labels(done.stream).inc(done.windows.withdrawn)
        for fault in report.faults:
            self._faults.labels(fault.stream, fault.output, fault.code).inc()
        for stream, refreshed in report.results.items():
            for one in refreshed:
                self.window_results(stream, one.window, one.results, one.withdrawn)
        self.builds(report.builds)

    def builds(self, outcomes: Sequence[BuildOutcome]) -> None:
        """Count what builders did."""
        for outcome in outcomes:
            stream = outcome.key.stream
            self._started.labels(stream).inc()
            self._seconds.labels(stream).observe(outcome.seconds)
            if outcome.error is not None:
                self._failed.labels(stream, "set_aside" if outcome.attempt >= self._tries else "try").inc()
            elif outcome.lost:
                self._failed.labels(stream, "lost").inc()
            else:
                self._built.labels(stream, outcome.trigger).inc()

    def window_results(self, stream: str, window: str, results: int, withdrawn: int) -> None:
        """Count what was published for a streaming window."""
        self._results.labels(stream, window).inc(results)
        self._taken_back.labels(stream, window).inc(withdrawn)

    def watch(self, gateway: Callable[[], GatewayStatus]) -> None:
        """From now on, also report this gateway, in place of any before."""
        self._gateway.status = gateway

    def text(self) -> str:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self.registry).decode()

    @contextmanager
    def served(self, port: int, host: str = LOOPBACK) -> Iterator[int]:
        """A context manager that serves the metrics at http://host:port/metrics and gives the port. Port 0
        chooses a free one."""
        try:
            server, thread = start_http_server(port, host, self.registry)
        except OSError as error:
            raise MachineError(
                f"cannot serve metrics on {host}:{port}: {error.strerror or error}",
                hint="choose another port, or 0 for any that is free",
            ) from error
        try:
            yield int(server.server_port)
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class _StreamSamples(Collector):
    """The state of streams, read when scraped."""

    def __init__(
        self, streams: Mapping[str, Stream], state: State, clock: Callable[[], int], late: LateOf
    ) -> None:
        self._streams = streams
        self._state = state
        self._clock = clock
        self._late = late

    def collect(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        windows = GaugeMetricFamily("tidemill_windows", "Windows by phase", labels=["stream", "phase"])
        queue = GaugeMetricFamily(
            "tidemill_queue_length", "Windows that wait for a builder", labels=["stream"]
        )
        fresh = GaugeMetricFamily(
            "tidemill_freshness_seconds",
            "Time since the end of the newest window that is built",
            labels=["stream"],
        )
        pending = GaugeMetricFamily("tidemill_pending_slices", "Slices not yet accepted", labels=["stream"])
        failed = GaugeMetricFamily("tidemill_failed_slices", "Slices that cannot be read", labels=["stream"])
        faults = GaugeMetricFamily(
            "tidemill_stream_fault",
            "1 while an output of a stream cannot be worked on",
            labels=["stream", "output", "code"],
        )
        now = self._clock()
        for name in (WAREHOUSE, *self._streams):
            for fault in faults_of(self._state, name):
                faults.add_metric([name, fault.output, fault.code], 1)
        for name, stream in self._streams.items():
            totals = self._state.totals(name)
            pending.add_metric([name], totals["pending_slices"])
            failed.add_metric([name], totals["failed_slices"])
            if stream.aggregation_span is None:
                continue
            for phase, count in self._state.window_counts(name).items():
                windows.add_metric([name, phase.value], count)
            queue.add_metric([name], self._state.queue_length(name))
            newest = self._state.windows(name, Phase.BUILT, newest=True, limit=1)
            if newest:
                fresh.add_metric([name], (now - newest[0].key.end) / SECOND)
        families = [faults, pending, failed, windows, queue, fresh, *_scrub(self._state, now)]
        in_time = _event_time(self._streams, self._state, now)
        return [*families, *in_time, *_totals(self._streams, self._state, self._late)]


_OF_SCRUBS: Final = {
    "scrub_age_seconds": "Time since the last full scrub began: all files were read and checked",
    "scrub_files": "Files that it read",
    "scrub_bytes": "Bytes of them",
    "scrub_unchecked_files": "Files of them without a checksum: earlier versions wrote them",
    "scrub_progress_bytes": "Bytes that the scrub under way has read",
}


def _scrub(state: State, now: int) -> list[GaugeMetricFamily]:
    """When all files were last read, and how many are known to be damaged."""
    found = scrub_status(state)
    damaged = GaugeMetricFamily(
        "tidemill_damaged_files", "Files that are known to be damaged", labels=["stream", "kind"]
    )
    counts = Counts((one.damage.stream, one.damage.kind.value) for one in found.damages)
    for labels, count in sorted(counts.items()):
        damaged.add_metric(labels, count)
    values: dict[str, float] = {}
    if (last := found.last_full) is not None:
        values = {"scrub_age_seconds": (now - last.started) / SECOND, "scrub_files": last.files}
        values |= {"scrub_bytes": last.bytes, "scrub_unchecked_files": last.unchecked}
    if found.current is not None:
        values["scrub_progress_bytes"] = found.current.bytes
    families = [damaged]
    for name, text in _OF_SCRUBS.items():
        family = GaugeMetricFamily(f"tidemill_{name}", text, labels=[])
        if name in values:
            family.add_metric([], values[name])
        families.append(family)
    return families


_OF_STREAMS: Final = {
    "watermark": "Event time up to which the stream is believed complete, in seconds since 1970",
    "watermark_lag_seconds": "How far the watermark is behind now",
    "buffer_size": "Accepted rows after the watermark, not released yet",
    "buffer_bytes": "Bytes of their payloads",
}
_TOTALS: Final = {
    "watermarks_emitted": "How often the watermark moved",
    "released_early": "Rows released early because the buffer was full",
    "late_dropped": "Late rows that a window left out, or of a stream without windows ordered output",
    "skew_rejected": "Records rejected since their time is too far from their arrival",
}
_OF_SOURCES: Final = {
    "source_watermark": "The same of one source",
    "max_timestamp_seen": "The newest event time of a source, in seconds since 1970",
    "source_idle": "1 while the stream does not wait for the source",
}


def _totals(
    streams: Mapping[str, Stream], state: State, late: LateOf
) -> list[GaugeMetricFamily | CounterMetricFamily]:
    """Totals since a stream began; for late rows also what each window did with them."""
    families = {
        name: CounterMetricFamily(f"tidemill_{name}", text, labels=["stream"])
        for name, text in _TOTALS.items()
    }
    rows = CounterMetricFamily(
        "tidemill_late_rows", "Late rows, by what a window did with them", labels=["stream", "window", "fate"]
    )
    for name in streams:
        totals, progress = state.totals(name), state.progress(name)
        found = late(name, totals["late"])
        families["watermarks_emitted"].add_metric([name], progress.emitted)
        families["released_early"].add_metric([name], progress.released_early)
        families["late_dropped"].add_metric([name], found.dropped)
        skewed = totals.get("reject_skew", 0) + totals.get("reject_too_old", 0)
        families["skew_rejected"].add_metric([name], skewed)
        for window, fates in found.windows.items():
            reported = dict.fromkeys(("dropped", "next_window", "reemitted"), 0)
            for fate, count in fates.items():
                if fate is not Fate.ON_TIME:  # behind the watermark, but in time for its window
                    reported[fate.value if fate.used else "dropped"] += count
            for word, count in reported.items():
                rows.add_metric([name, window, word], count)
    return [*families.values(), rows]


def _event_time(
    streams: Mapping[str, Stream], state: State, now: int
) -> list[GaugeMetricFamily | CounterMetricFamily]:
    """How far streams and their sources have come in event time."""
    families = {
        name: GaugeMetricFamily(f"tidemill_{name}", text, labels=labels)
        for reported, labels in ((_OF_STREAMS, ["stream"]), (_OF_SOURCES, ["stream", "source"]))
        for name, text in reported.items()
    }
    for name, stream in streams.items():
        progress, clocks = state.progress(name), state.clocks(name)
        found: dict[str, float] = {
            "buffer_size": progress.buffered_rows,
            "buffer_bytes": progress.buffered_bytes,
        }
        watermark = watermark_of(stream, state, now)
        if watermark is not None:
            found["watermark"] = watermark / SECOND
            found["watermark_lag_seconds"] = (now - watermark) / SECOND
        for what, value in found.items():
            families[what].add_metric([name], value)
        for source in source_statuses(clocks, idle_sources(stream, clocks, now)):
            labels = [name, source.source]
            families["source_watermark"].add_metric(labels, source.watermark / SECOND)
            families["max_timestamp_seen"].add_metric(labels, source.max_seen / SECOND)
            families["source_idle"].add_metric(labels, int(source.idle))
    return list(families.values())


class _Ingest(Collector):
    """Problems of ingestion, read when scraped."""

    def __init__(self, health: Callable[[], IngestHealth]) -> None:
        self._health = health

    def collect(self) -> Iterable[GaugeMetricFamily]:
        now = self._health()
        return [
            GaugeMetricFamily(
                "tidemill_gateway_damaged_stretches",
                "Stretches of logs of gateways that could not be read and were set aside",
                value=len(now.damaged),
            ),
            GaugeMetricFamily(
                "tidemill_clock_behind_seconds",
                "How far the wall clock is behind the last arrival, if more than a minute",
                value=now.clock_behind / SECOND,
            ),
        ]


class _Gateway(Collector):
    """The gateway of this process, if there is one, read when scraped."""

    def __init__(self) -> None:
        self.status: Callable[[], GatewayStatus] | None = None

    def collect(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        if self.status is None:
            return []
        now = self.status()
        return [*_gateway_counters(now), *_gateway_buffers(now), *_gateway_memory(now)]


def _gateway_counters(now: GatewayStatus) -> list[CounterMetricFamily | GaugeMetricFamily]:
    def counter(name: str, text: str, value: int) -> CounterMetricFamily:
        return CounterMetricFamily(f"tidemill_gateway_{name}", text, value=value)

    def gauge(name: str, text: str, value: int) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"tidemill_gateway_{name}", text, value=value)

    windows = CounterMetricFamily(
        "tidemill_gateway_windows_closed", "Windows closed, by what closed them", labels=["trigger"]
    )
    for trigger, count in sorted(now.windows.items()):
        windows.add_metric([trigger], count)
    failures = CounterMetricFamily(
        "tidemill_gateway_trigger_failures", "Failures of custom triggers", labels=["trigger"]
    )
    for trigger, count in sorted(now.trigger_failures.items()):
        failures.add_metric([trigger], count)
    steps = CounterMetricFamily(
        "tidemill_clock_steps", "Steps of the wall clock of more than a minute", labels=["direction"]
    )
    steps.add_metric(["forward"], now.clock.forward)
    steps.add_metric(["back"], now.clock.back)
    return [
        counter("events_acknowledged", "Events made durable and acknowledged", now.acknowledged),
        counter("events_landed", "Events whose slice is in the ledger", now.landed),
        counter("requests_refused", "Requests refused for want of memory", now.refused),
        windows,
        *([failures] if now.trigger_failures else []),
        gauge("wal_bytes", "Bytes of the log that are not in a slice yet", now.wal_bytes),
        gauge("wal_segments", "Files of the log", now.wal_segments),
        steps,
    ]


_OF_BUFFERS: Final = {
    "duration_seconds": "How long the open window may last as things are",
    "rate": "Events per second",
    "events": "Events in the open window",
    "bytes": "Bytes in the open window",
}


def _gateway_buffers(now: GatewayStatus) -> list[GaugeMetricFamily]:
    families = {
        name: GaugeMetricFamily(f"tidemill_gateway_buffer_{name}", text, labels=["stream", "source"])
        for name, text in _OF_BUFFERS.items()
    }
    for one in now.buffers:
        found = (one.duration / SECOND, one.rate, one.events, one.bytes)
        for family, value in zip(families.values(), found, strict=True):
            family.add_metric([one.stream, one.source], value)
    return list(families.values())


def _gateway_memory(now: GatewayStatus) -> list[GaugeMetricFamily]:
    used = GaugeMetricFamily(
        "tidemill_gateway_memory_bytes", "Memory in use, by component", labels=["component"]
    )
    allowed = GaugeMetricFamily(
        "tidemill_gateway_memory_allowed_bytes", "Memory that may be used, by component", labels=["component"]
    )
    for component, (taken, most) in now.memory.items():
        used.add_metric([component], taken)
        allowed.add_metric([component], most)
    pressure = GaugeMetricFamily(
        "tidemill_gateway_memory_pressure", "1 for the level that memory is at", labels=["level"]
    )
    for level in Pressure:
        pressure.add_metric([level.value], int(level is now.pressure))
    return [used, allowed, pressure]
