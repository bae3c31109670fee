"""A real S3 server on a free loopback port, if its program is on this machine: versitygw, which Go builds.

`TIDEMILL_S3_SERVER` names the program; otherwise it is looked for on PATH and where `make interop` builds it.
"""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VARIABLE: Final = "TIDEMILL_S3_SERVER"
PROGRAM: Final = "versitygw"
MODULE: Final = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
BUILT: Final = Path(__file__).resolve().parent.parent / "build" / "bin" / PROGRAM
BUCKET: Final = "warehouse"
CREDENTIALS: Final[Mapping[str, str]] = {
    "AWS_ACCESS_KEY_ID": "a-key-of-tests",
    "AWS_SECRET_ACCESS_KEY": "a-secret-of-tests",
    "AWS_REGION": "us-east-1",
}
PATIENCE: Final = 60.0  # seconds until it answers


@dataclass(frozen=True, slots=True)
class S3Server:
    """A server that runs, with one empty bucket."""

    port: int

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to use it."""
        return {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"}


def program() -> str | None:
    """The program of the server; None if there is none on this machine."""
    named = os.environ.get(VARIABLE)
    if named:
        return named
    return shutil.which(PROGRAM) or (str(BUILT) if BUILT.exists() else None)


@contextmanager
def running(server: str, folder: Path) -> Iterator[S3Server]:
    """Start the program, with its objects in a folder; it is stopped at the end."""
    (folder / BUCKET).mkdir(parents=True)  # a folder is a bucket
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    process = subprocess.Popen(
        [server, "--port", f"127.0.0.1:{port}", "--quiet", "posix", str(folder)],
        env={
            **os.environ,
            "ROOT_ACCESS_KEY": CREDENTIALS["AWS_ACCESS_KEY_ID"],
            "ROOT_SECRET_KEY": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait(process, port)
        yield S3Server(port)
    finally:
        process.terminate()
        process.wait(PATIENCE)


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
            connection.request("GET", "/")
            connection.getresponse().read()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the S3 server does not answer on port {port}") from None
            time.sleep(0.05)


@contextmanager
def environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process, and put them back as they were."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
