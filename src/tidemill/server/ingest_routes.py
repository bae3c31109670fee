"""Routes that take events: read, made durable, acknowledged; outcomes are waited for, or requested later.

The path of an event that no request waits for is short on purpose: no model is built, no thread is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import orjson
from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from tidemill.formats.bodies.media_types import CLOUD_TYPES, PLAIN_TYPES, media_type, read_body
from tidemill.ingest.arguments import declared_bounds
from tidemill.model.errors import MediaTypeError, NotFoundError
from tidemill.model.gateway import Entry, Receipt
from tidemill.model.time import SECOND
from tidemill.pipeline.documents.gateway import flushed
from tidemill.pipeline.documents.shapes import dumps
from tidemill.raw.outcomes import Decided, EventOutcome, Status, decided
from tidemill.server import openapi_writes
from tidemill.server.access.grants import Principal, Scope
from tidemill.server.callers import admitted, sender_of, service_of
from tidemill.server.openapi_reads import shown as described
from tidemill.server.outcome_waits import OutcomeWaiters
from tidemill.server.parameters import parameters, source_name, switch, waiting_time
from tidemill.server.problems import document, problem_response, responses
from tidemill.server.request_body import CONVERTED, SCANNED, HeldMemory, check_spread, read_by
from tidemill.server.service import may_know
from tidemill.server.slow_senders import admit
from tidemill.server.tenancy import OF_FLUSHED, only

if TYPE_CHECKING:
    from tidemill.config import Stream
    from tidemill.model.gateway import Submission
    from tidemill.model.time import Interval
    from tidemill.pipeline.documents.shapes import Document
    from tidemill.server.acknowledgements import Acknowledging
    from tidemill.server.service import Service

JSON: Final = "application/json"
EVENTS: Final = "/v1/streams/{stream}/events"
INGESTIONS: Final = "/v1/ingestions/"
FLUSH: Final = "/v1/flush"
_FLUSHED: Final = described(
    "What was closed, and how many events have not landed yet",
    {"windows": [{"window": "3f9c0d2b7a11-requests-1f", "trigger": "explicit", "events": 7}], "pending": 0},
)
_OF_FLUSH: Final = {
    "parameters": [{"name": "stream", "in": "query", "required": False, "schema": {"type": "string"}}]
}
# Bytes of a body that are read in the event loop; of a file none are: a small one can be a lot of work.
_INLINE: Final = {**dict.fromkeys(PLAIN_TYPES, SCANNED), **dict.fromkeys(CLOUD_TYPES, CONVERTED)}
_STATUS: Final = {"logged": "durable", "landed": "landed"}  # of acknowledged events
_GOOD: Final = frozenset({"accepted", "duplicate"})
_REFUSED: Final = {
    "conflict": (409, "all events are in conflict with accepted ones", "an id can be used once: give others"),
    "rejected": (422, "all events are rejected", "each outcome says why: send them again as they should be"),
}


def router(service: Service, acknowledging: Acknowledging) -> APIRouter:
    routes = APIRouter(tags=["events"])
    handlers = _WritingRoutes(service, acknowledging)
    # The first one handles requests, the second only describes it in OpenAPI: what FastAPI does for each
    # request of its own routes takes longer than everything that is done here.
    routes.add_route(EVENTS, handlers.post_events, methods=["POST"], include_in_schema=False)
    routes.add_api_route(
        EVENTS,
        handlers.post_events,
        methods=["POST"],
        summary="Send events",
        description=(
            "One event or many, in any of the media types. They are durable when the answer comes; with "
            "`wait=1` it says what became of each. With `start` and `end` they are a slice of their own that "
            "covers this time; there may be none then."
        ),
        operation_id="post_events",
        status_code=202,
        response_class=Response,
        responses={
            200: openapi_writes.shown(
                "Ingestion", "Waited for: every event is accepted, or was before", located=True
            ),
            202: openapi_writes.shown("Acknowledged", "Durable", located=True),
            207: openapi_writes.shown("Ingestion", "Waited for: the outcomes differ", located=True),
            **responses(400, 404, 408, 409, 413, 415, 422),
        },
        openapi_extra=openapi_writes.POST_EVENTS,
    )
    routes.add_api_route(
        INGESTIONS + "{ingestion}",
        handlers.get_ingestion,
        summary="What became of events",
        description="For as long as `gateway.receipts` says.",
        operation_id="get_ingestion",
        response_class=Response,
        responses={200: openapi_writes.shown("Ingestion", "What is known by now"), **responses(404)},
        openapi_extra=openapi_writes.GET_INGESTION,
    )
    routes.add_api_route(
        FLUSH,
        handlers.flush,
        methods=["POST"],
        summary="Close open windows and land them",
        description="Of one stream, or of all; the answer comes once they have landed.",
        operation_id="post_flush",
        response_class=Response,
        responses={200: _FLUSHED, **responses(404)},
        openapi_extra=_OF_FLUSH,
    )
    return routes


class _WritingRoutes:
    """The routes, and what they share."""

    def __init__(self, service: Service, acknowledging: Acknowledging) -> None:
        self._service = service
        self._acknowledging = acknowledging
        self._waiting = OutcomeWaiters(service)

    async def post_events(self, request: Request) -> Response:
        service = self._service
        principal = admitted(request, Scope.INGEST)
        stream = service.stream(request.path_params["stream"], principal.tenant)
        values = parameters(request)
        wait = waiting_time(request, values, service.project.gateway.requests.wait)
        source = source_name(values.get("source"))
        declared = declared_bounds(stream, values.get("start"), values.get("end"))
        media = _media(request)
        await admit(service)
        with HeldMemory(service.gateway.memory) as held:
            submission = await _read(service, request, held, stream, media, principal, source, declared)
            await check_spread(service, stream, submission)
            service.rates.admit_rest(principal, submission.records - 1, service.timer())
            if submission.alone is not None:  # identified by its content: a retracted slice stays retracted
                await run_in_threadpool(_refuse_retracted, service, submission)
            entry = await self._acknowledging.durable(submission, sender_of(request, principal))
        if wait is None:
            return _acknowledged(entry, _STATUS[service.project.gateway.acknowledge])
        return await self._waited(request, entry, wait)

    async def flush(self, request: Request) -> Response:
        service = self._service
        principal = admitted(request, Scope.INGEST)
        name = parameters(request).get("stream")
        if name is not None:
            streams = [service.stream(name, principal.tenant).name]
        else:
            known = service.project.streams.values()
            streams = [stream.name for stream in known if may_know(stream, principal.tenant)]
        seconds = service.project.gateway.requests.wait / SECOND
        done = await run_in_threadpool(service.gateway.flush, streams, seconds, principal.tenant)
        document = flushed(done.windows, done.pending)
        problem_response = [
            only(window, OF_FLUSHED, service.project.streams[output.stream], principal)
            for window, output in zip(cast("list[Document]", document["windows"]), done.windows, strict=True)
        ]
        return Response(dumps({**document, "windows": problem_response}), media_type=JSON)

    async def _waited(self, request: Request, entry: Entry, seconds: float) -> Response:
        receipt = await self._waiting.decided(entry.id, seconds)
        found = await run_in_threadpool(decided, self._service.mill.warehouse, receipt) if receipt else None
        if receipt is None or found is None or found.status is Status.LANDED:
            answer = _acknowledged(entry, "pending")
        else:
            answer = _answer(receipt, found, request.url.path)
        answer.headers["Preference-Applied"] = "wait"
        return answer

    async def get_ingestion(self, request: Request) -> Response:
        service = service_of(request)
        principal = admitted(request, Scope.INGEST, Scope.READ)
        each = switch(parameters(request), "outcomes", default=True)
        ingestion = request.path_params["ingestion"]
        content = await run_in_threadpool(_ingestion, service, principal, ingestion, each)
        return Response(orjson.dumps(content), media_type=JSON)


def _media(request: Request) -> str:
    headers = request.headers
    media = media_type(headers.get("content-type"))
    if "ce-specversion" in headers and not media.startswith("application/cloudevents"):
        raise MediaTypeError(  # its id and its time would be lost
            "CloudEvents in binary mode, with their attributes in headers, are not supported",
            where="ce-specversion",
            hint="send them in structured mode (application/cloudevents+json), or batched",
        )
    return media


async def _read(
    service: Service,
    request: Request,
    held: HeldMemory,
    stream: Stream,
    media: str,
    principal: Principal,
    source: str,
    declared: Interval | None,
) -> Submission:
    limits = service.project.gateway.requests

    def read(content: bytes) -> Submission:
        return read_body(content, media, stream, limits, principal.tenant, source, declared)

    return await read_by(read, service, request, held, inline=_INLINE.get(media, 0))


def _refuse_retracted(service: Service, submission: Submission) -> None:
    landing = service.mill.warehouse.landing
    landing.refuse_retracted(submission.stream, submission.declared, submission.content)


def _acknowledged(entry: Entry, status: str) -> Response:
    submission = entry.submission
    content = {
        "ingestion": entry.id,
        "stream": submission.stream,
        "events": submission.records,
        "status": status,
    }
    return Response(orjson.dumps(content), 202, _location(entry.id), JSON)


def _location(ingestion: str) -> dict[str, str]:
    return {"Location": f"{INGESTIONS}{ingestion}"}


def _answer(receipt: Receipt, found: Decided, instance: str) -> Response:
    """The response: 200 if all events are good, 409 or 422 if all are refused alike, otherwise 207."""
    content = _shown(receipt, found, each=True)
    if found.status is Status.RETRACTED:
        detail = "the slice of these events was retracted: they do not count"
        hint = "send them again if they are to count: a file, or a request with bounds, with other bytes"
        return problem_response(
            document(409, "retracted", detail, instance, hint=hint, more=_extension(content)),
            _location(receipt.id),
        )
    kinds = set(found.counts)
    if kinds <= _GOOD:
        return Response(orjson.dumps(content), 200, _location(receipt.id), JSON)
    if len(kinds) == 1 and (only := kinds.pop()) in _REFUSED:
        status, detail, hint = _REFUSED[only]
        more = _extension(content)
        return problem_response(
            document(status, only, detail, instance, hint=hint, more=more), _location(receipt.id)
        )
    return Response(orjson.dumps(content), 207, _location(receipt.id), JSON)


def _extension(content: dict[str, object]) -> dict[str, object]:
    return {name: content[name] for name in ("ingestion", "counts", "outcomes")}


def _ingestion(service: Service, principal: Principal, ingestion: str, each: bool) -> dict[str, object]:
    """What is known of an ingestion; one of another tenant looks as if it did not exist."""
    gateway = service.gateway
    receipt = gateway.receipt(ingestion)
    if receipt is None:
        entry = gateway.buffered(ingestion)
        if entry is not None and principal.tenant in (None, entry.submission.tenant):
            return _buffered(entry)
        receipt = gateway.receipt(ingestion)  # it may have landed between the two checks
    if receipt is None or principal.tenant not in (None, receipt.tenant):
        raise NotFoundError(
            f"there is no ingestion {ingestion[:60]!r}",
            hint="it is known for as long as gateway.receipts says, and to its own tenant only",
        )
    return _shown(receipt, decided(service.mill.warehouse, receipt, each=each), each=each)


def _buffered(entry: Entry) -> dict[str, object]:
    return {
        "ingestion": entry.id,
        "stream": entry.submission.stream,
        "status": "buffered",
        "slice": None,
        "window": None,
        "events": entry.submission.records,
        "counts": None,
        "outcomes": None,
    }


def _shown(receipt: Receipt, found: Decided, *, each: bool) -> dict[str, object]:
    has_outcome = found.status in (Status.DECIDED, Status.FAILED)
    return {
        "ingestion": receipt.id,
        "stream": receipt.stream,
        "status": found.status.value,
        "slice": receipt.slice,
        "window": receipt.window,
        "events": receipt.records,
        "counts": dict(found.counts) if has_outcome else None,
        "outcomes": [_outcome(outcome) for outcome in found.outcomes] if has_outcome and each else None,
    }


def _outcome(outcome: EventOutcome) -> dict[str, Any]:
    return {
        "index": outcome.index,
        "event_id": outcome.event_id,
        "outcome": outcome.outcome,
        "code": outcome.code,
        "detail": outcome.detail,
        "content_hash": outcome.content_hash,
        "accepted_hash": outcome.accepted_hash,
    }
