"""A server on a project: the gateway and the API, alone or with the pipeline in the same process.

It wires and ends them in order: no more requests, then every open window as a slice, then the pipeline's
last rounds. What was acknowledged is durable at every moment; the order only saves the next start work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.config.gateway import GatewaySettings as Settings
from tidemill.ingest.gateway.gateway import Gateway
from tidemill.ingest.gateway.log_recovery import TakenUp, take_up
from tidemill.model.gateway import WindowOutput
from tidemill.pipeline.reports import TickReport
from tidemill.server import listener
from tidemill.server.access.rates import RateLimits
from tidemill.server.access.tokens import Tokens
from tidemill.server.app import create_app
from tidemill.server.service import Service, Wakeup

if TYPE_CHECKING:
    from tidemill.mill import Mill
    from tidemill.outputs.windows.refresh import WindowRefresh

    Flushed = dict[str, list[WindowRefresh]]


@dataclass(frozen=True, slots=True)
class Started:
    """A server that was started, and its settings."""

    url: str
    gateway: str  # its name, and that of its log
    warehouse: Path
    streams: tuple[str, ...]
    settings: Settings
    tokens: int  # tokens that work; without one, only this machine is served
    taken_up: tuple[TakenUp, ...]  # what gateways that died had acknowledged, landed now
    pipeline: bool  # whether this process also decides and builds


Announce = Callable[[Started], None]


def serve(
    mill: Mill, stop: threading.Event, *, host: str | None = None, port: int | None = None, announce: Announce
) -> None:
    """Take events and answer until `stop` is set; another process runs the pipeline."""
    _serve(mill, stop, host, port, announce, Wakeup(), threading.Event(), pipeline=False)


def up(
    mill: Mill,
    stop: threading.Event,
    *,
    host: str | None = None,
    port: int | None = None,
    interval: float = 1.0,
    announce: Announce,
    on_tick: Callable[[TickReport], None] = lambda _report: None,
    on_flush: Callable[[Flushed], None] = lambda _flushed: None,
) -> None:
    """The same with the pipeline in this process, woken by each slice. If the pipeline dies, the server ends
    too."""
    wakeup, wake, landed_all = Wakeup(), threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def ticked(report: TickReport) -> None:
        wakeup.ring()  # requests that wait for outcomes check now
        mill.meter.tick(report)
        on_tick(report)

    def work() -> None:
        try:
            mill.run(landed_all, interval, ticked, on_flush, wake)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that serves
            errors.append(error)
            stop.set()

    pipeline = threading.Thread(target=work, name="tidemill-pipeline", daemon=True)

    def started(what: Started) -> None:
        pipeline.start()  # not earlier: if the address is taken, no work should be done first
        announce(what)

    try:
        _serve(mill, stop, host, port, started, wakeup, wake, pipeline=True)
    finally:
        landed_all.set()
        wake.set()
        if pipeline.ident is not None:
            pipeline.join()
    if errors:
        raise errors[0]


def _serve(
    mill: Mill,
    stop: threading.Event,
    host: str | None,
    port: int | None,
    announce: Announce,
    wakeup: Wakeup,
    wake: threading.Event,
    *,
    pipeline: bool,
) -> None:
    project, settings = mill.project, mill.project.gateway
    host, port = settings.host if host is None else host, settings.port if port is None else port

    def landed(_outputs: Sequence[WindowOutput] = ()) -> None:
        wake.set()
        wakeup.ring()

    tokens = Tokens(project.warehouse)
    tokens.any_made()  # DamageError if the tokens are lost: no caller could be let in
    taken = take_up(
        project.warehouse,
        project.streams,
        mill.state,
        mill.warehouse.landing,
        mill.clock() + settings.receipts,
    )
    with Gateway(
        project.warehouse, project.streams, settings, mill.state, mill.warehouse.landing, mill.clock, landed
    ) as gateway:
        service = Service(
            mill, gateway, tokens, RateLimits(), mill.meter, address=host, woken=wakeup, landed=landed
        )

        def started(url: str) -> None:
            gateway.address = url
            now = mill.clock()
            announce(
                Started(
                    url=url,
                    gateway=gateway.name,
                    warehouse=project.warehouse,
                    streams=tuple(project.streams),
                    settings=settings,
                    tokens=sum(token.active(now) for token in tokens.list()),
                    taken_up=tuple(taken),
                    pipeline=pipeline,
                )
            )

        try:
            listener.serve(create_app(service), host, port, stop, started)
        finally:
            service.parsers.shutdown()
