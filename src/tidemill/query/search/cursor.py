"""The cursor of a search page, as a text: the key of its last row, and what is visible.

It holds no secret and does not guarantee that rows stay; a text that was changed, or belongs to another
search, is refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass
from typing import Final

from tidemill.model.errors import QueryError
from tidemill.model.time import Interval
from tidemill.query.language.ast import Search

Key = tuple[int, int, int]
"""Order value (an instant), place of the slice in the ledger, line."""

_VERSION: Final = 1
_CHECK: Final = 8  # bytes
_HINT: Final = "leave the cursor out to begin again, or repeat the search that gave it"


@dataclass(frozen=True, slots=True)
class Cursor:
    span: Interval | None  # as on the first page: SINCE does not move on
    bound: int  # slices after this ledger offset came later, and are not visible
    after: Key

    def text(self, identity: str) -> str:
        span = None if self.span is None else [self.span.start, self.span.end]
        fields = [_VERSION, identity, span, self.bound, list(self.after)]
        body = json.dumps(fields, separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(_check(body) + body).decode().rstrip("=")


def identity_of(search: Search, stream: str, tenant: str | None) -> str:
    """Equal for equivalent searches; the size of a page is not part of it."""
    identity = repr(
        (stream, tenant, _plain(search.where), _plain(search.filter), _plain(search.time), search.order)
    )
    return hashlib.blake2b(identity.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def read_cursor(text: str, identity: str) -> Cursor:
    try:
        whole = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
        check, body = whole[:_CHECK], whole[_CHECK:]
        if check != _check(body) or base64.urlsafe_b64encode(whole).decode().rstrip("=") != text:
            raise ValueError("changed")
        version, of, span, bound, after = json.loads(body)
        found = Cursor(Interval(*span) if span is not None else None, int(bound), _key(after))
    except (ValueError, TypeError, UnicodeError, binascii.Error):
        raise QueryError("this is not the cursor of a search", hint=_HINT) from None
    if version != _VERSION or of != identity:
        raise QueryError("the cursor belongs to another search", hint=_HINT)
    return found


def _key(numbers: list[int]) -> Key:
    value, seq, line = numbers
    return int(value), int(seq), int(line)


def _check(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_CHECK, person=b"tidemill cursor").digest()


def _plain(node: object) -> object:
    """The search without positions in the text."""
    if isinstance(node, tuple):
        return tuple(map(_plain, node))
    fields = getattr(node, "__dataclass_fields__", None)
    if fields is None:
        return node
    return (type(node).__name__, *(_plain(getattr(node, name)) for name in fields if name != "position"))
