"""`run` stops cleanly: the first signal lets the round finish, the second interrupts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from tests.support.patience import PATIENCE

from tidemill.cli.signals import until_stopped


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_lets_the_work_finish(number):
    done = []

    def work(stop: threading.Event) -> None:
        assert threading.current_thread() is not threading.main_thread()
        os.kill(os.getpid(), number)
        assert stop.wait(PATIENCE)
        done.append("the round")

    before = signal.getsignal(number)
    until_stopped(work)
    assert done == ["the round"]
    assert signal.getsignal(number) is before


def test_the_second_signal_interrupts():
    blocked = threading.Event()

    def work(stop: threading.Event) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(PATIENCE)
        os.kill(os.getpid(), signal.SIGINT)
        blocked.wait(PATIENCE)

    with pytest.raises(KeyboardInterrupt):
        until_stopped(work)
    blocked.set()


def test_an_error_of_the_work_comes_out():
    def work(_stop: threading.Event) -> None:
        raise ValueError("of the work")

    with pytest.raises(ValueError, match="of the work"):
        until_stopped(work)


@pytest.mark.spark
def test_run_on_spark_prints_json_lines_and_sigterm_stops_it_with_0(cli, landed):
    daemon = subprocess.Popen(
        [sys.executable, "-m", "tidemill.cli.main", "run", "--output", "json", "--interval", "50ms"],
        cwd=landed, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TIDEMILL__ENGINE__INLINE_BYTES": "0",
             "TIDEMILL__ENGINE__MEMORY": "512m"},
    )  # fmt: skip
    try:
        assert daemon.stdout is not None
        first = daemon.stdout.readline()
        daemon.send_signal(signal.SIGTERM)
        out, err = daemon.communicate(timeout=PATIENCE)
    finally:
        daemon.kill()
    assert daemon.returncode == 0, err
    assert (out, err) == ("", "")  # no tick did more, and Spark made no noise
    (tick,) = json.loads(first)["streams"]
    assert tick["batch"]["counts"]["records"] == 387
    assert cli("status", "--output", "json").json["streams"][0]["slices"]["accepted"] == 2
