"""Vectors, their chains, batches of deltas, and results of streaming windows, in the documents of the command
line.

It only reads; a token of one tenant gets only that tenant's data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Query
from starlette.responses import Response

from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, Interval, parse_instant
from tidemill.outputs.windows.reader import missing_results, read_results, result_statuses, spec_named
from tidemill.pipeline.documents import results as plain_results
from tidemill.pipeline.documents import vectors as plain
from tidemill.query.service import pending_results
from tidemill.server.openapi_reads import END, START, shown
from tidemill.server.parameters import MOST
from tidemill.server.problems import responses
from tidemill.server.reader_threads import Reader, Readers
from tidemill.server.tenancy import NOT_OF_RESULT, check_whole, pending_for, tenant_for, without

if TYPE_CHECKING:
    from tidemill.pipeline.documents.shapes import Document

Tenant = Annotated[str | None, Query(description="whose; an operator may name one")]
At = Annotated[str | None, Query(description="an instant; by default now")]
From = Annotated[str | None, Query(alias="from", description="only what is from this instant on")]
To = Annotated[str | None, Query(alias="to", description="and before this one")]
Newest = Annotated[int, Query(ge=1, le=MOST, description="the newest so many")]
_VECTOR: Final = {
    "stream": "embeddings", "vector_id": "doc-17", "at": START, "exists": True, "ts": START, "values": [1.5],
}  # fmt: skip
_CHAIN: Final = {
    "stream": "embeddings", "tenant": "acme", "vector_id": "doc-17", "dimension": 1,
    "checkpoints": [], "pending": [],
}  # fmt: skip
_DELTAS: Final = {
    "stream": "embeddings",
    "windows": [
        {"window_id": "5d41402abc4b2a76b9719d91", "start": START, "end": END, "revision": 1, "deltas": 3,
         "vectors": 2},
    ],
    "more": False,
}  # fmt: skip
_RESULTS: Final = {"stream": "requests", "window": "visits", "results": [], "missing": [], "more": False}
_STATUSES: Final = {"stream": "requests", "windows": [{"window": "visits", "kind": "session", "results": 3}]}


def router(readers: Readers) -> APIRouter:
    routes = APIRouter(tags=["reading"], default_response_class=Response)
    answers = _VectorRoutes(readers)
    for path, answer, summary, operation, example, maybe in (
        ("/vectors/{vector_id:path}", answers.vector, "A vector, now or at an instant", "get_vector", _VECTOR,
         ("at", "ts", "values")),
        ("/chains/{vector_id:path}", answers.chain, "What a vector is made of", "get_chain", _CHAIN, ()),
        ("/deltas", answers.deltas, "The deltas of each window as one batch", "get_deltas", _DELTAS, ()),
        ("/results", answers.statuses, "The streaming windows of a stream, and how far they have come",
         "get_standings", _STATUSES, ()),
        ("/results/{window}", answers.results, "The results of a streaming window, the newest first",
         "get_results", _RESULTS, ()),
    ):  # fmt: skip
        routes.add_api_route(
            f"/v1/streams/{{stream}}{path}",
            answer,
            summary=summary,
            operation_id=operation,
            responses={200: shown(summary, example, maybe=maybe), **responses(404)},
        )
    return routes


class _VectorRoutes:
    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    async def vector(
        self, principal: Reader, stream: str, vector_id: str, at: At = None, tenant: Tenant = None
    ) -> Response:
        declared, tenants = self._readers.stream(stream, principal), tenant_for(principal, tenant)
        instant = None if at is None else parse_instant(at)

        def read() -> Document:
            found = self._readers.mill.vectors(declared.name, [vector_id], instant, tenant=tenants)
            return plain.vector(declared.name, found, instant)

        return await self._readers.answer(read)

    async def chain(self, principal: Reader, stream: str, vector_id: str, tenant: Tenant = None) -> Response:
        declared, tenants = self._readers.stream(stream, principal), tenant_for(principal, tenant)
        return await self._readers.answer(
            lambda: plain.chain(self._readers.mill.chain(declared.name, vector_id, tenant=tenants))
        )

    async def deltas(
        self,
        principal: Reader,
        stream: str,
        window: Annotated[str | None, Query(description="make batches of this width now")] = None,
        start: From = None,
        end: To = None,
        tenant: Tenant = None,
        limit: Newest = 50,
    ) -> Response:
        declared, tenants = self._readers.stream(stream, principal), tenant_for(principal, tenant)

        def read() -> Document:
            chains = self._readers.mill.chains
            found = chains.windows(declared.name, window, start, end, tenant=tenants, limit=limit)
            return plain.batches(declared.name, found)

        return await self._readers.answer(read)

    async def statuses(self, principal: Reader, stream: str) -> Response:
        declared = self._readers.stream(stream, principal)
        check_whole(declared, principal, "results")

        def read() -> Document:
            mill = self._readers.mill
            found = result_statuses(mill.project.warehouse, declared, mill.state.checkpoints(declared.name))
            return plain_results.statuses(declared.name, found, mill.project.warehouse)

        return await self._readers.answer(read)

    async def results(
        self,
        principal: Reader,
        stream: str,
        window: str,
        start: From = None,
        end: To = None,
        tenant: Tenant = None,
        revisions: Annotated[bool, Query(description="all revisions")] = False,
        limit: Newest = 50,
    ) -> Response:
        declared, tenants = self._readers.stream(stream, principal), tenant_for(principal, tenant)
        spec = spec_named(declared, window)
        span = Interval(
            MIN_INSTANT if start is None else parse_instant(start),
            MAX_INSTANT if end is None else parse_instant(end),
        )

        def read() -> Document:
            # First: what a round adds meanwhile is in the answer and reported as pending.
            waiting = pending_results(self._readers.mill.warehouse, declared, spec)
            pending = pending_for(waiting, declared, principal)
            rows = read_results(
                self._readers.mill.project.warehouse,
                declared,
                window,
                span,
                tenants,
                revisions=revisions,
                limit=limit + 1,
                checkpoint_texts=self._readers.mill.state.checkpoints(stream),
            )
            known = self._readers.mill.state.checkpoints(stream)
            expiries = self._readers.mill.warehouse.expiries
            missing = missing_results(expiries, declared, spec, known, span, tenants)
            more = rows.num_rows > limit
            rows = rows.slice(1 if more else 0).sort_by([("start", "descending")])
            document = plain_results.results(spec, rows, missing, pending, more=more)
            listed = document["results"]
            assert isinstance(listed, list)
            problem_response = [without(one, NOT_OF_RESULT, declared, principal) for one in listed]
            return {**document, "results": problem_response}

        return await self._readers.answer(read)
