"""Logs and spans as records of a stream, with the columns that the stream declares.

The same log or span always gives the same record and the same id, also when it is sent again.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

import orjson

from tidemill.config import Stream
from tidemill.formats.bodies.otlp_entries import (
    Log,
    OtlpOrigin,
    OtlpScope,
    Resource,
    Span,
    SpanEvent,
    SpanLink,
)
from tidemill.formats.bodies.otlp_values import wrong
from tidemill.formats.bodies.rendering import line, put, spelled
from tidemill.formats.bodies.tenancy import DEFAULT_TENANT, other_tenant
from tidemill.formats.json_values import at

TENANT_ATTRIBUTES: Final = ("tenant.id", "tenant")  # attributes of a resource that name the tenant
KINDS: Final = ("unspecified", "internal", "server", "client", "producer", "consumer")
OUTCOMES: Final = ("unset", "ok", "error")
SEVERITIES: Final = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")  # four numbers each, beginning at 1

Members = dict[str, object]


@dataclass(slots=True)
class Rendering:
    """Makes the records of one request, and remembers which logs it contained, to number equal ones."""

    stream: Stream
    tenant: str | None  # the tenant of the token; None: the resource may name one
    _seen: Counter[str] = field(default_factory=Counter)
    _origin: OtlpOrigin | None = None
    _shared: Members = field(default_factory=dict)

    def rendered(self, origin: OtlpOrigin, entry: Log | Span, position: int) -> bytes:
        """A line of JSON; InputError for an entry that cannot be an event."""
        if origin is not self._origin:
            self._origin, self._shared = origin, self._of(origin)
        if isinstance(entry, Log):
            return self._log(origin, entry, position)
        return self._span(origin, entry, position)

    def _log(self, origin: OtlpOrigin, log: Log, position: int) -> bytes:
        time = log.time or log.observed
        if not time:
            raise wrong("it has neither a time nor an observed time", "set timeUnixNano")
        members = {**_log_members(log), **self._shared}
        # Made from the exact time, whatever precision the declared type keeps.
        digest = sha256(orjson.dumps([time, members], option=orjson.OPT_SORT_KEYS)).hexdigest()
        self._seen[digest] += 1
        again = self._seen[digest]
        event_id = digest if again == 1 else f"{digest}#{again}"
        return self._line(origin, position, event_id, time, log.event_name or "log", members)

    def _span(self, origin: OtlpOrigin, span: Span, position: int) -> bytes:
        if not span.trace_id or not span.span_id:
            raise wrong("a span needs a trace id and a span id", "send 16 and 8 bytes, not all of them zero")
        if not span.start:
            raise wrong("it has no start time", "set startTimeUnixNano")
        members = {**_span_members(span), **self._shared}
        return self._line(origin, position, f"{span.trace_id}-{span.span_id}", span.start, "span", members)

    def _line(
        self, origin: OtlpOrigin, position: int, event_id: str, nanos: int, type: str, members: Members
    ) -> bytes:
        stream, (micros, rest) = self.stream, divmod(nanos, 1000)
        identity = stream.identity or ("event_id",)
        if len(identity) > 1:
            _check_identity(members, identity)
            identity = ("event_id",)
        filled: Members = {
            identity[0]: event_id,
            stream.time_column or "ts": spelled(micros, stream, rest),
            stream.event_type.column if stream.event_type is not None else "event_type": type,
        }
        self._check_resource(origin.resource, position)
        if (column := stream.tenant.column) is not None:
            filled[column] = self._tenant(origin, members, column, position)
        return line(_with(filled, members))

    def _check_resource(self, resource: Resource, position: int) -> None:
        """Raise unless the resource names the token's tenant or none, whether or not the stream uses it."""
        found = _tenant_attribute(resource)
        if self.tenant is not None and found is not None and found[1] != self.tenant:
            raise other_tenant(f"resource attribute {found[0]}", found[1], self.tenant, position)

    def _tenant(self, origin: OtlpOrigin, members: Members, column: str, position: int) -> str:
        if self.tenant is None:
            found = _tenant_attribute(origin.resource)
            return found[1] if found is not None else DEFAULT_TENANT
        named = at(members, column)
        if named is not None and named != self.tenant:
            raise other_tenant(column, str(named), self.tenant, position)
        return self.tenant

    def _of(self, origin: OtlpOrigin) -> Members:
        """The members that all records of an origin share; encoded once, unless a declared column is
        inside."""
        members: Members = {"resource": _resource(origin.resource), "scope": _scope(origin.scope)}
        members = {key: value for key, value in members.items() if value}
        if any("." in column for column in _declared(self.stream)):
            return members
        written = {key: orjson.dumps(value, option=orjson.OPT_SORT_KEYS) for key, value in members.items()}
        return {key: orjson.Fragment(value) for key, value in written.items()}


