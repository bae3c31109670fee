"""Events over HTTP: what is answered at once, what to those who wait, and what can be asked afterwards."""

from __future__ import annotations

import json
import threading

import pytest
from tests.support.patience import PATIENCE

from tidemill.mill import monotonic_clock
from tidemill.model.time import parse_instant
from tidemill.testing import SteppableClock

NDJSON = {"Content-Type": "application/x-ndjson"}
WAIT = {"wait": "1"}


def test_what_is_acknowledged_is_durable_and_known_by_its_ingestion(served):
    answer = served.send("requests", served.request("a"))
    assert answer.status_code == 202
    document = answer.json()
    assert document == {
        "ingestion": document["ingestion"],
        "stream": "requests",
        "events": 1,
        "status": "durable",
    }
    assert answer.headers["location"] == f"/v1/ingestions/{document['ingestion']}"
    served.settle()
    after = served.http.get(answer.headers["location"]).json()
    assert after == {
        "ingestion": document["ingestion"],
        "stream": "requests",
        "status": "decided",
        "slice": served.mill.ledger("requests")[0].id,
        "window": after["window"],
        "events": 1,
        "counts": {"accepted": 1},
        "outcomes": [
            {
                "index": 0,
                "event_id": "a",
                "outcome": "accepted",
                "code": None,
                "detail": None,
                "content_hash": None,
                "accepted_hash": None,
            }
        ],
    }


def test_before_it_lands_an_ingestion_is_buffered_and_then_landed(serving):
    served = serving(text=SLOW)
    where = served.send("requests", served.request("a")).headers["location"]
    buffered = served.http.get(where).json()
    assert (buffered["status"], buffered["slice"], buffered["counts"]) == ("buffered", None, None)
    served.gateway.hurry(where.rpartition("/")[2])
    served.landed.wait(PATIENCE)
    landed = served.http.get(where).json()
    assert (landed["status"], landed["counts"], landed["outcomes"]) == ("landed", None, None)
    served.tick()
    assert served.http.get(where).json()["status"] == "decided"


def test_who_waits_is_told_each_outcome(served):
    with served.ticking():
        first = served.send("requests", [served.request("a"), served.request("b")], params=WAIT)
        again = served.send("requests", served.request("a"), params=WAIT)
    assert first.status_code == 200
    assert first.json()["counts"] == {"accepted": 2}
    assert [(o["index"], o["event_id"]) for o in first.json()["outcomes"]] == [(0, "a"), (1, "b")]
    assert again.status_code == 200
    assert again.json()["counts"] == {"duplicate": 1}
    assert again.headers["preference-applied"] == "wait"


def test_a_conflict_is_409_with_both_hashes(served):
    with served.ticking():
        served.send("requests", served.request("a"), params=WAIT)
        answer = served.send("requests", served.request("a", status=500), params=WAIT)
    assert answer.status_code == 409
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert document["type"] == "urn:tidemill:problem:conflict"
    assert document["counts"] == {"conflict": 1}
    (outcome,) = document["outcomes"]
    assert outcome["code"] == "conflict"
    assert outcome["content_hash"] != outcome["accepted_hash"]
    assert len(outcome["content_hash"]) == len(outcome["accepted_hash"]) == 16
    assert document["ingestion"] == answer.headers["location"].rpartition("/")[2]


def test_only_rejected_is_422_with_a_code_for_each(served):
    bad = [served.request("a", ts="yesterday"), {"ts": "2026-01-05T10:00:00Z"}]
    with served.ticking():
        answer = served.send("requests", bad, params=WAIT)
    assert answer.status_code == 422
    document = answer.json()
    assert (document["code"], document["counts"]) == ("rejected", {"rejected": 2})
    assert [o["code"] for o in document["outcomes"]] == ["bad_time", "missing_id"]


def test_mixed_outcomes_are_207_in_the_order_they_were_sent(served):
    with served.ticking():
        served.send("requests", served.request("old"), params=WAIT)
        body = b"\n".join(
            [
                json.dumps(served.request("new")).encode(),
                b"no json at all",
                json.dumps(served.request("old", status=404)).encode(),
                json.dumps(served.request("old")).encode(),
                json.dumps(served.request("new")).encode(),
            ]
        )
        answer = served.http.post(
            "/v1/streams/requests/events", content=body, headers=NDJSON | {"Prefer": "wait=20"}
        )
    assert answer.status_code == 207
    document = answer.json()
    assert [o["outcome"] for o in document["outcomes"]] == [
        "accepted",
        "rejected",
        "conflict",
        "duplicate",
        "duplicate",
    ]
    assert document["counts"] == {"accepted": 1, "rejected": 1, "conflict": 1, "duplicate": 2}
    assert document["outcomes"][1]["code"] == "malformed"
    counted = served.http.get(answer.headers["location"], params={"outcomes": 0}).json()
    assert (counted["counts"], counted["outcomes"]) == (document["counts"], None)


