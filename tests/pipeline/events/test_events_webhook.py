"""The webhook sink: signed posts, retries with growing delay, and nothing lost by whatever it answers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.pipeline.events.conftest import NOON, SECRET, NewDelivery, Receiver, Request, announce

from tidemill.model.time import DAY, MINUTE, SECOND
from tidemill.pipeline.events import Delivered
from tidemill.pipeline.events.webhook import signature
from tidemill.storage.state.protocol import State

PAGE = Path(__file__).parents[3] / "docs" / "events.md"


def hook(receiver: Receiver, **more: object) -> dict[str, object]:
    return {"hook": {"kind": "webhook", "url": receiver.url, "secret_env": "HOOK_SECRET", **more}}


def ids(requests: list[Request]) -> list[str]:
    return [json.loads(request.body)["id"] for request in requests]


# -- signatures


def verified(request: Request, now: int) -> bool:
    """What docs/events.md tells receivers to do."""
    snippets = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (snippet,) = [one for one in snippets if "def verify" in one]
    names: dict[str, object] = {}
    exec(snippet.partition("\n\nheaders = ")[0], names)  # noqa: S102 - our own page
    verify = names["verify"]
    return bool(verify(SECRET, request.headers, request.body, now // SECOND))  # type: ignore[operator]


def test_a_request_is_a_signed_cloudevent(
    state: State, new_delivery: NewDelivery, receiver: Receiver
) -> None:
    (wanted,) = announce(state, 1)
    assert new_delivery(hook(receiver)).deliver(NOON) == [Delivered("hook", 1)]
    (request,) = receiver.requests
    assert request.path == "/hook"
    assert request.headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    assert request.headers["webhook-id"] == json.loads(request.body)["id"] == wanted
    assert request.headers["webhook-timestamp"] == str(NOON // SECOND)
    assert verified(request, NOON)


def test_the_snippet_of_the_docs_refuses_what_was_changed_or_is_old(
    state: State, new_delivery: NewDelivery, receiver: Receiver
) -> None:
    announce(state, 1)
    new_delivery(hook(receiver)).deliver(NOON)
    (request,) = receiver.requests
    headers = request.headers
    assert verified(
        Request(
            "/", {**headers, "webhook-signature": f"v1,xyz {headers['webhook-signature']}"}, request.body
        ),
        NOON,
    )
    assert not verified(Request("/", headers, request.body + b" "), NOON)
    assert not verified(Request("/", {**headers, "webhook-id": "other"}, request.body), NOON)
    assert not verified(Request("/", {**headers, "webhook-timestamp": "1"}, request.body), NOON)
    assert not verified(Request("/", {**headers, "webhook-signature": "v1,"}, request.body), NOON)
    assert not verified(request, NOON + 6 * MINUTE)


def test_signature_is_that_of_standard_webhooks() -> None:
    """The values of the convention's own example."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    reported = signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert reported == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_secret_without_the_prefix_is_the_key_itself() -> None:
    key = b"plain secret"
    reported = base64.b64encode(hmac.digest(key, b"id.5.body", hashlib.sha256)).decode()
    assert signature("plain secret", "id", 5, b"body") == f"v1,{reported}"


def test_without_secret_env_nothing_is_signed(
    state: State, new_delivery: NewDelivery, receiver: Receiver
) -> None:
    announce(state, 1)
    new_delivery(hook(receiver, secret_env=None)).deliver(NOON)
    assert "webhook-signature" not in receiver.requests[0].headers


def test_a_secret_that_is_not_there_sends_nothing(
    state: State, new_delivery: NewDelivery, receiver: Receiver
) -> None:
    announce(state, 1)
    (document,) = new_delivery(hook(receiver, secret_env="NOT_SET")).deliver(NOON)
    assert document == Delivered(
        "hook", 0, "the environment variable NOT_SET is not set", next_try=NOON + SECOND
    )
    assert receiver.requests == []


# -- trying again


