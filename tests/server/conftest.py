"""A real server on a free port of loopback, over a project of its own, and a pipeline that runs on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tests.support.patience import PATIENCE

from tidemill.ingest.gateway.gateway import Gateway
from tidemill.mill import Mill, wall_clock
from tidemill.model.clock import Clock
from tidemill.server.access.rates import RateLimits
from tidemill.server.access.tokens import Tokens
from tidemill.server.app import create_app
from tidemill.server.listener import serve
from tidemill.server.service import Service

PROJECT = """
version: 1
engine: {cores: 2, memory: 1g}
gateway:
  window: {kind: adaptive, min: 1ms, max: 20ms, target: 100}
  %(gateway)s
streams:
  requests:
    schema:
      event_id: {type: string, required: true}
      ts: {type: string, required: true}
      api: string
      status: integer
      latency_ms: {type: decimal, scale: 3}
    event_time: {column: ts, type: iso8601}
    identity: [event_id]
    tenant: {value: acme}
    aggregation_span: 1h
    metrics:
      hits: {kind: counter, dimensions: [api], measures: [latency_ms]}
    indexed: [api]
  events:
    schema:
      event_id: {type: string, required: true}
      ts: {type: string, required: true}
      event_type: {type: string, required: true}
      tenant: {type: string, required: true}
      resource: object
      attributes: object
      outcome: any
    event_type: {column: event_type, allowed: [checkout, login]}
    event_time: {column: ts, type: iso8601}
    identity: [event_id]
    tenant: {column: tenant}
    aggregation_span: 1h
    metrics:
      seen: {kind: counter, dimensions: [event_type]}
    indexed: [resource.service]
  logs:
    schema: &otlp
      event_id: {type: string, required: true}
      ts: {type: string, required: true}
      event_type: {type: string, required: true}
    event_time: {column: ts, type: iso8601}
    identity: [event_id]
    tenant: {value: acme}
  traces:
    schema: *otlp
    event_time: {column: ts, type: iso8601}
    identity: [event_id]
    tenant: {value: acme}
"""


@dataclass
class Served:
    """A running server, and the parts it stands on."""

    url: str
    service: Service
    http: httpx.Client
    landed: threading.Event  # set with each slice that lands

    @staticmethod
    def request(event_id: str, second: int = 0, **more: object) -> dict[str, object]:
        """An event of `requests`."""
        found = {"event_id": event_id, "ts": f"2026-01-05T10:00:{second:02}Z", "api": "/cart", "status": 200}
        return found | more

    @staticmethod
    def event(event_id: str, tenant: str | None = "acme", **more: object) -> dict[str, object]:
        """An event of `events`, in the envelope."""
        named = {} if tenant is None else {"tenant": tenant}
        return {
            "event_id": event_id,
            "ts": "2026-01-05T10:00:00Z",
            "event_type": "checkout",
            **named,
            "resource": {"service": "shop"},
            "attributes": {"http.route": "/cart"},
        } | more

    @property
    def mill(self) -> Mill:
        return self.service.mill

    @property
    def gateway(self) -> Gateway:
        return self.service.gateway

    def token(
        self, *scopes: str, tenant: str | None = None, rate: int | None = None, expires: int | None = None
    ) -> dict[str, str]:
        """The headers that show a new token."""
        now = wall_clock() if expires is None else min(wall_clock(), expires - 1)
        _, text = self.service.tokens.create(scopes, tenant=tenant, now=now, rate=rate, expires=expires)
        return {"Authorization": f"Bearer {text}"}

    def send(self, stream: str, events: object, **more: object) -> httpx.Response:
        """Post events as JSON."""
        return self.http.post(f"/v1/streams/{stream}/events", json=events, **more)  # type: ignore[arg-type]

    def settle(self) -> None:
        """Everything that was acknowledged is in a slice, and every slice is decided."""
        while (now := self.gateway.status()).acknowledged > now.landed:
            self.landed.wait(1)
            self.landed.clear()
        self.tick()

    def tick(self) -> None:
        self.mill.run_until_idle()
        self.service.woken.ring()

    @contextmanager
    def ticking(self) -> Iterator[None]:
        """Meanwhile the pipeline runs beside it, woken by each slice, as in `tidemill up`."""
        over = threading.Event()

        def work() -> None:
            while not over.is_set():
                self.landed.wait()
                self.landed.clear()
                self.tick()

        pipeline = threading.Thread(target=work, daemon=True)
        pipeline.start()
        try:
            yield
        finally:
            over.set()
            self.landed.set()
            pipeline.join()


Serving = Callable[..., Served]


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    """`serving(gateway="requests: {body: 1MiB}", text=...)`: servers that end with the test."""
    with ExitStack() as stack:
        made = 0

        def begin(
            *, text: str = PROJECT, gateway: str = "", host: str = "127.0.0.1", clock: Clock = wall_clock
        ) -> Served:
            nonlocal made
            made += 1
            folder = tmp_path / f"project{made}"
            return stack.enter_context(running(write(folder, gateway, text), host, clock=clock))

        yield begin


def write(folder: Path, gateway: str = "", text: str = PROJECT) -> Path:
    """A project in a new folder."""
    folder.mkdir()
    (folder / "tidemill.yaml").write_text(text % {"gateway": gateway})
    return folder


@contextmanager
def running(
    folder: Path, host: str = "127.0.0.1", port: int = 0, clock: Clock = wall_clock
) -> Iterator[Served]:
    """A server on the project in `folder`."""
    with Mill.open(folder, clock=clock) as mill:
        warehouse, settings = mill.project.warehouse, mill.project.gateway
        landed = threading.Event()

        def reported(_outputs: Sequence[object] = ()) -> None:
            landed.set()
            service.woken.ring()

        with Gateway(
            warehouse,
            mill.project.streams,
            settings,
            mill.state,
            mill.warehouse.landing,
            mill.clock,
            reported,
        ) as gateway:
            service = Service(mill, gateway, Tokens(warehouse), RateLimits(), mill.meter, landed=reported)
            stop, ready = threading.Event(), threading.Event()
            urls: list[str] = []
            errors: list[BaseException] = []

            def started(url: str) -> None:
                urls.append(url)
                ready.set()

            def work() -> None:
                try:
                    serve(create_app(service), host, port, stop, started)
                except BaseException as error:  # noqa: BLE001 - raised in the test
                    errors.append(error)
                finally:
                    ready.set()

            server = threading.Thread(target=work, daemon=True)
            server.start()
            ready.wait()
            if errors:
                raise errors[0]
            try:
                with httpx.Client(base_url=urls[0], timeout=PATIENCE) as http:
                    yield Served(urls[0], service, http, landed)
            finally:
                stop.set()
                server.join()
                service.parsers.shutdown()


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for all tests of a module that change nothing: of refusals."""
    folder = tmp_path_factory.mktemp("still")
    (folder / "store").mkdir()
    limits = "requests: {body: 8KiB, events: 10, depth: 4, field: 100, wait: 20ms}"
    with running(write(folder / "project", f"{limits}\n  objects: [{folder / 'store'}]")) as served:
        yield served


@pytest.fixture
def served(serving: Serving) -> Served:
    """A server without tokens, over streams `requests`, `events` (several tenants), `logs`, `traces`."""
    return serving()
