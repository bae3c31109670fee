"""Health checks: whether the server is alive, and whether it can take events.

They need no token, so they say what fails and in general why, but name no stream, file or address: those are
in the log and in `status`. A single failing stream does not make the server unready.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import orjson
from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from tidemill.ingest.gateway.damaged_logs import damaged_logs
from tidemill.model.errors import Retry, TidemillError, as_tidemill_error
from tidemill.model.gateway import Pressure
from tidemill.model.time import SECOND
from tidemill.server.callers import service_of
from tidemill.server.parameters import check_parameters
from tidemill.server.problems import document, problem_response, responses
from tidemill.storage import layout
from tidemill.storage.bucket_path import on_disk
from tidemill.storage.state.faults import WAREHOUSE, faults_of

if TYPE_CHECKING:
    from tidemill.server.service import Service

log = logging.getLogger(__name__)

AGAIN: Final = 10 * SECOND  # after this time requests may try again whether the log can be written
UNLANDED: Final = 10.0  # seconds that windows may fail to land before the server counts as unready
OK: Final = "ok"
DEGRADED: Final = "degraded"  # it takes events, but some stream or output fails
_OK: Final = b'{"status":"ok"}'


def router() -> APIRouter:
    routes = APIRouter(tags=["health"], default_response_class=Response)
    routes.add_api_route(
        "/healthz",
        _healthz,
        summary="Does the server live?",
        operation_id="healthz",
        responses=_shown({"status": "ok"}, "It does"),
    )
    routes.add_api_route(
        "/readyz",
        _readyz,
        summary="Can the server take events?",
        description="Looks at the warehouse, the state, the log, the memory, the tokens, what waits to be "
        "landed, the rounds of the pipeline if it runs in this process, and its queues. `streams` says "
        "how many streams cannot be worked on, `damage` whether something that was acknowledged is damaged; "
        "then `status` is `degraded`.",
        operation_id="readyz",
        responses=_shown(dict.fromkeys(("status", *_CHECKS, "streams", "damage"), OK), "It can")
        | responses(503),
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
    service = service_of(request)
    failing = await run_in_threadpool(_failing, service)
    if not failing:
        streams, damage = await run_in_threadpool(lambda: (_streams(service), _damage(service)))
        status = OK if streams == damage == OK else DEGRADED
        report = {"status": status, **dict.fromkeys(_CHECKS, OK), "streams": streams, "damage": damage}
        return Response(orjson.dumps(report), media_type="application/json")
    content = document(
        503,
        "unready",
        "; ".join(f"{name}: {reason}" for name, reason in failing.items()),
        request.url.path,
        hint="the server's log says more",
        retry=Retry.LATER,
        more={"failing": list(failing), "reasons": failing},
    )
    return problem_response(content, {"Retry-After": "1"})


def _failing(service: Service) -> dict[str, str]:
    """What fails, each with the reason; logged when it changes."""
    found: dict[str, str] = {}
    for name, check in _CHECKS.items():
        try:
            reason = check(service)
        except (TidemillError, OSError) as error:
            reason = as_tidemill_error(error).code
            _log_once(service, name, str(error))
        if reason is not None:
            found[name] = reason
            _log_once(service, name, reason)
    for name in service.unready.keys() - found.keys():
        del service.unready[name]
        log.info("ready again: %s", name)
    return found


def _log_once(service: Service, name: str, reason: str) -> None:
    if name not in service.unready:
        service.unready[name] = reason
        log.warning("not ready: %s: %s", name, reason)


def _streams(service: Service) -> str:
    """How many streams have faults, and of which kinds."""
    state, names = service.mill.state, [WAREHOUSE, *service.project.streams]
    faults = [fault for name in names for fault in faults_of(state, name)]
    if not faults:
        return OK
    streams, codes = {fault.stream for fault in faults if fault.stream}, {fault.code for fault in faults}
    return f"{len(streams)} of {len(names) - 1} cannot be worked on ({', '.join(sorted(codes))})"


def _damage(service: Service) -> str:
    """Whether acknowledged events of a gateway could not be read any more."""
    count = len(damaged_logs(service.project.warehouse))
    return f"{count} damaged stretches of logs were set aside: see `tidemill status`" if count else OK


def _warehouse(service: Service) -> str | None:
    warehouse = service.project.warehouse
    with tempfile.NamedTemporaryFile(dir=on_disk(warehouse), prefix=".ready-") as file:
        file.write(b"ready")
        file.flush()
        os.fsync(file.fileno())
    layout.state_owner(warehouse).exists()  # a bucket must answer; landing finds whether it can be written to
    return None


def _state(service: Service) -> str | None:
    service.mill.state.landings()
    return None


def _memory(service: Service) -> str | None:
    full = service.gateway.memory.pressure() is Pressure.EMERGENCY
    return "memory pressure is emergency" if full else None


def _log(service: Service) -> str | None:
    """Whether the last events became durable. After a while it is worth another try."""
    failed = service.unwritten_at
    return "it could not be written" if failed is not None and service.timer() < failed + AGAIN else None


def _landing(service: Service) -> str | None:
    """Whether acknowledged events get into the ledger."""
    since = service.gateway.stuck_since
    if since is None or (waited := monotonic() - since) < UNLANDED:
        return None
    return f"what was acknowledged could not be landed for {int(waited)} s"


def _pipeline(service: Service) -> str | None:
    return service.mill.pulse.stall()


def _queues(service: Service) -> str | None:
    return service.mill.pulse.stuck_queue()


def _tokens(service: Service) -> str | None:
    """Whether callers can be identified: not if the file of tokens is lost or damaged."""
    service.tokens.any_made()
    return None


_CHECKS: Final[Mapping[str, Callable[[Service], str | None]]] = {  # None: nothing is wrong
    "warehouse": _warehouse,
    "state": _state,
    "log": _log,
    "memory": _memory,
    "tokens": _tokens,
    "landing": _landing,
    "pipeline": _pipeline,
    "queues": _queues,
}
