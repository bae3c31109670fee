"""The command that follows one event: trace. It reads, and starts no JVM."""

from __future__ import annotations

from typing import Annotated

import typer

from tidemill.cli import views
from tidemill.cli.app import Panel, command
from tidemill.cli.session import OK, Session
from tidemill.pipeline import documents


@command("trace", Panel.ASK, "tidemill trace 7f0c1a", "tidemill trace 7f0c1a --stream requests --output json")
def trace(
    session: Session,
    event_id: Annotated[str, typer.Argument(metavar="ID", help="The id of an event.")],
    stream: Annotated[str | None, typer.Option(metavar="S", help="By default all streams.")] = None,
    tenant: Annotated[str | None, typer.Option(metavar="T", help="Only the event of this tenant.")] = None,
) -> int:
    """Show what became of an event: each arrival and its outcome, its row, and every tile, dataset and window
    result that it is in."""
    with session.mill() as mill:
        found = mill.trace(event_id, stream=stream, tenant=tenant)
    session.emit(lambda: documents.trace.trace(event_id, found), lambda: views.trace.trace(found))
    return OK
