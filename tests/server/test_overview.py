"""All streams at a glance: numbers that a loop over what was sent gives, and events when they change."""

from __future__ import annotations

import json

import pytest
from tests.support.served_project import PROJECT

from tidemill.server.overview_routes import EVERY

pytestmark = pytest.mark.long


def stream(found, name):
    return next(one for one in found["streams"] if one["stream"] == name)


def test_it_counts_what_was_sent(serving):
    served = serving(text=PROJECT)
    sent = [served.request(f"e{n}", n) for n in range(5)]
    served.send("requests", [*sent, sent[0], {**sent[1], "status": 500}, {"event_id": "bad", "ts": "never"}])
    served.settle()
    found = stream(served.http.get("/v1/overview").json(), "requests")
    assert found["outcomes"] == {"accepted": 5, "duplicate": 1, "conflict": 1, "rejected": 1, "late": 0}
    assert found["rejects"] == {"bad_time": 1}
    assert found["slices"] == {"pending": 0, "accepted": 1, "failed": 0, "retracted": 0}
    assert found["rate"] == {"per_second": round(5 / 60, 3), "over": "1m"}
    assert found["watermark"] == "2026-01-05T10:00:04Z"
    assert sum(found["windows"].values()) == 1
    assert found["freshness"] == {"rollups": "2026-01-05T10:00:05Z", "datasets": "2026-01-05T11:00:00Z"}
    assert (found["stale_tiles"], found["problems"]) == (0, [])
    assert stream(served.http.get("/v1/overview").json(), "bare")["watermark"] is None


def test_a_slice_that_cannot_be_read_is_a_problem_with_its_remedy(serving):
    served = serving(text=PROJECT)
    landed = served.mill.land("requests", json.dumps(served.request("e1")).encode())
    (served.mill.project.warehouse / landed.entry.slice.path).unlink()
    served.tick()
    (problem,) = stream(served.http.get("/v1/overview").json(), "requests")["problems"]
    assert problem["what"] == "failed_slices"
    assert "tidemill ledger requests --status failed" in problem["remedy"]


def test_events_come_at_once_and_when_something_changes(serving, monkeypatch):
    monkeypatch.setattr("tidemill.server.overview_routes.EVERY", 0.02)
    served = serving(text=PROJECT)
    with served.http.stream("GET", "/v1/overview/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        document = (json.loads(line[6:]) for line in lines if line.startswith("data: "))
        assert stream(next(document), "requests")["outcomes"]["accepted"] == 0
        served.send("requests", [served.request("e1")])
        served.settle()
        seen = []
        for found in document:
            seen.append(stream(found, "requests")["outcomes"]["accepted"])
            if seen[-1]:
                break
        assert seen[-1] == 1


def test_a_change_that_nobody_rings_for_is_looked_for_within_a_second():
    assert 2 * EVERY < 1  # the pause after a look, and the wait for a ring


def test_of_a_shared_stream_a_tenant_hears_what_its_own_events_say(serving):
    served = serving(text=PROJECT)
    mine = {"event_id": "a", "ts": "2024-01-15T10:00:01Z", "tenant": "acme"}
    theirs = [{"event_id": f"g{n}", "ts": "2024-01-15T11:00:00Z", "tenant": "globex"} for n in range(3)]
    lines = [mine, mine, {**mine, "ts": "2024-01-15T10:00:02Z"}, *theirs]
    served.mill.land("shared", "\n".join(map(json.dumps, lines)).encode(), name="both", source="test")
    served.settle()
    found = served.http.get("/v1/overview", headers=served.token("read", tenant="acme")).json()
    assert [one["stream"] for one in found["streams"]] == ["requests", "shared", "bare"]
    shared = stream(found, "shared")
    assert shared["outcomes"] == {"accepted": 1, "conflict": 1, "rejected": 0}
    assert shared["watermark"].startswith("2024-01-15T10:00:0")  # and not what globex has sent since
    assert shared["rate"]["per_second"] == round(1 / 60, 3)
    assert shared["not_known"] == ["duplicate", "late", "slices", "windows"]
    assert not {"slices", "windows", "stale_tiles"} & set(shared)
    assert "outcomes" in stream(found, "requests")
