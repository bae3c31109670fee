"""Values as they are written in `tidemill.yaml`: durations, sizes, time zones, names and conditions.

A value that is not exact in microseconds or bytes is refused.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, PlainValidator
from pydantic_core import PydanticCustomError

from tidemill.model.conditions.declared import parse_condition
from tidemill.model.errors import InputError, QueryError
from tidemill.model.names import NAME_HINT, is_safe_name
from tidemill.model.time import DURATION_HINT, MAX_INSTANT, MIN_INSTANT, parse_duration
from tidemill.model.zones import zone_hint, zone_named

SIZE_HINT: Final = "use a number of bytes, or 64KiB, 48MiB, 1GiB, 1GB"
MEMORY_HINT: Final = "use a JVM heap size such as 512m, 1g or 4g, at least 512m"
CORES_HINT: Final = "use auto or a number from 1 to 4096"

_SIZE: Final = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,9}))?\s*([kmgt]i?)?b", re.IGNORECASE)
_HEAP: Final = re.compile(r"([1-9][0-9]{0,8})([kmgt])", re.IGNORECASE)
_PREFIXES: Final = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
    "ti": 1 << 40,
}
_MIN_HEAP: Final = 512 << 20  # Spark refuses to start with less than about 450 MiB


def wrong(message: str, hint: str) -> PydanticCustomError:
    """The error of a validator: what is wrong and what is valid."""
    return PydanticCustomError("tidemill", "{message}", {"message": message, "hint": hint})


def check_delays(retry_delay: int, max_retry_delay: int) -> None:
    if max_retry_delay < retry_delay:
        raise wrong("max_retry_delay is less than retry_delay", "make it as long, or longer")


def parse_size(text: str | int) -> int:
    """Bytes of `64KiB` (1024s), `1GB` (1000s) or a plain number."""
    if isinstance(text, int):
        if not isinstance(text, bool) and 0 <= text < 1 << 63:
            return text
    elif match := _SIZE.fullmatch(text.strip()):
        whole, fraction, prefix = match.groups()
        unit = _PREFIXES[(prefix or "").lower()]
        scale: int = 10 ** len(fraction or "")
        part, rest = divmod(int(fraction or 0) * unit, scale)
        size = int(whole) * unit + part
        if not rest and size < 1 << 63:
            return size
    elif text.strip().isascii() and text.strip().isdigit():
        return parse_size(int(text[:40]))
    raise InputError(f"{text!r} is not a size", hint=SIZE_HINT)


def _duration(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value == 0:
        return 0  # the only number that is the same in every unit
    if not isinstance(value, str | int):
        raise wrong(f"{value!r} is not a duration", DURATION_HINT)
    try:
        us = parse_duration(value)
    except InputError as error:
        raise wrong(error.message, error.hint) from None
    if us > MAX_INSTANT - MIN_INSTANT:
        raise wrong(f"{value!r} is longer than all of time", DURATION_HINT)
    return us


def _positive_duration(value: object) -> int:
    us = _duration(value)
    if us == 0:
        raise wrong("a duration of 0 is too short", "use a longer one, or leave the key out for the default")
    return us


def _step(value: object) -> int | str:
    return value if value == "row" and isinstance(value, str) else _positive_duration(value)


def _size(value: object) -> int:
    if not isinstance(value, str | int):
        raise wrong(f"{value!r} is not a size", SIZE_HINT)
    try:
        return parse_size(value)
    except InputError as error:
        raise wrong(error.message, error.hint) from None


def _heap(value: object) -> str:
    match = _HEAP.fullmatch(value) if isinstance(value, str) else None
    if not match:
        raise wrong(f"{value!r} is not a heap size", MEMORY_HINT)
    number, unit = match.groups()
    if int(number) * _PREFIXES[unit.lower() + "i"] < _MIN_HEAP:
        raise wrong(f"a heap of {value} is too small for Spark", MEMORY_HINT)
    return match.group(0).lower()


def _cores(value: object) -> int | str:
    if value == "auto":
        return "auto"
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 4096:
        return value
    raise wrong(f"{value!r} is not a number of cores", CORES_HINT)


def _time_zone(value: object) -> str:
    if not isinstance(value, str):
        raise wrong(f"{value!r} is not a time zone", zone_hint(str(value)[:60]))
    try:
        zone_named(value)
    except InputError as error:
        raise wrong(error.message, error.hint) from None
    return value


Duration = Annotated[int, BeforeValidator(_duration)]
"""Microseconds, zero or more."""

Step = Annotated[int | str, BeforeValidator(_step)]
"""Of a sliding window: microseconds, or `row`."""

PositiveDuration = Annotated[int, BeforeValidator(_positive_duration)]
"""Microseconds, more than zero."""

ByteSize = Annotated[int, BeforeValidator(_size)]
"""Bytes."""

HeapSize = Annotated[str, PlainValidator(_heap)]
"""What the JVM takes after -Xmx."""

Cores = Annotated[int | Literal["auto"], PlainValidator(_cores)]

TimeZone = Annotated[str, PlainValidator(_time_zone)]
"""A name of the IANA database."""


def _name(name: str) -> str:
    if not is_safe_name(name):
        raise wrong(f"name {name!r} is not allowed", NAME_HINT)
    return name


SafeName = Annotated[str, AfterValidator(_name)]


def _condition(text: str) -> str:
    try:
        parse_condition(text)
    except QueryError as error:
        raise wrong(f"{error.message} at character {(error.position or 0) + 1}", error.hint) from None
    return text


Condition = Annotated[str, AfterValidator(_condition)]