def test_it_is_tried_again_with_a_growing_delay_until_it_has_everything(
    state: State, new_delivery: NewDelivery, receiver: Receiver
) -> None:
    wanted = announce(state, 1, 2, 3)
    receiver.answers = [(503, {}), (500, {}), (408, {}), (429, {}), (502, {})]
    delivery = new_delivery(hook(receiver), retry_delay="2s", max_retry_delay="10s")
    now = NOON
    for number, delay in enumerate((2, 4, 8, 10, 10), start=1):
        (document,) = delivery.deliver(now)
        assert (document.delivered, document.next_try) == (0, now + delay * SECOND)
        assert delivery.deliver(now + delay * SECOND - 1) == []
        assert len(receiver.requests) == number
        now += delay * SECOND
    assert delivery.deliver(now) == [Delivered("hook", 3)]
    assert ids(receiver.requests) == [wanted[0]] * 5 + wanted
    assert all(verified(request, now) for request in receiver.requests)
    assert len({request.body for request in receiver.requests[:6]}) == 1


def test_what_was_taken_before_a_failure_is_not_sent_again(
    state: State, new_delivery: NewDelivery, receiver: Receiver
) -> None:
    wanted = announce(state, 1, 2, 3)
    receiver.answers = [(200, {}), (202, {}), (503, {})]
    delivery = new_delivery(hook(receiver))
    assert delivery.deliver(NOON) == [
        Delivered("hook", 2, f"{receiver.url} answered 503 Service Unavailable", NOON + SECOND)
    ]
    assert delivery.deliver(NOON + SECOND) == [Delivered("hook", 1)]
    assert ids(receiver.requests) == [*wanted, wanted[2]]


def test_the_delay_starts_anew_after_a_success(
    state: State, new_delivery: NewDelivery, receiver: Receiver
) -> None:
    announce(state, 1, 2)
    receiver.answers = [(503, {}), (503, {}), (204, {}), (503, {})]
    delivery = new_delivery(hook(receiver))
    delivery.deliver(NOON)
    assert delivery.deliver(NOON + SECOND)[0].next_try == NOON + 3 * SECOND
    assert delivery.deliver(NOON + 3 * SECOND)[0].next_try == NOON + 4 * SECOND


@pytest.mark.parametrize(
    ("asked", "wait"),
    [
        ("120", 2 * MINUTE),
        ("0", SECOND),  # never sooner than by its own delay
        ("Mon, 15 Jan 2024 12:05:00 GMT", 5 * MINUTE),
        ("Mon, 15 Jan 2024 11:00:00 GMT", SECOND),
        ("Mon, 15 Jan 2024 12:05:00 -0000", SECOND),  # a date without a zone is no date
        ("99999999999999999999", DAY),  # not for ever
        ("Fri, 31 Dec 9999 23:59:59 GMT", DAY),
        ("soon", SECOND),
        ("-5", SECOND),
    ],
)
def test_retry_after_is_honoured(
    state: State, new_delivery: NewDelivery, receiver: Receiver, asked: str, wait: int
) -> None:
    announce(state, 1)
    receiver.answers = [(429, {"Retry-After": asked})]
    (document,) = new_delivery(hook(receiver)).deliver(NOON)
    assert document.next_try == NOON + wait


