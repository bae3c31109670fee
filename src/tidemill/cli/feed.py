"""Commands that bring data in and through: ingest, run."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidemill.cli.app import Panel, command
from tidemill.cli.session import DIFFERENCES, OK, Session
from tidemill.model.errors import InputError
from tidemill.model.time import MILLISECOND, SECOND, parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemill.ingest.landing import LandedMany
    from tidemill.mill import Mill
    from tidemill.reports import TickReport

SHORTEST: Final = 10 * MILLISECOND


@command(
    "ingest",
    Panel.FEED,
    "tidemill ingest requests data/requests-1.ndjson",
    "tidemill ingest requests 'in/*.csv.gz' --start 2024-01-15T12:00:00Z --end 2024-01-15T13:00:00Z",
    "zcat dump.gz | tidemill ingest requests - --format ndjson",
)
def ingest(
    session: Session,
    stream: Annotated[str, typer.Argument(help="A stream of tidemill.yaml.")],
    files: Annotated[list[str], typer.Argument(help="Files, globs or folders; - is standard input.")],
    start: Annotated[
        str | None, typer.Option(metavar="T", help="The files hold all that happened from here …")
    ] = None,
    end: Annotated[str | None, typer.Option(metavar="T", help="… up to, not including, here.")] = None,
    source: Annotated[
        str, typer.Option(help="Where they come from; each source has its own watermark.")
    ] = "file",
    format: Annotated[
        str | None,
        typer.Option(
            metavar="F", help="auto, ndjson, json, csv, parquet or arrow. By default as the stream declares."
        ),
    ] = None,
) -> int:
    """Land files as slices; what is told as landed is durable.

    The same bytes and bounds twice are one slice. A file that can not be used is refused and does not keep
    the others out: then the exit code is 1, or 2 when all were refused.
    """
    from tidemill.cli.progress import counted

    total = len(files) if all(Path(file).is_file() for file in files) else None
    with session.mill() as mill, counted(session.bars, f"landing in {stream}", total) as advance:
        done = mill.ingest(
            stream, files, start=start, end=end, source=source, format=format, progress=advance
        )
    session.out.landed(stream, done)
    return _ingested(done)


def _ingested(done: LandedMany) -> int:
    if not done.refused:
        return OK
    return DIFFERENCES if done.landed else max(refused.error.exit_code for refused in done.refused)


@command(
    "run", Panel.FEED, "tidemill run", "tidemill run --once -v", "tidemill run --interval 250ms --output json"
)
def run(
    session: Session,
    once: Annotated[
        bool, typer.Option("--once", metavar="", help="Stop when there is nothing left to do.")
    ] = False,
    interval: Annotated[
        str, typer.Option(metavar="D", help="How long to wait when there is nothing to do.")
    ] = "1s",
) -> int:
    """Accept what has landed and keep the rollups current, until Ctrl-C or SIGTERM.

    The round that is under way is finished first; a second Ctrl-C stops at once, which is safe too. Prints a
    line for each round that did something; -v also lists the tiles and why they were built.
    """
    from tidemill.cli.stopping import until_stopped

    wait = parse_duration(interval)
    if wait < SHORTEST:
        raise InputError(f"an interval of {interval} is too short", hint="at least 10ms; the default is 1s")

    def told(report: TickReport) -> None:
        if not report.idle:
            session.out.tick(report)

    # Outside the thread of the work, so that a second Ctrl-C takes the bars away, too.
    with session.working() as progress:

        def work(stop: threading.Event) -> None:
            with session.mill(progress) as mill:
                if once:
                    _until_idle(mill, stop, told)
                    return
                session.out.note(f"watching {mill.project.warehouse} every {interval}; Ctrl-C stops")
                mill.run(stop, wait / SECOND, told)
                session.out.note("stopped")

        until_stopped(work)
    return OK


def _until_idle(mill: Mill, stop: threading.Event, told: Callable[[TickReport], None]) -> None:
    while not stop.is_set():
        report = mill.tick()
        told(report)
        if report.idle:
            return
