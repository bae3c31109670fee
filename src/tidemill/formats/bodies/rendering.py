"""Helps to make records of events that came in another shape: sets a value at a column, spells an instant as
the stream declares, writes a line of JSON.

Nothing is rounded, and values of the sender are overwritten only where the caller says so.
"""

from __future__ import annotations

from typing import Final

import orjson

from tidemill.config import Stream
from tidemill.eventtime import origin
from tidemill.model.errors import InputError
from tidemill.model.time import format_instant

_NANOSECONDS: Final = {  # nanoseconds of one unit
    "unixtimestamp_s": 1_000_000_000,
    "unixtimestamp_ms": 1_000_000,
    "unixtimestamp_us": 1_000,
    "unixtimestamp_ns": 1,
}
_INT64: Final = 1 << 63
_ISO: Final = "iso8601"

Spelled = int | str | orjson.Fragment
"""A value that `line` writes as it is; a number that is no integer of 64 bits is a fragment of JSON, since
no float is exact."""


def check_filled(stream: Stream) -> None:
    """Raise unless event times of the stream can be written; some types can only be read."""
    declared = stream.event_time
    if stream.time_column is None or declared.type is None:
        return
    if origin(declared.type).kind != "built_in":
        raise InputError(
            f"an event time of type {declared.type!r} can be read, not filled in",
            where=stream.name,
            hint="send plain JSON events that hold the time, or declare one of the built-in types: "
            + ", ".join((*_NANOSECONDS, _ISO)),
        )


def spelled(instant_us: int, stream: Stream, nanos: int = 0) -> Spelled:
    """An instant (and 0 to 999 nanoseconds beyond it) in the event-time type that the stream declares.

    A column of integers gets whole units, rounded down as the type's parser does.
    """
    check_filled(stream)
    type, column = stream.event_time.type or _ISO, stream.time_column
    if type == _ISO:
        return _rfc3339(instant_us, nanos)
    field = stream.fields.get(column) if column is not None else None
    kind = field.type if field is not None else "any"
    total, unit = instant_us * 1_000 + nanos, _NANOSECONDS[type]
    if kind == "integer" or total % unit == 0:
        text = str(total // unit)
        if kind != "string" and -_INT64 <= total // unit < _INT64:
            return total // unit
    else:
        whole, rest = divmod(abs(total), unit)
        text = f"{'-' if total < 0 else ''}{whole}.{str(rest).rjust(len(str(unit)) - 1, '0').rstrip('0')}"
    return text if kind == "string" else orjson.Fragment(text)


def _rfc3339(instant_us: int, nanos: int) -> str:
    if not nanos:
        return format_instant(instant_us)
    seconds, micros = divmod(instant_us, 1_000_000)
    return f"{format_instant(seconds * 1_000_000)[:-1]}.{micros:06d}{nanos:03d}Z"


def put(record: dict[str, object], path: str, value: object) -> None:
    """Set the value at a dotted column, creating the objects on the way; InputError if one is not an
    object."""
    *outer, last = path.split(".")
    for depth, step in enumerate(outer, start=1):
        inner = record.setdefault(step, {})
        if not isinstance(inner, dict):
            raise InputError(
                f"column {path!r} cannot be filled in: {'.'.join(outer[:depth])} is not an object",
                hint="leave it out, or make it an object",
            )
        record = inner
    record[last] = value


def line(record: dict[str, object]) -> bytes:
    """The record as one line of JSON, with its line end."""
    try:
        return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError as error:  # orjson's own error is a TypeError too
        raise InputError(
            f"the event cannot be written as JSON: {error}",
            hint="texts are Unicode without halves of surrogate pairs, whole numbers have 64 bits, and "
            "objects are nested less than 250 deep",
        ) from None
