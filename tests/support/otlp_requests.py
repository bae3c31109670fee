"""OTLP requests for tests: protobuf messages, and the same as the JSON that the OTLP specification has."""

from __future__ import annotations

import base64
from pathlib import Path

import orjson
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from tidemill import eventtime
from tidemill.config import Stream, parse_project
from tidemill.config.gateway import Requests
from tidemill.formats.bodies.otlp import Media, OtlpRead, Signal, read_otlp

START = 1_705_327_200_000_000_123  # 2024-01-15T14:00:00.000000123Z
TRACE = bytes(range(1, 17))
SPAN = bytes(range(1, 9))

PROJECT = """
version: 1
streams:
  logs:
    schema: {event_id: string, ts: string, event_type: string, tenant: string}
    event_time: {column: ts, type: iso8601}
    identity: event_id
    tenant: {column: tenant}
"""


def stream_of(text: str = PROJECT, name: str = "logs") -> Stream:
    return parse_project(text, Path("tidemill.yaml"), eventtime.registered(), {}).streams[name]


def any_value(value: object) -> AnyValue:
    made = AnyValue()
    match value:
        case None:
            pass
        case bool():
            made.bool_value = value
        case int():
            made.int_value = value
        case float():
            made.double_value = value
        case str():
            made.string_value = value
        case bytes():
            made.bytes_value = value
        case list():
            made.array_value.SetInParent()
            made.array_value.values.extend(map(any_value, value))
        case dict():
            made.kvlist_value.SetInParent()
            made.kvlist_value.values.extend(pairs(value))
    return made


def pairs(attributes: dict[str, object]) -> list[KeyValue]:
    return [KeyValue(key=key, value=any_value(value)) for key, value in attributes.items()]


def logs_request(*records: dict[str, object], resource: dict[str, object] | None = None) -> Message:
    """Each record as the fields of a LogRecord, its `attributes` and `body` as plain values."""
    request = ExportLogsServiceRequest()
    group = request.resource_logs.add()
    group.resource.attributes.extend(pairs({"service.name": "shop"} if resource is None else resource))
    part = group.scope_logs.add()
    part.scope.name = "lib"
    for record in records:
        fields = dict(record)
        attributes, body = fields.pop("attributes", {}), fields.pop("body", None)
        made = part.log_records.add(**fields)
        made.attributes.extend(pairs(attributes))
        if body is not None:
            made.body.CopyFrom(any_value(body))
    return request


def traces_request(*spans: dict[str, object], resource: dict[str, object] | None = None) -> Message:
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    group.resource.attributes.extend(pairs({"service.name": "shop"} if resource is None else resource))
    part = group.scope_spans.add()
    for span in spans:
        fields = {"trace_id": TRACE, "span_id": SPAN, "start_time_unix_nano": START, **span}
        attributes = fields.pop("attributes", {})
        part.spans.add(**fields).attributes.extend(pairs(attributes))
    return request


def as_json(request: Message) -> bytes:
    """Protobuf's own JSON, with ids in hex and enums as numbers: what OTLP has of its own."""
    return orjson.dumps(_hex_ids(MessageToDict(request, use_integers_for_enums=True)))


def _hex_ids(value: object) -> object:
    if isinstance(value, list):
        return [_hex_ids(one) for one in value]
    if not isinstance(value, dict):
        return value
    ids = ("traceId", "spanId", "parentSpanId")
    return {key: base64.b64decode(one).hex() if key in ids else _hex_ids(one) for key, one in value.items()}


def signal_of(request: Message) -> Signal:
    return "logs" if isinstance(request, ExportLogsServiceRequest) else "traces"


def read(
    request: Message,
    media: Media = "protobuf",
    *,
    stream: Stream | None = None,
    limits: Requests | None = None,
    tenant: str | None = None,
) -> OtlpRead:
    content = as_json(request) if media == "json" else request.SerializeToString()
    return read_otlp(
        content, media, signal_of(request), stream or stream_of(), limits or Requests(), tenant, "otlp"
    )


def records(found: OtlpRead) -> list[dict[str, object]]:
    assert found.submission is not None
    lines = found.submission.content.splitlines()
    assert len(lines) == found.submission.records
    return [orjson.loads(line) for line in lines]
