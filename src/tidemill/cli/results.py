"""Commands about the results of streaming windows: results, flush."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from tidemill.cli import views
from tidemill.cli.app import Panel, command
from tidemill.cli.session import OK, Session
from tidemill.cli.settings import Limit, span_of
from tidemill.model.errors import InputError, NotFoundError
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, Interval
from tidemill.pipeline import documents

# Imports inside functions keep start-up short: a command loads only what it runs.


@command(
    "results",
    Panel.TIME,
    "tidemill results requests",
    "tidemill results requests per_minute --from 2024-01-15T12:00:00Z --tenant acme",
    "tidemill results requests per_minute --revisions --limit 0 --output json",
)
def results(
    session: Session,
    stream: Annotated[str, typer.Argument(help="A stream of tidemill.yaml.")],
    window: Annotated[
        str | None, typer.Argument(help="One of its streaming windows; without it they are listed.")
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="T", help="Only windows that end after this …")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="T", help="… and start before this.")] = None,
    tenant: Annotated[str | None, typer.Option(metavar="T", help="Only the results of this tenant.")] = None,
    revisions: Annotated[
        bool, typer.Option("--revisions", metavar="", help="All revisions; withdrawn ones are marked.")
    ] = False,
    limit: Limit = 50,
) -> int:
    """Show the results of a streaming window: for each window, tenant and group the aggregates, the number
    of rows, and what triggered the result.

    Without WINDOW it lists the windows of the stream: how many results are current, and up to when.
    """
    from tidemill.outputs.windows.reader import missing_results, read_results, result_statuses, spec_named
    from tidemill.query.service import pending_results

    with session.mill() as mill:
        declared, warehouse = mill.project.stream(stream), mill.project.warehouse
        if window is None:
            _check_listing(start, end, tenant, revisions=revisions)
            found = result_statuses(warehouse, declared, mill.state.checkpoints(stream))
            session.emit(
                lambda: documents.results.statuses(stream, found, warehouse),
                lambda: views.results.statuses(stream, found, warehouse),
            )
            return OK
        span = span_of(start, end) or Interval(MIN_INSTANT, MAX_INSTANT)
        spec = spec_named(declared, window)
        known = mill.state.checkpoints(stream)
        missing = missing_results(mill.warehouse.expiries, declared, spec, known, span, tenant)
        pending = pending_results(mill.warehouse, declared, spec)
        rows = read_results(
            warehouse,
            declared,
            window,
            span,
            tenant,
            revisions=revisions,
            limit=limit + 1 if limit else None,
            checkpoint_texts=mill.state.checkpoints(stream),
        )
    more = bool(limit) and rows.num_rows > limit
    newest = rows.slice(1 if more else 0).sort_by([("start", "descending")])
    session.emit(
        lambda: documents.results.results(spec, newest, missing, pending, more=more),
        lambda: views.results.results(spec, newest, (*missing, *pending), revisions=revisions, more=more),
    )
    return OK


def _check_listing(start: str | None, end: str | None, tenant: str | None, *, revisions: bool) -> None:
    if start is not None or end is not None or tenant is not None or revisions:
        raise InputError(
            "no window is named",
            hint="--from, --to, --tenant and --revisions need one; without them the windows are listed",
        )


def _flush_gateways(session: Session, stream: str | None) -> int:
    from tidemill.client import Client
    from tidemill.ingest.gateway.status import running

    with session.mill() as mill:
        if stream is not None:
            mill.project.stream(stream)
        found = [(one.gateway, one.address) for one in running(mill.project.warehouse) if one.address]
    if not found:
        hint = "`tidemill up` starts one; without --gateway, flush needs none"
        raise NotFoundError("no gateway runs", hint=hint)
    answers = []
    for name, address in found:
        with Client(address, token=os.environ.get("TIDEMILL_TOKEN")) as client:
            answers.append({"gateway": name, **client.flush(stream)})
    session.emit(lambda: {"gateways": answers}, lambda: views.serve.flushed(answers))
    return OK


@command("flush", Panel.TIME, "tidemill flush", "tidemill flush requests --output json")
def flush(
    session: Session,
    stream: Annotated[str | None, typer.Argument(help="By default all streams.")] = None,
    gateway: Annotated[
        bool,
        typer.Option("--gateway", metavar="", help="Close the windows of gateways, and land them."),
    ] = False,
) -> int:
    """Publish streaming windows that are still open as they are, as `run` does when it is stopped.

    Their results have the trigger `stop`. The watermark does not move: when more rows arrive for such a
    window, it gets a new revision. Pending slices are not included. With --gateway it closes the windows of
    the running gateways of the project, over HTTP, with the token in TIDEMILL_TOKEN.
    """
    if gateway:
        return _flush_gateways(session, stream)
    with session.working() as progress, session.mill(progress) as mill:
        if stream is not None:
            mill.project.stream(stream)
        done = mill.flush(stream)
        declared = {name: of for name, of in done.items() if mill.project.stream(name).windows}
    session.emit(lambda: documents.results.flushed(declared), lambda: views.results.flushed(declared))
    return OK
