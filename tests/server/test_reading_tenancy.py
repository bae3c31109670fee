"""What one tenant can read: every route of the OpenAPI document is walked, and nothing of another is told.

The same walk with an operator's token shows that there was something to tell.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc
from tests.support.served_project import BEFORE, HOUR, PROJECT

from tidemill.config import load_project
from tidemill.eventtime import registered
from tidemill.model.errors import ForbiddenError
from tidemill.server import tenancy
from tidemill.server.access.grants import Principal, Scope

AFTER = "2026-01-05T12:00:00Z"
OURS, THEIRS = "acme", "globex"
MINE, YOURS = 11, 137  # events of each
LATE, REFUSED = 79, 73  # of those of globex
# Numbers of theirs, alone and together with ours; none of ours is one of them.
TOLD = {YOURS, YOURS + LATE, LATE, REFUSED, YOURS + MINE, YOURS + LATE + MINE, YOURS + REFUSED}
VECTORS = {OURS: "v-ours", THEIRS: "v-MARKER-B"}
MORE = """
  vectors:
    kind: delta
    vector: {dimension: 1}
    schema: {ts: {type: string, required: true}, tenant: {type: string, required: true}}
    event_time: {column: ts, type: iso8601}
    tenant: {column: tenant}
  visits:
    schema:
      event_id: {type: string, required: true}
      ts: {type: string, required: true}
      tenant: {type: string, required: true}
      api: string
      status: integer
    event_time: {column: ts, type: iso8601}
    identity: [event_id]
    tenant: {column: tenant}
    windows:
      hours: {kind: tumbling, size: 1h, group_by: api, aggregates: {n: count}}
