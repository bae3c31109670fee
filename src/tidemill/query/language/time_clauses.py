"""The time clauses of a query or a search: instants, durations and intervals as they are written, and the
span that they mean, given `now` and a time zone. Every token is bounded, and none is rounded."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from tidemill.model.conditions.literals import number_of
from tidemill.model.conditions.scanner import MAX_WORD
from tidemill.model.errors import InputError, QueryError
from tidemill.model.time import (
    INSTANT_HINT,
    MAX_INSTANT,
    MICROSECOND,
    MILLISECOND,
    MIN_INSTANT,
    SECOND,
    Interval,
    format_instant,
    has_offset,
    parse_duration,
    parse_instant,
)
from tidemill.model.zones import first_instant, zone_named
from tidemill.query.language.ast import Between, Every, Moment, Now, Since, Unit, Wall

MAX_DURATION: Final = MAX_INSTANT - MIN_INSTANT
INT64: Final = range(-(2**63), 2**63)
_NUMBER: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?", re.IGNORECASE)
_RELATIVE: Final = re.compile(r"now(?:\s*([+-])\s*(\S+))?", re.IGNORECASE)
_CALENDAR: Final = re.compile(r"([0-9]{1,6})(w|mo|q|y)|P([0-9]{1,6})([WMY])", re.IGNORECASE)
_UNITS: Final[dict[str, Unit]] = {"w": "week", "mo": "month", "m": "month", "q": "quarter", "y": "year"}
MAX_COUNT: Final = 9_999  # of calendar units in one interval
_EPOCHS: Final = (  # by magnitude: seconds, milliseconds, microseconds and nanoseconds of the same years
    (10**8, Decimal(SECOND)),
    (10**11, Decimal(MILLISECOND)),
    (10**14, Decimal(MICROSECOND)),
    (10**17, Decimal(MICROSECOND) / 1000),
)
_EPOCH_END: Final = 10**20


def moment_of(text: str) -> Moment:
    """`2024-01-15T14:00:00Z`, the same without an offset, `now`, `now-1h`, or an epoch number."""
    stripped = text.strip()
    if found := _RELATIVE.fullmatch(stripped):
        sign, duration = found.groups()
        offset = duration_of(duration) if duration else 0
        return Now(-offset if sign == "-" else offset)
    if _NUMBER.fullmatch(stripped):
        return epoch_of(stripped)
    micros = parse_instant(text)
    if not MIN_INSTANT <= micros < MAX_INSTANT:
        raise InputError(f"{text!r} lies outside the years 1 to 9999", hint="use a year from 1 to 9999")
    return micros if has_offset(text) else Wall(micros)


def epoch_of(text: str) -> int:
    """Seconds, milliseconds, microseconds or nanoseconds since 1970, distinguished by their magnitude: as
    seconds, all of them lie between 10^8 and 10^11, which is the years 1973 to 5138."""
    number = Decimal(number_of(text))
    unit = next((unit for least, unit in reversed(_EPOCHS) if number >= least), None)
    if unit is None or number >= _EPOCH_END:
        raise InputError(
            f"{text[:MAX_WORD]} is not an instant",
            hint="epoch numbers are seconds, milliseconds, microseconds or nanoseconds of a time between "
            f"1973 and 5138; {INSTANT_HINT}",
        )
    micros = number * unit
    if micros != int(micros):
        raise InputError(f"{text[:MAX_WORD]} is finer than a microsecond", hint="leave digits out")
    return int(micros)


def since_of(text: str) -> Moment | Since:
    """The argument of SINCE: how long ago, or when."""
    try:
        parse_duration(text)
    except InputError:
        pass
    else:
        return Since(duration_of(text))
    try:
        return moment_of(text)
    except InputError:
        raise InputError(
            f"{text[:MAX_WORD]!r} is neither a duration nor an instant",
            hint="use a duration such as 90m or 7d, an instant such as 2024-01-15T14:00:00Z, or now-1h",
        ) from None


def every_of(text: str) -> Every:
    """The length of an INTERVAL: `30s`, `1d`, or calendar units: `1w`, `1mo`, `1q`, `1y`, `P1M` …"""
    found = _CALENDAR.fullmatch(text.strip())
    if found is None:
        try:
            return Every(duration_of(text))
        except InputError as error:
            hint = f"{error.hint}; calendar units are 1w, 1mo, 1q and 1y"
            raise InputError(error.message, hint=hint) from None
    count, unit = int(found[1] or found[3]), _UNITS[(found[2] or found[4]).lower()]
    if not 1 <= count <= MAX_COUNT:
        raise InputError(f"an interval of {count} {unit}s", hint=f"use 1 to {MAX_COUNT}")
    return Every(count, unit)


def checked_span(start: Moment, end: Moment) -> None:
    """Refuse a span that certainly ends before it starts; others are checked when they are resolved."""
    match start, end:
        case (int(), int()):
            reversed_, shown = end < start, (format_instant(end), format_instant(start))
        case (Wall(one), Wall(other)):
            reversed_, shown = other < one, (format_instant(other)[:-1], format_instant(one)[:-1])
        case (Now(one), Now(other)):
            reversed_, shown = other < one, ("end", "start")
        case _:
            return
    if reversed_:
        raise InputError(
            f"the span ends ({shown[0]}) before it starts ({shown[1]})",
            hint="BETWEEN start AND end is [start, end) with start <= end",
        )


def duration_of(text: str) -> int:
    micros = parse_duration(text)
    if micros > MAX_DURATION:
        raise InputError(
            f"{text[:MAX_WORD]!r} is longer than all of time", hint="use a shorter duration, such as 30d"
        )
    return micros


def instant_of(moment: Moment, now: int, zone: str | None) -> int:
    """The instant of a moment, given `now` and the time zone."""
    match moment:
        case Now(offset):
            found = now + offset
        case Wall(micros):
            found = first_instant(zone_named(zone), micros) if zone else micros
        case int():
            found = moment
    if not MIN_INSTANT <= found <= MAX_INSTANT:
        raise InputError(
            "the time reaches outside the years 1 to 9999",
            hint="use a year from 1 to 9999, or a shorter duration",
        )
    return found


def span_of(time: Between | Since | None, now: int, zone: str | None = None) -> Interval | None:
    """The span of a query or a search, exactly as given; None: all of time."""
    try:
        match time:
            case None:
                return None
            case Between(start, end):
                return Interval(instant_of(start, now, zone), instant_of(end, now, zone))
            case Since(duration):
                return Interval(instant_of(Now(-duration), now, zone), now)
    except InputError as error:
        raise QueryError(error.message, hint=error.hint, position=time.position if time else None) from None