def test_when_the_time_is_up_it_is_pending_and_durable(served):
    answer = served.send("requests", served.request("a"), headers={"Prefer": "wait=0.05"})
    assert answer.status_code == 202
    assert answer.json()["status"] == "pending"
    served.settle()
    assert served.http.get(answer.headers["location"]).json()["counts"] == {"accepted": 1}


def test_the_longest_wait_is_set_by_the_server(serving):
    served = serving(gateway="requests: {wait: 50ms}")
    answer = served.send("requests", served.request("a"), headers={"Prefer": "wait=3600"})
    assert (answer.status_code, answer.json()["status"]) == (202, "pending")


def test_preferences_that_are_not_understood_are_passed_over(served):
    headers = {"Prefer": "respond-async, wait=soon, handling=lenient"}
    answer = served.send("requests", served.request("a"), headers=headers)
    assert (answer.status_code, answer.json()["status"]) == (202, "durable")


def test_a_server_that_stops_lets_nobody_wait(served):
    answers = []
    sender = threading.Thread(
        target=lambda: answers.append(served.send("requests", served.request("a"), params=WAIT))
    )
    sender.start()
    while served.gateway.status().acknowledged == 0:
        served.http.get("/healthz")
    served.service.stop()
    sender.join()
    assert (answers[0].status_code, answers[0].json()["status"]) == (202, "pending")


def test_many_who_wait_are_all_told(served):
    answers = {}

    def one(name: str) -> None:
        answers[name] = served.send("requests", served.request(name), params=WAIT).json()["counts"]

    senders = [threading.Thread(target=one, args=(f"e{n}",)) for n in range(20)]
    with served.ticking():
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
    assert answers == {f"e{n}": {"accepted": 1} for n in range(20)}


def test_the_same_bytes_again_are_duplicates_for_who_sent_them_again(served):
    with served.ticking():
        counts = [
            served.send("requests", served.request("a"), params=WAIT).json()["counts"] for _ in range(3)
        ]
    assert counts == [{"accepted": 1}, {"duplicate": 1}, {"duplicate": 1}]


def test_each_source_has_its_own_slices(served):
    for source in ("http", "eu-1", "us:2"):
        sent = served.send("requests", served.request(source.replace(":", "")), params={"source": source})
        assert sent.status_code == 202
    served.settle()
    assert sorted(entry.slice.source for entry in served.mill.ledger("requests")) == ["eu-1", "http", "us:2"]


@pytest.mark.parametrize("source", ["", "-x", "a b", "x" * 101, "é", "../x"])
def test_a_source_that_cannot_be_a_name_is_refused(still, source):
    answer = still.send("requests", still.request("a"), params={"source": source})
    assert answer.status_code == 400
    assert (answer.json()["code"], answer.json()["where"]) == ("input", "source")


def test_wait_is_one_or_zero(still):
    answer = still.send("requests", still.request("a"), params={"wait": "perhaps"})
    assert answer.status_code == 400
    assert answer.json()["hint"] == "use 1 or 0"


@pytest.mark.parametrize("name", ["nothing", "0000deadbeef-1", "0000deadbeef-", "-", "%2e%2e"])
def test_an_ingestion_nobody_knows_is_404(still, name):
    answer = still.http.get(f"/v1/ingestions/{name}")
    assert answer.status_code == 404
    assert answer.json()["code"] == "not_found"


def test_a_stream_that_is_not_declared_is_404_and_the_others_are_named(still):
    answer = still.send("nothing", still.request("a"))
    assert answer.status_code == 404
    assert answer.json()["hint"] == "streams: requests, events, logs, traces"


def test_events_of_a_retracted_slice_that_are_sent_again_count(served):
    """What is posted as events is a new act each time, waited for or not: nobody is told that it is durable
    and then never sees it counted."""
    with served.ticking():
        sent = served.send("requests", served.request("a"), params=WAIT)
    served.mill.retract(served.mill.plan_retraction(sent.json()["slice"], "a mistake"))
    assert served.http.get(sent.headers["location"]).json()["status"] == "retracted"
    again = served.send("requests", served.request("a"))
    assert again.status_code == 202
    served.settle()
    found = served.http.get(again.headers["location"]).json()
    assert (found["status"], found["counts"]) == ("decided", {"accepted": 1})
    assert served.mill.query("SELECT count FROM requests.hits").to_pylist() == [{"count": 1}]


