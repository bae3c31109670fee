"""Tidemill's windows as they are measured: through its public interface, leases, syncs and events included.

To accept and to build are apart here although one tick does both: slices are accepted under a project that
declares no windows yet, and then the windows are declared. Run as `… FOLDER NOW` it builds what is declared.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import SparkSession

from bench.readings import Bounded
from tidemill.mill import Mill
from tidemill.model.time import HOUR, Interval
from tidemill.model.windows import Dataset, Phase
from tidemill.storage import layout
from tidemill.storage.tables.table import Table
from tidemill.testing import FakeClock

STREAM = "readings"
PROJECT = """
version: 1
streams:
  readings:
    schema:
      reading_id: {type: string, required: true}
      at: {type: integer, required: true}
      network: {type: string, required: true}
      station: string
      temperature: {type: decimal, scale: 1}
      humidity: integer
      pressure: {type: decimal, scale: 2}
      wind_speed: float
      wind_direction: integer
      rain: {type: decimal, scale: 1}
      quality: string
      online: boolean
      note: string
    event_time: {column: at, type: unixtimestamp_ms}
    identity: reading_id
    tenant: {column: network}
"""
WINDOWS = """
    aggregation_span: 1h
    subject_to_change_window: 6h
    late_slices: {policy: reemit, max_lateness: 36500d}
"""
IDLE = 6 * HOUR  # after the end of a window its slices are complete, and it is built


@dataclass(frozen=True, slots=True)
class Built:
    seconds: float
    windows: tuple[int, ...]  # starts of those that were built
    rows: int  # in them


class WindowStore:
    """A warehouse of the stream `readings`, in an empty folder."""

    def __init__(self, folder: Path, spark: SparkSession | None, settings: str = "") -> None:
        self.folder = folder
        self.clock = FakeClock(0)
        self._spark = spark
        self.settings = settings
        self._mill: Mill | None = None

    def mill(self, *, windows: bool, builders: int = 2) -> Mill:
        """The project, opened anew, with the windows declared or not."""
        self.close()
        settings = f"builder: {{concurrency: {builders}}}\n{self.settings}"
        text = PROJECT + (WINDOWS if windows else "") + settings
        (self.folder / "tidemill.yaml").write_text(text)
        self._mill = Mill.open(self.folder, spark=self._spark, clock=self.clock)
        return self._mill

    def close(self) -> None:
        if self._mill is not None:
            self._mill.close()
            self._mill = None

    def land(self, mill: Mill, slices: Sequence[Bounded]) -> None:
        for each in slices:
            self.clock.set(each.arrival)
            done = mill.ingest(STREAM, [each.file], start=each.bounds.start, end=each.bounds.end)
            assert not done.refused, done.refused

    def accept(self, slices: Sequence[Bounded]) -> float:
        """Land and accept, and nothing else; seconds."""
        mill = self.mill(windows=False)
        began = time.perf_counter()
        self.land(mill, slices)
        mill.run_until_idle()
        assert mill.state.totals(STREAM)["rejected"] == 0
        return time.perf_counter() - began

    def build(self) -> Built:
        """Declare the windows and tick until there is nothing left to do."""
        mill = self.mill(windows=True)
        newest = mill.ledger(STREAM, limit=1)[0]
        self.clock.set(max(self.clock(), newest.bounds.end if newest.bounds else 0) + IDLE)
        return ticked(mill)

    def load(self, slices: Sequence[Bounded]) -> Built:
        """Land slices while the windows are declared, and tick until there is nothing left to do."""
        mill = self.mill(windows=True)
        began = time.perf_counter()
        self.land(mill, slices)
        landed = time.perf_counter() - began
        built = ticked(mill)
        return replace(built, seconds=landed + built.seconds)

    def raw_files(self) -> list[str]:
        table = Table.existing(self.folder / "warehouse" / "raw" / STREAM)
        assert table is not None
        return list(table.snapshot().paths())

    def datasets(self) -> dict[int, Path]:
        """By the start of the window."""
        assert self._mill is not None
        found = self._mill.state.windows(STREAM, Phase.BUILT)
        return {window.key.start: self.folder / "warehouse" / str(window.file) for window in found}

    def fill(self, windows: int, hours: int = 720) -> None:
        """Built windows, in short: slices without rows that cover them are landed, laid and judged as all
        others are; the datasets are invented and told to the state only."""
        mill = self.mill(windows=True, builders=0)
        for first in range(0, windows, hours):
            span = Interval(first * HOUR, min(windows, first + hours) * HOUR)
            self.clock.set(span.end)
            mill.ingest(STREAM, [], start=span.start, end=span.end, empty=True)
        self.clock.set(windows * HOUR + IDLE)
        mill.run_until_idle()
        while builds := mill.state.take("fill", self.clock(), self.clock() + HOUR, 5_000):
            done = [
                (
                    build,
                    Dataset(
                        build.key,
                        build.revision,
                        build.desired,
                        tuple(sorted(member.name for member in build.members)),
                        0,
                        1_000,
                        layout.dataset(build.key, build.revision),
                    ),
                    (),
                )
                for build in builds
            ]
            assert all(mill.state.complete_all(done, self.clock()))
        assert mill.state.window_counts(STREAM)[Phase.BUILT] == windows


def ticked(mill: Mill) -> Built:
    """Ticks until one finds nothing to do, which is not counted."""
    seconds, rows = 0.0, 0
    starts: list[int] = []
    while True:
        began = time.perf_counter()
        report = mill.tick()
        if report.idle:
            return Built(seconds, tuple(starts), rows)
        seconds += time.perf_counter() - began
        for outcome in report.builds:
            assert outcome.dataset is not None, outcome
            rows += outcome.dataset.rows
            starts.append(outcome.key.start)


def main() -> None:
    store = WindowStore(Path(sys.argv[1]), None, sys.argv[3])
    store.clock.set(int(sys.argv[2]))
    built = ticked(store.mill(windows=True))
    store.close()
    print(json.dumps({"seconds": built.seconds, "windows": len(built.windows), "rows": built.rows}))


if __name__ == "__main__":
    main()
