"""Server-sent events about datasets and results, as they are entered in the outbox.

One query of the outbox serves all listeners. A listener is just an offset in it: a slow one continues from
there and delays no other. The same task notices changes of tokens: a listener that is no longer admitted is
closed.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from tidemill.model.errors import InputError, TidemillError
from tidemill.pipeline.events.cloudevents import encoded
from tidemill.server.callers import is_still
from tidemill.server.problems import responses
from tidemill.server.reader_threads import Reader, Readers
from tidemill.server.service import may_know
from tidemill.server.tenancy import event_for

if TYPE_CHECKING:
    from tidemill.server.access.grants import Principal
    from tidemill.storage.state.protocol import State

log = logging.getLogger(__name__)

PAUSE: Final = 0.5  # seconds between two queries, if nothing signals an event …
LEAST: Final = 0.05  # … and if many do
HEARTBEAT: Final = 15.0  # seconds of silence
AGAIN: Final = 1_000  # milliseconds until a listener that lost the connection comes back
PAGE: Final = 200  # events that one listener reads at once
KEPT: Final = 1_000  # newest events that are kept for all of them
_LARGEST: Final = (1 << 63) - 1
_EXAMPLE: Final = (
    'id: 17\nevent: tidemill.dataset.available\ndata: {"specversion":"1.0","id":"5e0c…",'
    '"type":"tidemill.dataset.available","subject":"requests/2026-01-05T10:00:00Z",'
    '"data":{"stream":"requests","start":"2026-01-05T10:00:00Z","revision":1}}\n\n'
)

EventAt = tuple[int, Mapping[str, object]]  # its offset, and the event


def router(readers: Readers) -> APIRouter:
    routes = APIRouter(tags=["reading"], default_response_class=Response)
    handlers = _EventRoutes(readers)
    routes.add_api_route(
        "/v1/events",
        handlers.listen,
        summary="Datasets and results as they become available, as server-sent events",
        description=(
            "Each is a CloudEvent with its position in the outbox as id, sealed for the token of a tenant. "
            "`Last-Event-ID`, or `after`, continues after one; 0 starts with the first event; by default "
            "only new events are sent. "
            "The stream begins with the id to continue from; a comment every 15 seconds keeps it alive."
        ),
        operation_id="get_events",
        responses={200: _described(), **responses(404)},
    )
    return routes


def _described() -> dict[str, Any]:
    content = {"text/event-stream": {"schema": {"type": "string"}, "example": _EXAMPLE}}
    return {"description": "Events, until the listener or the server goes", "content": content}


class _EventRoutes:
    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._outbox = EventFeed(readers)

    async def listen(
        self,
        request: Request,
        principal: Reader,
        after: Annotated[
            str | None, Query(max_length=200, description="the id of an event to continue after")
        ] = None,
        stream: Annotated[str | None, Query(description="only those of this stream")] = None,
        last_event_id: Annotated[str | None, Header(description="the same as `after`")] = None,
    ) -> Response:
        if stream is not None:
            self._readers.stream(stream, principal)
        last = last_event_id or after
        offset = None if last is None else self._offset(last, principal)
        end = await self._outbox.end()
        begin = end if offset is None else min(offset, end)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        events = self._published(request, principal, stream, begin)
        return StreamingResponse(events, headers=headers, media_type="text/event-stream")

    async def _published(
        self, request: Request, principal: Principal, stream: str | None, offset: int
    ) -> AsyncIterator[bytes]:
        with self._outbox.listening():
            async for piece in self._listen(request, principal, stream, offset):
                yield piece

    async def _listen(
        self, request: Request, principal: Principal, stream: str | None, offset: int
    ) -> AsyncIterator[bytes]:
        service = self._readers.service
        access = None  # as it was before the listener was admitted, so that no change is missed
        # A listener that loses the connection now misses none.
        yield b"retry: %d\nid: %s\n\n" % (AGAIN, self._id(offset, principal))
        spoke = asyncio.get_running_loop().time()
        while not service.stopping.is_set():
            try:
                found = await self._outbox.behind(offset, spoke + HEARTBEAT, access)
            except TidemillError as error:  # the listener comes back, after what it has
                log.warning("the outbox cannot be read: %s", error)
                return
            access = self._outbox.access
            if not is_still(request, principal):  # the token was revoked, or is over
                return
            lines = b"".join(self._lines(principal, stream, found))
            now = asyncio.get_running_loop().time()
            if found:
                offset = found[-1][0]
            if lines:
                yield lines
                spoke = now
            elif now >= spoke + HEARTBEAT:
                yield b": still here\n\n"
                spoke = now

    def _lines(self, principal: Principal, stream: str | None, found: Sequence[EventAt]) -> list[bytes]:
        streams = self._readers.service.project.streams
        lines = []
        for offset, event in found:
            data = event.get("data")
            name = data.get("stream") if isinstance(data, Mapping) else None
            declared = streams.get(name) if isinstance(name, str) else None
            if declared is None or not may_know(declared, principal.tenant) or stream not in (None, name):
                continue
            kind = str(event["type"]).encode()
            line = encoded(event_for(event, declared, principal))  # one line: JSON escapes line ends
            lines.append(b"id: %s\nevent: %s\ndata: %s\n\n" % (self._id(offset, principal), kind, line))
        return lines

    def _id(self, offset: int, principal: Principal) -> bytes:
        """The id of an event for a listener; sealed for a tenant, since offsets count the events of all
        tenants."""
        return self._readers.sealed(str(offset), principal).encode()

    def _offset(self, text: str, principal: Principal) -> int:
        """The offset in an id; anyone may use 0, which is before the first event."""
        return 0 if text == "0" else _offset(self._readers.opened(text, principal))


def _offset(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:20]) <= _LARGEST):
        raise InputError(
            f"{text[:40]!r} is not the id of an event",
            where="Last-Event-ID",
            hint="use the id of an event, or 0 to begin with the first",
        )
    return int(text)


class EventFeed:
    """The newest events of the outbox, read by one task for all listeners of one event loop."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._listening = 0
        self.access: object = None  # the version of the tokens when they were last checked
        self._start: int | None = None  # all events after this offset are kept …
        self._end = 0  # … up to this one
        self._kept: list[EventAt] = []

    async def end(self) -> int:
        """The offset of the newest event."""
        return await self._readers.run(lambda: end_of(self._readers.mill.state))

    async def behind(self, offset: int, until: float, access: object) -> Sequence[EventAt]:
        """Events after an offset, once there are some; none when the time of the loop is `until`, when tokens
        are not as they were for `access`, or the server stops. For listeners inside `listening`."""
        loop = asyncio.get_running_loop()
        if self._start is None or offset < self._start:
            found = await self._page(offset, PAGE)
            if found or (self._start is not None and offset < self._start):
                return found or await self._page(offset, PAGE)
            if self._start is None:
                self._start = self._end = offset
        if self._watching is None or self._watching.done():
            self._watching = loop.create_task(self._watch())
        while not (found := self._known(offset)) and not self._readers.service.stopping.is_set():
            if access != self.access:
                break
            news = self._news
            try:
                async with asyncio.timeout_at(until):
                    await news.wait()
            except TimeoutError:
                break
        return found

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While a listener is inside, the outbox is watched."""
        loop = asyncio.get_running_loop()
        self._begin(loop)
        self._listening += 1
        try:
            yield
        finally:
            if loop is self._loop:
                self._listening -= 1

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start over: another server may run the same application."""
        if loop is not self._loop:
            self._loop, self._watching, self._news = loop, None, asyncio.Event()
            self._listening, self._start, self._kept = 0, None, []

    def _known(self, offset: int) -> Sequence[EventAt]:
        first = bisect_right(self._kept, offset, key=lambda line: line[0])
        return self._kept[first : first + PAGE]

    async def _page(self, after: int, limit: int) -> Sequence[EventAt]:
        return await self._readers.run(lambda: self._readers.mill.events(after, limit))

    async def _watch(self) -> None:
        service = self._readers.service
        rung = service.woken.rung
        while self._listening and not service.stopping.is_set():
            try:
                found = await self._page(self._end, KEPT)
            except TidemillError as error:
                log.warning("the outbox cannot be read: %s", error)
                found = []
            access = service.tokens.version(service.clock())
            if access != self.access:
                self.access = access
                self._wake()
            if found:
                self._keep(found)
            else:
                await asyncio.sleep(LEAST)
                rung = await service.woken.wait(rung, PAUSE)
        self._start, self._kept = None, []
        self._wake()

    def _keep(self, found: Sequence[EventAt]) -> None:
        self._kept.extend(found)
        self._end = found[-1][0]
        if len(self._kept) > KEPT:
            self._start = self._kept[-KEPT - 1][0]
            del self._kept[:-KEPT]
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


def end_of(state: State) -> int:
    """The offset of the newest event; 0: there is none. Found by bisection: the outbox is never read as a
    whole."""
    # there is an event after every offset below `low`; `high` is doubled until there is none
    low, high = 0, 1
    while state.outbox(high - 1, 1):
        low, high = high, high * 2
    while low + 1 < high:
        middle = (low + high) // 2
        if state.outbox(middle - 1, 1):
            low = middle
        else:
            high = middle
    return low
