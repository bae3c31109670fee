"""The command that lets go of what is old: expire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidemill.cli import views
from tidemill.cli.app import Panel, command
from tidemill.cli.session import OK, Session
from tidemill.pipeline import documents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidemill.model.expiry import ExpiryStep
    from tidemill.pipeline.retention import ExpiryPlan


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
        _print(session, plan, None)
        return OK
    with session.working() as progress, session.mill(progress) as mill:
        plan = mill.retention.plan(stream)
        done = mill.retention.expire(plan)
    _print(session, plan, done)
    return OK


def _print(session: Session, plan: ExpiryPlan, done: Sequence[ExpiryStep] | None) -> None:
    """The plan; with what went, once it was carried out."""
    session.emit(lambda: documents.ticks.expiry(plan, done), lambda: views.keep.expiry(plan, done))
