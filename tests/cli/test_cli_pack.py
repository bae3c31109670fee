"""`tidemill pack` and `tidemill manifest`: the plan and what became of it, in words and as JSON; where it is
shown."""

from __future__ import annotations

import json

import pytest

from tidemill.mill import Mill
from tidemill.model.time import parse_instant
from tidemill.testing import FakeClock

pytestmark = pytest.mark.long

CONFIG = """
version: 1
streams:
  klines:
    description: one minute
    schema: {open_time: {type: integer, required: true}, close: string}
    event_time: {column: open_time, type: unixtimestamp_ms}
    gate: none
    pack: {slices: 3}
  other:
    schema: {id: string}
    identity: id
"""
FIRST = parse_instant("2024-01-15T10:00:00Z") // 1000


@pytest.fixture
def shop(cli, tmp_path, monkeypatch):
    """A project at noon in which seven slices of five rows have landed."""
    (tmp_path / "tidemill.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    clock = FakeClock(parse_instant("2024-01-15T12:00:00Z"))
    opened = Mill.open
    monkeypatch.setattr(Mill, "open", staticmethod(lambda *a, **k: opened(*a, **{**k, "clock": clock})))
    ids = []
    for number in range(7):
        rows = [{"open_time": FIRST + 60_000 * (5 * number + row), "close": "1.5"} for row in range(5)]
        stdin = "".join(json.dumps(row) + "\n" for row in rows)
        landed = cli("ingest", "klines", "-", "--format", "ndjson", "--output", "json", stdin=stdin)
        ids.append(landed.json["landed"][0]["id"])
    return ids


def test_pack_accepts_what_has_landed_and_says_what_it_packed(cli, shop):
    first, second, waits = cli("pack").out.splitlines()
    for line in (first, second):
        assert line.startswith("packed klines: 3 slices, 15 rows in 1 part, ")
        assert line.endswith(" now")
    assert waits == "klines: 1 slice waits until there are enough"
    assert cli("pack").out.splitlines() == ["nothing to pack", waits]
    assert cli("pack", "other").out == "nothing to pack\n"


def test_explain_is_the_plan_that_is_carried_out(cli, shop, monkeypatch):
    assert cli("run", "--once").code == 0
    assert cli("pack", "--rebuild", "--explain").out.splitlines()[0] == "nothing to pack"  # it is in order
    monkeypatch.setenv("TIDEMILL__STREAMS__KLINES__PACK__SLICES", "2")
    plan = cli("pack", "--rebuild", "--explain", "--output", "json").json
    assert plan["packed"] is None
    pairs = [shop[0:2], shop[2:4], shop[4:6]]
    assert [step["slices"] for step in plan["steps"]] == pairs
    assert [(step["rows"], step["days"]) for step in plan["steps"]] == [(10, ["2024-01-15"])] * 3
    assert plan["waiting"] == {"klines": 1, "other": 0}
    done = cli("pack", "--rebuild", "--output", "json").json
    assert done["steps"] == plan["steps"]
    assert [one["slices"] for one in done["packed"]] == pairs
    after = cli("manifest", "klines", "--output", "json").json
    assert [part["slice_hashes"] for part in after["parts"]] == [sorted(pair) for pair in pairs]


def test_explain_in_words_changes_nothing(cli, shop):
    with_none = cli("pack", "--explain")
    assert with_none.out.splitlines() == ["nothing to pack"]  # nothing is accepted yet
    assert cli("manifest", "klines", "--output", "json").json["parts"] == []


def test_the_manifest_is_that_of_the_seed(cli, shop):
    assert cli("run", "--once").code == 0
    output = cli("manifest", "klines", "--output", "json").json
    assert output["dataset"]["name"] == "klines"
    assert output["dataset"]["description"] == "one minute"
    assert output["dataset"]["event_time"] == "open_time"
    first, second = output["parts"]
    assert first["slice_hashes"] == sorted(shop[:3])
    assert second["slice_hashes"] == sorted(shop[3:6])
    assert (first["row_count"], second["row_count"]) == (15, 15)
    assert (first["min_open_time"], first["max_open_time"]) == (FIRST, FIRST + 14 * 60_000)
    assert first["created_at"] == "2024-01-15T12:00:00Z"
    assert json.loads(cli("manifest", "klines").out) == output


def test_a_round_says_what_it_packed(cli, shop):
    said = cli("run", "--once").out
    assert "6 slices packed, 30 rows in 2 parts" in said


def test_a_round_tells_it_as_json(cli, shop):
    rounds = [json.loads(line) for line in cli("run", "--once", "--output", "json").out.splitlines()]
    reported = [one["streams"][0]["packed"] for one in rounds if one["streams"]]
    packed = [one for one in reported if one is not None and one["groups"]]
    assert packed[0] == {"groups": 2, "slices": 6, "rows": 30, "parts": 2, "waiting": 1}


def test_status_says_what_is_packed_and_what_waits(cli, shop):
    assert cli("run", "--once").code == 0
    assert "2 packed parts, 1 fresh; 1 slice not packed yet" in cli("status").out
    raw = cli("status", "--output", "json").json["streams"][0]["raw"]
    assert (raw["packed_parts"], raw["fresh_parts"], raw["unpacked_slices"]) == (2, 1, 1)


def test_metrics_count_packs(cli, shop):
    with Mill.open() as mill:
        for report in mill.run_until_idle():
            mill.meter.tick(report)
        text = mill.meter.text()
    assert 'tidemill_packs_total{stream="klines"} 2.0' in text
    assert 'tidemill_slices_packed_total{stream="klines"} 6.0' in text
    assert 'tidemill_slices_unpacked{stream="klines"} 1.0' in text


def test_an_unknown_stream_is_an_error_with_the_choices(cli, shop):
    for command in ("pack", "manifest"):
        done = cli(command, "nothing", "--output", "json")
        assert done.code == 2
        assert "klines" in done.error["hint"]
