"""Slow, half-open, oversized and rude clients: each is let go of, and whoever behaves does not notice."""

from __future__ import annotations

import asyncio
import json
import select
import selectors
import socket
import time
from contextlib import ExitStack

import pytest

from tidemill.model.gateway import Pressure
from tidemill.server.app import create_app

PATIENCE = 0.3
QUICK = "requests: {timeout: 300ms, body: 64KiB}"
HEAD = b"POST /v1/streams/requests/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture
def quick(serving):
    return serving(gateway=QUICK)


def dial(served) -> socket.socket:
    host, port = served.url.removeprefix("http://").split(":")
    found = socket.create_connection((host, int(port)), timeout=120)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def rest(connection: socket.socket) -> bytes:
    """All that the server still says before it closes the connection."""
    found = b""
    try:
        while piece := connection.recv(65536):
            found += piece
    except ConnectionResetError:
        pass
    return found


def problem(answer: bytes) -> dict[str, object]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head, answer
    return json.loads(body)


def held(served) -> int:
    """Bytes of bodies that are counted."""
    return served.gateway.memory.usage()["requests"][0]


def released(served) -> None:
    """Returns once no bytes are counted: the server answers before it lets go of them."""
    while held(served):
        served.http.get("/healthz")


def test_headers_that_never_end_are_given_up_while_others_are_served(quick):
    began = time.monotonic()
    with dial(quick) as slow, dial(quick) as silent:
        slow.sendall(HEAD)
        for number in range(5):
            assert quick.send("requests", quick.request(f"e{number}")).status_code == 202
        assert rest(slow) == b""
        assert rest(silent) == b""
    assert time.monotonic() - began >= PATIENCE


def test_headers_that_come_by_single_bytes_are_given_up_as_well(quick):
    sent, most = 0, 10_000
    with dial(quick) as slow:
        slow.settimeout(PATIENCE / 20)
        try:
            while sent < most:
                slow.sendall(HEAD[sent % len(HEAD) :][:1])
                sent += 1
                try:
                    if slow.recv(1) == b"":
                        break
                except TimeoutError:
                    pass
        except (BrokenPipeError, ConnectionResetError):
            pass
    assert 1 < sent < most


def test_a_body_that_stalls_is_408_while_others_are_served(quick):
    with dial(quick) as slow:
        slow.sendall(HEAD + b'Content-Length: 100\r\n\r\n{"event_id":')
        assert quick.send("requests", quick.request("a")).status_code == 202
        slow.settimeout(10)
        answer = slow.recv(65536)
    assert answer.startswith(b"HTTP/1.1 408 ")
    document = problem(answer)
    assert (document["code"], document["retry"]) == ("timeout", "later")
    assert "0.3 s" in document["detail"]
    released(quick)


