"""What is let go of or would be, as lines for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemill.cli.shown import shown
from tidemill.cli.views.layout import Piece, View, line, many, size
from tidemill.model.time import format_duration, format_instant

if TYPE_CHECKING:
    from tidemill.model.expiry import ExpiryStep
    from tidemill.pipeline.retention import ExpiryPlan


def expiry(plan: ExpiryPlan, done: Sequence[ExpiryStep] | None) -> View:
    """The plan, step by step; or what went, once it was carried out."""
    if not plan.steps:
        yield line("no retention is declared: everything is kept")
    for step in done or ():
        yield line(*expired_pieces(step))
    if done is not None and not done and plan.steps:
        yield line("nothing is old enough to go, or all of it is still needed")
    for step in plan.steps:
        where = (f"{step.stream} {step.what}", "bold")
        if done is None:
            yield line(where, f", kept {format_duration(step.keep)}: {_going(step)}")
        if step.held_by is not None:
            yield line(where, (" is held back", "yellow"), f" by {shown(step.held_by)}")


def expired_pieces(step: ExpiryStep) -> list[Piece]:
    where = (f"{step.stream} {step.what}", "bold")
    return [("expired ", "magenta"), where, f": {_amount(step)} before {format_instant(step.before)}"]


def _going(step: ExpiryStep) -> str:
    if not step.due:
        return f"nothing before {format_instant(step.before)}"
    return f"{_amount(step)} before {format_instant(step.before)}"


def _amount(step: ExpiryStep) -> str:
    windows = f" of {many(step.windows, 'window')}" if step.windows else ""
    return f"{many(step.rows, 'row')} in {many(step.files, 'file')}{windows}, {size(step.bytes)},"
