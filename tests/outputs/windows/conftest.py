"""A stream of small rows with declared windows, through the real mill: what it takes and what came out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path

import pytest
import yaml
from pyspark.sql import SparkSession

from tidemill.mill import Mill
from tidemill.model.time import DAY, SECOND, parse_instant
from tidemill.testing import FakeClock

EPOCH = parse_instant("2024-01-01T00:00:00Z")
SCHEMA = {
    "id": {"type": "string", "required": True},
    "ts": {"type": "integer", "required": True},
    "a": "integer",
    "b": "integer",
    "who": "string",
    "price": {"type": "decimal", "scale": 2},
}


class Rows:
    """Rows `a@seconds` into one stream; instants are told in seconds after `EPOCH`."""

    def __init__(
        self,
        folder: Path,
        stream: Mapping[str, object],
        engine: Mapping[str, object],
        spark: SparkSession,
    ) -> None:
        self.folder = folder
        self.spark = spark
        self.clock = FakeClock(EPOCH + DAY)
        self.number = 0
        document = {"version": 1, "engine": dict(engine), "streams": {"rows": dict(stream)}}
        (folder / "tidemill.yaml").write_text(yaml.safe_dump(document))

    def redeclare(self, **changes: object) -> None:
        path = self.folder / "tidemill.yaml"
        document = yaml.safe_load(path.read_text())
        document["streams"]["rows"] |= changes
        path.write_text(yaml.safe_dump(document))

    def open(self) -> Mill:
        return Mill.open(self.folder, clock=self.clock, spark=self.spark)

    def elsewhere(self, folder: Path) -> Rows:
        """A copy of it that stands in `folder`, to go on from there."""
        other = copy(self)
        other.folder = folder
        return other

    def land(self, *rows: tuple[float, int] | Mapping[str, object], source: str = "api") -> str:
        """One slice of rows `(seconds, a)`, or of fields with `at` in seconds."""
        lines = []
        for row in rows:
            fields = dict(row) if isinstance(row, Mapping) else {"at": row[0], "a": row[1]}
            at = fields.pop("at")
            assert isinstance(at, int | float)
            self.number += 1
            ts = (EPOCH + round(at * SECOND)) // 1000
            lines.append(json.dumps({"id": f"r{self.number}", "ts": ts} | fields))
        with self.open() as mill:
            return mill.land(
                "rows", "\n".join(lines).encode(), name=f"s{self.number}", source=source
            ).entry.id

    def tick(self) -> None:
        with self.open() as mill:
            mill.tick()

    def feed(self, *rows: tuple[float, int] | Mapping[str, object], source: str = "api") -> str:
        landed = self.land(*rows, source=source)
        self.tick()
        return landed

    def stop(self) -> None:
        with self.open() as mill:
            mill.flush()

    def results(self, window: str, *columns: str, revisions: bool = False) -> list[tuple[object, ...]]:
        """What stands: start and end in seconds, then these columns."""
        with self.open() as mill:
            found = mill.results("rows", window, revisions=revisions).to_pylist()
        return [
            (seconds(row["start"]), seconds(row["end"]), *(row[name] for name in columns)) for row in found
        ]

    def watermark(self) -> float | None:
        with self.open() as mill:
            at = mill.watermark("rows")
        return None if at is None else (at - EPOCH) / SECOND

    def scrub(self) -> list[str]:
        with self.open() as mill:
            return [damage.file for damage in mill.scrub().damages]

    def verify(self) -> list[str]:
        with self.open() as mill:
            return [f"{found.what} {found.where}: {found.difference}" for found in mill.verify().findings]


def seconds(at: object) -> float:
    from datetime import datetime

    assert isinstance(at, datetime)
    found = round(at.timestamp() - EPOCH / SECOND, 6)
    return int(found) if found == int(found) else found


NewRows = Callable[..., Rows]


@pytest.fixture
def new_rows(tmp_path: Path, spark: SparkSession) -> NewRows:
    def new(
        *,
        tolerance: str = "0s",
        windows: Mapping[str, object],
        engine: Mapping[str, object] | None = None,
        event_time: Mapping[str, object] | None = None,
        **stream: object,
    ) -> Rows:
        time = {"column": "ts", "type": "unixtimestamp_ms", "late_tolerance": tolerance} | dict(
            event_time or {}
        )
        declared: dict[str, object] = {
            "schema": SCHEMA,
            "event_time": time,
            "identity": "id",
            "windows": windows,
        }
        return Rows(tmp_path, declared | stream, engine or {"cores": 2}, spark)

    return new


def summed(kind: str = "tumbling", aggregates: Sequence[str] = (), **options: object) -> dict[str, object]:
    """A declared window that sums `a`."""
    reported = {"sum": "sum(a)"} | {name: f"{name}(a)" for name in aggregates}
    return {"kind": kind, "aggregates": reported, **options}
