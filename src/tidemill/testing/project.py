"""An oracle's stream as a section of `tidemill.yaml`, so that a test can run both from one declaration.

It only spells; whether the configuration takes it is for the configuration to say.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from tidemill.testing.stream import OracleStream


def section(stream: OracleStream, *, gate: str = "event_id") -> dict[str, object]:
    """The section of one stream, as plain values."""
    column = stream.tenant_column
    found: dict[str, object] = {
        "schema": {
            name: {"type": field.type, "required": field.required}
            | ({"scale": field.scale} if field.scale is not None else {})
            for name, field in stream.fields.items()
        },
        "event_time": _event_time(stream),
        "identity": list(stream.identity),
        "gate": gate,
        "tenant": {"column": column} if column else {"value": stream.tenant_value},
        "skew": {"past": _duration(stream.skew_past), "future": _duration(stream.skew_future)},
        "metrics": {
            name: {"kind": "counter", "dimensions": list(m.dimensions), "measures": list(m.measures)}
            for name, m in stream.metrics.items()
        },
    }
    if stream.type_column is not None:
        found["event_type"] = {"column": stream.type_column, "allowed": sorted(stream.allowed_types)}
    if stream.messages is not None:
        column, _, name, body = stream.messages
        found["messages"] = {"column": column, "stream": name} | ({"body": body} if body else {})
    return found


def project_text(streams: Iterable[OracleStream], **engine: int | str) -> str:
    """A `tidemill.yaml` (JSON is YAML). Limits on a record are the project's, so the streams must agree."""
    listed = list(streams)
    limits = {(stream.record_bytes, stream.depth) for stream in listed}
    assert len(limits) == 1, limits
    record_bytes, depth = limits.pop()
    return json.dumps(
        {
            "version": 1,
            "engine": engine,
            "limits": {"record_bytes": record_bytes, "depth": depth},
            "streams": {stream.name: section(stream) for stream in listed},
        },
        indent=1,
    )


def _event_time(stream: OracleStream) -> dict[str, object]:
    tolerance = _duration(stream.late_tolerance)
    if stream.time_column is None:
        return {"mode": "processing", "late_tolerance": tolerance}
    found: dict[str, object] = {
        "column": stream.time_column,
        "type": stream.time_type,
        "late_tolerance": tolerance,
        "idle_timeout": _duration(stream.idle_timeout),
    }
    if stream.max_buffer_bytes is not None:
        found["max_buffer_bytes"] = stream.max_buffer_bytes
    return found


def _duration(us: int | None) -> str | None:
    return None if us is None else f"{us}us"
