"""tail, late, explain, types, status and metrics: what people and programs see of event time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial

import pytest
from rich.console import Console
from tests.support.patience import PATIENCE

from tidemill import eventtime
from tidemill.cli.views.status import status_table
from tidemill.mill import Mill
from tidemill.model.time import MINUTE, SECOND, parse_instant
from tidemill.pipeline.documents import shapes as plain
from tidemill.pipeline.reports import StreamStatus
from tidemill.storage.state.protocol import ClockState, Progress
from tidemill.testing import FakeClock

NOON = parse_instant("2024-01-15T12:00:00Z")
TAXI = """
version: 1
streams:
  rides:
    description: Rides of a taxi company.
    schema:
      id: {type: string, required: true}
      at: {type: string, required: true}
      city: string
      driver: string
      fare: {type: decimal, scale: 2}
    event_time: {column: at, type: iso8601, late_tolerance: 10s%s}
    identity: id
    tenant: {column: city}
    skew: {future: 1h}
%s
  logs:
    schema: {id: string, ts: integer}
    event_time: {column: ts, type: unixtimestamp_ms, enabled: %s}
    identity: id
"""
WINDOWS = """
    windows:
      minutes:
        kind: tumbling
        size: 1m
        group_by: driver
        aggregates: {rides: count, income: sum(fare), tall: p99(fare)}
        late: next_window
      busy: {kind: sliding, size: 90s, step: 1m, late: {policy: reemit, max_lateness: 5m}}
      visits: {kind: session, gap: 5m, key: driver}
      dozens: {kind: count, n: 12, key: [driver]}
      trips: {kind: state, open: fare = 0, emit: fare > 10, key: driver}
