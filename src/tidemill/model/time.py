"""Instants and durations: UTC microseconds as `int`, one parser and one printer for each.

Naive datetimes and floats are refused, so nothing is rounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tidemill.model.errors import InputError

MICROSECOND = 1
MILLISECOND = 1_000
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
WEEK = 7 * DAY

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MIN_INSTANT = -62_135_596_800 * SECOND  # 0001-01-01T00:00:00Z
MAX_INSTANT = 253_402_300_800 * SECOND  # 10000-01-01T00:00:00Z, exclusive

_UNITS = {
    "us": MICROSECOND,
    "ms": MILLISECOND,
    "s": SECOND,
    "m": MINUTE,
    "h": HOUR,
    "d": DAY,
    "w": WEEK,
}
# ASCII digits only: `\d` alone also matches those of other scripts. At most 15: any instant fits.
_AMOUNT = r"(\d{1,15}(?:\.\d{1,15})?)"
_SHORT = re.compile(rf"{_AMOUNT}(us|ms|s|m|h|d|w)", re.ASCII)
_ISO = re.compile(
    rf"P(?:{_AMOUNT}W)?(?:{_AMOUNT}D)?(?:T(?:{_AMOUNT}H)?(?:{_AMOUNT}M)?(?:{_AMOUNT}S)?)?", re.ASCII
)
_ISO_UNITS = (WEEK, DAY, HOUR, MINUTE, SECOND)
_INSTANT = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})"
    r"(?:[Tt ](\d{2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,6})\d*)?)?)?"
    r"\s*([Zz]|[+-]\d{2}:?\d{2}|[+-]\d{2})?",
    re.ASCII,
)
DURATION_HINT = "use 250ms, 5s, 1m, 2h30m, 1d, 1w or ISO 8601 such as PT1H, P1D"
INSTANT_HINT = "use RFC 3339 such as 2024-01-15T14:23:45Z"


def _scaled(number: str, unit: int, text: str) -> int:
    """`number * unit` without floats; a remainder below a microsecond is refused."""
    whole, _, fraction = number.partition(".")
    value = int(whole) * unit
    if fraction:
        scaled, rest = divmod(int(fraction) * unit, 10 ** len(fraction))
        if rest:
            raise InputError(f"duration {text!r} is finer than a microsecond", hint=DURATION_HINT)
        value += scaled
    return value


def parse_duration(text: str | int) -> int:
    """Return the microseconds of `5s`, `2h30m`, `PT1H`, `P1D` …; never negative."""
    if isinstance(text, int):
        raise InputError(f"duration {text} has no unit", hint=DURATION_HINT)
    stripped = text.strip()
    if stripped == "0":
        return 0
    if stripped[:1] == "P":
        match = _ISO.fullmatch(stripped)
        groups = match.groups() if match else ()
        if any(groups) and not stripped.endswith("T"):
            return sum(
                _scaled(number, unit, text) for number, unit in zip(groups, _ISO_UNITS, strict=True) if number
            )
    else:
        compact = stripped.replace(" ", "")
        pieces = list(_SHORT.finditer(compact))
        if pieces and "".join(p.group(0) for p in pieces) == compact:
            return sum(_scaled(p.group(1), _UNITS[p.group(2)], text) for p in pieces)
    raise InputError(f"{text!r} is not a duration", hint=DURATION_HINT)


def format_duration(us: int) -> str:
    """Return the shortest exact spelling that `parse_duration` reads back: `5s`, `1h30m`, `7d`."""
    if us == 0:
        return "0s"
    if us < 0:
        return "-" + format_duration(-us)
    rest, out = us, ""
    for name in ("d", "h", "m", "s", "ms", "us"):
        count, rest = divmod(rest, _UNITS[name])
        if count:
            out += f"{count}{name}"
    return out


def iso_duration(us: int) -> str:
    """ISO 8601, which `parse_duration` reads back as well: `PT1H`, `P1DT12H`, `PT0.25S`."""
    days, rest = divmod(us, DAY)
    hours, rest = divmod(rest, HOUR)
    minutes, rest = divmod(rest, MINUTE)
    seconds, micros = divmod(rest, SECOND)
    fraction = f".{micros:06d}".rstrip("0") if micros else ""
    date = f"{days}D" if days else ""
    clock = (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "")
    if seconds or micros or not (date or clock):
        clock += f"{seconds}{fraction}S"
    return f"P{date}T{clock}" if clock else f"P{date}"


def parse_instant(text: str) -> int:
    """Microseconds since the epoch of an RFC 3339 / ISO 8601 instant; no offset means UTC."""
    match = _INSTANT.fullmatch(text.strip())
    if not match:
        raise InputError(f"{text!r} is not an instant", hint=INSTANT_HINT)
    year, month, day, hour, minute, second, fraction, offset = match.groups()
    leap = second == "60"
    try:
        moment = datetime(
            int(year), int(month), int(day), int(hour or 0), int(minute or 0),
            59 if leap else int(second or 0), tzinfo=UTC,
        )  # fmt: skip
    except ValueError as error:
        raise InputError(f"{text!r} is not an instant: {error}", hint=INSTANT_HINT) from None
    micros = from_datetime(moment) + (SECOND if leap else 0)
    micros += int((fraction or "0").ljust(6, "0"))
    if offset and offset not in "Zz":
        sign = 1 if offset[0] == "+" else -1
        digits = offset[1:].replace(":", "").ljust(4, "0")
        hours, minutes = int(digits[:2]), int(digits[2:])
        if hours > 23 or minutes > 59:
            raise InputError(f"{text!r} has no valid offset", hint=INSTANT_HINT)
        micros -= sign * (hours * HOUR + minutes * MINUTE)
    return micros


def has_offset(text: str) -> bool:
    """Return whether an instant that `parse_instant` reads has an offset from UTC."""
    match = _INSTANT.fullmatch(text.strip())
    return match is not None and match.group(8) is not None


def format_instant(us: int) -> str:
    """RFC 3339 in UTC with as many digits as are needed (none, 3 or 6)."""
    if not MIN_INSTANT <= us < MAX_INSTANT:  # the end of an interval or a watermark can be out there
        return f"{'-' if us < 0 else '+'}{format_duration(abs(us))} from 1970"
    seconds, micros = divmod(us, SECOND)
    text = (EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
    if micros == 0:
        return text + "Z"
    if micros % MILLISECOND == 0:
        return f"{text}.{micros // MILLISECOND:03d}Z"
    return f"{text}.{micros:06d}Z"


def since_when(text: str, now: int) -> int:
    """Return an instant, given as such or as a duration before `now`."""
    try:
        return now - parse_duration(text)
    except InputError:
        pass
    try:
        return parse_instant(text)
    except InputError:
        raise InputError(
            f"{text[:100]!r} is neither an instant nor a duration",
            hint="use RFC 3339 such as 2024-01-15T14:23:45Z, or 10m, 2h30m, 1d for so long ago",
        ) from None


def from_datetime(moment: datetime) -> int:
    """Microseconds of an aware datetime; a naive one is a bug and is refused."""
    if moment.tzinfo is None:
        raise InputError("a datetime without a time zone is not an instant", hint="pass tzinfo=UTC")
    delta = moment - EPOCH
    return (delta.days * 86_400 + delta.seconds) * SECOND + delta.microseconds


def to_datetime(us: int) -> datetime:
    return EPOCH + timedelta(microseconds=us)


def align(us: int, span: int) -> int:
    """Return the start of the epoch-aligned window of `span` that holds `us`."""
    return us - us % span


@dataclass(frozen=True, slots=True, order=True)
class Interval:
    """A half-open `[start, end)` of instants. Empty when start == end, never reversed."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if self.end < self.start:
            raise InputError(
                f"interval ends ({format_instant(self.end)}) before it starts ({format_instant(self.start)})",
                hint="intervals are half-open [start, end) with start <= end",
            )

    def holds(self, us: int) -> bool:
        return self.start <= us < self.end

    def overlaps(self, other: Interval) -> bool:
        return self.start < other.end and other.start < self.end

    def windows(self, span: int) -> range:
        """Starts of the aligned windows of `span` that this interval overlaps."""
        if self.start == self.end:
            return range(0)
        return range(align(self.start, span), self.end, span)

    def __str__(self) -> str:
        return f"[{format_instant(self.start)}, {format_instant(self.end)})"


