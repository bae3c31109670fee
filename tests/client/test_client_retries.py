"""When a request is sent again, after how long, and when the client gives up: no sleeps, no sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import httpx
import pytest

import tidemill
from tidemill.client import AsyncClient, Client, ClientError, Retries, Sent
from tidemill.client.retries import requested_pause
from tidemill.model.errors import InputError, Retry, TidemillError

DURABLE = {"ingestion": "aa-1", "stream": "s", "events": 1, "status": "durable"}
Answer = httpx.Response | Exception


def problem(status: int, code: str, **more: object) -> httpx.Response:
    said = {"type": f"urn:tidemill:problem:{code}", "title": "t", "status": status, "code": code, **more}
    headers = {"content-type": "application/problem+json"}
    return httpx.Response(status, headers=headers, content=json.dumps(said))


def taken(**more: object) -> httpx.Response:
    return httpx.Response(202, json={**DURABLE, **more})


@dataclass
class World:
    """A server that answers by a script, and a clock that only sleeping moves."""

    script: Iterator[Answer]
    now: float = 0.0
    pauses: list[float] = field(default_factory=list)
    requests: list[httpx.Request] = field(default_factory=list)

    def handle(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.requests.append(request)
        answer = next(self.script)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    async def asleep(self, seconds: float) -> None:
        self.sleep(seconds)

    def options(self, **more: object) -> dict[str, object]:
        ids = iter(f"id-{n}" for n in range(10**9))
        given = {"clock": lambda: self.now, "random": lambda: 1.0, "new_id": lambda: next(ids)}
        return {"transport": httpx.MockTransport(self.handle), **given, **more}


Call = Callable[..., tuple[World, object]]


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Call:
    """`call(script, act)`: the world after `act` was done by a client of it, and what came of it.

    `act` gets a function that does what a method does, whichever the client.
    """

    def sync(script, method, *arguments, options=None, **named):
        world = World(iter(script))
        with Client(sleep=world.sleep, **world.options(**(options or {}))) as client:
            return world, _caught(lambda: getattr(client, method)(*arguments, **named))

    def async_(script, method, *arguments, options=None, **named):
        world = World(iter(script))

        async def act():
            async with AsyncClient(sleep=world.asleep, **world.options(**(options or {}))) as client:
                return await getattr(client, method)(*arguments, **named)

        return world, _caught(lambda: asyncio.run(act()))

    return sync if request.param == "sync" else async_


def _caught(act):
    try:
        return act()
    except TidemillError as error:
        return error


def test_an_event_is_sent_once_when_it_is_taken(call):
    world, sent = call([taken()], "send", "web logs", {"a": 1}, source="edge")
    assert sent == Sent(("aa-1",), 1, "durable")
    assert (sent.ingestion, sent.ok) == ("aa-1", True)
    (request,) = world.requests
    assert str(request.url) == "http://127.0.0.1:8470/v1/streams/web%20logs/events?source=edge"
    assert request.headers["content-type"] == "application/x-ndjson"
    assert request.content == b'{"a":1,"event_id":"id-0"}\n'
    assert "authorization" not in request.headers


@pytest.mark.parametrize("status", [408, 429, 502, 503, 504])
def test_the_same_bytes_are_sent_again_when_the_server_cannot_take_them_now(call, status):
    world, sent = call([problem(status, "overloaded"), taken()], "send", "s", {"a": 1})
    assert isinstance(sent, Sent)
    assert [request.content for request in world.requests] == [b'{"a":1,"event_id":"id-0"}\n'] * 2


@pytest.mark.parametrize(
    "error",
    [httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), httpx.RemoteProtocolError("it hung up")],
    ids=lambda error: type(error).__name__,
)
def test_a_lost_connection_is_a_reason_to_send_the_same_again(call, error):
    world, sent = call([error, error, taken()], "send", "s", {"a": 1})
    assert isinstance(sent, Sent)
    assert {request.content for request in world.requests} == {b'{"a":1,"event_id":"id-0"}\n'}


def test_pauses_double_up_to_a_bound(call):
    retries = Retries(total=100, first=0.1, most=0.5)
    script = [*[problem(503, "storage")] * 5, taken()]
    world, _ = call(script, "send", "s", {}, options={"retries": retries})
    assert world.pauses == [0.1, 0.2, 0.4, 0.5, 0.5]


def test_chance_spreads_those_who_were_refused_together(call):
    options = {"random": lambda: 0.25, "retries": Retries(first=1.0)}
    world, _ = call([problem(503, "storage"), taken()], "send", "s", {}, options=options)
    assert world.pauses == [0.25]


def test_retry_after_is_the_least_that_is_waited(call):
    refused = problem(429, "overloaded")
    refused.headers["retry-after"] = "3"
    world, _ = call([refused, taken()], "send", "s", {})
    assert world.pauses == [3.1]


def test_retry_after_may_be_an_instant_by_the_clock_of_the_server():
    said = {"retry-after": "Mon, 15 Jan 2024 12:00:30 GMT", "date": "Mon, 15 Jan 2024 12:00:00 GMT"}
    assert requested_pause(httpx.Headers(said)) == 30.0
    assert requested_pause(httpx.Headers({**said, "retry-after": said["date"]})) == 0.0
    assert requested_pause(httpx.Headers({"retry-after": said["retry-after"]})) is None
    assert requested_pause(httpx.Headers({"retry-after": "soon"})) is None
    assert requested_pause(httpx.Headers()) is None


def test_it_gives_up_before_the_total_time_is_over_and_tells_the_last_problem(call):
    script = [problem(503, "storage", detail="disk full", hint="free some", where="/w", retry="later")]
    world, error = call(script * 9, "send", "s", {}, options={"retries": Retries(total=1.0)})
    assert world.pauses == [0.1, 0.2, 0.4]
    assert isinstance(error, ClientError)
    assert error.as_dict() == {
        "code": "storage", "message": "disk full", "where": "/w", "hint": "free some", "retry": "later",
    }  # fmt: skip
    assert error.status == 503
    assert error.problem["type"] == "urn:tidemill:problem:storage"


def test_a_server_that_is_not_there_is_told_with_its_address(call):
    options = {"retries": Retries(total=0)}
    world, error = call([httpx.ConnectError("refused")], "status", options=options)
    assert len(world.requests) == 1
    assert isinstance(error, ClientError)
    assert (error.code, error.status, error.where) == ("unreachable", None, "http://127.0.0.1:8470/v1/status")
    assert "tidemill up" in error.hint


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "input"), (401, "unauthorized"), (403, "forbidden"), (404, "not_found"), (413, "too_large"),
     (415, "media_type"), (500, "internal")],
)  # fmt: skip
def test_what_no_try_makes_better_is_told_at_once(call, status, code):
    world, error = call([problem(status, code, detail="no")], "send", "s", {})
    assert isinstance(error, ClientError)
    assert (error.status, error.code, error.message, error.retry) == (status, code, "no", Retry.NEVER)
    assert len(world.requests) == 1


def test_an_answer_that_is_none_of_tidemills_is_an_error(call):
    _, html = call([httpx.Response(502, text="<html>")] * 99, "status", options={"retries": Retries(total=1)})
    assert isinstance(html, ClientError)
    assert (html.code, html.message) == ("http_502", "the server answered 502 Bad Gateway")
    _, elsewhere = call([httpx.Response(307, headers={"location": "/x"})], "status")
    assert isinstance(elsewhere, ClientError)
    assert elsewhere.code == "http_307"
    _, other = call([httpx.Response(200, text="hello")], "send", "s", {})
    assert isinstance(other, ClientError)
    assert (other.code, other.retry) == ("answer", Retry.NEVER)


def test_a_token_is_shown_to_the_server(call):
    world, _ = call([taken()], "send", "s", {}, options={"token": "tm_a_b"})
    assert world.requests[0].headers["authorization"] == "Bearer tm_a_b"


def test_many_events_are_sent_while_they_are_made(call):
    made: list[int] = []

    def events():
        for n in range(5):
            made.append(n)
            yield {"event_id": str(n)}

    seen: list[int] = []

    def script():
        for n, events in enumerate([2, 2, 1]):
            seen.append(len(made))
            yield taken(ingestion=f"aa-{n}", events=events)

    world, sent = call(script(), "send", "s", events(), options={"batch": 2})
    assert isinstance(sent, Sent)
    assert (sent.ingestions, sent.events) == (("aa-0", "aa-1", "aa-2"), 5)
    assert seen == [3, 5, 5]  # the event that does not fit shows that a request is full
    assert [len(request.content.splitlines()) for request in world.requests] == [2, 2, 1]


def test_nothing_to_send_is_no_request(call):
    world, sent = call([], "send", "s", [])
    assert sent == Sent((), 0, "durable")
    assert world.requests == []
    assert sent.ingestion is None


def test_who_waits_is_told_what_became_of_each_event_whatever_it_was(call):
    def decided(status, *outcomes):
        reported = [{"index": n, "event_id": str(n), "outcome": one} for n, one in enumerate(outcomes)]
        counts = {one: outcomes.count(one) for one in outcomes}
        body = {"ingestion": f"aa-{status}", "events": len(reported), "counts": counts, "outcomes": reported}
        if status < 400:
            return httpx.Response(status, json={**body, "status": "decided"})
        return problem(status, "conflict", **body)

    script = [
        decided(200, "accepted", "duplicate"), decided(409, "conflict", "conflict"),
        decided(207, "accepted", "rejected"), decided(422, "rejected"),
    ]  # fmt: skip
    events = [{"event_id": str(n)} for n in range(7)]
    world, sent = call(script, "send", "s", events, wait=True, options={"batch": 2})
    assert isinstance(sent, Sent)
    assert sent.status == "decided"
    assert sent.counts == {"accepted": 2, "duplicate": 1, "conflict": 2, "rejected": 2}
    assert [one.index for one in sent.outcomes] == list(range(7))
    assert not sent.ok
    assert all(request.url.params["wait"] == "1" for request in world.requests)


def test_time_that_ran_out_is_pending_and_seconds_are_asked_for_by_prefer(call):
    world, sent = call([taken(status="pending")], "send", "s", {}, wait=2.5)
    assert isinstance(sent, Sent)
    assert sent.status == "pending"
    (request,) = world.requests
    assert request.headers["prefer"] == "wait=3"
    assert request.extensions["timeout"]["read"] == 32.5


def test_an_address_or_a_rule_that_makes_no_sense_is_refused():
    for url in ("127.0.0.1:8470", "ftp://x", "http://", "http://h:port"):
        with pytest.raises(InputError, match="not the address of a server"):
            Client(url)
    with pytest.raises(InputError, match="at least one event"):
        Client(batch=0)
    with pytest.raises(InputError, match="invalid retries"):
        Retries(first=0)


def test_the_clients_are_those_of_the_package():
    assert (tidemill.Client, tidemill.AsyncClient) == (Client, AsyncClient)
    with pytest.raises(AttributeError, match="no attribute 'Server'"):
        tidemill.Server  # noqa: B018
