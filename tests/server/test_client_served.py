"""The clients against a real server: what the rules decide without one holds with one, too."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from tests.support.patience import PATIENCE

from tidemill.client import AsyncClient, Client, ClientError, Retries
from tidemill.config.gateway import KIB
from tidemill.model.errors import InputError
from tidemill.model.time import HOUR

NEVER = Retries(total=0)


@pytest.fixture
def client(served) -> Iterator[Client]:
    with Client(served.url, retries=NEVER) as client:
        yield client


def test_events_are_durable_and_found_by_their_ingestion(served, client):
    sent = client.send("requests", served.request("a"), source="edge")
    assert (sent.events, sent.status) == (1, "durable")
    served.settle()
    found = client.ingestion(sent.ingestion)
    assert (found.stream, found.status, found.counts) == ("requests", "decided", {"accepted": 1})
    assert [(one.event_id, one.outcome) for one in found.outcomes] == [("a", "accepted")]
    assert served.mill.slice(found.slice).slice.source == "edge"


def test_who_waits_learns_what_became_of_each_event(served, client):
    with served.ticking():
        assert client.send("requests", served.request("a"), wait=True).counts == {"accepted": 1}
        events = [
            served.request("a"),
            served.request("a", status=500),
            {"event_id": "b"},
            served.request("c"),
        ]
        sent = client.send("requests", events, wait=30.0)
    assert sent.status == "decided"
    assert [(one.index, one.outcome) for one in sent.outcomes] == [
        (0, "duplicate"), (1, "conflict"), (2, "rejected"), (3, "accepted"),
    ]  # fmt: skip
    conflict, rejected = sent.outcomes[1:3]
    assert conflict.content_hash != conflict.accepted_hash is not None
    assert rejected.code == "bad_time"
    assert not sent.ok


def test_a_file_that_was_retracted_is_refused(served, client):
    table = pa.table({"event_id": ["a"], "ts": ["2026-01-05T10:00:00Z"]})
    sent = client.send_arrow("requests", table.to_batches()[0])
    served.settle()
    taken = client.ingestion(sent.ingestion).slice
    served.mill.retract(served.mill.plan_retraction(taken, "a mistake"))
    with pytest.raises(ClientError) as refused:
        client.send_arrow("requests", table.to_batches()[0])
    assert (refused.value.code, refused.value.status) == ("retracted", 409)


@pytest.mark.parametrize("outcome", ["conflict", "rejected"])
def test_events_that_are_all_turned_away_are_an_answer_and_no_error(served, client, outcome):
    wrong = {"conflict": served.request("a", status=500), "rejected": {"event_id": "b"}}[outcome]
    with served.ticking():
        client.send("requests", served.request("a"), wait=True)
        sent = client.send("requests", [wrong], wait=True)
    assert (sent.counts, sent.status, sent.ok) == ({outcome: 1}, "decided", False)


def test_a_stream_of_events_is_sent_in_compressed_requests_and_nothing_is_missing(served):
    events = ({**served.request(f"e{n}"), "api": "/cart" * 20} for n in range(2500))
    with Client(served.url, batch=700, gzip_above=KIB) as client:
        sent = client.send("requests", events)
    assert (sent.events, len(sent.ingestions)) == (2500, 4)
    served.settle()
    assert served.mill.status()[0].raw_rows == 2500


def test_events_without_an_id_get_one(served, client):
    without = [{key: value for key, value in served.request("").items() if key != "event_id"}] * 3
    with served.ticking():
        assert client.send("requests", without, wait=True).counts == {"accepted": 3}


def test_tables_are_sent_as_arrow(served, client):
    table = pa.Table.from_pylist([served.request(f"t{n}") for n in range(10)])
    with served.ticking():
        sent = client.send_arrow("requests", table, wait=True)
        again = client.send_arrow("requests", table.to_batches()[0], wait=True)
    assert (sent.counts, again.counts) == ({"accepted": 10}, {"duplicate": 10})


def test_a_problem_is_an_error_with_what_the_server_said(served, client):
    with pytest.raises(ClientError) as unknown:
        client.send("nothing", {"a": 1})
    assert (unknown.value.status, unknown.value.code) == (404, "not_found")
    assert "requests" in unknown.value.hint
    with pytest.raises(ClientError) as large:
        client.send("requests", {"event_id": "a", "text": "x" * (2 << 20)})
    assert (large.value.status, large.value.code) == (413, "too_large")


def test_a_token_is_shown(served, client):
    token = served.token("ingest", tenant="acme")["Authorization"].removeprefix("Bearer ")
    with pytest.raises(ClientError) as nobody:
        client.send("requests", served.request("a"))
    assert (nobody.value.status, nobody.value.code) == (401, "unauthorized")
    with Client(served.url, token, retries=NEVER) as known:
        assert known.send("requests", served.request("a")).status == "durable"
        with pytest.raises(ClientError) as another:
            known.send("events", served.event("a", tenant="globex"))
    assert (another.value.status, another.value.code) == (403, "forbidden")


def test_the_async_client_sends_at_once_what_is_made_at_once(served):
    async def made():
        for n in range(30):
            await asyncio.sleep(0)
            yield served.request(f"m{n}")

    async def send():
        async with AsyncClient(served.url, batch=10) as client:
            each = [client.send("requests", [served.request(f"a{n}")], wait=True) for n in range(5)]
            many, *single = await asyncio.gather(client.send("requests", made()), *each)
            found = await client.ingestion(many.ingestion)
            return many, single, found

    with served.ticking():
        many, single, found = asyncio.run(send())
    assert (many.events, len(many.ingestions)) == (30, 3)
    assert [one.counts for one in single] == [{"accepted": 1}] * 5
    assert found.events == 10


def test_a_server_that_is_not_there_yet_is_waited_for():
    """The same request is sent until it is answered."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    tries: list[float] = []
    there = threading.Event()

    def answer() -> None:
        with socket.create_server(("127.0.0.1", port)) as server:
            there.set()
            connection, _ = server.accept()
            with connection:
                received = b""
                while b"\r\n\r\n" not in received or not received.endswith(b"\n"):
                    received += connection.recv(65536)
                body = b'{"ingestion":"aa-1","stream":"s","events":1,"status":"durable"}'
                connection.sendall(
                    b"HTTP/1.1 202 Accepted\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
                )

    server = threading.Thread(target=answer, daemon=True)

    def sleep(seconds: float) -> None:
        tries.append(seconds)
        if len(tries) == 3:
            server.start()
            assert there.wait(PATIENCE)

    with Client(f"http://127.0.0.1:{port}", sleep=sleep, clock=lambda: 0.0) as client:
        assert client.send("s", {"a": 1}).ingestion == "aa-1"
    server.join(PATIENCE)
    assert len(tries) == 3