def _declared(stream: Stream) -> tuple[str, ...]:
    type = stream.event_type.column if stream.event_type is not None else None
    columns = (*stream.identity, stream.time_column, type, stream.tenant.column)
    return tuple(column for column in columns if column is not None)


def _with(filled: Members, members: Members) -> Members:
    """The record with the filled-in values; members that the sender set are never overwritten."""
    if not any("." in column for column in filled):
        return {**filled, **members}
    record = deepcopy(members)
    for column, value in filled.items():
        if at(record, column) is None:
            put(record, column, value)
    return record


def _check_identity(members: Members, identity: tuple[str, ...]) -> None:
    missing = [column for column in identity if at(members, column) is None]
    if missing:
        raise wrong(
            f"it has no {missing[0]}, which is part of the identity of the stream",
            "declare identity: event_id, or columns that every record has, such as [trace_id, span_id]",
        )


def _tenant_attribute(resource: Resource) -> tuple[str, str] | None:
    """The attribute that names a tenant, and the name; None if there is none."""
    for key in TENANT_ATTRIBUTES:
        named = resource.attributes.get(key)
        if isinstance(named, str) and named:
            return key, named
    return None


def _resource(of: Resource) -> Members:
    service = of.attributes.get("service.name")
    return _present(
        service=service if isinstance(service, str) else None,
        attributes=of.attributes,
        dropped_attributes=of.dropped_attributes,
        schema_url=of.schema_url,
    )


def _scope(of: OtlpScope) -> Members:
    return _present(
        name=of.name,
        version=of.version,
        attributes=of.attributes,
        dropped_attributes=of.dropped_attributes,
        schema_url=of.schema_url,
    )


def _log_members(log: Log) -> Members:
    return {
        "severity": _severity(log),
        **({} if log.body is None else {"body": log.body}),
        **_present(
            severity_number=log.severity_number,
            severity_text=log.severity_text,
            trace_id=log.trace_id,
            span_id=log.span_id,
            flags=log.flags,
            observed_ns=log.observed,
            attributes=log.attributes,
            dropped_attributes=log.dropped_attributes,
        ),
    }


def _severity(log: Log) -> str:
    """One of six names, by the number where there is one."""
    if 1 <= log.severity_number <= 4 * len(SEVERITIES):
        return SEVERITIES[(log.severity_number - 1) // 4]
    return log.severity_text.upper() or "UNSPECIFIED"


def _span_members(span: Span) -> Members:
    return {
        "name": span.name,
        "kind": _enum_name(span.kind, KINDS),
        **({"duration_ns": span.end - span.start} if span.end else {}),
        "outcome": _enum_name(span.status_code, OUTCOMES),
        **_present(
            outcome_message=span.status_message,
            trace_id=span.trace_id,
            span_id=span.span_id,
            parent_span_id=span.parent_span_id,
            trace_state=span.trace_state,
            flags=span.flags,
            attributes=span.attributes,
            dropped_attributes=span.dropped_attributes,
            events=[_span_event(event) for event in span.events],
            dropped_events=span.dropped_events,
            links=[_link(link) for link in span.links],
            dropped_links=span.dropped_links,
        ),
    }


def _enum_name(number: int, words: tuple[str, ...]) -> str:
    """The name of an enum value; an unknown number is kept as a number."""
    return words[number] if 0 <= number < len(words) else str(number)


def _span_event(event: SpanEvent) -> Members:
    return _present(
        name=event.name,
        time_ns=event.time,
        attributes=event.attributes,
        dropped_attributes=event.dropped_attributes,
    )


def _link(link: SpanLink) -> Members:
    return _present(
        trace_id=link.trace_id,
        span_id=link.span_id,
        trace_state=link.trace_state,
        flags=link.flags,
        attributes=link.attributes,
        dropped_attributes=link.dropped_attributes,
    )


def _present(**members: object) -> Members:
    """Without what protobuf cannot tell from absent: empty texts, zeros, and what holds nothing."""
    return {key: value for key, value in members.items() if value}
