"""Whether the server lives and can take events; and how it says that something went wrong."""

from __future__ import annotations

import json
from time import monotonic

from tidemill.ingest.gateway.damaged_logs import set_aside
from tidemill.ingest.gateway.log_replay import BadBytes
from tidemill.model.errors import DamageError, StorageError
from tidemill.storage.state.faults import RoundFaults


def test_a_server_that_lives_and_is_ready(served):
    assert served.http.get("/healthz").json() == {"status": "ok"}
    ready = served.http.get("/readyz")
    assert ready.status_code == 200
    checks = ("warehouse", "state", "log", "memory", "tokens", "landing", "pipeline", "queues")
    assert ready.json() == dict.fromkeys(("status", *checks, "streams", "damage"), "ok")
    assert not list(served.mill.project.warehouse.glob(".ready-*"))


def test_a_damaged_log_is_named_and_keeps_nobody_from_sending(served):
    warehouse = served.mill.project.warehouse
    segment = warehouse / "wal" / "0123456789ab" / "00000001.wal"
    segment.parent.mkdir(parents=True)
    segment.write_bytes(b"some damaged bytes")
    set_aside(warehouse, [BadBytes(segment, 5, 12, "no frame checks out")])
    ready = served.http.get("/readyz")
    assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
    assert ready.json()["damage"].startswith("1 damaged stretches of logs")
    (named,) = served.http.get("/v1/status").json()["ingest"]["damaged_logs"]
    assert named == {
        "file": "_damaged/wal/0123456789ab/00000001.wal.5",
        "reason": "bytes 5 to 12 of wal/0123456789ab/00000001.wal: no frame checks out",
    }
    assert (warehouse / named["file"]).read_bytes() == b"damaged"
    assert "tidemill_gateway_damaged_stretches 1.0" in served.http.get("/metrics").text


def test_without_memory_it_is_not_ready_and_says_what_fails_only(served):
    memory = served.gateway.memory
    allowed = memory.usage()["requests"][1]
    memory.allocate("requests", int(allowed * 0.94))
    assert served.http.get("/readyz").status_code == 200
    refused = served.send("requests", served.request("a"))
    assert (refused.status_code, refused.json()["code"]) == (429, "overloaded")
    assert refused.headers["retry-after"] == "1"
    memory.release("requests", int(allowed * 0.94))
    assert served.send("requests", served.request("a")).status_code == 202


def test_a_state_that_does_not_answer_is_told_without_its_place(served, monkeypatch):
    def gone():
        raise StorageError("cannot read: No such file", where="/secret/place", hint="look")

    monkeypatch.setattr(served.mill.state, "landings", gone)
    answer = served.http.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["failing"] == ["state"]
    assert "secret" not in answer.text
    assert served.http.get("/healthz").status_code == 200


def test_an_address_nobody_knows_is_404(served):
    answer = served.http.get("/nothing")
    assert answer.status_code == 404
    assert answer.json() == {
        "type": "urn:tidemill:problem:not_found",
        "title": "Not found",
        "status": 404,
        "detail": "Not Found",
        "instance": "/nothing",
        "code": "not_found",
        "hint": "GET /openapi.json lists every address",
        "where": "",
        "retry": "never",
    }
    assert served.http.get("/docs").status_code == 404
    assert served.http.get("/redoc").status_code == 404


def test_a_method_that_is_none_of_its_address_is_405(served):
    answer = served.http.put("/v1/streams/requests/events", json={})
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    assert answer.json()["code"] == "method"


def test_a_fault_of_the_server_is_500_and_says_nothing_of_it(served, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(served.gateway, "submit", broken)
    answer = served.send("requests", served.request("a"))
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "internal"
    assert "secret" not in answer.text
    assert served.gateway.memory.usage()["requests"][0] == 0


def test_a_disk_that_is_full_is_503_without_the_place(served, monkeypatch):
    def full(submission, done, sender):
        done(StorageError("cannot write: No space left on device", where="/secret", hint="free some space"))

    monkeypatch.setattr(served.gateway, "submit", full)
    answer = served.send("requests", served.request("a"))
    assert answer.status_code == 503
    assert (answer.json()["code"], answer.json()["hint"]) == ("storage", "free some space")
    assert answer.headers["retry-after"] == "5"
    assert "secret" not in json.dumps(answer.json())
    assert served.http.get("/readyz").json()["failing"] == ["log"]
    monkeypatch.undo()
    assert served.send("requests", served.request("a")).status_code == 202
    assert served.http.get("/readyz").status_code == 200


def test_a_stream_that_fails_makes_the_server_degraded_and_names_no_stream(served):
    mill = served.mill
    faults = RoundFaults(mill.state, mill.warehouse.root, mill.clock(), mill.workers.fault_memory)
    faults.record(
        "requests", "rollups", DamageError("the file is missing", where="rollups/requests/a.parquet")
    )
    ready = served.http.get("/readyz")
    assert ready.status_code == 200
    assert ready.json()["status"] == "degraded"
    assert ready.json()["streams"].endswith("cannot be worked on (damaged)")
    assert "requests" not in ready.text


def test_what_does_not_land_and_a_pipeline_that_stalls_fail_readiness_with_the_reason(served, monkeypatch):
    monkeypatch.setattr(served.gateway, "_land_all", lambda: None)  # it does not try now
    monkeypatch.setattr(served.gateway, "stuck_since", monotonic() - 11)
    monkeypatch.setattr(served.mill.pulse, "stall", lambda: "no round has finished for 5m")
    monkeypatch.setattr(served.mill.pulse, "stuck_queue", lambda: "none of 2 queued windows was built for 5m")
    answer = served.http.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["failing"] == ["landing", "pipeline", "queues"]
    assert answer.json()["reasons"]["pipeline"] == "no round has finished for 5m"
    monkeypatch.undo()
    assert served.http.get("/readyz").status_code == 200
