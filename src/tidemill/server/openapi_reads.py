"""The OpenAPI descriptions of the responses of reading routes: an example, and which keys may be missing.

Descriptions only; tests compare them with the responses.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

_KINDS: Final = ((bool, "boolean"), (str, "string"), (int, "integer"), (float, "number"), (list, "array"))


def shown(description: str, example: Mapping[str, object], *, maybe: Collection[str] = ()) -> dict[str, Any]:
    """The response that looks like `example`; `maybe`: keys that can be null, or left out for a tenant."""
    properties = {name: _schema(value, nullable=name in maybe) for name, value in example.items()}
    schema = {
        "type": "object",
        "required": [name for name in example if name not in maybe],
        "properties": properties,
    }
    return {
        "description": description,
        "content": {"application/json": {"schema": schema, "example": dict(example)}},
    }


def _schema(value: object, *, nullable: bool) -> dict[str, object]:
    kind = next((name for known, name in _KINDS if isinstance(value, known)), "object")
    found: dict[str, object] = {"type": [kind, "null"] if nullable else kind}
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        found["items"] = {"type": "object", "additionalProperties": True}
    return found


def taken(example: Mapping[str, object], *required: str, **properties: object) -> dict[str, Any]:
    """For `openapi_extra`: the JSON object that a route takes as its body."""
    schema = {
        "type": "object",
        "required": list(required),
        "properties": properties,
        "additionalProperties": False,
    }
    content = {"application/json": {"schema": schema, "example": dict(example)}}
    return {"requestBody": {"required": True, "content": content}}


START: Final = "2026-01-05T10:00:00Z"
END: Final = "2026-01-05T11:00:00Z"
SLICE: Final = "9d0f7c4c3f0f5b0e6a1f0d2b7a113f9c9d0f7c4c3f0f5b0e6a1f0d2b7a113f9c"
CURSOR: Final = "WyJ3aW5kb3dzIiwxNzY3NjA2NDAwMDAwMDAwXQ=="
STREAM: Final[Mapping[str, object]] = {
    "stream": "requests",
    "description": "requests to the shop",
    "keywords": ["http"],
    "source_links": [],
    "event_types": [],
    "fields": {"api": "string", "latency_ms": "decimal"},
    "metrics": [
        {
            "metric": "hits",
            "kind": "counter",
            "dimensions": ["api"],
            "values": ["count", "rate"],
            "of": [],
            "filter": None,
            "max_cardinality": None,
            "detail": "",
        }
    ],
    "windows": [],
    "tenants": {"names": ["acme", "globex"], "more": 0},
}
