"""The Typer application, and how a command is declared: with the options of every command, an example and a
panel. `main.MODULES` lists which module declares which commands.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Concatenate, Final, ParamSpec, get_type_hints

import typer

from tidemill.cli import settings as given
from tidemill.cli.session import Session
from tidemill.cli.settings import CommandSettings
from tidemill.model.errors import InputError
from tidemill.model.names import as_unicode, is_unicode

# Imports inside functions keep start-up short: a command loads only what it runs.

P = ParamSpec("P")
Command = Callable[Concatenate[Session, P], int]

MOST: Final = 1 << 62  # of a number that is typed: the state and Arrow have 64 bits, and one more is read
EXIT_CODES: Final = (
    ("0", "done"),
    ("1", "differences, a refused file, a failed window, an incomplete strict answer"),
    ("2", "wrong usage, configuration, input or query"),
    ("3", "a problem with the machine or the storage"),
    ("4", "another process is working on the warehouse"),
    ("70", "a defect of Tidemill"),
    ("130", "stopped by Ctrl-C"),
    ("141", "the output is no longer read"),
)

HELP: Final = """Late, repeated and out-of-order feeds in; exact rollups and datasets out.

A project is a folder with a tidemill.yaml that declares streams. Files are ingested as immutable slices; \
run takes them through the gate into raw, keeps the rollups current and builds each time window that is \
ready as a dataset; status, ledger and quarantine show what became of every record, tail shows them in order \
of event time, explain shows how a stream treats time, windows why one waits, datasets lists the results; \
query reads the rollups, search finds events by their content, catalog lists what can be queried; verify \
recomputes all of it from raw and compares.

  $ tidemill init shop
  $ cd shop
  $ tidemill ingest requests data/requests-1.ndjson data/requests-2.ndjson
  $ tidemill run --once
  $ tidemill status
  $ tidemill query 'SELECT count FROM requests SINCE 2h USING ROLLUP 1m GROUP BY region' --all-tenants
  $ tidemill search requests 'FILTER status >= 500 SINCE 2h' --tenant acme
  $ tidemill verify"""

_HELP_NAMES: Final = {"help_option_names": ["--help", "-h"]}
app = typer.Typer(
    name="tidemill",
    help=HELP,
    epilog="Exit codes:\n" + "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES),
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=True,
    context_settings=_HELP_NAMES,
)


class Panel(StrEnum):
    """The panels of `--help`, in the order in which a new user needs them."""

    START = "Start"
    FEED = "Feed"
    LOOK = "Look"
    ASK = "Ask"
    TIME = "Event time"
    WINDOWS = "Windows"
    DATASETS = "Datasets"
    VECTORS = "Vectors"
    PROVE = "Prove"
    SERVE = "Serve"


def _version(requested: bool) -> None:
    if requested:
        from tidemill import __version__

        typer.echo(f"tidemill {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def before_command(
    ctx: typer.Context,
    project: given.ProjectFirst = None,
    output: given.OutputFirst = None,
    verbose: given.Verbose = 0,
    quiet: given.Quiet = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, metavar="", help="Show the version."),
    ] = False,
) -> None:
    ctx.obj = CommandSettings().then(project, output, verbose, quiet)
    if ctx.invoked_subcommand is None:
        ctx.get_help()


def group(name: str, panel: Panel, help: str) -> typer.Typer:
    """Declare a group of commands, such as `token`; without a command it shows its help."""
    made = typer.Typer(help=help, rich_markup_mode="rich", context_settings=_HELP_NAMES)

    def alone(ctx: typer.Context) -> None:
        if ctx.invoked_subcommand is None:
            ctx.get_help()

    made.callback(invoke_without_command=True)(alone)
    app.add_typer(made, name=name, rich_help_panel=panel.value)
    return made


def command(
    name: str, position: Panel | typer.Typer, *examples: str, gives_tables: bool = False
) -> Callable[[Command[P]], Command[P]]:
    """Declare a command: a function of the session and its own parameters that returns an exit code.

    `position` is the panel of the help, or the group that the command belongs to. Only a command with
    `gives_tables` accepts `--output csv`, `parquet` and `arrow`.
    """
    home, panel = (app, position.value) if isinstance(position, Panel) else (position, None)

    def declare(function: Command[P]) -> Command[P]:
        def run(session: Session, values: dict[str, object]) -> int:
            kind = session.settings.output
            if kind.is_table and not gives_tables:
                raise InputError(
                    f"{name} cannot be given as {kind.value}",
                    hint="use --output text or json; csv, parquet and arrow are for query, search and sql",
                )
            for option, value in values.items():
                if isinstance(value, int) and abs(value) > MOST:
                    raise InputError(f"--{option} {value} is too large", hint=f"use at most {MOST}")
                if isinstance(value, str) and not is_unicode(value):
                    raise InputError(f"{as_unicode(value)!r} is not valid UTF-8", hint="type it in UTF-8")
            return function(session, **values)  # type: ignore[arg-type, call-arg]

        def call(ctx: typer.Context, **values: object) -> None:
            common = {key: values.pop(key) for key in _COMMON}
            chosen: CommandSettings = ctx.obj.then(**common)
            code = Session(chosen).call(lambda session: run(session, values))
            raise typer.Exit(code)

        hints = get_type_hints(function, include_extras=True)
        _, *own = inspect.signature(function).parameters.values()
        parameters = [
            inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
            *(one.replace(annotation=hints[one.name], kind=inspect.Parameter.KEYWORD_ONLY) for one in own),
            *_COMMON.values(),
        ]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {one.name: one.annotation for one in parameters}
        home.command(
            name,
            help=_paragraphs(inspect.getdoc(function) or ""),
            epilog="\n".join(["Example:", *(f"  $ {example}".replace("[", r"\[") for example in examples)]),
            rich_help_panel=panel,
        )(call)
        return function

    return declare


def _paragraphs(text: str) -> str:
    """Join the lines of each paragraph, so that the terminal wraps them at its own width."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


_COMMON: Final = {
    name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    for name, default, annotation in (
        ("project", None, given.Project),
        ("output", None, given.Output),
        ("verbose", 0, given.Verbose),
        ("quiet", False, given.Quiet),
    )
}
