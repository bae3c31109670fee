"""Python workers of a session on one machine are forked from a single thread, and end quietly."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from tidemill.engine.worker_daemon import ending_quietly


def test_a_closed_connection_ends_a_worker_without_an_error() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()

    def answers(connection: socket.socket, _authenticated: bool) -> int:
        connection.sendall(b"result")
        return 0

    with ours:
        assert ending_quietly(answers)(ours, True) == 1


def test_other_errors_and_exit_codes_pass() -> None:
    def fails(_connection: socket.socket, _authenticated: bool) -> int:
        raise ValueError("of the task")

    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert ending_quietly(lambda _connection, _authenticated: 0)(ours, True) == 0
        with pytest.raises(ValueError, match="of the task"):
            ending_quietly(fails)(ours, False)


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="threads are counted in /proc")  # noqa: PTH112
def test_the_daemon_has_one_thread_when_it_forks() -> None:
    count = "import os, tidemill.engine.worker_daemon; print(len(os.listdir('/proc/self/task')))"
    found = subprocess.run([sys.executable, "-c", count], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "1"
