"""The log: JSON lines with what a record is about, levels by -v and -q, Spark's noise as debug."""

from __future__ import annotations

import io
import json
import logging
import os
import queue
import subprocess
import sys

import pytest
from rich.console import Console
from tests.support.patience import PATIENCE

from tidemill.cli.logs import as_line, level_for, start_logging
from tidemill.cli.terminal import jvm_to_log


@pytest.fixture(autouse=True)
def _as_before():
    yield
    root = logging.getLogger()
    for handler in [h for h in root.handlers if h.name == "tidemill-cli"]:
        root.removeHandler(handler)
    logging.getLogger("tidemill").setLevel(logging.NOTSET)
    logging.captureWarnings(capture=False)


def record(message="done", **extra):
    made = logging.makeLogRecord({"name": "tidemill.x", "levelname": "INFO", "msg": message, "created": 1.5})
    made.__dict__.update(extra)
    return made


def test_a_record_is_one_json_object_with_its_facts():
    line = as_line(record("accepted %s", args=(3,), stream="requests", slice="ab", batch="cd", tile=None))
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:01.500Z",
        "level": "info",
        "logger": "tidemill.x",
        "message": "accepted 3",
        "stream": "requests",
        "slice": "ab",
        "batch": "cd",
    }


def test_levels():
    assert level_for(0, quiet=False) == logging.WARNING
    assert level_for(1, quiet=False) == logging.INFO
    assert level_for(5, quiet=False) == logging.DEBUG
    assert level_for(2, quiet=True) == logging.ERROR


def test_json_lines_on_stderr_where_there_is_no_terminal(capsys):
    start_logging(1, quiet=False, console=lambda: Console(stderr=True))
    log = logging.getLogger("tidemill.raw.accept.batch")
    log.debug("no")
    log.info("two\nlines", extra={"stream": "requests"})
    logging.getLogger("py4j.java_gateway").warning("no")
    logging.getLogger("py.warnings").warning("no")
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert json.loads(line)["message"] == "two\nlines"


def test_starting_twice_logs_once(capsys):
    for _ in range(2):
        start_logging(0, quiet=False, console=lambda: Console(stderr=True))
    logging.getLogger("tidemill").warning("once")
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_readable_and_coloured_on_a_terminal():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, markup=False, highlight=False, width=200)
    start_logging(0, quiet=False, console=lambda: console)
    logging.getLogger("tidemill").warning("[bold]\x1b[5m", extra={"slice": "f" * 64})
    line = screen.getvalue()
    assert "[bold]\\x1b[5m" in line
    assert "\x1b[33mwarning" in line
    assert "slice=" + "f" * 16 in line
    assert "f" * 17 not in line


def test_what_the_jvm_says_is_debug_and_its_errors_are_errors(capfd):
    heard: queue.Queue[tuple[str, str]] = queue.Queue()
    log = logging.getLogger("tidemill.spark")
    handler = logging.Handler()
    handler.emit = lambda record: heard.put((record.levelname, record.getMessage()))
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    said = (
        'Setting Spark log level to "ERROR".\\n24/01/15 14:23:45 ERROR Executor: lost\\n'
        "Error occurred during initialization of boot layer\\n"
        "java.lang.module.FindException: Module jdk.incubator.vector not found\\n"
    )
    try:
        with jvm_to_log():
            subprocess.run([sys.executable, "-c", f"import os; os.write(2, b'''{said}''')"], check=True)
            os.write(2, b"native code\n")
            reported = [heard.get(timeout=PATIENCE) for _ in range(5)]
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)
    sys.stderr.write("ours\n")
    assert reported == [
        ("DEBUG", 'Setting Spark log level to "ERROR".'),
        ("ERROR", "24/01/15 14:23:45 ERROR Executor: lost"),
        ("ERROR", "Error occurred during initialization of boot layer"),
        ("ERROR", "java.lang.module.FindException: Module jdk.incubator.vector not found"),
        ("DEBUG", "native code"),
    ]
    assert capfd.readouterr().err == "ours\n"
