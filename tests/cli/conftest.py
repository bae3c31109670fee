"""Projects to run commands in, and a way to run them in process."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.support.commands import Ran, run_command

from tidemill.mill import Mill
from tidemill.model.time import parse_instant
from tidemill.testing import FakeClock

Cli = Callable[..., Ran]


@pytest.fixture
def cli() -> Cli:
    """`cli("status", "-p", path)`: exit code, stdout and stderr, which are no terminals."""

    def run(*arguments: object, stdin: str | bytes = "") -> Ran:
        return run_command(arguments, stdin)

    return run


@pytest.fixture
def project(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh project of `tidemill init`, which is the current folder."""
    folder = tmp_path / "shop"
    assert cli("init", folder).code == 0
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def landed(cli: Cli, project: Path) -> Path:
    """The project with its first two slices landed and nothing accepted."""
    assert cli("ingest", "requests", "data/requests-1.ndjson", "data/requests-2.ndjson").code == 0
    return project


WEATHER = """
version: 1
builder: {attempts: 1, concurrency: %d}
streams:
  weather:
    schema:
      station: {type: string, required: true}
      at: {type: string, required: true}
      celsius: {type: decimal, scale: 1}
    event_time: {column: at, type: iso8601}
    identity: [station, at]
    aggregation_span: 1h
    subject_to_change_window: 6h
  plain:
    schema: {a: string}
    identity: [a]
"""


def _at(time):
    return f"2024-01-15T{time}:00Z"


class Weather:
    """The project, its clock, and how slices of it are landed."""

    def __init__(self, cli, folder, clock):
        self.cli, self.folder, self.clock = cli, folder, clock

    def declare(self, concurrency=2):
        (self.folder / "tidemill.yaml").write_text(WEATHER % concurrency)

    def set(self, time):
        self.clock.set(parse_instant(time))

    def land(self, start, end, *minutes, station="a"):
        """A slice that covers `[start, end)`; the rows at those times of day. Its id."""
        lines = [json.dumps({"station": station, "at": _at(minute), "celsius": 4.5}) for minute in minutes]
        arguments = ["-", "--format", "ndjson", "--start", _at(start), "--end", _at(end), "--output", "json"]
        done = self.cli("ingest", "weather", *arguments, stdin="\n".join(lines) + "\n")
        assert done.code == 0, done
        return done.json["landed"][0]["id"]

    def run(self, *more):
        done = self.cli("run", "--once", *more)
        assert done.code == 0, done
        return done.out

    def json(self, *arguments):
        done = self.cli(*arguments, "--output", "json")
        assert done.code == 0, done
        return done.json

    def states(self):
        return {one["start"]: one["state"] for one in self.json("windows", "weather")["windows"]}


@pytest.fixture
def weather(cli, tmp_path, monkeypatch):
    """It is half past one, and nothing has landed."""
    folder = tmp_path / "station"
    folder.mkdir()
    monkeypatch.chdir(folder)
    clock = FakeClock(parse_instant("2024-01-15T13:30:00Z"))
    monkeypatch.setattr(Mill, "open", partial(Mill.open, clock=clock))
    weather = Weather(cli, folder, clock)
    weather.declare()
    return weather


@pytest.fixture
def built(weather):
    """One window that is built, and is final."""
    weather.land("13:00", "14:00", "13:00", "13:20", "13:59")
    weather.run()
    weather.set("2024-01-15T20:00:01Z")
    weather.run()
    assert weather.states() == {"2024-01-15T13:00:00Z": "final"}
    return weather