def open_span(span: Interval) -> str | None:
    """What a person calls a span without a beginning or an end; None if it has both."""
    if span.end >= MAX_INSTANT:
        return "all time" if span.start <= MIN_INSTANT else f"from {format_instant(span.start)} on"
    return f"everything before {format_instant(span.end)}" if span.start <= MIN_INSTANT else None


def within_time(span: Interval) -> Interval:
    """The part of a span whose ends are instants, for what other programs read."""
    return Interval(max(span.start, MIN_INSTANT), min(span.end, MAX_INSTANT - 1))


def joined(spans: Iterable[Interval]) -> list[Interval]:
    """Those that follow one another as one; they come by time and do not overlap."""
    found: list[Interval] = []
    for span in spans:
        if found and found[-1].end == span.start:
            found[-1] = Interval(found[-1].start, span.end)
        elif span.start < span.end:
            found.append(span)
    return found


def cut(span: Interval, gone: Iterable[Interval]) -> Iterator[tuple[Interval, bool]]:
    """The parts of a span by time, each with whether it lies in one of `gone`, which may overlap."""
    found: list[Interval] = []
    for one in sorted(gone, key=lambda one: one.start):
        start, end = max(one.start, span.start), min(one.end, span.end)
        if found and start <= found[-1].end:
            found[-1] = Interval(found[-1].start, max(end, found[-1].end))
        elif start < end:
            found.append(Interval(start, end))
    at = span.start
    for one in found:
        if at < one.start:
            yield Interval(at, one.start), False
        yield one, True
        at = one.end
    if at < span.end:
        yield Interval(at, span.end), False
