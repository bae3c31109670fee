"""`ingest --manifest`: what is complete lands, what waits is counted, and nothing else is asked for."""

from __future__ import annotations

import json
import re

import pytest

CONFIG = """
version: 1
streams:
  klines:
    manifests: [feed/manifest.json]
    json: {columns: [open_time, close]}
    schema: {open_time: {type: integer, required: true}, close: string}
    event_time: {column: open_time, type: unixtimestamp_ms}
    gate: none
"""


def entry(number, status="ok"):
    start = 1705276800000 + number * 60000
    return {"hash": f"h{number}", "status": status, "start_ms": start, "end_ms": start + 60000}


@pytest.fixture
def feed(tmp_path, monkeypatch):
    """A feed of three, of which two are complete; in the current folder, which is a project."""
    (tmp_path / "tidemill.yaml").write_text(CONFIG)
    folder = tmp_path / "feed"
    (folder / "responses").mkdir(parents=True)
    for number in range(2):
        (folder / "responses" / f"h{number}.json").write_text(f'[[{entry(number)["start_ms"]},"1.5"]]')
    (folder / "manifest.json").write_text(json.dumps({"slices": [entry(0), entry(1), entry(2, "partial")]}))
    monkeypatch.chdir(tmp_path)
    return folder


def test_what_is_complete_lands_by_its_hash_and_the_rest_is_counted(cli, feed):
    done = cli("ingest", "klines", "--manifest", "feed/manifest.json")
    assert done.code == 0
    first, second = done.out.splitlines()
    assert re.fullmatch(r"landed  [0-9a-f]{12}\s+23 B  h0", first)
    assert re.fullmatch(r"landed  [0-9a-f]{12}\s+23 B  h1", second)
    assert done.err.splitlines()[-1] == "0 had landed before; waiting: 1 partial"
    again = cli("ingest", "klines", "--manifest", "feed")
    assert (again.code, again.out) == (0, "")
    assert again.err.splitlines()[-1] == "2 had landed before; waiting: 1 partial"


def test_json_has_the_entries_and_what_was_refused(cli, feed):
    (feed / "responses" / "h1.json").unlink()
    done = cli("ingest", "klines", "--manifest", "feed", "--manifest", "nowhere", "--output", "json")
    assert done.code == 1
    (one,) = done.json["landed"]
    assert (one["name"], one["source"], one["metadata"]) == (
        "h0",
        "manifest",
        {"dataset": {}, "slice_hash": "h0"},
    )
    assert [refused["name"] for refused in done.json["refused"]] == ["h1", "nowhere"]


def test_a_conflict_beside_what_had_landed_is_1_and_a_manifest_that_is_none_is_2(cli, feed):
    assert cli("ingest", "klines", "--manifest", "feed").code == 0
    (feed / "responses" / "h0.json").write_text("[]")
    output = cli("ingest", "klines", "--manifest", "feed")
    assert output.code == 1
    assert "hash h0 has other bytes than when it was sealed" in output.err
    (feed / "manifest.json").write_text("[]")
    assert cli("ingest", "klines", "--manifest", "feed").code == 2


@pytest.mark.parametrize(
    "extra",
    [["a.json"], ["--start", "2024-01-15"], ["--end", "2024-01-16"], ["--empty"], ["--format", "json"],
     ["--source", "x"]],
)  # fmt: skip
def test_the_manifest_says_all_of_it(cli, feed, extra):
    done = cli("ingest", "klines", *extra, "--manifest", "feed", "--output", "json")
    assert done.code == 2
    assert "--manifest cannot be combined with" in done.error["message"]


def test_status_counts_what_the_manifests_list(cli, feed):
    assert cli("status", "--output", "json").json["streams"][0]["manifests"] == {"ok": 2, "partial": 1}
    assert re.search(r"manifests +2 ok, 1 partial", cli("status").out)
