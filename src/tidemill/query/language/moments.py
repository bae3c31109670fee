"""Resolves the time clauses of a query or a search: `now`, and local times without an offset."""

from __future__ import annotations

from tidemill.model.errors import InputError, QueryError
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, Interval
from tidemill.model.zones import first_instant, zone_named
from tidemill.query.language.ast import Between, Moment, Now, Since, Wall


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
