"""Queries of rollups and searches of events over HTTP. Text or JSON document, for one tenant or all.

Input stays a value: it is parsed by `language`, and never becomes SQL or a path here.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from tidemill.model.errors import InputError, QueryError
from tidemill.pipeline.documents import cell as cells
from tidemill.pipeline.documents import search as plain
from tidemill.pipeline.documents import shapes
from tidemill.query import Answer, Explanation
from tidemill.query.language.document import query_from, search_from
from tidemill.query.language.parse import parse, parse_search
from tidemill.query.search.search import SearchPlan
from tidemill.server import tenancy
from tidemill.server.json_body import body_of, loaded, question, switch, text, wrong
from tidemill.server.openapi_reads import CURSOR, END, SLICE, START, shown, taken
from tidemill.server.parameters import Cursor, Limit, cursor_of, position_of
from tidemill.server.problems import responses
from tidemill.server.reader_threads import Reader, Readers
from tidemill.storage.writers import arrow_file

if TYPE_CHECKING:
    from tidemill.config import Stream
    from tidemill.pipeline.documents.shapes import Document
    from tidemill.server.access.grants import Principal

MOST_ROWS: Final = 100_000  # rows of an answer, which is made in memory
ARROW: Final = "application/vnd.apache.arrow.file"
METADATA: Final = "tidemill"  # key of the schema: the metadata of an answer
MOST_FOUND: Final = 10_000  # events of a page

Text = Annotated[str, Query(max_length=100_000, description="the text, or a JSON document")]
Tenant = Annotated[
    str | None,
    Query(max_length=256, description="whose events; an operator may leave it out if there is one"),
]
AllTenants = Annotated[bool, Query(description="of an operator: the events of all tenants together")]
Format = Annotated[
    Literal["json", "arrow"], Query(description="arrow: the rows as an Arrow file, the rest as its metadata")
]
Strict = Annotated[bool, Query(description="an answer that lacks something is an error")]
AsOf = Annotated[
    str | None, Query(max_length=64, description="as of this instant of arrival, or so long ago: 1h")
]
Size = Annotated[int | None, Query(ge=1, le=MOST_FOUND, description="events of a page; before LIMIT")]
Page = Annotated[str | None, Query(max_length=2_000, description="of the page before")]

_TEXT: Final = "SELECT count, avg(latency_ms) FROM requests SINCE 1h GROUP BY api"
_SEARCH: Final = 'WHERE api = "/cart" SINCE 2h LIMIT 20'
COMPLETE: Final[Mapping[str, object]] = {
    "complete": True,
    "complete_through": END,
    "as_of": END,
    "watermark": END,
    "data": {"start": START, "end": END},
    "missing": [],
    "pending": [],
}
_ANSWER: Final[Mapping[str, object]] = {
    "columns": ["api", "count"],
    "rows": [{"api": "/cart", "count": 2}],
    "stream": "requests",
    "metric": "hits",
    "level": "5s",
    "interval": "1h",
    "span": {"start": START, "end": END},
    "completeness": COMPLETE,
    "engine": "duckdb",
    "as_of": {"at": END, "changed": True, "slices_after": 1, "reaches_back_to": None, "missing": []},
}
_CELLS: Final = "cell"
_CELL: Final[Mapping[str, object]] = {
    "stream": "requests",
    "metric": "hits",
    "level": "1h",
    "cell": {"start": START, "end": END, "group": {"api": "/cart"}},
    "values": {"count": 2},
    "pieces": [{"source": "1h", "start": START, "end": END}],
    "tiles": [{"level": "1h", "start": START, "end": END, "revision": 1, "hash": SLICE, "state": "current"}],
    "slices": [{"slice": SLICE, "name": "hour-10.ndjson", "arrival": END, "rows": 2, "late": 0}],
    "slices_total": 1,
    "total": 2,
    "events": [{"event_time": START, "event_id": "7f0c1a", "slice": SLICE, "metrics": ["hits"]}],
    "completeness": COMPLETE,
    "as_of": None,
    "cursor": CURSOR,
}
_FOUND: Final[Mapping[str, object]] = {
    "stream": "requests",
    "tenant": "acme",
    "rows": [
        {
            "event_time": START,
            "tenant": "acme",
            "event_id": "7f0c1a",
            "event_type": None,
            "arrival": END,
            "slice": SLICE,
            "line": 1,
            "payload": {"event_id": "7f0c1a", "api": "/cart"},
        }
    ],
    "total": 1,
    "cursor": CURSOR,
    "span": {"start": START, "end": END},
    "completeness": {**COMPLETE, "data": None},
}
Responses = dict[int | str, dict[str, Any]]  # by status code, as FastAPI describes routes
_MAYBE: Final = {"type": ["string", "null"]}
_SWITCH: Final = {"type": "boolean"}
_QUESTION: Final = {"type": ["string", "object"], "description": "the text, or a JSON document"}


def router(readers: Readers) -> APIRouter:
    routes = APIRouter(tags=["reading"], default_response_class=Response)
    handlers = _QueryRoutes(readers)
    posted = responses(408, 413, 415)
    _add_queries(routes, handlers, posted)
    _add_searches(routes, handlers, posted)
    return routes


def _add_queries(routes: APIRouter, handlers: _QueryRoutes, posted: Responses) -> None:
    answered: Responses = {
        200: shown(
            "The answer; with EXPLAIN how it would be made",
            _ANSWER,
            maybe=[key for key in _ANSWER if key not in ("stream", "engine")],
        ),
        **responses(404, strict=True),
    }
    routes.add_api_route(
        "/v1/query",
        handlers.get_query,
        summary="Ask the rollups",
        operation_id="get_query",
        responses=answered | {200: with_file(answered[200])},
    )
    routes.add_api_route(
        "/v1/query",
        handlers.post_query,
        methods=["POST"],
        summary="Ask the rollups",
        operation_id="post_query",
        responses={**answered, **posted},
        openapi_extra=taken(
            {"query": _TEXT},
            "query",
            query=_QUESTION,
            tenant=_MAYBE,
            all_tenants=_SWITCH,
            strict=_SWITCH,
            as_of=_MAYBE,
        ),
    )
    routes.add_api_route(
        "/v1/query/cell",
        handlers.get_cell,
        summary="What one row of an answer is made of: pieces, tiles, slices, and its events page by page",
        operation_id="get_query_cell",
        responses={
            200: shown(
                "The cell, with a page of its events",
                _CELL,
                maybe=[key for key in _CELL if key not in ("stream", "events")],
            ),
            **responses(404),
        },
    )


def _add_searches(routes: APIRouter, handlers: _QueryRoutes, posted: Responses) -> None:
    found: Responses = {
        200: shown(
            "A page; with EXPLAIN what would be read",
            _FOUND,
            maybe=[key for key in _FOUND if key != "stream"],
        ),
        **responses(404, strict=True),
    }
    routes.add_api_route(
        "/v1/streams/{stream}/search",
        handlers.get_search,
        summary="Find accepted events by what they hold",
        operation_id="get_search",
        responses=found,
    )
    routes.add_api_route(
        "/v1/streams/{stream}/search",
        handlers.post_search,
        methods=["POST"],
        summary="Find accepted events by what they hold",
        operation_id="post_search",
        responses={**found, **posted},
        openapi_extra=taken(
            {"search": _SEARCH, "total": True},
            search=_QUESTION,
            cursor=_MAYBE,
            limit={"type": ["integer", "null"], "minimum": 1, "maximum": MOST_FOUND},
            total=_SWITCH,
            tenant=_MAYBE,
            all_tenants=_SWITCH,
            strict=_SWITCH,
        ),
    )


def with_file(shown: dict[str, Any]) -> dict[str, Any]:
    """An answer that can also be requested as a file."""
    binary = {"schema": {"type": "string", "format": "binary"}}
    return {**shown, "content": {**shown["content"], ARROW: binary}}


class _QueryRoutes:
    """The routes, and what they share."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._mill = readers.mill

    # -- queries

    async def get_query(
        self,
        principal: Reader,
        q: Text,
        tenant: Tenant = None,
        all_tenants: AllTenants = False,
        strict: Strict = False,
        as_of: AsOf = None,
        format: Format = "json",
    ) -> Response:
        tenants = tenancy.tenants_of(principal, tenant, all_tenants=all_tenants)
        if format == "arrow":
            made = await self._readers.run(
                lambda: self._arrow(principal, q, tenants, strict=strict, as_of=as_of)
            )
            headers = {"Content-Disposition": 'attachment; filename="answer.arrow"'}
            return Response(made, headers=headers, media_type=ARROW)
        return await self._readers.answer(
            lambda: self._answer(principal, q, tenants, strict=strict, as_of=as_of)
        )

    async def post_query(self, request: Request, principal: Reader) -> Response:
        body = await body_of(request, self._readers, "query", "tenant", "all_tenants", "strict", "as_of")
        query, strict = question(body, "query"), switch(body, "strict")
        tenants = tenancy.tenants_of(principal, text(body, "tenant"), all_tenants=switch(body, "all_tenants"))
        as_of = text(body, "as_of")
        return await self._readers.answer(
            lambda: self._answer(principal, query, tenants, strict=strict, as_of=as_of)
        )

    async def get_cell(
        self,
        principal: Reader,
        q: Text,
        start: Annotated[str | None, Query(max_length=64, description="the bucket of the row")] = None,
        group: Annotated[
            str, Query(max_length=10_000, description="a JSON object: the value of each GROUP BY")
        ] = "{}",
        tenant: Tenant = None,
        all_tenants: AllTenants = False,
        as_of: AsOf = None,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Response:
        tenants = tenancy.tenants_of(principal, tenant, all_tenants=all_tenants)
        declared = self._readers.stream(_stream_of(q), principal)
        groups = loaded(group.encode())
        offset = 0
        if cursor is not None:
            offset = int(position_of(_CELLS, self._readers.opened(cursor, principal), int)[0])

        def read() -> Document:
            found = self._mill.cell(q, start, groups, **tenants, as_of=as_of, offset=offset, limit=limit)
            stale = [one.state.key.start for one in self._mill.state.stale_tiles(declared.name)]
            visible = replace(found, answer=tenancy.for_tenant(found.answer, declared, principal))
            document = tenancy.past_for(cells.cell(visible, stale), declared, principal)
            page = cursor_of(_CELLS, offset + limit) if found.more else None
            listed = document["events"]
            assert isinstance(listed, list)
            return {
                **tenancy.without(document, tenancy.NOT_OF_CELL, declared, principal),
                "events": [tenancy.without(one, tenancy.NOT_OF_EVENT, declared, principal) for one in listed],
                "cursor": None if page is None else self._readers.sealed(page, principal),
            }

        return await self._readers.answer(read)

    def _answer(
        self,
        principal: Principal,
        query: str | Document,
        tenants: tenancy.TenantRule,
        *,
        strict: bool,
        as_of: str | None,
    ) -> Document:
        declared, found = self._found(principal, query, tenants, strict=strict, as_of=as_of)
        if isinstance(found, Explanation):
            explained = shapes.explanation(found)
            return tenancy.without(explained, tenancy.NOT_OF_EXPLANATION, declared, principal)
        visible = tenancy.past_for(shapes.answer(found), declared, principal)
        return tenancy.without(visible, tenancy.NOT_OF_ANSWER, declared, principal)

    def _arrow(
        self,
        principal: Principal,
        query: str | Document,
        tenants: tenancy.TenantRule,
        *,
        strict: bool,
        as_of: str | None,
    ) -> bytes:
        """The rows as an Arrow file, with the rest of the answer in its metadata."""
        declared, found = self._found(principal, query, tenants, strict=strict, as_of=as_of)
        if isinstance(found, Explanation):
            raise InputError("an explanation has no rows", where="format", hint="leave format out")
        visible = tenancy.past_for(shapes.answer(found), declared, principal)
        document = tenancy.without(visible, tenancy.NOT_OF_ANSWER | {"rows", "columns"}, declared, principal)
        table = found.table.replace_schema_metadata({METADATA: shapes.dumps(document)})
        sink = io.BytesIO()
        with arrow_file(sink, table.schema) as write:
            for batch in table.to_batches():
                write(batch)
        return sink.getvalue()

    def _found(
        self,
        principal: Principal,
        query: str | Document,
        tenants: tenancy.TenantRule,
        *,
        strict: bool,
        as_of: str | None,
    ) -> tuple[Stream, Answer | Explanation]:
        """The stream, and the answer as the caller may see it."""
        declared = self._readers.stream(_stream_of(query), principal)
        found = self._mill.ask(query, **tenants, as_of=as_of)
        if isinstance(found, Explanation):
            return declared, tenancy.for_tenant(found, declared, principal)
        found = tenancy.for_tenant(found, declared, principal)
        if strict:
            found.completeness.check()
        if found.table.num_rows > MOST_ROWS:
            raise QueryError(
                f"the answer has {found.table.num_rows:,} rows; at most {MOST_ROWS:,} are sent",
                hint="use LIMIT, a longer INTERVAL, a shorter span or fewer groups",
            )
        return declared, found

    # -- searches

    async def get_search(
        self,
        principal: Reader,
        stream: str,
        q: Text = "",
        cursor: Page = None,
        limit: Size = None,
        total: Annotated[bool, Query(description="count the events on all pages as well")] = False,
        tenant: Tenant = None,
        all_tenants: AllTenants = False,
        strict: Strict = False,
    ) -> Response:
        tenants = tenancy.tenants_of(principal, tenant, all_tenants=all_tenants)
        return await self._search(principal, stream, q, cursor, limit, tenants, total=total, strict=strict)

    async def post_search(self, request: Request, principal: Reader, stream: str) -> Response:
        body = await body_of(
            request, self._readers, "search", "cursor", "limit", "total", "tenant", "all_tenants", "strict"
        )
        limit = body.get("limit")
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
            raise wrong("limit", "a whole number")
        query = question(body, "search", default="")
        cursor, total, strict = (
            text(body, "cursor"),
            switch(body, "total"),
            switch(body, "strict"),
        )
        tenants = tenancy.tenants_of(principal, text(body, "tenant"), all_tenants=switch(body, "all_tenants"))
        return await self._search(
            principal, stream, query, cursor, limit, tenants, total=total, strict=strict
        )

    async def _search(
        self,
        principal: Principal,
        stream: str,
        query: str | Document,
        cursor: str | None,
        limit: int | None,
        tenants: tenancy.TenantRule,
        *,
        total: bool,
        strict: bool,
    ) -> Response:
        declared = self._readers.stream(stream, principal)

        def read() -> Document:
            _check_page(query, limit)
            after = self._readers.opened(cursor, principal) if cursor is not None else None
            found = self._mill.search(declared.name, query, cursor=after, limit=limit, total=total, **tenants)
            if isinstance(found, SearchPlan):
                plan = plain.plan(declared.name, tenancy.for_tenant(found, declared, principal))
                return tenancy.only(plan, tenancy.OF_PLAN, declared, principal)
            found = tenancy.for_tenant(found, declared, principal)
            if strict:
                found.completeness.check()
            if found.cursor is not None:
                found = replace(found, cursor=self._readers.sealed(found.cursor, principal))
            document = plain.page(declared.name, found)
            rows = document["rows"]
            assert isinstance(rows, list)
            visible = [tenancy.without(row, tenancy.NOT_OF_ROW, declared, principal) for row in rows]
            return tenancy.without({**document, "rows": visible}, tenancy.NOT_OF_PAGE, declared, principal)

        return await self._readers.answer(read)


def _check_page(query: str | Document, limit: int | None) -> None:
    """Check that a search is valid, and that a page fits in memory."""
    written = isinstance(query, str) and not query.lstrip().startswith("{")
    document = parse_search(query) if written and isinstance(query, str) else search_from(query)
    size = limit if limit is not None else document.limit
    if size is not None and not 1 <= size <= MOST_FOUND:
        raise QueryError(f"a page cannot have {size} events", hint=f"limit is 1 to {MOST_FOUND}")


def _stream_of(query: str | Document) -> str:
    """The stream that a query names."""
    written = isinstance(query, str) and not query.lstrip().startswith("{")
    document = parse(query) if written and isinstance(query, str) else query_from(query)
    return document.source.text.partition(".")[0]
