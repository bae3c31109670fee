"""Everything that works on one warehouse: each object is made when it is first needed, since it opens tables.

Nothing here runs by itself: a round or a command calls it. Methods import what they alone need, because a
command that only reads starts many times faster without it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

from tidemill.ingest.retraction_log import is_deciding_again
from tidemill.ingest.warehouse import Warehouse
from tidemill.raw.watermark import watermark_of
from tidemill.storage.bucket_path import LocalCopies
from tidemill.storage.state.faults import FaultMemory

if TYPE_CHECKING:
    from pathlib import Path

    from tidemill.config import Stream
    from tidemill.ingest.compression import SliceCompression
    from tidemill.ingest.feeds import Sources
    from tidemill.model.time import Interval
    from tidemill.outputs.contract import Output
    from tidemill.outputs.datasets.dataset_builders import DatasetBuilders
    from tidemill.outputs.datasets.reader import WindowReader
    from tidemill.outputs.index.indexer import Indexer
    from tidemill.outputs.rollups.roller import Roller
    from tidemill.outputs.vectors.chainer import Batches, Chainer
    from tidemill.outputs.vectors.reader import VectorReader
    from tidemill.outputs.windows.streaming_windows import StreamingWindows
    from tidemill.pipeline.events.delivery import Delivery
    from tidemill.pipeline.retention import Retention
    from tidemill.pipeline.scrub import Scrubbing
    from tidemill.query import Querier
    from tidemill.raw.accept.batch import Acceptor
    from tidemill.raw.compaction.packer import Packer
    from tidemill.raw.tail import Feed

# Imports inside functions keep start-up short: reading the state loads neither Arrow nor Delta.


class Workers:
    """The workers of one warehouse; `acceptor`, `roller` and `indexer` are for one stream each."""

    def __init__(self, warehouse: Warehouse, timer: Callable[[], int] | None = None) -> None:
        """`timer` counts microseconds and is monotonic; by default it is the clock of the warehouse."""
        self.warehouse = warehouse
        self.project, self.state, self.root = warehouse.project, warehouse.state, warehouse.root
        self.fault_memory = FaultMemory(timer or warehouse.clock)
        self._acceptors: dict[str, Acceptor] = {}
        self._rollers: dict[str, Roller] = {}
        self._indexers: dict[str, Indexer] = {}
        self._outputs: dict[str, Sequence[Output]] = {}
        self._guard = threading.Lock()
        self._querier: Querier | None = None

    def close(self) -> None:
        for name in ("packer", "delivery"):
            if name in self.__dict__:
                getattr(self, name).close()
        if self._querier is not None:
            self._querier.close()

    @property
    def querier(self) -> Querier:
        """Answers queries; all threads share it."""
        from tidemill.query.service import querier_of

        with self._guard:
            if self._querier is None:
                self._querier = querier_of(self.warehouse)
            return self._querier

    # -- raw

    def acceptor(self, stream: str) -> Acceptor:
        from tidemill.outputs.rollups.roller import tap_for
        from tidemill.raw.accept.batch import Acceptor

        warehouse, declared = self.warehouse, self.project.stream(stream)
        if stream not in self._acceptors:
            acceptor = self._acceptors[stream] = Acceptor(
                self.root,
                declared,
                self.project.limits,
                self.project.engine,
                warehouse.engine,
                self.state,
                progress=lambda step, done: warehouse.progress(stream, step, done),
            )
            acceptor.tap = tap_for(declared)
            acceptor.refused_before = lambda: warehouse.expiries.refused_before(declared)
        return self._acceptors[stream]

    @cached_property
    def packer(self) -> Packer:
        """Packs small parts of raw into large ones, and lists their contents."""
        from tidemill.raw.compaction.packer import Packer

        return Packer(self.warehouse, self.acceptor)

    @cached_property
    def copies(self) -> LocalCopies:
        """The copies of objects of a bucket on the local disk."""
        return LocalCopies(self.root, self.project.bucket.cache_bytes)

    @cached_property
    def compression(self) -> SliceCompression:
        """Compresses the files of slices that were accepted."""
        from tidemill.ingest.compression import SliceCompression

        return SliceCompression(self.root, self.state)

    @cached_property
    def sources(self) -> Sources:
        """Lands what raw manifests of request/response feeds list as complete."""
        from tidemill.ingest.feeds import Sources

        return Sources(self.warehouse)

    def feed(self, stream: str) -> Feed:
        """What `tidemill.raw.tail` reads: `tail`, `late_rows`, `late_totals`."""
        from tidemill.raw.tail import Feed

        lost = partial(self.warehouse.lost, "raw", stream)
        return Feed(self.root, self.project.stream(stream), self.state, self.warehouse.clock, lost)

    def watermark(self, stream: str) -> int | None:
        """The watermark of the stream as of now: the minimum over its sources that are not idle."""
        return watermark_of(self.project.stream(stream), self.state, self.warehouse.clock())

    # -- outputs

    def roller(self, stream: str) -> Roller:
        """Keeps the rollups of a stream."""
        from tidemill.outputs.rollups.planning import horizons_of
        from tidemill.outputs.rollups.roller import Roller

        if stream not in self._rollers:
            raw = self.acceptor(stream).raw
            self._rollers[stream] = Roller(
                self.root,
                self.project.stream(stream),
                self.project.limits,
                self.warehouse.engine,
                self.state,
                raw,
                lambda: horizons_of(self.warehouse, stream),
            )
        return self._rollers[stream]

    def indexer(self, stream: str) -> Indexer | None:
        """Keeps the index of a stream; None if nothing is or was indexed."""
        from tidemill.outputs.index.indexer import Indexer

        declared = self.project.stream(stream)
        if not declared.indexed and self.warehouse.existing("index", stream) is None:
            return None
        if stream not in self._indexers:
            raw = self.acceptor(stream).raw
            self._indexers[stream] = Indexer(self.root, declared, self.warehouse.engine, raw)
        return self._indexers[stream]

    @cached_property
    def windows(self) -> WindowReader:
        """Lists windows, says why one waits, and what a rebuild would do."""
        from tidemill.outputs.datasets.reader import WindowReader

        warehouse = self.warehouse
        horizons, watermark = warehouse.expiries.horizons, self.watermark
        return WindowReader(self.root, self.project.streams, self.state, warehouse.clock, horizons, watermark)

    @cached_property
    def dataset_builders(self) -> DatasetBuilders:
        """Evaluates windows and builds their datasets."""
        from tidemill.outputs.datasets.dataset_builders import DatasetBuilders

        warehouse = self.warehouse
        return DatasetBuilders(self.project, self.state, lambda: warehouse.engine, warehouse.progress)

    @cached_property
    def streaming_windows(self) -> StreamingWindows:
        """Streaming windows and the watermarks that move them."""
        from tidemill.outputs.windows.streaming_windows import StreamingWindows

        warehouse = self.warehouse
        engine, progress, expiries = (lambda: warehouse.engine), warehouse.progress, warehouse.expiries
        return StreamingWindows(self.project, self.state, engine, progress, expiries)

    @cached_property
    def chains(self) -> Chainer:
        """Keeps the chains of vectors."""
        from tidemill.outputs.vectors.chainer import Chainer

        return Chainer(
            self.warehouse,
            raw=lambda stream: self.acceptor(stream).raw,
            deltas=lambda stream, since, until, tenant: self.vector_reader.deltas(
                stream, since, until, tenant
            ),
            published=self._published_batches,
        )

    def _published_batches(
        self, stream: str, span: Interval, folder: Path | None, limit: int | None
    ) -> Batches:
        from tidemill.query.delta_batches import published_batches

        return published_batches(self.root, self.windows, self.state, stream, span, folder, limit)

    @cached_property
    def vector_reader(self) -> VectorReader:
        """Answers about vectors and their chains."""
        from tidemill.outputs.vectors.reader import VectorReader

        return VectorReader(
            self.project.streams,
            self.state,
            self.warehouse.readers,
            self.warehouse.expiries.seal,
            self.chains.was_read,
            lambda stream: is_deciding_again(self.state, stream),
        )

    def outputs(self, stream: str) -> Sequence[Output]:
        """All outputs of a stream, in the order in which a round refreshes them."""
        if stream not in self._outputs:
            declared = self.project.stream(stream)
            made = (make(self, declared) for make in KINDS)
            self._outputs[stream] = [output for output in made if output is not None]
        return self._outputs[stream]

    def output(self, stream: str, name: str) -> Output:
        """One of them, which must exist."""
        return next(output for output in self.outputs(stream) if output.name == name)

    def forget(self, stream: str) -> None:
        """Start again from what is on disk: something of the stream failed, or was repaired."""
        for kept in (self._acceptors, self._rollers, self._indexers, self._outputs):
            kept.pop(stream, None)
        self.warehouse.forget(stream)
        for name in ("streaming_windows", "dataset_builders", "chains"):
            if name in self.__dict__:
                getattr(self, name).forget(stream)

    def catch_up(self, stream: str) -> None:
        """Finish what a process that died left of raw and all outputs. A round does the same, each output
        separately."""
        self.catch_up_raw(stream)
        for output in self.outputs(stream):
            output.catch_up()

    def catch_up_raw(self, stream: str) -> None:
        """Record what raw has and the state does not know: after a crash, or of a stream that was not
        declared when the state was made."""
        from tidemill.pipeline.recover_stream import is_unknown, recover_stream
        from tidemill.raw.accept.catch_up import catch_up

        if is_unknown(self, stream):
            recover_stream(self, stream)
        catch_up(self.acceptor(stream))

    # -- beside them

    @cached_property
    def delivery(self) -> Delivery:
        """Delivers events to the declared sinks."""
        from tidemill.pipeline.events.delivery import Delivery

        return Delivery(self.state, self.project.events, self.project.root, warehouse=self.root)

    @cached_property
    def retention(self) -> Retention:
        """Plans and carries out what expires by the retention of its stream."""
        from tidemill.pipeline.retention import Retention

        return Retention(self)

    @cached_property
    def scrubbing(self) -> Scrubbing:
        """Reads all files again in the background."""
        from tidemill.pipeline.scrub import Scrubbing

        return Scrubbing(self, self.project.scrub)


def _rollups(workers: Workers, stream: Stream) -> Output:
    from tidemill.outputs.rollups.output import Rollups

    return Rollups(workers.warehouse, stream, lambda: workers.roller(stream.name))


def _index(workers: Workers, stream: Stream) -> Output:
    from tidemill.outputs.index.output import Index

    return Index(workers.warehouse, stream, lambda: workers.indexer(stream.name))


def _vectors(workers: Workers, stream: Stream) -> Output | None:
    if stream.kind != "delta":
        return None
    from tidemill.outputs.vectors.output import Vectors

    return Vectors(workers.warehouse, stream, workers.chains)


def _datasets(workers: Workers, stream: Stream) -> Output | None:
    if stream.aggregation_span is None:
        return None
    from tidemill.outputs.datasets.output import Datasets

    return Datasets(workers.warehouse, stream, workers.dataset_builders, workers.windows)


def _windows(workers: Workers, stream: Stream) -> Output | None:
    if not stream.windows:
        return None
    from tidemill.outputs.windows.output import WindowResults

    return WindowResults(workers.warehouse, stream, workers.streaming_windows)


Kind = Callable[[Workers, "Stream"], "Output | None"]  # None: the stream has no such output
KINDS: Sequence[Kind] = (_rollups, _index, _vectors, _datasets, _windows)
