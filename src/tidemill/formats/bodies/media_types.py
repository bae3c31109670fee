"""Reads the body of a request to a stream by its media type.

Media types that are not listed here are refused; the type of a body is never guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidemill.config import Stream
from tidemill.config.gateway import Requests
from tidemill.formats.bodies.cloudevents import BATCH, STRUCTURED, cloud_event_lines
from tidemill.formats.bodies.columnar_bodies import ARROW_FILE, ARROW_STREAM, PARQUET, columnar_rows
from tidemill.formats.bodies.decompress import check_size
from tidemill.formats.bodies.json_bodies import json_lines, ndjson_lines
from tidemill.formats.bodies.tenancy import check_stream, check_whole_stream, unnamed_lines
from tidemill.model.errors import InputError, MediaTypeError
from tidemill.model.gateway import Submission
from tidemill.model.slices import Format
from tidemill.model.time import Interval

JSON: Final = "application/json"
PLAIN_TYPES: Final[dict[str, Callable[[bytes, Requests], tuple[bytes, int]]]] = {
    JSON: json_lines,
    "application/x-ndjson": ndjson_lines,
    "application/ndjson": ndjson_lines,
    "application/jsonl": ndjson_lines,
}
CLOUD_TYPES: Final = (STRUCTURED, BATCH)
_COLUMNAR: Final = {PARQUET: Format.PARQUET, ARROW_STREAM: Format.ARROW, ARROW_FILE: Format.ARROW}
MEDIA_TYPES: Final = (*PLAIN_TYPES, *CLOUD_TYPES, *_COLUMNAR)
_CHARSETS: Final = ("utf-8", "utf8", "us-ascii")


def read_body(
    content: bytes,
    content_type: str | None,
    stream: Stream,
    limits: Requests,
    tenant: str | None,
    source: str,
    declared: Interval | None = None,
) -> Submission:
    """The submission in a decompressed body. If this raises, nothing of the body is stored. With declared
    bounds the body may hold no events: nothing happened between the bounds."""
    media = media_type(content_type)
    check_stream(stream, tenant)
    if declared is not None:
        check_whole_stream(stream, tenant)
    check_size(content, limits.body)
    if media in _COLUMNAR:
        records, unnamed = columnar_rows(content, media, stream, limits, tenant)
        _check_any(records, declared)
        return Submission(stream.name, source, content, records, _COLUMNAR[media], tenant, unnamed, declared)
    if media in CLOUD_TYPES:
        lines, records = cloud_event_lines(content, media, stream, limits, tenant)
    else:
        lines, records = PLAIN_TYPES[media](content, limits)
    _check_any(records, declared)
    unnamed = unnamed_lines(lines, stream, tenant)
    return Submission(stream.name, source, lines, records, tenant=tenant, unnamed=unnamed, declared=declared)


def media_type(content_type: str | None) -> str:
    """The one of `MEDIA_TYPES` that a Content-Type names; otherwise a MediaTypeError that lists them."""
    if content_type in MEDIA_TYPES:
        return content_type
    if content_type is None or not content_type.strip():
        raise _unread("the request has no Content-Type")
    name, *parameters = content_type.split(";")
    media = name.strip().lower()
    if media not in MEDIA_TYPES:
        raise _unread(f"a body of type {name.strip()[:80]!r} is not supported")
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        charset = value.strip().strip('"').lower()
        if key.strip().lower() == "charset" and charset not in _CHARSETS:
            raise MediaTypeError(
                f"a body in {charset[:40]!r} is not supported", where="Content-Type", hint="send it in utf-8"
            )
    return media


def warm() -> None:
    """Load or compile the kernels, so that the first request is as fast as the next."""
    limits = Requests()
    json_lines(b'[{"a":"b"}]', limits)
    ndjson_lines(b'{"a":"b"}\n\n', limits)


def _unread(message: str) -> MediaTypeError:
    return MediaTypeError(
        message, where="Content-Type", hint=f"set Content-Type to one of {', '.join(MEDIA_TYPES)}"
    )


def _check_any(records: int, declared: Interval | None) -> None:
    if not records and declared is None:
        raise InputError(
            "the body holds no events",
            where="body",
            hint="send at least one event; to declare that nothing happened, set start and end",
        )
