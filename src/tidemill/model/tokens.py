"""The words and signs of a condition, each with its place in the text.

Knows nothing of what they mean together; text that has none is an InputError, whatever it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tidemill.model.errors import InputError

EXAMPLE: Final = "write it as in: a = 1 and (region in ('eu', 'us') or not note is null)"
_KEYWORDS: Final = ("and", "or", "not", "in", "is", "null", "true", "false")
_TOKEN: Final = re.compile(
    r"""\s* (?:
      (?P<number> [+-]? (?: [0-9]+ (?: \.[0-9]+ )? | \.[0-9]+ ) (?: [eE] [+-]? [0-9]+ )? )
    | (?P<word>   [A-Za-z_][A-Za-z0-9_]* (?: \.[A-Za-z_][A-Za-z0-9_]* )* )
    | (?P<name>   ` [^`]+ ` )
    | (?P<text>   ' (?: [^'] | '' )* ' | " (?: [^"] | "" )* " )
    | (?P<sign>   <= | >= | <> | != | == | [=<>(),] )
    )""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class ConditionToken:
    kind: str  # number, word, keyword, name, text, sign, end
    text: str  # keywords in lower case
    position: int  # from 1


def tokens_of(text: str) -> list[ConditionToken]:
    found: list[ConditionToken] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise _unreadable(text, len(text) - len(text[at:].lstrip()))
        kind = str(match.lastgroup)
        said, at = match.group(kind), match.end()
        if kind == "word" and said.lower() in _KEYWORDS:
            kind, said = "keyword", said.lower()
        found.append(ConditionToken(kind, said, at - len(said) + 1))
    return [*found, ConditionToken("end", "", end + 1)]


def _unreadable(text: str, at: int) -> InputError:
    if text[at] in "'\"`":
        message = f"the quote at character {at + 1} is not closed"
        return InputError(message, hint="a quote inside of text is written twice: 'it''s'")
    return InputError(f"{text[at]!r} at character {at + 1} is not part of a condition", hint=EXAMPLE)