def test_bounds_are_declared_with_the_last_request(served):
    bounds = {"start": "2026-01-05T10:00:00Z", "end": datetime(2026, 1, 5, 11, tzinfo=UTC)}
    events = [served.request(name) for name in "abc"]
    with Client(served.url, retries=NEVER, batch=2) as client:
        client.send("requests", events, **bounds)
        client.send("requests", [], start="2026-01-05T11:00:00Z", end="2026-01-05T12:00:00Z")
        with pytest.raises(InputError, match="both ends"):
            client.send("requests", events, start="2026-01-05T10:00:00Z")
        with pytest.raises(InputError, match="time zone"):
            client.send("requests", events, start=datetime(2026, 1, 5), end=bounds["end"])  # noqa: DTZ001

    async def send() -> None:
        async with AsyncClient(served.url, retries=NEVER, batch=2) as client:
            more = [served.request(name, 30) for name in "def"]
            await client.send("requests", more, start="2026-01-05T12:00:00Z", end="2026-01-05T13:00:00Z")
            table = pa.Table.from_pylist([served.request("g")])
            await client.send_arrow("requests", table, **bounds)

    asyncio.run(send())
    served.settle()
    hours = [one.slice.declared and (one.slice.declared.start // HOUR) % 24 for one in served.mill.ledger()]
    assert hours[::-1] == [None, 10, 11, None, 12, 10]
