"""The JSON body of a request: one object with exact numbers and known keys.

A value that is not understood is refused, never ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Final

from starlette.requests import Request

from tidemill.formats.json_values import unique_members
from tidemill.model.errors import InputError, MediaTypeError
from tidemill.model.names import is_unicode
from tidemill.server.request_body import HeldMemory, body

if TYPE_CHECKING:
    from tidemill.pipeline.documents.shapes import Document
    from tidemill.server.reader_threads import Readers

MOST_BYTES: Final = 1 << 20  # bytes of a body
_DIGITS: Final = 400  # characters of a number; no field can hold a longer one


async def body_of(request: Request, readers: Readers, *known: str) -> Document:
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json" or request.headers.get("content-encoding", "identity") != "identity":
        raise MediaTypeError(
            f"a body of type {media[:60] or 'none'!r} is not supported",
            hint="send application/json, as it is: without Content-Encoding",
        )
    gateway = readers.service.gateway
    requests = readers.service.project.gateway.requests
    with HeldMemory(gateway.memory) as held:
        content = await body(request, held, min(MOST_BYTES, requests.body), requests.timeout)
    document = loaded(content)
    unknown = sorted(set(document) - set(known))
    if unknown:
        raise InputError(
            f"there is no {unknown[0][:40]!r} here", where=unknown[0][:40], hint=f"use {', '.join(known)}"
        )
    return document


def question(document: Document, name: str, default: str | None = None) -> str | Document:
    found = document.get(name, default)
    if isinstance(found, str | Mapping):
        return found
    raise wrong(name, "a text or a JSON object")


def text(document: Document, name: str) -> str | None:
    found = document.get(name)
    if found is None or isinstance(found, str):
        return found
    raise wrong(name, "a text")


def switch(document: Document, name: str) -> bool:
    found = document.get(name, False)
    if isinstance(found, bool):
        return found
    raise wrong(name, "true or false")


def wrong(name: str, what: str) -> InputError:
    return InputError(f"{name} is not {what}", where=name, hint=f"give {what}, or leave it out")


def loaded(content: bytes) -> Document:
    """One JSON object with exact numbers, each key once."""

    def number(text: str) -> int | Decimal:
        if len(text) > _DIGITS:
            raise ValueError("a number is too long")
        return int(text) if text.lstrip("-").isdigit() else Decimal(text)

    def constant(word: str) -> object:
        raise ValueError(f"{word} is not a JSON value")

    try:
        document = json.loads(
            content,
            parse_float=number,
            parse_int=number,
            parse_constant=constant,
            object_pairs_hook=partial(unique_members, shown=80),
        )
        if not is_unicode(json.dumps(document, ensure_ascii=False, default=str)):
            raise ValueError("a text in it has half of a surrogate pair")
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise InputError(f"the body is not JSON: {error}", hint="send one JSON object") from None
    if not isinstance(document, dict):
        raise InputError("the body is not a JSON object", hint='send one such as {"query": "SELECT …"}')
    return document