"""
NEWEST = "2026-01-05T10:02:16"  # of theirs, and so the watermark of what both share
MARKS = (THEIRS, "b-secret", "MARKER-B", "theirs", NEWEST)


def event(name: str, tenant: str, second: int, mark: str, **more: object) -> dict[str, object]:
    ts = f"2026-01-05T10:{second // 60:02}:{second % 60:02}Z"
    return {"event_id": name, "ts": ts, "tenant": tenant, "api": f"/{mark}", "status": 200} | more


def delta(name: str, vector: str, tenant: str, value: int) -> dict[str, object]:
    values = {"op": "replace", "values": [value], "ts": HOUR, "tenant": tenant}
    return {"delta_id": f"{name}-{vector}", "vector_id": vector, **values}


@dataclass
class Two:
    """A server with events of two tenants, and what they got for sending them."""

    served: object
    ingestions: dict[str, list[str]]

    @property
    def slices(self) -> list[str]:
        return [entry.id for entry in self.served.mill.ledger()]


@pytest.fixture
def two(serving) -> Two:
    served = serving(text=PROJECT + MORE)
    tokens = {tenant: served.token("ingest", tenant=tenant) for tenant in (OURS, THEIRS)}
    ingestions: dict[str, list[str]] = {OURS: [], THEIRS: []}

    def send(stream: str, tenant: str, lines: list[object]) -> None:
        content = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
        headers = {**tokens[tenant], "content-type": "application/x-ndjson"}
        answer = served.http.post(f"/v1/streams/{stream}/events", content=content.encode(), headers=headers)
        assert answer.status_code == 202, answer.text
        ingestions[tenant].append(answer.json()["ingestion"])

    ours = [event(f"a-{i}", OURS, i, "ours") for i in range(MINE)]
    theirs = [event(f"b-secret-{i}", THEIRS, i, "MARKER-B") for i in range(YOURS)]
    send("shared", OURS, [*ours, "no JSON: OURS", {"event_id": "a-bad", "ts": "never", "tenant": OURS}])
    bad = [f"no JSON: MARKER-B {i}" for i in range(REFUSED - 1)]
    send("shared", THEIRS, [*theirs, *bad, {"event_id": "b-secret", "ts": "never", "tenant": THEIRS}])
    send("requests", OURS, [{k: v for k, v in one.items() if k != "tenant"} for one in ours])
    send("theirs", THEIRS, [{k: v for k, v in one.items() if k != "tenant"} for one in theirs])
    for tenant, events in ((OURS, ours), (THEIRS, theirs)):
        send("visits", tenant, events)
        name, vectors = str(events[0]["event_id"]), (VECTORS[tenant], "v-both")
        send("vectors", tenant, [delta(name, vector, tenant, len(events)) for vector in vectors])
    served.settle()
    send("visits", OURS, [event("a-next", OURS, 0, "ours", ts=AFTER)])  # so that the hour before is over
    send("shared", OURS, [event("a-late", OURS, 0, "ours", ts=BEFORE)])
    late = [event(f"b-secret-late-{i}", THEIRS, 0, "MARKER-B", ts=BEFORE) for i in range(LATE)]
    send("shared", THEIRS, late)
    served.settle()
    return Two(served, ingestions)


@dataclass(frozen=True)
class Asked:
    operation: str
    method: str
    url: str
    params: dict[str, object]
    content: dict[str, object] | None = None

    @property
    def said(self) -> str:
        """What the question itself names: an answer may repeat it."""
        return f"{self.url} {self.params} {self.content}"


QUERIES = (
    "SELECT count FROM {stream} AS OF 0s",
    "SELECT count FROM {stream} AS OF 1h",
    "SELECT count FROM {stream} GROUP BY api",
    "EXPLAIN SELECT count FROM {stream}",
    "SELECT count FROM {stream} INTERVAL 1h",
    'SELECT count FROM {stream} WHERE api = "/MARKER-B"',
)
SEARCHES = (
    "",
    'WHERE api = "/ours"',
    "EXPLAIN",
    'FILTER tenant = "globex"',
    'WHERE tenant = "globex"',
    "ORDER BY arrival ASC LIMIT 3",
)
STREAMS = ("requests", "shared", "theirs", "bare", "vectors", "visits", "nothing")


def questions(two: Two, document: dict) -> Iterator[Asked]:
    """Every operation with everything that its parameters could be asked for."""
    for path, item in document["paths"].items():
        for method, operation in item.items():
            for url in _urls(two, path):
                for params, content in _ways(operation["operationId"], url):
                    yield Asked(operation["operationId"], method.upper(), url, params, content)


def _urls(two: Two, path: str) -> list[str]:
    ids = [one for each in two.ingestions.values() for one in each]
    values = {
        "stream": STREAMS,
        "slice_id": [*two.slices, two.slices[0][:10], "", "0"],
        "start": (HOUR, BEFORE),
        "ingestion": ids,
        "vector_id": [*VECTORS.values(), "v-both", "v-none"],
        "window": ("hours", "nothing"),
    }
    found = [path]
    for name in re.findall(r"{(\w+)}", path):
        found = [url.replace(f"{{{name}}}", quote(value, safe="")) for url in found for value in values[name]]
    return found


def _ways(operation: str, url: str) -> Iterator[tuple[dict[str, object], dict[str, object] | None]]:
    match operation:
        case "get_query" | "post_query":
            for text in QUERIES:
                for stream in STREAMS:
                    for tenant in (None, OURS, THEIRS):
                        said = {"tenant": tenant} if tenant else {}
                        asked = text.format(stream=stream)
                        if operation == "get_query":
                            yield {"q": asked, **said}, None
                        else:
                            yield {}, {"query": asked, **said}
        case "get_search" | "post_search":
            for text in SEARCHES:
                for more in ({}, {"total": True}, {"tenant": THEIRS}, {"limit": 2}):
                    if operation == "get_search":
                        yield {"q": text, **more}, None
                    else:
                        yield {}, {"search": text, **more}
        case "get_dataset":
            yield from (({"format": form}, None) for form in ("arrow", "parquet"))
        case "get_windows":
            yield from (({"state": state}, None) for state in ("built", "final", "waiting"))
            yield {}, None
        case "get_query_cell":
            for stream in STREAMS:
                yield {"q": f"SELECT count FROM {stream}"}, None
                yield {"q": f"SELECT count FROM {stream}", "limit": 1}, None
                yield {"q": f"SELECT count FROM {stream}", "tenant": THEIRS}, None
                mark = json.dumps({"api": "/MARKER-B"})
                yield {"q": f"SELECT count FROM {stream} GROUP BY api", "group": mark}, None
        case "get_changes":
            yield {"after": "10d"}, None
            yield {"after": "10d", "limit": 1}, None
        case "get_timeline":
            yield {}, None
            yield {"limit": 1}, None
        case "get_window_changes":
            yield {"from": 0}, None
            yield {"from": 0, "limit": 1}, None
        case "post_rebuild" | "post_retry" | "post_replay":
            yield {}, {"explain": True} if operation == "post_rebuild" else {}
        case "get_quarantine":
            yield {"reason": "malformed"}, None
            yield {"limit": 1}, None
            yield {}, None
            yield {"tenant": THEIRS}, None
        case "get_vector" | "get_chain" | "get_results":
            yield {}, None
            yield {"tenant": OURS}, None
            yield {"tenant": THEIRS}, None
        case "get_deltas":
            yield {"window": "1h"}, None
            yield {"window": "1h", "tenant": THEIRS}, None
        case "get_late" | "get_stream":
            yield {}, None
            yield {"tenant": THEIRS}, None
        case "get_trace":
            for name in ("a-0", "a-late", "a-bad", "b-secret-0", "b-secret-late-1", "b-secret"):
                yield {"id": name}, None
                yield {"id": name, "stream": "shared"}, None
                yield {"id": name, "tenant": THEIRS}, None
        case "get_ingestion":
            yield {}, None
            yield {"outcomes": 0}, None
        case "get_events":
            yield from (({"after": 0, "stream": stream}, None) for stream in STREAMS)
            yield {"after": 0}, None
        case _:
            yield {}, None


def answered(two: Two, asked: Asked, headers: dict[str, str]) -> tuple[int, str]:
    """The status, and all that the answer says, also in files."""
    http = two.served.http
    if asked.operation in ("get_events", "get_overview_events"):
        with http.stream("GET", asked.url, params=asked.params, headers=headers) as answer:
            if answer.status_code == 200:
                reported = "\n".join(_until_silent(answer.iter_lines()))
            else:
                reported = answer.read().decode()
            return answer.status_code, reported
    answer = http.request(asked.method, asked.url, params=asked.params, json=asked.content, headers=headers)
    media = answer.headers["content-type"] if answer.content else ""
    if "parquet" in media:
        table = pq.read_table(io.BytesIO(answer.content))
    elif "arrow" in media:
        table = ipc.open_file(pa.BufferReader(answer.content)).read_all()
    else:
        return answer.status_code, answer.text
    said = json.dumps({"rows": table.num_rows, "about": str(table.schema.metadata)})
    return answer.status_code, said + str(table.to_pylist()) + answer.headers["content-disposition"]


def _until_silent(lines: Iterator[str]) -> Iterator[str]:
    """Up to the first comment: heartbeats are quick here."""
    for line in lines:
        if line.startswith(":"):
            return
        yield line


def numbers(text: str) -> set[int]:
    """All numbers that stand for themselves: not those in names, hashes and times."""
    return {int(one) for one in re.findall(r"(?<=[:\[,\s])(\d{1,9})(?:\.0)?(?=[,\]}\s]|$)", text)}


def walked(two: Two, headers: dict[str, str]) -> dict[str, list[tuple[Asked, int, str]]]:
    document = two.served.http.get("/openapi.json").json()
    found: dict[str, list[tuple[Asked, int, str]]] = {}
    for asked in questions(two, document):
        status, text = answered(two, asked, headers)
        found.setdefault(asked.operation, []).append((asked, status, text))
    return found


@pytest.mark.long
@pytest.mark.parametrize("scopes", [("read", "ingest"), ("admin",)])
def test_no_route_tells_a_tenant_of_another(two, scopes, monkeypatch):
    monkeypatch.setattr("tidemill.server.stream_events.HEARTBEAT", 0.1)
    monkeypatch.setattr("tidemill.server.overview_routes.HEARTBEAT", 0.1)
    monkeypatch.setattr("tidemill.server.overview_routes.EVERY", 0.05)
    found = walked(two, two.served.token(*scopes, tenant=OURS))
    assert len(found) > 18  # every operation there is
    for answers in found.values():
        for asked, status, text in answers:
            assert status < 500, (asked, text)
            for mark in MARKS:
                assert mark not in text or mark in asked.said, (asked, text)
            assert not TOLD & numbers(text), (asked, TOLD & numbers(text), text)

    def reported(operation: str, *of: str) -> bool:
        return any(all(one in text for one in of) for _, status, text in found[operation] if status == 200)

    # and of its own it is told all
    assert reported("get_query", '"count":12')
    assert reported("get_search", "a-late")
    assert reported("get_search", '"total":12')
    assert reported("get_quarantine", "no JSON: OURS", "a-bad")
    assert reported("get_late", "a-late", '"total":1')
    assert reported("get_dataset", '"rows": 11')
    assert reported("get_ingestion", "accepted")
    assert reported("get_windows", '"stream":"shared"', HOUR)
    assert reported("get_events", "tidemill.dataset.available", '"stream":"shared"')
    assert reported("get_vector", '"v-both"', f'"values":[{MINE}.0]')
    assert reported("get_chain", '"v-ours"')
    assert reported("get_deltas", '"deltas":2', '"vectors":2')
    assert reported("get_results", "/ours", f'"n":{MINE}')
    for operation in ("get_overview", "get_overview_events"):
        assert reported(operation, '"stream":"requests"', f'"accepted":{MINE}')
    assert reported("get_query_cell", '"stream":"shared"', '"total":12', "a-late")
    assert reported("get_timeline", '"stream":"shared"', '"slices":null')
    assert reported("get_window", '"stream":"shared"', '"revisions":[{"revision":1}]')
    assert reported("get_window_changes", '"added":11', "a-0")
    assert reported("get_trace", '"event_id":"a-0"', '"outcome":"accepted"', '"includes":true')
    for operation in ("get_status", "get_metrics", "post_rebuild", "post_retry", "post_replay"):
        assert {status for _, status, _ in found[operation]} == {403}
    for operation in ("get_ledger", "get_manifest", "get_slice", "get_changes"):
        shared = {status for asked, status, _ in found[operation] if "shared" in asked.url}
        assert shared <= {403}


@pytest.mark.long
def test_an_operator_is_told_of_all(two, monkeypatch):
    """So the walk above passes by what there is to tell."""
    monkeypatch.setattr("tidemill.server.stream_events.HEARTBEAT", 0.1)
    monkeypatch.setattr("tidemill.server.overview_routes.HEARTBEAT", 0.1)
    monkeypatch.setattr("tidemill.server.overview_routes.EVERY", 0.05)
    found = walked(two, two.served.token("admin"))
    revealing = {
        operation
        for operation, answers in found.items()
        if any(
            status == 200 and (TOLD & numbers(text) or any(m in text and m not in asked.said for m in MARKS))
            for asked, status, text in answers
        )
    }
    assert revealing >= {
        "get_streams", "get_stream", "get_ledger", "get_slice", "get_status", "get_metrics", "get_windows",
        "get_datasets", "get_dataset", "get_query", "post_query", "get_search", "post_search",
        "get_quarantine", "get_late", "get_events", "get_ingestion", "get_vector", "get_chain", "get_results",
        "get_query_cell", "get_trace", "get_overview", "get_overview_events", "get_timeline", "get_window",
        "get_window_changes",
    }  # fmt: skip


def test_a_stream_of_another_is_as_absent_as_one_that_never_was(two):
    headers = two.served.token("read", tenant=OURS)
    paths = (
        "", "/ledger", "/manifest", "/windows", "/datasets", f"/datasets/{HOUR}",
        "/search", "/quarantine", "/late",
    )  # fmt: skip
    for path in paths:
        hidden, absent = (
            two.served.http.get(f"/v1/streams/{name}{path}", headers=headers)
            for name in ("theirs", "nothing")
        )
        assert hidden.status_code == absent.status_code == 404
        assert hidden.text.replace("theirs", "nothing") == absent.text
    for asked in ("SELECT count FROM {}", "SELECT nothing FROM {}", "SELECT count FROM {}.hits"):
        hidden, absent = (
            two.served.http.get("/v1/query", params={"q": asked.format(name)}, headers=headers)
            for name in ("theirs", "nothing")
        )
        assert hidden.status_code == absent.status_code == 404
        assert hidden.text.replace("theirs", "nothing") == absent.text


def test_a_tenants_events_say_that_there_is_something_and_no_more(two, monkeypatch):
    monkeypatch.setattr("tidemill.server.stream_events.HEARTBEAT", 0.1)
    monkeypatch.setattr("tidemill.server.overview_routes.HEARTBEAT", 0.1)
    monkeypatch.setattr("tidemill.server.overview_routes.EVERY", 0.05)
    headers = two.served.token("read", tenant=OURS)
    with two.served.http.stream("GET", "/v1/events", params={"after": 0}, headers=headers) as answer:
        lines = list(_until_silent(answer.iter_lines()))
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    shared = [event["data"] for event in events if event["data"]["stream"] == "shared"]
    assert shared[0] == {
        "stream": "shared", "start": HOUR, "end": "2026-01-05T11:00:00Z", "revision": 1,
    }  # fmt: skip
    own = [event["data"] for event in events if event["data"]["stream"] == "requests"]
    assert own[0]["rows"] == MINE
    assert "uri" not in own[0]
    assert "location" not in own[0]


# -- the rules themselves


@pytest.fixture
def streams(tmp_path):
    (tmp_path / "tidemill.yaml").write_text(PROJECT % {"gateway": ""})
    return load_project(tmp_path, registered()).streams


OPERATOR = Principal("o", None, frozenset({Scope.READ}))
TENANT = Principal("t", OURS, frozenset({Scope.READ}))


def test_only_streams_with_a_tenant_column_are_shared(streams):
    assert [name for name, stream in streams.items() if tenancy.shares(stream, TENANT)] == ["shared"]
    assert not any(tenancy.shares(stream, OPERATOR) for stream in streams.values())


def test_a_tenant_asks_for_itself_and_an_operator_for_whom_it_likes():
    assert tenancy.tenant_for(OPERATOR, None) is None
    assert tenancy.tenant_for(OPERATOR, THEIRS) == THEIRS
    assert tenancy.tenant_for(TENANT, None) == tenancy.tenant_for(TENANT, OURS) == OURS
    for asked in (THEIRS, "", "ACME", "acme "):
        with pytest.raises(ForbiddenError):
            tenancy.tenant_for(TENANT, asked)


def test_what_is_about_all_is_an_operators(streams):
    tenancy.check_operator(OPERATOR, "metrics")
    tenancy.check_whole(streams["shared"], OPERATOR, "slices")
    tenancy.check_whole(streams["requests"], TENANT, "slices")
    with pytest.raises(ForbiddenError, match="metrics are about all tenants") as error:
        tenancy.check_operator(TENANT, "metrics")
    assert "operator's token" in error.value.hint
    with pytest.raises(ForbiddenError, match="slices of shared are about all its tenants"):
        tenancy.check_whole(streams["shared"], TENANT, "slices")


def test_what_is_said_of_something_shared_is_cut_down(streams):
    said = {"stream": "shared", "start": HOUR, "rows": 148, "line": 3}
    assert tenancy.only(said, tenancy.OF_WINDOW, streams["shared"], TENANT) == {
        "stream": "shared",
        "start": HOUR,
    }
    assert tenancy.without(said, tenancy.NOT_OF_ROW, streams["shared"], TENANT) == {
        "stream": "shared", "start": HOUR, "rows": 148,
    }  # fmt: skip
    for stream, who in ((streams["shared"], OPERATOR), (streams["requests"], TENANT)):
        assert tenancy.only(said, tenancy.OF_WINDOW, stream, who) == said
        assert tenancy.without(said, tenancy.NOT_OF_ROW, stream, who) == said


def test_the_catalog_names_the_tenants_to_who_may_know_them(two: Two) -> None:
    operator, tenant = two.served.token("read"), two.served.token("read", tenant=OURS)
    for path in ("/v1/streams/shared", "/v1/streams"):
        found = []
        for headers in (operator, tenant):
            answer = two.served.http.get(path, headers=headers).json()
            one = answer if "tenants" in answer else answer["streams"]
            shared = one if isinstance(one, dict) else next(s for s in one if s["stream"] == "shared")
            found.append(shared["tenants"])
        assert found == [{"names": [OURS, THEIRS], "more": 0}, {"names": [OURS], "more": 0}]
