"""A real S3 server for tests on a free loopback port, and proxies before it that count or break requests.

It is moto, or the program that TIDEMILL_S3_SERVER names (`bench/s3_server.py`). Tests that need it are
skipped where moto is not installed and no program is named.
"""

from __future__ import annotations

import http.client
import logging
import os
import re
import secrets
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import SHUT_RDWR
from urllib.parse import unquote

import pytest
from bench.s3_server import BUCKET, VARIABLE, S3Server, environment, running

FAULTS = ("500", "503", "lost", "cut", "slow")


class BucketServer:
    """One bucket; each warehouse gets a prefix of its own."""

    def __init__(self, port: int) -> None:
        self.port = port

    def new_url(self) -> str:
        return f"s3://{BUCKET}/{secrets.token_hex(6)}"


@pytest.fixture(scope="session")
def bucket_server() -> Iterator[BucketServer]:
    """The server of the run. While it runs, the environment names it."""
    pytest.importorskip("obstore", reason="obstore, the client of buckets, is not installed")
    with _moto() if VARIABLE not in os.environ else _program() as server, environment(server.environment):
        yield BucketServer(server.port)


@contextmanager
def _program() -> Iterator[S3Server]:
    with tempfile.TemporaryDirectory() as folder, running(os.environ[VARIABLE], Path(folder)) as server:
        yield server


@contextmanager
def _moto() -> Iterator[S3Server]:
    moto = pytest.importorskip("moto.server", reason="moto, a server of S3 for tests, is not installed")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("PUT", f"/{BUCKET}")
    assert connection.getresponse().status == 200
    yield S3Server(port)
    server.stop()


# -- between a client and the server


class Network:
    """A proxy that passes requests on, and keeps what was requested."""

    slow = 0.0  # seconds by which a slow request is late

    def __init__(self, server: BucketServer) -> None:
        self._server = server
        self._guard = threading.Lock()
        self._requests: list[str] = []

    def taken(self) -> list[str]:
        """The requests since the last call: what is done, and with what. A listing names its prefix."""
        with self._guard:
            found, self._requests = self._requests, []
        return found

    def passes(self, method: str, path: str) -> str | None:
        """What becomes of the next request; None: nothing happens to it."""
        prefix = re.search(r"[?&]prefix=([^&]*)", path)
        what = f"LIST {unquote(prefix[1])}" if prefix else f"{method} {unquote(path)}"
        with self._guard:
            self._requests.append(what)
        return None

    @contextmanager
    def running(self) -> Iterator[None]:
        network, port = self, self._server.port

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # a body waits for its headers to be acknowledged, else: 40 ms

            def log_message(self, *_: object) -> None:
                """Says nothing."""

            def forward(self) -> None:
                _forward(self, port, network.passes(self.command, self.path), network.slow)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = forward  # noqa: N815

        proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        try:
            with environment({"AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.server_address[1]}"}):
                yield
        finally:
            proxy.shutdown()
            thread.join()
            proxy.server_close()


class BrokenNetwork(Network):
    """A proxy that breaks every request whose turn it is, in some ways in turns: refused before the server
    saw it, done but never answered, answered by half, or slow (by so many seconds)."""

    def __init__(
        self, server: BucketServer, every: int, kinds: Sequence[str] = FAULTS, slow: float = 0.2
    ) -> None:
        super().__init__(server)
        self._every, self._kinds, self.slow = every, kinds, slow
        self._count = 0
        self.broken: dict[str, int] = dict.fromkeys(FAULTS, 0)

    def passes(self, method: str, path: str) -> str | None:
        with self._guard:
            self._count += 1
            if self._count % self._every:
                return None
            kind = self._kinds[self._count // self._every % len(self._kinds)]
            if kind == "cut" and method != "GET":
                kind = "lost"
            self.broken[kind] += 1
            return kind


def _forward(request: BaseHTTPRequestHandler, port: int, fault: str | None, slow: float) -> None:
    body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
    if fault in ("500", "503"):
        code = b"SlowDown" if fault == "503" else b"InternalError"
        text = b"<Error><Code>" + code + b"</Code></Error>"
        request.send_response(int(fault))
        request.send_header("Content-Length", str(len(text)))
        request.end_headers()
        request.wfile.write(text if request.command != "HEAD" else b"")
        return
    if fault == "slow":
        threading.Event().wait(slow)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(request.command, request.path, body, dict(request.headers.items()))
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    if fault == "lost":
        request.close_connection = True
        request.connection.shutdown(SHUT_RDWR)
        return
    request.send_response(answer.status)
    for name, value in answer.getheaders():
        if name.lower() not in ("connection", "transfer-encoding", "date", "server"):
            request.send_header(name, value)
    request.end_headers()
    request.wfile.write(content[: len(content) // 2] if fault == "cut" else content)
    if fault == "cut":
        request.close_connection = True
        request.wfile.flush()
        request.connection.shutdown(SHUT_RDWR)
