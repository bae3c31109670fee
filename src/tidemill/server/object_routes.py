"""Objects that are in storage already, registered as slices with the time that they cover.

Only files inside a folder that the project names can be registered; links out of it are refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

import orjson
from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from tidemill.ingest import arguments
from tidemill.ingest.arguments import check_bounds, parse_bound
from tidemill.ingest.landing import Landed
from tidemill.model.errors import ForbiddenError, InputError, MediaTypeError, NotFoundError
from tidemill.model.slices import Format
from tidemill.model.time import Interval, format_instant
from tidemill.server import openapi_writes
from tidemill.server.access.grants import Principal, Scope
from tidemill.server.callers import admitted, service_of
from tidemill.server.parameters import source_name
from tidemill.server.problems import responses
from tidemill.server.request_body import HeldMemory, body

if TYPE_CHECKING:
    from tidemill.config import Stream
    from tidemill.server.service import Service

MAX_BYTES: Final = 1 << 20  # bytes of the request: the object may be large, the request is not
SOURCE: Final = "storage"
_FIELDS: Final = ("location", "start", "end", "format", "source", "metadata")
_WINDOW: Final = "window"  # a key that the gateway uses for its own slices
_HINT: Final = "name a file in one of gateway.objects: a path, or file:///..."


def router() -> APIRouter:
    routes = APIRouter(tags=["events"], default_response_class=Response)
    routes.add_api_route(
        "/v1/streams/{stream}/slices",
        _post_slice,
        methods=["POST"],
        summary="Register an object that is in storage",
        description="It is copied into the warehouse, and is a slice when the answer comes.",
        operation_id="post_slice",
        status_code=201,
        responses={
            200: openapi_writes.shown("Registered", "The same had landed before", located=True),
            201: openapi_writes.shown("Registered", "It is a slice", located=True),
            **responses(404, 408, 409, 413, 415),
        },
        openapi_extra=openapi_writes.POST_SLICE,
    )
    return routes


async def _post_slice(request: Request) -> Response:
    service = service_of(request)
    principal = admitted(request, Scope.ADMIN)
    stream = service.stream(request.path_params["stream"], principal.tenant)
    _check_allowed(service, principal)
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise MediaTypeError(
            f"a body of type {media[:80]!r} is not supported",
            where="Content-Type",
            hint="set Content-Type to application/json",
        )
    with HeldMemory(service.gateway.memory) as held:
        content = await body(request, held, MAX_BYTES, service.project.gateway.requests.timeout)
        fields = _fields(content)
    landed = await run_in_threadpool(_land, service, stream, fields)
    service.landed()
    return _answer(landed)


def _check_allowed(service: Service, principal: Principal) -> None:
    if principal.tenant is not None:
        raise ForbiddenError(
            "an object can hold events of any tenant",
            hint="use an operator's token: `tidemill token create --all-tenants`",
        )
    if not service.project.gateway.objects:
        raise ForbiddenError(
            "no folder is allowed for objects",
            where="gateway.objects",
            hint="name the folders that objects may lie in with gateway.objects",
        )


def _fields(content: bytes) -> Mapping[str, object]:
    hint = f"one JSON object with {', '.join(_FIELDS)}"
    try:
        found = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise InputError(f"the body is not JSON: {error}", where="body", hint=hint) from None
    if not isinstance(found, dict):
        raise InputError("the body is not a JSON object", where="body", hint=hint)
    for name in found:
        if name not in _FIELDS:
            raise InputError(f"{name[:60]!r} is not a known field", where=name[:60], hint=hint)
    return {name: value for name, value in found.items() if value is not None}


def _land(service: Service, stream: Stream, fields: Mapping[str, object]) -> Landed:
    declared = _bounds(stream, fields)
    format_ = arguments.format_of(stream, _text(fields, "format"), where="format")
    source = source_name(_text(fields, "source"), SOURCE)
    metadata = _metadata(fields)
    location = _text(fields, "location")
    if location is None:  # nothing happened in the bounds
        return service.mill.warehouse.landing.land_bytes(
            stream.name,
            b"",
            arrival=service.mill.warehouse.arrival(),
            format=format_ or Format.NDJSON,
            declared=declared,
            source=source,
            name="nothing",
            metadata=metadata,
        )
    path = _located(service, location)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(path, flags)
    except OSError as error:
        raise _unread(location, error.strerror or str(error)) from None
    with os.fdopen(handle, "rb") as file:
        if not S_ISREG(os.fstat(handle).st_mode):
            raise _unread(location, "is not a file")
        return service.mill.warehouse.landing.land_stream(
            stream.name,
            file,
            arrival=service.mill.warehouse.arrival(),
            format=format_,
            declared=declared,
            source=source,
            name=path.name,
            metadata=metadata,
        )


def _text(fields: Mapping[str, object], name: str) -> str | None:
    found = fields.get(name)
    if found is not None and (not isinstance(found, str) or not found.strip() or "\0" in found):
        raise InputError(f"{name} is not a string", where=name, hint="write some text, or leave it out")
    return found


def _bounds(stream: Stream, fields: Mapping[str, object]) -> Interval:
    start, end = (_instant(fields, name) for name in ("start", "end"))
    if end <= start:
        raise InputError("end is not after start", where="end", hint="bounds are half-open [start, end)")
    declared = Interval(start, end)
    check_bounds(stream, declared)
    return declared


def _instant(fields: Mapping[str, object], name: str) -> int:
    found = fields.get(name)
    if not isinstance(found, str):
        what = "is missing" if found is None else "is not a string"
        raise InputError(f"{name} {what}", where=name, hint="an instant: 2026-01-05T10:00:00Z")
    try:
        return parse_bound(found)
    except InputError as error:
        raise InputError(f"{name} is wrong: {error.message}", where=name, hint=error.hint) from None


def _metadata(fields: Mapping[str, object]) -> str | None:
    found = fields.get("metadata")
    if found is None:
        return None
    if not isinstance(found, dict):
        raise InputError("metadata is not an object", where="metadata", hint='write {"NAME": ...}')
    if _WINDOW in found:
        raise InputError(
            f"metadata.{_WINDOW} is reserved for slices of the gateway",
            where="metadata",
            hint="give it another name",
        )
    return orjson.dumps(found, option=orjson.OPT_SORT_KEYS).decode()


def _located(service: Service, location: str) -> Path:
    """The file itself, with links resolved. Files outside of the allowed folders look like missing ones."""
    try:
        parts = urlsplit(location)
    except ValueError:
        raise InputError("location is not an address", where="location", hint=_HINT) from None
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise InputError("location is on another machine", where="location", hint=_HINT)
        named = Path(unquote(parts.path))
    elif "://" in location:
        raise InputError(f"{parts.scheme}:// cannot be read", where="location", hint=_HINT)
    else:
        named = Path(location)
    root = service.project.root
    for folder in service.project.gateway.objects:
        top = (root / Path(folder).expanduser()).resolve()
        try:
            found = (top / named).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            continue
        if found.is_relative_to(top) and found.is_file():
            return found
    raise NotFoundError(
        f"there is no file {location[:200]!r} in the folders for objects", where="location", hint=_HINT
    )


def _unread(location: str, what: str) -> InputError:
    return InputError(f"{location[:200]!r} cannot be read: {what}", where="location", hint=_HINT)


def _answer(landed: Landed) -> Response:
    entry = landed.entry
    declared = entry.slice.declared
    content = {
        "slice": entry.id,
        "stream": entry.slice.stream,
        "new": landed.new,
        "status": entry.status.value,
        "format": entry.slice.format.value,
        "bytes": entry.slice.size,
        "start": format_instant(declared.start) if declared else "",
        "end": format_instant(declared.end) if declared else "",
        "source": entry.slice.source,
        "name": entry.slice.name,
    }
    headers = {"Location": f"/v1/slices/{entry.id}"}
    return Response(orjson.dumps(content), 201 if landed.new else 200, headers, "application/json")
