"""Makes a first event for a stream from its declaration, and the command that sends it.

`tidemill up` prints it for a person to try; nothing else depends on it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tidemill.model.time import MILLISECOND, SECOND, format_instant

if TYPE_CHECKING:
    from tidemill.config import Stream

_VALUES: Final[Mapping[str, object]] = {
    "string": "hello",
    "integer": 1,
    "decimal": 1,
    "float": 1.5,
    "boolean": True,
    "timestamp": "2026-01-01T00:00:00Z",
    "object": {},
    "array": [],
    "any": "hello",
}
_TIMES: Final[Mapping[str, Callable[[int], object]]] = {
    "iso8601": lambda now: format_instant(now),
    "unixtimestamp_s": lambda now: now // SECOND,
    "unixtimestamp_ms": lambda now: now // MILLISECOND,
    "unixtimestamp_us": lambda now: now,
    "unixtimestamp_ns": lambda now: now * 1000,
}


def first_event(stream: Stream, now: int) -> dict[str, object] | None:
    """Return an event of now that will be accepted; None if the declaration does not determine one."""
    spelled = _TIMES.get(stream.event_time.type or "") if stream.time_column is not None else None
    if stream.messages is not None or (stream.time_column is not None and spelled is None):
        return None
    columns: dict[str, object] = {}
    for name in stream.identity:
        columns[name] = "first" if stream.fields[name].type == "string" else _VALUES[stream.fields[name].type]
    if stream.time_column is not None and spelled is not None:
        columns[stream.time_column] = spelled(now)
    if stream.event_type is not None:
        columns[stream.event_type.column] = stream.event_type.allowed[0]
    if stream.tenant.column is not None:
        columns[stream.tenant.column] = "acme"
    for name, field in stream.fields.items():
        if field.required and name not in columns:
            columns[name] = _VALUES[field.type]
    event: dict[str, object] = {}
    for name in sorted(columns, key=lambda name: name.count(".")):  # an object before what is in it
        _put(event, name.split("."), columns[name])
    return event


def _put(event: dict[str, object], path: Sequence[str], value: object) -> None:
    name, *rest = path
    if not rest:
        event[name] = value
        return
    inner = event.get(name)
    inside = dict(inner) if isinstance(inner, Mapping) else {}
    _put(inside, rest, value)
    event[name] = inside


def curl_line(url: str, stream: Stream, now: int, *, token: bool) -> str | None:
    """Return the curl command that sends a first event and waits for its outcome."""
    event = first_event(stream, now)
    if event is None:
        return None
    headers = ["content-type: application/json", *(["authorization: Bearer tm_…"] if token else [])]
    options = " ".join(f"-H {shlex.quote(header)}" for header in headers)
    body = shlex.quote(json.dumps(event, ensure_ascii=False))
    return f"curl {options} -d {body} {shlex.quote(f'{url}/v1/streams/{stream.name}/events?wait=1')}"
