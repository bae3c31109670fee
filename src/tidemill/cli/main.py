"""The entry point `tidemill`: runs the application and reports wrong usage like all other errors."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Final

import typer

from tidemill.cli.app import Panel, app
from tidemill.cli.session import Session
from tidemill.cli.settings import CommandSettings, OutputKind, asks_for_json
from tidemill.model.errors import InputError

# The commands that each module declares. A call loads only the modules of its own commands: imports take most
# of the time of a short command.
MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "project": ("init", "types", "version"),
    "ingest": ("ingest", "ingest-command", "run", "retract"),
    "status": ("status", "ledger", "slice", "quarantine", "metrics"),
    "queries": ("query", "changes", "search", "sql", "catalog"),
    "trace": ("trace",),
    "event_time": ("tail", "late", "explain"),
    "results": ("results", "flush"),
    "windows": ("windows", "timeline", "window", "rebuild", "retry", "build"),
    "datasets": ("datasets", "export", "events"),
    "vectors": ("vector", "chain", "deltas", "compact"),
    "maintenance": ("verify", "repair", "recover", "move", "expire", "pack", "manifest", "bench"),
    "serve": ("serve", "up"),
    "tokens": ("token",),
    "cluster": ("bundle",),
}

# How many new objects make the collector look for cycles. The modules of a command make a hundred thousand
# that stay, and walking them finds nothing: a command that only reads should end before the first collection.
COLLECT_EVERY: Final = 200_000


def every_command() -> typer.Typer:
    """Return the application with all of its commands."""
    return _with(MODULES)


def _with(modules: Iterable[str]) -> typer.Typer:
    for name in modules:
        import_module(f"tidemill.cli.{name}")
    app.registered_commands.sort(key=lambda one: list(Panel).index(Panel(one.rich_help_panel or "")))
    return app


def _needed_for(arguments: Sequence[str]) -> Iterable[str]:
    """Return the modules whose commands are among the arguments; all modules if there are none."""
    return [name for name, commands in MODULES.items() if not set(commands).isdisjoint(arguments)] or MODULES


def _asks_for_help(arguments: Sequence[str]) -> bool:
    return not arguments or not {"--help", "-h"}.isdisjoint(arguments)


def _load_help() -> None:
    """Load what prints help, without Rich's Markdown and tracebacks. Typer imports both beside it, they take
    longer to load than all of Typer, and our help, whose markup is Rich's own, needs neither."""
    unneeded = {"rich.markdown": "Markdown", "rich.traceback": "Traceback"}
    empty = {name: ModuleType(name) for name in unneeded if name not in sys.modules}
    for name, module in empty.items():
        setattr(module, unneeded[name], type(unneeded[name], (), {}))
    sys.modules.update(empty)
    try:
        import_module("typer.rich_utils")
    finally:
        for name in empty:
            del sys.modules[name]


class UsageError(InputError):
    """The command line itself cannot be understood."""

    code = "usage"


def main(arguments: Sequence[str] | None = None) -> None:
    given = list(sys.argv[1:] if arguments is None else arguments)
    gc.set_threshold(COLLECT_EVERY)
    atexit.register(gc.freeze)  # the interpreter walks all objects once more when it ends, for nothing
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that is not UTF-8 gets escapes, not a stack trace
            stream.reconfigure(errors="backslashreplace")
    if _asks_for_help(given):
        _load_help()
    try:
        code = _with(_needed_for(given))(given, prog_name="tidemill", standalone_mode=False)
    except typer.TyperException as error:
        output = OutputKind.JSON if asks_for_json(given) else OutputKind.TEXT
        message = error.format_message().replace("Value error, ", "").removesuffix(".")
        wrong = UsageError(message, hint=_help_for(error))
        Session(CommandSettings(output=output)).error(wrong)
        code = wrong.exit_code
    except typer.Abort:
        code = 130
    sys.exit(code or 0)


def _help_for(error: typer.TyperException) -> str:
    command = getattr(getattr(error, "ctx", None), "command_path", "tidemill")
    return f"`{command} --help` explains it"


if __name__ == "__main__":
    main()
