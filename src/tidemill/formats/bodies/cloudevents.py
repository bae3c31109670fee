"""CloudEvents 1.0, structured and batched, as records: the members of `data` at the top, the columns that the
stream declares filled from the envelope, and the rest of the envelope under `cloudevent`.

A member of `data` is never overwritten, and no time is invented, so an event that is sent again is the same
record.
"""

from __future__ import annotations

import base64
import json
import re
from functools import partial
from typing import Final

import orjson

from tidemill.config import Stream
from tidemill.config.gateway import Requests
from tidemill.formats.bodies.json_bodies import scanned
from tidemill.formats.bodies.rendering import check_filled, line, put, spelled
from tidemill.formats.bodies.tenancy import DEFAULT_TENANT, other_tenant
from tidemill.formats.json_values import at, no_constant, unique_members
from tidemill.model.errors import InputError
from tidemill.model.time import INSTANT_HINT, parse_instant

STRUCTURED: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
ENVELOPE: Final = "cloudevent"

_REQUIRED: Final = ("id", "source", "type")
_DATA: Final = ("data", "data_base64")
_ATTRIBUTE: Final = re.compile(r"[a-z0-9]+")
_TIMESTAMP: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:\.([0-9]+))?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_INT64_DIGITS: Final = 18  # a number with so many digits fits 64 bits


def cloud_event_lines(
    content: bytes, media: str, stream: Stream, limits: Requests, tenant: str | None
) -> tuple[bytes, int]:
    """The events as NDJSON lines, and how many there are."""
    check_filled(stream)
    text, found = scanned(content, limits)
    if found.in_array != (media == BATCH):
        what, other = ("an array", BATCH) if found.in_array else ("one value", STRUCTURED)
        raise InputError(
            f"the body is {what}, and its type is {media}", where="body", hint=f"set Content-Type to {other}"
        )
    lines = [
        _line(text[start:end], position, stream, tenant) for position, (start, end) in enumerate(found.spans)
    ]
    return b"".join(lines), len(lines)


def _line(element: bytes, position: int, stream: Stream, tenant: str | None) -> bytes:
    try:
        return line(_record(_parsed(element), stream, tenant, position))
    except InputError as error:
        raise InputError(error.message, hint=error.hint, where=f"event {position + 1}") from None


def _parsed(element: bytes) -> dict[str, object]:
    """The event. Numbers that a float or an integer would not hold keep their spelling."""
    try:
        event = _DECODER.decode(element.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"the event cannot be read: {error}", hint="send it as CloudEvents' JSON") from None
    if not isinstance(event, dict):
        raise InputError(
            "the event is not a JSON object", hint="an event has specversion, id, source and type"
        )
    return event


def _record(event: dict[str, object], stream: Stream, tenant: str | None, position: int) -> dict[str, object]:
    attributes = _attributes(event)
    if tenant is not None:
        _check_attribute(attributes, tenant, position)
    record = _data(event)
    if ENVELOPE in record:
        raise InputError(
            f"data has a member {ENVELOPE!r}, which is where the envelope goes", hint="give it another name"
        )
    _fill_identity(record, attributes, stream)
    if stream.time_column is not None and "time" in attributes:
        _fill_time(record, attributes, stream, stream.time_column)
    type = _type_column(stream)
    if type is not None and at(record, type) is None:
        put(record, type, attributes.pop("type"))
    if stream.tenant.column is not None:
        if tenant is None and at(record, stream.tenant.column) is None:
            put(record, stream.tenant.column, str(attributes.pop("tenant", DEFAULT_TENANT)))
        elif tenant is not None:
            _fill_tenant(record, stream.tenant.column, tenant, position)
    record[ENVELOPE] = attributes
    return record


def _type_column(stream: Stream) -> str | None:
    """The column for the type of an event: the declared one, or the field with the usual name."""
    if stream.event_type is not None:
        return stream.event_type.column
    return "event_type" if "event_type" in stream.fields else None


