"""JSON in plain Python: access by path, strictness that the standard parser lacks, exact numbers, and rows as
JSON text.

Makes no floats and compiles nothing: searches that only read the index import it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import MAX_EMAX, Context, Decimal
from json.encoder import encode_basestring
from typing import Final, NoReturn

HUGE: Final = 10**18  # larger exponents are cut to it
SURROGATE: Final = "surrogateescape"  # bytes that are not UTF-8 pass unchanged to the gate
_EXPONENT_DIGITS: Final = 18

quoted: Final[Callable[[str], str]] = encode_basestring
"""A JSON string in which only what JSON forbids is escaped. The C function itself: it is called per cell."""


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


def parts_of(text: str) -> tuple[str, int, bool]:
    """Significant digits, exponent, sign of a JSON number; zero is ("", 0, False). An exponent beyond HUGE is
    cut."""
    digits, exponent, negative = exact_parts_of(text)
    return digits, int(max(-HUGE, min(HUGE, exponent))), negative


def exact_parts_of(text: str) -> tuple[str, int | Decimal, bool]:
    """The same with an exponent of any size."""
    mantissa, _, power = text.lower().partition("e")
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = whole + fraction
    stripped = digits.rstrip("0")
    significant = stripped.lstrip("0")
    if not significant:
        return "", 0, False
    moved = len(digits) - len(stripped) - len(fraction)
    exponent: int | Decimal
    if len(power) <= _EXPONENT_DIGITS:
        exponent = int(power or 0) + moved
    else:  # not as an int: making one of a million digits takes a minute
        exact = Context(prec=len(power) + _EXPONENT_DIGITS, Emax=MAX_EMAX)
        exponent = exact.add(Decimal(power), Decimal(moved))
    return significant, exponent, mantissa[0] == "-"


def objects(columns: Mapping[str, Sequence[str]], rows: int) -> list[str]:
    """One object for each row, as text: the keys with the row's JSON values, in key order. An empty text is a
    missing value: its key is left out."""
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
