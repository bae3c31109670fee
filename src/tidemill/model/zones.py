"""Time zones of the IANA database: what a local clock shows at an instant, and when it first shows it.

Whole microseconds, for all years from 1 to 9999.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta, tzinfo
from typing import Final

from tidemill.model.errors import InputError
from tidemill.model.suggestions import closest
from tidemill.model.time import DAY, EPOCH, MAX_INSTANT, MIN_INSTANT, SECOND, Interval

UTC_NAMES: Final = frozenset({"UTC", "Etc/UTC"})
_SAFE: Final = Interval(MIN_INSTANT + 2 * DAY, MAX_INSTANT - 2 * DAY)  # instants that a zone can convert


def zone_named(name: str) -> tzinfo:
    """Return the zone of the IANA database, or raise an InputError that names the nearest ones."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InputError(f"there is no time zone {name[:60]!r}", hint=zone_hint(name)) from None


def zone_hint(name: str) -> str:
    from zoneinfo import available_timezones

    near = closest(name, sorted(available_timezones()), cutoff=0.6)
    guess = f"did you mean {near}? " if near else ""
    return f"{guess}use a name of the IANA time zone database, such as Europe/Paris or UTC"


def first_instant(zone: tzinfo, local: int) -> int:
    """Return the first instant whose wall clock has reached `local` (microseconds as if they were UTC)."""
    before, after = (_offset_of_wall(zone, local, fold) for fold in (0, 1))
    if before >= after:  # there is one such instant, or two, of which this is the earlier
        return local - before
    low, high = (local - after) // SECOND, (local - before) // SECOND  # the clock jumps over it in between
    while low < high:
        middle = (low + high) // 2
        if middle * SECOND + offset_at(zone, middle * SECOND) >= local:
            high = middle
        else:
            low = middle + 1
    return low * SECOND


def instant_of_wall(zone: tzinfo, local: int) -> int | None:
    """The instant at which a local clock shows `local` (microseconds as if they were UTC): the first one,
    where the clock was put back and showed it twice; None where it was put forward and never showed it."""
    before, after = (_offset_of_wall(zone, local, fold) for fold in (0, 1))
    return None if before < after else local - before


def wall_offset(zone: tzinfo, first: int, last: int) -> int | None:
    """The offset that belongs to everything a clock shows from `first` to `last`, which are less than a few
    hours apart; None where there is more than one, or none."""
    found = {_offset_of_wall(zone, local, fold) for local in (first, last) for fold in (0, 1)}
    return found.pop() if len(found) == 1 else None


def offset_at(zone: tzinfo, instant: int) -> int:
    """Return how far the local clock is ahead of UTC at an instant."""
    safe = min(max(instant, _SAFE.start), _SAFE.end)
    found = (EPOCH + timedelta(microseconds=safe)).astimezone(zone).utcoffset()
    assert found is not None
    return found // timedelta(microseconds=1)


def stretches(zone: tzinfo, span: Interval) -> Iterator[tuple[Interval, int]]:
    """The span cut where the offset of the zone changes, each piece with its offset. Two changes within a day
    that cancel each other would not be noticed; no zone ever had them."""
    start, offset = span.start, offset_at(zone, span.start)
    at = span.start
    while at < span.end:
        following = min(at + DAY, span.end)
        changed = offset_at(zone, following)
        if changed != offset:
            change = _change(zone, at, following, offset)
            yield Interval(start, change), offset
            start, offset, at = change, offset_at(zone, change), change
        else:
            at = following
    yield Interval(start, span.end), offset


def _change(zone: tzinfo, low: int, high: int, offset: int) -> int:
    """The first instant in `(low, high]` whose offset is another one; offsets change at whole seconds."""
    first, last = low // SECOND + 1, -(-high // SECOND)
    while first < last:
        middle = (first + last) // 2
        if offset_at(zone, middle * SECOND) != offset:
            last = middle
        else:
            first = middle + 1
    return first * SECOND


def _offset_of_wall(zone: tzinfo, local: int, fold: int) -> int:
    """The offset that belongs to what a clock shows; where that is shown twice or never, `fold` decides."""
    safe = min(max(local, _SAFE.start), _SAFE.end)
    wall = (EPOCH + timedelta(microseconds=safe)).replace(tzinfo=zone, fold=fold)
    found = wall.utcoffset()
    assert found is not None
    return found // timedelta(microseconds=1)
