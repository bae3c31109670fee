"""Windows through the command line: waiting and why, built, late, rebuilt, withdrawn, failed, tried again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.patience import PATIENCE

ONE = "2024-01-15T13:00:00Z"
CUTOFF = "2024-01-15T20:00:00Z"


def at(time):
    return f"2024-01-15T{time}:00Z"


# -- waiting, and why


def test_w12_a_window_waits_for_its_cutoff_and_is_ready_at_it_without_an_arrival(weather):
    weather.land("13:00", "14:00", "13:00", "13:20")
    assert "1 window waiting" in weather.run()
    weather.set("2024-01-15T19:59:59.999999Z")
    (waits,) = weather.json("windows")["windows"]
    assert (waits["state"], waits["reason"], waits["detail"]) == ("waiting", "cutoff", f"cutoff at {CUTOFF}")
    assert weather.json("windows", "--state", "ready")["windows"] == []
    weather.set(CUTOFF)
    (ready,) = weather.json("windows", "--state", "ready")["windows"]
    assert (ready["start"], ready["detail"]) == (ONE, None)
    (line,) = weather.run("--output", "json", "-v").splitlines()
    (stream,) = json.loads(line)["streams"]
    assert (stream["windows"]["queued"], stream["windows"]["built"]) == (1, 1)
    assert [(one["trigger"], one["revision"], one["rows"]) for one in stream["builds"]] == [("cutoff", 1, 2)]
    assert weather.states() == {ONE: "built"}  # a slice that comes now still counts
    weather.set("2024-01-15T20:00:00.000001Z")
    assert weather.states() == {ONE: "final"}


def test_w4_and_w8_the_reason_names_the_gap_or_the_missing_edge(weather):
    weather.land("10:00", "10:30", "10:01")
    weather.land("10:45", "11:00", "10:50")
    weather.land("11:09", "12:00", "11:30")
    weather.set("2024-01-16T00:00:00Z")
    weather.run()
    found = {one["start"]: one["detail"] for one in weather.json("windows", "--state", "waiting")["windows"]}
    assert found == {at("10:00"): "gap 10:30-10:45", at("11:00"): "coverage missing before 11:09"}
    shown = weather.cli("windows").out
    assert "gap 10:30-10:45" in shown
    assert "coverage missing before 11:09" in shown
    assert "coverage missing before 11:09" in weather.cli("window", "weather", at("11:30")).out


def test_windows_can_be_limited_by_time_and_number(weather):
    for hour in (10, 11, 12):
        weather.land(f"{hour}:00", f"{hour + 1}:00", f"{hour}:30")
    weather.run()
    some = weather.json("windows", "weather", "--from", at("11:00"), "--to", at("12:00"))
    assert [one["start"] for one in some["windows"]] == [at("11:00")]
    newest = weather.json("windows", "--limit", "2")
    assert [one["start"] for one in newest["windows"]] == [at("12:00"), at("11:00")]
    assert newest["more"] is True
    assert "the newest 2; --limit 0 shows all" in weather.cli("windows", "--limit", "2").err
    assert len(weather.json("windows", "--limit", "0")["windows"]) == 3


def test_an_hour_in_which_nothing_happened_is_declared_empty_and_built(weather):
    bounds = ["--start", at("13:00"), "--end", at("14:00")]
    assert weather.json("ingest", "weather", "--empty", *bounds)["landed"][0]["declared"]["start"] == ONE
    weather.run()
    weather.set(CUTOFF)
    weather.run()
    (only,) = weather.json("datasets")["datasets"]
    assert (only["start"], only["rows"], only["current"]) == (ONE, 0, True)


def test_commands_to_ingest_land_objects_with_their_bounds_and_metadata(weather):
    (weather.folder / "one.ndjson").write_text(json.dumps({"station": "a", "at": at("13:20")}))
    dataset = {"name": "weather", "aggregation_span": "PT1H", "description": "Stations on the ground"}
    bounds = {"start_time": at("13:00"), "end_time": at("14:00")}
    command = {"id": "c1", "metadata": {"dataset": dataset}, "payload_location": "one.ndjson", **bounds}
    (weather.folder / "one.json").write_text(json.dumps(command))
    done = weather.cli("ingest-command", "one.json", "nowhere.json", "--output", "json")
    assert done.code == 1
    (landed,), (refused,) = done.json["landed"], done.json["refused"]
    assert (landed["stream"], landed["name"], landed["new"]) == ("weather", "one.ndjson", True)
    assert landed["declared"] == {"start": at("13:00"), "end": at("14:00")}
    assert landed["metadata"]["dataset"]["description"] == "Stations on the ground"
    assert refused["name"] == "nowhere.json"
    empty = {"metadata": {"dataset": {"name": "weather"}}, "start_time": at("14:00"), "end_time": at("15:00")}
    output = weather.cli("ingest-command", "-", stdin=json.dumps(empty))
    assert output.code == 0, output
    assert "nothing" in output.out
    weather.set("2024-01-16T00:00:00Z")
    weather.run()
    output = [json.loads(line)["data"] for line in weather.cli("events", "--output", "json").out.splitlines()]
    assert {one["start"]: one["rows"] for one in output} == {at("13:00"): 1, at("14:00"): 0}
    assert sorted(one["dataset"]["description"] for one in output) == ["", "Stations on the ground"]
    assert "Stations on the ground" in weather.cli("slice", landed["id"]).out


# -- built


def test_the_dataset_is_a_file_that_pyarrow_opens(built):
    listed = built.json("datasets", "weather")
    (only,) = listed["datasets"]
    assert (only["revision"], only["rows"], only["current"], only["state"]) == (1, 3, True, "built")
    with pa.memory_map(f"{listed['warehouse']}/{only['file']}") as file:
        rows = pa.ipc.open_file(file).read_all()
    assert rows.column("celsius").to_pylist() == [pytest.approx(4.5)] * 3
    assert f"{listed['warehouse']}/{only['file']}" in built.cli("datasets").out
    assert built.json("datasets", "--from", at("14:00"))["datasets"] == []
    assert "no datasets" in built.cli("datasets", "--to", ONE).out


def test_w13_a_late_slice_is_ignored_and_every_command_says_so(built):
    late = built.land("13:30", "13:40", "13:35", station="b")
    built.run()
    assert built.states() == {ONE: "final"}
    story = built.json("window", "weather", at("13:45"))
    assert [(one["used"], one["ignored"]) for one in story["members"]] == [(True, None), (False, "late")]
    assert story["slices"] == {"desired": 1, "observed": 1, "ignored": 1}
    assert [one["revision"] for one in story["revisions"]] == [1]
    shown = built.cli("window", "weather", ONE).out
    assert re.search(r"ignored +late: it came 1s after the cutoff +no", shown)
    assert "2024-01-15T20:00:00Z, 6h after its end" in shown
    (touched,) = built.json("slice", late[:12])["windows"]
    assert (touched["start"], touched["used"], touched["ignored"]) == (ONE, False, "late")
    assert "ignored: late" in built.cli("slice", late[:12]).out


def test_status_shows_windows_and_the_queue(built):
    built.land("14:00", "14:30", "14:10")
    built.run()
    weather, plain = built.json("status")["streams"]
    assert weather["windows"] == {"waiting": 1, "queued": 0, "building": 0, "built": 1, "failed": 0}
    assert set(plain["windows"].values()) == {0}
    assert "1 waiting, 1 built" in built.cli("status").out


# -- rebuilt


def test_rebuild_explains_exactly_what_it_then_does(built):
    built.land("13:30", "13:40", "13:35", station="b")
    built.land("14:00", "14:30", "14:10")
    built.run()
    plan = built.json("rebuild", "weather", "--include-late", "--explain")["steps"]
    assert [(one["start"], one["action"], one["next_revision"], one["late"]) for one in plan] == [
        (ONE, "build", 2, 1), (at("14:00"), "wait", 0, 0),
    ]  # fmt: skip
    assert built.json("datasets")["datasets"][0]["revision"] == 1  # nothing was done
    ran = built.json("rebuild", "weather", "--include-late")["steps"]
    assert [{**step, "outcome": one["outcome"]} for step, one in zip(plan, ran, strict=True)] == ran
    first, second = (one["outcome"] for one in ran)
    assert (first["outcome"], first["revision"], first["rows"], second) == ("built", 2, 4, None)
    story = built.json("window", "weather", ONE)
    assert [one["current"] for one in story["revisions"]] == [False, True]
    assert [one["ignored"] for one in story["members"]] == [None, None]


def test_rebuild_of_one_window_and_of_a_span(built):
    built.land("14:00", "14:30", "14:10")
    built.run()
    (one,) = built.json("rebuild", "weather", "--window", at("13:59"))["steps"]
    assert one["outcome"]["revision"] == 2
    assert one["outcome"]["hash"] == one["hash"]
    shown = built.cli("rebuild", "weather", "--from", ONE, "--to", at("14:00")).out
    assert re.search(r"build +2 -> 3 +1 +rebuild +revision 3, 3 rows", shown)
    assert "no windows to rebuild" not in shown


# -- retracted


def test_a_retraction_withdraws_the_dataset_and_stays_in_the_ledger(built):
    (entry,) = built.json("ledger")["slices"]
    plan = built.json("retract", entry["id"][:12], "--reason", "a broken sensor", "--explain")
    assert plan["steps"][0]["step"] == "retract"
    assert (plan["reason"], plan["retracted"]) == ("a broken sensor", None)
    assert built.states() == {ONE: "final"}  # nothing was done
    done = built.json("retract", entry["id"][:12], "--reason", "a broken sensor")
    assert done["steps"] == plan["steps"]
    assert done["retracted"]["status"] == "retracted"
    built.run()
    (kept,) = built.json("ledger", "--status", "retracted")["slices"]
    assert (kept["retract_reason"], kept["retracted_at"]) == ("a broken sensor", "2024-01-15T20:00:01Z")
    assert "a broken sensor" in built.cli("slice", entry["id"][:12]).out
    assert "retracted" in built.cli("ledger").out
    assert built.json("datasets")["datasets"] == []
    assert "dataset.withdrawn" in built.cli("events").out
    again = built.cli("retract", entry["id"], "--reason", "once more")
    assert again.code == 2
    assert "a broken sensor" in again.err


def test_a_retraction_in_text_tells_its_steps_and_what_comes_next(built):
    (entry,) = built.json("ledger")["slices"]
    done = built.cli("retract", entry["id"][:12], "--reason", "a broken sensor")
    assert done.code == 0
    assert done.out.splitlines()[1].startswith("   1. retract slice")
    assert done.out.splitlines()[-1] == f"retracted {entry['id'][:12]}  stdin"
    assert "`tidemill run --once` accepts again" in done.err


# -- failed


def test_a_failed_window_is_listed_and_tried_again(weather):
    weather.land("13:00", "14:00", "13:20")
    weather.run()
    weather.set(CUTOFF)
    blocked = weather.folder / "warehouse" / "datasets"
    blocked.write_text("in the way")
    assert "1 window queued, 1 failed" in weather.run()
    (failed,) = weather.json("windows", "--state", "failed")["windows"]
    assert (failed["reason"], failed["revision"]) == ("failed", 0)
    assert failed["detail"]
    assert weather.json("window", "weather", ONE)["attempts"] == 1
    assert weather.json("retry", "weather", "--window", at("14:00")) == {"stream": "weather", "retried": 0}
    assert weather.json("retry", "weather", "--window", ONE) == {"stream": "weather", "retried": 1}
    once = weather.cli("build", "--once", "--output", "json")
    assert (once.code, json.loads(once.out)["outcome"]) == (1, "failed")
    blocked.unlink()
    assert "back in the queue" in weather.cli("retry", "weather").out
    assert weather.json("build", "--once")["outcome"] == "built"
    assert weather.cli("retry", "weather").out == "weather has no failed windows\n"


def test_builders_beside_the_daemon_take_from_its_queue(weather):
    weather.declare(concurrency=0)
    for hour in (10, 11, 12):
        weather.land(f"{hour}:00", f"{hour + 1}:00", f"{hour}:30")
    weather.set("2024-01-16T00:00:00Z")
    assert "3 windows queued" in weather.run()
    assert set(weather.states().values()) == {"queued"}
    done = weather.cli("build", "--once")
    assert done.code == 0
    assert len(done.out.splitlines()) == 3
    assert re.search(
        r"^weather \[\S+, \S+\)  revision 1, 1 row of 1 slice: \w+; \w+$", done.out, re.MULTILINE
    )
    assert set(weather.states().values()) == {"final"}
    assert weather.cli("build", "--once", "--concurrency", "4").out == ""


# -- told


def test_events_are_cloud_events_one_a_line_and_go_on_after_a_place(built):
    built.cli("rebuild", "weather")
    first, second = map(json.loads, built.cli("events", "--output", "json").out.splitlines())
    assert (first["specversion"], first["type"]) == ("1.0", "tidemill.dataset.available")
    assert (first["data"]["revision"], second["data"]["supersedes"]) == (1, 1)
    after = built.cli("events", "weather", "--after", first["seq"], "--output", "json").out
    assert json.loads(after)["id"] == second["id"]
    assert len(built.cli("events", "--limit", "1").out.splitlines()) == 1
    followed = built.cli("events", "--follow", "--limit", "2", "--output", "json").out.splitlines()
    assert [json.loads(line)["seq"] for line in followed] == [first["seq"], second["seq"]]
    assert built.cli("events", "plain").out == ""


def daemon(folder, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "tidemill.cli.main", *arguments],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip


def test_following_events_ends_with_0_on_sigterm(built):
    follower = daemon(built.folder, "events", "--follow", "--interval", "20ms", "--output", "json")
    try:
        first = json.loads(follower.stdout.readline())
        follower.send_signal(signal.SIGTERM)
        out, err = follower.communicate(timeout=PATIENCE)
    finally:
        follower.kill()
    assert (follower.returncode, out, err) == (0, "", "")
    assert first["data"]["start"] == ONE


def test_metrics_say_where_windows_stand(built):
    samples = {
        (one["name"], one["labels"].get("phase")): one["value"]
        for one in built.json("metrics")["metrics"]
        if one["labels"].get("stream") == "weather"
    }
    assert samples[("tidemill_windows", "built")] == 1
    assert samples[("tidemill_freshness_seconds", None)] == 6 * 3600 + 1
    assert 'tidemill_windows{phase="built",stream="weather"} 1.0' in built.cli("metrics").out


def test_run_serves_metrics_on_loopback(built):
    running = daemon(built.folder, "run", "--interval", "20ms", "--metrics-port", "0")
    try:
        address = re.search(r"http://127\.0\.0\.1:\d+/metrics", running.stderr.readline())
        assert address is not None
        with urllib.request.urlopen(address.group(0), timeout=PATIENCE) as answer:  # noqa: S310 - our own
            text = answer.read().decode()
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=PATIENCE)
    finally:
        running.kill()
    assert running.returncode == 0
    assert 'tidemill_queue_length{stream="weather"} 0.0' in text


# -- documented, wrong, and cheap


def keys(document):
    """Of a document and of what it holds, tables of free names left out."""
    for key, value in document.items():
        yield key
        inner = value if isinstance(value, list) else [value]
        if key not in ("labels", "data", "metadata", "counts"):
            for one in inner:
                if isinstance(one, dict):
                    yield from keys(one)


def test_every_key_of_the_json_is_on_the_page(built):
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
    document = dict(re.findall(r"^## (\S+)[^\n]*\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    (entry,) = built.json("ledger")["slices"]
    rules = {"aggregation_span", "subject_to_change_window", "allow_incomplete_windows", "gap_tolerance"}
    for command, also in {
        "windows": "windows",
        "window weather 2024-01-15T13:00:00Z": "windows",
        "rebuild weather --explain": "rebuild",
        "rebuild weather": "build",
        "retry weather": "retry",
        "datasets": "datasets",
        "events --limit 1": "events",
        "metrics": "metrics",
        "export weather --window 2024-01-15T13:00:00Z --to csv": "export",
        f"retract {entry['id']} --reason x --explain": "retract",
    }.items():
        name, *rest = command.split()
        found = set(keys(built.json(name, *rest))) - rules - {"max_lateness", "owner", "until"}
        steps = {"name", "accepted", "batch", "slices"} if name == "retract" else set()
        text = document[name] + document[also]
        assert {key for key in found - steps if f"`{key}`" not in text} == set(), command


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["windows", "nope"], "not_found", "weather"),
        (["windows", "plain"], "input", "aggregation_span"),
        (["windows", "--from", "noon"], "input", "RFC 3339"),
        (["window", "weather", "noon"], "input", "RFC 3339"),
        (["window", "weather", ONE], "not_found", "tidemill windows weather"),
        (["rebuild", "weather", "--window", ONE, "--from", ONE], "input", "--window START"),
        (["rebuild", "weather", "--from", ONE, "--explain"], "not_found", "tidemill windows weather"),
        (["retry", "plain"], "input", "aggregation_span"),
        (["datasets", "nope"], "not_found", "weather"),
        (["events", "nope"], "not_found", "weather"),
        (["events", "--interval", "0s"], "input", "10ms"),
        (["build", "--interval", "0s"], "input", "10ms"),
        (["retract", "ffff", "--reason", "x"], "not_found", "tidemill ledger"),
        (["ingest", "weather"], "input", "--empty"),
        (["ingest", "weather", "--empty"], "input", "--start T and --end T"),
        (["ingest", "weather", "a.ndjson", "--empty"], "input", "leave the files out"),
    ],
    ids=" ".join,
)
def test_wrong_arguments_have_a_code_and_a_hint(weather, arguments, code, says):
    done = weather.cli(*arguments, "--output", "json")
    assert (done.code, done.out) == (2, "")
    assert done.error["code"] == code
    assert says in done.error["hint"]


def test_looking_at_windows_imports_neither_spark_nor_numba_and_planning_no_spark(built):
    (entry,) = built.json("ledger")["slices"]
    commands = [
        ["windows"], ["window", "weather", ONE], ["datasets"], ["events"], ["metrics"], ["status"],
        ["slice", entry["id"]], ["rebuild", "weather", "--explain"], ["retry", "weather"],
    ]  # fmt: skip
    planning = [
        ["retract", entry["id"], "--reason", "x", "--explain"],
        ["export", "weather", "--window", ONE, "--to", "parquet"],
    ]
    script = """
import json, sys
from tidemill.cli.main import main
for names, commands in json.loads(sys.argv[1]):
    for command in commands:
        try:
            main(command)
        except SystemExit as left:
            assert left.code == 0, command
        heavy = set(names) & set(sys.modules)
        assert not heavy, (command, heavy)
"""
    spark = ["pyspark", "py4j"]
    wanted = [([*spark, "numba"], commands), (spark, planning)]
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(wanted)],
        cwd=built.folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_window_says_which_revision_its_dataset_was_at_an_arrival(built):
    said = built.json("window", "weather", ONE, "--as-of", "0s")
    assert (said["revision"], said["changed"], said["reaches_back_to"]) == (1, False, None)
    assert said["revisions"] == [{"revision": 1, "since": said["since"]}]
    assert "revision 1, 3 rows" in built.cli("window", "weather", ONE, "--as-of", said["since"]).out
    assert "no dataset" in built.cli("window", "weather", ONE, "--as-of", "2000-01-01T00:00:00Z").out
