"""Attacks on a real server: each one that docs/security.md names, and what comes of it."""

from __future__ import annotations

import base64
import io
import json
import logging
import threading
from datetime import UTC, datetime, timedelta
from itertools import islice

import pyarrow as pa
import pytest
from pyarrow import ipc
from tests.server.conftest import PROJECT
from tests.support.patience import PATIENCE
from tests.support.served_project import PROJECT as SHARED

from tidemill.model.errors import DamageError
from tidemill.model.time import format_instant, from_datetime
from tidemill.pipeline import rounds
from tidemill.server import start, stream_events
from tidemill.server.access import Tokens

CLOUD = {"content-type": "application/cloudevents+json"}
LOGS = "/v1/otlp/v1/logs"


def cloud_event(**attributes: object) -> bytes:
    event = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "checkout"}
    return json.dumps(event | {"time": "2026-01-05T10:00:00Z", "data": {}} | attributes).encode()


def log_record(tenant: str) -> dict[str, object]:
    attribute = {"key": "tenant.id", "value": {"stringValue": tenant}}
    records = [{"timeUnixNano": "1767607200000000000", "body": {"stringValue": "no stock"}}]
    return {
        "resourceLogs": [{"resource": {"attributes": [attribute]}, "scopeLogs": [{"logRecords": records}]}]
    }


# -- events of another tenant


