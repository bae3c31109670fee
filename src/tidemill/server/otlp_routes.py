"""OpenTelemetry over HTTP: logs and traces become events of the streams that are declared for them.

Responses, also errors, use the encoding of the request: exporters do not read problem documents.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tidemill.formats.bodies.otlp import (
    OTLP_TYPES,
    Media,
    OtlpRead,
    Signal,
    otlp_answer,
    otlp_media,
    otlp_status,
    read_otlp,
)
from tidemill.model.errors import NotFoundError, TidemillError
from tidemill.server import openapi_writes
from tidemill.server.access.grants import Principal, Scope
from tidemill.server.callers import admitted, sender_of
from tidemill.server.problems import refusal
from tidemill.server.request_body import CONVERTED, HeldMemory, check_spread, read_by
from tidemill.server.slow_senders import admit

if TYPE_CHECKING:
    from tidemill.config import Stream
    from tidemill.server.acknowledgements import Acknowledging
    from tidemill.server.service import Service

SOURCE: Final = "otlp"

_NAMES: Final[dict[Signal, str]] = {"logs": "Logs", "traces": "Trace"}
_CODES: Final = {  # a google.rpc.Code
    400: 3,
    401: 16,
    403: 7,
    404: 5,
    408: 4,
    413: 8,
    415: 3,
    429: 8,
    500: 13,
    503: 14,
}


def router(service: Service, acknowledging: Acknowledging) -> APIRouter:
    routes = APIRouter(tags=["otlp"], default_response_class=Response)
    signals: tuple[Signal, ...] = ("logs", "traces")
    for signal in signals:
        routes.add_api_route(
            f"/v1/otlp/v1/{signal}",
            _endpoint(service, acknowledging, signal),
            methods=["POST"],
            summary=f"Export {signal} (OTLP/HTTP)",
            description=f"They go to the stream that `gateway.otlp.{signal}` names.",
            operation_id=f"export_{signal}",
            responses=openapi_writes.otlp_result(_NAMES[signal]),
            openapi_extra=openapi_writes.otlp(_NAMES[signal]),
        )
    return routes


def _endpoint(
    service: Service, acknowledging: Acknowledging, signal: Signal
) -> Callable[[Request], Awaitable[Response]]:
    async def export(request: Request) -> Response:
        media = otlp_media(request.headers.get("content-type"))
        try:
            return await _export(service, acknowledging, signal, media, request)
        except TidemillError as error:
            return _refused(media, refusal(error, request.url.path), _message(error))
        except HTTPException as error:
            return _refused(media, Response(status_code=error.status_code), error.detail)

    return export


async def _export(
    service: Service, acknowledging: Acknowledging, signal: Signal, media: Media, request: Request
) -> Response:
    principal = admitted(request, Scope.INGEST)
    stream = _stream(service, signal, principal)
    await admit(service)
    with HeldMemory(service.gateway.memory) as held:
        read = await _read(service, request, held, stream, signal, media, principal)
        if read.submission is not None:
            await check_spread(service, stream, read.submission)
            service.rates.admit_rest(principal, read.submission.records - 1, service.timer())
            await acknowledging.durable(read.submission, sender_of(request, principal))
    return Response(otlp_answer(signal, media, read.rejected, read.message), media_type=OTLP_TYPES[media])


def _stream(service: Service, signal: Signal, principal: Principal) -> Stream:
    name = getattr(service.project.gateway.otlp, signal)
    try:
        return service.stream(name, principal.tenant)
    except NotFoundError:
        raise NotFoundError(
            f"there is no stream {name!r} for {signal}",
            where=f"gateway.otlp.{signal}",
            hint=f"declare the stream {name}, or name another with gateway.otlp.{signal}",
        ) from None


async def _read(
    service: Service,
    request: Request,
    held: HeldMemory,
    stream: Stream,
    signal: Signal,
    media: Media,
    principal: Principal,
) -> OtlpRead:
    limits = service.project.gateway.requests

    def read(content: bytes) -> OtlpRead:
        return read_otlp(content, media, signal, stream, limits, principal.tenant, SOURCE)

    return await read_by(read, service, request, held, inline=CONVERTED)


def _message(error: TidemillError) -> str:
    return f"{error} ({error.hint})" if error.hint else str(error)


def _refused(media: Media, refused: Response, message: str) -> Response:
    """The content of a problem document as a google.rpc.Status, in the encoding of the request."""
    status = refused.status_code
    kept = {
        name: refused.headers[name] for name in ("retry-after", "www-authenticate") if name in refused.headers
    }
    text = "this is a fault of the server" if status == 500 else message
    return Response(otlp_status(media, _CODES.get(status, 2), text), status, kept, OTLP_TYPES[media])
