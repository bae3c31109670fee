"""The options `--from`, `--to` and `--window`, and the instants they mean. It knows no project.

Intervals are half-open; a side that is not given is open.
"""

from __future__ import annotations

from typing import Annotated

import typer

from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, Interval, parse_instant

From = Annotated[
    str | None, typer.Option("--from", metavar="T", help="Only windows that start here or later …")
]
To = Annotated[str | None, typer.Option("--to", metavar="T", help="… and before this.")]


def span_of(start: str | None, end: str | None) -> Interval | None:
    """None when neither is given."""
    if start is None and end is None:
        return None
    return Interval(
        MIN_INSTANT if start is None else parse_instant(start),
        MAX_INSTANT if end is None else parse_instant(end),
    )


def instant_of(given: str | None) -> int | None:
    return None if given is None else parse_instant(given)
