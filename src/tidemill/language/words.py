"""Single words of a query or a search: strings, numbers, names, instants, as values and as they are written.
Every word has a bound, and none is ever rounded.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

from tidemill.language.ast import Path, Scalar
from tidemill.model.errors import InputError
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, parse_duration, parse_instant

MAX_WORD: Final = 64  # characters of one instant, duration or number
MAX_DIGITS: Final = 40
MAX_EXPONENT: Final = 999
MAX_DURATION: Final = MAX_INSTANT - MIN_INSTANT
INT64: Final = range(-(2**63), 2**63)
RESERVED: Final = frozenset({"not", "true", "false"})  # what no place for a name can tell from a name
OPEN_ESCAPE: Final = (
    "the pattern ends with an open escape",
    "write \\\\\\\\ for one backslash, \\% and \\_ for the characters themselves",
)

_ESCAPED: Final = {"\\": "\\", "'": "'", '"': '"', "n": "\n", "t": "\t"}
_NUMBER: Final = re.compile(r"-?([0-9]+(?:\.[0-9]+)?)(?:e([+-]?[0-9]+))?", re.IGNORECASE)
_FIRST: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FURTHER: Final = re.compile(r"[A-Za-z0-9_]+")
_SEGMENT: Final = re.compile(r"`((?:[^`]|``)+)`|([^`.]+)")
_NAME_HINT: Final = "write names with dots between them, such as user.plan; `a.b` in backticks is one name"


def unquote(token: str) -> str:
    """The value of a string as written: doubled or backslashed quotes, and \\\\, \\n, \\t.
    A backslash before anything else stays, so that LIKE 'a\\%' can be written as it is meant."""
    quote, body = token[0], token[1:-1]
    pieces = re.split(r"(\\.)", body, flags=re.DOTALL)
    return "".join(
        _ESCAPED.get(piece[1], piece) if piece[:1] == "\\" else piece.replace(quote * 2, quote)
        for piece in pieces
    )


def quoted(text: str) -> str:
    """What `unquote` reads as `text`."""
    for plain, written in (("\\", "\\\\"), ("'", "''"), ("\n", "\\n"), ("\t", "\\t")):
        text = text.replace(plain, written)
    return f"'{text}'"


def number_of(text: str) -> int | Decimal:
    """An integer when it is written as one, otherwise a decimal; exact either way."""
    match = _NUMBER.fullmatch(text) if len(text) <= MAX_WORD else None
    digits, exponent = match.groups() if match else ("", None)
    if not digits or len(digits) > MAX_DIGITS or (exponent and abs(int(exponent)) > MAX_EXPONENT):
        raise InputError(
            f"{text[:MAX_DIGITS]} is not a number that can be used here",
            hint=f"use {MAX_DIGITS} digits and an exponent of {MAX_EXPONENT} at most",
        )
    return int(text) if "." not in digits and exponent is None else Decimal(text)


def instant_of(text: str) -> int:
    micros = parse_instant(text)
    if not MIN_INSTANT <= micros < MAX_INSTANT:
        raise InputError(f"{text!r} lies outside the years 1 to 9999", hint="use a year from 1 to 9999")
    return micros


def duration_of(text: str) -> int:
    micros = parse_duration(text)
    if micros > MAX_DURATION:
        raise InputError(
            f"{text[:MAX_WORD]!r} is longer than all of time", hint="use a shorter duration, such as 30d"
        )
    return micros


def is_open(pattern: str) -> bool:
    """Whether a LIKE pattern ends with a backslash that escapes nothing."""
    return (len(pattern) - len(pattern.rstrip("\\"))) % 2 == 1


def written_scalar(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return quoted(value) if isinstance(value, str) else str(value)


def written_path(path: Path) -> str:
    """Bare where that can be read back, otherwise every segment in backticks."""
    first, *rest = path.segments
    bare = _FIRST.fullmatch(first) and all(_FURTHER.fullmatch(each) for each in rest)
    if bare and (rest or first.lower() not in RESERVED):
        return ".".join(path.segments)
    return ".".join("`" + each.replace("`", "``") + "`" for each in path.segments)


def path_of(text: str) -> Path:
    """The path that a name in a document says: as in the text, but any character other than a dot or a
    backtick can stand bare, since the document has quotes of its own."""
    segments, at = list[str](), 0
    while match := _SEGMENT.match(text, at):
        inside, bare = match.groups()
        segments.append(bare or inside.replace("``", "`"))
        at = match.end()
        if at == len(text):
            return Path(".".join(segments), 0, tuple(segments))
        if text[at] != ".":
            break
        at += 1
    raise InputError(f"{text[:MAX_WORD]!r} is not a name", hint=_NAME_HINT)
