"""Commands about event time: tail, late, explain. They only read, and start no JVM.

They print what `raw.tail` and `pipeline.explain` return, and decide nothing themselves.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import views
from tidemill.cli.app import Panel, command
from tidemill.cli.session import OK, Session
from tidemill.cli.settings import Limit, Wait, pause_of
from tidemill.cli.signals import until_stopped
from tidemill.model.time import SECOND, since_when
from tidemill.pipeline import documents

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.eventtime.ordering import Watermark
    from tidemill.model.completeness import Missing

# Imports inside functions keep start-up short: a command loads only what it runs.

StreamName = Annotated[str, typer.Argument(help="A stream of tidemill.yaml.")]
Tenant = Annotated[str | None, typer.Option(metavar="T", help="Only the events of this tenant.")]


@command(
    "tail",
    Panel.TIME,
    "tidemill tail requests --ordered",
    "tidemill tail requests --ordered --since 10m --output json",
    "tidemill tail requests --no-follow --limit 20",
)
def tail(
    session: Session,
    stream: StreamName,
    ordered: Annotated[
        bool,
        typer.Option("--ordered", metavar="", help="In order of event time, up to the watermark."),
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="T",
            help="From this instant, or this long ago: by event time if --ordered, else by arrival.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="Stop after so many rows; 0 is all.")] = 0,
    no_follow: Annotated[
        bool, typer.Option("--no-follow", metavar="", help="Stop at the end of the existing rows.")
    ] = False,
    tenant: Tenant = None,
    interval: Wait = "1s",
) -> int:
    """Show the accepted rows of a stream as they arrive, with its watermarks between them, until Ctrl-C.

    With --ordered, rows are in order of event time, ties by arrival: a row is printed when the watermark
    has reached it, and after a watermark no row at or before it follows. Late rows are left out: `late`
    lists them. At Ctrl-C, SIGTERM or the end of --no-follow, rows that are still buffered are printed in
    order, without a watermark after them.
    """
    wait = pause_of(interval) / SECOND

    def work(stop: threading.Event) -> None:
        from tidemill.raw.tail import tail

        with session.mill() as mill:
            items = tail(
                mill.feed(stream),
                ordered=ordered,
                follow=not no_follow,
                stop=stop,
                wait=lambda: stop.wait(wait),
                since=since_when(since, mill.clock()) if since is not None else None,
                limit=limit or None,
                tenant=tenant,
            )
            for item in items:
                _print_item(session, item)

    until_stopped(work)
    return OK


def _print_item(session: Session, item: pa.RecordBatch | Watermark | Missing) -> None:
    from tidemill.eventtime.ordering import Watermark
    from tidemill.model.completeness import Missing

    if isinstance(item, Missing):
        session.emit(
            lambda: {"missing": documents.shapes.missing_span(item)}, lambda: views.event_time.missing(item)
        )
        return
    if isinstance(item, Watermark):
        session.emit(
            lambda: documents.event_time.watermark(item.at), lambda: views.event_time.watermark(item.at)
        )
    else:
        session.emit_each(lambda: documents.event_time.rows(item), lambda: views.event_time.rows(item))


@command(
    "late",
    Panel.TIME,
    "tidemill late requests",
    "tidemill late requests --since 1d --limit 0 --output json",
)
def late(
    session: Session,
    stream: StreamName,
    since: Annotated[
        str | None,
        typer.Option(metavar="T", help="Only rows that arrived since this instant, or this long ago."),
    ] = None,
    tenant: Tenant = None,
    limit: Limit = 50,
) -> int:
    """List late rows: how far each was behind the watermark, and what each window did with it.

    A row is late when its event time is at or before the stream's watermark when its slice is accepted. It
    is in raw and the rollups like all others; a window discards it, counts it in the next window, or gets a
    new revision.
    """
    from tidemill.raw.tail import late_rows, late_totals

    with session.mill() as mill:
        feed = mill.feed(stream)
        start = since_when(since, mill.clock()) if since is not None else None
        found = late_rows(feed, since=start, limit=limit + 1 if limit else None, tenant=tenant)
        totals = late_totals(feed, since=start, tenant=tenant)
    rows = found.slice(0, limit) if limit else found
    more = found.num_rows > rows.num_rows
    session.emit(
        lambda: documents.event_time.late(stream, rows, totals, more=more),
        lambda: views.event_time.late(stream, rows, totals, more=more),
    )
    return OK


@command("explain", Panel.TIME, "tidemill explain requests", "tidemill explain requests --output json")
def explain(session: Session, stream: StreamName) -> int:
    """Explain how a stream handles time: which time counts and how it is read, tolerance, what moves the
    watermark and where it is, and for each window when it closes and what happens to late rows."""
    from tidemill.pipeline.explain import explain_stream

    with session.mill() as mill:
        now, declared = mill.clock(), mill.project.stream(stream)
        found = explain_stream(declared, mill.state, now, mill.warehouse.expiries.seal(stream))
    session.emit(
        lambda: documents.event_time.explained(found, now), lambda: views.event_time.explained(found, now)
    )
    return OK
