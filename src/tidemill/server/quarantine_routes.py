"""Quarantine and late rows, in pages; a tenant sees its own rows.

It only reads: `operator_routes` replays records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from tidemill.model.errors import NotFoundError
from tidemill.model.time import from_datetime, since_when
from tidemill.pipeline.documents import shapes
from tidemill.pipeline.documents.event_time import late
from tidemill.raw.tail import late_rows, late_totals
from tidemill.server.openapi_reads import CURSOR, END, SLICE, START, shown
from tidemill.server.parameters import Cursor, Limit, cursor_of, position_of
from tidemill.server.problems import responses
from tidemill.server.reader_threads import Reader, Readers
from tidemill.server.tenancy import NOT_OF_LATE_ROW, NOT_OF_ROW, tenant_for, without

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.config import Stream
    from tidemill.pipeline.documents.shapes import Document
    from tidemill.server.access.grants import Principal

Tenant = Annotated[str | None, Query(max_length=256, description="an operator may name one; else all")]

_QUARANTINE: Final = "quarantine"
_LATE: Final = "late"
_REJECTED: Final = {
    "slice": SLICE,
    "line": 3,
    "arrival": END,
    "outcome": "rejected",
    "reason": "malformed",
    "detail": "not JSON",
    "tenant": None,
    "event_id": None,
    "content_hash": None,
    "accepted_hash": None,
    "payload": "no JSON",
    "payload_base64": None,
}
_LATE_ROW: Final[Mapping[str, object]] = {
    "tenant": "acme",
    "event_time": START,
    "event_id": "7f0c1a",
    "event_type": None,
    "arrival": END,
    "watermark": END,
    "slice": SLICE,
    "line": 1,
    "lateness": "1h",
    "done": [],
}


def router(readers: Readers) -> APIRouter:
    routes = APIRouter(tags=["reading"], default_response_class=Response)
    handlers = _QuarantineRoutes(readers)
    routes.add_api_route(
        "/v1/streams/{stream}/quarantine",
        handlers.quarantine,
        summary="Records that were not accepted, verbatim, with the reason; the newest arrival first",
        operation_id="get_quarantine",
        responses={
            200: shown(
                "A page",
                {"stream": "requests", "rows": [_REJECTED], "cursor": CURSOR},
                maybe=("cursor",),
            ),
            **responses(404),
        },
    )
    routes.add_api_route(
        "/v1/streams/{stream}/late",
        handlers.late,
        summary="Accepted rows that came late, and what each window did with them; the newest slice first",
        operation_id="get_late",
        responses={
            200: shown(
                "A page",
                {
                    "stream": "requests",
                    "rows": [_LATE_ROW],
                    "more": True,
                    "total": 2,
                    "windows": {},
                    "cursor": CURSOR,
                },
                maybe=("cursor",),
            ),
            **responses(404),
        },
    )
    return routes


class _QuarantineRoutes:
    """The routes, and what they share."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._mill = readers.mill

    async def quarantine(
        self,
        principal: Reader,
        stream: str,
        reason: Annotated[str | None, Query(max_length=40, description="malformed, skew …")] = None,
        outcome: Annotated[
            Literal["conflict", "rejected"] | None, Query(description="only those, whatever the reason")
        ] = None,
        slice: Annotated[str | None, Query(max_length=64, description="only those of this slice")] = None,
        tenant: Tenant = None,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Response:
        declared, tenants = self._readers.stream(stream, principal), tenant_for(principal, tenant)
        after = (
            position_of(_QUARANTINE, self._readers.opened(cursor, principal), int, str, int)
            if cursor is not None
            else None
        )

        def read() -> Document:
            found = self._mill.quarantine(
                declared.name,
                reason=reason,
                outcome=outcome,
                slice=self._slice(slice, declared, principal) if slice is not None else None,
                limit=limit + 1,
                after=(int(after[0]), str(after[1]), int(after[2])) if after is not None else None,
                tenant=tenants,
            )
            page = found.slice(0, limit)
            rows = [without(row, NOT_OF_ROW, declared, principal) for row in shapes.quarantined(page)]
            more = found.num_rows > limit
            return {
                "stream": declared.name,
                "rows": rows,
                "cursor": self._readers.sealed(_behind_rejected(page), principal) if more else None,
            }

        return await self._readers.answer(read)

    def _slice(self, values: str, declared: Stream, principal: Principal) -> str:
        """The slice of this stream; callers that may not see all tenants must know its whole id."""
        whole = principal.tenant is None or len(values) == len(SLICE)
        entry = self._mill.state.slice(values) if whole and values.strip() else None
        if entry is None or entry.slice.stream != declared.name:
            raise NotFoundError(
                f"{declared.name} has no slice {values[:64]!r}", where="slice", hint="leave it out for all"
            )
        return entry.id

    async def late(
        self,
        principal: Reader,
        stream: str,
        since: Annotated[
            str | None, Query(max_length=64, description="arrived since this instant, or this long ago")
        ] = None,
        tenant: Tenant = None,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Response:
        declared, tenants = self._readers.stream(stream, principal), tenant_for(principal, tenant)
        start = since_when(since, self._mill.clock()) if since is not None else None
        after = (
            position_of(_LATE, self._readers.opened(cursor, principal), int, int)
            if cursor is not None
            else None
        )

        def read() -> Document:
            feed = self._mill.feed(declared.name)
            found = late_rows(
                feed,
                since=start,
                limit=limit + 1,
                tenant=tenants,
                after=(int(after[0]), int(after[1])) if after is not None else None,
            )
            page, more = found.slice(0, limit), found.num_rows > limit
            document = late(declared.name, page, late_totals(feed, since=start, tenant=tenants), more=more)
            rows = document["rows"]
            assert isinstance(rows, list)
            visible = [without(row, NOT_OF_LATE_ROW, declared, principal) for row in rows]
            return {
                **document,
                "rows": visible,
                "cursor": self._readers.sealed(self._behind_late(page), principal) if more else None,
            }

        return await self._readers.answer(read)

    def _behind_late(self, page: pa.Table) -> str:
        last = page.slice(page.num_rows - 1).to_pylist()[0]
        entry = self._mill.state.slice(last["slice"])
        assert entry is not None, last["slice"]
        return cursor_of(_LATE, entry.seq, last["line"])


def _behind_rejected(page: pa.Table) -> str:
    last = page.slice(page.num_rows - 1).to_pylist()[0]
    return cursor_of(_QUARANTINE, from_datetime(last["arrival"]), last["slice"], last["line"])
