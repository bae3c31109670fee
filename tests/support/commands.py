"""Runs a command in this process, as `tidemill` would, with streams that are no terminals."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

from tidemill.cli.main import every_command

ENVIRONMENT = {"TIDEMILL_PROJECT": None, "TIDEMILL_OUTPUT": None, "COLUMNS": None}


@dataclass(frozen=True)
class Ran:
    """The exit code of a command, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        return json.loads(self.err.splitlines()[-1])["error"]


@functools.cache
def _every_command() -> Any:
    """Made once: reading the signatures of all commands takes longer than most commands do."""
    return get_command(every_command())


def run_command(arguments: Sequence[object], stdin: str | bytes = "") -> Ran:
    """An error that a command does not report itself is raised."""
    words = [str(one) for one in arguments]
    with CliRunner(env=ENVIRONMENT).isolation(input=stdin) as (out, err, _):
        code = 0
        try:
            _every_command().main(args=words, prog_name="tidemill")
        except SystemExit as end:
            code = int(end.code or 0)
        sys.stdout.flush()
        sys.stderr.flush()
        written = [stream.getvalue().decode(errors="replace") for stream in (out, err)]
    return Ran(code, *written)
