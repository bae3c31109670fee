"""A real PostgreSQL server for tests, from the machine's packages or from the `pgserver` wheel: on a free
loopback port, its data in a temporary folder.

It can be stopped and started again on the same port and folder, as an operator would. It refuses to run
as root, so it then runs as another user. Tests that need it are skipped where there is none.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

USERS = ("postgres", "nobody")  # that may run it when root runs the tests
FAST = (
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "shared_buffers=16MB",
    "max_connections=60",
)


def _programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if wheel := importlib.util.find_spec("pgserver"):
        found[:0] = [Path(place) / "pginstall/bin/initdb" for place in wheel.submodule_search_locations or ()]
    return next((path.parent for path in reversed(found) if path.exists()), None)


class PostgresServer:
    """Of one test session; each schema is a state of its own."""

    def __init__(self) -> None:
        pytest.importorskip("psycopg", reason="psycopg, the driver of PostgreSQL, is not installed")
        programs = _programs()
        if programs is None:
            pytest.skip("no PostgreSQL server: neither Debian's package nor the pgserver wheel is installed")
        self._programs = programs
        self._user = _another_user() if os.geteuid() == 0 else None
        self._folder = Path(tempfile.mkdtemp(prefix="tidemill-postgres-"))
        if self._user is not None:
            shutil.chown(self._folder, self._user)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._run("initdb", "--auth=trust", "--username=tide", "--no-sync", "--encoding=UTF8", "--locale=C")

    @property
    def url(self) -> str:
        return f"postgresql://tide@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Returns when it answers."""
        options = [f"-c {setting}" for setting in FAST]
        options += [f"-p {self.port}", "-c listen_addresses=127.0.0.1", f"-k {self._folder}"]
        self._run("pg_ctl", "start", "-w", "-l", str(self._folder / "log"), "-o", " ".join(options))

    def stop(self, how: str = "immediate") -> None:
        """`immediate` is as if it was killed; it recovers when it is started."""
        self._run("pg_ctl", "stop", "-w", "-m", how)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as link:
            cursor = link.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def new_schema(self) -> str:
        return f"t_{secrets.token_hex(6)}"

    def end_sessions(self) -> int:
        """Close every connection but this one, as an administrator does; how many."""
        ended = self.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        return len(ended)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self._programs / program, "-D", self._folder / "data", *arguments],
            check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=self._folder,
            user=self._user, env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
        )  # fmt: skip


def _another_user() -> str:
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in USERS if name in known)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    server.start()
    yield server
    server.remove()


def project_with_state(request: pytest.FixtureRequest, folder: Path, text: str) -> Iterator[Path]:
    """A project whose state is where the parameter of its fixture says: sqlite or postgresql."""
    if request.param == "sqlite":
        (folder / "tidemill.yaml").write_text(text)
        yield folder
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    schema = server.new_schema()
    (folder / "tidemill.yaml").write_text(f"{text}state: {{url: {server.url}, schema: {schema}}}\n")
    yield folder
    server.execute(f"DROP SCHEMA {schema} CASCADE")
