"""Columns of values as columns of JSON text, and rows built from them with sorted keys.

An empty fragment is a missing value: its key is left out. No JSON is parsed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from json.encoder import encode_basestring
from typing import Final

SURROGATE: Final = "surrogateescape"  # bytes that are not UTF-8 pass unchanged to the gate


quoted: Final[Callable[[str], str]] = encode_basestring
"""A JSON string in which only what JSON forbids is escaped. The C function itself: it is called per cell."""


def objects(columns: Mapping[str, Sequence[str]], rows: int) -> list[str]:
    """One object for each row: the keys with the row's fragments, in key order."""
    if not columns:
        return ["{}"] * rows
    keys = sorted(columns)
    ordered = [columns[key] for key in keys]
    if not any("" in fragments for fragments in ordered):  # nothing is left out: one pattern fits all rows
        names = [quoted(key).replace("%", "%%") for key in keys]
        pattern = "{" + ",".join(f"{name}:%s" for name in names) + "}"
        return [pattern % row for row in zip(*ordered, strict=True)]
    prefixes = [f"{quoted(key)}:" for key in keys]
    keyed = [
        [prefix + text if text else "" for text in fragments]
        for prefix, fragments in zip(prefixes, ordered, strict=True)
    ]
    return ["{" + ",".join(filter(None, row)) + "}" for row in zip(*keyed, strict=True)]
