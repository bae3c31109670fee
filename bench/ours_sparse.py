"""Tidemill with sparse feeds, as it is measured: through its public interface, ledger and syncs included."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from bench.visits import Thin
from tidemill.mill import Mill
from tidemill.model.windows import Phase
from tidemill.storage.tables.table import Table
from tidemill.testing import FakeClock

STREAM = "visits"
BOUNDS = (1, 2, 5, 10, 15, 20, 30, 45, 60, 90)
PROJECT = f"""
version: 1
streams:
  {STREAM}:
    schema:
      visit_id: {{type: string, required: true}}
      ts: {{type: integer, required: true}}
      site: string
      kind: string
      fee: {{type: decimal, scale: 2}}
      waited: {{type: decimal, scale: 1}}
      desk: integer
      note: string
    event_time: {{column: ts, type: unixtimestamp_ms}}
    identity: visit_id
    tenant: {{value: city}}
    metrics:
      visits: {{kind: counter, dimensions: [site, kind], measures: [fee]}}
      waited: {{kind: histogram, value: waited, bounds: {list(BOUNDS)}, dimensions: [site, kind]}}
"""
DAILY = """
    aggregation_span: 1d
    late_slices: {policy: reemit, max_lateness: 36500d}
"""
ON_SPARK = "engine: {inline_bytes: 0}\n"


@dataclass(frozen=True, slots=True)
class Kept:
    """What a warehouse leaves on disk: what landed and the datasets apart from the rest."""

    files: int  # beside slices and datasets
    bytes: int  # all


class SparseStore:
    """A warehouse of the stream `visits`."""

    def __init__(self, folder: Path, spark: SparkSession, *, daily: bool, settings: str = "") -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "tidemill.yaml").write_text(PROJECT + (DAILY if daily else "") + settings)
        self.clock = FakeClock(0)
        self.mill = Mill.open(folder, spark=spark, clock=self.clock)

    def load(self, slices: Sequence[Thin], now: int | None = None) -> float:
        """Land the slices and tick until nothing is left to do; seconds, without the tick that finds that."""
        began = time.perf_counter()
        for each in slices:
            self.clock.set(each.arrival)
            bounds = each.bounds
            done = self.mill.ingest(STREAM, [each.file], start=bounds.start, end=bounds.end)
            assert not done.refused, done.refused
        self.clock.set(now or self.clock())
        took = time.perf_counter() - began
        while True:
            began = time.perf_counter()
            if self.mill.tick().idle:
                return took
            took += time.perf_counter() - began

    def verify(self) -> float:
        began = time.perf_counter()
        found = self.mill.verify()
        took = time.perf_counter() - began
        assert found.ok, found.findings[:3]
        return took

    def kept(self) -> Kept:
        warehouse = self.mill.project.warehouse
        found = [path for path in warehouse.rglob("*") if path.is_file()]
        apart = (warehouse / "slices", warehouse / "datasets")
        rest = [path for path in found if not any(path.is_relative_to(one) for one in apart)]
        return Kept(len(rest), sum(path.stat().st_size for path in found))

    def levels(self) -> dict[str, list[str]]:
        """Files of the rollups by level."""
        table = Table.existing(self.mill.project.warehouse / "rollups" / STREAM)
        assert table is not None
        found = table.snapshot()
        return {level: list(found.paths(found.select({"level": [level]}))) for level in LEVELS}

    def raw_files(self) -> list[str]:
        table = Table.existing(self.mill.project.warehouse / "raw" / STREAM)
        assert table is not None
        return list(table.snapshot().paths())

    def datasets(self) -> dict[int, Path]:
        """By the start of the window."""
        found = self.mill.state.windows(STREAM, Phase.BUILT)
        return {window.key.start: self.mill.project.warehouse / str(window.file) for window in found}

    def close(self) -> None:
        self.mill.close()


LEVELS = ("5s", "1m", "1h", "1d", "7d")
