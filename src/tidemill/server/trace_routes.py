"""Traces one event over HTTP: from its id to everything that contains it.

It only reads. A tenant finds only its own events, and gets no number that counts events of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Query
from starlette.responses import Response

from tidemill.model.errors import NotFoundError
from tidemill.pipeline.documents import trace as plain
from tidemill.server.openapi_reads import END, SLICE, START, shown
from tidemill.server.problems import responses
from tidemill.server.reader_threads import Reader, Readers
from tidemill.server.service import may_know
from tidemill.server.tenancy import NOT_OF_ROW, shares, tenant_for

if TYPE_CHECKING:
    from tidemill.pipeline.documents.shapes import Document
    from tidemill.server.access.grants import Principal

_NOT_OF_TRACE: Final = frozenset({"searched"})  # would show how much others have sent
_NOT_OF_ARRIVAL: Final = NOT_OF_ROW | {"name", "source", "landings"}  # would show the names that others use
_NOT_OF_REVISION: Final = frozenset({"rows", "hash"})
_NOT_OF_TILE: Final = frozenset({"hash", "revision"})
_TRACED: Final[Mapping[str, object]] = {
    "stream": "requests",
    "tenant": "acme",
    "arrivals": [
        {
            "slice": SLICE,
            "name": "hour-10.ndjson",
            "line": 1,
            "arrival": END,
            "source": "file",
            "status": "accepted",
            "landings": 1,
            "outcome": "accepted",
            "reason": None,
            "detail": None,
        }
    ],
    "row": {"event_time": START, "tenant": "acme", "event_id": "7f0c1a", "late": False, "payload": {}},
    "tiles": [{"metric": "hits", "level": "5s", "bucket": START, "state": "current"}],
    "datasets": [{"start": START, "end": END, "state": "built", "revisions": []}],
    "results": [],
    "quarantine": [],
    "searched": {"slices": 1, "of": 1, "bytes": 4711, "complete": True},
}


def router(readers: Readers) -> APIRouter:
    routes = APIRouter(tags=["reading"], default_response_class=Response)
    routes.add_api_route(
        "/v1/trace",
        _TraceRoutes(readers).trace,
        summary="What became of an event: arrivals, outcomes, its row, tiles, datasets and results",
        operation_id="get_trace",
        responses={
            200: shown(
                "For each stream and tenant that knows the id", {"event_id": "7f0c1a", "streams": [_TRACED]}
            ),
            **responses(404),
        },
    )
    return routes


class _TraceRoutes:
    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._mill = readers.mill

    async def trace(
        self,
        principal: Reader,
        id: Annotated[str, Query(min_length=1, max_length=2_000, description="of the event")],
        stream: Annotated[str | None, Query(max_length=100, description="by default all streams")] = None,
        tenant: Annotated[
            str | None, Query(max_length=256, description="an operator may name one; else all")
        ] = None,
    ) -> Response:
        tenants = tenant_for(principal, tenant)
        if stream is not None:
            self._readers.stream(stream, principal)
        return await self._readers.answer(lambda: self._traced(principal, id, stream, tenants))

    def _traced(
        self, principal: Principal, event_id: str, stream: str | None, tenant: str | None
    ) -> Document:
        streams = self._mill.project.streams
        known = [one.name for one in streams.values() if may_know(one, principal.tenant)]
        found = []
        for name in [stream] if stream is not None else known:
            try:
                found += self._mill.trace(event_id, stream=name, tenant=tenant)
            except NotFoundError:
                continue
        if not found:
            raise NotFoundError(
                f"no event has the id {event_id[:100]!r}",
                hint=f"streams that were searched: {stream or ', '.join(known) or 'none'}",
            )
        document = plain.trace(event_id, found)
        listed = document["streams"]
        assert isinstance(listed, list)
        return {**document, "streams": [self._visible(one, principal) for one in listed]}

    def _visible(self, document: Document, principal: Principal) -> Document:
        declared = self._mill.project.streams[str(document["stream"])]
        if not shares(declared, principal):
            return document
        row = document["row"]
        return {
            **{name: value for name, value in document.items() if name not in _NOT_OF_TRACE},
            "arrivals": _each(document["arrivals"], _NOT_OF_ARRIVAL),
            "row": _without(row, NOT_OF_ROW | {"watermark", "late"}) if isinstance(row, Mapping) else None,
            "tiles": _each(document["tiles"], _NOT_OF_TILE),
            "datasets": _with_revisions(document["datasets"], _NOT_OF_REVISION),
            "quarantine": _each(document["quarantine"], NOT_OF_ROW),
        }


def _without(document: Document, left_out: frozenset[str]) -> Document:
    return {name: value for name, value in document.items() if name not in left_out}


def _each(listed: object, left_out: frozenset[str]) -> list[Document]:
    assert isinstance(listed, list), listed
    return [_without(one, left_out) for one in listed]


def _with_revisions(listed: object, left_out: frozenset[str]) -> list[Document]:
    assert isinstance(listed, list), listed
    return [{**one, "revisions": _each(one["revisions"], left_out)} for one in listed]
