"""The client for programs with an event loop: the same calls as `Client`, to be awaited.

Requests and responses are made and read by the pure modules beside it.
"""

from __future__ import annotations

import asyncio
import random as chance
import time
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Literal, Self

import httpx

from tidemill.client import requests, responses
from tidemill.client.bodies import NOTHING, Body, Event, Ids, with_last
from tidemill.client.requests import (
    BATCH,
    BATCH_BYTES,
    GZIP_ABOVE,
    URL,
    Bound,
    Request,
    Rules,
    TenantParameters,
)
from tidemill.client.responses import DatasetEvent, Document, EventLines, Ingestion, Sent
from tidemill.client.retries import RETRIES, Retries
from tidemill.client.transport import Attempts, Seen, address, built, is_direct

if TYPE_CHECKING:
    import pyarrow as pa

# Imports inside functions keep start-up short: only callers that send tables need pyarrow.


class AsyncClient:
    """A client of the server at `url`, for an event loop. Use it as an async context manager, or await
    `close`.

    An event without a value at `id_column` (a path such as `meta.id`; None leaves events as they are) gets a
    new id before it is first sent, so that sending it again after a lost answer changes nothing.
    """

    def __init__(
        self,
        url: str = URL,
        token: str | None = None,
        *,
        timeout: float = 30.0,
        retries: Retries = RETRIES,
        id_column: str | None = "event_id",
        batch: int = BATCH,
        batch_bytes: int = BATCH_BYTES,
        gzip_above: int | None = GZIP_ABOVE,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = chance.random,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        ids = Ids.at(id_column, new_id)
        self._rules = Rules(ids, batch, batch_bytes, gzip_above, retries, clock, random)
        self._sleep = sleep
        self._timeout = timeout
        self._http = httpx.AsyncClient(
            base_url=address(url),
            headers=requests.sender(token),
            transport=transport,
            trust_env=not is_direct(url),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    # -- sending

    async def send(
        self,
        stream: str,
        events: Event | Iterable[Event] | AsyncIterable[Event],
        *,
        wait: bool | float = False,
        source: str | None = None,
        start: Bound | None = None,
        end: Bound | None = None,
    ) -> Sent:
        """Send one event or many, and return when all are durable; with `wait` (True, or seconds), when they
        are decided: `counts` and `outcomes` of the result then say what became of them.

        Events are sent in requests of at most `batch`, while the iterable still produces more. `start` and
        `end` declare that these are all events of that time (there may be none). The last request declares
        it, so that nothing counts as complete before all of it has arrived.
        """
        each = self.send_each(stream, events, wait=wait, source=source, start=start, end=end)
        return responses.together([one async for one in each])

    async def send_each(
        self,
        stream: str,
        events: Event | Iterable[Event] | AsyncIterable[Event],
        *,
        wait: bool | float = False,
        source: str | None = None,
        start: Bound | None = None,
        end: Bound | None = None,
    ) -> AsyncIterator[Sent]:
        """Like `send`, but yields what became of each request in turn, so that not all outcomes are held at
        once."""
        bounds = requests.bounds(start, end)
        async for body in self._packed([events] if isinstance(events, Mapping) else events, bounds):
            yield await self._sent(stream, body, wait, source, bounds)

    async def send_arrow(
        self,
        stream: str,
        table: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch],
        *,
        wait: bool | float = False,
        source: str | None = None,
        start: Bound | None = None,
        end: Bound | None = None,
    ) -> Sent:
        """Send an Arrow table, a record batch, or several (a RecordBatchReader, too); arguments and result as
        for `send`."""
        from tidemill.client.arrow import bodies

        rules = self._rules
        bounds = requests.bounds(start, end)
        packed = with_last(bodies(table, rules.ids, rules.batch, rules.batch_bytes))
        sent = [await self._sent(stream, body, wait, source, bounds) for body in packed]
        if bounds and not sent:
            sent = [await self._sent(stream, NOTHING, wait, source, bounds)]
        return responses.together(sent)

    async def _packed(
        self, events: Iterable[Event] | AsyncIterable[Event], bounds: Mapping[str, str]
    ) -> AsyncIterator[Body]:
        packer = self._rules.packer()
        async for event in _one_by_one(events):
            if (body := packer.add(event)) is not None:
                yield body
        if (body := packer.rest()) is not None:
            yield body
        elif bounds:
            yield NOTHING

    async def _sent(
        self, stream: str, body: Body, wait: bool | float, source: str | None, bounds: Mapping[str, str]
    ) -> Sent:
        answer = await self._ask(self._rules.events(stream, body, wait, source, bounds))
        return responses.sent(answer.status_code, answer.content)

    # -- querying

    async def ingestion(self, id_: str) -> Ingestion:
        """The status of one request by its id: which slice its events are in, and the outcome of each."""
        answer = await self._ask(requests.ingestion(id_))
        return responses.ingestion(answer.content)

    async def query(
        self,
        text: str | Mapping[str, object],
        *,
        tenant: str | None = None,
        all_tenants: bool = False,
        strict: bool = False,
        as_of: str | None = None,
    ) -> Document:
        """Answer a query: `rows`, and in `completeness` what is missing from them. With `strict`, an
        incomplete answer raises a ClientError with the code `incomplete`; `as_of` is an instant, or how long
        ago: what the answer was then."""
        request = requests.query(text, TenantParameters(tenant, all_tenants), strict=strict, as_of=as_of)
        return await self._document(request)

    async def sql(
        self,
        text: str,
        *,
        tenant: str | None = None,
        all_tenants: bool = False,
        strict: bool = False,
    ) -> Document:
        """Run one SQL statement: `rows`, and in `completeness`, by stream, what is missing from them. It
        needs the token of an operator. `tenant`, `all_tenants` and `strict` are as for `query`."""
        request = requests.sql(text, TenantParameters(tenant, all_tenants), "json", strict=strict)
        return await self._document(request)

    async def sql_file(
        self,
        text: str,
        format: Literal["csv", "parquet", "arrow"] = "arrow",
        *,
        tenant: str | None = None,
        all_tenants: bool = False,
        strict: bool = False,
    ) -> bytes:
        """The rows of a SQL statement as a file: Arrow, Parquet or CSV; other arguments as for `sql`."""
        request = requests.sql(text, TenantParameters(tenant, all_tenants), format, strict=strict)
        answer = await self._ask(request)
        return answer.content

    async def search(
        self,
        stream: str,
        text: str | Mapping[str, object] = "",
        *,
        tenant: str | None = None,
        all_tenants: bool = False,
        limit: int | None = None,
        strict: bool = False,
    ) -> AsyncIterator[Document]:
        """Iterate over all events that a search finds. They are fetched in pages of at most `limit`."""
        cursor: str | None = None
        tenants = TenantParameters(tenant, all_tenants)
        while True:
            request = requests.search(stream, text, tenants, limit, cursor, strict=strict)
            answer = await self._ask(request)
            rows, cursor = responses.page(answer.content)
            for row in rows:
                yield row
            if cursor is None:
                return

    async def search_page(
        self,
        stream: str,
        text: str | Mapping[str, object] = "",
        *,
        tenant: str | None = None,
        all_tenants: bool = False,
        limit: int | None = None,
        cursor: str | None = None,
        strict: bool = False,
    ) -> Document:
        """One page of a search: `rows`, the `cursor` of the next page, and in `completeness` what is
        missing."""
        tenants = TenantParameters(tenant, all_tenants)
        request = requests.search(stream, text, tenants, limit, cursor, strict=strict)
        return await self._document(request)

    async def trace(self, event_id: str, *, stream: str | None = None, tenant: str | None = None) -> Document:
        """What became of the event with an id, in one stream or in all: `streams` has its arrivals, its row,
        and the tiles, datasets and results that it is in."""
        request = requests.trace(event_id, stream, tenant)
        return await self._document(request)

    async def timeline(
        self, stream: str, *, start: str | None = None, end: str | None = None, limit: int | None = None
    ) -> Document:
        """The windows of a stream over time, with slices and gaps; counted by state if they are more than
        `limit`. Instants in the lists are microseconds since the epoch."""
        return await self._document(requests.timeline(stream, start, end, limit))

    async def window(self, stream: str, start: str) -> Document:
        """One window: its state and why, what ends that, its slices and its revisions."""
        return await self._document(requests.window(stream, start))

    async def window_changes(
        self,
        stream: str,
        start: str,
        *,
        old: int | None = None,
        new: int | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Document:
        """Rows that came and went from the revision `old` of a window to `new`, a page of them."""
        request = requests.window_changes(stream, start, old, new, limit, cursor)
        return await self._document(request)

    async def rebuild(
        self,
        stream: str,
        *,
        start: str | None = None,
        end: str | None = None,
        include_late: bool = False,
        explain: bool = False,
    ) -> Document:
        """Queue windows that start in a span to be built again; with `explain`, only the plan. For a token
        with the scope admin."""
        request = requests.rebuild(stream, start, end, include_late=include_late, explain=explain)
        return await self._document(request)

    async def retry(self, stream: str, at: str | None = None) -> Document:
        """Queue windows that failed again, all or the one that holds an instant. For the scope admin."""
        return await self._document(requests.retry(stream, at))

    async def replay(self, stream: str, reason: str | None = None) -> Document:
        """Land the records of quarantine again, all or those with one reason. For the scope admin."""
        return await self._document(requests.replay(stream, reason))

    async def cell(
        self,
        text: str,
        start: str | None = None,
        group: Mapping[str, object] | None = None,
        *,
        tenant: str | None = None,
        all_tenants: bool = False,
        as_of: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Document:
        """What one row of the answer to a query is made of: the one whose bucket begins at `start` and whose
        groups have the values of `group`. `events` is a page of its events, `cursor` leads to the next."""
        tenants = TenantParameters(tenant, all_tenants)
        request = requests.cell(text, start, group or {}, tenants, as_of, limit, cursor)
        return await self._document(request)

    async def changes(
        self,
        stream: str,
        after: str,
        *,
        start: str | None = None,
        end: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Document:
        """Slices that changed what a span of a stream says after an instant of arrival, oldest first."""
        request = requests.changes(stream, after, start, end, limit, cursor)
        return await self._document(request)

    async def vector(
        self, stream: str, vector_id: str | int, at: str | None = None, *, tenant: str | None = None
    ) -> Document:
        """A vector of a delta stream, now or at an instant: `exists`, `ts` and `values`."""
        return await self._document(requests.vector(stream, vector_id, at, tenant))

    async def chain(self, stream: str, vector_id: str | int, *, tenant: str | None = None) -> Document:
        """The chain of a vector: its `checkpoints`, its `pending` deltas, and their sizes."""
        return await self._document(requests.chain(stream, vector_id, tenant))

    async def deltas(
        self,
        stream: str,
        window: str | None = None,
        *,
        start: str | None = None,
        end: str | None = None,
        tenant: str | None = None,
        limit: int | None = None,
    ) -> Document:
        """The deltas of each window as one batch: the newest `limit` that are published or, with a `window`
        (a width) or a `tenant`, batches made for this answer."""
        request = requests.deltas(stream, window, start, end, tenant, limit)
        return await self._document(request)

    async def results(
        self,
        stream: str,
        window: str | None = None,
        *,
        start: str | None = None,
        end: str | None = None,
        tenant: str | None = None,
        limit: int | None = None,
        revisions: bool = False,
    ) -> Document:
        """The results of a streaming window; without `window`, the streaming windows of the stream."""
        request = requests.results(stream, window, start, end, tenant, limit, revisions=revisions)
        return await self._document(request)

    async def flush(self, stream: str | None = None) -> Document:
        """Close the open windows of the gateway, of one stream or of all, and land them. `windows` lists
        them."""
        return await self._document(requests.flush(stream))

    async def overview(self) -> Document:
        """All streams at a glance: rate, lag, outcomes, queue, freshness, and problems with remedies."""
        return await self._document(requests.overview())

    async def status(self) -> Document:
        """The status of all streams and of the gateway: `now`, `streams` and `gateway`."""
        return await self._document(requests.status())

    async def events(
        self, after: str | int | None = None, *, stream: str | None = None
    ) -> AsyncIterator[DatasetEvent]:
        """Iterate without end over the events of datasets and results: those after the event `after` (0: from
        the first on), by default those published from now on.

        After a broken connection it continues behind the last event that it yielded.
        """
        lines = EventLines(None if after is None else str(after))
        attempts = Attempts(self._rules)
        while True:
            request = built(self._http, requests.events(lines.last, stream), self._timeout)
            seen: Seen
            try:
                seen = await self._http.send(request, stream=True)
                try:
                    if seen.status_code >= 300:
                        await seen.aread()
                    else:
                        lines.connected()
                        async for text in seen.aiter_text():
                            attempts = Attempts(self._rules)  # the server is there: the retries start over
                            for event in lines.read(text):
                                yield event
                finally:
                    await seen.aclose()
            except httpx.TransportError as error:
                seen = error
            await self._sleep(attempts.lost(seen, lines.pause))

    # -- the wire

    async def _document(self, request: Request) -> Document:
        answer = await self._ask(request)
        return responses.document(answer.content)

    async def _ask(self, request: Request) -> httpx.Response:
        """Send a request until there is a final answer, and return it."""
        attempts = Attempts(self._rules)
        while True:
            seen: Seen
            try:
                seen = await self._http.send(built(self._http, request, self._timeout))
            except httpx.TransportError as error:
                seen = error
            answer = attempts.after(seen)
            if not isinstance(answer, float):
                return answer
            await self._sleep(answer)


async def _one_by_one(events: Iterable[Event] | AsyncIterable[Event]) -> AsyncIterator[Event]:
    if isinstance(events, AsyncIterable):
        async for event in events:
            yield event
    else:
        for event in events:
            yield event
