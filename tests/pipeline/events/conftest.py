"""What the tests of events share: a state with events in its outbox, and a receiver of webhooks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tidemill.config.events import Events
from tidemill.model.slices import set_hash
from tidemill.model.time import HOUR, parse_instant
from tidemill.model.windows import Dataset, OutboxEvent, WindowKey
from tidemill.outputs.datasets.announce import available
from tidemill.pipeline.events.delivery import Delivery
from tidemill.storage.state.protocol import State
from tidemill.storage.state.sqlite import open_state

NOON = parse_instant("2024-01-15T12:00:00Z")
SECRET = "whsec_dGhlIHRpZGUgdHVybnMgdGhlIG1pbGwgYXQgbm9vbg=="


def dataset_of(number: int, revision: int = 1) -> Dataset:
    """Of hour `number` of the day, made of one slice."""
    key = WindowKey("weather", NOON + (number - 12) * HOUR, HOUR)
    file = f"datasets/weather/aggregation/{number:02d}_1h/r{revision}.arrow"
    return Dataset(key, revision, set_hash([f"s{number}"]), [f"s{number}"], 2000 + number, 4096, file)


def event_of(number: int, revision: int = 1) -> OutboxEvent:
    dataset = dataset_of(number, revision)
    return available(dataset.key, dataset, revision - 1 or None, "arrival", NOON, {"name": "weather"})


def announce(state: State, *numbers: int) -> list[str]:
    """Enter events in the outbox; their ids."""
    events = [event_of(number) for number in numbers]
    state.observe([], events)
    return [event.id for event in events]


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    opened = open_state(tmp_path / "state.db")
    yield opened
    opened.close()


NewDelivery = Callable[..., Delivery]


@pytest.fixture
def new_delivery(state: State, tmp_path: Path) -> Iterator[NewDelivery]:
    """A delivery to the given sinks, as a new process has it. It waits until all are done."""
    made: list[Delivery] = []

    def make(sinks: dict[str, object], patience: float = 30.0, **settings: object) -> Delivery:
        events = Events.model_validate({"source": "test", "sinks": sinks, **settings})
        made.append(
            Delivery(
                state,
                events,
                tmp_path,
                warehouse=tmp_path / "warehouse",
                environment={"HOOK_SECRET": SECRET, "REDIS_PASSWORD": "tide-and-mill"},
                patience=patience,
            )
        )
        return made[-1]

    yield make
    for delivery in made:
        delivery.close()


@dataclass
class Request:
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes


@dataclass
class Receiver:
    """A web server on a loopback port. It answers with `answers` in turn, then 204 for ever."""

    url: str = ""
    answers: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    hold: threading.Event | None = None  # answers wait for it
    arrived: threading.Event = field(default_factory=threading.Event)  # a request did


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    reported = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            reported.requests.append(Request(self.path, headers, body))
            reported.arrived.set()
            if reported.hold is not None:
                reported.hold.wait(30)
            status, more = reported.answers.pop(0) if reported.answers else (204, {})
            self.send_response(status)
            for name, value in more.items():
                self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    reported.url = f"http://127.0.0.1:{server.server_port}/hook"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield reported
    if reported.hold is not None:
        reported.hold.set()
    server.shutdown()
    server.server_close()
    thread.join()
