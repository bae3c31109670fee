"""Options that several commands share, and how those before and after the command's name combine.

Nothing here reads the project; importing it must stay cheap, since `--help` does.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from tidemill.model.errors import InputError
from tidemill.model.time import MAX_INSTANT, MILLISECOND, MIN_INSTANT, Interval, parse_duration, parse_instant

SHORTEST: Final = 10 * MILLISECOND
PROJECT_VARIABLE: Final = "TIDEMILL_PROJECT"
OUTPUT_VARIABLE: Final = "TIDEMILL_OUTPUT"
_PANEL: Final = "Options of every command"


class OutputKind(StrEnum):
    TEXT = "text"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"

    @property
    def is_table(self) -> bool:
        """Whether the output is one table and nothing else, which only some commands can give."""
        return self not in (OutputKind.TEXT, OutputKind.JSON)


@dataclass(frozen=True, slots=True)
class CommandSettings:
    """The values of the options that every command has."""

    project: Path = Path()
    output: OutputKind = OutputKind.TEXT
    verbose: int = 0
    quiet: bool = False

    def then(
        self, project: Path | None, output: OutputKind | None, verbose: int, quiet: bool
    ) -> CommandSettings:
        """Combine with the options after the command's name: they win, and `-v` adds up."""
        return CommandSettings(
            project or self.project, output or self.output, self.verbose + verbose, self.quiet or quiet
        )


# The environment is read by the options before the command only: otherwise it would seem to come after
# them, and win over what the user typed.
ProjectFirst = Annotated[
    Path | None,
    typer.Option("--project", "-p", envvar=PROJECT_VARIABLE, metavar="PATH", rich_help_panel=_PANEL,
                 help="The folder with tidemill.yaml, or the file. By default the current folder."),
]  # fmt: skip
OutputFirst = Annotated[
    OutputKind | None,
    typer.Option("--output", envvar=OUTPUT_VARIABLE, case_sensitive=False, rich_help_panel=_PANEL,
                 help="For people, or JSON (run, build, events: a document a line). By default text. "
                 "query and search also give csv, parquet and arrow."),
]  # fmt: skip
Project = Annotated[
    Path | None,
    typer.Option("--project", "-p", metavar="PATH", rich_help_panel=_PANEL,
                 help=f"The folder with tidemill.yaml, or the file (env {PROJECT_VARIABLE})."),
]  # fmt: skip
Output = Annotated[
    OutputKind | None,
    typer.Option("--output", case_sensitive=False, rich_help_panel=_PANEL,
                 help=f"For people, or for programs (env {OUTPUT_VARIABLE}); csv, parquet and arrow: "
                 "query and search."),
]  # fmt: skip
Verbose = Annotated[
    int,
    typer.Option("--verbose", "-v", count=True, metavar="", rich_help_panel=_PANEL, show_default=False,
                 help="Log what is done; -vv also why, and where an error came from."),
]  # fmt: skip
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", metavar="", rich_help_panel=_PANEL, show_default=False,
                 help="No progress, no hints, only errors in the log."),
]  # fmt: skip

Limit = Annotated[int, typer.Option(min=0, metavar="N", help="How many at most, the newest first; 0 is all.")]
Wait = Annotated[
    str, typer.Option("--interval", metavar="D", help="How long to wait when there is nothing to do.")
]
MetricsPort = Annotated[
    int | None,
    typer.Option("--metrics-port", min=0, max=65535, metavar="N",
                 help="Serve Prometheus metrics at http://127.0.0.1:N/metrics; 0 is any free port."),
]  # fmt: skip


def pause_of(interval: str) -> int:
    """Return `--interval` in microseconds; one that would busy-wait is refused."""
    wait = parse_duration(interval)
    if wait < SHORTEST:
        raise InputError(f"an interval of {interval} is too short", hint="at least 10ms; the default is 1s")
    return wait


def asks_for_json(arguments: Sequence[str]) -> bool:
    """Return whether a command line that could not be parsed probably asks for JSON."""
    output = os.environ.get(OUTPUT_VARIABLE, "")
    for number, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if argument == "--":
            break
        if name == "--output":
            output = value if equals else next(iter(arguments[number + 1 :]), "")
    return output.lower() == OutputKind.JSON


From = Annotated[
    str | None, typer.Option("--from", metavar="T", help="Only windows that start here or later …")
]
To = Annotated[str | None, typer.Option("--to", metavar="T", help="… and before this.")]


def span_of(start: str | None, end: str | None) -> Interval | None:
    """Return the half-open interval of `--from` and `--to`, open where one is missing; None without both."""
    if start is None and end is None:
        return None
    return Interval(
        MIN_INSTANT if start is None else parse_instant(start),
        MAX_INSTANT if end is None else parse_instant(end),
    )


def instant_of(text: str | None) -> int | None:
    return None if text is None else parse_instant(text)
