"""Instants as callers give them, text or microseconds, made into what the rooms take."""

from __future__ import annotations

from tidemill.config import Stream
from tidemill.ingest.bounds import check_bounds
from tidemill.model.errors import InputError
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, Interval, parse_instant

Instant = str | int


def instant(given: Instant) -> int:
    return parse_instant(given) if isinstance(given, str) else given


def span(start: Instant | None, end: Instant | None) -> Interval:
    """All of time where no end is given."""
    return Interval(
        instant(start) if start is not None else MIN_INSTANT, instant(end) if end is not None else MAX_INSTANT
    )


def bounds(stream: Stream, start: Instant | None, end: Instant | None) -> Interval | None:
    """Declared bounds of a slice; None: none are."""
    if start is None and end is None:
        return None
    if start is None or end is None:
        raise InputError("declared bounds need both ends", hint="give --start and --end, half-open")
    declared = Interval(instant(start), instant(end))
    check_bounds(stream, declared)
    return declared
