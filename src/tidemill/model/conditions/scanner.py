"""The tokens of a condition or a query, read one at a time as the grammar asks for them. A word is a keyword
only where the grammar takes that keyword; everywhere else it is a name. An error says what was expected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

from tidemill.model.errors import InputError, QueryError
from tidemill.model.suggestions import closest

MAX_WORD: Final = 64  # characters of one instant, duration or number
RESERVED: Final = frozenset({"not", "true", "false"})  # as names these need backticks
END: Final = "$END"

_STRING: Final = re.compile(r"""'(?:[^'\\]|''|\\.)*'|"(?:[^"\\]|""|\\.)*\"""", re.DOTALL)
_PLAIN_STRING: Final = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*\"""")
_PATTERNS: Final = {
    "INSTANT": re.compile(
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:T[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]+)?)?)?"
        r"(?:Z|[+-][0-9]{2}:?[0-9]{2})?",
        re.IGNORECASE,
    ),
    "DURATION": re.compile(r"[0-9]+(?:\.[0-9]+)?[a-z][0-9a-z.]*|P[0-9T][0-9a-z.]*", re.IGNORECASE),
    "NAME": re.compile(r"[a-z_][a-z0-9_]*(?:\.[a-z0-9_]+)*", re.IGNORECASE),
    "QUOTED": re.compile(r"`(?:[^`]|``)+`"),
    "STRING": _STRING,
    "NUMBER": re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:e[+-]?[0-9]+)?", re.IGNORECASE),
    "OPERATOR": re.compile(r"==|!=|<>|<=|>=|[=<>]"),
}
_SIGNS: Final = {
    "PLUS": "+", "MINUS": "-", "STAR": "*", "SLASH": "/",
    "COMMA": ",", "LPAR": "(", "RPAR": ")", "SEMICOLON": ";", "DOT": ".",
}  # fmt: skip
_KEYWORD: Final = re.compile(r"[a-z_][a-z0-9_]*(?![a-z0-9_.])", re.IGNORECASE)
_SPACE: Final = re.compile(r"\s*")
_CALLED: Final = {  # tokens that errors call by another name
    "NAME": "a name",
    "QUOTED": "a name in `backticks`",
    "STRING": "a string in quotes",
    "NUMBER": "a number",
    "INSTANT": "an instant such as 2024-01-15T14:00:00Z",
    "DURATION": "a duration such as 30s",
    "NOW": "now",
    "OPERATOR": "one of = != < <= > >=",
    "ARITHMETIC": "one of + - * /",
    **{name: f"'{sign}'" for name, sign in _SIGNS.items()},
    END: "the end",
}
_ARITHMETIC: Final = {"PLUS", "MINUS", "STAR", "SLASH"}
_ALMOST: Final = re.compile(r"[a-z_]{2,20}(?![a-z0-9_])", re.IGNORECASE)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Token:
    kind: str  # a keyword, or one of those above
    text: str
    position: int

    @property
    def end(self) -> int:
        return self.position + len(self.text)


class Scanner:
    """Reads a text from left to right. `what` is its name in errors; in `plain` text a backslash is an
    ordinary character of a string and every number is a decimal."""

    def __init__(
        self, text: str, what: str, *, keywords: Iterable[str], longest: int, plain: bool = False
    ) -> None:
        check_characters(text, what, longest)
        self.plain = plain
        self._text = text
        self._what = what
        self._keywords = frozenset(keywords)
        self._before: Token | None = None
        self._expected: set[str] = set()
        self._at = _skip(text, 0)

    @property
    def position(self) -> int:
        """The position of the next token."""
        return self._at

    def take(self, *kinds: str) -> Token | None:
        """The next token if it has one of these kinds, tried in this order."""
        for kind in kinds:
            end = self._end_of(kind)
            if end >= 0:
                token = Token(kind, self._text[self._at : end], self._at)
                self._before, self._at = token, _skip(self._text, end)
                self._expected.clear()
                return token
        self._expected.update(kinds)
        return None

    def sees(self, kind: str) -> bool:
        """Whether a token of this kind comes next; it is not taken."""
        if self._end_of(kind) >= 0:
            return True
        self._expected.add(kind)
        return False

    def need(self, *kinds: str) -> Token:
        token = self.take(*kinds)
        if token is None:
            raise self.unexpected()
        return token

    def end(self) -> None:
        """Raise unless the text ends here."""
        if self._at < len(self._text):
            self._expected.add(END)
            raise self.unexpected()

    def read(self, token: Token, reader: Callable[[str], T]) -> T:
        """`reader` over the text of a token, its error moved to the position of the token."""
        if len(token.text) > MAX_WORD:
            raise QueryError(
                "this is too long", hint=f"{MAX_WORD} characters at most", position=token.position
            )
        try:
            return reader(token.text)
        except InputError as error:
            raise QueryError(error.message, hint=error.hint, position=token.position) from None

    def unexpected(self) -> QueryError:
        """The error for a text that does not continue with any of the tokens that were tried."""
        at, text = self._at, self._text
        hint = f"{self._meant()}expected {expected_words(self._expected, self._what)}{self._about_names()}"
        if at >= len(text):
            return QueryError(f"unexpected end of the {self._what}", hint=hint, position=len(text.rstrip()))
        found = self._found()
        if found is None and text[at] in "'\"`":
            message = "a quote is opened here and never closed, or no string belongs here"
            return QueryError(message, hint=hint, position=at)
        return QueryError(f"unexpected {(found or text[at])[:40]!r}", hint=hint, position=at)

    def _end_of(self, kind: str) -> int:
        """Where a token of this kind would end, or -1."""
        if kind in _SIGNS:
            return self._at + 1 if self._text.startswith(_SIGNS[kind], self._at) else -1
        if kind in _PATTERNS:
            pattern = _PLAIN_STRING if kind == "STRING" and self.plain else _PATTERNS[kind]
            match = pattern.match(self._text, self._at)
            return match.end() if match else -1
        word = _KEYWORD.match(self._text, self._at)
        return word.end() if word and word[0].upper() == kind else -1

    def _found(self) -> str | None:
        ends = (self._end_of(kind) for kind in (*_PATTERNS, *_SIGNS))
        end = next((end for end in ends if end > 0), None)
        return self._text[self._at : end] if end else None

    def _meant(self) -> str:
        """A guess, if the next word is nearly a keyword that is valid here."""
        word = _ALMOST.match(self._text, self._at)
        keywords = sorted(kind for kind in self._expected if kind not in _CALLED)
        near = closest(word[0].upper(), keywords, cutoff=0.7) if word else None
        return f"did you mean {near}? " if near else ""

    def _about_names(self) -> str:
        """A hint about a keyword that was read as a name, or a name that was read as a keyword."""
        before = self._before
        if before is None:
            return ""
        if self._end_of("NULL") >= 0 and {"STRING", "NUMBER"} <= self._expected:
            return "; a missing value is tested with IS NULL"
        if before.kind == "NAME" and before.text.upper() in self._keywords:
            return f"; {before.text!r} before it is read as a name"
        if before.text.lower() in RESERVED and "NAME" in self._expected:
            return f"; to use {before.text!r} as a name, write `{before.text}`"
        touches = before.kind == "NAME" and before.end == self._at < len(self._text)
        if touches and (self._text[self._at] in "-:/@#$%+" or self._text[self._at].isalnum()):
            return "; a name with other characters goes in `backticks`"
        return ""


def expected_words(kinds: Iterable[str], what: str) -> str:
    """Kinds of tokens as people call them: keywords last, in a stable order. That a name could go on with a
    dot is left out: it is true after every name and never what was missing."""
    names = set(kinds) - {"DOT"}
    if names >= _ARITHMETIC:
        names = names - _ARITHMETIC | {"ARITHMETIC"}
    known = [word for name, word in _CALLED.items() if name in names]
    keywords = sorted(name for name in names if name not in _CALLED)
    words = [f"{word} of the {what}" if word == _CALLED[END] else word for word in known + keywords]
    return "".join(words) if len(words) < 2 else f"{', '.join(words[:-1])} or {words[-1]}"


def check_characters(text: str, what: str, longest: int) -> None:
    """Refuses a text that is too long, holds a NUL or is not valid Unicode."""
    if len(text) > longest:
        raise QueryError(
            f"the {what} has {len(text)} characters", hint=f"use {longest} at most", position=longest
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise QueryError(
            f"the {what} is not valid Unicode", hint="remove the lone surrogate", position=error.start
        ) from None
    nul = text.find("\0")
    if nul >= 0:
        raise QueryError(f"the {what} holds a NUL character", hint="remove it", position=nul)


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    assert space is not None
    return space.end()
