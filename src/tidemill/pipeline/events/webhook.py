"""The webhook sink: each event as a POST, signed by the Standard Webhooks convention.

Delivered means that the response was 2xx. It follows no redirect, and never logs or repeats a body, a secret,
or more of the address than its scheme, host and path.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import http.client
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit

from tidemill.config.events import WebhookSink
from tidemill.model.errors import InputError
from tidemill.model.time import DAY, SECOND, from_datetime
from tidemill.pipeline.events.cloudevents import CONTENT_TYPE
from tidemill.pipeline.events.sink import Message, SentEvents, Trouble

MAX_ANSWER: Final = 64 * 1024  # bytes that are read of a response
LONGEST_WAIT: Final = DAY  # at most, however long the other side asks for
_PREFIX: Final = "whsec_"


def signature(secret: str, event_id: str, timestamp: int, body: bytes) -> str:
    """`v1,` and the HMAC-SHA256 of id, timestamp (in seconds) and body, in base64. A secret that starts with
    `whsec_` is base64 of the key; another one is the key itself."""
    content = b".".join((event_id.encode(), str(timestamp).encode(), body))
    return "v1," + base64.b64encode(hmac.digest(_key(secret), content, hashlib.sha256)).decode()


def _key(secret: str) -> bytes:
    if secret.startswith(_PREFIX):
        return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    return secret.encode()


class WebhookSender:
    """One address. A connection serves the messages of one `send`."""

    chunk: Final = 20

    def __init__(self, sink: WebhookSink, environment: Mapping[str, str]) -> None:
        self._sink = sink
        self._environment = environment
        self._url = urlsplit(sink.url)
        self._target = (self._url.path or "/") + (f"?{self._url.query}" if self._url.query else "")
        self._where = f"{self._url.scheme}://{self._url.netloc}{self._url.path}"

    def send(self, messages: Sequence[Message], now: int, go_on: Callable[[], bool]) -> SentEvents:
        secret = self._secret()
        if isinstance(secret, Trouble):
            return SentEvents(0, secret)
        connection = self._connection()
        try:
            for count, message in enumerate(messages):
                if not go_on():
                    return SentEvents(count)
                trouble = self._post(connection, message, secret, now)
                if trouble is not None:
                    return SentEvents(count, trouble)
        finally:
            connection.close()
        return SentEvents(len(messages))

    def _secret(self) -> str | Trouble | None:
        name = self._sink.secret_env
        if name is None:
            return None
        secret = self._environment.get(name, "")
        if not secret:  # an unsigned request is never sent instead
            return Trouble(
                f"the environment variable {name} is not set", "set it to the secret", refused=True
            )
        try:
            _key(secret)
        except (binascii.Error, ValueError):
            hint = f"after {_PREFIX} comes the key in base64; without {_PREFIX} it is taken as it is"
            return Trouble(f"the secret in {name} cannot be read", hint, refused=True)
        return secret

    def _connection(self) -> http.client.HTTPConnection:
        host, port, timeout = self._url.hostname or "", self._url.port, self._sink.timeout / SECOND
        if self._url.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
        return http.client.HTTPConnection(host, port, timeout=timeout)

    def _post(
        self, connection: http.client.HTTPConnection, message: Message, secret: str | None, now: int
    ) -> Trouble | None:
        timestamp = now // SECOND
        headers = {
            "Content-Type": CONTENT_TYPE,
            "User-Agent": "tidemill",
            "webhook-id": message.id,
            "webhook-timestamp": str(timestamp),
        }
        if secret is not None:
            headers["webhook-signature"] = signature(secret, message.id, timestamp, message.body)
        try:
            if connection.sock is None:
                connection.connect()
            with _at_most(self._sink.timeout / SECOND, connection):
                connection.request("POST", self._target, message.body, headers)
                answer = connection.getresponse()
        except ssl.SSLCertVerificationError as error:
            hint = "SSL_CERT_FILE can name a file with the authorities to trust"
            return Trouble(f"{self._where} is not trusted: {error.verify_message}", hint, refused=True)
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            return Trouble(f"{self._where} cannot be reached: {_reason(error)}", "check that it is up")
        _finish(connection, answer)
        return self._trouble(answer.status, answer.getheader("Retry-After"), now)

    def _trouble(self, status: int, retry_after: str | None, now: int) -> Trouble | None:
        if 200 <= status < 300:
            return None
        message = f"{self._where} answered {status} {http.client.responses.get(status, '')}".rstrip()
        wait = _wait(retry_after, now) if retry_after is not None else None
        if 300 <= status < 400:
            hint = "redirects are not followed: put the address it leads to in the configuration"
            return Trouble(message, hint, refused=True, retry_after=wait)
        if 400 <= status < 500 and status not in (408, 429):
            hint = "it refuses this event: check the url, the secret and the receiver's own log"
            return Trouble(message, hint, refused=True, retry_after=wait)
        return Trouble(message, "it asks to be tried again", retry_after=wait)


def _finish(connection: http.client.HTTPConnection, answer: http.client.HTTPResponse) -> None:
    """Leave the connection so that it can be used again. Only the status of a response matters: what arrived
    with it is read, the rest is not waited for."""
    if answer.length:
        with suppress(OSError, http.client.HTTPException):
            answer.read1(MAX_ANSWER)
    if answer.length == 0:
        answer.close()
    else:
        connection.close()


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    # a response that is not HTTP contains text of the other side: not repeated
    return type(error).__name__


def _wait(retry_after: str, now: int) -> int | None:
    """Microseconds of a Retry-After, which is seconds or a date; None if it is neither."""
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return min(int(text[:12]) * SECOND, LONGEST_WAIT)
    try:
        moment = from_datetime(parsedate_to_datetime(text))
    except (ValueError, TypeError, OverflowError, InputError):
        return None
    return min(max(moment - now, 0), LONGEST_WAIT)


@contextmanager
def _at_most(seconds: float, connection: http.client.HTTPConnection) -> Iterator[None]:
    """Ends a request that takes longer in total, however short each read is."""
    sock: socket.socket = connection.sock
    late = threading.Event()

    def end() -> None:
        late.set()
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        if late.is_set():
            raise TimeoutError from error
        raise
    finally:
        timer.cancel()
    if late.is_set():  # half of a header can look like a whole one
        raise TimeoutError
