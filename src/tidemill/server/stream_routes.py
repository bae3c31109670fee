"""Streams and what can be queried of them, their slices, and the status of everything.

It only reads. What several tenants share is visible to operators only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Query
from starlette.responses import Response

from tidemill.ingest.gateway.status import ingest_health
from tidemill.model.errors import NotFoundError
from tidemill.model.slices import CountedAs, Reject, SliceStatus
from tidemill.model.time import format_instant, since_when
from tidemill.pipeline.documents import search as asked
from tidemill.pipeline.documents import shapes
from tidemill.pipeline.documents.gateway import health
from tidemill.pipeline.documents.gateway import status as gateway_status
from tidemill.pipeline.documents.scrub import scrub_status
from tidemill.pipeline.documents.windows import touched
from tidemill.query.catalog import catalog
from tidemill.server.openapi_reads import CURSOR, END, SLICE, START, STREAM, shown
from tidemill.server.parameters import Cursor, Limit, cursor_of, position_of
from tidemill.server.problems import responses
from tidemill.server.reader_threads import Reader, Readers
from tidemill.server.service import may_know
from tidemill.server.tenancy import (
    NOT_OF_CATALOG,
    check_operator,
    check_whole,
    entry_for,
    tenant_for,
    without,
)

if TYPE_CHECKING:
    from tidemill.pipeline.documents.shapes import Document
    from tidemill.server.access.grants import Principal

_ID: Final = 64  # characters of the id of a slice
_LEDGER: Final = "ledger"
_CHANGES: Final = "changes"
_CHANGE: Final = {
    "at": END,
    "kind": "accepted",
    "slice": SLICE,
    "name": "hour-10.ndjson",
    "source": "file",
    "arrival": END,
    "rows": 12,
    "late": 0,
    "observed": {"start": START, "end": END},
}
_ENTRY: Final = {
    "id": SLICE,
    "seq": 1,
    "stream": "requests",
    "status": "accepted",
    "name": "3f9c0d2b7a11-requests-1f",
    "source": "http",
    "format": "ndjson",
    "arrival": START,
    "counts": {"records": 1, "accepted": 1, "duplicate": 0, "conflict": 0, "rejected": 0, "late": 0},
}


_MANIFEST: Final = {
    "dataset": {"name": "requests"},
    "parts": [
        {
            "part": "packed-3f9c0d2b7a11-0000-000.parquet",
            "slice_hashes": [SLICE],
            "row_count": 1,
            "min_time": 1_705_312_800_000,
            "max_time": 1_705_312_800_000,
            "created_at": START,
        }
    ],
}


def router(readers: Readers) -> APIRouter:
    routes = APIRouter(tags=["reading"], default_response_class=Response)
    handlers = _StreamRoutes(readers)
    _add_streams(routes, handlers)
    _add_slices(routes, handlers)
    return routes


def _add_streams(routes: APIRouter, handlers: _StreamRoutes) -> None:
    routes.add_api_route(
        "/v1/streams",
        handlers.streams,
        summary="All streams, with their metrics and indexed paths",
        operation_id="get_streams",
        responses={200: shown("Those that the token may know of", {"streams": [STREAM]})},
    )
    routes.add_api_route(
        "/v1/streams/{stream}",
        handlers.stream,
        summary="One stream, with the commonest values of its indexed attributes",
        operation_id="get_stream",
        responses={
            200: shown("The stream", {**STREAM, "attributes": {}}, maybe=("attributes",)),
            **responses(404),
        },
    )
    routes.add_api_route(
        "/v1/status",
        handlers.status,
        summary="The state of the gateway and of all streams",
        operation_id="get_status",
        responses={200: shown("As it is now", {"now": START, "streams": [], "gateway": {}})},
    )


def _add_slices(routes: APIRouter, handlers: _StreamRoutes) -> None:
    routes.add_api_route(
        "/v1/streams/{stream}/ledger",
        handlers.ledger,
        summary="Slices of a stream, the newest first",
        operation_id="get_ledger",
        responses={
            200: shown("A page", {"slices": [_ENTRY], "cursor": CURSOR}, maybe=("cursor",)),
            **responses(404),
        },
    )
    routes.add_api_route(
        "/v1/streams/{stream}/changes",
        handlers.changes,
        summary="Slices that changed what a span says after an instant of arrival, the oldest first",
        operation_id="get_changes",
        responses={
            200: shown(
                "A page",
                {"stream": "requests", "after": START, "changes": [_CHANGE], "total": 1, "cursor": CURSOR},
                maybe=("cursor",),
            ),
            **responses(404),
        },
    )
    routes.add_api_route(
        "/v1/streams/{stream}/manifest",
        handlers.manifest,
        summary="Which slices are packed in which part of raw",
        operation_id="get_manifest",
        responses={200: shown("All that is packed", _MANIFEST), **responses(404)},
    )
    routes.add_api_route(
        "/v1/slices/{slice_id}",
        handlers.slice,
        summary="One slice, and the windows it touches",
        operation_id="get_slice",
        responses={200: shown("The slice", {**_ENTRY, "windows": []}), **responses(404)},
    )


class _StreamRoutes:
    """The routes, and what they share."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._mill = readers.mill

    async def streams(self, principal: Reader) -> Response:
        return await self._readers.answer(lambda: self._streams(principal))

    def _streams(self, principal: Principal) -> Document:
        known = [one.name for one in self._mill.project.streams.values() if may_know(one, principal.tenant)]
        facts = [catalog(self._mill.warehouse, name, principal.tenant, values=False)[0] for name in known]
        visible = [asked.stream(one) for one in facts]
        return {
            "streams": [{key: one[key] for key in one if key != "attributes"} for one in visible],
        }

    async def stream(self, principal: Reader, stream: str, tenant: str | None = None) -> Response:
        declared, tenants = self._readers.stream(stream, principal), tenant_for(principal, tenant)

        def read() -> Document:
            visible = asked.stream(catalog(self._mill.warehouse, declared.name, tenants)[0])
            values = visible["attributes"]
            if isinstance(values, dict):
                visible = {**visible, "attributes": without(values, NOT_OF_CATALOG, declared, principal)}
            return visible

        return await self._readers.answer(read)

    async def ledger(
        self,
        principal: Reader,
        stream: str,
        status: Annotated[SliceStatus | None, Query(description="only those")] = None,
        outcome: Annotated[CountedAs | None, Query(description="only those that have such records")] = None,
        reason: Annotated[Reject | None, Query(description="only those with records rejected so")] = None,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Response:
        declared = self._readers.stream(stream, principal)
        check_whole(declared, principal, "slices")
        after = self._readers.opened(cursor, principal) if cursor is not None else None
        before = position_of(_LEDGER, after, int)[0] if after is not None else None

        def read() -> Document:
            found = self._mill.state.slices(
                declared.name,
                status,
                newest=True,
                limit=limit + 1,
                before=before if isinstance(before, int) else None,
                outcome=outcome,
                reason=reason,
            )
            page = found[:limit]
            more = len(found) > limit
            return {
                "slices": [entry_for(shapes.entry(one), principal) for one in page],
                "cursor": self._readers.sealed(cursor_of(_LEDGER, page[-1].seq), principal) if more else None,
            }

        return await self._readers.answer(read)

    async def changes(
        self,
        principal: Reader,
        stream: str,
        after: Annotated[str, Query(max_length=64, description="an instant of arrival, or how long ago")],
        start: Annotated[
            str | None, Query(alias="from", description="only if they have events since then")
        ] = None,
        end: Annotated[str | None, Query(alias="to", description="and before this")] = None,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Response:
        declared = self._readers.stream(stream, principal)
        check_whole(declared, principal, "changes")
        since = since_when(after, self._mill.clock())
        behind = (
            None
            if cursor is None
            else position_of(_CHANGES, self._readers.opened(cursor, principal), int, int, int)
        )

        def read() -> Document:
            found = self._mill.changes(declared.name, since, start=start, end=end)
            rest = [one for one in found if behind is None or one.position > behind]
            page, more = rest[:limit], len(rest) > limit
            last = cursor_of(_CHANGES, *page[-1].position) if more else None
            return {
                "stream": declared.name,
                "after": format_instant(since),
                "changes": [shapes.change(one) for one in page],
                "total": len(found),
                "cursor": None if last is None else self._readers.sealed(last, principal),
            }

        return await self._readers.answer(read)

    async def manifest(self, principal: Reader, stream: str) -> Response:
        declared = self._readers.stream(stream, principal)
        check_whole(declared, principal, "slices")
        return await self._readers.answer(lambda: self._mill.packer.manifest(declared.name))

    async def slice(self, principal: Reader, slice_id: str) -> Response:
        return await self._readers.answer(lambda: self._slice(principal, slice_id))

    def _slice(self, principal: Principal, slice_id: str) -> Document:
        # A prefix of an id is enough for an operator; callers that may not see all tenants must know it all.
        whole = principal.tenant is None or len(slice_id) == _ID
        entry = self._mill.state.slice(slice_id) if whole and slice_id.strip() else None
        declared = self._mill.project.streams.get(entry.slice.stream) if entry is not None else None
        unseen = declared is None or not may_know(declared, principal.tenant)
        if entry is None or (unseen and principal.tenant is not None):
            raise NotFoundError(
                f"there is no slice {slice_id[:_ID]!r}", hint="GET /v1/streams/{stream}/ledger lists them"
            )
        if declared is not None:
            check_whole(declared, principal, "slices")
        return {
            **entry_for(shapes.entry(entry), principal),
            "windows": touched(self._mill.windows.touched(entry.id)),
        }

    async def status(self, principal: Reader) -> Response:
        check_operator(principal, "the numbers of the server")

        def read() -> Document:
            now = self._mill.clock()
            visible = shapes.status(now, self._mill.status(), self._mill.faults())
            return {
                **visible,
                "scrub": scrub_status(self._mill.scrub_status(), now),
                "gateway": gateway_status(self._readers.service.gateway.status()),
                "ingest": health(ingest_health(self._mill.warehouse)),
            }

        return await self._readers.answer(read)
