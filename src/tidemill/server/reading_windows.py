"""Windows and what became of them: where each stands, its datasets, and the rows of one as a file.

It only looks. Of what several tenants share, one of them is told when there is something, and gets its rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from tidemill.model.errors import InputError
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, Interval, parse_instant
from tidemill.model.windows import WindowStatus
from tidemill.outputs.datasets.catalog import open_dataset
from tidemill.outputs.datasets.damage import damage_of
from tidemill.outputs.datasets.export import export_name
from tidemill.outputs.datasets.pieces import pieces
from tidemill.pipeline.documents import windows as plain
from tidemill.server.pages import Cursor, Limit, cursor_of, position_of
from tidemill.server.problems import responses
from tidemill.server.readers import Reader, Readers
from tidemill.server.reading_shapes import CURSOR, END, SLICE, START, shown
from tidemill.server.tenancy import OF_WINDOW, only, shares

if TYPE_CHECKING:
    from tidemill.config import Stream
    from tidemill.pipeline.documents.shapes import Document
    from tidemill.server.access.grants import Principal

From = Annotated[
    str | None, Query(alias="from", description="only windows that start at this instant or later")
]
To = Annotated[str | None, Query(alias="to", description="and before this one")]

MEDIA: Final = {
    "arrow": "application/vnd.apache.arrow.file",
    "parquet": "application/vnd.apache.parquet",
}
_WINDOWS: Final = "windows"
_DATASETS: Final = "datasets"
_WINDOW: Final = {"stream": "requests", "start": START, "end": END, "state": "built", "revision": 1}
_OF_VIEW: Final = {"rows": 1200, "bytes": 48_000, "current": True, "built_at": END}


def router(readers: Readers) -> APIRouter:
    routes = APIRouter(tags=["reading"])
    window_reader = _WindowRoutes(readers)
    routes.add_api_route(
        "/v1/streams/{stream}/windows",
        window_reader.windows,
        summary="Windows of a stream, the newest first",
        operation_id="get_windows",
        response_class=Response,
        responses={
            200: shown("A page", {"windows": [{**_WINDOW, **_OF_VIEW}], "cursor": CURSOR}, maybe=("cursor",)),
            **responses(404),
        },
    )
    routes.add_api_route(
        "/v1/streams/{stream}/datasets",
        window_reader.datasets,
        summary="The newest dataset of each window, the newest window first",
        operation_id="get_datasets",
        response_class=Response,
        responses={
            200: shown(
                "A page",
                {"datasets": [{**_WINDOW, **_OF_VIEW, "hash": SLICE}], "cursor": CURSOR},
                maybe=("cursor",),
            ),
            **responses(404),
        },
    )
    routes.add_api_route(
        "/v1/streams/{stream}/datasets/{start}",
        window_reader.download,
        summary="The rows of a dataset, as Arrow or Parquet",
        description="`start` is that of the window, or any instant in it.",
        operation_id="get_dataset",
        response_class=Response,
        responses={200: _file(), **responses(404)},
    )
    return routes


def _file() -> dict[str, Any]:
    binary = {"schema": {"type": "string", "format": "binary"}}
    headers = {
        "Tidemill-Revision": {"schema": {"type": "integer"}, "description": "which revision of the window"}
    }
    return {
        "description": "The file",
        "content": dict.fromkeys(MEDIA.values(), binary),
        "headers": headers,
    }


class _WindowRoutes:
    """The routes, and what they share."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._window_reader = readers.mill.windows

    async def windows(
        self,
        who: Reader,
        stream: str,
        state: Annotated[WindowStatus | None, Query(description="only windows in this state")] = None,
        start: From = None,
        end: To = None,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Response:
        declared = self._declared(stream, who)
        span = _span(_WINDOWS, start, end, cursor)

        def look() -> Document:
            found = self._window_reader.windows(declared.name, state, span=span, limit=limit + 1)
            page, more = found[:limit], len(found) > limit
            return {
                "windows": [only(plain.view(one), OF_WINDOW, declared, who) for one in page],
                "cursor": cursor_of(_WINDOWS, page[-1].window.key.start) if more else None,
            }

        return await self._readers.answer(look)

    async def datasets(
        self,
        who: Reader,
        stream: str,
        start: From = None,
        end: To = None,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Response:
        declared = self._declared(stream, who)
        span = _span(_DATASETS, start, end, cursor)

        def look() -> Document:
            found = self._window_reader.datasets(declared.name, span)[::-1][: limit + 1]
            page, more = found[:limit], len(found) > limit
            warehouse = self._readers.mill.project.warehouse
            return {
                "datasets": [
                    only(plain.newest(one, damage_of(warehouse, one)), OF_WINDOW, declared, who)
                    for one in page
                ],
                "cursor": cursor_of(_DATASETS, page[-1].key.start) if more else None,
            }

        return await self._readers.answer(look)

    async def download(
        self,
        who: Reader,
        stream: str,
        start: str,
        revision: Annotated[int | None, Query(ge=1, le=10**9, description="by default the newest")] = None,
        format: Annotated[Literal["arrow", "parquet"], Query(description="of the file")] = "arrow",
    ) -> Response:
        declared, at = self._declared(stream, who), parse_instant(start)
        whose = who.tenant if shares(declared, who) else None
        dataset = await self._readers.run(lambda: self._window_reader.dataset(declared.name, at, revision))
        warehouse = self._readers.mill.project.warehouse
        name = f"{export_name(dataset)}.{format}"
        headers = {
            "Content-Disposition": f'attachment; filename="{name}"',
            "Tidemill-Revision": str(dataset.revision),
        }
        made = await self._readers.run(lambda: pieces(open_dataset(warehouse, dataset), format, whose))
        return await self._readers.streamed(made, MEDIA[format], headers)

    def _declared(self, name: str, who: Principal) -> Stream:
        """A stream that has windows; the error names no other."""
        declared = self._readers.stream(name, who)
        if declared.aggregation_span is None:
            raise InputError(
                f"stream {declared.name} declares no windows", hint="give it an aggregation_span"
            )
        return declared


def _span(of: str, start: str | None, end: str | None, cursor: str | None) -> Interval | None:
    """What is asked for, from the newest window back to where the page before ended."""
    if start is None and end is None and cursor is None:
        return None
    asked = Interval(
        MIN_INSTANT if start is None else parse_instant(start),
        MAX_INSTANT if end is None else parse_instant(end),
    )
    if cursor is None:
        return asked
    before = position_of(of, cursor, int)[0]
    assert isinstance(before, int)
    return Interval(asked.start, max(asked.start, min(asked.end, before)))
