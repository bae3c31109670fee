"""One connection: uvicorn's protocol, with a limit on everything a client can make last long.

Connections with headers that do not end or are too large, with responses that are not read, or beyond the
limit are closed; other clients notice nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import orjson
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from tidemill.model.errors import Retry
from tidemill.server.problems import MEDIA, document

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope

MAX_HEAD: Final = 64 * 1024  # bytes of an incomplete request line and headers
MAX_QUEUED: Final = 64  # requests of a connection that wait for the one before
SILENT: Final = 1.0  # seconds; then a connection may have to make room for another
_FULL: Final = orjson.dumps(
    document(
        503,
        "busy",
        "all connections are in use",
        "/",
        hint="send the same again after Retry-After; gateway.requests.connections is the limit",
        retry=Retry.LATER,
    )
)


class HttpConnection(HttpToolsProtocol):
    """What uvicorn makes for each connection (it asks for a class)."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        patience: float,
        most: int,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._patience = patience  # seconds
        self._most = most  # connections
        self.since = self.loop.time()  # the last answer
        self._heading = False  # within a request line or headers
        self._head = 0  # bytes of them, beside those that came with what was before
        self._answering: RequestResponseCycle | None = None  # with requests queued, not the last one
        self._waiting: asyncio.TimerHandle | None = None  # for a head, or the rest of a refused body
        self._stalled: asyncio.TimerHandle | None = None  # while the client does not read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        open_now = len(self.connections)
        if open_now > 2 * self._most:
            transport.abort()
            return
        if open_now > self._most and not self._make_room():
            self.app = _full
        self._wait()

    def _make_room(self) -> bool:
        """Close the connection that has been silent between requests, or within headers, for longest."""
        now = self.loop.time()
        silent = [one for one in self.connections if isinstance(one, HttpConnection) and one.is_silent(now)]
        if silent:
            min(silent, key=lambda one: one.since).transport.abort()
        return bool(silent)

    def is_silent(self, now: float) -> bool:
        """Whether it has had no request to answer for a while."""
        cycle = self.cycle
        answered = cycle is None or cycle.response_complete
        return answered and now - self.since >= SILENT and not self.transport.is_closing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        if self._stalled is not None:
            self._stalled.cancel()
        self.pipeline.clear()
        answering = self._answering
        if answering is not None and not answering.response_complete:
            answering.disconnected = True
            answering.message_event.set()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._heading = True
        self._head = -1  # what preceded it in the same piece is not known, so the piece is not counted
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._heading = False
        if len(self.pipeline) < MAX_QUEUED:
            super().on_headers_complete()
        else:
            self.transport.abort()

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()
        if self._waiting is None and self.transport.is_closing():
            self._wait()  # for the client to read the rest

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        cycle = self.cycle
        if self._heading:
            self._head = 0 if self._head < 0 else self._head + len(data)
            if self._head > MAX_HEAD:
                self._refuse(431, "header", f"the headers are larger than {MAX_HEAD} bytes")
            elif self._waiting is None:
                self._wait()
        elif cycle is not None and not cycle.response_complete:
            self._wait_no_more()
        elif self._waiting is None:  # the rest of a body that was refused, or nothing that is a request
            self._wait()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "input", msg)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self._patience, self._let_go)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(self._patience, self._let_go)

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _let_go(self) -> None:
        self.transport.abort()

    def _refuse(self, status: int, code: str, detail: str) -> None:
        """Answer what is not a request, and close the connection."""
        if self.transport.is_closing():
            return
        body = orjson.dumps(document(status, code, detail, "/", hint="send an HTTP/1.1 request"))
        head = f"content-type: {MEDIA}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[status] + head.encode() + body)
        self.transport.close()
        if self._waiting is None:
            self._wait()


async def _full(_scope: Scope, _receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    headers = [
        (b"content-type", MEDIA.encode()),
        (b"content-length", str(len(_FULL)).encode()),
        (b"retry-after", b"1"),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": 503, "headers": headers, "trailers": False})
    await send({"type": "http.response.body", "body": _FULL, "more_body": False})
