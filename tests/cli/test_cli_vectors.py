"""`vector`, `chain`, `deltas` and `compact`: what they print, for people and for programs."""

from __future__ import annotations

import json

import pytest

from tidemill.outputs.vectors.batches import deltas_in

pytestmark = pytest.mark.long

PROJECT = """
version: 1
streams:
  moves:
    kind: delta
    vector: {dimension: 3}
    compaction: {strategy: tiered_merge, keep_recent: 2, time_threshold: 36500d, background: false}
    schema:
      id: {type: string, required: true}
      vector_id: {type: string, required: true}
      at: {type: string, required: true}
      op: {type: string, required: true}
      values: array
      indices: array
    identity: id
    event_time: {column: at, type: iso8601}
  plain:
    schema: {a: string}
    identity: [a]
"""


@pytest.fixture
def moves(cli, tmp_path, monkeypatch):
    """A vector that was given [1, 2, 3], and had .5 added to its second component four times."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tidemill.yaml").write_text(PROJECT)
    first = {"id": "d0", "vector_id": "v", "at": "2024-01-15T10:00:00Z", "op": "replace", "values": [1, 2, 3]}
    more = [
        {
            "id": f"d{n}",
            "vector_id": "v",
            "at": f"2024-01-15T10:00:0{n}Z",
            "op": "add",
            "indices": [1],
            "values": [0.5],
        }
        for n in range(1, 5)
    ]
    lines = "".join(json.dumps(one) + "\n" for one in (first, *more))
    assert cli("ingest", "moves", "-", "--format", "ndjson", stdin=lines).code == 0
    assert cli("run", "--once").code == 0
    return cli


def test_a_vector_now_and_at_an_instant(moves):
    assert moves("vector", "moves", "v", "--output", "json").json == {
        "stream": "moves",
        "vector_id": "v",
        "at": None,
        "exists": True,
        "ts": "2024-01-15T10:00:04Z",
        "values": [1.0, 4.0, 3.0],
        "overflow": False,
        "pending": False,
    }
    then = moves("vector", "moves", "v", "--at", "2024-01-15T10:00:01.5Z", "--output", "json").json
    assert (then["at"], then["ts"], then["values"]) == (
        "2024-01-15T10:00:01.500Z", "2024-01-15T10:00:01Z", [1.0, 2.5, 3.0],
    )  # fmt: skip
    shown = moves("vector", "moves", "v").out
    assert "moves v" in shown
    assert "1.0, 4.0, 3.0" in shown


def test_a_vector_that_is_not_there_is_told_so(moves):
    done = moves("vector", "moves", "w")
    assert (done.code, "not there" in done.out, "none ever" in done.out) == (0, True, True)
    assert moves("vector", "moves", "w", "--output", "json").json["values"] is None


def test_what_is_wrong_has_a_hint(moves):
    assert moves("vector", "plain", "v").code == 2
    assert "has no vectors" in moves("vector", "plain", "v").err
    assert "kind: delta" in moves("chain", "plain", "v").err
    assert moves("vector", "moves", "v", "--at", "soon").code == 2
    assert "no delta of a vector 'w'" in moves("chain", "moves", "w").err


def test_a_chain_before_and_after_it_is_compacted(moves):
    before = moves("chain", "moves", "v", "--output", "json").json
    assert (before["merged"], before["checkpoints"], before["kept_from"]) == (0, [], None)
    assert [one["op"] for one in before["pending"]] == ["replace", "add", "add", "add", "add"]
    plan = moves("compact", "--explain", "--output", "json").json
    ((step,),) = [one["steps"] for one in plan["streams"]]
    assert (step["chains"], step["deltas"], step["reasons"]) == (1, 3, {"asked": 1})
    assert "1 by asked" in moves("compact", "moves", "--explain").out
    assert moves("chain", "moves", "v", "--output", "json").json == before  # a plan does nothing

    (done,) = moves("compact", "--output", "json").json["streams"]
    assert (done["stream"], done["chains"], done["deltas_merged"]) == ("moves", 1, 3)
    assert done["bytes_before"] > 0
    assert done["bytes_after"] > 0
    after = moves("chain", "moves", "v", "--output", "json").json
    assert (after["merged"], after["kept_from"], after["reason"]) == (3, "2024-01-15T10:00:02Z", None)
    assert [one["delta_id"] for one in after["pending"]] == ["d3", "d4"]
    (checkpoint,) = after["checkpoints"]
    assert (checkpoint["delta_id"], checkpoint["merged"], checkpoint["bytes"]) == ("d2", 3, 24)
    assert checkpoint["first_ts"] == "2024-01-15T10:00:00Z"
    assert (after["batch"]["deltas"], after["batch"]["duration"]) == (2, "1s")
    shown = moves("chain", "moves", "v").out
    assert "1 checkpoint of 3 deltas" in shown
    assert "kept from 2024-01-15T10:00:02Z" in shown

    assert moves("compact").out.strip() == "moves: nothing to compact"
    assert moves("compact", "--explain").out.strip() == "moves: nothing to compact"
    assert moves("vector", "moves", "v", "--output", "json").json["values"] == [1.0, 4.0, 3.0]
    then = moves("vector", "moves", "v", "--at", "2024-01-15T10:00:01Z", "--output", "json").json
    assert then["values"] == [1.0, 2.5, 3.0]  # before what the chain keeps


def test_many_components_are_cut_for_people(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tidemill.yaml").write_text(PROJECT.replace("dimension: 3", "dimension: 100"))
    line = {
        "id": "d",
        "vector_id": "v",
        "at": "2024-01-15T00:00:00Z",
        "op": "set",
        "indices": [0],
        "values": [0.1],
    }
    assert cli("ingest", "moves", "-", "--format", "ndjson", stdin=json.dumps(line)).code == 0
    assert cli("run", "--once").code == 0
    done = cli("vector", "moves", "v")
    assert "0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, … of 100" in done.out
    assert "--output json" in done.err
    assert len(cli("vector", "moves", "v", "--output", "json").json["values"]) == 100


def test_deltas_of_a_window_as_one_batch(moves, tmp_path):
    said = moves("deltas", "moves", "--window", "1m", "-o", "out", "--output", "json").json
    (window,) = said["windows"]
    assert (window["start"], window["end"]) == ("2024-01-15T10:00:00Z", "2024-01-15T10:01:00Z")
    assert (window["received"], window["deltas"], window["vectors"], window["duration"]) == (5, 5, 1, "4s")
    content = (tmp_path / "out" / "20240115T100000Z_1m.arrow").read_bytes()
    assert window["file"] == "out/20240115T100000Z_1m.arrow"
    assert window["bytes"] == len(content)
    assert [one.delta_id for one in deltas_in(content)] == ["d0", "d1", "d2", "d3", "d4"]
    assert "2024-01-15T10:00:00Z" in moves("deltas", "moves").out
    assert "no batches" in moves("deltas", "moves", "--from", "2025-01-01T00:00:00Z").out


def test_deltas_of_a_stream_that_has_none(moves):
    refused = moves("deltas", "plain")
    assert refused.code != 0
    assert "streams of deltas: moves" in refused.err


def test_explain_makes_nothing(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tidemill.yaml").write_text(PROJECT)
    assert "nothing to compact" in cli("compact", "--explain").out
    assert not (tmp_path / "warehouse" / "chains").exists()


def test_chains_are_made_again_from_raw(moves):
    moves("compact")
    again = moves("compact", "--rebuild", "--output", "json").json
    assert [(one["folded"], one["deltas_merged"]) for one in again["streams"]] == [(5, 3)]
