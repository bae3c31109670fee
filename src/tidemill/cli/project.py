"""Commands that need no data yet: init makes a project, types lists event-time types, version."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from platform import python_version
from typing import Annotated, Final

import typer

from tidemill.cli import views
from tidemill.cli.app import Panel, command
from tidemill.cli.session import OK, Session
from tidemill.model.errors import InputError
from tidemill.pipeline import documents

# Imports inside functions keep start-up short: a command loads only what it runs.

LIBRARIES: Final = ("pyspark", "deltalake", "pyarrow", "duckdb")
STEPS: Final = (
    ("tidemill ingest requests data/requests-1.ndjson data/requests-2.ndjson", "land two slices"),
    ("tidemill run --once", "accept them and build the rollups"),
    ("tidemill status", "what became of them"),
    ("tidemill quarantine requests", "what was not accepted, and why"),
    (
        "tidemill query 'SELECT count FROM requests SINCE 2h INTERVAL 10m GROUP BY region' --all-tenants",
        "ask the rollups",
    ),
    ("tidemill ingest requests data/requests-late.ndjson", "now something late"),
    ("tidemill run --once -v", "only the tiles it touches are built again"),
    ("tidemill verify", "prove that all of it equals a recomputation"),
)


@command("init", Panel.START, "tidemill init shop", "tidemill init . --force")
def init(
    session: Session,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder; created if it does not exist.")],
    force: Annotated[bool, typer.Option("--force", metavar="", help="Overwrite existing files.")] = False,
) -> int:
    """Make a project: a commented tidemill.yaml and sample data.

    The sample is a few hundred web requests of the last hour, with bad lines, a replay and a conflict in it,
    and a late slice.
    """
    from tidemill.cli.sample import sample_files
    from tidemill.config import FILE_NAME, read_template

    samples = sample_files(time.time_ns() // 1000)
    contents = {FILE_NAME: read_template("requests")} | {
        f"data/{sample.name}": sample.content for sample in samples
    }
    there = [name for name in contents if (folder / name).exists()]
    if there and not force:
        raise InputError(
            f"{', '.join(there)} would be overwritten",
            where=str(folder),
            hint="name another folder, or use --force",
        )
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_text(content, encoding="utf-8")
    into = [] if folder.resolve() == Path.cwd() else [(f"cd {shlex.quote(str(folder))}", "go there")]
    steps = [*into, *STEPS]
    session.emit(
        lambda: {"project": str(folder), "files": list(contents), "next": [step for step, _ in steps]},
        lambda: views.project.made(folder, samples, steps, quiet=session.settings.quiet),
    )
    return OK


@command("types", Panel.START, "tidemill types", "tidemill types --output json")
def types(session: Session) -> int:
    """List the event-time types that a stream can declare, and where each comes from.

    A package adds its own by an entry point of the group tidemill.eventtime: a function of one value that
    returns UTC microseconds. Needs no project.
    """
    from tidemill import eventtime

    origins = {name: eventtime.origin(name) for name in eventtime.registered()}
    session.emit(lambda: documents.event_time.types(origins), lambda: views.event_time.types(origins))
    return OK


@command("version", Panel.START, "tidemill version")
def version(session: Session) -> int:
    """Show the versions of Tidemill and of the libraries it uses."""
    from importlib import metadata

    from tidemill import __version__

    versions = {"tidemill": __version__, "python": python_version()}
    versions |= {name: metadata.version(name) for name in LIBRARIES}
    session.emit(lambda: versions, lambda: views.project.versions(versions))
    return OK
