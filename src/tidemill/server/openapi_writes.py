"""The OpenAPI schemas of the writing routes: requests, responses, media types and examples.

Descriptions only; tests compare them with real requests and responses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tidemill.server.problems import responses

_EVENT: Final = {
    "event_id": "7f0c1a",
    "ts": "2026-01-05T10:00:00Z",
    "event_type": "checkout",
    "tenant": "acme",
    "resource": {"service": "shop"},
    "attributes": {"http.status_code": 200},
}
_CLOUD: Final = {
    "specversion": "1.0",
    "id": "7f0c1a",
    "source": "/shop",
    "type": "checkout",
    "time": "2026-01-05T10:00:00Z",
    "data": {"amount": 12},
}
_ID: Final = "3f9c0d2b7a11-1f"
_SLICE: Final = "9d0f7c4c3f0f5b0e6a1f0d2b7a113f9c9d0f7c4c3f0f5b0e6a1f0d2b7a113f9c"
_OUTCOMES: Final = ["accepted", "duplicate", "conflict", "rejected", "unknown"]
_COUNTS: Final = {"accepted": 1}
_ACCEPTED: Final = {
    "index": 0,
    "event_id": "7f0c1a",
    "outcome": "accepted",
    "code": None,
    "detail": None,
    "content_hash": None,
    "accepted_hash": None,
}
_MAYBE: Final = {"type": ["string", "null"]}


def _object(required: Mapping[str, object], **optional: object) -> dict[str, object]:
    return {
        "type": "object",
        "required": list(required),
        "properties": {**required, **optional},
        "additionalProperties": False,
    }


SCHEMAS: Final[Mapping[str, Mapping[str, object]]] = {
    "Acknowledged": {
        "description": "The events are durable, and in a slice if `gateway.acknowledge` is `landed`; their "
        "outcomes can be requested by the ingestion id.",
        **_object(
            {
                "ingestion": {"type": "string"},
                "stream": {"type": "string"},
                "events": {"type": "integer", "minimum": 0},
                "status": {"type": "string", "enum": ["durable", "landed", "pending"]},
            }
        ),
    },
    "Outcome": {
        "description": "What the gate decided for one event; `index` is its position in the request, from 0.",
        **_object(
            {
                "index": {"type": "integer", "minimum": 0},
                "event_id": _MAYBE,
                "outcome": {"type": "string", "enum": _OUTCOMES},
                "code": {**_MAYBE, "description": "why it was not accepted"},
                "detail": _MAYBE,
                "content_hash": {**_MAYBE, "description": "of a conflict: of what was sent"},
                "accepted_hash": {**_MAYBE, "description": "and of what is accepted"},
            }
        ),
    },
    "Ingestion": {
        "description": "What became of one request.",
        **_object(
            {
                "ingestion": {"type": "string"},
                "stream": {"type": "string"},
                "status": {
                    "type": "string",
                    "enum": ["buffered", "landed", "decided", "failed", "retracted"],
                },
                "slice": _MAYBE,
                "window": _MAYBE,
                "events": {"type": "integer", "minimum": 0},
                "counts": {"type": ["object", "null"], "additionalProperties": {"type": "integer"}},
                "outcomes": {
                    "type": ["array", "null"],
                    "items": {"$ref": "#/components/schemas/Outcome"},
                },
            }
        ),
    },
    "Object": {
        "description": "An object that is in storage already, and the time that its events cover. Without a "
        "location: nothing happened in that time.",
        **_object(
            {
                "start": {"type": "string", "format": "date-time", "description": "inclusive"},
                "end": {"type": "string", "format": "date-time", "description": "exclusive"},
            },
            format={
                "type": ["string", "null"],
                "enum": ["auto", "ndjson", "json", "csv", "parquet", "arrow", None],
            },
            source=_MAYBE,
            metadata={"type": ["object", "null"], "additionalProperties": True},
            location={
                "type": ["string", "null"],
                "description": "a path, or file:///…, in gateway.objects",
            },
        ),
    },
    "Registered": {
        "description": "The slice that an object became.",
        **_object(
            {
                "slice": {"type": "string"},
                "stream": {"type": "string"},
                "new": {"type": "boolean", "description": "false: the same had landed before"},
                "status": {"type": "string", "enum": ["pending", "accepted", "failed", "retracted"]},
                "format": {"type": "string"},
                "bytes": {"type": "integer"},
                "start": {"type": "string"},
                "end": {"type": "string"},
                "source": {"type": "string"},
                "name": {"type": "string"},
            }
        ),
    },
}
EXAMPLES: Final[Mapping[str, object]] = {
    "Acknowledged": {"ingestion": _ID, "stream": "requests", "events": 1, "status": "durable"},
    "Ingestion": {
        "ingestion": _ID,
        "stream": "requests",
        "status": "decided",
        "slice": _SLICE,
        "window": "3f9c0d2b7a11-requests-1f",
        "events": 1,
        "counts": _COUNTS,
        "outcomes": [_ACCEPTED],
    },
    "Registered": {
        "slice": _SLICE,
        "stream": "requests",
        "new": True,
        "status": "pending",
        "format": "parquet",
        "bytes": 4711,
        "start": "2026-01-05T10:00:00Z",
        "end": "2026-01-05T11:00:00Z",
        "source": "storage",
        "name": "hour-10.parquet",
    },
}
_BINARY: Final = {"type": "string", "format": "binary"}
_ANY: Final = {"type": "object", "additionalProperties": True}
_EVENTS: Final[Mapping[str, Mapping[str, object]]] = {
    "application/json": {
        "schema": {"oneOf": [_ANY, {"type": "array", "items": _ANY, "minItems": 1}]},
        "examples": {
            "one": {"summary": "One event", "value": _EVENT},
            "several": {"summary": "Several", "value": [_EVENT]},
        },
    },
    "application/x-ndjson": {
        "schema": {"type": "string"},
        "example": '{"event_id":"7f0c1a","ts":"2026-01-05T10:00:00Z","event_type":"checkout"}\n',
    },
    "application/cloudevents+json": {"schema": _ANY, "example": _CLOUD},
    "application/cloudevents-batch+json": {
        "schema": {"type": "array", "items": _ANY, "minItems": 1},
        "example": [_CLOUD],
    },
    "application/vnd.apache.parquet": {"schema": _BINARY},
    "application/vnd.apache.arrow.stream": {"schema": _BINARY},
    "application/vnd.apache.arrow.file": {"schema": _BINARY},
}
STREAM: Final = {
    "name": "stream",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": "^[a-z][a-z0-9_]{0,62}$"},
    "example": "requests",
}
_ENCODING: Final = {
    "name": "Content-Encoding",
    "in": "header",
    "schema": {"type": "string", "enum": ["identity", "gzip", "zstd"]},
}
_SOURCE: Final = {
    "name": "source",
    "in": "query",
    "description": "whose watermark the events move",
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}$", "default": "http"},
}
_WAIT: Final = {
    "name": "wait",
    "in": "query",
    "description": "1: the answer comes once the gate has decided, or the time is up",
    "schema": {"type": "string", "enum": ["0", "1"], "default": "0"},
}
_BOUNDS: Final = [
    {
        "name": name,
        "in": "query",
        "description": f"{what} of the time that these events cover, as an instant with its offset from UTC",
        "schema": {"type": "string", "format": "date-time"},
    }
    for name, what in (("start", "the beginning"), ("end", "the end (exclusive)"))
]
_PREFER: Final = {
    "name": "Prefer",
    "in": "header",
    "description": "`wait`, or `wait=SECONDS`: the same as `wait=1`, for so long",
    "schema": {"type": "string"},
    "example": "wait=10",
}
_INGESTION: Final = {
    "name": "ingestion",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": "^[0-9a-f]{12}-[0-9a-f]{1,16}$"},
    "example": _ID,
}
_OUTCOMES_ASKED: Final = {
    "name": "outcomes",
    "in": "query",
    "description": "0: counts only",
    "schema": {"type": "string", "enum": ["0", "1"], "default": "1"},
}
_OBJECT: Final = {
    "location": "hour-10.parquet",
    "start": "2026-01-05T10:00:00Z",
    "end": "2026-01-05T11:00:00Z",
}
_LOCATION: Final = {
    "Location": {"schema": {"type": "string"}, "description": "where its outcome can be requested"}
}

POST_EVENTS: Final[dict[str, Any]] = {
    "parameters": [STREAM, _WAIT, _SOURCE, *_BOUNDS, _PREFER, _ENCODING],
    "requestBody": {"required": True, "content": _EVENTS},
}
GET_INGESTION: Final[dict[str, Any]] = {"parameters": [_INGESTION, _OUTCOMES_ASKED]}
POST_SLICE: Final[dict[str, Any]] = {
    "parameters": [STREAM],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/Object"}, "example": _OBJECT}
        },
    },
}


def otlp(signal: str) -> dict[str, Any]:
    """The requests of an OTLP route."""
    request = f"an Export{signal}ServiceRequest"
    return {
        "parameters": [_ENCODING],
        "requestBody": {
            "required": True,
            "content": {
                "application/x-protobuf": {"schema": {**_BINARY, "description": request}},
                "application/json": {"schema": {**_ANY, "description": f"{request}, in JSON"}, "example": {}},
            },
        },
    }


def otlp_result(signal: str) -> dict[int | str, dict[str, Any]]:
    """The responses of an OTLP route: errors as google.rpc.Status, if the encoding of the request is
    known."""
    answer = f"an Export{signal}ServiceResponse, with partial_success where something was left out"
    status = {"application/x-protobuf": {"schema": _BINARY}, "application/json": {"schema": _ANY}}
    found: dict[int | str, dict[str, Any]] = {
        200: {
            "description": f"It is durable: {answer}",
            "content": {
                "application/x-protobuf": {"schema": _BINARY},
                "application/json": {"schema": _ANY, "example": {"partialSuccess": {}}},
            },
        }
    }
    for code in (400, 401, 403, 404, 408, 413, 429, 500, 503):
        found[code] = {"description": "Refused: a google.rpc.Status", "content": status}
    other = responses(415)[415]  # for an unknown Content-Type or Content-Encoding
    found[415] = {**other, "content": {**status, **other["content"]}}
    return found


def shown(name: str, description: str, *, located: bool = False) -> dict[str, Any]:
    """A response of one of the shapes."""
    content = {"schema": {"$ref": f"#/components/schemas/{name}"}, "example": EXAMPLES[name]}
    found: dict[str, Any] = {"description": description, "content": {"application/json": content}}
    return {**found, "headers": _LOCATION} if located else found
