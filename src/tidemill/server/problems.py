"""Errors as RFC 9457 problem documents: one shape for every refusal of every route.

A bug is reported as `internal` and nothing more; the details are only in the server's log.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import orjson
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tidemill.model.errors import OverloadedError, QueryError, RateLimitError, Retry, TidemillError

if TYPE_CHECKING:
    from fastapi import FastAPI

log = logging.getLogger(__name__)

MEDIA: Final = "application/problem+json"
KIND: Final = "urn:tidemill:problem:"
_STATUS: Final = {
    "input": 400,
    "query": 400,
    "too_many_windows": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "conflict": 409,
    "retracted": 409,
    "incomplete": 409,
    "too_large": 413,
    "too_spread": 413,
    "media_type": 415,
    "rate_limited": 429,
    "overloaded": 429,
    "busy": 503,
    "storage": 503,
    "damaged": 503,
}
_TITLES: Final = {
    "input": "The request cannot be used",
    "query": "The query cannot be answered",
    "too_many_windows": "The bounds span too many windows",
    "unauthorized": "A valid token is needed",
    "forbidden": "This is not allowed",
    "not_found": "Not found",
    "method": "Method not allowed",
    "timeout": "The body did not arrive in time",
    "conflict": "Conflicts with what is stored",
    "retracted": "The same was retracted",
    "incomplete": "The answer is not complete",
    "rejected": "No event was accepted",
    "too_large": "The request exceeds a limit",
    "too_spread": "The events are too far apart in time",
    "media_type": "Unsupported media type",
    "header": "The headers are too large",
    "rate_limited": "The token was used too often",
    "overloaded": "Not enough memory at the moment",
    "busy": "Warehouse is locked by another process",
    "storage": "The warehouse does not answer",
    "damaged": "A file of the warehouse is damaged",
    "unready": "The server is not ready",
    "internal": "Something went wrong in the server",
}
_HTTP: Final = {404: "not_found", 405: "method", 408: "timeout", 431: "header", 503: "busy"}
_HINTS: Final = {
    404: "GET /openapi.json lists every address",
    405: "the Allow header lists the methods",
    408: "send the same again, without pauses; gateway.requests.timeout says how long one may be",
    431: "send fewer or shorter headers",
}
_WAIT: Final = {"busy": 1.0, "storage": 5.0, "incomplete": 5.0}  # seconds until a retry is worthwhile
_PRIVATE: Final = frozenset({"busy", "storage", "damaged"})  # their location is shown only to operators


def status_of(error: TidemillError) -> int:
    if isinstance(error, OverloadedError) and error.refused:
        return 503
    return _STATUS.get(error.code, 500)


def document(
    status: int,
    code: str,
    detail: str,
    instance: str,
    *,
    hint: str = "",
    where: str = "",
    retry: Retry = Retry.NEVER,
    more: Mapping[str, object] | None = None,
) -> dict[str, object]:
    """A problem document."""
    found: dict[str, object] = {
        "type": KIND + code,
        "title": _TITLES[code],
        "status": status,
        "detail": detail,
        "instance": instance,
        "code": code,
        "hint": hint,
        "where": where,
        "retry": retry.value,
    }
    return found | dict(more or {})


def problem_response(content: Mapping[str, object], headers: Mapping[str, str] | None = None) -> Response:
    """A problem document as an answer."""
    status = content["status"]
    assert isinstance(status, int)
    return Response(orjson.dumps(content), status, headers, MEDIA)


def refusal(error: TidemillError, instance: str) -> Response:
    """The response to a request that ended with this error."""
    status = status_of(error)
    if status == 500:
        log.error("%s", error, extra={"hint": error.hint})
        return _internal(instance)
    headers: dict[str, str] = {}
    if error.retry is Retry.LATER:
        after = error.after if isinstance(error, OverloadedError | RateLimitError) else _WAIT[error.code]
        headers["Retry-After"] = str(max(1, math.ceil(after)))
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="tidemill"'
    if error.code in _PRIVATE:
        log.warning("%s", error)
    more = (
        {"position": error.position} if isinstance(error, QueryError) and error.position is not None else {}
    )
    where = "" if error.code in _PRIVATE else error.where
    return problem_response(
        document(
            status,
            error.code,
            error.message,
            instance,
            hint=error.hint,
            where=where,
            retry=error.retry,
            more=more,
        ),
        headers,
    )


def _internal(instance: str) -> Response:
    hint = "the server's log says what it was"
    return problem_response(document(500, "internal", "this is a fault of the server", instance, hint=hint))


def handle(app: FastAPI) -> None:
    """Make `app` answer every error this way."""
    app.add_exception_handler(TidemillError, _tidemill)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _unexpected)


def _tidemill(request: Request, error: Exception) -> Response:
    assert isinstance(error, TidemillError)
    return refusal(error, request.url.path)


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _HTTP.get(error.status_code, "input")
    hint = _HINTS.get(error.status_code, "")
    detail = error.detail or HTTPStatus(error.status_code).phrase
    retry = Retry.LATER if error.status_code in (408, 503) else Retry.NEVER
    content = document(error.status_code, code, detail, request.url.path, hint=hint, retry=retry)
    return problem_response(content, error.headers)


def _validation(request: Request, error: Exception) -> Response:
    """The response to a request that fails the validation of its route."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    found_at = ".".join(str(step) for step in first["loc"])
    detail = f"{found_at}: {first['msg']}"
    hint = "GET /openapi.json says what this address takes"
    return problem_response(document(400, "input", detail, request.url.path, hint=hint, where=found_at))