@pytest.mark.parametrize("status", [400, 401, 404, 410, 422])
def test_a_refusal_is_an_error_in_the_log_and_still_tried_again(
    state: State,
    new_delivery: NewDelivery,
    receiver: Receiver,
    status: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    announce(state, 1)
    receiver.answers = [(status, {})]
    delivery = new_delivery(hook(receiver))
    (document,) = delivery.deliver(NOON)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert f"{receiver.url} answered {status}" in record.getMessage()
    assert "nothing is lost, the next try is at 2024-01-15T12:00:01Z" in record.getMessage()
    assert document.next_try == NOON + SECOND
    assert delivery.deliver(NOON + SECOND) == [Delivered("hook", 1)]


def test_a_redirect_is_not_followed(state: State, new_delivery: NewDelivery, receiver: Receiver) -> None:
    announce(state, 1)
    receiver.answers = [(307, {"Location": receiver.url.replace("/hook", "/elsewhere")})]
    (document,) = new_delivery(hook(receiver)).deliver(NOON)
    assert document.error == f"{receiver.url} answered 307 Temporary Redirect"
    assert [request.path for request in receiver.requests] == ["/hook"]


def test_nothing_secret_is_logged(
    state: State, new_delivery: NewDelivery, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """Not the query of the address, the secret, or what is sent."""
    caplog.set_level(logging.DEBUG)
    announce(state, 1)
    receiver.answers = [(403, {}), (503, {})]
    delivery = new_delivery(hook(receiver, url=receiver.url + "?token=abc123"))
    document = [*delivery.deliver(NOON), *delivery.deliver(NOON + SECOND)]
    assert [request.path for request in receiver.requests] == ["/hook?token=abc123"] * 2
    said = caplog.text + repr(document)
    for secret in ("abc123", SECRET, SECRET.removeprefix("whsec_"), "datasets/weather", "v1,"):
        assert secret not in said


# -- a receiver that is no good


@contextmanager
def listener(*pieces: bytes, stay: threading.Event) -> Iterator[str]:
    """Takes one connection, sends the pieces, and then does nothing until `stay` is set."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            taken, _ = server.accept()
            with taken:
                taken.recv(1 << 16)
                for piece in pieces:
                    taken.sendall(piece)
                stay.wait(30)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/hook"
        stay.set()
        thread.join()


def test_nobody_there(state: State, new_delivery: NewDelivery) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/hook"
    announce(state, 1)
    (document,) = new_delivery({"hook": {"kind": "webhook", "url": url}}).deliver(NOON)
    assert document.error == f"{url} cannot be reached: Connection refused"


@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ((b"SSH-2.0-secret-banner\r\n",), "BadStatusLine"),
        ((), "no answer in time"),
        ((b"HTTP/1.1 204 ",), "no answer in time"),
    ],
)
def test_no_answer_or_no_http(
    state: State, new_delivery: NewDelivery, pieces: tuple[bytes, ...], said: str
) -> None:
    announce(state, 1)
    with listener(*pieces, stay=threading.Event()) as url:
        sinks = {"hook": {"kind": "webhook", "url": url, "timeout": "200ms"}}
        (document,) = new_delivery(sinks).deliver(NOON)
    assert document.error == f"{url} cannot be reached: {said}"


def test_an_answer_in_drips_has_no_more_time_than_others(state: State, new_delivery: NewDelivery) -> None:
    """Each byte is in time, the whole never."""
    announce(state, 1)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            taken, _ = server.accept()
            with taken, suppress(OSError):  # until it hangs up
                while not over.wait(0.02):
                    taken.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        sinks = {"hook": {"kind": "webhook", "url": url, "timeout": "300ms"}}
        (document,) = new_delivery(sinks).deliver(NOON)
        assert document.error == f"{url} cannot be reached: no answer in time"
        over.set()
        thread.join()


def test_an_endless_answer_is_not_read_to_its_end(state: State, new_delivery: NewDelivery) -> None:
    announce(state, 1)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n"
    with listener(head, b"x" * 100_000, stay=threading.Event()) as url:
        assert new_delivery({"hook": {"kind": "webhook", "url": url}}).deliver(NOON) == [Delivered("hook", 1)]


def test_a_slow_receiver_holds_up_neither_the_call_nor_other_sinks(
    state: State, new_delivery: NewDelivery, receiver: Receiver, tmp_path: Path
) -> None:
    wanted = announce(state, 1, 2)
    receiver.hold = threading.Event()
    sinks = {**hook(receiver), "log": {"kind": "file", "path": "events.ndjson"}}
    delivery = new_delivery(sinks, patience=2.0)
    assert delivery.deliver(NOON) == [Delivered("log", 2)]
    assert delivery.deliver(NOON) == []  # and does not wait for it again
    assert state.delivered("hook") == 0
    receiver.hold.set()
    delivery.close()
    (document,) = delivery.deliver(NOON)
    assert document.sink == "hook"
    assert document.delivered == state.delivered("hook") >= 1
    assert new_delivery(sinks).deliver(NOON) == [Delivered("hook", 2 - document.delivered)] * (
        document.delivered < 2
    )
    assert ids(receiver.requests) == wanted
