"""Query text in, `ast.Query` out; an error points at the character and says which words could stand there.
Knows the grammar only, and never looks at streams, metrics or data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Final, TypeVar

from tidemill.language.ast import (
    All,
    Among,
    AnyOf,
    Between,
    Choice,
    Compare,
    Condition,
    Every,
    IsNull,
    Item,
    Like,
    Literally,
    Not,
    OrderKey,
    Path,
    Query,
    Rollup,
    Since,
    Value,
)
from tidemill.model.errors import InputError, QueryError
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, format_instant, parse_duration, parse_instant

if TYPE_CHECKING:
    from lark import Lark, Token

MAX_TEXT: Final = 20_000  # characters
MAX_DEPTH: Final = 50  # conditions inside conditions
MAX_LITERALS: Final = 1_000  # values written out in one query
MAX_WORD: Final = 64  # characters of one instant, duration or number
INT64: Final = range(-(2**63), 2**63)

_WORDS: Final = {
    "NAME": "a name",
    "QUOTED": "a name in `backticks`",
    "STRING": "a string in quotes",
    "NUMBER": "a number",
    "INSTANT": "an instant such as 2024-01-15T14:00:00Z",
    "DURATION": "a duration such as 30s",
    "OPERATOR": "one of = != < <= > >=",
    "COMMA": "','",
    "LPAR": "'('",
    "RPAR": "')'",
    "SEMICOLON": "';'",
    "$END": "the end of the query",
}
_ESCAPED: Final = {"\\": "\\", "'": "'", '"': '"', "n": "\n", "t": "\t"}
_SHOWN: Final = 60  # characters of the text shown on each side of the caret

Clause = tuple[str, int, object]  # the field of Query, where the clause starts, its value
T = TypeVar("T")


def parse(text: str) -> Query:
    """The query that `text` says, or a QueryError with the position and the expected words."""
    from lark.exceptions import UnexpectedInput, VisitError

    _check_text(text)
    try:
        query = _parser().parse(text)
    except UnexpectedInput as error:
        raise pointed(_unexpected(error, text), text) from None
    except VisitError as error:
        if isinstance(error.orig_exc, QueryError):
            raise pointed(error.orig_exc, text) from None
        raise
    except QueryError as error:
        raise pointed(error, text) from None
    assert isinstance(query, Query)
    return query


def pointed(error: QueryError, text: str) -> QueryError:
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
        where=error.where or f"query, character {at + 1}",
        position=error.position,
    )


def unquote(token: str) -> str:
    """The value of a string as written: doubled or backslashed quotes, and \\\\, \\n, \\t.
    A backslash before anything else stays, so that LIKE 'a\\%' can be written as it is meant."""
    quote, body = token[0], token[1:-1]
    pieces = re.split(r"(\\.)", body, flags=re.DOTALL)
    return "".join(
        _ESCAPED.get(piece[1], piece) if piece[:1] == "\\" else piece.replace(quote * 2, quote)
        for piece in pieces
    )


def _check_text(text: str) -> None:
    if len(text) > MAX_TEXT:
        raise QueryError(
            f"the query has {len(text)} characters", hint=f"use {MAX_TEXT} at most", position=MAX_TEXT
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise QueryError(
            "the query is not valid Unicode", hint="remove the lone surrogate", position=error.start
        ) from None
    nul = text.find("\0")
    if nul >= 0:
        raise QueryError("the query holds a NUL character", hint="remove it", position=nul)


@cache
def _parser() -> Lark:
    from importlib.resources import files

    from lark import Lark

    grammar = files("tidemill.language").joinpath("grammar.lark").read_text("utf-8")
    return Lark(grammar, parser="lalr", lexer="contextual", maybe_placeholders=True, transformer=_builder())


def _unexpected(error: Exception, text: str) -> QueryError:
    from lark.exceptions import UnexpectedCharacters, UnexpectedToken

    position = min(getattr(error, "pos_in_stream", 0) or 0, len(text))
    found, accepts = "the end", frozenset[str]()
    if isinstance(error, UnexpectedToken):
        accepts = frozenset(error.accepts or error.expected)
        if error.token.type == "$END":
            position = len(text.rstrip())
        else:
            found = repr(str(error.token)[:40])
    elif isinstance(error, UnexpectedCharacters):
        accepts = frozenset(_accepted_at(text) or error.allowed or ())
        found = repr(text[position])
        if text[position] in "'\"`":
            return QueryError(
                "a quote is opened here and never closed, or no string belongs here",
                hint=f"expected {expected_words(accepts)}",
                position=position,
            )
    return QueryError(f"unexpected {found}", hint=f"expected {expected_words(accepts)}", position=position)


def _accepted_at(text: str) -> frozenset[str]:
    """What the grammar takes where the lexer stops: the lexer's own list is a merge of several places."""
    from lark.exceptions import UnexpectedInput

    walk = _parser().parse_interactive(text)
    try:
        walk.exhaust_lexer()
    except UnexpectedInput:
        return frozenset(walk.accepts())  # type: ignore[no-untyped-call]
    return frozenset()


