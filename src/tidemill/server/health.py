"""Whether the server lives, and whether it can take events: for those who watch it.

Open to everybody, so it says what fails and never why or where: that is in the log.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import orjson
from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from tidemill.model.errors import Retry, TidemillError
from tidemill.model.gateway import Pressure
from tidemill.model.time import SECOND
from tidemill.server.asked import check_parameters
from tidemill.server.callers import service_of
from tidemill.server.problems import document, responses, told

if TYPE_CHECKING:
    from tidemill.server.service import Service

log = logging.getLogger(__name__)

AGAIN: Final = 10 * SECOND  # until somebody may find out that the log can be written again
_OK: Final = b'{"status":"ok"}'


def router() -> APIRouter:
    routes = APIRouter(tags=["health"])
    routes.add_api_route(
        "/healthz",
        _healthz,
        summary="Does the server live?",
        operation_id="healthz",
        response_class=Response,
        responses=_shown({"status": "ok"}, "It does"),
    )
    routes.add_api_route(
        "/readyz",
        _readyz,
        summary="Can the server take events?",
        description="Looks at the warehouse, the state, the log and the memory.",
        operation_id="readyz",
        response_class=Response,
        responses=_shown(dict.fromkeys((*_CHECKS, "status"), "ok"), "It can") | responses(503),
    )
    return routes


def _shown(example: Mapping[str, str], description: str) -> dict[int | str, dict[str, Any]]:
    schema = {"type": "object", "required": ["status"], "additionalProperties": {"type": "string"}}
    content = {"application/json": {"schema": schema, "example": example}}
    return {200: {"description": description, "content": content}}


async def _healthz(request: Request) -> Response:
    check_parameters(request)
    return Response(_OK, media_type="application/json")


async def _readyz(request: Request) -> Response:
    check_parameters(request)
    failing = await run_in_threadpool(_failing, service_of(request))
    if not failing:
        return Response(
            orjson.dumps(dict.fromkeys(("status", *_CHECKS), "ok")), media_type="application/json"
        )
    content = document(
        503,
        "unready",
        f"failing: {', '.join(failing)}",
        request.url.path,
        hint="the server's log says why",
        retry=Retry.LATER,
        more={"failing": failing},
    )
    return told(content, {"Retry-After": "1"})


def _failing(service: Service) -> list[str]:
    found = []
    for name, check in _CHECKS.items():
        try:
            check(service)
        except (TidemillError, OSError) as error:
            log.warning("not ready: %s: %s", name, error)
            found.append(name)
    return found


def _warehouse(service: Service) -> None:
    with tempfile.NamedTemporaryFile(dir=service.project.warehouse, prefix=".ready-") as file:
        file.write(b"ready")
        file.flush()
        os.fsync(file.fileno())


def _state(service: Service) -> None:
    service.mill.state.landings()


def _memory(service: Service) -> None:
    if service.gateway.memory.pressure() is Pressure.EMERGENCY:
        raise TidemillError("memory pressure is emergency")


def _log(service: Service) -> None:
    """Whether what came last became durable. After a while it is worth another try."""
    failed = service.unwritten_at
    if failed is not None and service.clock() < failed + AGAIN:
        raise TidemillError("the log could not be written")


_CHECKS: Final[Mapping[str, Callable[[Service], None]]] = {
    "warehouse": _warehouse,
    "state": _state,
    "log": _log,
    "memory": _memory,
}
