"""Commands that show the state of a project: status, ledger, slice, quarantine, metrics. No JVM starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import views
from tidemill.cli.app import Panel, command
from tidemill.cli.session import OK, Session
from tidemill.cli.settings import Limit
from tidemill.model.errors import InputError
from tidemill.model.slices import CountedAs, Reject, SliceStatus
from tidemill.pipeline import documents

if TYPE_CHECKING:
    from tidemill.pipeline.documents.shapes import Document
    from tidemill.pipeline.metrics import Meter

# Imports inside functions keep start-up short: a command loads only what it runs.


@command("status", Panel.LOOK, "tidemill status", "tidemill status --output json")
def status(session: Session) -> int:
    """Show the state of each stream: slices, outcomes, reject reasons, watermark, tables, tiles, windows; how
    the gateway buffers events, and which ones run; when all files were last read, and which are damaged;
    where running processes show their Spark jobs."""
    from tidemill.ingest.gateway.status import ingest_health, running
    from tidemill.storage.sessions import open_sessions

    with session.mill() as mill:
        now, streams, gateway, faults = mill.clock(), mill.status(), mill.project.gateway, mill.faults()
        found, scrub = running(mill.project.warehouse), mill.scrub_status()
        ingest, spark = ingest_health(mill.warehouse), open_sessions(mill.project.warehouse)
    session.emit(
        lambda: documents.gateway.project_status(now, streams, gateway, found, faults, scrub, ingest, spark),
        lambda: views.status.status(now, streams, gateway, found, faults, scrub, ingest, spark),
    )
    return OK


@command("ledger", Panel.LOOK, "tidemill ledger", "tidemill ledger requests --status failed --limit 20")
def ledger(
    session: Session,
    stream: Annotated[str | None, typer.Argument(help="By default all streams.")] = None,
    status: Annotated[SliceStatus | None, typer.Option(help="Only slices with this status.")] = None,
    outcome: Annotated[
        CountedAs | None, typer.Option(help="Only slices with records of this outcome.")
    ] = None,
    reason: Annotated[
        Reject | None, typer.Option(help="Only slices with records that were rejected for this reason.")
    ] = None,
    limit: Limit = 50,
) -> int:
    """List slices, the newest first, with the outcomes of their records."""
    with session.mill() as mill:
        most = limit + 1 if limit else None
        found = mill.ledger(stream, status, most, outcome=outcome, reason=reason)
    shown = found[:limit] if limit else found
    more = len(found) > len(shown)
    session.emit(
        lambda: documents.shapes.ledger(shown, more=more), lambda: views.status.ledger(shown, more=more)
    )
    return OK


@command("slice", Panel.LOOK, "tidemill slice 3fa94c21d0b7", "tidemill slice 3fa94c21d0b7 --limit 0")
def slice_(
    session: Session,
    id_: Annotated[str, typer.Argument(metavar="ID", help="The id, or a unique prefix of it.")],
    limit: Limit = 50,
) -> int:
    """Show one entry of the ledger in full, and for each window it touches whether it counts there."""
    with session.mill() as mill:
        entry = mill.slice(id_)
        windows = mill.windows.touched(entry.id, limit or None)
        total = mill.state.windows_touched(entry.id) if windows else 0
    session.emit(
        lambda: documents.windows.slice_with_windows(entry, windows, total),
        lambda: views.windows.slice_with_windows(entry, windows, total),
    )
    return OK


@command(
    "quarantine",
    Panel.LOOK,
    "tidemill quarantine requests --reason malformed",
    "tidemill quarantine requests --reason unknown_type --replay",
)
def quarantine(
    session: Session,
    stream: Annotated[str, typer.Argument(help="A stream of tidemill.yaml.")],
    reason: Annotated[
        str | None,
        typer.Option(metavar="R", help="Only records with this reason: malformed, skew, conflict …"),
    ] = None,
    slice_: Annotated[
        str | None, typer.Option("--slice", metavar="ID", help="Only records of this slice.")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(metavar="T", help="Only records that this tenant sent, or that name it.")
    ] = None,
    limit: Limit = 50,
    replay: Annotated[
        bool, typer.Option("--replay", metavar="", help="Land them as a new slice, to be decided again.")
    ] = False,
) -> int:
    """List the records that were not accepted, verbatim, with the reason.

    With --replay they leave quarantine as a new slice: after a change of tidemill.yaml, they may pass.
    """
    with session.mill() as mill:
        if replay:
            if slice_ is not None or tenant is not None:
                by = "slice" if slice_ is not None else "tenant"
                raise InputError(
                    f"records are not replayed by {by}", hint="use --reason, or replay all of them"
                )
            landed = mill.replay(stream, reason=reason)
            session.emit(
                lambda: documents.shapes.replayed(stream, landed),
                lambda: views.ingest.replayed(stream, landed),
            )
            return OK
        most = limit + 1 if limit else None
        found = mill.quarantine(stream, reason=reason, slice=slice_, limit=most, tenant=tenant)
    rows = found.slice(0, limit) if limit else found
    more = found.num_rows > rows.num_rows
    session.emit(
        lambda: documents.shapes.quarantine(stream, rows, more=more),
        lambda: views.status.quarantine(rows, more=more),
    )
    return OK


@command("metrics", Panel.LOOK, "tidemill metrics", "tidemill metrics --output json")
def metrics(session: Session) -> int:
    """Print the state of the streams as Prometheus metrics; `run --metrics-port` serves them and counters."""
    with session.mill() as mill:
        session.emit(lambda: _metrics(mill.meter), lambda: views.status.metrics(mill.meter.text()))
    return OK


def _metrics(meter: Meter) -> Document:
    return {
        "metrics": [
            {"name": sample.name, "labels": dict(sample.labels), "value": _number(sample.value)}
            for family in meter.registry.collect()
            for sample in family.samples
        ]
    }


def _number(value: float) -> int | float:
    return int(value) if float(value).is_integer() else value
