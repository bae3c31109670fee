"""A server and its pipeline in one process: what ends one ends the other, in order, and is told."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
from tests.support.patience import PATIENCE

from tidemill.client import Client
from tidemill.ingest.gateway.status import running
from tidemill.mill import Mill
from tidemill.model.errors import ForbiddenError, MachineError
from tidemill.pipeline.reports import TickReport
from tidemill.server import start as serving
from tidemill.server.start import Started

PROJECT = """
version: 1
streams:
  s:
    schema: {event_id: string}
    identity: event_id
"""


@pytest.fixture
def mill(tmp_path: Path):
    (tmp_path / "tidemill.yaml").write_text(PROJECT)
    with Mill.open(tmp_path) as mill:
        yield mill


class Up(threading.Thread):
    """`serving.up` in a thread, as the command line runs it."""

    def __init__(self, mill: Mill, **more: object) -> None:
        super().__init__(daemon=True)
        self.mill, self.more = mill, more
        self.stop, self.ready = threading.Event(), threading.Event()
        self.started: Started | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        def announce(started: Started) -> None:
            self.started = started
            self.ready.set()

        try:
            serving.up(self.mill, self.stop, port=0, interval=600, announce=announce, **self.more)
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.error = error
        self.ready.set()

    def begin(self) -> str:
        self.start()
        assert self.ready.wait(PATIENCE)
        assert self.started is not None, self.error
        return self.started.url

    def end(self) -> None:
        self.join(PATIENCE)
        assert not self.is_alive()


def test_what_was_acknowledged_is_accepted_before_it_ends(mill):
    server = Up(mill)
    with Client(server.begin()) as client:
        client.send("s", ({} for _ in range(250)))
    server.stop.set()
    server.end()
    assert server.error is None
    assert mill.status()[0].raw_rows == 250
    assert running(mill.project.warehouse) == []
    assert not any((mill.project.warehouse / "wal").glob("*/*"))


def test_when_the_pipeline_dies_the_server_ends_and_the_error_is_told(mill):
    asked = threading.Event()

    def die(_report: TickReport) -> None:
        asked.wait(PATIENCE)
        raise ValueError("of the pipeline")

    server = Up(mill, on_tick=die)
    with Client(server.begin()) as client:
        assert client.send("s", {"event_id": "kept"}).status == "durable"
    asked.set()
    server.end()
    assert isinstance(server.error, ValueError)
    assert len(mill.ledger("s", "pending")) == 1  # landed, for the next start


def test_where_the_address_is_taken_nothing_is_worked_off(mill):
    mill.land("s", b'{"event_id": "a"}\n')
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(MachineError, match="cannot listen"):
        serving.up(mill, threading.Event(), port=taken.getsockname()[1], announce=lambda _what: None)
    assert len(mill.ledger("s", "pending")) == 1


def test_beyond_this_machine_a_token_is_needed(mill):
    with pytest.raises(ForbiddenError, match="no token"):
        serving.serve(mill, threading.Event(), host="0.0.0.0", port=0, announce=lambda _what: None)  # noqa: S104


def test_a_server_that_waits_for_outcomes_is_woken_by_the_pipeline(mill):
    server = Up(mill)
    with Client(server.begin()) as client:
        assert client.send("s", {"event_id": "a"}, wait=True).counts == {"accepted": 1}
        assert client.send("s", {"event_id": "a"}, wait=True).counts == {"duplicate": 1}
    server.stop.set()
    server.end()
