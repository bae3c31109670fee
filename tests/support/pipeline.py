"""What the tests of the whole pipeline share: a project with a fixed clock, its feed, and what it holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.warehouse_location import all_files, copy_project, warehouse_of, write_config

from tidemill.mill import Mill
from tidemill.model.failpoints import observed
from tidemill.model.time import DAY, HOUR, SECOND, parse_instant
from tidemill.outputs.rollups.tile_parts import tile_builds
from tidemill.raw.accept.id_runs import FAN_IN
from tidemill.storage.bucket_path import local_copy
from tidemill.storage.tables.table import Table
from tidemill.testing import FakeClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON = parse_instant("2024-01-15T12:00:00Z")
CONFIG = """
version: 1
engine: {cores: 2, memory: 512m}
streams:
  requests:
    schema:
      event_id: {type: string, required: true}
      ts: {type: integer, required: true}
      event_type: string
      tenant: {type: string, required: true}
      api: string
      region: string
      status: integer
      latency_ms: {type: decimal, scale: 3}
      bytes: integer
      user_agent: string
      trace: string
    event_type: {column: event_type, allowed: [request]}
    event_time: {column: ts, type: unixtimestamp_ms, late_tolerance: 2s}
    identity: event_id
    tenant: {column: tenant}
    skew: {future: 1d}
    metrics:
      requests: {kind: counter, dimensions: [api, region, status], measures: [latency_ms]}
"""


# The story has streaming windows, too: one whose open windows are carried on, and one of the grid that late
# rows bring out again.
STREAMING = f"""{CONFIG}
    windows:
      visits: {{kind: session, gap: 1m, key: region, aggregates: {{count: count, longest: max(latency_ms)}}}}
      ten_minutes:
        kind: tumbling
        size: 10m
        group_by: region
        aggregates: {{latency: sum(latency_ms), p99: p99(latency_ms)}}
        late: {{policy: reemit, max_lateness: 1d}}
