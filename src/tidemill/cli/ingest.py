"""Commands that land, process and retract data: ingest, ingest-command, run, retract."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import views
from tidemill.cli.app import Panel, command
from tidemill.cli.session import DIFFERENCES, OK, Session
from tidemill.cli.settings import MetricsPort, Wait, pause_of
from tidemill.cli.signals import until_stopped
from tidemill.cli.terminal import counted
from tidemill.model.errors import InputError, TidemillError
from tidemill.model.time import SECOND
from tidemill.pipeline import documents

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tidemill.ingest.landing import LandedMany
    from tidemill.mill import Mill
    from tidemill.model.slices import SliceEntry
    from tidemill.pipeline.documents.results import Flushed
    from tidemill.pipeline.reports import TickReport
    from tidemill.raw.retract import RetractionPlan

# Imports inside functions keep start-up short: a command loads only what it runs.


@command(
    "ingest",
    Panel.FEED,
    "tidemill ingest requests data/requests-1.ndjson",
    "tidemill ingest requests 'in/*.csv.gz' --start 2024-01-15T12:00:00Z --end 2024-01-15T13:00:00Z",
    "zcat dump.gz | tidemill ingest requests - --format ndjson",
    "tidemill ingest requests --empty --start 2024-01-15T12:00:00Z --end 2024-01-15T13:00:00Z",
    "tidemill ingest btcusdt --manifest data/binance/klines/raw/BTCUSDT/1m/limit=500/manifest.json",
)
def ingest(
    session: Session,
    stream: Annotated[str, typer.Argument(help="A stream of tidemill.yaml.")],
    files: Annotated[
        list[str] | None, typer.Argument(help="Files, globs or folders; - is standard input.")
    ] = None,
    start: Annotated[
        str | None, typer.Option(metavar="T", help="The files hold everything that happened from here …")
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
    empty: Annotated[
        bool,
        typer.Option("--empty", metavar="", help="No files: nothing happened from --start to --end."),
    ] = False,
    manifest: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="No files: the complete entries of this raw manifest. Repeatable."),
    ] = None,
    yes: Annotated[
        bool,
        typer.Option("--yes", metavar="", help="The bounds may span more windows than max_slice_windows."),
    ] = False,
) -> int:
    """Land files as slices; a slice that is reported as landed is durable.

    The same bytes and bounds twice are one slice. A file that cannot be used is refused and the others are
    landed: then the exit code is 1, or 2 when all were refused. Windows become complete by the bounds
    that --start and --end declare, or else by the first and last event of each file.
    """
    names = files or []
    if manifest:
        _check_manifest(names, start, end, source, format, empty=empty)
        return _from_manifests(session, stream, manifest)
    _check(names, start, end, empty=empty)
    # os.path says False where Path raises: what is wrong with a name is said when its turn comes
    total = len(names) if all(os.path.isfile(file) for file in names) else None  # noqa: PTH113
    with session.mill() as mill, counted(session.bars, f"landing in {stream}", total) as advance:
        if empty:
            done = mill.ingest(stream, [], start=start, end=end, source=source, empty=True, many_windows=yes)
        else:
            done = mill.ingest(
                stream, names, start=start, end=end, source=source, format=format, progress=advance,
                many_windows=yes,
            )  # fmt: skip
    _print_landed(session, stream, done)
    return _ingested(done)


def _check_manifest(
    files: list[str], start: str | None, end: str | None, source: str, format: str | None, *, empty: bool
) -> None:
    options = {"FILES": files, "--start": start, "--end": end, "--format": format, "--empty": empty}
    extra = [name for name, value in options.items() if value] + (["--source"] if source != "file" else [])
    if extra:
        raise InputError(
            f"--manifest cannot be combined with {', '.join(extra)}",
            hint="the manifest names the files, their bounds and their source",
        )


def _from_manifests(session: Session, stream: str, manifests: list[str]) -> int:
    with session.mill() as mill, counted(session.bars, f"landing in {stream}", None) as advance:
        found = mill.sources.land(stream, manifests, advance)
    _print_landed(session, stream, found.done)
    waiting = ", ".join(f"{count:,} {status}" for status, count in found.waiting.items())
    session.note(f"{found.sealed:,} had landed before; waiting: {waiting or 'none'}")
    return DIFFERENCES if found.sealed and found.done.refused else _ingested(found.done)


def _check(files: list[str], start: str | None, end: str | None, *, empty: bool) -> None:
    if not empty and not files:
        raise InputError(
            "no files are named", hint="name files, globs or folders, - for standard input, or use --empty"
        )
    if empty and files:
        raise InputError("--empty takes no files", hint="leave the files out, or drop --empty")
    if empty and (start is None or end is None):
        raise InputError("--empty needs the span in which nothing happened", hint="add --start T and --end T")


@command(
    "ingest-command",
    Panel.FEED,
    "tidemill ingest-command commands/*.json",
    "cat command.json | tidemill ingest-command -",
)
def ingest_command(
    session: Session,
    files: Annotated[list[str], typer.Argument(help="JSON files, one command each; - is standard input.")],
) -> int:
    """Land what IngestDataCommands name: an object already in storage, its bounds and its dataset metadata.

    Bounds without rows declare that nothing happened there. A command that cannot be used is refused and
    the others are landed.
    """
    with session.mill() as mill:
        done = mill.ingest_command(files)
    _print_landed(session, None, done)
    return _ingested(done)


def _print_landed(session: Session, stream: str | None, done: LandedMany) -> None:
    session.emit(lambda: documents.shapes.landed_many(stream, done), lambda: views.ingest.landed(done))


def _ingested(done: LandedMany) -> int:
    if not done.refused:
        return OK
    return DIFFERENCES if done.landed else max(refused.error.exit_code for refused in done.refused)


@command(
    "run",
    Panel.FEED,
    "tidemill run",
    "tidemill run --once -v",
    "tidemill run --interval 250ms --output json",
    "tidemill run --metrics-port 9464",
)
def run(
    session: Session,
    once: Annotated[
        bool, typer.Option("--once", metavar="", help="Stop when there is nothing left to do.")
    ] = False,
    interval: Wait = "1s",
    metrics_port: MetricsPort = None,
) -> int:
    """Accept what has landed, keep the rollups current and build the windows that are ready, until Ctrl-C or
    SIGTERM.

    The current round is finished first; a second Ctrl-C stops at once, which is safe too. Prints a
    line for each round that did something; -v also lists the tiles and windows and why they were built.
    """
    wait = pause_of(interval)
    errors: list[TidemillError] = []

    # Outside the thread of the work, so that a second Ctrl-C takes the bars away, too.
    with session.working() as progress:

        def work(stop: threading.Event) -> None:
            with session.mill(progress) as mill, session.measured(mill, metrics_port) as meter:

                def print_report(report: TickReport) -> None:
                    if meter is not None:
                        meter.tick(report)
                    if not report.idle:
                        print_tick(session, report)

                def flushed(done: Flushed) -> None:
                    for name, one in ((name, one) for name, of in done.items() for one in of):
                        if meter is not None:
                            meter.window_results(name, one.window, one.results, one.withdrawn)
                    if any(not one.idle for of in done.values() for one in of):
                        print_flushed(session, done)

                if once:
                    errors.extend(_until_idle(mill, stop, print_report))
                    return
                from tidemill.storage.bucket_path import location

                session.note(f"watching {location(mill.project.warehouse)} every {interval}; Ctrl-C stops")
                mill.run(stop, wait / SECOND, print_report, flushed)
                session.note("stopped")

        until_stopped(work)
    for error in errors:
        session.error(error)
    return errors[0].exit_code if errors else OK


def print_tick(session: Session, report: TickReport) -> None:
    details = session.settings.verbose > 0
    session.emit(
        lambda: documents.operations.tick(report, details=details),
        lambda: views.ingest.tick(report, details=details),
    )


def print_flushed(session: Session, done: Flushed) -> None:
    session.emit(lambda: documents.results.flushed(done), lambda: views.results.flushed(done))


def _until_idle(
    mill: Mill, stop: threading.Event, print_report: Callable[[TickReport], None]
) -> Sequence[TidemillError]:
    """Run rounds until there is no work, and return the faults of streams that could not be processed."""
    while not stop.is_set():
        report = mill.tick()
        print_report(report)
        if report.idle and not mill.packer.wait():
            return report.errors
    return ()


@command(
    "retract",
    Panel.FEED,
    "tidemill retract 3fa94c21d0b7 --reason 'sent twice by the gateway' --explain",
    "tidemill retract 3fa94c21d0b7 --reason 'sent twice by the gateway'",
)
def retract(
    session: Session,
    id_: Annotated[str, typer.Argument(metavar="SLICE", help="The id, or a unique prefix of it.")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; it stays in the ledger.")],
    explain: Annotated[
        bool, typer.Option("--explain", metavar="", help="Print the plan and do nothing.")
    ] = False,
) -> int:
    """Retract a slice: afterwards everything is as if it had never arrived.

    Events that only it had are removed from every output; events that a later slice repeated are accepted
    from there. The slice and the reason stay in the ledger. `tidemill run` accepts again the slices that may
    have depended on it.
    """
    if explain:
        with session.mill() as mill:
            plan = mill.plan_retraction(id_, reason)
        _print_retraction(session, plan, None)
        return OK
    with session.working() as progress, session.mill(progress) as mill:
        plan = mill.plan_retraction(id_, reason)
        done = mill.retract(plan)
    _print_retraction(session, plan, done)
    return OK


def _print_retraction(session: Session, plan: RetractionPlan, done: SliceEntry | None) -> None:
    """Print the plan; with `done`, also the slice as it is afterwards."""
    session.emit(
        lambda: documents.operations.retraction(plan, done), lambda: views.ingest.retraction(plan, done)
    )
