"""Servers as processes: they say what they chose, take events, stop cleanly, and lose nothing."""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from rich.console import Console
from tests.support.patience import PATIENCE

from tidemill.cli.first_event import curl_line, first_event
from tidemill.cli.serve import _declared
from tidemill.cli.session import Session
from tidemill.cli.settings import CommandSettings
from tidemill.cli.views.serve import gateways_table
from tidemill.client import Client
from tidemill.config import parse_project, read_template
from tidemill.config.gateway import GatewaySettings
from tidemill.eventtime import registered
from tidemill.ingest.gateway.status import IngestHealth
from tidemill.mill import Mill, wall_clock
from tidemill.model.gateway import GatewayStatus, Pressure

FILE = Path("tidemill.yaml")
PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8").partition("\n## serve\n")[2]
NOW = wall_clock() // 1000  # milliseconds


class Server:
    """A `tidemill` that serves, and what it said when it began."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()
        self.said = json.loads(line)
        self.url = self.said["url"]

    def stop(self, number: int = signal.SIGTERM) -> str:
        """What it printed after its start; it must have ended well."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, err
        return out


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[Server]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tidemill.cli.main", *arguments, "--port", "0", "--output", "json"],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    try:
        yield Server(process)
    finally:
        process.kill()
        process.communicate()


def requests(count: int) -> list[dict[str, object]]:
    """Events of now for the stream of `tidemill init`; the same each time."""
    return [
        {
            "event_id": f"e{n}",
            "ts": NOW,
            "event_type": "request",
            "tenant": "acme",
            "api": "/a",
            "region": "eu",
        }
        for n in range(count)
    ]


def seen_by_others(cli, name: str) -> str:
    """The address of a gateway by `tidemill status`; a gateway says something about itself every second."""
    for _ in range(200):
        found = cli("status", "--output", "json").json["gateways"]
        if found and found[0]["address"] is not None:
            assert [one["gateway"] for one in found] == [name]
            return found[0]["address"]
    raise AssertionError("it says nothing")


def test_serve_takes_events_and_a_stop_lands_what_is_in_open_windows(cli, project):
    with serving(project, "serve") as server:
        assert [key for key in server.said if f"`{key}`" not in PAGE] == []
        assert server.said["streams"] == ["requests"]
        assert server.said["window"] == {"kind": "adaptive", "min": "10ms", "max": "5s", "target": 100}
        assert (server.said["tokens"], server.said["pipeline"], server.said["made"]) == (0, False, None)
        lines = "".join(json.dumps(event) + "\n" for event in requests(3))
        headers = {"content-type": "application/x-ndjson"}
        url = f"{server.url}/v1/streams/requests/events"
        answer = httpx.post(url, content=lines, headers=headers, trust_env=False)
        assert answer.status_code == 202
        assert answer.json()["status"] == "durable"
        assert server.stop() == ""
    status = cli("status", "--output", "json").json
    assert status["gateways"] == []
    assert status["streams"][0]["slices"]["pending"] == 1
    with Mill.open(project) as mill:
        (entry,) = mill.ledger()
        window = json.loads(entry.slice.metadata)["window"]
        assert (window["trigger"], window["events"], entry.slice.source) == ("shutdown", 3, "http")


def test_up_decides_at_once_answers_queries_and_works_off_what_is_left(cli, project):
    with serving(project, "up", "--interval", "10m") as server, Client(server.url) as client:
        assert server.said["pipeline"] is True
        first = client.send("requests", requests(2), wait=True)
        assert (first.status, first.counts) == ("decided", {"accepted": 2})
        assert client.send("requests", requests(3), wait=True).counts == {"accepted": 1, "duplicate": 2}
        # The gate decides before the same round builds tiles; once the next round decides, they are there.
        # In another order: the same bytes would be the same slice, which is decided.
        assert client.send("requests", requests(3)[::-1], wait=True).counts == {"duplicate": 3}
        output = client.query("SELECT count FROM requests SINCE 1h GROUP BY region")
        assert sum(row["count"] for row in output["rows"]) == 3
        assert seen_by_others(cli, server.said["gateway"]) == server.url
        left = [{**event, "event_id": f"left-{event['event_id']}"} for event in requests(4)]
        assert client.send("requests", left).status == "durable"
        ticks = [json.loads(line) for line in server.stop(signal.SIGINT).splitlines()]
    batches = [batch for tick in ticks if (batch := tick["streams"][0]["batch"]) is not None]
    assert sum(batch["counts"]["accepted"] for batch in batches) == 7
    assert cli("status", "--output", "json").json["streams"][0]["slices"]["pending"] == 0


def test_the_command_that_is_shown_to_try_is_accepted(project):
    with serving(project, "up") as server:
        done = subprocess.run(
            [*shlex.split(server.said["try"]), "--silent", "--noproxy", "*"], capture_output=True, check=True
        )
        output = json.loads(done.stdout)
        assert output["counts"]["accepted"] == 1, output
        server.stop()


