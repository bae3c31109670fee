"""Reading over HTTP: streams, slices, windows, datasets, queries, searches, quarantine and late rows."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc
from tests.support.served_project import BEFORE, HOUR, PROJECT

BIG = 9_007_199_254_740_993  # no double holds it


@pytest.fixture
def full(serving):
    """Events of two hours, one of them refused, and the datasets of both."""
    served = serving(text=PROJECT)
    events = [served.request(f"r{i}", i, status=BIG + i) for i in range(5)]
    answer = served.send("requests", [*events, {"event_id": "bad", "ts": "never"}])
    assert answer.status_code == 202
    served.settle()
    late = served.request("r-late", 30) | {"ts": BEFORE}
    served.send("requests", late)
    served.settle()
    return served


def said(served, path: str, **params: object) -> dict:
    answer = served.http.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def pages(served, path: str, key: str, **params: object) -> Iterator[list[dict]]:
    cursor = None
    while True:
        page = said(served, path, **params, **({"cursor": cursor} if cursor else {}))
        yield page[key]
        cursor = page["cursor"]
        if cursor is None:
            return


def test_streams_say_what_can_be_asked_of_them(full):
    names = [one["stream"] for one in said(full, "/v1/streams")["streams"]]
    assert names == ["requests", "shared", "theirs", "bare"]
    one = said(full, "/v1/streams/requests")
    assert one["metrics"][0]["metric"] == "hits"
    assert one["attributes"]["paths"][0]["top"] == [{"value": "/cart", "events": 6}]
    assert full.http.get("/v1/streams/nothing").json()["hint"] == "streams: requests, shared, theirs, bare"


def test_the_ledger_comes_by_page_and_a_slice_by_its_id(full):
    every = list(pages(full, "/v1/streams/requests/ledger", "slices", limit=1))
    assert [len(page) for page in every] == [1, 1]
    newest, oldest = every[0][0], every[1][0]
    assert (newest["seq"], oldest["seq"]) == (2, 1)
    assert oldest["counts"] | {"rejects": None} == {
        "records": 6, "accepted": 5, "duplicate": 0, "conflict": 0, "rejected": 1, "late": 0, "rejects": None,
    }  # fmt: skip
    assert oldest["metadata"]["window"]["events"] == 6
    whole = said(full, f"/v1/slices/{oldest['id'][:16]}")
    assert whole["id"] == oldest["id"]
    assert [window["start"] for window in whole["windows"]] == [HOUR]
    assert said(full, "/v1/streams/requests/ledger", status="failed")["slices"] == []
    assert full.http.get("/v1/slices/zz").status_code == 404


def test_windows_and_datasets_come_by_page_newest_first(full):
    starts = [page[0]["start"] for page in pages(full, "/v1/streams/requests/windows", "windows", limit=1)]
    assert starts == [HOUR, BEFORE]
    found = said(full, "/v1/streams/requests/datasets", limit=1)
    assert found["datasets"][0]["start"] == HOUR
    assert found["datasets"][0]["rows"] == 5
    spanned = said(full, "/v1/streams/requests/windows", **{"from": HOUR})
    assert [one["start"] for one in spanned["windows"]] == [HOUR]
    assert said(full, "/v1/streams/requests/windows", state="failed")["windows"] == []
    assert full.http.get("/v1/streams/bare/windows").status_code == 400
    reversed_ = full.http.get(
        "/v1/streams/requests/windows", params={"from": HOUR, "to": "2026-01-01T00:00:00Z"}
    )
    assert reversed_.status_code == 400


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_a_dataset_is_downloaded_whole(full, form):
    answer = full.http.get(f"/v1/streams/requests/datasets/{HOUR}", params={"format": form})
    assert answer.status_code == 200
    assert answer.headers["tidemill-revision"] == "1"
    assert answer.headers["content-disposition"].endswith(f'_r1.{form}"')
    if form == "arrow":
        table = ipc.open_file(pa.BufferReader(answer.content)).read_all()
        file = (
            full.mill.project.warehouse / said(full, "/v1/streams/requests/datasets")["datasets"][0]["file"]
        )
        assert answer.content == file.read_bytes()
    else:
        table = pq.read_table(io.BytesIO(answer.content))
    assert table.column("event_id").to_pylist() == [f"r{i}" for i in range(5)]
    assert table.column("status").to_pylist() == [BIG + i for i in range(5)]


def test_a_dataset_is_the_revision_of_an_arrival(full):
    where = f"/v1/streams/requests/windows/{HOUR}"
    (first,) = said(full, where, as_of="0s")["as_of"]["revisions"]
    then = said(full, where, as_of=first["since"])["as_of"]
    assert (then["revision"], then["rows"], then["changed"], then["reaches_back_to"]) == (1, 5, False, None)
    assert said(full, where, as_of="2000-01-01T00:00:00Z")["as_of"]["revision"] is None
    assert "as_of" not in said(full, where)
    rows = f"/v1/streams/requests/datasets/{HOUR}"
    answer = full.http.get(rows, params={"as_of": first["since"]})
    assert (answer.status_code, answer.headers["tidemill-revision"]) == (200, "1")


def test_a_dataset_that_is_not_there_is_not_found(full):
    for path, status in [
        (f"{HOUR}?as_of=2000-01-01T00:00:00Z", 404),
        (f"{HOUR}?as_of=1h&revision=1", 400),
        ("2020-01-01T00:00:00Z", 404),
        (f"{HOUR}?revision=9", 404),
        ("yesterday", 400),
        ("..%2F..%2Ftidemill.yaml", 404),  # no address at all
        (f"{HOUR}?format=csv", 400),
        (f"{HOUR}?revision=0", 400),
    ]:
        answer = full.http.get(f"/v1/streams/requests/datasets/{path}")
        assert answer.status_code == status, path
        assert answer.headers["content-type"] == "application/problem+json"


def test_queries_answer_with_exact_numbers(full):
    text = "SELECT count, sum(latency_ms) FROM requests GROUP BY api"
    for answer in (
        full.http.get("/v1/query", params={"q": text}),
        full.http.post("/v1/query", json={"query": text}),
        full.http.post(
            "/v1/query",
            json={"query": {"select": ["count", "sum(latency_ms)"], "from": "requests", "group_by": ["api"]}},
        ),
    ):
        assert answer.status_code == 200, answer.text
        assert answer.json()["rows"] == [{"api": "/cart", "count": 6, "sum(latency_ms)": 0}]
    explained = full.http.get("/v1/query", params={"q": f"EXPLAIN {text}"}).json()
    assert explained["stream"] == "requests"
    assert (explained["level"], explained["rows"]) == ("7d", 1)


def test_decimals_are_told_digit_by_digit(served):
    raw = f'{{"event_id":"d1","ts":"{HOUR}","api":"/a","latency_ms":123456789012345.678,"status":{BIG}}}'
    answer = served.http.post(
        "/v1/streams/requests/events", content=raw.encode(), headers={"content-type": "application/json"}
    )
    assert answer.status_code == 202
    served.settle()
    query = served.http.get("/v1/query", params={"q": "SELECT sum(latency_ms) FROM requests"}).text
    assert '"sum(latency_ms)":123456789012345.678' in query
    found = served.http.get("/v1/streams/requests/search").text
    assert raw in found  # the payload, verbatim
    assert json.loads(found)["rows"][0]["payload"]["status"] == BIG


def test_an_answer_that_would_not_fit_is_refused_with_what_to_do(full):
    week = "BETWEEN 2026-01-01T00:00:00Z AND 2026-01-08T00:00:00Z"
    text = f"SELECT count FROM requests {week} INTERVAL 5s FILL zero"
    answer = full.http.get("/v1/query", params={"q": text})
    assert answer.status_code == 400
    assert answer.json()["detail"] == "the answer has 120,960 rows; at most 100,000 are sent"
    assert len(full.http.get("/v1/query", params={"q": f"{text} LIMIT 10"}).json()["rows"]) == 10


def test_a_mistake_in_a_query_is_told_with_its_place(full):
    answer = full.http.get("/v1/query", params={"q": "SELECT count FROM requests WHERE"})
    assert answer.status_code == 400
    problem = answer.json()
    assert problem["code"] == "query"
    assert problem["position"] == len("SELECT count FROM requests WHERE")
    assert full.http.get("/v1/query", params={"q": "SELECT count FROM nothing"}).status_code == 404


UNREADABLE = [
    (b'{"query": ', "application/json", 400),
    (b"[]", "application/json", 400),
    (b'{"query": 1}', "application/json", 400),
    (b'{"query": "SELECT count FROM requests", "engine": "spark"}', "application/json", 400),
    (b'{"query": "SELECT count FROM requests", "query": ""}', "application/json", 400),
    (b'{"query": "SELECT count FROM requests"}', "text/plain", 415),
    (b"[" * 100_000, "application/json", 400),
    (b'{"query": "' + b"x" * (1 << 20) + b'"}', "application/json", 413),
    (b"\xff", "application/json", 400),
]


def test_a_question_that_cannot_be_read_is_refused(full):
    for content, media, status in UNREADABLE:
        answer = full.http.post("/v1/query", content=content, headers={"content-type": media})
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"


def test_searches_come_by_page_with_a_cursor(full):
    path, seen, cursor = "/v1/streams/requests/search", [], None
    for _ in range(10):
        asked = {"search": 'WHERE api = "/cart"', "limit": 2, "total": True, "cursor": cursor}
        page = full.http.post(path, json=asked).json()
        assert page["total"] == 6
        seen += [row["event_id"] for row in page["rows"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert seen == ["r4", "r3", "r2", "r1", "r0", "r-late"]
    got = said(full, path, q='WHERE api = "/cart" LIMIT 1')
    assert [row["event_id"] for row in got["rows"]] == ["r4"]
    assert full.http.get(path, params={"cursor": "nonsense"}).status_code == 400
    for wrong in (
        {"limit": 10_001},
        {"limit": 0},
        {"q": "LIMIT 10001"},
        {"q": '{"limit": 10001}'},
        {"q": "!"},
    ):
        assert full.http.get(path, params=wrong).status_code == 400
        assert full.http.get("/v1/streams/bare/search", params=wrong).status_code == 400
    assert said(full, "/v1/streams/bare/search")["rows"] == []  # nothing was accepted there yet


def test_quarantine_comes_by_page_verbatim(full):
    for number in range(4):
        full.send("requests", [{"event_id": f"bad{number}", "ts": "never"}, full.request(f"g{number}", 40)])
        full.settle()
    every = list(pages(full, "/v1/streams/requests/quarantine", "rows", limit=2))
    assert [len(page) for page in every] == [2, 2, 1]
    ids = [json.loads(row["payload"])["event_id"] for page in every for row in page]
    assert ids == ["bad3", "bad2", "bad1", "bad0", "bad"]
    row = every[0][0]
    assert row["payload"] == '{"event_id":"bad3","ts":"never"}'
    assert said(full, "/v1/streams/requests/quarantine", slice=row["slice"])["rows"] == [row]
    assert said(full, "/v1/streams/requests/quarantine", reason="skew")["rows"] == []
    for wrong in ({"reason": "nothing"}, {"cursor": "AAAA"}, {"limit": 0}, {"limit": 1001}):
        assert full.http.get("/v1/streams/requests/quarantine", params=wrong).status_code == 400


def test_late_rows_come_by_page(full):
    for number in range(3):
        late = [full.request(f"late{number}{i}", i) | {"ts": "2026-01-05T08:00:00Z"} for i in range(2)]
        full.send("requests", late)
        full.settle()
    every = list(pages(full, "/v1/streams/requests/late", "rows", limit=3))
    ids = [row["event_id"] for page in every for row in page]
    assert ids == ["late20", "late21", "late10", "late11", "late00", "late01", "r-late"]
    page = said(full, "/v1/streams/requests/late", limit=1)
    assert (page["total"], page["more"], page["rows"][0]["lateness"]) == (7, True, "2h4s")
    assert said(full, "/v1/streams/requests/late", since="1h", limit=1)["total"] == 7
    assert full.http.get("/v1/streams/requests/late", params={"since": "once"}).status_code == 400


def test_status_and_metrics_tell_of_the_gateway(full):
    status = said(full, "/v1/status")
    assert status["gateway"]["acknowledged"] == status["gateway"]["landed"] == 7
    assert status["streams"][0]["counts"]["accepted"] == 6
    answer = full.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    lines = answer.text.splitlines()
    assert "tidemill_gateway_events_acknowledged_total 7.0" in lines
    assert "tidemill_gateway_events_landed_total 7.0" in lines
    assert "tidemill_gateway_requests_refused_total 0.0" in lines
    assert 'tidemill_gateway_memory_pressure{level="low"} 1.0' in lines
    # A buffer that nothing came into for a while is gone, so it may be missing on a slow machine.
    buffered = [line for line in lines if line.startswith("tidemill_gateway_buffer_events{")]
    assert all(line.endswith(" 0.0") for line in buffered)
    assert any(line.startswith("tidemill_gateway_windows_closed_total{trigger=") for line in lines)
    assert any(line.startswith('tidemill_gateway_memory_bytes{component="total"}') for line in lines)
    assert any(line.startswith("tidemill_gateway_wal_segments ") for line in lines)
    assert 'tidemill_windows{phase="built",stream="requests"} 2.0' in lines


HOSTILE = (
    "requests' OR 1=1 --",
    "requests; DROP TABLE slices",
    "../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "requests\u0000",
    "${jndi:ldap://x}",
    "a" * 5_000,
    "requests/../events",
    "💥",
    "*",
)


PATHS = (
    "", "/ledger", "/manifest", "/windows", "/datasets", f"/datasets/{HOUR}",
    "/search", "/quarantine", "/late",
)  # fmt: skip


def test_names_from_outside_stay_names(full):
    """No name becomes SQL or a path: it is a stream that is not there, or a tenant without events."""
    for name in HOSTILE:
        _check_name(full, name)
    assert said(full, "/v1/query", q="SELECT count FROM requests")["rows"] == [{"count": 6}]


def _check_name(full, name: str) -> None:
    for path in PATHS:
        answer = full.http.get(f"/v1/streams/{quote(name, safe='')}{path}")
        assert answer.status_code in (400, 404, 431), (path, answer.text)
    for params in ({"q": "SELECT count FROM requests", "tenant": name}, {"q": f"SELECT count FROM {name}"}):
        answer = full.http.get("/v1/query", params=params)
        assert answer.status_code in (400, 404), answer.text
    if len(name) < 256:
        assert full.http.get("/v1/streams/requests/search", params={"tenant": name}).status_code == 404
        for path in ("quarantine", "late"):
            answer = full.http.get(f"/v1/streams/requests/{path}", params={"tenant": name})
            assert answer.status_code == 200, answer.text
            assert answer.json()["rows"] == []
    for params in ({"slice": name}, {"reason": name}):
        assert full.http.get("/v1/streams/requests/quarantine", params=params).status_code in (400, 404)
    assert full.http.get(f"/v1/slices/{quote(name, safe='')}").status_code in (400, 404)


def test_an_answer_comes_as_an_arrow_file_with_what_else_it_says(full):
    q = "SELECT count, sum(latency_ms) FROM requests GROUP BY api"
    answer = full.http.get("/v1/query", params={"q": q, "format": "arrow"})
    assert answer.headers["content-type"] == "application/vnd.apache.arrow.file"
    table = ipc.open_file(io.BytesIO(answer.content)).read_all()
    plain = said(full, "/v1/query", q=q)
    assert table.column_names == plain["columns"]
    assert table.column("count").to_pylist() == [row["count"] for row in plain["rows"]] == [6]
    about = json.loads(table.schema.metadata[b"tidemill"])
    assert about["completeness"] == plain["completeness"]
    refused = full.http.get("/v1/query", params={"q": "EXPLAIN " + q, "format": "arrow"})
    assert (refused.status_code, refused.json()["where"]) == (400, "format")
