"""What a client reads: pages one after the other, exact numbers, and events across connections."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from decimal import Decimal

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.client import AsyncClient, Client, ClientError, DatasetEvent, Ingestion, Outcome, Retries
from tidemill.client.responses import EventLines

QUIET = {"sleep": lambda _seconds: None, "random": lambda: 0.0, "clock": lambda: 0.0}


def served(*answers, seen=None):
    script = iter(answers)

    def handle(request):
        request.read()
        if seen is not None:
            seen.append(request)
        answer = next(script)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return httpx.MockTransport(handle)


def test_numbers_of_a_query_are_exact():
    text = '{"rows": [{"sum": 0.1, "count": 3}]}'
    with Client(transport=served(httpx.Response(200, text=text))) as client:
        assert client.query("SELECT …")["rows"] == [{"sum": Decimal("0.1"), "count": 3}]


def test_a_search_goes_from_page_to_page_as_far_as_one_reads():
    pages = [
        httpx.Response(200, json={"rows": [{"n": 1}, {"n": 2}], "cursor": "next"}),
        httpx.Response(200, json={"rows": [{"n": 3}], "cursor": None}),
    ]
    seen = []
    with Client(transport=served(*pages, seen=seen)) as client:
        found = client.search("s", "FILTER n > 0", tenant="acme", limit=2)
        assert [next(found), next(found)] == [{"n": 1}, {"n": 2}]
        assert len(seen) == 1
        assert list(found) == [{"n": 3}]
    assert [json.loads(request.content) for request in seen] == [
        {"search": "FILTER n > 0", "tenant": "acme", "limit": 2},
        {"search": "FILTER n > 0", "tenant": "acme", "limit": 2, "cursor": "next"},
    ]


def test_an_ingestion_says_where_its_events_are():
    outcome = {"index": 0, "event_id": "a", "outcome": "conflict", "content_hash": "x", "accepted_hash": "y"}
    body = {"ingestion": "aa-1", "stream": "s", "status": "decided", "slice": "f0", "window": "w",
            "events": 1, "counts": {"conflict": 1}, "outcomes": [outcome]}  # fmt: skip
    with Client(transport=served(httpx.Response(200, json=body))) as client:
        found = client.ingestion("aa-1")
    conflict = Outcome(0, "conflict", "a", content_hash="x", accepted_hash="y")
    assert found == Ingestion("aa-1", "s", "decided", 1, "f0", "w", {"conflict": 1}, (conflict,))


# -- server-sent events


def lines_of(*texts):
    lines = EventLines()
    return [event for text in texts for event in lines.read(text)], lines


def test_an_event_ends_with_an_empty_line_and_comments_are_none():
    text = (
        ': hello\nretry: 1500\nid: 4\nevent: tidemill.dataset.available\ndata: {"a":\ndata: 1}\n\n: beat\n\n'
    )
    found, lines = lines_of(text)
    assert found == [DatasetEvent("4", "tidemill.dataset.available", {"a": 1})]
    assert (lines.last, lines.pause) == ("4", 1.5)


@given(st.data())
def test_where_the_network_cuts_does_not_matter(data):
    text = 'id: 1\r\ndata: {"a": "x\u2028y"}\r\n\r\nid: 2\rdata: {}\r\rid: 3\ndata: {"b": 2}\n\n'
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    found, _ = lines_of(*pieces)
    assert [(event.id, event.event) for event in found] == [
        ("1", {"a": "x\u2028y"}),
        ("2", {}),
        ("3", {"b": 2}),
    ]


def test_an_event_that_a_broken_connection_left_unfinished_is_not_told():
    lines = EventLines()
    assert list(lines.read('id: 1\ndata: {}\n\nid: 2\ndata: {"half": 1}\n')) == [
        DatasetEvent("1", "message", {})
    ]
    lines.connected()
    assert lines.last == "1"
    assert list(lines.read('\nid: 2\ndata: {"whole": 1}\n\n')) == [DatasetEvent("2", "message", {"whole": 1})]


def script():
    sse = {"content-type": "text/event-stream"}
    return (
        httpx.Response(200, headers=sse, text='id: 1\ndata: {"n": 1}\n\nid: 2\ndata: {"n": 2}\n\nid: 3\nda'),
        httpx.ConnectError("refused"),
        httpx.Response(503, json={"code": "busy"}),
        httpx.Response(200, headers=sse, text='id: 3\ndata: {"n": 3}\n\n'),
    )


def test_a_broken_connection_is_made_again_behind_the_last_event():
    seen = []
    with Client(transport=served(*script(), seen=seen), **QUIET) as client:
        found = client.events(after=0)
        assert [next(found).event["n"] for _ in range(3)] == [1, 2, 3]
        found.close()
    assert [request.headers["last-event-id"] for request in seen] == ["0", "2", "2", "2"]


def test_the_async_client_listens_the_same_way():
    seen = []

    async def sleep(_seconds):
        pass

    async def listen(found):
        async with AsyncClient(transport=served(*script(), seen=seen), **{**QUIET, "sleep": sleep}) as client:
            async for event in client.events():
                found.append(event.event["n"])
                if len(found) == 3:
                    return

    found: list[int] = []
    asyncio.run(listen(found))
    assert found == [1, 2, 3]
    assert [request.headers.get("last-event-id") for request in seen] == [None, "2", "2", "2"]


def test_listening_gives_up_when_nobody_is_there_for_too_long():
    gone = [httpx.ConnectError("refused")] * 3
    options = {**QUIET, "retries": Retries(total=0)}
    clock = iter(range(100))
    client = Client(transport=served(*gone), **{**options, "clock": lambda: next(clock)})
    with client, pytest.raises(ClientError, match="did not answer"):
        next(client.events())


def test_importing_the_package_loads_no_client():
    code = (
        "import sys, tidemill as t; m = sys.modules; print('httpx' in m, t.Client.__name__, 'pyspark' in m)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "Client", "False"]


def test_a_trace_asks_for_one_id():
    seen = []
    with Client(transport=served(httpx.Response(200, json={"streams": []}), seen=seen)) as client:
        assert client.trace("a/b", stream="shop") == {"streams": []}
    assert seen[0].url.path == "/v1/trace"
    assert dict(seen[0].url.params) == {"id": "a/b", "stream": "shop"}
