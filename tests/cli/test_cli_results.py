"""results, flush, and what run, verify, recover and metrics say of streaming windows."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from decimal import Decimal
from functools import partial

import pytest
from tests.support.forged_parts import forge
from tests.support.patience import PATIENCE

from tidemill.mill import Mill
from tidemill.model.streaming import Aggregate, Function, WindowKind, WindowSpec
from tidemill.model.time import SECOND, parse_instant
from tidemill.pipeline.documents.results import result
from tidemill.testing import FakeClock

TAXI = """
version: 1
engine: {cores: 2}
streams:
  rides:
    schema:
      id: {type: string, required: true}
      at: {type: string, required: true}
      city: string
      driver: string
      fare: {type: decimal, scale: 2}
    event_time: {column: at, type: iso8601, late_tolerance: 10s}
    identity: id
    tenant: {column: city}
    windows:
      minutes:
        kind: tumbling
        size: 1m
        group_by: driver
        aggregates: {rides: count, income: %s}
        late: {policy: reemit, max_lateness: 1h}
      visits: {kind: session, gap: 5m, key: driver, late: {policy: reemit, max_lateness: 1h}}
  logs:
    schema: {id: string}
    identity: id
"""
KEYS = [
    "window_id", "start", "end", "tenant", "group", "values", "revision", "rows", "late_rows", "first_time",
    "last_time", "bytes", "trigger", "watermark", "hash", "slices", "supersedes", "superseded_by",
    "withdrawn", "batch",
]  # fmt: skip


def at(time):
    return f"2024-01-15T{time}Z"


class Taxi:
    def __init__(self, cli, folder, clock):
        self.cli, self.folder, self.clock, self.number = cli, folder, clock, 0
        self.declare()

    def declare(self, income="sum(fare)"):
        (self.folder / "tidemill.yaml").write_text(TAXI % income)

    def land(self, *rides):
        """A slice of rides `(time, driver, fare)`."""
        lines = []
        for time, driver, fare in rides:
            self.number += 1
            results_shown = {"id": f"r{self.number}", "at": at(time), "city": "ulm", "driver": driver}
            lines.append(f'{json.dumps(results_shown)[:-1]}, "fare": {fare}}}')
        self.clock.advance(SECOND)
        assert self.cli("ingest", "rides", "-", "--format", "ndjson", stdin="\n".join(lines) + "\n").code == 0

    def run(self, *more):
        done = self.cli("run", "--once", *more)
        assert done.code == 0, done
        return done.out

    def json(self, *arguments):
        done = self.cli(*arguments, "--output", "json")
        assert done.code == 0, done
        return done.json

    def results(self, window, *more):
        return self.json("results", "rides", window, *more)["results"]

    def results_shown(self, window, *more):
        """When, whose, what: `start driver values revision trigger`."""
        return [
            (
                one["start"][11:19],
                one["group"]["driver"],
                *one["values"].values(),
                one["revision"],
                one["trigger"],
            )
            for one in self.results(window, *more)
        ]

    def event_ids(self):
        with Mill.open(self.folder) as mill:
            return sorted(event["id"] for _, event in mill.events())


@pytest.fixture
def taxi(cli, tmp_path, monkeypatch):
    folder = tmp_path / "taxi"
    folder.mkdir()
    monkeypatch.chdir(folder)
    clock = FakeClock(parse_instant(at("13:00:00")))
    monkeypatch.setattr(Mill, "open", partial(Mill.open, clock=clock))
    return Taxi(cli, folder, clock)


@pytest.fixture
def driven(taxi):
    """The watermark is at 12:07:50: the minutes and visits before are out, bob is driving again."""
    taxi.land(("12:00:05", "ann", "12.30"), ("12:00:06", "bob", "0.25"), ("12:08:00", "bob", 4))
    taxi.said = taxi.run()
    return taxi


@pytest.fixture
def merged(driven):
    """A late ride joins the visit of bob that was out with the one that is open."""
    driven.land(("12:04:40", "bob", 2))
    driven.said = driven.run()
    return driven


# -- results


def test_what_stands_is_listed_the_newest_first(driven):
    assert driven.results_shown("minutes") == [
        ("12:00:00", "ann", 1, 12.3, 1, "watermark"),
        ("12:00:00", "bob", 1, 0.25, 1, "watermark"),
    ]
    assert driven.results_shown("visits") == [
        ("12:00:06", "bob", 1, 1, "watermark"),
        ("12:00:05", "ann", 1, 1, "watermark"),
    ]


def test_a_result_has_its_keys_in_order_and_all_it_knows(driven):
    first = driven.results("minutes")[0]
    assert list(first) == KEYS
    names = ("start", "end", "tenant", "group", "rows", "late_rows", "first_time", "watermark", "slices")
    assert {name: first[name] for name in names} == {
        "start": at("12:00:00"), "end": at("12:01:00"), "tenant": "ulm", "group": {"driver": "ann"},
        "rows": 1, "late_rows": 0, "first_time": at("12:00:05"), "watermark": at("12:07:50"), "slices": 1,
    }  # fmt: skip
    assert (first["supersedes"], first["superseded_by"], first["withdrawn"], first["batch"]) == (
        [],
        None,
        False,
        1,
    )


def test_decimals_lose_nothing(taxi):
    taxi.land(("12:00:05", "ann", "9007199254740993.25"), ("12:08:00", "ann", 1))
    taxi.run()
    assert '"income":9007199254740993.25' in taxi.cli("results", "rides", "minutes", "--output", "json").out
    assert " 9007199254740993.25 " in taxi.cli("results", "rides", "minutes").out


def test_floats_that_are_no_numbers_are_still_json():
    mean = Aggregate("mean", Function.AVG, "a", "float")
    spec = WindowSpec("s", "w", WindowKind.TUMBLING, size=1, step=1, aggregates=(mean,))
    found = [
        result(spec, dict.fromkeys(KEYS) | {"mean": value})["values"]["mean"]
        for value in (float("nan"), float("inf"), float("-inf"), 0.5)
    ]
    assert found == ["NaN", "Infinity", "-Infinity", 0.5]


def test_the_table_for_people(driven):
    head, _, *rows = [
        " ".join(line.split())
        for line in driven.cli("results", "rides", "minutes").out.splitlines()
        if line.strip()
    ]
    assert head == "start end tenant driver rides income rows late rev trigger"
    assert rows[0] == f"{at('12:00:00')} {at('12:01:00')} ulm ann 1 12.30 1 0 1 watermark"


def test_a_late_row_is_a_revision_and_a_merged_session_supersedes(merged):
    assert merged.results_shown("minutes")[0] == (
        "12:04:00",
        "bob",
        1,
        2,
        1,
        "watermark",
    )  # the first of its minute
    assert merged.results_shown("visits") == [
        ("12:00:05", "ann", 1, 1, "watermark")
    ]  # that of bob is open again
    gone = [one for one in merged.results("visits", "--revisions") if one["withdrawn"]]
    assert [(one["start"], one["revision"]) for one in gone] == [(at("12:00:06"), 2)]
    shown = merged.cli("results", "rides", "visits", "--revisions").out
    assert re.search(rf"{at('12:00:06')} .* bob .* {gone[0]['window_id'][:12]} +withdrawn", shown)


def test_a_window_that_was_out_comes_out_again_for_a_late_row(driven):
    driven.land(("12:00:50", "ann", 1))
    driven.run()
    assert ("12:00:00", "ann", 2, 13.3, 2, "late") in driven.results_shown("minutes")
    revisions = [one for one in driven.results_shown("minutes", "--revisions") if one[1] == "ann"]
    assert [one[4:] for one in revisions] == [(1, "watermark"), (2, "late")]


def test_results_by_span_tenant_and_number(driven):
    assert len(driven.results("visits", "--from", at("12:05:05"))) == 1  # half-open: that of ann has ended
    assert driven.results("visits", "--to", at("12:00:05")) == []
    assert driven.results("visits", "--tenant", "bonn") == []
    found = driven.json("results", "rides", "visits", "--limit", "1")
    assert ([one["group"]["driver"] for one in found["results"]], found["more"]) == (["bob"], True)
    assert "the newest 1; --limit 0 shows all" in driven.cli("results", "rides", "visits", "--limit", "1").err
    assert driven.json("results", "rides", "visits", "--limit", "2")["more"] is False


def test_the_newest_of_many_parts_are_found_without_reading_all(driven, monkeypatch):
    monkeypatch.setattr("tidemill.outputs.windows.reader.FIRST_LOOK", 1)
    for minute in range(10, 16):
        driven.land((f"12:{minute}:00", "cay", minute))
        driven.run()
    everything = driven.results_shown("minutes", "--limit", "0")
    assert len(everything) == 7
    for limit in range(1, 8):
        assert driven.results_shown("minutes", "--limit", str(limit))[:1] == everything[:1]
        assert len(driven.results_shown("minutes", "--limit", str(limit))) == limit


def test_windows_are_listed_without_a_window(driven):
    assert driven.json("results", "rides") == {
        "stream": "rides",
        "windows": [
            {"window": "minutes", "kind": "tumbling", "results": 2, "newest_end": at("12:01:00"),
             "watermark": at("12:07:50"), "current": True, "table": "windows/rides/minutes"},
            {"window": "visits", "kind": "session", "results": 2, "newest_end": at("12:05:06"),
             "watermark": at("12:07:50"), "current": True, "table": "windows/rides/visits"},
        ],
    }  # fmt: skip
    shown = driven.cli("results", "rides").out
    assert re.search(
        rf"minutes +tumbling +2 +{at('12:01:00')} +{at('12:07:50')} +windows/rides/minutes", shown
    )


def test_before_anything_came_there_is_nothing_and_no_error(taxi):
    assert [one["results"] for one in taxi.json("results", "rides")["windows"]] == [0, 0]
    assert taxi.cli("results", "rides", "minutes").out == "no results of minutes\n"
    assert taxi.cli("results", "logs").out == "logs declares no streaming windows\n"


def test_an_unknown_window_is_refused_with_those_declared(taxi):
    done = taxi.cli("results", "rides", "hours", "--output", "json")
    assert (done.code, done.error["code"]) == (2, "not_found")
    assert "minutes, visits" in done.error["hint"]
    assert taxi.cli("results", "rides", "--tenant", "ulm").code == 2


def test_results_of_another_declaration_are_not_shown_as_if_they_were_of_this_one(driven):
    driven.declare("max(fare)")
    done = driven.cli("results", "rides", "minutes", "--output", "json")
    assert (done.code, done.error["code"]) == (2, "not_found")
    assert "run --once" in done.error["hint"]
    assert [one["current"] for one in driven.json("results", "rides")["windows"]] == [False, True]
    assert "minutes has another declaration" in driven.cli("results", "rides").err
    driven.run()
    assert driven.results_shown("minutes")[0] == ("12:00:00", "ann", 1, 12.3, 1, "watermark")


# -- run and flush


def test_rounds_tell_of_results(driven):
    assert "; 2 results of minutes; 2 results of visits; " in driven.said
    driven.land(("12:04:40", "bob", 2))
    first = json.loads(driven.run("--output", "json").splitlines()[0])
    assert first["streams"][0]["results"] == {
        "minutes": {"results": 1, "withdrawn": 0},
        "visits": {"results": 0, "withdrawn": 1},
    }


def test_rounds_tell_of_what_is_only_taken_back(merged):
    assert "; 1 result of minutes; 1 result of visits withdrawn; " in merged.said


def test_a_stream_that_had_nothing_else_to_do_is_told_of(taxi):
    """The accepted slice is there, the results are not: as after a crash between the two."""
    taxi.land(("12:00:05", "ann", 1), ("12:08:00", "ann", 1))
    taxi.run()
    with Mill.open(taxi.folder) as mill:
        for window in ("minutes", "visits"):
            mill.state.set_checkpoint("rides", window, None)
    shutil.rmtree(taxi.folder / "warehouse" / "windows")
    (only,) = json.loads(taxi.run("--output", "json").splitlines()[0])["streams"]
    assert (only["batch"], only["results"]["minutes"]) == (None, {"results": 1, "withdrawn": 0})


def test_flush_lets_open_windows_out_once(driven):
    assert driven.cli("flush").out == "flushed rides: 1 result of minutes; 1 result of visits\n"
    assert driven.results_shown("visits")[0] == ("12:08:00", "bob", 1, 1, "stop")
    assert driven.json("results", "rides")["windows"][0]["watermark"] == at("12:07:50")
    assert driven.cli("flush", "rides").out == "nothing to flush: no window was open\n"
    assert driven.json("flush") == {"flushed": [{"stream": "rides", "results": {}}]}
    assert driven.cli("flush", "nope").code == 2


def test_rebuild_says_what_became_of_damaged_results(driven):
    rebuild = ("rebuild", "rides", "--results", "minutes")
    assert driven.cli(*rebuild).out == "nothing to rebuild: no result of minutes is damaged\n"
    results = driven.json("results", "rides", "minutes")["results"]
    (part,) = (driven.folder / "warehouse/windows/rides/minutes").glob("*.parquet")
    part.write_bytes(bytes(part.stat().st_size))
    assert driven.cli(*rebuild).out == f"rebuilt rides: {len(results)} results of minutes\n"


def test_flush_in_json(driven):
    came = {"results": 1, "withdrawn": 0}
    assert driven.json("flush", "rides") == {
        "flushed": [{"stream": "rides", "results": {"minutes": came, "visits": came}}]
    }


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_daemon_that_is_stopped_says_what_it_flushed(taxi, output):
    taxi.land(("12:00:05", "ann", 1), ("12:08:00", "ann", 1))
    daemon = subprocess.Popen(
        [sys.executable, "-m", "tidemill.cli.main", "run", "--output", output, "--interval", "50ms"],
        cwd=taxi.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    try:
        daemon.stdout.readline()
        daemon.send_signal(signal.SIGTERM)
        out, err = daemon.communicate(timeout=PATIENCE)
    finally:
        daemon.kill()
    assert daemon.returncode == 0, err
    last = out.splitlines()[-1]
    if output == "text":
        assert last == "flushed rides: 1 result of minutes; 1 result of visits"
    else:
        assert [one["stream"] for one in json.loads(last)["flushed"]] == ["rides", "logs"]


def test_metrics_count_results_of_rounds(taxi):
    taxi.land(("12:00:05", "ann", 1), ("12:08:00", "ann", 1))
    with Mill.open(taxi.folder) as mill:
        for report in mill.run_until_idle():
            mill.meter.tick(report)
        text = mill.meter.text()
    assert 'tidemill_window_results_total{stream="rides",window="visits"} 1.0' in text
    assert 'tidemill_window_results_withdrawn_total{stream="rides",window="visits"} 0.0' in text


# -- verify and recover


def test_verify_compares_results(merged):
    assert merged.json("verify")["streams"][0]["results"] == 4
    assert (
        "rides: 2 slices, 4 raw rows, 0 tiles and 4 results recomputed: equal\n" in merged.cli("verify").out
    )


def test_verify_says_which_result_is_wrong(driven):
    forge(driven.folder / "warehouse" / "windows" / "rides" / "minutes", "income", lambda _: Decimal("1.00"))
    assert driven.cli("verify", "--scrub").code == 0  # by its checksum it is whole
    done = driven.cli("verify", "--output", "json")
    assert done.code == 1
    ann = done.json["findings"][0]
    assert ann["what"] == "result"
    assert ann["difference"] == "differs in income"


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_recovered_state_tells_the_same_events_and_leaves_results_as_they_are(driven, output):
    driven.land(("12:00:50", "ann", 1))  # late: both windows come out again
    driven.run()
    before, stood = driven.event_ids(), driven.results("visits", "--revisions")
    assert before
    (driven.folder / "warehouse" / "state.db").unlink()
    done = driven.cli("recover", "--output", output)
    assert done.code == 0, done
    if output == "json":
        assert done.json["results"] == 4  # two commits of each window
    else:
        assert done.out.endswith("tiles and 0 datasets found; 4 commits of results announced again\n")
    assert driven.event_ids() == before
    assert driven.run() == ""
    assert driven.event_ids() == before
    assert driven.results("visits", "--revisions") == stood
    assert driven.cli("verify").code == 0