"""


def all_on_spark(config: str) -> str:
    """Small work is done in the driver by the same kernels; here nothing is."""
    return config.replace("memory: 512m", "memory: 512m, inline_bytes: 0")


ALL_ON_SPARK = all_on_spark(CONFIG)


def request(number: int, **changes: object) -> dict[str, object]:
    """Event `number` of the feed, 7 seconds after the one before; a change to None leaves a field out."""
    event: dict[str, object] = {
        "event_id": f"e-{number:06d}",
        "ts": (NOON - DAY + number * 7 * SECOND) // 1000,
        "event_type": "request",
        "tenant": ("acme", "globex", "initech")[number % 3],
        "api": f"/v1/{number % 4}",
        "region": ("eu", "us")[number % 2],
        "status": (200, 404, 500)[number % 3],
        "latency_ms": number % 97 + 0.125,
    } | changes
    return {name: value for name, value in event.items() if value is not None}


def ndjson(*records: Mapping[str, object] | bytes) -> bytes:
    return b"".join((r if isinstance(r, bytes) else json.dumps(r).encode()) + b"\n" for r in records)


@dataclass
class Plant:
    """A project on disk. `open` is what a new process does; nothing is kept between two of them."""

    root: Path
    spark: SparkSession
    clock: FakeClock = field(default_factory=lambda: FakeClock(NOON))

    @property
    def warehouse(self) -> Path:
        return warehouse_of(self.root)

    def open(self) -> Mill:
        return Mill.open(self.root, spark=self.spark, clock=self.clock)

    def copy(self, to: Path) -> Plant:
        """The files as they are at this moment."""
        copy_project(self.root, to)
        return Plant(to, self.spark, FakeClock(self.clock()))

    def configure(self, text: str) -> None:
        write_config(self.root, text)

    # -- what it holds, read with nothing but the tables' logs

    def _table(self, kind: str) -> Table:
        found = Table.existing(self.warehouse / kind if "/" in kind else self.warehouse / kind / "requests")
        assert found is not None, kind
        return found

    def _rows(self, kind: str) -> pa.Table:
        paths = map(local_copy, self._table(kind).snapshot().paths())
        tables = [pq.read_table(p, partitioning=None) for p in paths]
        full = [t for t in tables if t.num_rows] or tables[:1]  # parts without rows have no declared columns
        return pa.concat_tables([t.cast(full[0].schema) for t in full])

    def raw(self) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = self._rows("raw").to_pylist()
        return sorted(rows, key=lambda r: (str(r["tenant"]), str(r["event_id"])))

    def quarantine(self) -> list[dict[str, object]]:
        if Table.existing(self.warehouse / "quarantine" / "requests") is None:
            return []
        parts = map(local_copy, self._table("quarantine").snapshot().paths())
        rows: list[dict[str, object]] = [
            r for p in parts for r in pq.read_table(p, partitioning=None).to_pylist()
        ]
        return sorted(rows, key=lambda r: (str(r["slice"]), int(str(r["line"]))))

    def tiles(self) -> tuple[dict[str, str], list[str]]:
        """The hash of every tile, and every row of the rollups, whatever parts they lie in."""
        table = self._table("rollups")
        hashes = {f"{b.key.level} {b.key.start}": b.hash for b in tile_builds(table, table.snapshot().parts)}
        return hashes, sorted(json.dumps(row, default=str) for row in self._rows("rollups").to_pylist())

    def results(self) -> dict[str, list[dict[str, object]]]:
        """Every revision of the results of each streaming window, if it declares any."""
        windows = sorted(path.name for path in (self.warehouse / "windows" / "requests").glob("*"))
        return {window: self._results(window) for window in windows}

    def _results(self, window: str) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = self._rows(f"windows/requests/{window}").to_pylist()
        return sorted(rows, key=lambda r: json.dumps(r, sort_keys=True, default=str))

    def leftovers(self) -> list[str]:
        """Files that no finished work needs: staging, temporaries, notes, id runs and rows of open windows
        that nobody knows."""
        with self.open() as mill:
            needed = {f"gate/requests/{name}" for name in mill.state.runs("requests")}
            marks = mill.state.checkpoints("requests")
            for window in mill.project.stream("requests").windows:
                carried = json.loads(marks[window])["carried"] if window in marks else ()
                needed |= {f"windows/requests/{window}/_open/{name}" for name in carried}
        files = [path.relative_to(self.warehouse).as_posix() for path in all_files(self.warehouse)]
        stray = [f for f in files if "_staging" in f or f.endswith((".tmp", ".note"))]
        kept = [f for f in files if f.startswith("gate/") or "/_open/" in f]
        return sorted([*stray, *(f for f in kept if f not in needed)])


NewPlant = Callable[..., Plant]


@pytest.fixture(scope="session")
def new_plant(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> NewPlant:
    """A fresh project; `config` replaces the usual one."""

    def make(config: str = CONFIG) -> Plant:
        root = tmp_path_factory.mktemp("plant")
        write_config(root, config)
        return Plant(root, spark)

    return make


@pytest.fixture
def plant(new_plant: NewPlant) -> Plant:
    return new_plant()


BATCHES = FAN_IN - 1  # before the watched round; with its own there are enough id runs to be merged
SLICES = 2 * BATCHES


def slice_of(number: int) -> bytes:
    """Thirty new events, one of them late; a replay and a conflict of the slice before; three bad lines."""
    first = number * 100
    lines: list[dict[str, object] | bytes] = [request(first + i) for i in range(30)]
    lines[3] = request(first + 3, ts=int(str(request(first)["ts"])) - HOUR // 1000)
    lines += [b'{"event_id": "cut', request(first + 40, event_type="other"), request(first + 41, ts="soon")]
    if number:
        lines += [request(first - 90), request(first - 91, api="/other")]
    return ndjson(*lines)


def last_round(plant: Plant) -> None:
    """The round that is watched: two slices land, one tick."""
    files = [plant.root / f"{number}.ndjson" for number in (SLICES, SLICES + 1)]
    for number, file in enumerate(files, SLICES):
        file.write_bytes(slice_of(number))
    with plant.open() as mill:
        mill.ingest("requests", files)
        mill.tick()


@dataclass
class Story:
    """The warehouse before the last round, after it, and at each fail point in it. Copy before you touch.

    A point that is passed once for each streaming window is there as `point` and as `point:2`."""

    before: Plant
    after: Plant
    at: dict[str, Plant]


@pytest.fixture(scope="session")
def story(new_plant: NewPlant, tmp_path_factory: pytest.TempPathFactory) -> Story:
    plant = new_plant(STREAMING)
    folder = tmp_path_factory.mktemp("story")
    with plant.open() as mill:
        for number in range(SLICES):
            mill.land("requests", slice_of(number), name=f"slice {number}", source="file")
            if number % 2:
                mill.tick()
    plant.configure(all_on_spark(STREAMING))
    before = plant.copy(folder / "before")
    at: dict[str, Plant] = {}
    one_at_a_time = threading.Lock()  # several files are copied at once when they land

    def keep(point: str) -> None:
        with one_at_a_time:
            if point in at and point.startswith("results."):
                point = f"{point}:2"
            if point not in at:
                at[point] = plant.copy(folder / point)

    with observed(keep):
        last_round(plant)
    for copy in (plant, *at.values()):
        copy.configure(STREAMING)
    return Story(before, plant, at)


def start_child(code: str, *args: object, **environment: str) -> subprocess.Popen[str]:
    """Start Python code as a process of its own, as another user of the same warehouse would."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
