"""Tidemill's streaming windows as they are measured: by its public interface, commits and syncs included.

Slices are accepted under a project that declares no windows; a window that is declared then is computed from
all of raw at once. Declared from the beginning, it is kept current slice by slice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa
from pyspark.sql import SparkSession

from bench.sales import Arrived
from tidemill.eventtime import Watermark
from tidemill.mill import Mill
from tidemill.raw.tail import Feed, tail
from tidemill.storage.tables.table import Table
from tidemill.testing import FakeClock

STREAM = "sales"
PROJECT = """
version: 1
streams:
  sales:
    schema:
      id: {type: string, required: true}
      ts: {type: integer, required: true}
      key: {type: string, required: true}
      region: {type: string, required: true}
      value: {type: integer, required: true}
      amount: {type: decimal, scale: 2, required: true}
    event_time: {column: ts, type: unixtimestamp_ms, late_tolerance: 30s}
    identity: id
    tenant: {value: shop}
"""
WINDOWS = {
    "tumbling": "{kind: tumbling, size: 1m, group_by: key, "
    "aggregates: {n: count, total: sum(amount), top: max(value)}}",
    "sliding": "{kind: sliding, size: 5m, step: 1m, group_by: region, "
    "aggregates: {n: count, total: sum(amount), mean: avg(value)}}",
    "session": "{kind: session, gap: 30s, key: key, aggregates: {n: count, total: sum(amount)}}",
}
ON_SPARK = "engine: {inline_bytes: 0}\n"


@dataclass(frozen=True, slots=True)
class Ordered:
    seconds: float
    rows: int
    watermarks: int


@dataclass(frozen=True, slots=True)
class Live:
    """Slices as they come, a tick for each, and a graceful stop."""

    seconds: float  # landing, accepting, windows: all of it
    windows: float  # of them, keeping the windows current
    ticks: Sequence[float]
    buffered: Sequence[int]  # rows that waited for the watermark after each slice …
    peak_bytes: int  # … and the most bytes of their payloads
    resident: Sequence[int]  # bytes of this process after each slice


class StreamStore:
    """A warehouse of the stream `sales`, in an empty folder."""

    def __init__(self, folder: Path, spark: SparkSession, settings: str = "") -> None:
        self.folder = folder
        self.clock = FakeClock(0)
        self._spark = spark
        self._settings = settings
        self._mill: Mill | None = None
        self._began: dict[str, float] = {}  # windows that are at work …
        self._since = 0.0  # … and since when the first of them is
        self._took = 0.0

    def mill(self, windows: Mapping[str, str]) -> Mill:
        """The project, opened anew, with these windows: name -> kind."""
        self.close()
        declared = "".join(f"      {name}: {WINDOWS[kind]}\n" for name, kind in windows.items())
        text = PROJECT + (f"    windows:\n{declared}" if declared else "") + self._settings
        (self.folder / "tidemill.yaml").write_text(text)
        self._mill = Mill.open(self.folder, spark=self._spark, clock=self.clock, progress=self._progress)
        return self._mill

    def close(self) -> None:
        if self._mill is not None:
            self._mill.close()
            self._mill = None

    def _progress(self, stream: str, step: str, done: float) -> None:
        if step.startswith("window "):
            now = time.perf_counter()
            if not done:
                self._since = now if not self._began else self._since
                self._began[step] = now
            elif self._began.pop(step) and not self._began:
                self._took += now - self._since

    def _land(self, mill: Mill, arrived: Arrived) -> None:
        self.clock.set(arrived.arrival)
        done = mill.ingest(STREAM, [arrived.file])
        assert not done.refused, done.refused

    def accept(self, slices: Sequence[Arrived]) -> float:
        """Land and accept, and nothing else; seconds."""
        mill = self.mill({})
        began = time.perf_counter()
        for each in slices:
            self._land(mill, each)
        mill.run_until_idle()
        took = time.perf_counter() - began
        totals = mill.state.totals(STREAM)
        assert (totals["accepted"], totals["late"]) == (totals["records"], 0), totals
        return took

    def compute(self, name: str, kind: str) -> tuple[float, pa.Table]:
        """Declare a window that was never there, and compute all of it, up to the last row, from raw; what it
        took, and what stands then."""
        mill = self.mill({name: kind})
        mill.engine  # noqa: B018 - its start is not the window's
        began = time.perf_counter()
        mill.workers.streaming_windows.refresh(STREAM, self.clock(), flush=True)
        took = time.perf_counter() - began
        return took, mill.results(STREAM, name)

    def ordered(self) -> Ordered:
        """All rows in order of event time, in small Arrow batches, with the watermarks between them."""
        mill = self.mill({})
        feed = Feed(mill.project.warehouse, mill.project.stream(STREAM), mill.state, self.clock)
        stop = threading.Event()
        rows = watermarks = 0
        last: int | None = None
        began = time.perf_counter()
        for item in tail(feed, ordered=True, follow=False, stop=stop, wait=stop.wait):
            if isinstance(item, Watermark):
                watermarks += 1
                continue
            assert isinstance(item, pa.RecordBatch), item
            times = item.column("event_time").view(pa.int64())
            first = times[0].as_py()
            assert last is None or first >= last, "rows are not in order"
            last = times[-1].as_py()
            rows += item.num_rows
        return Ordered(time.perf_counter() - began, rows, watermarks)

    def live(self, slices: Sequence[Arrived]) -> Live:
        """Land a slice, tick, and again; then stop gracefully."""
        mill = self.mill({kind: kind for kind in WINDOWS})
        self._took = 0.0
        ticks: list[float] = []
        buffered: list[int] = []
        resident: list[int] = []
        size = 0
        process = psutil.Process()
        for each in slices:
            began = time.perf_counter()
            self._land(mill, each)
            mill.tick()
            ticks.append(time.perf_counter() - began)
            progress = mill.state.progress(STREAM)
            buffered.append(progress.buffered_rows)
            size = max(size, progress.buffered_bytes)
            resident.append(process.memory_info().rss)
        began = time.perf_counter()
        mill.flush()
        stopping = time.perf_counter() - began
        return Live(sum(ticks) + stopping, self._took, ticks, buffered, size, resident)

    def results(self, window: str) -> pa.Table:
        assert self._mill is not None
        return self._mill.results(STREAM, window)

    def raw_files(self) -> list[str]:
        table = Table.existing(self.folder / "warehouse" / "raw" / STREAM)
        assert table is not None
        return list(table.snapshot().paths())
