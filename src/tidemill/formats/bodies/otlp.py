"""OTLP/HTTP: reads logs and traces in JSON or protobuf as a submission to a stream, and makes the response.

A record that cannot be an event is rejected alone, as the protocol says; the others are accepted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import orjson
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from tidemill.config import Stream
from tidemill.config.gateway import Requests
from tidemill.formats.bodies.decompress import check_size
from tidemill.formats.bodies.json_bodies import ndjson_lines
from tidemill.formats.bodies.limits import check_events
from tidemill.formats.bodies.otlp_json import read_json
from tidemill.formats.bodies.otlp_protobuf import read_protobuf
from tidemill.formats.bodies.otlp_records import Rendering
from tidemill.formats.bodies.otlp_values import Depth
from tidemill.formats.bodies.rendering import check_filled
from tidemill.formats.bodies.tenancy import check_stream
from tidemill.model.errors import InputError, MediaTypeError, TooLargeError
from tidemill.model.gateway import Submission

Media = Literal["json", "protobuf"]
Signal = Literal["logs", "traces"]

OTLP_MEDIA: Final[dict[str, Media]] = {"application/json": "json", "application/x-protobuf": "protobuf"}
OTLP_TYPES: Final = {media: name for name, media in OTLP_MEDIA.items()}  # Content-Type of a response
REASONS: Final = 3  # how many rejected records a response explains
_ENTRY_NAMES: Final = {"logs": "log record", "traces": "span"}


@dataclass(frozen=True, slots=True)
class OtlpRead:
    """What a request contains."""

    submission: Submission | None  # None: nothing to store
    rejected: int
    message: str  # why; "" if nothing was


def otlp_media(content_type: str | None) -> Media:
    """The encoding that a Content-Type names; MediaTypeError if OTLP does not know it."""
    name = (content_type or "").partition(";")[0].strip().lower()
    if name not in OTLP_MEDIA:
        problem = (
            f"a body of type {name[:80]!r} is no OTLP"
            if name
            else "the request does not say what its body is"
        )
        raise MediaTypeError(problem, where="Content-Type", hint=f"send {' or '.join(OTLP_MEDIA)}")
    return OTLP_MEDIA[name]


def read_otlp(
    content: bytes,
    media: Media,
    signal: Signal,
    stream: Stream,
    limits: Requests,
    tenant: str | None,
    source: str,
) -> OtlpRead:
    """The records of a decompressed body for a stream, and how many of them cannot be events."""
    check_stream(stream, tenant)
    check_filled(stream)
    check_size(content, limits.body)
    depth, rendering = Depth(limits), Rendering(stream, tenant)
    entries = (read_json if media == "json" else read_protobuf)(content, signal, depth)
    lines: list[bytes] = []
    reasons: list[str] = []
    size = rejected = 0
    for origin, entry in entries:
        try:
            if isinstance(entry, InputError):
                raise entry
            made = rendering.rendered(origin, entry, depth.position)
        except InputError as error:
            rejected += 1
            if rejected <= REASONS:
                reasons.append(f"{_ENTRY_NAMES[signal]} {depth.position + 1}: {error.message} ({error.hint})")
        else:
            lines.append(made)
            size += len(made)
        depth.position += 1
        check_events(depth.position, limits)
        _check_made(size, limits)
    submission = None
    if lines:
        made, records = ndjson_lines(b"".join(lines), limits)
        submission = Submission(stream.name, source, made, records, tenant=tenant)
    return OtlpRead(submission, rejected, _message(signal, rejected, depth.position, reasons))


def _check_made(size: int, limits: Requests) -> None:
    """Limit the total size: a resource is written once in a request, but into each of its events."""
    if size > limits.body:
        raise TooLargeError(
            f"the events, each with its resource, come to more than {limits.body} bytes",
            where="body",
            hint="send them in several requests, or allow more with gateway.requests.body",
        )


def _message(signal: Signal, rejected: int, of: int, reasons: list[str]) -> str:
    if not rejected:
        return ""
    more = ["…"] if rejected > len(reasons) else []
    return f"rejected {rejected} of {of} {_ENTRY_NAMES[signal]}s; " + "; ".join([*reasons, *more])


def otlp_answer(signal: Signal, media: Media, rejected: int, message: str) -> bytes:
    """The Export…ServiceResponse to a request that was accepted, at least in part."""
    if media == "json":
        if not rejected and not message:
            return b"{}"
        key = "rejectedLogRecords" if signal == "logs" else "rejectedSpans"
        return orjson.dumps({"partialSuccess": {key: str(rejected), "errorMessage": message}})
    if not rejected and not message:
        return b""
    if signal == "logs":
        logs = ExportLogsServiceResponse()
        logs.partial_success.rejected_log_records = rejected
        logs.partial_success.error_message = message
        return bytes(logs.SerializeToString())
    traces = ExportTraceServiceResponse()
    traces.partial_success.rejected_spans = rejected
    traces.partial_success.error_message = message
    return bytes(traces.SerializeToString())


def otlp_status(media: Media, code: int, message: str) -> bytes:
    """A google.rpc.Status: the response to a request that was refused as a whole."""
    if media == "json":
        return orjson.dumps({"code": code, "message": message})
    text = message.encode("utf-8", "backslashreplace")
    message_field = b"\x12" + _varint(len(text)) + text if text else b""
    return (b"\x08" + _varint(code) if code else b"") + message_field


def _varint(number: int) -> bytes:
    """A number in protobuf's encoding: seven bits a byte, least significant first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
