"""Runs the server: bound before anything else is done, run in the calling thread, ended by an event.

It listens beyond this machine only if requests need a token.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, cast

import uvicorn
import uvloop

from tidemill.config.gateway import is_loopback
from tidemill.formats.bodies import window_limit
from tidemill.formats.bodies.media_types import warm
from tidemill.formats.kernels import compiling_reported
from tidemill.model.errors import ForbiddenError, MachineError
from tidemill.model.time import SECOND
from tidemill.server.connections import HttpConnection

if TYPE_CHECKING:
    from fastapi import FastAPI

    from tidemill.config import Project
    from tidemill.server.service import Service

log = logging.getLogger(__name__)

KEEP_ALIVE: Final = 5  # seconds that a connection may be idle between requests
GRACE: Final = 10  # seconds that requests have to end when the server stops
BACKLOG: Final = 1024
POLL: Final = 0.05  # seconds between two checks of the event that ends it
_HINTS: Final = {
    errno.EADDRINUSE: "another process listens there: choose another gateway.port (0: a free one)",
    errno.EACCES: "this user may not listen there: choose a port of 1024 or more",
    errno.EADDRNOTAVAIL: "no interface of this machine has that address: choose another gateway.host",
}


class _Server(uvicorn.Server):
    """uvicorn's server, without its signal handlers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(
    app: FastAPI,
    host: str,
    port: int,
    stop: threading.Event,
    started: Callable[[str], None] = lambda _url: None,
) -> None:
    """Serve until `stop` is set; `started` is called with the address once requests are accepted."""
    service = cast("Service", app.state.service)
    if not is_loopback(host) and not service.tokens.any_active(service.clock()):
        raise ForbiddenError(
            f"{host} can be reached from other machines, but no token protects the server",
            where="gateway.host",
            hint="make one with `tidemill token create --scope admin --all-tenants`, or listen on 127.0.0.1",
        )
    _warm(service.project)
    bound = _bound(host, port)
    service.address = host
    with bound, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(app, service, bound, stop, started))


def _warm(project: Project) -> None:
    """Load or compile all that reads bodies and events, so that no request waits for it behind a round."""
    with compiling_reported(partial(log.info, "compiling for this machine, once after an installation")):
        warm()
        for stream in islice(project.streams.values(), 1):
            window_limit.warm(stream, project.limits)


async def _run(
    app: FastAPI,
    service: Service,
    bound: socket.socket,
    stop: threading.Event,
    started: Callable[[str], None],
) -> None:
    requests = service.project.gateway.requests
    connection = partial(HttpConnection, patience=requests.timeout / SECOND, most=requests.connections)
    config = uvicorn.Config(
        app,
        http=cast("type[HttpConnection]", connection),
        loop="none",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # mistakes of clients are in their responses
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=GRACE,
        backlog=BACKLOG,
    )
    server = _Server(config)
    watching = asyncio.create_task(_watch(server, service, stop, started, _url(bound)))
    try:
        await server.serve([bound])
    finally:
        service.stop()
        watching.cancel()


async def _watch(
    server: uvicorn.Server, service: Service, stop: threading.Event, started: Callable[[str], None], url: str
) -> None:
    was_logged = False
    while not stop.is_set():
        if server.started and not was_logged:
            was_logged = True
            started(url)
        await asyncio.sleep(POLL if was_logged else 0.001)
    service.stop()
    server.should_exit = True


def _bound(host: str, port: int) -> socket.socket:
    """A socket that listens at the first address of `host` that it can; those of IPv4 come first."""
    error: OSError | None = None
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in sorted(found, key=lambda one: one[0] != socket.AF_INET):
            try:
                return _listening(family, address)
            except OSError as failed:
                error = error or failed
    except OSError as failed:  # the name cannot be resolved
        error = failed
    assert error is not None
    raise MachineError(
        f"cannot listen on {host}:{port}: {error.strerror or error}",
        where="gateway.port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "gateway.host",
        hint=_HINTS.get(error.errno or 0, "choose another gateway.host and gateway.port"),
    ) from error


def _listening(family: int, address: tuple[object, ...]) -> socket.socket:
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(BACKLOG)
    except OSError:
        found.close()
        raise
    return found


def _url(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
