"""Joins the contents of many requests into few pieces, for code that goes through all of them.

Each step over a piece lets other threads run, and then waits milliseconds for its turn while requests are
served, so a window must not be processed request by request. Nor is it joined as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

ENOUGH: Final = 4 << 20  # bytes of a piece; a single content may be longer


def gathered(contents: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces, none of them empty; no content is split."""
    held: list[bytes] = []
    size = 0
    for content in contents:
        held.append(content)
        size += len(content)
        if size >= ENOUGH:
            yield held[0] if len(held) == 1 else b"".join(held)
            held, size = [], 0
    if size:
        yield held[0] if len(held) == 1 else b"".join(held)