def expected_words(terminals: Iterable[str]) -> str:
    """Terminals of the grammar as words for people: keywords last, in a stable order. That a name could
    go on with a dot is left out: it is true after every name and never what was missing."""
    names = set(terminals) - {"DOT"}
    known = [word for name, word in _WORDS.items() if name in names]
    keywords = sorted(name for name in names if name not in _WORDS)
    words = known + keywords
    return "".join(words) if len(words) < 2 else f"{', '.join(words[:-1])} or {words[-1]}"


def _read(token: Token, reader: Callable[[str], T]) -> T:
    """`reader` over the token's text, its error moved to the token's place."""
    text = unquote(str(token)) if token.type == "STRING" else str(token)
    if len(text) > MAX_WORD:
        raise QueryError("this is too long", hint=f"{MAX_WORD} characters at most", position=token.start_pos)
    try:
        return reader(text)
    except InputError as error:
        raise QueryError(error.message, hint=error.hint, position=token.start_pos) from None


def _instant(text: str) -> int:
    micros = parse_instant(text)
    if not MIN_INSTANT <= micros < MAX_INSTANT:
        raise InputError(f"{text!r} lies outside the years 1 to 9999", hint="use a year from 1 to 9999")
    return micros


def _depth(condition: Condition) -> int:
    match condition:
        case Not(term):
            return 1 + _depth(term)
        case All(terms) | AnyOf(terms):
            return 1 + max(map(_depth, terms))
        case _:
            return 0


def _literals(condition: Condition) -> int:
    match condition:
        case Not(term):
            return _literals(term)
        case All(terms) | AnyOf(terms):
            return sum(map(_literals, terms))
        case Among(_, literals):
            return len(literals)
        case _:
            return 1


def _first_position(condition: Condition) -> int:
    match condition:
        case Not(term):
            return _first_position(term)
        case All(terms) | AnyOf(terms):
            return _first_position(terms[0])
        case _:
            return condition.dimension.position


def _bounded(condition: Condition) -> Condition:
    """Refused as it grows, so that nothing that walks a condition can run out of stack."""
    if _depth(condition) > MAX_DEPTH:
        raise QueryError(
            "the condition is nested too deeply",
            hint=f"{MAX_DEPTH} levels at most",
            position=_first_position(condition),
        )
    return condition


def _assembled(explain: Token | None, items: tuple[Item, ...], source: Path, clauses: list[Clause]) -> Query:
    values: dict[str, object] = {}
    for field, position, value in clauses:
        if field in values:
            raise QueryError(
                "this clause was already given",
                hint="give one of BETWEEN or SINCE, one of USING ROLLUP or INTERVAL, and each clause once",
                position=position,
            )
        values[field] = value
    return Query(items=items, source=source, explain=explain is not None, **values)  # type: ignore[arg-type]


