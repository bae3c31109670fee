"""Event times without an offset: refused, or what a clock in the declared zone showed, in every format."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemill.mill import Mill
from tidemill.model.time import format_instant, parse_instant
from tidemill.testing import FakeClock

CONFIG = """
version: 1
engine: {cores: 2, memory: 512m}
streams:
  s:
    schema: {id: {type: string, required: true}, at: {type: string, required: true}}
    event_time: {column: at, type: iso8601%s}
    identity: id
"""
SHOWN = {
    "summer": "2024-07-01T12:00:00",
    "winter": "2024-01-01T12:00:00.25",
    "twice": "2024-10-27T02:30:00",
    "never": "2024-03-31T02:30:00",
}
PARIS = {
    "summer": "2024-07-01T10:00:00Z",
    "winter": "2024-01-01T11:00:00.250Z",
    "twice": "2024-10-27T00:30:00Z",
}


def as_json(times: dict[str, str]) -> bytes:
    return "".join(json.dumps({"id": name, "at": at}) + "\n" for name, at in times.items()).encode()


def as_csv(times: dict[str, str]) -> bytes:
    return ("id,at\n" + "".join(f"{name},{at}\n" for name, at in times.items())).encode()


def as_parquet(times: dict[str, str]) -> bytes:
    shown = pa.array([parse_instant(at) for at in times.values()], pa.timestamp("us"))
    out = io.BytesIO()
    pq.write_table(pa.table({"id": list(times), "at": shown}), out)
    return out.getvalue()


FORMATS = {"ndjson": as_json, "csv": as_csv, "parquet": as_parquet}


def accepted(root: Path, zone: str | None, content: bytes, format_: str) -> tuple[dict[str, str], list[str]]:
    """Event times by id, and why the others were rejected."""
    declared = "" if zone is None else f", timezone: {zone}"
    (root / "tidemill.yaml").write_text(CONFIG % declared)
    with Mill.open(root, clock=FakeClock(parse_instant("2025-01-01"))) as mill:
        mill.land("s", content, format=format_)
        mill.run_until_idle()
        rows = {
            row["event_id"]: format_instant(int(row["event_time"].timestamp() * 1_000_000))
            for batch in mill.tail("s")
            if isinstance(batch, pa.RecordBatch)
            for row in batch.to_pylist()
        }
        return rows, mill.quarantine("s").column("detail").to_pylist()


@pytest.mark.parametrize("format_", FORMATS)
def test_a_declared_zone_says_which_instants_are_meant(tmp_path: Path, format_: str) -> None:
    rows, refused = accepted(tmp_path, "Europe/Paris", FORMATS[format_](SHOWN), format_)
    assert rows == PARIS
    assert len(refused) == 1
    assert "no clock in Europe/Paris showed '2024-03-31T02:30:00'" in refused[0]


@pytest.mark.parametrize("format_", FORMATS)
def test_without_a_zone_they_are_refused_with_the_key_that_would_help(tmp_path: Path, format_: str) -> None:
    rows, refused = accepted(tmp_path, None, FORMATS[format_](SHOWN), format_)
    assert not rows
    assert all("does not say its offset from UTC" in text for text in refused)
    assert all("event_time.timezone" in text for text in refused)
    assert len(refused) == len(SHOWN)


def test_an_offset_is_never_overruled(tmp_path: Path) -> None:
    times = {"z": "2024-07-01T12:00:00Z", "east": "2024-07-01T12:00:00+05:30", "date": "2024-07-01"}
    rows, refused = accepted(tmp_path, "America/New_York", as_json(times), "ndjson")
    assert rows == {
        "z": "2024-07-01T12:00:00Z",
        "east": "2024-07-01T06:30:00Z",
        "date": "2024-07-01T04:00:00Z",
    }
    assert not refused


def test_a_parquet_column_with_a_zone_has_instants(tmp_path: Path) -> None:
    out = io.BytesIO()
    at = pa.array([parse_instant("2024-07-01T12:00:00Z")], pa.timestamp("us", tz="America/New_York"))
    pq.write_table(pa.table({"id": ["a"], "at": at}), out)
    assert accepted(tmp_path, None, out.getvalue(), "parquet") == ({"a": "2024-07-01T12:00:00Z"}, [])


def test_records_that_were_refused_come_back_once_the_zone_is_declared(tmp_path: Path) -> None:
    accepted(tmp_path, None, as_json(PARIS | {"summer": SHOWN["summer"]}), "ndjson")
    (tmp_path / "tidemill.yaml").write_text(CONFIG % ", timezone: Europe/Paris")
    with Mill.open(tmp_path) as mill:
        mill.replay("s")
        mill.run_until_idle()
        assert mill.state.totals("s")["accepted"] == 3


TYPED = """
version: 1
engine: {cores: 2, memory: 512m}
streams:
  s:
    schema: {id: {type: string, required: true}, at: timestamp, v: integer}
    event_time: {column: at, type: iso8601}
    identity: id
    aggregation_span: 1h
    allow_incomplete_windows: true
    keep_payload: %s
    metrics: {seen: {kind: counter, measures: [v]}}
"""
INSTANTS = [
    "2024-01-15T10:00:00Z",
    "2024-01-15T10:59:59.999999Z",
    "2024-01-15T11:00:00Z",
    "1969-12-31T23:59:58.5Z",
]


@pytest.mark.parametrize("keep_payload", ["true", "false"])
@pytest.mark.parametrize("unit", ["ms", "us", "ns", "text"])
def test_the_event_time_may_be_a_column_of_type_timestamp(
    tmp_path: Path, unit: str, keep_payload: str
) -> None:
    """As Parquet and Arrow have it; in JSON it is text, and what does not parse is a bad time."""
    times = [at for at in INSTANTS if unit != "ms" or not at.endswith("999999Z")]
    ids = [f"e{i}" for i in range(len(times))]
    if unit == "text":
        lines = [*zip(ids, times, strict=True), ("late", "yesterday"), ("number", 1705312800)]
        content = "".join(json.dumps({"id": i, "at": at, "v": 2}) + "\n" for i, at in lines).encode()
    else:
        exact = pa.array([parse_instant(at) for at in times], pa.timestamp("us", tz="UTC"))
        table = pa.table({"id": ids, "at": exact.cast(pa.timestamp(unit, tz="UTC")), "v": [2] * len(times)})
        out = io.BytesIO()
        pq.write_table(table, out)
        content = out.getvalue()
    (tmp_path / "tidemill.yaml").write_text(TYPED % keep_payload)
    with Mill.open(tmp_path, clock=FakeClock(parse_instant("2025-01-01"))) as mill:
        mill.land("s", content, format="ndjson" if unit == "text" else "parquet")
        mill.run_until_idle()
        hours = mill.query("SELECT count, sum(v) FROM s INTERVAL 1h").to_pylist()
        found = {format_instant(int(row["bucket"].timestamp()) * 1_000_000): row["count"] for row in hours}
        expected: dict[str, int] = {}
        for at in times:
            hour = at[:13] + ":00:00Z"
            expected[hour] = expected.get(hour, 0) + 1
        assert found == expected
        refused = sorted(mill.quarantine("s").column("reason").to_pylist())
        assert refused == (["bad_time", "bad_time"] if unit == "text" else [])
        stored = mill.sql('SELECT "at", event_time FROM raw.s').table.to_pylist()
        assert sorted(row["at"] for row in stored) == sorted(row["event_time"] for row in stored)
        assert len(mill.windows.datasets("s")) == len(expected)
        assert mill.verify().ok
