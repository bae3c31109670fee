"""What all Python readers of JSON share: access by path, and strictness that the standard parser lacks."""

from __future__ import annotations

from typing import NoReturn


def at(value: object, column: str) -> object:
    """The value at a dotted path; None if a step is missing."""
    for step in column.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(step)
    return value


def no_constant(text: str) -> NoReturn:
    """For `parse_constant` of a decoder: refuse NaN and Infinity."""
    raise ValueError(f"{text} is not JSON")


def unique_members(pairs: list[tuple[str, object]], shown: int | None = None) -> dict[str, object]:
    """For `object_pairs_hook` of a decoder: refuse an object in which a key is repeated. The error has the
    first `shown` characters of the key (None: all)."""
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {twice[:shown]!r} is repeated in one object")
    return found
