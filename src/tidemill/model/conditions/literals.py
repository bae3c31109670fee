"""Reads and writes single tokens of a condition: strings, numbers, names. Each is bounded, and no number is
ever rounded. A condition is written as text that is read back as the same condition.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Final

from tidemill.model.conditions.ast import (
    All,
    Among,
    AnyCondition,
    AnyOf,
    Compare,
    Condition,
    IsNull,
    Like,
    Not,
    Path,
    Scalar,
    T,
    V,
    Within,
)
from tidemill.model.conditions.scanner import MAX_WORD, RESERVED
from tidemill.model.errors import InputError

MAX_DIGITS: Final = 40
MAX_EXPONENT: Final = 999
OPEN_ESCAPE: Final = (
    "the pattern ends with an open escape",
    "write \\\\\\\\ for one backslash, \\% and \\_ for the characters themselves",
)

_ESCAPED: Final = {"\\": "\\", "'": "'", '"': '"', "n": "\n", "t": "\t"}
_NUMBER: Final = re.compile(r"[+-]?([0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:e([+-]?[0-9]+))?", re.IGNORECASE)
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


def unquote_plain(token: str) -> str:
    """The same of a string in which a backslash is an ordinary character."""
    return token[1:-1].replace(token[0] * 2, token[0])


def quoted(text: str) -> str:
    """The string that `unquote` reads as `text`."""
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


def decimal_of(text: str) -> Decimal:
    """The same number, a decimal however it is written."""
    number_of(text)
    return Decimal(text)


def is_open(pattern: str) -> bool:
    """Whether a LIKE pattern ends with a backslash that escapes nothing."""
    return (len(pattern) - len(pattern.rstrip("\\"))) % 2 == 1


def kind_of(value: Scalar) -> str:
    """The kind of a literal, as text for people."""
    return "a string" if isinstance(value, str) else "a boolean" if isinstance(value, bool) else "a number"


def path_of(text: str) -> Path:
    """The path of a name in a document: as in the text, but any character other than a dot or a backtick
    needs no backticks, since the document has quotes of its own."""
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


def condition_text(condition: Condition) -> str:
    """A condition on fields, as a query writes it."""
    return text_of_condition(condition, written_path, lambda literal: written_scalar(literal.value))


def text_of_condition(
    condition: AnyCondition[T, V], operand: Callable[[T], str], value: Callable[[V], str]
) -> str:
    def text(condition: AnyCondition[T, V]) -> str:
        match condition:
            case Compare(of, operator, other):
                return f"{operand(of)} {operator} {value(other)}"
            case Among(of, values, negated):
                return f"{operand(of)} {'NOT ' * negated}IN ({', '.join(map(value, values))})"
            case Like(of, pattern, negated, any_case):
                word = f"{'NOT ' * negated}{'ILIKE' if any_case else 'LIKE'}"
                return f"{operand(of)} {word} {written_scalar(pattern.value)}"
            case Within(of, low, high, negated):
                return f"{operand(of)} {'NOT ' * negated}BETWEEN {value(low)} AND {value(high)}"
            case IsNull(of, negated):
                return f"{operand(of)} IS {'NOT ' * negated}NULL"
            case Not(term):
                return f"NOT {inside(term)}"
            case All(terms):
                return " AND ".join(map(inside, terms))
            case AnyOf(terms):
                return " OR ".join(map(inside, terms))

    def inside(condition: AnyCondition[T, V]) -> str:
        whole = text(condition)
        return f"({whole})" if isinstance(condition, All | AnyOf) else whole

    return text(condition)
