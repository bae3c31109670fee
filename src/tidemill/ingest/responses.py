"""Checks that a response is complete: all of it can be parsed, or nothing of it is used.

It reads the bytes of one file. An error page of a proxy is not a response, nor is one that was cut off.
"""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

from tidemill.config import Stream
from tidemill.ingest.sniff import by_name
from tidemill.model.slices import Codec, Format


def trouble_with_response(path: Path, stream: Stream) -> str | None:
    """Why a response cannot be used; None if it can. Only text is checked: columnar files are checked when
    they land."""
    named, codec = by_name(path.name)
    format_ = named if stream.format == "auto" else Format(stream.format)
    if format_ not in (Format.JSON, Format.NDJSON):
        return None
    try:
        content = _content(path, codec)
        if format_ is Format.JSON:
            return _trouble_with_document(content, stream)
        _parse_lines(content)
    except (ValueError, RecursionError, OSError, EOFError) as error:
        return f"cannot be parsed as a whole: {str(error).splitlines()[0]}"
    return None


def _content(path: Path, codec: Codec) -> bytes:
    content = path.read_bytes()
    if codec is Codec.GZIP:
        return gzip.decompress(content)
    if codec is Codec.ZSTD:
        import pyarrow as pa

        with pa.CompressedInputStream(pa.BufferReader(content), "zstd") as stream:
            return bytes(stream.read())
    return content


def _parse_lines(content: bytes) -> None:
    for line in io.BytesIO(content):
        if line.strip():
            json.loads(line)


def _trouble_with_document(content: bytes, stream: Stream) -> str | None:
    found: object = json.loads(content)
    path = stream.json_rows.path
    for key in path.split(".") if path else ():
        found = found.get(key) if isinstance(found, dict) else None
    if isinstance(found, list) or (isinstance(found, dict) and not path and not stream.json_rows.columns):
        return None
    return f"has no array of records at {path}" if path else "is not an array of records"
