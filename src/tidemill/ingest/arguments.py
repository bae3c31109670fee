"""Converts the arguments of callers: instants as text or microseconds, names of formats."""

from __future__ import annotations

from tidemill.config import Stream
from tidemill.ingest.bounds import declared_bounds
from tidemill.model.errors import InputError
from tidemill.model.slices import Format
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, Interval, parse_instant

Instant = str | int


def instant(value: Instant) -> int:
    return parse_instant(value) if isinstance(value, str) else value


def span(start: Instant | None, end: Instant | None) -> Interval:
    """Return the interval; an end that is None is open."""
    return Interval(
        instant(start) if start is not None else MIN_INSTANT, instant(end) if end is not None else MAX_INSTANT
    )


def bounds(
    stream: Stream, start: Instant | None, end: Instant | None, *, many: bool = False
) -> Interval | None:
    """Return the declared bounds of a slice; None if there are none. `many` allows more windows than
    usual."""
    return declared_bounds(stream, start, end, many=many)


def format_of(stream: Stream, requested: str | Format | None, *, where: str = "") -> Format | None:
    """Return the format of a slice: as requested, else as its stream declares it; None to recognise it.
    `where` names the request's field in the error."""
    chosen = requested or stream.format
    if chosen == "auto":
        return None
    try:
        return Format(chosen)
    except ValueError:
        raise InputError(
            f"there is no format {chosen[:40]!r}",
            where=where,
            hint=f"formats: auto, {', '.join(f.value for f in Format)}",
        ) from None
