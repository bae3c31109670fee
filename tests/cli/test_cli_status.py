"""What has landed, before anything was accepted: text and JSON of every command that looks."""

from __future__ import annotations

import pytest

from tidemill.storage.sessions import OpenSession, SessionFile

OUTCOMES = ("records", "accepted", "duplicate", "conflict", "rejected", "late")
LOOKING = [
    ["types"],
    ["version"],
    ["status"],
    ["ledger"],
    ["ledger", "requests", "--status", "failed"],
    ["ledger", "requests", "--status", "retracted"],
    ["metrics"],
    ["late", "requests"],
    ["explain", "requests"],
    ["windows"],
    ["windows", "--state", "failed"],
    ["datasets"],
    ["quarantine", "requests"],
    ["query", "SELECT count FROM requests"],
    ["query", "EXPLAIN SELECT count FROM requests INTERVAL 30s"],
    ["catalog", "-q"],
    ["expire", "--explain"],
]


@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
def test_json_is_one_document_and_text_is_none(cli, landed, command):
    assert isinstance(cli(*command, "--output", "json").json, dict)
    text = cli(*command)
    assert (text.code, text.err) == (0, "")
    assert not text.out.startswith("{")


def pending(landed):
    size = sum((landed / "data" / f"requests-{n}.ndjson").stat().st_size for n in (1, 2))
    return {
        "what": "landed",
        "count": 2,
        "records": None,
        "bytes": size,
        "detail": f"2 slices have landed ({size:,} bytes) and are not accepted yet",
        "remedy": "The next round accepts them: `tidemill run --once`",
    }


def test_status_of_pending_slices(cli, landed):
    assert cli("status", "--output", "json").json["streams"] == [
        {
            "stream": "requests",
            "faults": [],
            "slices": {"pending": 2, "accepted": 0, "failed": 0, "retracted": 0},
            "landings": 2,
            "bytes": sum((landed / "data" / f"requests-{n}.ndjson").stat().st_size for n in (1, 2)),
            "counts": dict.fromkeys(OUTCOMES, 0) | {"rejects": {}},
            "watermark": None,
            "lag": None,
            "time": "event",
            "max_seen": None,
            "buffer": {"rows": 0, "bytes": 0},
            "late_dropped": 0,
            "watermarks_emitted": 0,
            "skew_rejected": 0,
            "released_early": 0,
            "sources": [],
            "retry_at": None,
            "manifests": {},
            "raw": {
                "rows": 0, "parts": 0, "packed_parts": 0, "fresh_parts": 0, "unpacked_slices": 0,
                "stale_parts": 0, "stale_rows": 0,
            },
            "quarantine": {"rows": 0},
            "index": None,
            "chains": None,
            "sealed_before": None,
            "tiles": {},
            "stale_tiles": 0,
            "pending": [pending(landed)],
            "windows": {"waiting": 0, "queued": 0, "building": 0, "built": 0, "failed": 0},
            "outdated_windows": 0,
            "queue": 0,
        }
    ]  # fmt: skip
    shown = cli("status").out
    assert "2 pending, 0 accepted, 0 failed" in shown
    assert "none yet" in shown
    assert "bytes) and are not accepted yet. The next round accepts them: `tidemill run --once`." in shown


def test_status_links_the_spark_sessions_of_processes_that_live(cli, landed):
    file = SessionFile(landed / "warehouse")
    file.open(OpenSession(7, "local[2]", "http://127.0.0.1:4040"))
    shown = cli("status")
    found = cli("status", "--output", "json").json["spark"]
    file.close()
    assert found == [{"pid": 7, "master": "local[2]", "ui": "http://127.0.0.1:4040"}]
    assert "http://127.0.0.1:4040" in shown.out
    assert cli("status", "--output", "json").json["spark"] == []
    assert "4040" not in cli("status").out


def test_ledger_is_newest_first_and_says_when_there_is_more(cli, landed):
    whole = cli("ledger", "--output", "json").json
    assert [entry["name"] for entry in whole["slices"]] == ["requests-2.ndjson", "requests-1.ndjson"]
    assert whole["more"] is False
    some = cli("ledger", "--limit", "1", "--output", "json").json
    assert [entry["seq"] for entry in some["slices"]] == [2]
    assert some["more"] is True
    assert "the newest 1; --limit 0 shows all" in cli("ledger", "--limit", "1").err
    assert len(cli("ledger", "--limit", "0", "--output", "json").json["slices"]) == 2
    assert cli("ledger", "--limit", "1", "-q").err == ""


def test_one_entry_in_full_by_the_start_of_its_id(cli, landed):
    (_, first) = cli("ledger", "--output", "json").json["slices"]
    assert cli("slice", first["id"][:6], "--output", "json").json == {
        **first,
        "windows": [],
        "windows_total": 0,
    }
    assert (first["seq"], first["stream"], first["status"], first["format"], first["codec"]) == (
        1, "requests", "pending", "ndjson", "none",
    )  # fmt: skip
    shown = cli("slice", first["id"][:6]).out
    assert first["id"] in shown
    assert first["path"] in shown


def test_a_query_of_nothing_has_its_facts(cli, landed):
    answer = cli("query", "SELECT count FROM requests GROUP BY region", "--output", "json").json
    assert (answer["columns"], answer["rows"]) == (["region", "count"], [])
    assert answer["completeness"] == {
        "complete": False,
        "complete_through": None,
        "as_of": None,
        "watermark": None,
        "data": None,
        "missing": [],
        "pending": [pending(landed)],
    }


def test_wide_output_is_neither_cut_nor_wrapped_where_there_is_no_terminal(cli, project):
    name = "n" * 150 + ".ndjson"
    (project / name).write_text('{"a":1}\n')
    cli("ingest", "requests", name)
    assert any(line.rstrip().endswith(name) for line in cli("ledger").out.splitlines())