def _gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=400)  # the client is gone


def _unexpected(request: Request, error: Exception) -> Response:
    return _internal(request.url.path)


_INCOMPLETE: Final = (
    "incomplete",
    "the answer is not complete. Pending: 2 slices have landed (1,310 bytes) and are not accepted yet",
    "The next round accepts them: `tidemill run --once`",
    Retry.LATER,
)
_EXAMPLES: Final[Mapping[int, tuple[str, str, str, Retry]]] = {
    400: ("input", "line 1, column 9: not JSON", "send one JSON object, an array, or NDJSON", Retry.NEVER),
    401: ("unauthorized", "the token is not known", "make one with `tidemill token create`", Retry.NEVER),
    403: ("forbidden", "the token may not ingest", "scopes: ingest, read, admin", Retry.NEVER),
    404: ("not_found", "there is no stream 'nothing'", "streams: requests", Retry.NEVER),
    405: ("method", "Method Not Allowed", _HINTS[405], Retry.NEVER),
    408: ("timeout", "nothing of the body came for 30 s", _HINTS[408], Retry.LATER),
    409: ("conflict", "all events are in conflict with accepted ones", "give them other ids", Retry.NEVER),
    413: ("too_large", "the body has more than 16777216 bytes", "send less at once", Retry.NEVER),
    415: ("media_type", "text/plain is not read", "send application/json", Retry.NEVER),
    422: ("rejected", "all events are rejected", "each outcome says why", Retry.NEVER),
    429: ("overloaded", "memory pressure is high", "send the same again after Retry-After", Retry.LATER),
    431: ("header", "the headers are larger than 65536 bytes", _HINTS[431], Retry.NEVER),
    500: ("internal", "this is a fault of the server", "the server's log says what it was", Retry.NEVER),
    503: ("storage", "cannot write: No space left on device", "free some space", Retry.LATER),
}
SCHEMA: Final[dict[str, object]] = {
    "title": "Problem",
    "description": "What went wrong (RFC 9457).",
    "type": "object",
    "required": ["type", "title", "status", "detail", "instance", "code", "hint", "where", "retry"],
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string", "description": "what exactly is wrong"},
        "instance": {"type": "string", "description": "the address of the request"},
        "code": {"type": "string", "enum": sorted(_TITLES)},
        "hint": {"type": "string", "description": "what to do about it"},
        "where": {"type": "string", "description": "the position in the request, if there is one"},
        "retry": {"type": "string", "enum": [retry.value for retry in Retry]},
        "position": {"type": "integer", "description": "of the mistake in the text of a query"},
        "ingestion": {"type": "string"},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "outcomes": {"type": "array", "items": {"$ref": "#/components/schemas/Outcome"}},
    },
}


def responses(*statuses: int, strict: bool = False) -> dict[int | str, dict[str, Any]]:
    """For the declaration of a route: the problems that it may respond with, each with an example. `strict`:
    an incomplete answer may be refused."""
    found: dict[int | str, dict[str, Any]] = {}
    examples = {**_EXAMPLES, **({409: _INCOMPLETE} if strict else {})}
    for status in (*statuses, *((409,) if strict else ())):
        code, detail, hint, retry = examples[status]
        example = document(status, code, detail, "/v1/streams/requests/events", hint=hint, retry=retry)
        found[status] = {
            "description": _TITLES[code],
            "content": {MEDIA: {"schema": {"$ref": "#/components/schemas/Problem"}, "example": example}},
        }
        if status in (429, 503):
            found[status]["headers"] = {
                "Retry-After": {"schema": {"type": "integer"}, "description": "seconds until another try"}
            }
        if status == 401:
            found[status]["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
    return found