def test_what_a_gateway_that_was_killed_had_acknowledged_is_landed_by_the_next(cli, project):
    with serving(project, "serve") as server:
        with Client(server.url) as client:
            client.send("requests", requests(5))
        server.process.kill()
        server.process.communicate()
    with serving(project, "serve") as after:
        taken = after.said["taken_up"]
        landed = cli("status", "--output", "json").json["streams"][0]["slices"]["pending"]
        assert landed == 1
        assert [(one["gateway"], one["events"]) for one in taken] in (
            [(server.said["gateway"], 5)],
            [],  # its window was over before it was killed
        )
        after.stop()


def test_a_port_that_is_taken_is_told_with_the_setting(cli, project):
    with serving(project, "serve") as server:
        port = server.url.rpartition(":")[2]
        done = cli("serve", "--port", port, "--output", "json")
        assert done.code == 3
        assert (done.error["code"], done.error["where"]) == ("environment", "gateway.port")
        server.stop()


def test_other_machines_are_not_served_without_a_token(cli, project):
    done = cli("serve", "--host", "0.0.0.0", "--port", "0", "--output", "json")  # noqa: S104 - it must not
    assert done.code == 2
    assert "`tidemill token create --scope admin --all-tenants`" in done.error["hint"]


def test_status_says_how_events_are_gathered(cli, project):
    settings = "gateway: {window: {kind: session, gap: 1s, max: 10s}, triggers: {count: 7, bytes: null}}\n"
    FILE.write_text(FILE.read_text() + settings)
    shown = " ".join(cli("status").out.split())
    assert "window session, 1s of silence, 10s at most" in shown
    assert "closed early by 7 events, rate changed by 50%, 80% of memory" in shown
    assert "running none" in shown
    said = cli("status", "--output", "json").json
    assert said["gateway"]["window"] == {"kind": "session", "gap": "1s", "max": "10s"}
    assert said["gateway"]["memory"]["max"] == 100 << 20


# -- without a project


def test_up_makes_a_project_where_there_is_none(tmp_path):
    with serving(tmp_path, "up") as server:
        assert server.said["made"] == "tidemill.yaml"
        assert set(server.said["otlp"]) == {"logs", "traces"}
        done = subprocess.run(
            [*shlex.split(server.said["try"]), "--silent", "--noproxy", "*"], capture_output=True, check=True
        )
        assert json.loads(done.stdout)["counts"]["accepted"] == 1
        server.stop()
    assert (tmp_path / "tidemill.yaml").is_file()


def test_a_project_that_is_there_is_left_alone(project):
    before = FILE.read_bytes()
    assert _declared(Session(CommandSettings(project=project))) is None
    assert _declared(Session(CommandSettings(project=project / FILE))) is None
    assert FILE.read_bytes() == before


# -- a first event


@pytest.mark.parametrize(
    ("type_", "value"),
    [("iso8601", "2024-01-15T12:00:00Z"), ("unixtimestamp_s", 1705320000),
     ("unixtimestamp_ns", 1705320000000000000)],
)  # fmt: skip
def test_a_first_event_has_what_the_stream_asks_for(type_, value):
    text = f"""
version: 1
streams:
  s:
    schema: {{id: integer, at: any, kind: string, who.id: string, n: {{type: integer, required: true}}}}
    identity: id
    event_time: {{column: at, type: {type_}}}
    event_type: {{column: kind, allowed: [seen, other]}}
    tenant: who.id
"""
    stream = parse_project(text, FILE, registered(), {}).stream("s")
    event = first_event(stream, 1705320000 * 10**6)
    assert event == {"id": 1, "at": value, "kind": "seen", "who": {"id": "acme"}, "n": 1}


def test_the_line_to_try_shows_a_token_where_one_is_needed():
    stream = parse_project(read_template("requests"), FILE, registered(), {}).stream("requests")
    line = curl_line("http://h:1", stream, 0, token=True)
    assert line is not None
    assert "-H 'authorization: Bearer tm_…'" in line
    assert line.endswith("'http://h:1/v1/streams/requests/events?wait=1'")


def test_status_names_the_part_of_memory_that_is_nearly_full():
    memory = {"total": (60, 1000), "buffer": (60, 500), "buffer of clicks": (60, 64)}
    one = GatewayStatus("g", 7, 0, None, Pressure.LOW, "buffer of clicks", memory, (), 0, 0, 0)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(gateways_table(GatewaySettings(), [one], IngestHealth()))
    assert "pressure low (buffer of clicks: 60 B of 64 B)" in console.export_text()
    console.print(
        gateways_table(
            GatewaySettings(),
            [replace(one, memory={**memory, "buffer of clicks": (30, 64)})],
            IngestHealth(),
        )
    )
    assert "pressure low  (as of" in console.export_text()
