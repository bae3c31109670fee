"""SQL statements over HTTP, for operators: rows as JSON, or as a CSV, Parquet or Arrow file.

The query layer decides what a statement may read; this module decides who may send one, how many run at once,
and how the answer is sent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from tidemill.model.errors import InputError, OverloadedError, QueryError
from tidemill.pipeline.documents import sql as plain
from tidemill.pipeline.documents.shapes import dumps
from tidemill.query.plain_sql.statement_check import MOST_LETTERS
from tidemill.server import tenancy
from tidemill.server.json_body import body_of, switch, text
from tidemill.server.openapi_reads import shown, taken
from tidemill.server.problems import responses
from tidemill.server.query_routes import COMPLETE, AllTenants, Strict, Tenant
from tidemill.server.reader_threads import JSON, Reader, Readers
from tidemill.server.window_routes import MEDIA as FILES
from tidemill.storage.writers import written_pieces

if TYPE_CHECKING:
    from tidemill.pipeline.documents.shapes import Document
    from tidemill.query.plain_sql.service import SqlAnswer
    from tidemill.server.access.grants import Principal

AT_ONCE: Final = 2  # statements at once: each may use all of sql.memory, and other answers need threads too
MOST_ROWS: Final = 100_000  # rows of an answer as JSON, which is made in memory
COMPLETENESS: Final = "Tidemill-Completeness"
Format = Literal["json", "csv", "parquet", "arrow"]
MEDIA: Final[Mapping[str, str]] = {"csv": "text/csv", **FILES}
_TEXT: Final = "SELECT tenant, count(*) AS events FROM raw.requests GROUP BY ALL"
_ANSWER: Final[Mapping[str, object]] = {
    "columns": ["tenant", "events"],
    "rows": [{"tenant": "acme", "events": 2}],
    "completeness": {"requests": COMPLETE},
    "views": [{"view": "raw.requests", "columns": [{"name": "tenant", "type": "VARCHAR"}]}],
}
_MAYBE: Final = {"type": ["string", "null"]}
_SWITCH: Final = {"type": "boolean"}


def router(readers: Readers) -> APIRouter:
    routes = APIRouter(tags=["reading"], default_response_class=Response)
    sql = _SqlRoutes(readers)
    answered: dict[int | str, dict[str, Any]] = {200: _answered(), **responses(403, 404, 429, strict=True)}
    routes.add_api_route(
        "/v1/sql",
        sql.get_sql,
        summary="Run one SQL statement; without one, list the views",
        operation_id="get_sql",
        responses=answered,
    )
    routes.add_api_route(
        "/v1/sql",
        sql.post_sql,
        methods=["POST"],
        summary="Run one SQL statement",
        operation_id="post_sql",
        responses={**answered, **responses(408, 413, 415)},
        openapi_extra=taken(
            {"sql": _TEXT, "all_tenants": True},
            "sql",
            sql={"type": "string", "description": "one statement"},
            tenant=_MAYBE,
            all_tenants=_SWITCH,
            strict=_SWITCH,
            format={"type": "string", "enum": list(get_args(Format))},
        ),
    )
    return routes


def _answered() -> dict[str, Any]:
    found = shown("The rows, or the views there are", _ANSWER, maybe=[*_ANSWER])
    binary = {"schema": {"type": "string", "format": "binary"}}
    found["content"] |= dict.fromkeys(MEDIA.values(), binary)
    found["headers"] = {
        COMPLETENESS: {
            "schema": {"type": "string"},
            "description": "with a file: what it lacks, as the field `completeness` of the JSON answer",
        }
    }
    return found


class _SqlRoutes:
    """The routes, and the few statements that run at once."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._free = threading.BoundedSemaphore(AT_ONCE)

    async def get_sql(
        self,
        principal: Reader,
        q: Annotated[str, Query(max_length=MOST_LETTERS, description="one statement")] = "",
        tenant: Tenant = None,
        all_tenants: AllTenants = False,
        strict: Strict = False,
        format: Annotated[Format, Query(description="of the rows")] = "json",
    ) -> Response:
        tenants = self._tenants(principal, tenant, all_tenants=all_tenants)
        if not q.strip():
            return await self._readers.answer(lambda: plain.views(self._readers.mill.sql_views()))
        return await self._answer(q, tenants, strict=strict, to=format)

    async def post_sql(self, request: Request, principal: Reader) -> Response:
        body = await body_of(request, self._readers, "sql", "tenant", "all_tenants", "strict", "format")
        statement, to = text(body, "sql"), text(body, "format") or "json"
        if statement is None or not statement.strip():
            raise InputError("sql is not a statement", where="sql", hint="GET /v1/sql lists the views")
        if to not in get_args(Format):
            raise InputError(
                f"there is no format {to[:40]!r}",
                where="format",
                hint=f"formats: {', '.join(get_args(Format))}",
            )
        tenants = self._tenants(principal, text(body, "tenant"), all_tenants=switch(body, "all_tenants"))
        return await self._answer(statement, tenants, strict=switch(body, "strict"), to=to)

    def _tenants(
        self, principal: Principal, tenant: str | None, *, all_tenants: bool
    ) -> tuple[str | None, bool]:
        tenancy.check_operator(principal, "SQL statements")
        return tenant, all_tenants

    async def _answer(
        self, statement: str, tenants: tuple[str | None, bool], *, strict: bool, to: str
    ) -> Response:
        tenant, all_tenants = tenants

        def ask() -> SqlAnswer:
            return self._readers.mill.sql(statement, tenant=tenant, all_tenants=all_tenants, strict=strict)

        if not self._free.acquire(blocking=False):
            raise OverloadedError(
                f"{AT_ONCE} SQL statements are running already", hint="send the same again a little later"
            )
        if to == "json":
            return Response(await self._readers.run(lambda: self._rows(ask)), media_type=JSON)
        made = _SqlFile(self._free)
        try:
            answer = await self._readers.run(lambda: made.open(ask()))
        except BaseException:
            made.close()
            raise
        headers = {
            "Content-Disposition": f'attachment; filename="rows.{to}"',
            COMPLETENESS: dumps(plain.lacks(answer)),
        }
        return await self._readers.streamed(made.pieces(to), MEDIA[to], headers)

    def _rows(self, ask: Callable[[], SqlAnswer]) -> bytes:
        try:
            with ask() as answer:
                return dumps(_document(answer)).encode()
        finally:
            self._free.release()


def _document(answer: SqlAnswer) -> Document:
    rows = answer.table.num_rows
    if rows > MOST_ROWS:
        raise QueryError(
            f"the answer has {rows:,} rows; as JSON at most {MOST_ROWS:,} are sent",
            hint="use LIMIT, or ask for format=csv, parquet or arrow",
        )
    return plain.answer(answer)


class _SqlFile:
    """An answer that is sent as a file; when it is sent, another statement may run."""

    def __init__(self, free: threading.BoundedSemaphore) -> None:
        self._free = free
        self._answer: SqlAnswer | None = None
        self._is_closed = False

    def open(self, answer: SqlAnswer) -> SqlAnswer:
        self._answer = answer
        return answer

    def pieces(self, to: str) -> Iterator[bytes]:
        assert self._answer is not None
        try:
            yield from written_pieces(self._answer.batches(), self._answer.schema, to)
        finally:
            self.close()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            if self._answer is not None:
                self._answer.close()
            self._free.release()
