"""Commands that check and maintain a warehouse: verify, repair, recover, move, expire, pack and others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import tidemill
from tidemill.cli import views
from tidemill.cli.app import Panel, command
from tidemill.cli.session import DIFFERENCES, OK, Session
from tidemill.cli.settings import OutputKind
from tidemill.model.errors import MachineError
from tidemill.pipeline import documents

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tidemill.model.expiry import ExpiryStep
    from tidemill.pipeline.retention import ExpiryPlan
    from tidemill.raw.compaction.packer import Packed, PackStep

# Imports inside functions keep start-up short: a command loads only what it runs.


@command("verify", Panel.PROVE, "tidemill verify", "tidemill verify requests --scrub --output json")
def verify(
    session: Session,
    stream: Annotated[str | None, typer.Argument(help="By default all streams.")] = None,
    scrub: Annotated[
        bool, typer.Option("--scrub", help="Only read all files and compare their checksums.")
    ] = False,
) -> int:
    """Recompute everything from the slices and raw, on Spark, and compare bit for bit.

    Lists what differs; the exit code is 1 if anything does. With --scrub it only compares files with their
    checksums: that is quick, starts no JVM, and can be done beside a running daemon.
    """
    if scrub:
        with session.mill() as mill:
            scrubbed = mill.scrub(stream)
        session.emit(lambda: documents.scrub.scrubbed(scrubbed), lambda: views.maintenance.scrubbed(scrubbed))
        return OK if scrubbed.ok else DIFFERENCES
    with session.working() as progress, session.mill(progress) as mill:
        if stream is not None:
            mill.project.stream(stream)
        found = mill.verify(stream)
    session.emit(lambda: documents.shapes.audit(found), lambda: views.maintenance.audit(found))
    return OK if found.ok else DIFFERENCES


@command("repair", Panel.PROVE, "tidemill repair --explain", "tidemill repair", "tidemill repair requests")
def repair(
    session: Session,
    stream: Annotated[str | None, typer.Argument(help="By default all streams.")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", metavar="", help="Print the plan and do nothing.")
    ] = False,
) -> int:
    """Find damaged files, set them aside in _damaged/ of the warehouse, and make what they held again.

    What slices or raw still hold is made again, in place. What they do not is named with what it affects;
    then the exit code is 1.
    """
    if explain:
        with session.mill() as mill:
            plan = mill.plan_repair(stream)
        session.emit(lambda: documents.shapes.repair_plan(plan), lambda: views.maintenance.repair_plan(plan))
        return OK
    with session.working() as progress, session.mill(progress) as mill:
        done = mill.repair(stream)
    session.emit(lambda: documents.shapes.repaired(done), lambda: views.maintenance.repaired(done))
    return OK if done.ok else DIFFERENCES


@command("recover", Panel.PROVE, "tidemill recover --project shop")
def recover(session: Session) -> int:
    """Rebuild the state from the warehouse: from the landing log and the footers of the parts.

    Nothing is lost when the state is lost, be it state.db or a server. The new state replaces the old one
    only when it is complete.
    """
    from tidemill.mill import recover as rebuild

    with session.working() as progress:
        found = rebuild(session.settings.project, progress=progress)
    session.emit(lambda: documents.shapes.recovered(found), lambda: views.maintenance.recovered(found))
    return DIFFERENCES if found.left else OK


@command(
    "move", Panel.PROVE, "tidemill move s3://bucket/prefix --explain", "tidemill move s3://bucket/prefix"
)
def move(
    session: Session,
    url: Annotated[str, typer.Argument(metavar="URL", help="s3://BUCKET/PREFIX, gs://… or az://…")],
    explain: Annotated[
        bool, typer.Option("--explain", metavar="", help="Print the plan and do nothing.")
    ] = False,
) -> int:
    """Send the warehouse, a folder, to a bucket; the folder stays as it is.

    Damaged files are refused, and so is a prefix with other objects. If it is interrupted, run it again. Then
    name the bucket in tidemill.yaml and run `tidemill recover`, which makes the state there.
    """
    if explain:
        with session.mill() as mill:
            plan = mill.plan_move(url)
        session.emit(lambda: documents.shapes.move_plan(plan), lambda: views.maintenance.move_plan(plan))
        return OK
    with session.working() as progress, session.mill(progress) as mill:
        done = mill.move(url)
    session.emit(lambda: documents.shapes.moved(done), lambda: views.maintenance.moved(done))
    return OK


@command("bench", Panel.PROVE, "tidemill bench", "tidemill bench -- --help")
def bench(
    session: Session,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]…", help="For the benchmark, after --.")
    ] = None,
) -> int:
    """Run the benchmark of the project beside DuckDB, Polars and plain PySpark; needs a clone."""
    clone = Path(tidemill.__file__).resolve().parents[2]
    if not (clone / "bench" / "run.py").is_file():
        raise MachineError(
            "the benchmark is not part of the installed package",
            where=str(clone),
            hint="clone the repository and call `make bench` there, or tidemill from its .venv",
        )
    machine = session.settings.output is OutputKind.JSON
    done = subprocess.run(
        [sys.executable, "-m", "bench.run", *(arguments or [])],
        cwd=clone,
        stdout=sys.stderr if machine else None,
        check=False,
    )
    results = clone / "bench" / "results.json"
    session.emit(
        lambda: {"results": json.loads(results.read_bytes()) if results.is_file() else None},
        lambda: (),  # the benchmark has printed its own table
    )
    return done.returncode


@command("expire", Panel.FEED, "tidemill expire --explain", "tidemill expire requests")
def expire(
    session: Session,
    stream: Annotated[str | None, typer.Argument(help="By default all streams.")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", metavar="", help="Print the plan and do nothing.")
    ] = False,
) -> int:
    """Delete what is older than the retention of its stream; `tidemill run` does so by itself.

    Outputs of deleted raw stay and are sealed: they can be read, but not rebuilt. Raw that is still needed
    is kept, and the plan says why.
    """
    if explain:
        with session.mill() as mill:
            plan = mill.retention.plan(stream)
        _print_expiry(session, plan, None)
        return OK
    with session.working() as progress, session.mill(progress) as mill:
        plan = mill.retention.plan(stream)
        done = mill.retention.expire(plan)
    _print_expiry(session, plan, done)
    return OK


def _print_expiry(session: Session, plan: ExpiryPlan, done: Sequence[ExpiryStep] | None) -> None:
    """Print the plan; with `done`, also what was deleted."""
    session.emit(
        lambda: documents.operations.expiry(plan, done), lambda: views.maintenance.expiry(plan, done)
    )


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
        _print_packing(session, steps, None, waiting)
        return OK
    with session.working() as progress, session.mill(progress) as mill:
        done = mill.pack(stream, rebuild=rebuild)
        waiting = mill.packer.waiting(stream)
    _print_packing(session, [one.step for one in done], done, waiting)
    return OK


def _print_packing(
    session: Session, steps: Sequence[PackStep], done: Sequence[Packed] | None, waiting: Mapping[str, int]
) -> None:
    """Print the plan; with `done`, also what was packed."""
    session.emit(
        lambda: documents.operations.packing(steps, done, waiting),
        lambda: views.maintenance.packing(steps, done, waiting),
    )


@command("manifest", Panel.LOOK, "tidemill manifest requests", "tidemill manifest requests --output json")
def manifest(
    session: Session, stream: Annotated[str, typer.Argument(help="A stream of tidemill.yaml.")]
) -> int:
    """Print which slices are packed in which part of raw, with rows and times, from the log of the table."""
    with session.mill() as mill:
        found = mill.packer.manifest(stream)
    session.emit(lambda: found, lambda: views.maintenance.manifest(found))
    return OK
