"""Windows: their states, their datasets, and the rows of one as a file.

It only reads. Of windows that several tenants share, a tenant sees that there is something, and gets its own
rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from fastapi import APIRouter, Query
from starlette.responses import Response

from tidemill.model.errors import InputError, NotFoundError
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, Interval, parse_instant, since_when
from tidemill.model.windows import WindowStatus
from tidemill.outputs.datasets.catalog import open_dataset
from tidemill.outputs.datasets.damage import damage_of
from tidemill.outputs.datasets.export import export_name, pieces
from tidemill.outputs.datasets.timeline import MOST_LISTED
from tidemill.pipeline.documents import windows as plain
from tidemill.pipeline.status import timeline_of
from tidemill.server.openapi_reads import CURSOR, END, SLICE, START, shown
from tidemill.server.parameters import Cursor, Limit, cursor_of, position_of
from tidemill.server.problems import responses
from tidemill.server.reader_threads import Reader, Readers
from tidemill.server.tenancy import OF_PAST_DATASET, OF_WINDOW, only, shares

if TYPE_CHECKING:
    from tidemill.config import Stream
    from tidemill.model.windows import Dataset
    from tidemill.pipeline.documents.shapes import Document
    from tidemill.server.access.grants import Principal

From = Annotated[
    str | None, Query(alias="from", description="only windows that start at this instant or later")
]
To = Annotated[str | None, Query(alias="to", description="and before this one")]
AsOf = Annotated[
    str | None, Query(max_length=64, description="its dataset at this instant of arrival, or so long ago: 1h")
]

MEDIA: Final = {
    "arrow": "application/vnd.apache.arrow.file",
    "parquet": "application/vnd.apache.parquet",
}
_WINDOWS: Final = "windows"
_DATASETS: Final = "datasets"
_WINDOW: Final = {"stream": "requests", "start": START, "end": END, "state": "built", "revision": 1}
_CHANGES_OF: Final = "changes"
_TIMELINE: Final = {
    "stream": "requests",
    "now": END,
    "window": "1h",
    "span": {"start": START, "end": END},
    "extent": {"start": START, "end": END},
    "watermark": END,
    "cutoff": END,
    "total": 1,
    "states": ["waiting", "ready", "queued", "building", "built", "failed", "final"],
    "reasons": [],
    "windows": {"start": [1767607200000000], "end": [1767610800000000], "state": [4], "revision": [1]},
    "buckets": None,
    "slices": {"id": [SLICE], "start": [1767607200000000], "end": [1767610800000000]},
    "slices_total": 1,
    "gaps": [],
}
_CHANGES: Final = {
    "stream": "requests",
    "start": START,
    "end": END,
    "from": 1,
    "to": 2,
    "added": 1,
    "removed": 0,
    "unchanged": 1200,
    "slices": {"added": [SLICE], "removed": []},
    "columns": ["event_time", "tenant", "event_id"],
    "rows": [{"change": "added", "row": {"event_time": START, "tenant": "acme", "event_id": "7f0c1a"}}],
    "cursor": CURSOR,
}
_OF_VIEW: Final = {"rows": 1200, "bytes": 48_000, "current": True, "built_at": END}


def router(readers: Readers) -> APIRouter:
    routes = APIRouter(tags=["reading"], default_response_class=Response)
    handlers = _WindowRoutes(readers)
    _add_windows(routes, handlers)
    _add_datasets(routes, handlers)
    return routes


def _add_windows(routes: APIRouter, handlers: _WindowRoutes) -> None:
    routes.add_api_route(
        "/v1/streams/{stream}/windows",
        handlers.windows,
        summary="Windows of a stream, the newest first",
        operation_id="get_windows",
        responses={
            200: shown("A page", {"windows": [{**_WINDOW, **_OF_VIEW}], "cursor": CURSOR}, maybe=("cursor",)),
            **responses(404),
        },
    )
    routes.add_api_route(
        "/v1/streams/{stream}/timeline",
        handlers.timeline,
        summary="Windows over time, with slices and gaps, as lists; counted where they are many",
        description="Instants in the lists are microseconds since the epoch.",
        operation_id="get_timeline",
        responses={
            200: shown(
                "The windows of the span",
                _TIMELINE,
                maybe=("extent", "watermark", "windows", "buckets", "slices", "slices_total"),
            ),
            **responses(404),
        },
    )
    routes.add_api_route(
        "/v1/streams/{stream}/windows/{start}",
        handlers.window,
        summary="One window: its state and why, its slices, its revisions",
        description="`start` is that of the window, or any instant in it.",
        operation_id="get_window",
        responses={200: shown("The window", {**_WINDOW, "revisions": [{"revision": 1}]}), **responses(404)},
    )
    routes.add_api_route(
        "/v1/streams/{stream}/windows/{start}/revisions",
        handlers.changes,
        summary="What changed from one revision of a window to another: rows added and removed",
        operation_id="get_window_changes",
        responses={
            200: shown("A page of the changed rows", _CHANGES, maybe=("cursor", "slices")),
            **responses(404),
        },
    )


def _add_datasets(routes: APIRouter, handlers: _WindowRoutes) -> None:
    routes.add_api_route(
        "/v1/streams/{stream}/datasets",
        handlers.datasets,
        summary="The newest dataset of each window, the newest window first",
        operation_id="get_datasets",
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
        handlers.download,
        summary="The rows of a dataset, as Arrow or Parquet",
        description="`start` is that of the window, or any instant in it.",
        operation_id="get_dataset",
        responses={200: _file(), **responses(404)},
    )


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
        principal: Reader,
        stream: str,
        state: Annotated[WindowStatus | None, Query(description="only windows in this state")] = None,
        start: From = None,
        end: To = None,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Response:
        declared = self._declared(stream, principal)
        span = _span(_WINDOWS, start, end, cursor)

        def read() -> Document:
            found = self._window_reader.windows(declared.name, state, span=span, limit=limit + 1)
            page, more = found[:limit], len(found) > limit
            return {
                "windows": [only(plain.view(one), OF_WINDOW, declared, principal) for one in page],
                "cursor": cursor_of(_WINDOWS, page[-1].window.key.start) if more else None,
            }

        return await self._readers.answer(read)

    async def timeline(
        self,
        principal: Reader,
        stream: str,
        start: From = None,
        end: To = None,
        limit: Annotated[
            int, Query(ge=1, le=MOST_LISTED, description="windows and slices that are listed one by one")
        ] = 2000,
    ) -> Response:
        declared = self._declared(stream, principal)
        span = _span(_WINDOWS, start, end, None)

        def read() -> Document:
            mill = self._readers.mill
            found = timeline_of(mill.workers, declared.name, span, limit)
            now, whole = mill.clock(), not shares(declared, principal)
            cutoff = now - declared.subject_to_change_window
            document = plain.timeline(
                found, declared.name, now, cutoff, mill.watermark(declared.name) if whole else None
            )
            return document if whole else _for_tenant(document)

        return await self._readers.answer(read)

    async def window(self, principal: Reader, stream: str, start: str, as_of: AsOf = None) -> Response:
        declared, at = self._declared(stream, principal), parse_instant(start)

        def read() -> Document:
            document = plain.details(self._window_reader.window(declared.name, at))
            if as_of is not None:
                then = plain.past_dataset(self._window_reader.as_of(declared.name, at, self._instant(as_of)))
                document = {**document, "as_of": only(then, OF_PAST_DATASET, declared, principal)}
            if not shares(declared, principal):
                return document
            listed = document["revisions"]
            assert isinstance(listed, list)
            numbers = [{"revision": one["revision"]} for one in listed]
            past = {"as_of": document["as_of"]} if as_of is not None else {}
            return {**only(document, OF_WINDOW, declared, principal), "revisions": numbers, **past}

        return await self._readers.answer(read)

    async def changes(
        self,
        principal: Reader,
        stream: str,
        start: str,
        old: Annotated[
            int | None,
            Query(alias="from", ge=0, le=10**9, description="by default that before `to`; 0: none"),
        ] = None,
        new: Annotated[
            int | None, Query(alias="to", ge=1, le=10**9, description="by default the newest")
        ] = None,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Response:
        declared, at = self._declared(stream, principal), parse_instant(start)
        tenants = principal.tenant if shares(declared, principal) else None
        offset = 0
        if cursor is not None:
            first, last, behind = position_of(
                _CHANGES_OF, self._readers.opened(cursor, principal), int, int, int
            )
            old, new, offset = int(first), int(last), int(behind)

        def read() -> Document:
            found = self._readers.mill.window_changes(
                declared.name, at, old=old, new=new, tenant=tenants, offset=offset, limit=limit
            )
            document = plain.changes(found)
            next_page = cursor_of(_CHANGES_OF, found.old_revision, found.new.revision, offset + limit)
            visible = document if tenants is None else {k: v for k, v in document.items() if k != "slices"}
            return {**visible, "cursor": self._readers.sealed(next_page, principal) if found.more else None}

        return await self._readers.answer(read)

    async def datasets(
        self,
        principal: Reader,
        stream: str,
        start: From = None,
        end: To = None,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Response:
        declared = self._declared(stream, principal)
        span = _span(_DATASETS, start, end, cursor)

        def read() -> Document:
            found = self._window_reader.datasets(declared.name, span)[::-1][: limit + 1]
            page, more = found[:limit], len(found) > limit
            warehouse = self._readers.mill.project.warehouse
            return {
                "datasets": [
                    only(plain.newest(one, damage_of(warehouse, one)), OF_WINDOW, declared, principal)
                    for one in page
                ],
                "cursor": cursor_of(_DATASETS, page[-1].key.start) if more else None,
            }

        return await self._readers.answer(read)

    async def download(
        self,
        principal: Reader,
        stream: str,
        start: str,
        revision: Annotated[int | None, Query(ge=1, le=10**9, description="by default the newest")] = None,
        format: Annotated[Literal["arrow", "parquet"], Query(description="of the file")] = "arrow",
        as_of: AsOf = None,
    ) -> Response:
        declared, at = self._declared(stream, principal), parse_instant(start)
        tenants = principal.tenant if shares(declared, principal) else None
        if as_of is not None and revision is not None:
            raise InputError("revision and as_of cannot be combined", hint="leave one of them out")

        def find() -> Dataset:
            if as_of is None:
                return self._window_reader.dataset(declared.name, at, revision)
            then = self._window_reader.as_of(declared.name, at, self._instant(as_of)).revision
            if then is None:
                raise NotFoundError(
                    f"no revision that is kept was the dataset at {as_of[:64]}",
                    hint="`as_of` of the window says how far back its revisions reach",
                )
            return then.dataset

        dataset = await self._readers.run(find)
        warehouse = self._readers.mill.project.warehouse
        name = f"{export_name(dataset)}.{format}"
        headers = {
            "Content-Disposition": f'attachment; filename="{name}"',
            "Tidemill-Revision": str(dataset.revision),
        }
        made = await self._readers.run(lambda: pieces(open_dataset(warehouse, dataset), format, tenants))
        return await self._readers.streamed(made, MEDIA[format], headers)

    def _instant(self, as_of: str) -> int:
        return since_when(as_of, self._readers.mill.clock())

    def _declared(self, name: str, principal: Principal) -> Stream:
        """A stream that has windows; the error names no other."""
        declared = self._readers.stream(name, principal)
        if declared.aggregation_span is None:
            raise InputError(
                f"stream {declared.name} declares no windows", hint="give it an aggregation_span"
            )
        return declared


def _for_tenant(document: Document) -> Document:
    """The states of windows that several tenants share, without anything that others have sent."""
    windows = document["windows"]
    left = {"reason", "rows"}
    visible = {k: v for k, v in windows.items() if k not in left} if isinstance(windows, Mapping) else None
    hidden: Document = {"windows": visible, "reasons": [], "slices": None, "slices_total": None, "gaps": []}
    return {**document, **hidden}


def _span(of: str, start: str | None, end: str | None, cursor: str | None) -> Interval | None:
    """The requested span, from the newest window back to the end of the page before."""
    if start is None and end is None and cursor is None:
        return None
    question = Interval(
        MIN_INSTANT if start is None else parse_instant(start),
        MAX_INSTANT if end is None else parse_instant(end),
    )
    if cursor is None:
        return question
    before = position_of(of, cursor, int)[0]
    assert isinstance(before, int)
    return Interval(question.start, max(question.start, min(question.end, before)))
