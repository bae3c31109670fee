"""What the tests of windows share: a project of one small stream on a clock that is set by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tidemill.mill import Mill
from tidemill.model.time import HOUR, parse_instant
from tidemill.model.windows import Member, Window, WindowKey
from tidemill.pipeline.reports import TickReport
from tidemill.testing import FakeClock

DAY_OF = "2024-01-01"
CONFIG = """
version: 1
engine: {{cores: 2, memory: 512m}}
builder: {builder}
streams:
  stations:
    schema:
      id: {{type: string, required: true}}
      at: {{type: string, required: true}}
      station: string
      celsius: {{type: decimal, scale: 2}}
    event_time: {{column: at, type: iso8601}}
    identity: id
    {windows}
"""


def instant(text: str) -> int:
    """`10:30`, on the day of the golden cases, or a whole instant."""
    return parse_instant(
        text if "T" in text else f"{DAY_OF}T{text}:00Z" if len(text) == 5 else f"{DAY_OF}T{text}Z"
    )


@dataclass
class Stations:
    """A project on disk; every act opens it anew, as another process would."""

    root: Path
    clock: FakeClock
    spark: SparkSession
    rows: int = 0
    names: dict[str, str] = field(default_factory=dict)  # what a test calls a slice -> its id
    pad: int = 0  # blank lines behind each slice, so that a batch holds only one

    def open(self) -> Mill:
        return Mill.open(self.root, clock=self.clock, spark=self.spark)

    def land(
        self,
        name: str,
        start: str | None,
        end: str | None,
        rows: Sequence[str] | None = None,
        at: str | None = None,
    ) -> str:
        """A slice with declared bounds and, unless told otherwise, one row at its start."""
        if at is not None:
            self.clock.set(instant(at))
        times = rows if rows is not None else [start] if start else []
        content = b""
        for time in times:
            self.rows += 1
            when = f"{DAY_OF}T{time}:00Z" if len(time) == 5 else time if "T" in time else f"{DAY_OF}T{time}Z"
            record = {"id": f"e{self.rows}", "at": when, "station": name, "celsius": self.rows / 4}
            content += json.dumps(record).encode() + b"\n"
        content += b"\n" * self.pad
        bounds = {"start": instant(start), "end": instant(end)} if start and end else {}
        with self.open() as mill:
            landed = mill.land("stations", content, name=name, format="ndjson", **bounds)
        self.names[name] = landed.entry.id
        return landed.entry.id

    def tick(self, at: str | None = None) -> TickReport:
        if at is not None:
            self.clock.set(instant(at))
        with self.open() as mill:
            return mill.tick()

    def window(self, start: str, span: int = HOUR) -> tuple[Window, list[Member]]:
        with self.open() as mill:
            found = mill.state.window(WindowKey("stations", instant(start), span))
        assert found is not None, start
        return found

    def windows(self) -> list[Window]:
        with self.open() as mill:
            return mill.state.windows("stations")

    def used(self, start: str, span: int = HOUR) -> set[str]:
        """The slices that count for a window, by what the test calls them."""
        called = {slice_id: name for name, slice_id in self.names.items()}
        return {called[member.slice] for member in self.window(start, span)[1] if member.desired}

    def dataset(self, start: str, span: int = HOUR) -> pa.Table:
        window, _ = self.window(start, span)
        assert window.file is not None, start
        return pa.ipc.open_file(self.root / "warehouse" / window.file).read_all()

    def files(self) -> list[str]:
        folder = self.root / "warehouse" / "datasets"
        return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.arrow"))


def coordinate(stations: Stations, at: str | None = None) -> None:
    """A round without building."""
    if at is not None:
        stations.clock.set(instant(at))
    with stations.open() as mill:
        mill.workers.dataset_builders.build = lambda *_given, **_named: ()  # type: ignore[method-assign]
        mill.tick()


NewStations = Callable[..., Stations]


@pytest.fixture
def new_stations(tmp_path: Path, spark: SparkSession) -> NewStations:
    """A project with these settings of its windows; the clock stands far later than the golden cases."""

    def make(
        now: str = "2024-02-01T00:00:00Z", builder: str = "{concurrency: 2}", **windows: object
    ) -> Stations:
        declared = {"aggregation_span": "1h", "subject_to_change_window": "1h"} | windows
        text = "\n    ".join(f"{name}: {json.dumps(value)}" for name, value in declared.items())
        root = tmp_path / f"project-{len(list(tmp_path.iterdir()))}"
        root.mkdir()
        (root / "tidemill.yaml").write_text(CONFIG.format(windows=text, builder=builder))
        return Stations(root, FakeClock(instant(now)), spark)

    return make
