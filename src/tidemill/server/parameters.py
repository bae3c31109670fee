"""Parameters and headers of a request, checked by hand where speed matters; and the cursors of pages.

A value that is not understood is refused with the valid ones, never ignored. A cursor is an offset and no
secret; one that was changed, or belongs to another list, is refused.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import parse_qsl

from fastapi import Query
from starlette.requests import Request
from starlette.routing import compile_path

from tidemill.model.errors import InputError
from tidemill.model.suggestions import choices
from tidemill.model.time import SECOND

if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCE: Final = "http"  # of events whose sender names none
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}")
_SWITCH: Final = {"1": True, "0": False, "true": True, "false": False}
MOST: Final = 1_000
_LONGEST: Final = 1_000  # characters of a cursor

Limit = Annotated[int, Query(ge=1, le=MOST, description="rows of a page")]
Cursor = Annotated[
    str | None, Query(max_length=_LONGEST, description="of the page before; leave it out for the first")
]


def parameters(request: Request) -> Mapping[str, str]:
    query: bytes = request.scope["query_string"]
    if not query:
        return {}
    try:
        return dict(parse_qsl(query.decode("ascii"), keep_blank_values=True, max_num_fields=100))
    except ValueError:
        raise InputError("the query of the address cannot be read", hint="NAME=VALUE&NAME=VALUE") from None


def check_parameters(request: Request) -> None:
    """InputError if the address has a parameter that its route does not have in the OpenAPI document."""
    if not request.scope["query_string"]:
        return
    known = _known_parameters(request)
    for name in parameters(request):
        if name not in known:
            raise InputError(
                f"there is no parameter {name[:40]!r} here",
                where=name[:40],
                hint=choices(name[:40], sorted(known), "parameters"),
            )


def _known_parameters(request: Request) -> frozenset[str]:
    """The parameters of the matched route, or of the path in the document that fits the address."""
    paths = request.app.openapi()["paths"]
    format_ = getattr(request.scope.get("route"), "path_format", None)
    found = [format_] if format_ in paths else [path for path in paths if _matches(path, request)]
    method = request.method.lower()
    return frozenset().union(*(_query_names(paths[path].get(method, {})) for path in found))


@cache
def _pattern(path: str) -> re.Pattern[str]:
    return compile_path(path)[0]


def _matches(path: str, request: Request) -> bool:
    return _pattern(path).match(request.url.path) is not None


def _query_names(operation: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(one["name"] for one in operation.get("parameters", ()) if one["in"] == "query")


def switch(values: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = values.get(name)
    if text is None:
        return default
    found = _SWITCH.get(text)
    if found is None:
        raise InputError(f"{name} is {text[:40]!r}", where=name, hint="use 1 or 0")
    return found


def source_name(text: str | None, default: str = SOURCE) -> str:
    """A valid source name."""
    if text is None:
        return default
    if _NAME.fullmatch(text) is None:
        raise InputError(
            f"{text[:100]!r} cannot be the name of a source",
            where="source",
            hint="use 1 to 100 letters, digits, _ . : or -, beginning with a letter or digit",
        )
    return text


def waiting_time(request: Request, values: Mapping[str, str], longest: int) -> float | None:
    """Seconds to wait for outcomes, by `wait=1` or `Prefer: wait[=SECONDS]`; None: not at all."""
    most = longest / SECOND
    question = switch(values, "wait", default=False) if "wait" in values else None
    preferred = _preferred(request, most)
    if question is None:
        return preferred
    return (preferred if preferred is not None else most) if question else None


def _preferred(request: Request, most: float) -> float | None:
    """RFC 7240: what is not understood is ignored."""
    if "prefer" not in request.headers:
        return None
    for text in request.headers.getlist("prefer"):
        for preference in text.split(","):
            name, equals, value = preference.partition(";")[0].partition("=")
            if name.strip().lower() != "wait":
                continue
            if not equals:
                return most
            try:
                seconds = float(value.strip().strip('"'))
            except ValueError:
                continue
            if math.isfinite(seconds) and seconds >= 0:
                return min(seconds, most)
    return None


def cursor_of(of: str, *position: int | str) -> str:
    """The cursor after a position of the list `of`."""
    return base64.urlsafe_b64encode(json.dumps([of, *position], separators=(",", ":")).encode()).decode()


def position_of(of: str, cursor: str, *kinds: type) -> tuple[int | str, ...]:
    """The position of a cursor of the list `of`, with values of these kinds."""
    try:
        values = json.loads(base64.urlsafe_b64decode(cursor.encode("ascii")))
    except (ValueError, RecursionError, binascii.Error):
        values = None
    if (
        not isinstance(values, list)
        or len(values) != len(kinds) + 1
        or values[0] != of
        or any(type(value) is not kind for value, kind in zip(values[1:], kinds, strict=True))
        or any(isinstance(value, int) and abs(value) >= 1 << 63 for value in values)
    ):
        raise InputError(
            "this is not a cursor of this list",
            where="cursor",
            hint="leave it out to begin with the first page",
        )
    return tuple(values[1:])
