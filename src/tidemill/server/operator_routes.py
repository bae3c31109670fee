"""Operations over HTTP: rebuild or retry windows, replay records of quarantine.

They only queue and land; the rounds do the work. They need the scope `admin`, and a token for all tenants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tidemill.ingest.arguments import span
from tidemill.model.errors import InputError
from tidemill.model.time import Interval, parse_instant
from tidemill.pipeline.documents import shapes
from tidemill.pipeline.documents import windows as plain
from tidemill.raw.quarantine import REASONS
from tidemill.server.access.grants import Principal, Scope
from tidemill.server.callers import caller
from tidemill.server.json_body import body_of, switch, text
from tidemill.server.openapi_reads import END, SLICE, START, shown, taken
from tidemill.server.problems import responses
from tidemill.server.tenancy import check_operator

if TYPE_CHECKING:
    from tidemill.pipeline.documents.shapes import Document
    from tidemill.server.reader_threads import Readers

Operator = Annotated[Principal, caller(Scope.ADMIN)]

PATIENCE: Final = 30.0  # seconds to wait for a running round
_MAYBE: Final = {"type": ["string", "null"]}
_SWITCH: Final = {"type": "boolean"}
_STEP: Final = {
    "stream": "requests", "start": START, "end": END, "action": "build", "revision": 1, "next_revision": 2,
    "slices": 3, "late": 0, "hash": SLICE, "reason": "rebuild",
}  # fmt: skip


def router(readers: Readers) -> APIRouter:
    routes = APIRouter(tags=["operating"], default_response_class=Response)
    operations = _Operations(readers)
    refused: dict[int | str, dict[str, Any]] = responses(404, 408, 413, 415)
    routes.add_api_route(
        "/v1/streams/{stream}/rebuild",
        operations.rebuild,
        methods=["POST"],
        summary="Have windows built again, each as a new revision; with `explain`, the plan alone",
        operation_id="post_rebuild",
        responses={
            200: shown(
                "The plan, and how many windows were queued",
                {"stream": "requests", "steps": [_STEP], "queued": 1},
            ),
            **refused,
        },
        openapi_extra=taken(
            {"from": START, "to": END, "explain": True},
            **{"from": _MAYBE, "to": _MAYBE, "include_late": _SWITCH, "explain": _SWITCH},
        ),
    )
    routes.add_api_route(
        "/v1/streams/{stream}/retry",
        operations.retry,
        methods=["POST"],
        summary="Queue windows that failed again: all, or the one that holds the instant `at`",
        operation_id="post_retry",
        responses={200: shown("How many were queued", {"stream": "requests", "queued": 1}), **refused},
        openapi_extra=taken({"at": START}, at=_MAYBE),
    )
    routes.add_api_route(
        "/v1/streams/{stream}/replay",
        operations.replay,
        methods=["POST"],
        summary="Land the records of quarantine again, to be decided again: all, or those of one `reason`",
        operation_id="post_replay",
        responses={
            200: shown("The slices that they became", {"stream": "requests", "slices": [{"id": SLICE}]}),
            **refused,
        },
        openapi_extra=taken({"reason": "malformed"}, reason=_MAYBE),
    )
    return routes


class _Operations:
    """The routes, and what they share."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._mill = readers.mill

    async def rebuild(self, request: Request, principal: Operator, stream: str) -> Response:
        check_operator(principal, "windows")
        declared = self._readers.stream(stream, principal)
        body = await body_of(request, self._readers, "from", "to", "include_late", "explain")
        span = _span(text(body, "from"), text(body, "to"))
        late, explain = switch(body, "include_late"), switch(body, "explain")

        def work() -> Document:
            steps = self._mill.windows.plan_rebuild(declared.name, span, include_late=late)
            queued = [] if explain else self._mill.windows.rebuild(steps)
            if queued:
                self._readers.service.landed()
            return {**plain.rebuild_plan(declared.name, steps), "queued": len(queued)}

        return await self._readers.answer(work)

    async def retry(self, request: Request, principal: Operator, stream: str) -> Response:
        check_operator(principal, "windows")
        declared = self._readers.stream(stream, principal)
        at = text(await body_of(request, self._readers, "at"), "at")
        instant = None if at is None else parse_instant(at)

        def work() -> Document:
            queued = self._mill.windows.retry(declared.name, instant)
            if queued:
                self._readers.service.landed()
            return {"stream": declared.name, "queued": queued}

        return await self._readers.answer(work)

    async def replay(self, request: Request, principal: Operator, stream: str) -> Response:
        check_operator(principal, "records of quarantine")
        declared = self._readers.stream(stream, principal)
        reason = text(await body_of(request, self._readers, "reason"), "reason")
        if reason is not None and reason not in REASONS:
            raise InputError(f"there is no reason {reason[:40]!r}", hint=f"reasons: {', '.join(REASONS)}")

        def work() -> Document:
            landed = self._mill.replay(declared.name, reason=reason, patience=PATIENCE)
            if landed:
                self._readers.service.landed()
            return {"stream": declared.name, "slices": [shapes.entry(one.entry) for one in landed]}

        return await self._readers.answer(work)


def _span(start: str | None, end: str | None) -> Interval | None:
    if start is None and end is None:
        return None
    return span(start, end)
