"""Pages of long lists: how many rows, and a cursor for the next page.

A cursor is an offset and no secret; one that was changed, or belongs to another list, is refused.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Annotated, Final

from fastapi import Query

from tidemill.model.errors import InputError

MOST: Final = 1_000
_LONGEST: Final = 1_000  # characters of a cursor

Limit = Annotated[int, Query(ge=1, le=MOST, description="rows of a page")]
Cursor = Annotated[
    str | None, Query(max_length=_LONGEST, description="of the page before; leave it out for the first")
]


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
            "this is no cursor of this list", where="cursor", hint="leave it out to begin with the first page"
        )
    return tuple(values[1:])
