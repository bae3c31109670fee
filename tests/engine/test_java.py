"""When Java cannot run Spark, or Java or a Python worker of Spark ends, an error says so, without a stack
trace, and the next job works."""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
from py4j.java_gateway import GatewayClient, GatewayParameters  # type: ignore[import-untyped]

from tidemill.engine.session import silence_gateway

JAVA = """#!/bin/sh
[ "$1" = -version ] && { echo 'openjdk version "21.0.8" 2025-07-15 LTS' >&2; exit 0; }
echo 'java.lang.module.FindException: Module jdk.incubator.vector not found' >&2
exit 1
"""
PROJECT = """
version: 1
engine: {inline_bytes: 0}
streams:
  visits:
    schema: {id: string, at: string}
    identity: id
    event_time: {column: at, type: iso8601}
"""


def test_a_java_that_ends_at_once_is_named(tmp_path: Path) -> None:
    java = tmp_path / "reduced" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(JAVA)
    java.chmod(0o755)
    (tmp_path / "tidemill.yaml").write_text(PROJECT)
    (tmp_path / "visits.ndjson").write_text('{"id": "a", "at": "2024-01-15T10:00:03Z"}\n')

    def tidemill(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tidemill.cli.main", "-p", str(tmp_path), "--output", "json", *words],
            env={**os.environ, "JAVA_HOME": str(java.parent.parent)},
            capture_output=True,
            text=True,
            check=False,
        )

    assert tidemill("ingest", "visits", str(tmp_path / "visits.ndjson")).returncode == 0
    ran = tidemill("run", "--once")
    assert "Traceback" not in ran.stderr
    error = json.loads(ran.stderr.splitlines()[-1])["error"]
    assert error["code"] == "environment"
    assert error["message"] == "Java ended before Spark had started"
    assert "JAVA_HOME" in error["hint"]
    assert ran.returncode != 0


KILLED = """
import json, os, signal
from tidemill.engine import Engine, SessionSettings
from tidemill.model.errors import MachineError

def square(unit):
    yield unit * unit

def kill(unit):
    os.kill(unit or os.getpid(), signal.SIGKILL)
    yield unit

def java(engine):
    return engine.session.sparkContext._gateway.proc

def end(process):
    process.kill()
    process.wait()

def exhaust(unit):
    yield len(bytearray(unit))

engine, beside = (Engine(settings=SessionSettings(cores=1)) for _ in range(2))
said = {"first": engine.run(square, [1, 2, 3], "squares"), "beside": beside.run(square, [3], "squares")}
end(java(engine))
said["second"] = engine.run(square, [4, 5], "squares")
said["beside, then"] = beside.run(square, [6], "squares")
for name, kernel, unit in (
    ("worker", kill, 0), ("memory", exhaust, 1 << 60), ("during a job", kill, java(engine).pid)
):
    try:
        engine.run(kernel, [unit], name)
    except MachineError as error:
        said[name] = str(error)
said["third"] = engine.run(square, [7], "squares")
callers = Engine(engine.session)
end(java(engine))
try:
    callers.run(square, [8], "squares")
except MachineError as error:
    said["of the caller"] = str(error)
for each in (callers, beside, engine):
    each.close()
print(json.dumps(said))
"""


def test_when_the_jvm_is_killed_the_next_job_starts_another(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == {
        "first": [1, 4, 9],
        "beside": [9],
        "second": [16, 25],
        "beside, then": [36],
        "worker": "a Python worker of Spark has ended during a job",
        "memory": "there is not enough memory",
        "during a job": "the JVM of Spark has ended during a job",
        "third": [49],
        "of the caller": "the Spark session that was passed in has ended",
    }
    assert "Traceback" not in ran.stderr


@contextmanager
def _resets() -> Iterator[int]:
    """The port of a server that reads what it is sent and resets the connection, as a killed JVM does."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            connection.recv(1 << 16)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()

        thread = Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def test_a_reset_connection_to_the_jvm_prints_no_stack_trace(caplog: pytest.LogCaptureFixture) -> None:
    root = logging.getLogger()
    before = list(root.filters)

    def send() -> None:
        with _resets() as port:
            client = GatewayClient(gateway_parameters=GatewayParameters(port=port))
            assert client.send_command("c\nt\nstop\ne\n").startswith("x")  # what py4j answers on an error
            client.close()

    try:
        root.filters = []
        with caplog.at_level(logging.WARNING):
            send()
        assert [record.getMessage() for record in caplog.records] == ["Exception while sending command."]
        caplog.clear()
        silence_gateway()
        silence_gateway()  # once is enough
        assert len(root.filters) == 1
        with caplog.at_level(logging.WARNING):
            send()
            root.error("of somebody else")
        assert [record.getMessage() for record in caplog.records] == ["of somebody else"]
    finally:
        root.filters = before