def test_a_retracted_request_with_bounds_is_refused_when_it_comes_again(served):
    """It is a slice by its content: refused before it is acknowledged, with or without `wait`."""
    bounds = {"start": "2026-01-05T10:00:00Z", "end": "2026-01-05T11:00:00Z"}
    first = served.send("requests", served.request("a"), params=bounds)
    served.settle()
    taken = served.http.get(first.headers["location"]).json()["slice"]
    served.mill.retract(served.mill.plan_retraction(taken, "a mistake"))
    for wait in ({}, WAIT):
        again = served.send("requests", served.request("a"), params=bounds | wait)
        document = again.json()
        assert (again.status_code, document["code"], document["retry"]) == (409, "retracted", "never")
        assert f"slice {taken[:12]}, which was retracted" in document["detail"]
        assert "(a mistake)" in document["detail"]
        assert "other bytes" in document["hint"]
    assert len(served.mill.ledger("requests")) == 1
    assert served.mill.slice(taken).landings == 1
    other = served.http.post(
        "/v1/streams/requests/events",
        content=json.dumps(served.request("a")) + "\n\n",
        headers=NDJSON,
        params={**bounds, "end": "2026-01-05T12:00:00Z"},
    )
    assert other.status_code == 202
    served.settle()
    assert served.http.get(other.headers["location"]).json()["counts"] == {"accepted": 1}


HEARTBEATS = """
version: 1
gateway:
  window: {kind: adaptive, min: 1ms, max: 20ms, target: 100}
  %(gateway)s
streams:
  heartbeats:
    schema: {ts: {type: string, required: true}, host: string}
    event_time: {column: ts, type: iso8601}
    gate: none
    tenant: {value: acme}
    metrics:
      beats: {kind: counter, dimensions: [host]}
"""
BEAT = {"ts": "2026-01-05T10:00:00Z", "host": "a"}


def test_every_acknowledged_event_of_a_stream_without_a_gate_counts(serving):
    """Equal events: five sent apart, three in one request, two requests in one window."""
    served = serving(text=HEARTBEATS)
    for _ in range(5):
        assert served.send("heartbeats", BEAT).status_code == 202
        served.settle()
    assert served.send("heartbeats", [BEAT] * 3).status_code == 202
    for _ in range(2):
        served.send("heartbeats", BEAT)
    served.settle()
    assert served.mill.query("SELECT count FROM heartbeats.beats").to_pylist() == [{"count": 10}]
    assert served.mill.verify().ok


def test_a_file_that_is_sent_twice_to_a_stream_without_a_gate_counts_once(serving):
    """Files and requests with bounds are slices by their content, as files on disk are."""
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    served = serving(text=HEARTBEATS)
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([BEAT] * 3), file)
    for _ in range(2):
        kind = {"Content-Type": "application/vnd.apache.parquet"}
        sent = served.http.post("/v1/streams/heartbeats/events", content=file.getvalue(), headers=kind)
        assert sent.status_code == 202, sent.text
        served.settle()
    assert served.mill.query("SELECT count FROM heartbeats.beats").to_pylist() == [{"count": 3}]


@pytest.mark.parametrize("step", ["-1h", "1d"])
def test_who_waits_is_answered_though_the_clock_is_put_back_or_forward(serving, step):
    clock = SteppableClock(parse_instant("2026-01-05T10:00:00Z"), monotonic_clock)
    served = serving(clock=clock)
    with served.ticking():
        assert served.send("requests", served.request("a"), params=WAIT).json()["counts"] == {"accepted": 1}
        clock.step(step)
        for event_id in ("b", "c"):
            document = served.send("requests", served.request(event_id), params=WAIT)
            assert (document.status_code, document.json()["counts"]) == (200, {"accepted": 1})
    arrivals = [entry.slice.arrival for entry in served.mill.state.slices("requests")]
    assert arrivals == sorted(arrivals)
    shown = served.http.get("/v1/status").json()
    assert shown["gateway"]["clock"]["last_step"]["seconds"] == pytest.approx(
        {"-1h": -3600, "1d": 86400}[step]
    )
    behind = shown["ingest"]["clock_behind_seconds"]
    assert behind > 3500 if step == "-1h" else behind == 0
    metrics = served.http.get("/metrics").text
    assert (
        f'tidemill_clock_steps_total{{direction="{"back" if step == "-1h" else "forward"}"}} 1.0' in metrics
    )


SLOW = """
version: 1
gateway:
  window: {kind: fixed, size: 36500d}
  triggers: {rate_change: null}
  %(gateway)s
streams:
  requests:
    schema: {event_id: {type: string, required: true}, ts: {type: string, required: true}}
    event_time: {column: ts, type: iso8601}
    identity: [event_id]
"""


BOUNDS = {"start": "2026-01-05T10:00:00Z", "end": "2026-01-05T11:00:00Z"}