class Hurried(selectors.DefaultSelector):
    """Waits for nothing: the clock of its loop is set to when the wait would have ended."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0)


def test_a_body_that_trickles_for_ever_is_408(serving):
    """By a clock of its own: how fast the machine is does not matter."""
    served = serving(gateway="requests: {timeout: 50ms}")
    path = "/v1/streams/requests/events"
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": headers, "client": ("127.0.0.1", 1), "scheme": "http", "http_version": "1.1",
    }  # fmt: skip
    said = []

    async def trickle():
        await asyncio.sleep(0.02)
        return {"type": "http.request", "body": b" ", "more_body": True}

    async def hear(message):
        said.append(message)

    waits = Hurried()
    loop = asyncio.SelectorEventLoop(waits)
    loop.time = lambda: waits.now
    try:
        loop.run_until_complete(create_app(served.service)(scope, trickle, hear))
    finally:
        loop.close()
    assert said[0]["status"] == 408
    assert json.loads(said[1]["body"])["detail"] == "the body took longer than 0.5 s"
    assert waits.now == pytest.approx(0.52)  # the first piece came after 20 ms
    released(served)


def test_slow_bodies_give_up_their_memory_when_others_need_it(serving):
    """Bodies that are nearly whole hold most of what all may use, and stall: nobody is refused for long."""
    served = serving()
    limit = served.mill.project.gateway.requests.body
    with dial(served) as first, dial(served) as second, dial(served) as third:
        for large in (first, second):
            large.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % limit)
            large.sendall(b" " * (limit - 1))
        third.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % limit)
        third.sendall(b" " * (limit // 16))
        while served.gateway.memory.pressure() is not Pressure.HIGH:
            served.http.get("/healthz")
        statuses = set()
        while (sent := served.send("requests", served.request("a"))).status_code != 202:
            assert sent.headers["retry-after"] == "1"
            statuses.add(sent.status_code)
        assert statuses <= {429}
        assert problem(first.recv(65536))["detail"] == "memory is short, and the body came too slowly"
    while held(served):
        served.http.get("/healthz")


def test_many_half_open_and_stalled_connections_hold_up_nobody(serving):
    served = serving(gateway="requests: {timeout: 10s}")
    with ExitStack() as stack:
        for number in range(100):
            slow = stack.enter_context(dial(served))
            slow.sendall(HEAD if number % 2 else HEAD + b"Content-Length: 5000\r\n\r\n{")
        for number in range(50):
            assert served.send("requests", served.request(f"e{number}")).status_code == 202
    served.settle()
    assert sum(entry.counts.accepted for entry in served.mill.ledger("requests")) == 50


def test_a_body_in_many_pieces_is_read_as_long_as_they_keep_coming(quick):
    body = json.dumps(quick.request("a", api="x" * 2000)).encode()
    with dial(quick) as steady:
        steady.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for start in range(0, len(body), 100):
            piece = body[start : start + 100]
            steady.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        steady.sendall(b"0\r\n\r\n")
        assert steady.recv(65536).startswith(b"HTTP/1.1 202 ")
    quick.settle()
    assert quick.mill.ledger("requests")[0].counts.accepted == 1


def test_who_leaves_in_the_middle_of_a_body_leaves_no_memory_behind(quick):
    with dial(quick) as leaving:
        leaving.sendall(HEAD + b"Content-Length: 60000\r\n\r\n" + b" " * 30000)
        while held(quick) == 0:
            quick.http.get("/healthz")
    while held(quick):
        quick.http.get("/healthz")
    released(quick)
    assert quick.gateway.status().acknowledged == 0


def test_a_body_that_says_it_is_too_large_is_refused_before_it_is_read(quick):
    with dial(quick) as large:
        large.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: 65537\r\n\r\n")
        answer = large.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413 ")
    document = problem(answer)
    assert (document["code"], document["where"]) == ("too_large", "gateway.requests.body")


def test_a_body_that_turns_out_too_large_is_refused_and_the_connection_lives_on(quick):
    body = b" " * 70_000
    with dial(quick) as large:
        large.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        large.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
        assert large.recv(65536).startswith(b"HTTP/1.1 413 ")
        large.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert large.recv(65536).startswith(b"HTTP/1.1 200 ")
    released(quick)


def test_the_rest_of_a_refused_body_is_not_waited_for_for_ever(quick):
    with dial(quick) as endless:
        endless.sendall(HEAD + b"Content-Length: 999999999\r\n\r\n")
        assert endless.recv(65536).startswith(b"HTTP/1.1 413 ")
        try:
            while True:
                endless.sendall(b" " * 1024)
        except (BrokenPipeError, ConnectionResetError):
            pass


def test_headers_without_measure_are_431(quick):
    with dial(quick) as rude:
        rude.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 400_000)
        answer = rest(rude)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert problem(answer)["code"] == "header"


def test_what_is_no_http_is_400(quick):
    with dial(quick) as rude:
        rude.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        answer = rest(rude)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert problem(answer)["code"] == "input"


def test_beyond_the_limit_of_connections_there_is_503_and_room_again_afterwards(serving):
    served = serving(gateway="requests: {connections: 2}")
    body = json.dumps(served.request("a")).encode()
    with dial(served) as first, dial(served) as second:
        for busy in (first, second):
            busy.sendall(HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body[:-1]))
        while held(served) < 2 * (len(body) - 1):
            pass
        refused = served.http.get("/healthz")
        assert refused.status_code == 503
        assert refused.json()["code"] == "busy"
        assert refused.headers["retry-after"] == "1"
        first.sendall(body[-1:])
        assert first.recv(65536).startswith(b"HTTP/1.1 202 ")
    while served.http.get("/healthz").status_code != 200:
        pass


def test_connections_that_say_nothing_make_room_for_others(serving):
    served = serving(gateway="requests: {connections: 2}")
    with dial(served) as silent, dial(served) as half:
        half.sendall(HEAD)
        while served.http.get("/healthz").status_code != 200:
            pass
        closed, _, _ = select.select([silent, half], [], [], 20)
        assert [rest(one) for one in closed] == [b""]


def test_who_does_not_read_the_answers_is_let_go(quick):
    ask = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with dial(quick) as deaf:
        sent = 0
        try:
            while sent < 100_000:
                deaf.sendall(ask * 10)
                sent += 10
                quick.http.get("/healthz")
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert sent < 100_000
    assert quick.send("requests", quick.request("a")).status_code == 202


def test_requests_that_do_not_wait_for_answers_are_answered_in_order_up_to_a_limit(quick):
    ask = b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with dial(quick) as hasty:
        hasty.sendall(b"".join(ask % name for name in (b"healthz", b"nothing") * 10))
        answers = b""
        while answers.count(b"HTTP/1.1 ") < 20 or not answers.endswith(b"}"):
            answers += hasty.recv(65536)
    assert [part[:3] for part in answers.split(b"HTTP/1.1 ")[1:]] == [b"200", b"404"] * 10
    with dial(quick) as greedy:
        greedy.sendall((ask % b"healthz") * 5000)
        assert rest(greedy).count(b"HTTP/1.1 ") < 5000


def test_a_connection_is_used_for_many_requests_and_says_nothing_of_its_server(served):
    with dial(served) as connection:
        for number in range(10):
            body = json.dumps(served.request(f"e{number}")).encode()
            connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            answer = connection.recv(65536)
            assert answer.startswith(b"HTTP/1.1 202 ")
            assert b"\r\nserver:" not in answer.lower()
