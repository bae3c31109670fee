"""A project to run commands in, and a way to run them in process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidemill.cli.main import app


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self):
        """The one document on stdout."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)

    @property
    def error(self):
        return json.loads(self.err.splitlines()[-1])["error"]


Cli = Callable[..., Ran]


@pytest.fixture
def cli() -> Cli:
    """`cli("status", "-p", path)`: exit code, stdout and stderr, which are no terminals."""

    def run(*arguments: object, stdin: str | bytes = "") -> Ran:
        env = {"TIDEMILL_PROJECT": None, "TIDEMILL_OUTPUT": None, "COLUMNS": None}
        done = CliRunner(env=env).invoke(app, [str(a) for a in arguments], input=stdin, prog_name="tidemill")
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return Ran(done.exit_code, done.stdout, done.stderr)

    return run


@pytest.fixture
def project(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh project of `tidemill init`, which is the current folder."""
    folder = tmp_path / "shop"
    assert cli("init", folder).code == 0
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def landed(cli: Cli, project: Path) -> Path:
    """The project with its first two slices landed and nothing accepted."""
    assert cli("ingest", "requests", "data/requests-1.ndjson", "data/requests-2.ndjson").code == 0
    return project
