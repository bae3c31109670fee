"""The OpenAPI document: what FastAPI knows of the routes, and what is true of all of them.

Every route of /v1 may require a token and may refuse: that is described here once, not at each route.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from tidemill.server.openapi_writes import EXAMPLES, SCHEMAS
from tidemill.server.problems import SCHEMA, responses

_OPEN: Final = ("/healthz", "/readyz")
_ANYWHERE: Final = (400, 431, 500)
_ALWAYS: Final = (*_ANYWHERE, 401, 403, 429, 503)
_SCHEMES: Final = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of `tidemill token create`. Without tokens this machine only is served.",
    }
}
TAGS: Final = [
    {"name": "events", "description": "Events come in, and what became of them."},
    {"name": "otlp", "description": "OpenTelemetry logs and traces over HTTP."},
    {"name": "reading", "description": "Streams, slices, windows, datasets, answers."},
    {"name": "operating", "description": "Windows built again, records decided again."},
    {"name": "health", "description": "For those who watch the server."},
]
_METHODS: Final = frozenset({"get", "put", "post", "delete", "patch", "head", "options"})


def describe(app: FastAPI) -> None:
    """Complete the OpenAPI document of `app`."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    found = get_openapi(
        title=app.title, version=app.version, summary=app.summary, routes=app.routes, tags=TAGS
    )
    components = found.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for made in ("HTTPValidationError", "ValidationError"):
        schemas.pop(made, None)
    schemas |= {"Problem": SCHEMA, **SCHEMAS}
    components["securitySchemes"] = _SCHEMES
    for path, item in found["paths"].items():
        for method, operation in item.items():
            if method in _METHODS:
                _complete(operation, open_=path in _OPEN)
    return found


def _complete(operation: dict[str, Any], *, open_: bool) -> None:
    known_responses: dict[str, Any] = operation["responses"]
    for response in known_responses.values():
        _show(response)
    if "HTTPValidationError" in str(
        known_responses.get("422")
    ):  # FastAPI's own: here such a request is a 400
        del known_responses["422"]
    if not open_:
        operation["security"] = [{"token": []}, {}]
    for status, response in responses(*(_ANYWHERE if open_ else _ALWAYS)).items():
        known_responses.setdefault(str(status), response)
    operation["responses"] = dict(sorted(known_responses.items()))


def _show(response: dict[str, Any]) -> None:
    """Examples once more: FastAPI leaves out of them what is null."""
    for media in response.get("content", {}).values():
        name = media.get("schema", {}).get("$ref", "").rpartition("/")[2]
        if name in EXAMPLES:
            media["example"] = EXAMPLES[name]
