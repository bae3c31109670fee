"""The commands about large parts: pack makes them, manifest says what is in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import views
from tidemill.cli.app import Panel, command
from tidemill.cli.session import OK, Session
from tidemill.pipeline import documents

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tidemill.raw.compaction.packer import Packed, PackStep


@command(
    "pack",
    Panel.FEED,
    "tidemill pack --explain",
    "tidemill pack requests",
    "tidemill pack requests --rebuild",
)
def pack(
    session: Session,
    stream: Annotated[str | None, typer.Argument(help="By default all streams.")] = None,
    rebuild: Annotated[
        bool,
        typer.Option("--rebuild", metavar="", help="Pack all slices again, including packed ones."),
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", metavar="", help="Print the plan and do nothing.")
    ] = False,
) -> int:
    """Pack the rows of many small slices into large sorted parts; `tidemill run` does so by itself.

    The oldest slices come first, in groups of the declared size (`pack: {slices, bytes}`); the rest waits for
    more. No row is changed, and each slice is packed once. With --rebuild all are packed again, in order of
    time: the same rows, in an order that is better for reading.
    """
    if explain:
        with session.mill() as mill:
            steps = mill.packer.plan(stream, rebuild=rebuild)
            waiting = mill.packer.waiting(stream, rebuild=rebuild)
        _print(session, steps, None, waiting)
        return OK
    with session.working() as progress, session.mill(progress) as mill:
        done = mill.pack(stream, rebuild=rebuild)
        waiting = mill.packer.waiting(stream)
    _print(session, [one.step for one in done], done, waiting)
    return OK


def _print(
    session: Session, steps: Sequence[PackStep], done: Sequence[Packed] | None, waiting: Mapping[str, int]
) -> None:
    """The plan; with what became of it, once it was carried out."""
    session.emit(
        lambda: documents.packing.packing(steps, done, waiting),
        lambda: views.pack.packing(steps, done, waiting),
    )


@command("manifest", Panel.LOOK, "tidemill manifest requests", "tidemill manifest requests --output json")
def manifest(
    session: Session, stream: Annotated[str, typer.Argument(help="A stream of tidemill.yaml.")]
) -> int:
    """Print which slices are packed in which part of raw, with rows and times, from the log of the table."""
    with session.mill() as mill:
        found = mill.packer.manifest(stream)
    session.emit(lambda: found, lambda: views.pack.manifest(found))
    return OK