def _attributes(event: dict[str, object]) -> dict[str, object]:
    """The checked envelope; attributes that are null are left out."""
    version = event.get("specversion")
    if version != "1.0":
        problem = "there is none" if version is None else f"it is {str(version)[:20]!r}"
        raise InputError(f"specversion must be '1.0', and {problem}", hint="send CloudEvents of version 1.0")
    for name in _REQUIRED:
        value = event.get(name)
        if not isinstance(value, str) or not value:
            raise InputError(
                f"{name} is missing, or is not a non-empty string",
                hint=f"an event has {', '.join(('specversion', *_REQUIRED))}",
            )
    attributes: dict[str, object] = {}
    for name, value in event.items():
        if name == "specversion" or name in _DATA or value is None:
            continue
        if not _ATTRIBUTE.fullmatch(name):
            raise InputError(
                f"{name[:80]!r} is not a valid attribute name",
                hint="use lower-case letters and digits; other fields belong in data",
            )
        if not isinstance(value, str | bool | int):
            raise InputError(
                f"attribute {name} is not a string, a boolean or an integer",
                hint="put objects and arrays into data",
            )
        attributes[name] = value
    return attributes


def _data(event: dict[str, object]) -> dict[str, object]:
    binary = event.get("data_base64")
    if binary is None:
        if "data" not in event:
            return {}
        data = event["data"]
        return data if isinstance(data, dict) else {"data": data}
    if event.get("data") is not None:
        raise InputError("the event has both data and data_base64", hint="send one of them")
    try:
        base64.b64decode(binary if isinstance(binary, str) else "?", validate=True)
    except ValueError:
        raise InputError("data_base64 is not base64", hint="encode it by RFC 4648, or send data") from None
    return {"data_base64": binary}


def _fill_identity(record: dict[str, object], attributes: dict[str, object], stream: Stream) -> None:
    missing = [column for column in stream.identity if at(record, column) is None]
    if not missing:
        return
    if len(stream.identity) > 1:
        raise InputError(
            f"data lacks {', '.join(missing)}, which the identity consists of",
            hint=f"put {', '.join(stream.identity)} into data; id and source can fill in one column only",
        )
    column = missing[0]
    declared = stream.fields.get(column)
    if declared is not None and declared.type == "integer":
        raise InputError(
            f"data lacks {column}, the identity, which is an integer",
            hint=f"put it into data, or declare {column} as a string, to have it filled in by source and id",
        )
    put(record, column, f"{attributes['source']}#{attributes['id']}")


def _fill_time(record: dict[str, object], attributes: dict[str, object], stream: Stream, column: str) -> None:
    time = attributes["time"]
    match = _TIMESTAMP.fullmatch(time) if isinstance(time, str) else None
    if match is None:
        raise InputError(f"time {str(time)[:40]!r} is not an instant", hint=INSTANT_HINT)
    seconds, fraction, offset = match.groups()
    digits = (fraction or "")[:9].ljust(9, "0")  # digits beyond nanoseconds are cut off
    instant = parse_instant(f"{seconds}.{digits[:6]}{offset}")
    if at(record, column) is not None:
        return
    as_sent = stream.event_time.type == "iso8601" and len(fraction or "") <= len(digits)
    put(record, column, time if as_sent else spelled(instant, stream, int(digits[6:])))
    del attributes["time"]


def _check_attribute(attributes: dict[str, object], tenant: str, position: int) -> None:
    """Raise unless the envelope names the token's tenant or none, whether or not the stream uses it."""
    named = str(attributes.get("tenant", ""))
    if named not in ("", tenant):
        raise other_tenant("attribute tenant", named, tenant, position)


def _fill_tenant(record: dict[str, object], column: str, tenant: str, position: int) -> None:
    named = at(record, column)
    if named is None:
        put(record, column, tenant)
    elif isinstance(named, str) and named and named != tenant:
        raise other_tenant(column, named, tenant, position)


def _integer(text: str) -> int | orjson.Fragment:
    return int(text) if len(text) <= _INT64_DIGITS else orjson.Fragment(text)


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=partial(unique_members, shown=80),
    parse_int=_integer,
    parse_float=orjson.Fragment,
    parse_constant=no_constant,
)
