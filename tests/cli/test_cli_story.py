"""The story of `init` from its first step to its last, and what each command says of it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from decimal import Decimal
from functools import partial
from pathlib import Path

import pytest

import tidemill.mill
from tidemill.cli.project import STEPS
from tidemill.mill import Mill


@pytest.fixture
def on_spark(spark, monkeypatch):
    """Commands use the shared session, as they would one that is handed in."""
    monkeypatch.setattr(Mill, "open", partial(Mill.open, spark=spark))
    monkeypatch.setattr(tidemill.mill, "recover", partial(tidemill.mill.recover, spark=spark))


@pytest.fixture
def milled(cli, landed, on_spark):
    """The project with its two slices accepted."""
    assert cli("run", "--once").code == 0
    return landed


def test_the_next_steps_of_init_all_work(cli, project, on_spark):
    outs = {}
    for command, _ in STEPS:
        name, *arguments = shlex.split(command)
        assert name == "tidemill"
        done = cli(*arguments)
        assert done.code == 0, (command, done)
        outs[command] = done.out
    first, late = (out for command, out in outs.items() if "run --once" in command)
    assert re.search(
        r"requests: 2 slices, 387 records: 380 accepted, 1 duplicate, 1 conflict, 5 rejected; ", first
    )
    assert re.search(r"requests: 1 slice, 40 records: 40 accepted \(40 late\)", late)
    assert re.search(r"^ +5s \S+Z  revision 2, \d+ rows: late: ", late, flags=re.MULTILINE)
    assert "recomputed: equal" in outs["tidemill verify"]


def test_run_tells_in_json_what_it_did(cli, landed, on_spark):
    (line,) = cli("run", "--once", "--output", "json").out.splitlines()
    (tick,) = json.loads(line)["streams"]
    assert tick["batch"]["slices"] == 2
    assert tick["batch"]["counts"] == {
        "records": 387, "accepted": 380, "duplicate": 1, "conflict": 1, "rejected": 5, "late": 0,
        "rejects": {"malformed": 1, "missing_field": 1, "skew": 1, "unknown_type": 1, "wrong_type": 1},
    }  # fmt: skip
    assert list(tick["tiles"]) == ["5s", "1m", "1h", "1d", "7d"]
    assert "rebuilt" not in tick
    assert cli("run", "--once", "--output", "json").out == ""  # nothing left to do
    cli("ingest", "requests", "data/requests-late.ndjson")
    (verbose,) = cli("run", "--once", "--output", "json", "-v").out.splitlines()
    rebuilt = json.loads(verbose)["streams"][0]["rebuilt"]
    assert {tile["revision"] for tile in rebuilt} == {2}
    assert [tile["level"] for tile in rebuilt][-3:] == ["1h", "1d", "7d"]


def test_status_of_what_was_accepted(cli, milled):
    (stream,) = cli("status", "--output", "json").json["streams"]
    assert stream["slices"] == {"pending": 0, "accepted": 2, "failed": 0, "retracted": 0}
    assert stream["counts"]["rejects"] == {
        "malformed": 1, "missing_field": 1, "skew": 1, "unknown_type": 1, "wrong_type": 1,
    }  # fmt: skip
    assert stream["raw"]["rows"] == 380
    assert stream["quarantine"] == {"rows": 6}
    assert stream["stale_tiles"] == 0
    assert [source["source"] for source in stream["sources"]] == ["file"]
    shown = cli("status").out
    assert "387 records: 380 accepted, 1 duplicate, 1 conflict, 5 rejected" in shown
    assert "malformed 1, missing_field 1, skew 1, unknown_type 1, wrong_type 1" in shown
    assert re.search(r"watermark +\S+Z, \w+ behind now", shown)


def test_query_in_json_is_exact_and_says_where_it_is_from(cli, milled):
    ask = "SELECT count, sum(latency_ms) AS total FROM requests USING ROLLUP 1h GROUP BY region"
    answer = json.loads(cli("query", ask, "--all-tenants", "--output", "json").out, parse_float=Decimal)
    assert answer["columns"] == ["bucket", "region", "count", "total"]
    assert answer["level"] == "1h"
    assert sum(row["count"] for row in answer["rows"]) == 380
    lines = [json.loads(line, parse_float=Decimal) for line in whole_lines(milled)]
    assert sum(Decimal(row["total"]) for row in answer["rows"]) == sum(
        Decimal(e["latency_ms"]) for e in lines
    )
    one = json.loads(cli("query", ask, "--tenant", "acme", "--output", "json").out)
    assert sum(row["count"] for row in one["rows"]) == sum(event["tenant"] == "acme" for event in lines)
    shown = cli("query", ask, "--all-tenants").out
    assert re.search(r"rows from level 1h; \d+ rows in \d files? read; version \d", shown)
    assert re.search(
        r"Complete through \S+Z; later data may still arrive. Includes what arrived up to \S+Z.", shown
    )


def whole_lines(project: Path) -> list[str]:
    """Of the sample, the 380 that are accepted."""
    files = (project / "data" / f"requests-{number}.ndjson" for number in (1, 2))
    lines = [
        line for file in files for line in file.read_text().splitlines() if '"event_id":"bad-' not in line
    ]
    return list({json.loads(line)["event_id"]: line for line in reversed(lines)}.values())


def test_series_come_as_lists(cli, milled):
    ask = "SELECT count FROM requests INTERVAL 10m GROUP BY region FORMAT series"
    rows = cli("query", ask, "--all-tenants", "--output", "json").json["rows"]
    assert sorted(row["region"] for row in rows) == ["ap", "eu", "us"]
    assert all(len(row["bucket"]) == len(row["count"]) for row in rows)
    assert rows[0]["bucket"][0].endswith("Z")


def test_quarantine_by_reason_and_by_slice(cli, milled):
    whole = cli("quarantine", "requests", "--output", "json").json
    assert [record["reason"] for record in whole["records"]] == [
        "malformed", "unknown_type", "wrong_type", "skew", "missing_field", "conflict",
    ]  # fmt: skip
    (one,) = cli("quarantine", "requests", "--reason", "malformed", "--output", "json").json["records"]
    assert one["line"] == 21
    assert one["payload"].startswith('{"event_id":"bad-0"')
    first = cli("ledger", "--output", "json").json["slices"][1]["id"]
    assert cli("quarantine", "requests", "--slice", first[:8], "--output", "json").json["records"] == []
    assert "nothing in quarantine" in cli("quarantine", "requests", "--slice", first[:8]).out
    named = {record["tenant"] for record in whole["records"]} - {None}
    for tenant in sorted(named):
        theirs = cli("quarantine", "requests", "--tenant", tenant, "--output", "json").json["records"]
        assert theirs == [record for record in whole["records"] if record["tenant"] == tenant]
    assert len(named) > 1
    limited = cli("quarantine", "requests", "--limit", "2", "--output", "json").json
    assert (len(limited["records"]), limited["more"]) == (2, True)
    wrong = cli("quarantine", "requests", "--reason", "ugly")
    assert wrong.code == 2
    assert "malformed" in wrong.err


def test_replay_lands_what_was_rejected_for_another_judgement(cli, milled):
    text = (milled / "tidemill.yaml").read_text("utf-8")
    (milled / "tidemill.yaml").write_text(text.replace("allowed: [request]", "allowed: [request, heartbeat]"))
    landed = cli("quarantine", "requests", "--reason", "unknown_type", "--replay", "--output", "json").json
    assert [slice_["source"] for slice_ in landed["replayed"]] == ["replay"]
    assert cli("run", "--once").code == 0
    assert cli("quarantine", "requests", "--reason", "unknown_type", "--output", "json").json["records"] == []
    assert cli("status", "--output", "json").json["streams"][0]["raw"]["rows"] == 381
    again = cli("quarantine", "requests", "--reason", "unknown_type", "--replay")
    assert (again.code, again.out) == (0, "nothing in the quarantine of requests to replay\n")


def test_verify_says_what_differs_and_leaves_with_1(cli, milled):
    entry = cli("ledger", "--output", "json").json["slices"][0]
    with (milled / "warehouse" / entry["path"]).open("ab") as file:
        file.write(b"\n")
    done = cli("verify", "requests", "--output", "json")
    assert done.code == 1
    assert done.json["ok"] is False
    (finding,) = done.json["findings"]
    assert (finding["stream"], finding["what"], finding["where"]) == ("requests", "slice", entry["id"])
    assert finding["difference"].startswith("its bytes are not those that landed")
    text = cli("verify")
    assert text.code == 1
    assert "recomputed: 1 difference" in text.out
    assert entry["id"] in text.out
    assert cli("verify", "nope").code == 2


def test_recover_after_the_state_is_lost(cli, landed, on_spark):
    tiles = cli("run", "--once", "--output", "json").json["streams"][0]["tiles"]
    before = cli("ledger", "--output", "json").json
    (landed / "warehouse" / "state.db").unlink()
    assert cli("status").code == 3
    found = cli("recover", "--output", "json").json
    assert (found["slices"], found["batches"], found["tiles"]) == (2, 1, sum(tiles.values()))
    assert cli("ledger", "--output", "json").json == before


def test_looking_at_what_was_accepted_imports_neither_spark_nor_numba(milled):
    script = """
import sys
from tidemill.cli.main import main
query = ["query", "SELECT count FROM requests INTERVAL 1m", "--all-tenants"]
search = ["search", "requests", "SINCE 2h", "--all-tenants"]
for command in (["status"], ["quarantine", "requests"], query, search, ["catalog"]):
    try:
        main(command)
    except SystemExit as left:
        assert left.code == 0
assert not {"pyspark", "py4j", "numba"} & set(sys.modules), [m for m in sys.modules if "numba" in m][:1]
"""
    subprocess.run(
        [sys.executable, "-c", script], cwd=milled, check=True, capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip


def test_a_project_can_be_moved(cli, milled, tmp_path, monkeypatch):
    shutil.move(milled, tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    assert cli("-p", "moved", "status", "--output", "json").json["streams"][0]["raw"]["rows"] == 380
