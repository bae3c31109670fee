"""Hints for a word that is not a valid choice: the closest choices first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Final

MAX_WORD: Final = 100  # characters that are compared


def closest(word: str, valid: Iterable[str], cutoff: float = 0.5) -> str | None:
    """Return the valid word that was probably meant, if one is near enough. Case is ignored."""
    known = list(valid)
    lowered = {each.lower(): each for each in reversed(known)}
    word = word[:MAX_WORD]
    near = get_close_matches(word, known, n=1, cutoff=cutoff)
    nearest = get_close_matches(word.lower(), lowered, n=1, cutoff=cutoff)
    return near[0] if near else lowered[nearest[0]] if nearest else None


def choices(word: str, valid: Sequence[str], what: str) -> str:
    """Return a hint that names the closest valid choice first, then all of them."""
    if not valid:
        return f"there are no {what}"
    near = closest(word, valid)
    guess = f"did you mean {near}? " if near else ""
    return f"{guess}{what}: {', '.join(valid)}"
