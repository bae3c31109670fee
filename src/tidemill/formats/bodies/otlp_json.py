"""Reads OTLP requests in JSON, as OTLP defines it: ids in hex, enums as numbers, unknown keys ignored.

An error in the structure around records refuses the request; one inside a record refuses that record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import orjson

from tidemill.formats.bodies.json_bodies import utf8_text
from tidemill.formats.bodies.otlp_entries import (
    Attributes,
    Entries,
    Json,
    Log,
    OtlpOrigin,
    OtlpScope,
    Resource,
    Span,
    SpanEvent,
    SpanLink,
)
from tidemill.formats.bodies.otlp_values import (
    INT32,
    INT64,
    UINT32,
    UINT64,
    Depth,
    base64_again,
    hex_id,
    integer_of,
    number,
    number_of,
    wrong,
)
from tidemill.model.errors import InputError

Object = dict[str, object]
Reader = Callable[[Object, Depth], Log | Span]

_KEYS: Final = {  # the keys that lead to the records of a signal
    "logs": ("resourceLogs", "scopeLogs", "logRecords"),
    "traces": ("resourceSpans", "scopeSpans", "spans"),
}


def read_json(content: bytes, signal: str, depth: Depth) -> Entries:
    """The records of an ExportLogsServiceRequest or ExportTraceServiceRequest."""
    try:
        root: object = orjson.loads(utf8_text(content))
    except orjson.JSONDecodeError as error:
        raise wrong(
            f"the body is not JSON: {error.msg} at line {error.lineno} column {error.colno}",
            "send the request as the OTLP specification spells it in JSON",
        ) from None
    outer, middle, inner = _KEYS[signal]
    read: Reader = _log if signal == "logs" else _span
    for group in _objects(_as_object(root, "the body"), outer):
        resource = _resource(_object(group, "resource"), _text(group, "schemaUrl"), depth)
        for part in _objects(group, middle):
            scope = _scope(_object(part, "scope"), _text(part, "schemaUrl"), depth)
            origin = OtlpOrigin(resource, scope)
            for value in _array(part, inner):
                yield origin, _entry(value, inner, read, depth)


def _entry(value: object, key: str, read: Reader, depth: Depth) -> Log | Span | InputError:
    try:
        return read(_as_object(value, f"an element of {key}"), depth)
    except InputError as error:
        return error


def _resource(value: Object, schema_url: str, depth: Depth) -> Resource:
    return Resource(_attributes(value, depth), _dropped(value, "droppedAttributesCount"), schema_url)


def _scope(value: Object, schema_url: str, depth: Depth) -> OtlpScope:
    return OtlpScope(
        name=_text(value, "name"),
        version=_text(value, "version"),
        attributes=_attributes(value, depth),
        dropped_attributes=_dropped(value, "droppedAttributesCount"),
        schema_url=schema_url,
    )


def _log(value: Object, depth: Depth) -> Log:
    return Log(
        time=_integer(value, "timeUnixNano", UINT64),
        observed=_integer(value, "observedTimeUnixNano", UINT64),
        severity_number=_integer(value, "severityNumber", INT32),
        severity_text=_text(value, "severityText"),
        event_name=_text(value, "eventName"),
        body=_any(value.get("body"), depth, 1),
        attributes=_attributes(value, depth),
        dropped_attributes=_dropped(value, "droppedAttributesCount"),
        flags=_integer(value, "flags", UINT32),
        trace_id=hex_id(_text(value, "traceId"), 16, "traceId"),
        span_id=hex_id(_text(value, "spanId"), 8, "spanId"),
    )


def _span(value: Object, depth: Depth) -> Span:
    status = _object(value, "status")
    return Span(
        trace_id=hex_id(_text(value, "traceId"), 16, "traceId"),
        span_id=hex_id(_text(value, "spanId"), 8, "spanId"),
        parent_span_id=hex_id(_text(value, "parentSpanId"), 8, "parentSpanId"),
        trace_state=_text(value, "traceState"),
        flags=_integer(value, "flags", UINT32),
        name=_text(value, "name"),
        kind=_integer(value, "kind", INT32),
        start=_integer(value, "startTimeUnixNano", UINT64),
        end=_integer(value, "endTimeUnixNano", UINT64),
        attributes=_attributes(value, depth),
        dropped_attributes=_dropped(value, "droppedAttributesCount"),
        events=tuple(_event(one, depth) for one in _objects(value, "events")),
        dropped_events=_dropped(value, "droppedEventsCount"),
        links=tuple(_link(one, depth) for one in _objects(value, "links")),
        dropped_links=_dropped(value, "droppedLinksCount"),
        status_code=_integer(status, "code", INT32),
        status_message=_text(status, "message"),
    )


def _event(value: Object, depth: Depth) -> SpanEvent:
    return SpanEvent(
        time=_integer(value, "timeUnixNano", UINT64),
        name=_text(value, "name"),
        attributes=_attributes(value, depth),
        dropped_attributes=_dropped(value, "droppedAttributesCount"),
    )


def _link(value: Object, depth: Depth) -> SpanLink:
    return SpanLink(
        trace_id=hex_id(_text(value, "traceId"), 16, "traceId"),
        span_id=hex_id(_text(value, "spanId"), 8, "spanId"),
        trace_state=_text(value, "traceState"),
        attributes=_attributes(value, depth),
        dropped_attributes=_dropped(value, "droppedAttributesCount"),
        flags=_integer(value, "flags", UINT32),
    )


# -- values


def _attributes(value: Object, depth: Depth) -> Attributes:
    return _pairs(value, "attributes", depth, 1)


def _pairs(value: Object, key: str, depth: Depth, nested: int) -> Attributes:
    return {_text(pair, "key"): _any(pair.get("value"), depth, nested) for pair in _objects(value, key)}


def _any(value: object, depth: Depth, nested: int) -> Json:
    """An AnyValue: the known key that is set; keys of newer versions are ignored."""
    if value is None:
        return None
    depth.check(nested)
    for key, found in _as_object(value, "a value").items():
        if found is not None and key in _VALUES:
            return _VALUES[key](found, key, depth, nested)
    return None


def _string(value: object, key: str, _depth: Depth, _nested: int) -> Json:
    if not isinstance(value, str):
        raise wrong(f"{key} is not a string", "write it in double quotes")
    return value


def _boolean(value: object, key: str, _depth: Depth, _nested: int) -> Json:
    if not isinstance(value, bool):
        raise wrong(f"{key} is neither true nor false", "write true or false")
    return value


def _int(value: object, key: str, _depth: Depth, _nested: int) -> Json:
    return integer_of(value, key, INT64)


def _double(value: object, key: str, _depth: Depth, _nested: int) -> Json:
    if isinstance(value, str):
        return number(number_of(value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(f"{key} is not a number", "write a number, or NaN, Infinity or -Infinity as a string")
    return number(float(value))


def _bytes(value: object, key: str, _depth: Depth, _nested: int) -> Json:
    return base64_again(str(_string(value, key, _depth, _nested)), key)


def _list(value: object, key: str, depth: Depth, nested: int) -> Json:
    return [_any(one, depth, nested + 1) for one in _array(_as_object(value, key), "values")]


def _map(value: object, key: str, depth: Depth, nested: int) -> Json:
    return _pairs(_as_object(value, key), "values", depth, nested + 1)


_VALUES: Final[dict[str, Callable[[object, str, Depth, int], Json]]] = {
    "stringValue": _string,
    "boolValue": _boolean,
    "intValue": _int,
    "doubleValue": _double,
    "arrayValue": _list,
    "kvlistValue": _map,
    "bytesValue": _bytes,
}


# -- the members of an object; null is the same as absent


def _as_object(value: object, what: str) -> Object:
    if not isinstance(value, dict):
        raise wrong(f"{what} is not an object", "write {…} there, as the OTLP specification has it")
    return value


def _object(value: Object, key: str) -> Object:
    found = value.get(key)
    return {} if found is None else _as_object(found, key)


def _array(value: Object, key: str) -> list[object]:
    found = value.get(key)
    if found is None:
        return []
    if not isinstance(found, list):
        raise wrong(f"{key} is not an array", "write […] there, as the OTLP specification has it")
    return found


def _objects(value: Object, key: str) -> Iterator[Object]:
    for one in _array(value, key):
        yield _as_object(one, f"an element of {key}")


def _text(value: Object, key: str) -> str:
    found = value.get(key)
    if found is None:
        return ""
    if not isinstance(found, str):
        raise wrong(f"{key} is not a string", "write it in double quotes")
    return found


def _integer(value: Object, key: str, allowed: range) -> int:
    found = value.get(key)
    return 0 if found is None else integer_of(found, key, allowed)


def _dropped(value: Object, key: str) -> int:
    return _integer(value, key, UINT32)
