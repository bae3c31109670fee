"""LIKE patterns: `%` is any text, `_` any one character, and a backslash takes the meaning from the next one.
Matched piece by piece from the left, never as a regular expression, so that no pattern can run away.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from tidemill.model.conditions.literals import OPEN_ESCAPE, is_open
from tidemill.model.errors import QueryError

Piece = tuple[str | None, ...]  # characters; None: any one
_CACHED: Final = 1_000
_LOWER: Final = {"İ": "i", "Σ": "σ"}


@lru_cache(maxsize=_CACHED)
def like(pattern: str) -> Callable[[str], bool]:
    """A function that tells whether a whole text matches `pattern`, by exact characters."""
    pieces = _pieces(pattern)
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return lambda text: len(text) == len(first) and _is_at(first, text, 0)
    middle = pieces[1:-1]
    least = len(first) + len(last)

    def matches(text: str) -> bool:
        end = len(text) - len(last)
        if len(text) < least or not _is_at(first, text, 0) or not _is_at(last, text, end):
            return False
        at = len(first)
        for piece in middle:  # the leftmost match leaves most room for those that follow
            at = _first(piece, text, at, end)
            if at < 0:
                return False
            at += len(piece)
        return True

    return matches


def matcher(pattern: str, any_case: bool) -> Callable[[str], bool]:
    """`like`, or with `any_case` ILIKE."""
    if not any_case:
        return like(pattern)
    matches = like(lowered(pattern))
    return lambda text: matches(lowered(text))


def plain_pattern(pattern: str) -> str:
    """The same pattern with backslashes only where they are needed: engines differ on the others."""
    return re.sub(
        r"\\(.)", lambda found: found[0] if found[1] in "%_\\" else found[1], pattern, flags=re.DOTALL
    )


def lowered(text: str) -> str:
    """Each character by its own lower case, whatever is around it: what ILIKE compares. So every engine gives
    the same result for "İ" (an "i") and for a "Σ" at the end of a word (a "σ")."""
    return "".join(_LOWER.get(char) or (low if len(low := char.lower()) == 1 else char) for char in text)


def _pieces(pattern: str) -> list[Piece]:
    """The pieces between the `%`."""
    if is_open(pattern):
        raise QueryError(OPEN_ESCAPE[0], hint=OPEN_ESCAPE[1])
    pieces: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for char in characters:
        match char:
            case "%":
                pieces.append([])
            case "_":
                pieces[-1].append(None)
            case "\\":
                pieces[-1].append(next(characters))
            case _:
                pieces[-1].append(char)
    return [tuple(piece) for piece in pieces]


def _is_at(piece: Piece, text: str, at: int) -> bool:
    return all(char is None or text[at + i] == char for i, char in enumerate(piece))


def _first(piece: Piece, text: str, start: int, end: int) -> int:
    """The first position of a piece within `text[start:end]`, or -1."""
    if None not in piece:
        return text.find("".join(char for char in piece if char is not None), start, max(start, end))
    positions = range(start, end - len(piece) + 1)
    return next((at for at in positions if _is_at(piece, text, at)), -1)