"""


class Taxi:
    def __init__(self, cli, folder, clock):
        self.cli, self.folder, self.clock = cli, folder, clock
        self.declare()

    def declare(self, time="", windows="", enabled="true"):
        (self.folder / "tidemill.yaml").write_text(TAXI % (time, windows, enabled))

    def land(self, *times, source="file", city="ulm"):
        lines = [
            json.dumps({"id": f"{city}-{time}", "at": f"2024-01-15T{time}Z", "city": city}) for time in times
        ]
        self.clock.advance(SECOND)
        arguments = ("ingest", "rides", "-", "--format", "ndjson", "--source", source)
        assert self.cli(*arguments, stdin="\n".join(lines) + "\n").code == 0

    def run(self):
        assert self.cli("run", "--once").code == 0

    def json(self, *arguments):
        done = self.cli(*arguments, "--output", "json")
        assert done.code == 0, done
        return done.json


@pytest.fixture
def taxi(cli, tmp_path, monkeypatch):
    folder = tmp_path / "taxi"
    folder.mkdir()
    monkeypatch.chdir(folder)
    clock = FakeClock(NOON)
    monkeypatch.setattr(Mill, "open", partial(Mill.open, clock=clock))
    return Taxi(cli, folder, clock)


@pytest.fixture
def driven(taxi):
    """Two slices on time, then one with a late row and one far ahead."""
    taxi.land("12:00:05", "12:00:01", "12:00:03")
    taxi.land("12:00:20", city="bonn")
    taxi.land("12:00:04", "12:00:15")
    taxi.run()
    return taxi


# -- tail


def test_tail_prints_rows_in_order_with_watermarks_between_them(driven):
    shown = driven.cli("tail", "rides", "--ordered", "--no-follow")
    assert (shown.code, shown.err) == (0, "")
    assert [" ".join(line.split()[:3]) for line in shown.out.splitlines()] == [
        "-- watermark 2024-01-15T11:59:55Z",
        "2024-01-15T12:00:01Z ulm ulm-12:00:01",
        "2024-01-15T12:00:03Z ulm ulm-12:00:03",
        "2024-01-15T12:00:05Z ulm ulm-12:00:05",
        "-- watermark 2024-01-15T12:00:10Z",
        "2024-01-15T12:00:15Z ulm ulm-12:00:15",
        "2024-01-15T12:00:20Z bonn bonn-12:00:20",
    ]
    assert '{"id": "ulm-12:00:01", "at": "2024-01-15T12:00:01Z", "city": "ulm"}' in shown.out


def test_tail_as_json_is_an_object_a_line(driven):
    done = driven.cli("tail", "rides", "--ordered", "--no-follow", "--output", "json")
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert [line.get("watermark") or line["event_id"] for line in lines] == [
        "2024-01-15T11:59:55Z", "ulm-12:00:01", "ulm-12:00:03", "ulm-12:00:05",
        "2024-01-15T12:00:10Z", "ulm-12:00:15", "bonn-12:00:20",
    ]  # fmt: skip
    first = lines[1]
    assert first["event_time"] == "2024-01-15T12:00:01Z"
    assert first["arrival"] == "2024-01-15T12:00:01Z"
    assert (first["tenant"], first["line"], len(first["slice"])) == ("ulm", 2, 64)
    assert json.loads(first["payload"])["id"] == "ulm-12:00:01"


def test_tail_without_ordered_is_as_it_arrived_late_rows_too(driven):
    done = driven.cli("tail", "rides", "--no-follow", "--output", "json")
    output = [json.loads(line) for line in done.out.splitlines()]
    assert [line.get("watermark", line.get("event_id"))[-8:] for line in output] == [
        "12:00:05", "12:00:01", "12:00:03", "1:59:55Z", "12:00:20", "2:00:10Z", "12:00:04", "12:00:15",
    ]  # fmt: skip


def test_tail_takes_since_limit_and_tenant(driven):
    def output(*options):
        done = driven.cli("tail", "rides", "--ordered", "--no-follow", *options, "--output", "json")
        lines = [json.loads(line) for line in done.out.splitlines()]
        return [line["event_id"] for line in lines if "event_id" in line]

    assert output("--limit", "2") == ["ulm-12:00:01", "ulm-12:00:03"]
    assert output("--tenant", "bonn") == ["bonn-12:00:20"]
    assert output("--since", "2024-01-15T12:00:15Z") == ["ulm-12:00:15", "bonn-12:00:20"]
    driven.clock.set(NOON + 25 * SECOND)
    assert output("--since", "10s") == ["ulm-12:00:15", "bonn-12:00:20"]


def test_tail_that_follows_ends_with_its_limit(driven):
    done = driven.cli("tail", "rides", "--ordered", "--limit", "3")
    assert (done.code, len(done.out.splitlines())) == (0, 4)


def test_wrong_arguments_of_tail_say_what_would_be_right(driven):
    wrong = driven.cli("tail", "rides", "--since", "noon", "--no-follow", "--output", "json")
    assert wrong.code == 2
    assert wrong.error["message"] == "'noon' is neither an instant nor a duration"
    assert "10m" in wrong.error["hint"]
    unknown = driven.cli("tail", "riders", "--no-follow", "--output", "json")
    assert (unknown.code, unknown.error["code"]) == (2, "not_found")
    assert "rides" in unknown.error["hint"]


def test_ctrl_c_lets_the_buffer_out_and_ends_with_0(driven):
    process = subprocess.Popen(
        [sys.executable, "-m", "tidemill.cli.main", "tail", "rides", "--ordered", "--interval", "10ms"],
        cwd=driven.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert process.stdout is not None
    output = [process.stdout.readline() for _ in range(5)]
    assert output[-1] == "-- watermark 2024-01-15T12:00:10Z\n"
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, "")
    assert [line.split()[2] for line in rest.splitlines()] == ["ulm-12:00:15", "bonn-12:00:20"]


# -- late


def test_late_rows_say_how_late_they_were(driven):
    found = driven.json("late", "rides")
    (row,) = found["rows"]
    assert (row["event_id"], row["lateness"], row["watermark"]) == (
        "ulm-12:00:04",
        "6s",
        "2024-01-15T12:00:10Z",
    )
    assert row["done"] == []
    assert (found["total"], found["more"], found["windows"]) == (1, False, {})
    shown = " ".join(driven.cli("late", "rides").out.split())
    assert "2024-01-15T12:00:04Z 6s 2024-01-15T12:00:10Z ulm ulm-12:00:04" in shown
    assert "kept in raw and rollups" in shown


def test_late_rows_say_what_each_window_did(driven):
    driven.declare(windows=WINDOWS)
    found = driven.json("late", "rides")
    assert found["rows"][0]["done"] == [
        {"window": "minutes", "fate": "next_window", "start": "2024-01-15T12:00:00Z"},
        {"window": "busy", "fate": "reemitted", "start": "2024-01-15T11:59:00Z"},
        {"window": "visits", "fate": "discarded", "start": None},
        {"window": "dozens", "fate": "discarded", "start": None},
        {"window": "trips", "fate": "discarded", "start": None},
    ]
    assert found["windows"]["busy"] == {"reemitted": 1}
    shown = " ".join(driven.cli("late", "rides").out.split())
    assert "minutes next window, busy reemitted, visits discarded" in shown
    assert "1 late row, all kept in raw and rollups; minutes: 1 next window; busy: 1 reemitted" in shown


def test_no_late_rows(taxi):
    assert taxi.cli("late", "logs").out == "no late rows in logs\n"
    assert taxi.json("late", "logs") == {
        "stream": "logs", "rows": [], "more": False, "total": 0, "windows": {},
    }  # fmt: skip


def test_late_shows_the_newest_and_says_when_there_is_more(driven):
    driven.land("12:00:02", "12:00:06")
    driven.run()
    found = driven.json("late", "rides", "--limit", "2")
    assert [row["event_id"] for row in found["rows"]] == ["ulm-12:00:02", "ulm-12:00:06"]
    assert (found["more"], found["total"]) == (True, 3)
    assert driven.json("late", "rides", "--since", "1ms")["total"] == 2


# -- explain


def test_explain_is_one_page(driven):
    driven.declare(", idle_timeout: 10m, max_buffer_bytes: 64MiB", WINDOWS)
    shown = driven.cli("explain", "rides")
    assert (shown.code, shown.err) == (0, "")
    assert len(shown.out.splitlines()) <= 66
    words = " ".join(shown.out.split())
    for reported in (
        "event: column at, read as iso8601 (built in)",
        "EventtimeWatermark: moved by the data",
        "late_tolerance a source's watermark is 10s behind the newest event of its source",
        "a source silent for 10m is not waited for",
        "64.0 MiB after the watermark",
        "1h ahead of its arrival",
        "watermark 2024-01-15T12:00:10Z",
        "tumbling: one after another, 1m each",
        "rides = count, income = sum(fare), tall = p99(fare)",
        "driver: each value has its own result in a window",
        "next_window: a late row counts at the watermark it met",
        "sliding: 1m30s long, one every 1m: a row is in 1 or 2 of them",
        "reemit: up to 5m behind the watermark",
        "session: rows at most 5m apart",
        "when it has come 5m past the last row",
        "count: 12 rows in a row",
        "state: from a row with fare = 0 to the next one with fare > 10",
        "discard: a late row is in no window",
        "windows/rides/minutes",
    ):
        assert reported in words, reported


def test_explain_as_json(taxi):
    taxi.declare(windows=WINDOWS)
    found = taxi.json("explain", "rides")
    assert found["time"] == {
        "mode": "event", "plan": "EventtimeWatermark", "column": "at", "type": "iso8601",
        "origin": "built_in", "provided_by": None, "messages": None, "late_tolerance": "10s",
        "idle_timeout": None, "max_buffer_bytes": 256 << 20, "skew": {"past": "36525d", "future": "1h"},
    }  # fmt: skip
    assert (found["watermark"], found["sources"], found["datasets"]) == (None, [], None)
    assert found["windows"][2] == {
        "window": "visits",
        "kind": "session",
        "rule": "rows at most 5m apart",
        "key": ["driver"],
        "group_by": [],
        "aggregates": {"count": "count"},
        "close": "watermark: when it has come 5m past the last row",
        "late": "discard: a late row is in no window (raw and rollups have it)",
        "results": "windows/rides/visits",
    }


def test_explain_warns_of_an_event_time_that_is_not_used(taxi):
    taxi.declare(enabled="false")
    found = taxi.json("explain", "logs")
    assert (found["time"]["mode"], found["time"]["plan"]) == ("processing", "ProcessTimeWatermark")
    assert found["warnings"] == [
        "event_time names the column ts, but enabled is false: it is not read, arrivals are used"
    ]
    shown = taxi.cli("explain", "logs").out
    assert "moved by ticks of the clock" in shown
    assert "warning: event_time names the column ts" in shown


def test_explain_warns_of_a_source_that_everybody_waits_for(taxi):
    taxi.land("12:00:30", source="a")
    taxi.land("12:05:00", source="b")
    taxi.run()
    (warning,) = taxi.json("explain", "rides")["warnings"]
    assert "now for a;" in warning


# -- types


def test_types_need_no_project_and_say_where_each_comes_from(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(eventtime.registry, "_parsers", dict(eventtime.registry._parsers))
    eventtime.register("moon_phase", lambda _: 0)
    (tmp_path / "swatch.py").write_text("def parse(value):\n    return 0\n")
    info = tmp_path / "swatch-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: swatch\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tidemill.eventtime]\nbeats = swatch:parse\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    output = {one.pop("name"): one for one in cli("types", "--output", "json").json["event_time_types"]}
    assert output["iso8601"] == {"origin": "built_in", "provided_by": None}
    assert output["moon_phase"] == {"origin": "registered", "provided_by": None}
    assert output["beats"] == {"origin": "entry_point", "provided_by": "swatch:parse of swatch 1.0"}
    assert "from swatch:parse of swatch 1.0" in cli("types").out


# -- status and metrics


def standing(**changes):
    totals = dict.fromkeys(
        ("landings", "bytes", "records", "accepted", "duplicate", "conflict", "rejected", "late"), 0
    )
    totals |= {f"{word}_slices": 0 for word in ("pending", "accepted", "failed", "retracted")}
    clocks = [
        ClockState("a", NOON, NOON - MINUTE, NOON + MINUTE),
        ClockState("b", NOON - MINUTE, NOON - 2 * MINUTE, NOON - 5 * MINUTE),
    ]
    given = {
        "stream": "rides", "totals": totals | {"late": 3, "reject_skew": 2, "rejected": 2}, "clocks": clocks,
        "watermark": NOON - MINUTE, "stale_tiles": 0, "raw_parts": 1, "raw_rows": 9, "quarantine_rows": 0,
        "progress": Progress(NOON - MINUTE, 12, 1204, 319_488, 17), "idle": frozenset({"b"}),
        "late_dropped": 2,
    }  # fmt: skip
    return StreamStatus(**(given | changes))


def test_status_says_how_far_event_time_has_come():
    (found,) = plain.status(NOON + MINUTE, [standing()], [])["streams"]
    assert {name: found[name] for name in ("watermark", "lag", "max_seen", "time")} == {
        "watermark": "2024-01-15T11:59:00Z", "lag": "2m", "max_seen": "2024-01-15T12:00:00Z", "time": "event",
    }  # fmt: skip
    assert found["buffer"] == {"rows": 1204, "bytes": 319_488}
    assert (found["late_dropped"], found["watermarks_emitted"]) == (2, 12)
    assert (found["skew_rejected"], found["released_early"]) == (2, 17)
    assert found["sources"][1] == {
        "source": "b", "watermark": "2024-01-15T11:58:00Z", "lag": "3m", "max_seen": "2024-01-15T11:59:00Z",
        "arrival": "2024-01-15T11:55:00Z", "idle": True,
    }  # fmt: skip


def test_status_for_people():
    console = Console(width=200, file=open(os.devnull, "w"), record=True)  # noqa: SIM115, PTH123
    console.print(status_table(NOON + MINUTE, standing()))
    words = " ".join(console.export_text().split())
    assert "watermark 2024-01-15T11:59:00Z, 2m behind now; moved 12 times" in words
    assert "buffer 1,204 rows (312.0 KiB) after the watermark; 17 rows released early" in words
    assert "late 3 rows, at or before the watermark that their slice met" in words
    assert "newest event 2024-01-15T11:59:00Z, heard of 6m ago, idle" in words
    assert "skew 2" in words


def test_status_of_a_stream_that_ran(driven):
    driven.declare(enabled="false")
    found, logs = driven.json("status")["streams"]
    assert (found["watermark"], found["max_seen"]) == ("2024-01-15T12:00:10Z", "2024-01-15T12:00:20Z")
    assert found["buffer"]["rows"] == 2
    assert found["buffer"]["bytes"] > 0
    assert (found["late_dropped"], found["watermarks_emitted"], found["released_early"]) == (1, 2, 0)
    (source,) = found["sources"]
    assert (source["source"], source["arrival"], source["idle"]) == ("file", "2024-01-15T12:00:03Z", False)
    assert logs["time"] == "processing"


def test_metrics_have_the_same(driven):
    driven.declare(", idle_timeout: 1m")
    driven.clock.set(NOON + 10 * MINUTE)
    samples = {
        (one["name"], one["labels"].get("source")): one["value"]
        for one in driven.json("metrics")["metrics"]
        if one["labels"].get("stream") == "rides"
    }
    at = NOON // SECOND
    assert samples["tidemill_watermark", None] == at + 10
    assert samples["tidemill_watermark_lag_seconds", None] == 590
    assert samples["tidemill_watermarks_emitted_total", None] == 2
    assert samples["tidemill_buffer_size", None] == 2
    assert samples["tidemill_buffer_bytes", None] > 0
    assert samples["tidemill_late_dropped_total", None] == 1
    assert samples["tidemill_released_early_total", None] == 0
    assert samples["tidemill_skew_rejected_total", None] == 0
    assert samples["tidemill_max_timestamp_seen", "file"] == at + 20
    assert samples["tidemill_source_watermark", "file"] == at + 10
    assert samples["tidemill_source_idle", "file"] == 1


def test_results_of_windows_are_counted(taxi):
    with Mill.open(taxi.folder) as mill:
        mill.meter.window_results("rides", "minutes", 5, 2)
        text = mill.meter.text()
    assert 'tidemill_window_results_total{stream="rides",window="minutes"} 5.0' in text
    assert 'tidemill_window_results_withdrawn_total{stream="rides",window="minutes"} 2.0' in text