def _builder() -> object:
    """The grammar's rules as functions; they run while the text is read, so no tree is walked."""
    from lark import Transformer, v_args

    @v_args(inline=True)
    class Builder(Transformer):  # type: ignore[type-arg]
        def start(self, explain: Token | None, items: tuple[Item, ...], source: Path, *rest: Clause) -> Query:
            return _assembled(explain, items, source, list(rest))

        def items(self, *items: Item) -> tuple[Item, ...]:
            return items

        def item(self, value: Value, alias: Path | None) -> Item:
            return Item(value, alias)

        def value(self, function: Path, *arguments: Path | Literally | None) -> Value:
            return Value(function, tuple(each for each in arguments if each is not None))

        def path(self, *parts: Token) -> Path:
            names = (str(p)[1:-1].replace("``", "`") if p.type == "QUOTED" else str(p) for p in parts)
            return Path(".".join(names), parts[0].start_pos or 0)

        def literal(self, token: Token) -> Literally:
            position = token.start_pos or 0
            if token.type in ("TRUE", "FALSE"):
                return Literally(token.type == "TRUE", position)
            if token.type == "STRING":
                return Literally(unquote(str(token)), position)
            return Literally(_integer(token), position)

        def instant(self, token: Token) -> tuple[int, int]:
            return _read(token, _instant), token.start_pos or 0

        def duration(self, token: Token) -> Token:
            return token

        def where(self, keyword: Token, condition: Condition) -> Clause:
            if _literals(condition) > MAX_LITERALS:
                raise QueryError(
                    "the condition names too many values",
                    hint=f"{MAX_LITERALS} at most in one query",
                    position=keyword.start_pos,
                )
            return "where", keyword.start_pos or 0, condition

        def between(self, keyword: Token, start: tuple[int, int], end: tuple[int, int]) -> Clause:
            if end[0] < start[0]:
                raise QueryError(
                    f"the span ends ({format_instant(end[0])}) before it starts ({format_instant(start[0])})",
                    hint="BETWEEN start AND end is [start, end) with start <= end",
                    position=end[1],
                )
            position = keyword.start_pos or 0
            return "time", position, Between(start[0], end[0], start[1])

        def since(self, keyword: Token, token: Token) -> Clause:
            value = Since(_read(token, parse_duration), token.start_pos or 0)
            return "time", keyword.start_pos or 0, value

        def rollup(self, keyword: Token, token: Token) -> Clause:
            return "bucket", keyword.start_pos or 0, Rollup(_read(token, str), token.start_pos or 0)

        def interval(self, keyword: Token, token: Token) -> Clause:
            value = Every(_read(token, parse_duration), token.start_pos or 0)
            return "bucket", keyword.start_pos or 0, value

        def group(self, keyword: Token, *paths: Path) -> Clause:
            return "groups", keyword.start_pos or 0, paths

        def edges(self, keyword: Token, word: Token) -> Clause:
            return "edges", keyword.start_pos or 0, _choice(keyword, word)

        def fill(self, keyword: Token, word: Token) -> Clause:
            return "fill", keyword.start_pos or 0, _choice(keyword, word)

        def format(self, keyword: Token, word: Token) -> Clause:
            return "format", keyword.start_pos or 0, _choice(keyword, word)

        def order(self, keyword: Token, *keys: OrderKey) -> Clause:
            return "order", keyword.start_pos or 0, keys

        def key(self, value: Value, direction: Token | None) -> OrderKey:
            return OrderKey(value, direction is not None and direction.type == "DESC")

        def limit(self, keyword: Token, token: Token) -> Clause:
            count = _integer(token)
            if count < 0:
                raise QueryError("LIMIT is negative", hint="use 0 or more", position=token.start_pos)
            return "limit", keyword.start_pos or 0, count

        def either(self, *terms: Condition) -> Condition:
            return _bounded(AnyOf(terms))

        def both(self, *terms: Condition) -> Condition:
            return _bounded(All(terms))

        def negate(self, _: Token, term: Condition) -> Condition:
            return _bounded(Not(term))

        def compare(self, dimension: Path, operator: Token, literal: Literally) -> Condition:
            return Compare(dimension, "!=" if operator == "<>" else str(operator), literal)

        def among(self, dimension: Path, negated: Token | None, _: Token, *literals: Literally) -> Condition:
            return Among(dimension, literals, negated is not None)

        def like(self, dimension: Path, negated: Token | None, _: Token, pattern: Token) -> Condition:
            text = Literally(unquote(str(pattern)), pattern.start_pos or 0)
            return Like(dimension, text, negated is not None)

        def isnull(self, dimension: Path, _: Token, negated: Token | None, __: Token) -> Condition:
            return IsNull(dimension, negated is not None)

    return Builder()


def _choice(keyword: Token, word: Token) -> Choice:
    return Choice(word.type.lower(), keyword.start_pos or 0)


def _integer(token: Token) -> int:
    text = str(token)
    if "." in text or len(text) > MAX_WORD or int(text) not in INT64:
        raise QueryError(
            f"{text[:40]} is not a 64-bit integer", hint="numbers are whole here", position=token.start_pos
        )
    return int(text)
