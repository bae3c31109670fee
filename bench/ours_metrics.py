"""Tidemill with metrics of every kind and an index, as it is measured: through its public interface."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from bench.work import Slice
from tidemill.mill import Mill
from tidemill.query.search.search import SearchPage
from tidemill.storage.tables.table import Table
from tidemill.testing import FakeClock

STREAM = "orders"
PROJECT = """
version: 1
{settings}
streams:
  orders:
    schema:
      event_id: {{type: string, required: true}}
      ts: {{type: integer, required: true}}
      tenant: {{type: string, required: true}}
      order_id: {{type: string, required: true}}
      status: string
      region: string
      channel: string
      amount: {{type: decimal, scale: 2}}
      took_ms: {{type: decimal, scale: 3}}
      stock: integer
    event_time: {{column: ts, type: unixtimestamp_ms, late_tolerance: 5s}}
    identity: event_id
    tenant: {{column: tenant}}
    metrics:
{metrics}
{indexed}
"""
COUNTERS = """\
      orders: {kind: counter, dimensions: [region, channel, status], measures: [amount]}
      failures: {kind: counter, dimensions: [region, channel], filter: "status = 'FAILED'"}
"""
OTHERS = """\
      stock: {kind: gauge, value: stock, dimensions: [region, channel]}
      took: {kind: histogram, value: took_ms, accuracy: 0.01, dimensions: [region]}
      life: {kind: state, object: order_id, state: status, dimensions: [region]}
"""
INDEXED = "    indexed: [order_id, region, customer.coupon]"


class MetricStore:
    """A warehouse of the stream `orders`."""

    def __init__(
        self, folder: Path, spark: SparkSession, *, kinds: bool, indexed: bool = False, settings: str = ""
    ) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        metrics = COUNTERS + OTHERS if kinds else COUNTERS
        text = PROJECT.format(metrics=metrics, indexed=INDEXED if indexed else "", settings=settings)
        (folder / "tidemill.yaml").write_text(text)
        self.clock = FakeClock(0)
        self.mill = Mill.open(folder, spark=spark, clock=self.clock)

    def load(self, slices: Sequence[Slice]) -> float:
        self.clock.set(max(each.arrival for each in slices))
        began = time.perf_counter()
        done = self.mill.ingest(STREAM, [each.file for each in slices])
        self.mill.tick()
        took = time.perf_counter() - began
        assert not done.refused, done.refused
        assert self.mill.tick().idle, "one tick did not do it all"
        return took

    def files(self, kind: str, level: str | None = None) -> list[str]:
        table = Table.existing(self.mill.project.warehouse / kind / STREAM)
        assert table is not None
        snapshot = table.snapshot()
        return snapshot.paths(snapshot.select({"level": [level]}) if level else None)

    def query(self, text: str) -> pa.Table:
        return self.mill.query(text, all_tenants=True)

    def search(self, text: str) -> list[str]:
        """Ids of the events that it finds."""
        found = self.mill.search(STREAM, text, all_tenants=True)
        assert isinstance(found, SearchPage)
        ids: list[str] = found.rows.column("event_id").to_pylist()
        return ids

    def close(self) -> None:
        self.mill.close()