@pytest.mark.parametrize("stream", ["events", "requests"])  # of several tenants, and of one
def test_a_cloud_event_that_names_another_tenant_is_refused_and_nothing_is_taken(served, stream):
    headers = {**served.token("ingest", tenant="acme"), **CLOUD}
    url = f"/v1/streams/{stream}/events"
    refused = served.http.post(url, content=cloud_event(tenant="globex"), headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert served.gateway.status().acknowledged == 0
    assert served.http.post(url, content=cloud_event(tenant="acme"), headers=headers).status_code == 202


def test_an_otlp_resource_that_names_another_tenant_is_refused_and_nothing_is_taken(served):
    headers = served.token("ingest", tenant="acme")
    refused = served.http.post(LOGS, json=log_record("globex"), headers=headers)
    assert refused.status_code == 403
    assert "'globex'" in refused.json()["message"]
    assert served.gateway.status().acknowledged == 0
    assert served.http.post(LOGS, json=log_record("acme"), headers=headers).status_code == 200


# -- what an answer says of others


COUNT = "SELECT count FROM shared.hits"


def land(served, tenant: str, name: str, ts: str, source: str = "http") -> None:
    record = {"event_id": name, "ts": f"2026-01-05T{ts}Z", "tenant": tenant, "api": "/cart"}
    served.mill.land("shared", json.dumps(record).encode(), source=source)
    served.tick()


def times(served, **how: object) -> set[tuple[str, str]]:
    """What a query and a search say of time: each kind of answer the same."""
    answers = [
        served.http.get("/v1/query", params={"q": COUNT, **how.get("params", {})}, headers=how["headers"]),
        served.http.get("/v1/streams/shared/search", **how),
        served.http.post("/v1/query", json={"query": COUNT, **how.get("params", {})}, headers=how["headers"]),
    ]
    document = [one.json()["completeness"] for one in answers]
    return {(one["as_of"], one["watermark"]) for one in document}


def arrivals(served, tenant: str) -> list[str]:
    found = served.mill.search("shared", tenant=tenant).rows
    return sorted(format_instant(from_datetime(row["arrival"])) for row in found.to_pylist())


def test_a_tenant_is_told_of_its_own_newest_event_and_arrival_and_not_of_others(serving):
    served = serving(text=SHARED)
    land(served, "acme", "a1", "10:00:05")
    land(served, "globex", "b1", "11:30:00")
    land(served, "acme", "a2", "10:00:01")
    land(served, "globex", "b2", "11:45:00")
    acme, operator = served.token("read", tenant="acme"), served.token("read")
    mine = {(arrivals(served, "acme")[-1], "2026-01-05T10:00:05Z")}
    assert times(served, headers=acme) == mine
    assert times(served, headers=operator, params={"tenant": "acme"}) == mine
    theirs = {(arrivals(served, "globex")[-1], "2026-01-05T11:45:00Z")}
    assert times(served, headers=operator, params={"tenant": "globex"}) == theirs
    assert times(served, headers=operator, params={"all_tenants": True}) == theirs  # the newest
    assert times(served, headers=served.token("read", tenant="initech")) == {(None, None)}


def test_a_tenants_watermark_waits_for_the_slowest_of_its_own_sources(serving):
    served = serving(text=SHARED)
    land(served, "acme", "a1", "10:00:05", source="fast")
    land(served, "acme", "a2", "09:59:00", source="slow")
    land(served, "globex", "b1", "08:00:00", source="slower")
    ((_, watermark),) = times(served, headers=served.token("read", tenant="acme"))
    assert watermark == "2026-01-05T09:59:00Z"


def test_while_something_of_others_is_pending_no_instant_of_it_is_told(serving):
    served = serving(text=SHARED)
    land(served, "acme", "a1", "10:00:05")
    record = {"event_id": "b1", "ts": "2026-01-05T09:30:00Z", "tenant": "globex", "api": "/cart"}
    bounds = {"start": "2026-01-05T09:00:00Z", "end": "2026-01-05T10:00:00Z"}
    served.mill.land("shared", json.dumps(record).encode(), **bounds)
    answer = served.http.get("/v1/query", params={"q": COUNT}, headers=served.token("read", tenant="acme"))
    document = answer.json()["completeness"]
    assert (document["complete"], document["complete_through"]) == (False, None)
    assert [(one["what"], one["count"], one["bytes"]) for one in document["pending"]] == [
        ("landed", None, None)
    ]
    assert "09:00:00" not in answer.text


def test_a_late_row_and_a_flush_tell_a_tenant_nothing_of_how_far_others_are(serving):
    served = serving(text=SHARED)
    land(served, "globex", "b1", "11:45:00")
    land(served, "acme", "a1", "10:00:05")
    headers = served.token("read", "ingest", tenant="acme")
    (row,) = served.http.get("/v1/streams/shared/late", headers=headers).json()["rows"]
    assert row["event_id"] == "a1"
    assert not row.keys() & {"watermark", "lateness", "line"}
    more = served.token("ingest", tenant="globex")
    event = {"event_id": "b2", "ts": "2026-01-05T11:46:00Z", "api": "/cart"}
    sent = served.send("shared", [event] * 7, headers=more)
    assert sent.status_code == 202
    document = served.http.post("/v1/flush", params={"stream": "shared"}, headers=headers).json()
    assert document == {"windows": [], "pending": 0}


def unreadable(text: str) -> str:
    """A cursor or an id that is not a number in disguise."""
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    assert not raw.isascii(), raw
    return text


def test_a_tenant_cannot_read_the_numbers_in_cursors_and_ids(serving):
    served = serving(text=SHARED)
    for n in range(4):
        land(served, "globex", f"b{n}", f"1{n}:30:00")
    for n in range(3):
        land(served, "acme", f"a{n}", f"09:0{n}:00")
    acme, globex = served.token("read", tenant="acme"), served.token("read", tenant="globex")
    for path in ("/v1/streams/shared/search", "/v1/streams/shared/late"):
        found, cursor, pages = [], None, 0
        while pages == 0 or cursor is not None:
            params = {"limit": 1} | ({"cursor": cursor} if cursor else {})
            page = served.http.get(path, params=params, headers=acme).json()
            found += [row["event_id"] for row in page["rows"]]
            if page["cursor"] is not None:
                theirs = served.http.get(path, params={"cursor": page["cursor"]}, headers=globex)
                assert theirs.status_code == 400
            cursor, pages = page["cursor"] and unreadable(page["cursor"]), pages + 1
        assert sorted(found) == ["a0", "a1", "a2"]


def test_a_tenants_event_ids_are_sealed_and_lead_on_from_there(serving):
    served = serving(text=SHARED)
    for n in range(3):
        land(served, "acme", f"a{n}", f"0{n}:00:00")
    headers = served.token("read", tenant="acme")

    def heard(**how: object) -> list[str]:
        with served.http.stream("GET", "/v1/events", timeout=PATIENCE, **how) as answer:
            assert answer.status_code == 200, answer.read()
            lines = answer.iter_lines()
            ids = (line.removeprefix("id: ") for line in lines if line.startswith("id: "))
            return [unreadable(one) for one in islice(ids, 3)]

    start, first, second = heard(headers=headers, params={"after": 0})
    assert heard(headers={**headers, "Last-Event-ID": start}) == [start, first, second]
    assert heard(headers=headers, params={"after": first})[:2] == [first, second]
    for guess in ("1", "2", "99", first[:-2] + "zz"):
        assert served.http.get("/v1/events", params={"after": guess}, headers=headers).status_code == 400
    other = served.token("read", tenant="globex")
    assert served.http.get("/v1/events", params={"after": first}, headers=other).status_code == 400


def test_the_ledger_of_a_tenants_own_stream_does_not_count_the_slices_of_others(serving):
    served = serving(text=SHARED)
    land(served, "globex", "b1", "10:00:00")
    event = {"event_id": "a1", "ts": "2026-01-05T10:00:00Z", "api": "/cart"}
    served.mill.land("requests", json.dumps(event).encode())
    headers = served.token("read", tenant="acme")
    (entry,) = served.http.get("/v1/streams/requests/ledger", headers=headers).json()["slices"]
    assert "seq" not in entry
    assert "seq" not in served.http.get(f"/v1/slices/{entry['id']}", headers=headers).json()
    (entry,) = served.http.get("/v1/streams/requests/ledger", headers=served.token("read")).json()["slices"]
    assert entry["seq"] == 2


# -- tokens that are gone


def test_a_revoked_token_ends_its_event_streams_and_no_others(served, monkeypatch):
    monkeypatch.setattr(stream_events, "HEARTBEAT", 3600.0)  # nothing else would end it
    operator, edge = served.token("read"), served.token("read", tenant="acme")
    listening = {"timeout": 30}
    with (
        served.http.stream("GET", "/v1/events", headers=operator, **listening) as kept,
        served.http.stream("GET", "/v1/events", headers=edge, **listening) as ended,
    ):
        first, second = kept.iter_lines(), ended.iter_lines()
        assert [next(first), next(second)] == ["retry: 1000"] * 2
        elsewhere = Tokens(served.mill.project.warehouse)  # as `tidemill token revoke` has it
        elsewhere.revoke(edge["Authorization"].split("_")[1], served.service.clock())
        assert [line.partition(": ")[0] for line in second if line] == ["id"]
        assert next(first) == "id: 0"
        assert served.http.get("/v1/events", headers=edge).status_code == 401
        served.service.stop()  # the other one is still there, and ends with the server
        assert [line for line in first if line] == []


@pytest.mark.parametrize("left", [None, "", '{"version": 1, "tok', '{"version": 1, "tokens": []}'])
def test_without_its_file_of_tokens_a_server_that_had_some_lets_nobody_in(served, left, caplog):
    token = served.token("admin")
    assert served.http.get("/v1/streams", headers=token).status_code == 200
    path = served.mill.project.warehouse / "access" / "tokens.json"
    kept = path.read_bytes()
    with caplog.at_level(logging.ERROR):
        path.unlink() if left is None else path.write_text(left)
        for headers in ({}, token):
            refused = served.http.get("/v1/streams", headers=headers)
            assert (refused.status_code, refused.json()["code"]) == (503, "damaged")
            assert served.send("requests", served.request("a"), headers=headers).status_code == 503
    assert [one.message.partition(": ")[0] for one in caplog.records] == [str(path)]  # told once
    unready = served.http.get("/readyz")
    assert (unready.status_code, unready.json()["failing"]) == (503, ["tokens"])
    assert str(path) not in unready.text
    path.write_bytes(kept)
    assert served.http.get("/v1/streams", headers=token).status_code == 200
    assert served.http.get("/readyz").status_code == 200


def test_a_server_does_not_start_without_the_tokens_it_had(served):
    served.token("admin")
    (served.mill.project.warehouse / "access" / "tokens.json").unlink()
    with pytest.raises(DamageError, match="missing") as error:
        start.serve(
            served.mill, threading.Event(), port=0, announce=lambda _started: pytest.fail("it started")
        )
    assert "tidemill token create" in error.value.hint


# -- one sender for itself


def test_one_sender_with_many_sources_is_told_to_wait_and_others_are_served(serving):
    open_for_long = PROJECT.replace(
        "{kind: adaptive, min: 1ms, max: 20ms, target: 100}", "{kind: fixed, size: 36500d}"
    )
    served = serving(text=open_for_long, gateway="requests: {sources: 4}")
    greedy, other = served.token("ingest", tenant="acme"), served.token("ingest", tenant="acme")
    answers = [
        served.send("requests", served.request(f"a{n}"), headers=greedy, params={"source": f"s{n}"})
        for n in range(20)
    ]
    assert [one.status_code for one in answers] == [202] * 4 + [429] * 16
    assert answers[-1].json()["where"] == "gateway.requests.sources"
    assert answers[-1].headers["retry-after"] == "1"
    again = served.send("requests", served.request("b"), headers=greedy, params={"source": "s0"})
    assert again.status_code == 202  # what it uses already it may go on using
    for n in range(4):
        answer = served.send("requests", served.request(f"c{n}"), headers=other, params={"source": f"o{n}"})
        assert answer.status_code == 202, answer.text


def test_the_share_of_one_sender_leaves_memory_for_the_sources_of_others(served):
    """By the defaults: a sender that names more sources than it may fills less than half of the memory."""
    greedy, other = served.token("ingest", tenant="acme"), served.token("ingest", tenant="acme")
    limits = served.mill.project.gateway
    codes = {
        served.send("requests", served.request("a"), headers=greedy, params={"source": f"s{n}"}).status_code
        for n in range(limits.requests.sources + 52)
    }
    used, allowed = served.gateway.memory.usage()["rates"]
    assert codes <= {202, 429}
    assert used < allowed / 2
    answer = served.send("requests", served.request("b"), headers=other, params={"source": "another"})
    assert answer.status_code == 202


# -- events far apart in time


def hours(count: int, every: int = 1) -> list[dict[str, object]]:
    first = datetime(2001, 1, 1, tzinfo=UTC)
    times = (first + timedelta(hours=every * n) for n in range(count))
    return [{"event_id": f"e{at}", "ts": at.isoformat(), "api": "/cart"} for at in times]


def test_a_request_with_events_far_apart_is_refused_and_nothing_is_taken(served):
    """By the defaults: ten thousand events, each on a day of its own, in less than a megabyte."""
    refused = served.send("requests", hours(10_000, every=24))
    assert (refused.status_code, refused.json()["code"]) == (413, "too_spread")
    assert refused.json()["where"] == "gateway.requests.spread"
    assert "tidemill ingest" in refused.json()["hint"]
    assert served.gateway.status().acknowledged == 0
    together = [{**one, "ts": "2001-01-01T00:00:00Z"} for one in hours(10_000)]
    assert served.send("requests", together).status_code == 202


ARROW = {"content-type": "application/vnd.apache.arrow.stream"}


def arrow(events: list[dict[str, object]]) -> bytes:
    table, out = pa.Table.from_pylist(events), io.BytesIO()
    with ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def spans(events: list[dict[str, object]]) -> dict[str, object]:
    start = [int(datetime.fromisoformat(str(one["ts"])).timestamp()) * 10**9 for one in events]
    found = [
        {"traceId": f"{n + 1:032x}", "spanId": f"{n + 1:016x}", "name": "x", "startTimeUnixNano": str(at)}
        for n, at in enumerate(start)
    ]
    return {"resourceSpans": [{"scopeSpans": [{"spans": found}]}]}


def test_every_kind_of_body_has_the_same_bound(serving):
    served = serving(gateway="requests: {spread: 20}")
    url = "/v1/streams/requests/events"

    def arrow_body(events):
        return served.http.post(url, content=arrow(events), headers=ARROW)

    def lines(events):
        content = "\n".join(json.dumps(one) for one in events)
        return served.http.post(url, content=content, headers={"content-type": "application/x-ndjson"})

    def cloud(events):
        attributes = {"specversion": "1.0", "source": "/shop", "type": "x"}
        body = [{**attributes, "id": str(one["event_id"]), "data": one} for one in events]
        headers = {"content-type": "application/cloudevents-batch+json"}
        return served.http.post(url, content=json.dumps(body), headers=headers)

    for send in (arrow_body, lines, cloud, lambda events: served.send("requests", events)):
        twice = [*hours(20), *({**one, "event_id": f"again-{one['event_id']}"} for one in hours(20))]
        assert send(twice).status_code == 202, send
        assert (send(hours(21)).status_code, send(hours(21)).json()["code"]) == (413, "too_spread"), send
    traces = "/v1/otlp/v1/traces"  # a stream without windows: days are counted
    assert served.http.post(traces, json=spans(hours(400))).status_code == 200
    assert served.http.post(traces, json=spans(hours(21, every=24))).status_code == 413


def test_what_the_gate_would_not_accept_is_not_counted(serving):
    """A record that is rejected makes no window."""
    served = serving(gateway="requests: {spread: 20}")
    bad = [{**one, "status": "not a number"} for one in hours(100)]
    assert served.send("requests", [*bad, *hours(20)]).status_code == 202


def test_a_year_of_hours_lands_as_a_file(served, tmp_path, monkeypatch):
    monkeypatch.setattr(rounds, "BUILDS_PER_ROUND", 1)  # their datasets take a while
    path = tmp_path / "year.ndjson"
    path.write_text("\n".join(json.dumps(one) for one in hours(8760)))
    served.mill.ingest("requests", [path])
    served.mill.tick()
    entry = served.mill.ledger()[-1]
    assert (entry.status, entry.counts.accepted) == ("accepted", 8760)
