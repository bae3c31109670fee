"""`tidemill expire`: the plan in words and as JSON, what went, and where the seal is shown."""

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
  visits:
    schema: {id: {type: string, required: true}, at: {type: string, required: true}, page: string}
    event_time: {column: at, type: iso8601}
    identity: id
    metrics: {visits: {kind: counter, dimensions: [page]}}
    retention: {raw: 2d, quarantine: 7d}
  kept:
    schema: {id: string}
    identity: id
"""


@pytest.fixture
def shop(cli, tmp_path, monkeypatch):
    """A project at noon of the 15th that has an event of each of the days before, and one bad record."""
    (tmp_path / "tidemill.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    clock = FakeClock(parse_instant("2024-01-15T12:00:00Z"))
    opened = Mill.open
    monkeypatch.setattr(Mill, "open", staticmethod(lambda *a, **k: opened(*a, **{**k, "clock": clock})))
    lines = [json.dumps({"id": f"{n}", "at": f"2024-01-{n}T10:00:00Z", "page": "/"}) for n in range(10, 16)]
    cli("ingest", "visits", "-", "--format", "ndjson", stdin="\n".join([*lines, "{", ""]))
    return clock


def accept(cli, monkeypatch):
    """A round that does not look for what is old."""
    with monkeypatch.context() as patch:
        patch.setattr("tidemill.pipeline.retention.Retention.expire_due", lambda *_: [])
        assert cli("run", "--once").code == 0


def test_the_plan_says_what_goes_and_changes_nothing(cli, shop, monkeypatch):
    accept(cli, monkeypatch)
    for _ in range(2):
        said = cli("expire", "--explain")
        assert said.code == 0
        assert said.out.splitlines() == [
            "visits quarantine, kept 7d: nothing before 2024-01-08T12:00:00Z",
            next(
                line
                for line in said.out.splitlines()
                if line.startswith("visits raw, kept 2d: 3 rows in 1 file")
            ),
        ]
    plan = cli("expire", "visits", "--explain", "--output", "json").json
    assert plan["expired"] is None
    (quarantine, raw) = plan["steps"]
    assert raw.pop("bytes") > 0
    assert raw == {
        "stream": "visits", "what": "raw", "keep": "2d", "before": "2024-01-13T00:00:00Z",
        "files": 1, "rows": 3, "windows": 0, "held_by": None,
    }  # fmt: skip
    assert (quarantine["files"], quarantine["held_by"]) == (0, None)


def test_what_went_is_told_once_and_the_seal_is_shown(cli, shop, monkeypatch):
    accept(cli, monkeypatch)
    assert cli("expire").out.startswith("expired visits raw: 3 rows in 1 file, ")
    assert cli("expire").out == "nothing is old enough to go, or all of it is still needed\n"
    assert cli("expire", "kept").out == "no retention is declared: everything is kept\n"
    (status, _) = cli("status", "--output", "json").json["streams"]
    assert status["sealed_before"] == "2024-01-13T00:00:00Z"
    assert "sealed before" in cli("status").out
    explained = cli("explain", "visits", "--output", "json").json["retention"]
    assert explained == {
        "keep": {"raw": "2d", "quarantine": "7d"}, "sealed_before": "2024-01-13T00:00:00Z", "sealed": "merge",
    }  # fmt: skip
    assert "events are merged into the outputs" in " ".join(cli("explain", "visits").out.split())
    (audit, _) = cli("verify", "--output", "json").json["streams"]
    assert (audit["raw_rows"], audit["sealed_windows"]) == (3, 0)
    assert audit["sealed_tiles"] > 0
    assert "tiles sealed: raw is gone" in cli("verify").out


def test_a_round_tells_what_expired(cli, shop):
    said = cli("run", "--once")
    assert "2024-01-15T12:00:00Z expired visits raw: 3 rows in 1 file" in said.out
    shop.advance("1d")
    rounds = [json.loads(line) for line in cli("run", "--once", "--output", "json").out.splitlines()]
    assert [(step["what"], step["rows"]) for one in rounds for step in one["expired"]] == [("raw", 1)]


def test_what_holds_raw_back_is_told(cli, shop, monkeypatch):
    accept(cli, monkeypatch)
    event = json.dumps({"id": "late", "at": "2024-01-11T10:00:00Z"})
    cli("ingest", "visits", "-", "--format", "ndjson", stdin=event + "\n")
    for options in (["--explain"], []):
        assert "visits raw is held back by slice" in cli("expire", *options).out


def test_a_stream_that_is_not_declared_is_refused(cli, shop):
    said = cli("expire", "visit", "--output", "json")
    assert said.code == 2
    assert "visits" in said.error["hint"]
