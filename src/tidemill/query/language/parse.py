"""Text in, `ast.Query` or `ast.Search` out; an error points at the character and says which words could stand
there. Knows the grammar only, and never looks at streams, metrics or data.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Final

from tidemill.model.choices import closest
from tidemill.model.errors import QueryError
from tidemill.query.language.ast import Expression, Query, Search
from tidemill.query.language.build import builder
from tidemill.query.language.tables import Start, parser_with
from tidemill.query.language.words import RESERVED

if TYPE_CHECKING:
    from lark import Lark, Token

MAX_TEXT: Final = 20_000  # characters

_CALLED: Final = {"having_either": "condition"}  # what a text is called that is not called like its rule

_WORDS: Final = {
    "NAME": "a name",
    "QUOTED": "a name in `backticks`",
    "STRING": "a string in quotes",
    "NUMBER": "a number",
    "INSTANT": "an instant such as 2024-01-15T14:00:00Z",
    "DURATION": "a duration such as 30s",
    "NOW": "now",
    "OPERATOR": "one of = != < <= > >=",
    "ARITHMETIC": "one of + - * /",
    "PLUS": "'+'",
    "MINUS": "'-'",
    "STAR": "'*'",
    "SLASH": "'/'",
    "COMMA": "','",
    "LPAR": "'('",
    "RPAR": "')'",
    "SEMICOLON": "';'",
    "$END": "the end",
}
_ARITHMETIC: Final = {"PLUS", "MINUS", "STAR", "SLASH"}
_WORD: Final = re.compile(r"[a-z_]{2,20}(?![a-z0-9_])", re.IGNORECASE)
_SHOWN: Final = 60  # characters of the text shown on each side of the caret


def parse(text: str) -> Query:
    """The query that `text` says, or a QueryError with the position and the expected words."""
    query = _parsed(text, "query")
    assert isinstance(query, Query)
    return query


def parse_search(text: str) -> Search:
    """The search that `text` says; the empty text is one too. Errors are those of `parse`."""
    search = _parsed(text, "search")
    assert isinstance(search, Search)
    return search


def parse_expression(text: str) -> Expression:
    """One value as it stands after SELECT: `count`, `sum(latency_ms)`, `sum(bytes) / count`."""
    return _expression(text, "expression")


def parse_having(text: str) -> Expression:
    """A condition on values as it stands after HAVING."""
    return _expression(text, "having_either")


def _expression(text: str, start: Start) -> Expression:
    expression = _parsed(text, start)
    assert isinstance(expression, Expression)
    return expression


def pointed(error: QueryError, text: str, what: str = "query") -> QueryError:
    """The same error, its message followed by the line it is about and a caret under the character."""
    if error.position is None or "\n" in error.message:
        return error
    at = min(error.position, len(text))
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    end = len(text) if end < 0 else end
    low, high = max(start, at - _SHOWN), min(end, at + _SHOWN)
    before = ("…" if low > start else "") + text[low:at]
    after = text[at:high] + ("…" if high < end else "")
    line = "".join(char if char.isprintable() else " " for char in before + after)
    return QueryError(
        f"{error.message}\n  {line}\n  {' ' * len(before)}^",
        hint=error.hint,
        where=error.where or f"{what}, character {at + 1}",
        position=error.position,
    )


def expected_words(terminals: Iterable[str], what: str = "query") -> str:
    """Terminals of the grammar as words for people: keywords last, in a stable order. That a name could
    go on with a dot is left out: it is true after every name and never what was missing."""
    names = {name.lstrip("_") for name in terminals} - {"DOT"}
    if names >= _ARITHMETIC:
        names = names - _ARITHMETIC | {"ARITHMETIC"}
    known = [word for name, word in _WORDS.items() if name in names]
    keywords = sorted(name for name in names if name not in _WORDS)
    words = [f"{word} of the {what}" if word == _WORDS["$END"] else word for word in known + keywords]
    return "".join(words) if len(words) < 2 else f"{', '.join(words[:-1])} or {words[-1]}"


def check_characters(text: str, what: str) -> None:
    """Refuses what no text may hold: too many of them, NUL, half a character."""
    if len(text) > MAX_TEXT:
        raise QueryError(
            f"the {what} has {len(text)} characters", hint=f"use {MAX_TEXT} at most", position=MAX_TEXT
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


def _parsed(text: str, start: Start) -> object:
    from lark.exceptions import UnexpectedInput, VisitError

    what = _CALLED.get(start, start)
    check_characters(text, what)
    try:
        return _parser().parse(text, start=start)
    except UnexpectedInput as error:
        raise pointed(_unexpected(error, text, start), text, what) from None
    except VisitError as error:
        if isinstance(error.orig_exc, QueryError):
            raise pointed(error.orig_exc, text, what) from None
        raise
    except QueryError as error:
        raise pointed(error, text, what) from None


@cache
def _parser() -> Lark:
    return parser_with(builder())


def _unexpected(error: Exception, text: str, start: Start) -> QueryError:
    from lark.exceptions import UnexpectedCharacters, UnexpectedToken

    position = min(getattr(error, "pos_in_stream", 0) or 0, len(text))
    before, accepts = _walked(text, start)
    words = expected_words(accepts, _CALLED.get(start, start))
    hint = f"{_meant(text, position, accepts)}expected {words}{_about_names(text, position, before, accepts)}"
    found = "the end"
    if isinstance(error, UnexpectedToken):
        if error.token.type == "$END":
            position = len(text.rstrip())
        else:
            found = repr(str(error.token)[:40])
    elif isinstance(error, UnexpectedCharacters):
        found = repr(text[position])
        if text[position] in "'\"`":
            return QueryError(
                "a quote is opened here and never closed, or no string belongs here",
                hint=hint,
                position=position,
            )
    return QueryError(f"unexpected {found}", hint=hint, position=position)


def _walked(text: str, start: Start) -> tuple[Token | None, frozenset[str]]:
    """The last token that could be read, and what the grammar takes after it: the lists in the parser's own
    errors are merges of several places."""
    from lark.exceptions import UnexpectedInput

    walk = _parser().parse_interactive(text, start=start)
    before: Token | None = None
    try:
        for token in walk.lexer_thread.lex(walk.parser_state):  # type: ignore[no-untyped-call]
            walk.feed_token(token)
            before = token
    except UnexpectedInput:
        pass
    return before, frozenset(walk.accepts())  # type: ignore[no-untyped-call]


@cache
def _keywords() -> frozenset[str]:
    """All words of the grammar, in lower case: their terminals are called like them."""
    names = {terminal.name.lstrip("_") for terminal in _parser().terminals}
    return frozenset(name.lower() for name in names - set(_WORDS) - {"DOT", "WHITESPACE"})


def _meant(text: str, position: int, accepts: frozenset[str]) -> str:
    """What to say when the word at a place is nearly a keyword that could stand there."""
    word = _WORD.match(text, position)
    keywords = sorted(name for each in accepts if (name := each.lstrip("_")) not in _WORDS)
    near = closest(word[0].upper(), keywords, cutoff=0.7) if word else None
    return f"did you mean {near}? " if near else ""


def _about_names(text: str, position: int, before: Token | None, accepts: frozenset[str]) -> str:
    """What to say when the error may come from a word taken for a name, or from a name taken for a word."""
    if before is None:
        return ""
    word = str(before)
    if before.type == "NAME" and word.lower() in _keywords():
        return f"; {word!r} before it is read as a name"
    if word.lower() in RESERVED and "NAME" in accepts:
        return f"; to use {word!r} as a name, write `{word}`"
    touches = before.type == "NAME" and before.end_pos == position < len(text)
    if touches and (text[position] in "-:/@#$%+" or text[position].isalnum()):
        return "; a name with other characters goes in `backticks`"
    return ""
