"""Tidemill as it is measured: through its public interface, landing, ledger, commits and syncs included."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from bench import work
from bench.check import LEVELS, Outputs, fields
from bench.work import Slice
from tidemill.engine.session import SessionSettings, start_session
from tidemill.mill import Mill
from tidemill.storage.tables.table import Table
from tidemill.testing import FakeClock

PROJECT = """
version: 1
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
    metrics:
      requests: {kind: counter, dimensions: [api, region, status], measures: [latency_ms]}
"""
QUERY = (
    "SELECT count, sum(latency_ms) FROM requests "
    "BETWEEN 2024-01-01 AND 2024-01-02 USING ROLLUP 1m GROUP BY region"
)


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


class Warehouse:
    """`bench.contract.Store`."""

    def __init__(self, folder: Path, spark: SparkSession, settings: str = "") -> None:
        (folder / "tidemill.yaml").write_text(f"{PROJECT}{settings}\n")
        self.clock = FakeClock(0)
        self.mill = Mill.open(folder, spark=spark, clock=self.clock)
        self.landed: list[str] = []

    def load(self, slices: Sequence[Slice]) -> float:
        self.clock.set(max(each.arrival for each in slices))
        began = time.perf_counter()
        done = self.mill.ingest("requests", [each.file for each in slices])
        self.mill.tick()
        took = time.perf_counter() - began
        assert not done.refused, done.refused
        assert self.mill.tick().idle, "one tick did not do it all"
        self.landed = [each.entry.id for each in done.landed]
        return took

    def _table(self, kind: str) -> Table:
        table = Table.existing(self.mill.project.warehouse / kind / "requests")
        assert table is not None
        return table

    def outputs(self) -> Outputs:
        raw = self._table("raw").snapshot()
        rollups = self._table("rollups").snapshot()
        cells = (
            "tenant, api, region, status, epoch_us(bucket) AS bucket, count AS n, "
            "(latency_ms__sum * 1000)::BIGINT AS sum, (latency_ms__min * 1000)::BIGINT AS min, "
            "(latency_ms__max * 1000)::BIGINT AS max"
        )
        entries = [self.mill.slice(name) for name in self.landed]
        return Outputs(
            raw=f"SELECT tenant, event_id, epoch_us(event_time) AS ts, payload, {fields()} FROM "
            f"read_parquet({raw.paths(raw.select())}, hive_partitioning = false)",
            raw_files=raw.paths(),
            rollups={
                level: f"SELECT {cells} FROM read_parquet("
                f"{rollups.paths(rollups.select({'level': [level]}))}, hive_partitioning = false)"
                for level in LEVELS
            },
            outcomes=[
                {
                    "accepted": entry.counts.accepted,
                    "duplicate": entry.counts.duplicate,
                    "conflict": entry.counts.conflict,
                    **entry.counts.rejects,
                }
                for entry in entries
            ],
        )

    def parts(self) -> int:
        return sum(len(self._table(kind).snapshot().parts) for kind in ("raw", "rollups"))

    def query(self) -> int:
        return int(self.mill.query(QUERY, all_tenants=True).num_rows)

    def close(self) -> None:
        self.mill.close()


class Tidemill:
    """`bench.contract.Ours`."""

    def __init__(self, spark: SparkSession | None = None, *, warmed: bool = True) -> None:
        self.spark = spark
        self.warmed = warmed

    def start(self) -> float:
        began = time.perf_counter()
        self.spark = start_session(SessionSettings(cores=2, memory="1g", app="bench"))
        self.spark.range(0, 2, 1, 2).mapInArrow(lambda batches: batches, "id long").toArrow()
        return time.perf_counter() - began

    def session(self) -> SparkSession:
        assert self.spark is not None
        return self.spark

    def open(self, folder: Path) -> Warehouse:
        assert self.spark is not None
        if not self.warmed:
            return Warehouse(_empty(folder), self.spark)
        # Spark ends workers that have been idle for a minute, as they are while others are measured.
        warm = Warehouse(_empty(folder), self.spark, "engine: {inline_bytes: 0}")
        warm.load(work.batch(200_000).slices)
        warm.close()
        return Warehouse(_empty(folder), self.spark)

    def stop(self) -> None:
        if self.spark is not None:
            self.spark.stop()


def contender() -> Tidemill:
    return Tidemill()
