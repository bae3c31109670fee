"""The entry point `tidemill`: runs the application and turns wrong usage into an error like all others."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from tidemill.cli import (  # noqa: F401 - they declare the commands
    ask,
    datasets,
    event_time,
    feed,
    keep,
    look,
    pack,
    prove,
    results,
    serve,
    start,
    tokens,
    vectors,
    windows,
)
from tidemill.cli.app import Panel, app
from tidemill.cli.session import Session
from tidemill.cli.settings import OutputKind, Settings, asks_for_json
from tidemill.model.errors import InputError

app.registered_commands.sort(key=lambda command: list(Panel).index(Panel(command.rich_help_panel or "")))


class UsageError(InputError):
    """The command line itself can not be understood."""

    code = "usage"


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that is not UTF-8 gets escapes, not a stack trace
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(given, prog_name="tidemill", standalone_mode=False)
    except typer.TyperException as error:
        output = OutputKind.JSON if asks_for_json(given) else OutputKind.TEXT
        message = error.format_message().replace("Value error, ", "").removesuffix(".")
        wrong = UsageError(message, hint=_help_for(error))
        Session(Settings(output=output)).out.error(wrong)
        code = wrong.exit_code
    except typer.Abort:
        code = 130
    sys.exit(code or 0)


def _help_for(error: typer.TyperException) -> str:
    command = getattr(getattr(error, "ctx", None), "command_path", "tidemill")
    return f"`{command} --help` explains it"


if __name__ == "__main__":
    main()
