"""All streams at a glance over HTTP, once or as server-sent events when something changes.

One query serves all listeners, at most three a second. A tenant sees only its own data.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from tidemill.model.errors import TidemillError
from tidemill.pipeline.documents import overview as plain
from tidemill.pipeline.documents.shapes import dumps
from tidemill.pipeline.overview import TenantRefusals, overview_of, problems_of_all, tenant_overview_of
from tidemill.server.callers import is_still
from tidemill.server.openapi_reads import END, START, shown
from tidemill.server.problems import responses
from tidemill.server.reader_threads import Reader, Readers
from tidemill.server.service import may_know
from tidemill.server.tenancy import shares

if TYPE_CHECKING:
    from tidemill.pipeline.documents.shapes import Document
    from tidemill.server.access.grants import Principal

log = logging.getLogger(__name__)

# Seconds between two queries. Changes without a signal are seen after two of them: within a second.
EVERY: Final = 0.4
HEARTBEAT: Final = 15.0  # seconds of silence
_PASSING: Final = ("rate", "lag", "lag_us")  # change by themselves: no reason to send
_STREAM: Final[Mapping[str, object]] = {
    "stream": "requests",
    "description": "requests to the shop",
    "rate": {"per_second": 12.5, "over": "1m"},
    "newest_arrival": END,
    "watermark": START,
    "lag": "1h",
    "lag_us": 3_600_000_000,
    "outcomes": {"accepted": 1200, "duplicate": 3, "conflict": 0, "rejected": 1, "late": 2},
    "rejects": {"malformed": 1},
    "slices": {"pending": 0, "accepted": 12, "failed": 0, "retracted": 0},
    "windows": {"waiting": 1, "queued": 0, "building": 0, "built": 9, "failed": 0},
    "stale_tiles": 0,
    "freshness": {"rollups": START, "datasets": START},
    "problems": [],
}
_OVERVIEW: Final[Mapping[str, object]] = {"now": END, "streams": [_STREAM], "problems": []}


def router(readers: Readers) -> APIRouter:
    routes = APIRouter(tags=["reading"], default_response_class=Response)
    overview = _OverviewRoutes(readers)
    routes.add_api_route(
        "/v1/overview",
        overview.overview,
        summary="All streams at a glance: rate, lag, outcomes, queue, freshness, and problems with remedies",
        operation_id="get_overview",
        responses={200: shown("As it is now", _OVERVIEW)},
    )
    routes.add_api_route(
        "/v1/overview/events",
        overview.listen,
        summary="The same as server-sent events, whenever something has changed, at most three a second",
        operation_id="get_overview_events",
        responses={200: _described(), **responses(404)},
    )
    return routes


def _described() -> dict[str, Any]:
    example = f"event: overview\ndata: {dumps(_OVERVIEW)}\n\n"
    content = {"text/event-stream": {"schema": {"type": "string"}, "example": example}}
    return {"description": "Events, until the listener or the server goes", "content": content}


class _OverviewRoutes:
    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._mill = readers.mill
        self._seen: Document | None = None  # as an operator sees it
        self._seen_at = 0
        self._refusals = TenantRefusals(self._mill.workers)

    async def overview(self, principal: Reader) -> Response:
        return await self._readers.answer(lambda: self._for(principal, self._query()))

    async def listen(self, request: Request, principal: Reader) -> Response:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(
            self._listen(request, principal), headers=headers, media_type="text/event-stream"
        )

    async def _listen(self, request: Request, principal: Principal) -> AsyncIterator[bytes]:
        service, loop = self._readers.service, asyncio.get_running_loop()
        sent: Document | None = None
        spoke = loop.time()
        while not service.stopping.is_set() and is_still(request, principal):
            began, rung = loop.time(), service.woken.rung
            try:
                found = await self._readers.run(lambda: self._for(principal, self._recent()))
            except TidemillError as error:  # the listener reconnects
                log.warning("the overview cannot be read: %s", error)
                return
            lasting = _lasting(found)
            if lasting != sent:
                yield f"event: overview\ndata: {dumps(found)}\n\n".encode()
                sent, spoke = lasting, loop.time()
            elif loop.time() >= spoke + HEARTBEAT:
                yield b": still here\n\n"
                spoke = loop.time()
            await asyncio.sleep(max(0.0, began + EVERY - loop.time()))
            await service.woken.wait(rung, EVERY)

    def _recent(self) -> Document:
        """The current overview; one query serves all listeners."""
        now = self._readers.service.timer()
        if self._seen is None or now >= self._seen_at + EVERY * 500_000:
            self._seen, self._seen_at = self._query(), now
        return self._seen

    def _query(self) -> Document:
        workers = self._mill.workers
        streams = [overview_of(workers, name) for name in self._mill.project.streams]
        return plain.overview(self._mill.clock(), streams, problems_of_all(workers))

    def _for(self, principal: Principal, found: Document) -> Document:
        """The overview as the caller may see it: for a shared stream, what its own events show."""
        if principal.tenant is None:
            return found
        listed, streams = found["streams"], self._mill.project.streams
        assert isinstance(listed, list)
        visible = []
        for one in listed:
            declared = streams[str(one["stream"])]
            if may_know(declared, principal.tenant):
                visible.append(
                    self._own(declared.name, principal.tenant) if shares(declared, principal) else one
                )
        return {**found, "streams": visible, "problems": []}

    def _own(self, stream: str, tenant: str) -> Document:
        found = tenant_overview_of(self._mill.workers, self._refusals, stream, tenant)
        return plain.tenant_stream(found, self._mill.clock())


def _lasting(found: Document) -> Document:
    """The part whose changes are worth sending."""
    listed = found["streams"]
    assert isinstance(listed, list)
    streams = [{name: one[name] for name in one if name not in _PASSING} for one in listed]
    return {"streams": streams, "problems": found["problems"]}
