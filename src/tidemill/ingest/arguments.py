"""Converts and checks the arguments of callers: instants as text or microseconds, names of formats, and the
declared bounds of a slice, so that absurd ones are refused before windows are made of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from tidemill.config import Stream
from tidemill.model.errors import InputError
from tidemill.model.slices import Format
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, Interval, format_duration, has_offset, parse_instant

MAX_WINDOWS: Final = 100_000  # that one slice may touch, with confirmation: at 1h, more than 11 years

MOST_SOURCE: Final = 200  # characters in the name of a source


class TooManyWindowsError(InputError):
    """The bounds touch more windows than a stream allows without confirmation."""

    code = "too_many_windows"


def parse_bound(text: str) -> int:
    """Parse an instant with an offset from UTC. A bound without one could be hours off, and is refused."""
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
    """Return the bounds of a slice as its sender gives them (text or microseconds); None if there are
    none."""
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
    """Raise InputError if bounds are empty or touch more windows than the stream allows; `many` skips the
    latter."""
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


def source_of(text: str) -> str:
    """A valid name of a source: it stands in tables, logs and metrics."""
    if not text.isprintable() or text != text.strip() or not 0 < len(text) <= MOST_SOURCE:
        raise InputError(
            f"{text[:MOST_SOURCE]!r} cannot be the name of a source",
            hint=f"use 1 to {MOST_SOURCE} printable characters, without spaces at the ends",
        )
    return text


Instant = str | int


def instant(value: Instant) -> int:
    return parse_instant(value) if isinstance(value, str) else value


def span(start: Instant | None, end: Instant | None) -> Interval:
    """Return the interval; an end that is None is open."""
    return Interval(
        instant(start) if start is not None else MIN_INSTANT, instant(end) if end is not None else MAX_INSTANT
    )


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


def json_object(
    text: bytes,
    *,
    where: str,
    hint: str,
    members: Callable[[list[tuple[str, object]]], dict[str, object]] = dict,
) -> dict[str, object]:
    """Parse a file that must hold one JSON object; `members` makes an object of its keys and values."""
    try:
        found = json.loads(text, parse_constant=_not_in_json, object_pairs_hook=members)
        json.dumps(found, ensure_ascii=False).encode()  # half of a surrogate pair cannot be encoded
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not JSON: {error}", where=where, hint=hint) from None
    if not isinstance(found, dict):
        raise InputError("is not a JSON object", where=where, hint=hint)
    return found


def _not_in_json(text: str) -> float:
    raise ValueError(f"{text} is not a number in JSON")
