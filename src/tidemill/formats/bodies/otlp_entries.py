"""The contents of an OTLP request, whether it came as JSON or as protobuf.

Ids are lower-case hex, times are nanoseconds since 1970 with 0 for none, values are JSON values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidemill.model.errors import InputError

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
Attributes = dict[str, Json]


@dataclass(frozen=True, slots=True)
class Resource:
    """The sender."""

    attributes: Attributes
    dropped_attributes: int
    schema_url: str


@dataclass(frozen=True, slots=True)
class OtlpScope:
    """The library of the sender that made the records."""

    name: str
    version: str
    attributes: Attributes
    dropped_attributes: int
    schema_url: str


@dataclass(frozen=True, slots=True)
class OtlpOrigin:
    """The resource and the scope that records of a request share."""

    resource: Resource
    scope: OtlpScope


@dataclass(frozen=True, slots=True)
class Log:
    time: int
    observed: int
    severity_number: int
    severity_text: str
    event_name: str
    body: Json
    attributes: Attributes
    dropped_attributes: int
    flags: int
    trace_id: str  # "": it belongs to no trace
    span_id: str


@dataclass(frozen=True, slots=True)
class SpanEvent:
    time: int
    name: str
    attributes: Attributes
    dropped_attributes: int


@dataclass(frozen=True, slots=True)
class SpanLink:
    trace_id: str
    span_id: str
    trace_state: str
    attributes: Attributes
    dropped_attributes: int
    flags: int


@dataclass(frozen=True, slots=True)
class Span:
    trace_id: str
    span_id: str
    parent_span_id: str  # "": it is the root of its trace
    trace_state: str
    flags: int
    name: str
    kind: int
    start: int
    end: int
    attributes: Attributes
    dropped_attributes: int
    events: tuple[SpanEvent, ...]
    dropped_events: int
    links: tuple[SpanLink, ...]
    dropped_links: int
    status_code: int
    status_message: str


Entries = Iterator[tuple[OtlpOrigin, Log | Span | InputError]]
"""Each record with its origin; an error in the place of one that cannot be read, the rest goes on."""