def test_a_request_with_bounds_completes_its_window(served):
    answer = served.http.post(
        "/v1/streams/requests/events", params=BOUNDS, json=[served.request("a"), served.request("b", 5)]
    )
    assert answer.status_code == 202, answer.text
    served.settle()
    (view,) = served.mill.windows.windows("requests")
    assert (view.status.value, view.window.rows) == ("final", 2)
    (entry,) = served.mill.ledger("requests")
    assert str(entry.slice.declared) == "[2026-01-05T10:00:00Z, 2026-01-05T11:00:00Z)"


def test_a_request_with_bounds_may_say_that_nothing_happened(served):
    with served.ticking():
        answer = served.http.post("/v1/streams/requests/events", params=BOUNDS | {"wait": "1"}, json=[])
    assert (answer.status_code, answer.json()["events"]) == (200, 0)
    served.settle()
    (view,) = served.mill.windows.windows("requests")
    assert (view.status.value, view.window.rows) == ("final", 0)


@pytest.mark.parametrize(
    ("bounds", "what"),
    [
        ({"start": BOUNDS["start"]}, "both ends"),
        ({"start": BOUNDS["start"], "end": BOUNDS["start"]}, "cover no time"),
        ({"start": "2026-01-05T10:00:00", "end": BOUNDS["end"]}, "which time zone"),
        ({"start": BOUNDS["end"], "end": BOUNDS["start"]}, "before it starts"),
    ],
)
def test_bounds_that_cannot_be_meant_are_refused(still, bounds, what):
    answer = still.http.post("/v1/streams/requests/events", params=bounds, json=[still.request("a")])
    assert (answer.status_code, answer.json()["code"]) == (400, "input")
    assert what in answer.json()["detail"]


def test_one_tenant_does_not_declare_bounds_for_all(served):
    headers = served.token("ingest", tenant="acme")
    own = served.http.post("/v1/streams/requests/events", params=BOUNDS, json=[], headers=headers)
    shared = served.http.post("/v1/streams/events/events", params=BOUNDS, json=[], headers=headers)
    assert (own.status_code, shared.status_code, shared.json()["code"]) == (202, 403, "forbidden")


def test_with_landed_a_sender_is_answered_once_its_events_are_in_a_slice(serving):
    served = serving(text=SLOW, gateway="acknowledge: landed")
    answer = served.send("requests", served.request("a"))
    assert (answer.status_code, answer.json()["status"]) == (202, "landed")
    (entry,) = served.mill.ledger("requests")
    found = served.http.get(answer.headers["location"]).json()
    assert (found["status"], found["slice"]) == ("landed", entry.id)


def test_with_landed_each_way_to_send_waits_for_the_slice(serving):
    served = serving(gateway="acknowledge: landed")
    cloud = {"specversion": "1.0", "id": "2", "source": "/shop", "type": "login", "tenant": "acme"}
    cloud["time"] = "2026-01-05T10:00:01Z"
    sent = served.http.post(
        "/v1/streams/events/events",
        content=json.dumps(cloud),
        headers={"Content-Type": "application/cloudevents+json"},
    )
    assert (sent.status_code, sent.json()["status"]) == (202, "landed")
    assert len(served.mill.ledger("events")) == 1
    line = {"timeUnixNano": "1767607202000000000", "body": {"stringValue": "no stock"}}
    logs = {"resourceLogs": [{"scopeLogs": [{"logRecords": [line]}]}]}
    assert served.http.post("/v1/otlp/v1/logs", json=logs).status_code == 200
    assert len(served.mill.ledger("logs")) == 1


def test_what_does_not_land_is_refused_with_a_time_to_try_again(serving):
    served = serving(text=SLOW, gateway="acknowledge: landed")
    in_the_way = served.mill.project.warehouse / "slices" / "requests"
    in_the_way.parent.mkdir(exist_ok=True)
    in_the_way.write_text("")
    refused = served.send("requests", served.request("a"))
    said = refused.json()
    assert (refused.status_code, said["code"], said["retry"]) == (503, "storage", "later")
    assert refused.headers["retry-after"] == "5"
    assert said["detail"] == "the events could not be landed"
    in_the_way.unlink()
    again = served.send("requests", served.request("a"))
    assert (again.status_code, again.json()["status"]) == (202, "landed")
    served.tick()
    newest, first = (entry.counts for entry in served.mill.ledger("requests"))  # the first one landed as well
    assert (first.accepted, first.duplicate, newest.accepted, newest.duplicate) == (1, 0, 0, 1)


def test_a_sender_waits_for_its_slice_no_longer_than_the_server_allows(serving):
    text = SLOW.replace("{kind: fixed, size: 36500d}", "{min: 1h, max: 1h}")
    served = serving(text=text, gateway="acknowledge: landed\n  requests: {wait: 50ms}")
    refused = served.send("requests", served.request("a"))
    assert (refused.status_code, refused.json()["code"]) == (503, "storage")
    assert refused.json()["detail"] == "the events have not landed within 0.05 s"
    assert served.http.get("/readyz").status_code == 200  # the log was written
