"""Commands that prove, repair and measure: verify, repair, recover, bench."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

import tidemill
from tidemill.cli import views
from tidemill.cli.app import Panel, command
from tidemill.cli.session import DIFFERENCES, OK, Session
from tidemill.cli.settings import OutputKind
from tidemill.model.errors import MachineError
from tidemill.pipeline import documents


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
        session.emit(lambda: documents.scrub.scrubbed(scrubbed), lambda: views.prove.scrubbed(scrubbed))
        return OK if scrubbed.ok else DIFFERENCES
    with session.working() as progress, session.mill(progress) as mill:
        if stream is not None:
            mill.project.stream(stream)
        found = mill.verify(stream)
    session.emit(lambda: documents.shapes.audit(found), lambda: views.prove.audit(found))
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
        session.emit(lambda: documents.shapes.repair_plan(plan), lambda: views.prove.repair_plan(plan))
        return OK
    with session.working() as progress, session.mill(progress) as mill:
        done = mill.repair(stream)
    session.emit(lambda: documents.shapes.repaired(done), lambda: views.prove.repaired(done))
    return OK if done.ok else DIFFERENCES


@command("recover", Panel.PROVE, "tidemill recover --project shop")
def recover(session: Session) -> int:
    """Rebuild state.db from the warehouse: from the landing log and the footers of the parts.

    Nothing is lost when state.db is lost. The new state replaces the old one only when it is complete.
    """
    from tidemill.mill import recover as rebuild

    with session.working() as progress:
        found = rebuild(session.settings.project, progress=progress)
    session.emit(lambda: documents.shapes.recovered(found), lambda: views.prove.recovered(found))
    return DIFFERENCES if found.left else OK


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
