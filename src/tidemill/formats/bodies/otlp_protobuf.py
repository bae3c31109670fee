"""Reads OTLP requests in protobuf, as the same entries that JSON gives.

A message that cannot be decoded refuses the request; an id of a wrong length refuses only its record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as ResourceMessage
from opentelemetry.proto.trace.v1 import trace_pb2

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
from tidemill.formats.bodies.otlp_values import Depth, base64_of, id_of, number, wrong
from tidemill.model.errors import InputError

Request = TypeVar("Request", ExportLogsServiceRequest, ExportTraceServiceRequest)
Record = TypeVar("Record", LogRecord, trace_pb2.Span)


def read_protobuf(content: bytes, signal: str, depth: Depth) -> Entries:
    """The records of an ExportLogsServiceRequest or ExportTraceServiceRequest."""
    return _logs(content, depth) if signal == "logs" else _spans(content, depth)


def _logs(content: bytes, depth: Depth) -> Entries:
    for group in _decoded(ExportLogsServiceRequest(), content).resource_logs:
        resource = _resource(group.resource, group.schema_url, depth)
        for part in group.scope_logs:
            origin = OtlpOrigin(resource, _scope(part.scope, part.schema_url, depth))
            for record in part.log_records:
                yield origin, _entry(record, _log, depth)


def _spans(content: bytes, depth: Depth) -> Entries:
    for group in _decoded(ExportTraceServiceRequest(), content).resource_spans:
        resource = _resource(group.resource, group.schema_url, depth)
        for part in group.scope_spans:
            origin = OtlpOrigin(resource, _scope(part.scope, part.schema_url, depth))
            for record in part.spans:
                yield origin, _entry(record, _span, depth)


def _decoded(request: Request, content: bytes) -> Request:
    try:
        request.ParseFromString(content)
    except DecodeError:
        raise wrong(
            "the body is not the expected protobuf message",
            f"send an {type(request).__name__} of OTLP 1.x, and say application/json if it is JSON",
        ) from None
    return request


def _entry(
    record: Record, read: Callable[[Record, Depth], Log | Span], depth: Depth
) -> Log | Span | InputError:
    try:
        return read(record, depth)
    except InputError as error:
        return error


def _resource(message: ResourceMessage, schema_url: str, depth: Depth) -> Resource:
    return Resource(_pairs(message.attributes, depth, 1), message.dropped_attributes_count, schema_url)


def _scope(message: InstrumentationScope, schema_url: str, depth: Depth) -> OtlpScope:
    return OtlpScope(
        name=message.name,
        version=message.version,
        attributes=_pairs(message.attributes, depth, 1),
        dropped_attributes=message.dropped_attributes_count,
        schema_url=schema_url,
    )


def _log(record: LogRecord, depth: Depth) -> Log:
    return Log(
        time=record.time_unix_nano,
        observed=record.observed_time_unix_nano,
        severity_number=int(record.severity_number),
        severity_text=record.severity_text,
        event_name=record.event_name,
        body=_any(record.body, depth, 1),
        attributes=_pairs(record.attributes, depth, 1),
        dropped_attributes=record.dropped_attributes_count,
        flags=record.flags,
        trace_id=id_of(record.trace_id, 16, "traceId"),
        span_id=id_of(record.span_id, 8, "spanId"),
    )


def _span(span: trace_pb2.Span, depth: Depth) -> Span:
    return Span(
        trace_id=id_of(span.trace_id, 16, "traceId"),
        span_id=id_of(span.span_id, 8, "spanId"),
        parent_span_id=id_of(span.parent_span_id, 8, "parentSpanId"),
        trace_state=span.trace_state,
        flags=span.flags,
        name=span.name,
        kind=int(span.kind),
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        attributes=_pairs(span.attributes, depth, 1),
        dropped_attributes=span.dropped_attributes_count,
        events=tuple(_event(one, depth) for one in span.events),
        dropped_events=span.dropped_events_count,
        links=tuple(_link(one, depth) for one in span.links),
        dropped_links=span.dropped_links_count,
        status_code=int(span.status.code),
        status_message=span.status.message,
    )


def _event(event: trace_pb2.Span.Event, depth: Depth) -> SpanEvent:
    return SpanEvent(
        time=event.time_unix_nano,
        name=event.name,
        attributes=_pairs(event.attributes, depth, 1),
        dropped_attributes=event.dropped_attributes_count,
    )


def _link(link: trace_pb2.Span.Link, depth: Depth) -> SpanLink:
    return SpanLink(
        trace_id=id_of(link.trace_id, 16, "traceId"),
        span_id=id_of(link.span_id, 8, "spanId"),
        trace_state=link.trace_state,
        attributes=_pairs(link.attributes, depth, 1),
        dropped_attributes=link.dropped_attributes_count,
        flags=link.flags,
    )


def _pairs(pairs: Iterable[KeyValue], depth: Depth, nested: int) -> Attributes:
    return {pair.key: _any(pair.value, depth, nested) for pair in pairs}


def _any(value: AnyValue, depth: Depth, nested: int) -> Json:
    kind = value.WhichOneof("value")
    if kind in _PLAIN:
        plain: Json = getattr(value, kind)
        return plain
    depth.check(nested)
    if kind == "double_value":
        return number(value.double_value)
    if kind == "bytes_value":
        return base64_of(value.bytes_value)
    if kind == "array_value":
        return [_any(one, depth, nested + 1) for one in value.array_value.values]
    if kind == "kvlist_value":
        return _pairs(value.kvlist_value.values, depth, nested + 1)
    return None  # not set, or a type that only profiles use


_PLAIN: Final = frozenset({"string_value", "bool_value", "int_value"})
