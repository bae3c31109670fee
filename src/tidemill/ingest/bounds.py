"""Declared bounds that cannot be meant: found when a slice lands, not when its windows are laid out."""

from __future__ import annotations

from typing import Final

from tidemill.config import Stream
from tidemill.model.errors import InputError
from tidemill.model.time import Interval, format_duration, has_offset, parse_instant

MAX_WINDOWS: Final = 100_000  # that one slice may touch, once somebody said so: at 1h, more than 11 years


class TooManyWindowsError(InputError):
    """Bounds that would make more windows than a stream allows unasked."""

    code = "too_many_windows"


def parse_bound(text: str) -> int:
    """An instant that says its offset from UTC: a bound that is an hour off covers what nobody fetched."""
    found = parse_instant(text)
    if not has_offset(text):
        raise InputError(
            f"{text!r} does not say which time zone it is in",
            hint="end it with Z for UTC, or with an offset such as +02:00",
        )
    return found


def declared_bounds(
    stream: Stream, start: str | int | None, end: str | int | None, *, many: bool = False
) -> Interval | None:
    """Of a slice of the stream, as its sender gives them (text, or microseconds); None: none are."""
    if start is None and end is None:
        return None
    if start is None or end is None:
        raise InputError(
            "declared bounds need both ends",
            hint="give both, half-open: --start and --end, or start= and end=",
        )
    declared = Interval(*(parse_bound(one) if isinstance(one, str) else one for one in (start, end)))
    check_bounds(stream, declared, many=many)
    return declared


def check_bounds(stream: Stream, declared: Interval, *, many: bool = False) -> None:
    """InputError when bounds cover no time, or touch more windows than the stream allows; `many`: somebody
    was asked, and means it."""
    if declared.end <= declared.start:
        raise InputError(
            f"declared bounds {declared} cover no time",
            where=stream.name,
            hint="bounds are half-open [start, end): the end is after the start",
        )
    span, allowed = stream.aggregation_span, stream.max_slice_windows
    if span is None:
        return
    touched = len(declared.windows(span))
    most = max(allowed, MAX_WINDOWS) if many else allowed
    if touched > most:
        anyway = "" if many or touched > MAX_WINDOWS else "`tidemill ingest --yes` lands it all the same; "
        raise TooManyWindowsError(
            f"declared bounds {declared} span {touched:,} windows of {format_duration(span)}; "
            f"at most {most:,} are made by one slice",
            where=stream.name,
            hint=f"look at the years; {anyway}streams.{stream.name}.max_slice_windows allows more for good",
        )
