"""The grammar's rules as functions that make the frozen values; they run while the text is read, so that no
tree is walked. Refuses what the grammar cannot count, and never resolves a name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Final, TypeVar

from tidemill.model.errors import InputError, QueryError
from tidemill.query.language.ast import (
    SEARCH_ORDERS,
    WEEKDAYS,
    All,
    Among,
    AnyOf,
    Between,
    Binary,
    Choice,
    Compare,
    Condition,
    Expression,
    IsNull,
    Item,
    Like,
    Literally,
    Moment,
    Not,
    Now,
    OrderKey,
    OriginClause,
    Path,
    Query,
    Rollup,
    Search,
    Since,
    Unary,
    Value,
    Within,
)
from tidemill.query.language.words import (
    INT64,
    MAX_WORD,
    OPEN_ESCAPE,
    checked_span,
    duration_of,
    epoch_of,
    every_of,
    is_open,
    kind_of,
    moment_of,
    number_of,
    since_of,
    unquote,
)

if TYPE_CHECKING:
    from lark import Token

MAX_DEPTH: Final = 50  # conditions inside conditions, operations inside operations
MAX_LITERALS: Final = 1_000  # values written out in one condition

Clause = tuple[str, int, object]  # the field of Query or Search, where the clause starts, its value
T = TypeVar("T")


def builder() -> object:
    from lark import Transformer, v_args

    @v_args(inline=True)
    class Builder(Transformer):  # type: ignore[type-arg]
        def query(self, explain: Token | None, items: tuple[Item, ...], source: Path, *rest: Clause) -> Query:
            values = _once(rest, "BETWEEN or SINCE, one of USING ROLLUP or INTERVAL")
            query = Query(items=items, source=source, explain=explain is not None, **values)  # type: ignore[arg-type]
            if query.where is not None:
                _check_integers(query.where)
            return query

        def search(self, explain: Token | None, *rest: Clause) -> Search:
            return Search(explain=explain is not None, **_once(rest, "BETWEEN or SINCE"))  # type: ignore[arg-type]

        def items(self, *items: Item) -> tuple[Item, ...]:
            return items

        def item(self, value: Expression, alias: Path | None) -> Item:
            return Item(value, alias)

        def binary(self, left: Expression, operator: Token, right: Expression) -> Expression:
            return _shallow(Binary(str(operator), left, right))

        def negative(self, sign: Token, term: Expression) -> Expression:
            if isinstance(term, Literally):
                assert isinstance(term.value, int | Decimal)
                return Literally(-term.value, _at(sign))
            return _shallow(Unary("-", term, _at(sign)))

        def number(self, token: Token) -> Literally:
            return Literally(_read(token, number_of), _at(token))

        def value(self, function: Path, *arguments: Path | Literally | None) -> Value:
            return Value(function, tuple(each for each in arguments if each is not None))

        def value_of_all(self, function: Path, star: Token) -> Value:
            if function.text.lower() != "count":
                raise QueryError(
                    f"{function.text}(*) is not a value",
                    hint="only count(*) takes a star",
                    position=_at(star),
                )
            return Value(function, star=True)

        def path(self, *parts: Token) -> Path:
            segments = list[str]()
            for part in parts:
                if part.type == "QUOTED":
                    segments.append(str(part)[1:-1].replace("``", "`"))
                else:
                    segments.extend(str(part).split("."))
            return Path(".".join(segments), _at(parts[0]), tuple(segments))

        def literal(self, token: Token) -> Literally:
            if token.type in ("TRUE", "FALSE"):
                return Literally(token.type == "TRUE", _at(token))
            if token.type == "STRING":
                return Literally(unquote(str(token)), _at(token))
            return Literally(_read(token, number_of), _at(token))

        def instant(self, token: Token) -> tuple[Moment, int]:
            return _read(token, epoch_of if token.type == "NUMBER" else moment_of), _at(token)

        def relative(self, now: Token, sign: Token | None, duration: Token | None) -> tuple[Moment, int]:
            if sign is None or duration is None:
                return Now(), _at(now)
            offset = _read(duration, duration_of)
            return Now(offset if sign == "+" else -offset), _at(now)

        def moment(self, token: Token) -> tuple[Moment | Since, int]:
            return _read(token, epoch_of if token.type == "NUMBER" else since_of), _at(token)

        def duration(self, token: Token) -> Token:
            return token

        def where(self, keyword: Token, condition: Condition) -> Clause:
            return "where", _at(keyword), _counted(condition, keyword)

        def filter(self, keyword: Token, condition: Condition) -> Clause:
            return "filter", _at(keyword), _counted(condition, keyword)

        def between(self, keyword: Token, start: tuple[Moment, int], end: tuple[Moment, int]) -> Clause:
            try:
                checked_span(start[0], end[0])
            except InputError as error:
                raise QueryError(error.message, hint=error.hint, position=end[1]) from None
            return "time", _at(keyword), Between(start[0], end[0], start[1])

        def since(self, keyword: Token, given: tuple[Moment | Since, int]) -> Clause:
            start, position = given
            if isinstance(start, Since):
                return "time", _at(keyword), Since(start.duration, position)
            if isinstance(start, Now) and start.offset <= 0:
                return "time", _at(keyword), Since(-start.offset, position)
            return "time", _at(keyword), Between(start, Now(), position)

        def rollup(self, keyword: Token, token: Token) -> Clause:
            return "bucket", _at(keyword), Rollup(_read(token, str), _at(token))

        def interval(self, keyword: Token, token: Token) -> Clause:
            return "bucket", _at(keyword), replace(_read(token, every_of), position=_at(token))

        def timezone(self, keyword: Token, token: Token) -> Clause:
            return "timezone", _at(keyword), Choice(unquote(str(token)), _at(token))

        def week_start(self, keyword: Token, token: Token) -> Clause:
            word = str(token).lower()
            if word not in WEEKDAYS:
                raise QueryError(
                    f"{str(token)[:40]!r} is not a day of the week",
                    hint=f"use one of {', '.join(WEEKDAYS)}",
                    position=_at(token),
                )
            return "week_start", _at(keyword), Choice(word, _at(token))

        def origin(self, keyword: Token, given: tuple[Moment, int]) -> Clause:
            if isinstance(given[0], Now):
                raise QueryError(
                    "buckets cannot start at now: they would move with every query",
                    hint="use an instant such as 2024-01-01T06:00:00Z",
                    position=given[1],
                )
            return "origin", _at(keyword), OriginClause(given[0], given[1])

        def having(self, keyword: Token, condition: Expression) -> Clause:
            return "having", _at(keyword), condition

        def having_or(self, left: Expression, right: Expression) -> Expression:
            return _shallow(Binary("or", left, right))

        def having_and(self, left: Expression, right: Expression) -> Expression:
            return _shallow(Binary("and", left, right))

        def having_not(self, word: Token, term: Expression) -> Expression:
            return _shallow(Unary("not", term, _at(word)))

        def having_compare(self, left: Expression, operator: Token, right: Expression) -> Expression:
            return _shallow(Binary("!=" if operator == "<>" else str(operator), left, right))

        def having_within(
            self, term: Expression, negated: Token | None, _: Token, low: Expression, high: Expression
        ) -> Expression:
            inside = Binary("and", Binary(">=", term, low), Binary("<=", term, high))
            return _shallow(Unary("not", inside, term.position) if negated is not None else inside)

        def having_null(self, term: Expression, _: Token, negated: Token | None, __: Token) -> Expression:
            return _shallow(Unary("is null" if negated is None else "is not null", term, term.position))

        def group(self, keyword: Token, *paths: Path) -> Clause:
            return "groups", _at(keyword), paths

        def edges(self, keyword: Token, word: Token) -> Clause:
            return "edges", _at(keyword), Choice(word.type.lower(), _at(keyword))

        def fill(self, keyword: Token, word: Token) -> Clause:
            return "fill", _at(keyword), Choice(word.type.lower(), _at(keyword))

        def format(self, keyword: Token, word: Token) -> Clause:
            return "format", _at(keyword), Choice(word.type.lower(), _at(keyword))

        def order(self, keyword: Token, *keys: OrderKey) -> Clause:
            return "order", _at(keyword), keys

        def key(self, value: Expression, direction: Token | None) -> OrderKey:
            return OrderKey(value, _is_descending(direction))

        def sort(self, keyword: Token, *places: tuple[Path, bool]) -> Clause:
            names = [path.text.lower() for path, _ in places]
            for index, (path, _) in enumerate(places):
                if names[index] not in SEARCH_ORDERS or names[index] in names[:index]:
                    known = names[index] in SEARCH_ORDERS
                    raise QueryError(
                        f"{path.text!r} was already given" if known else f"no order goes by {path.text!r}",
                        hint=f"order by {' or '.join(SEARCH_ORDERS)}, each once",
                        position=path.position,
                    )
            order = tuple((name, descending) for name, (_, descending) in zip(names, places, strict=True))
            return "order", _at(keyword), order

        def place(self, path: Path, direction: Token | None) -> tuple[Path, bool]:
            return path, _is_descending(direction)

        def limit(self, keyword: Token, token: Token) -> Clause:
            return "limit", _at(keyword), _whole(token, "LIMIT")

        def offset(self, keyword: Token, token: Token) -> Clause:
            return "offset", _at(keyword), _whole(token, "OFFSET")

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

        def like(self, dimension: Path, negated: Token | None, word: Token, pattern: Token) -> Condition:
            text = unquote(str(pattern))
            if is_open(text):
                raise QueryError(OPEN_ESCAPE[0], hint=OPEN_ESCAPE[1], position=_at(pattern))
            literal = Literally(text, _at(pattern))
            return Like(dimension, literal, negated is not None, word.type == "ILIKE")

        def within(
            self, dimension: Path, negated: Token | None, _: Token, low: Literally, high: Literally
        ) -> Condition:
            if kind_of(low.value) != kind_of(high.value):
                raise QueryError(
                    f"the bounds are {kind_of(low.value)} and {kind_of(high.value)}",
                    hint="give two strings, two numbers, or two of true and false",
                    position=high.position,
                )
            return Within(dimension, low, high, negated is not None)

        def isnull(self, dimension: Path, _: Token, negated: Token | None, __: Token) -> Condition:
            return IsNull(dimension, negated is not None)

    return Builder()


def _at(token: Token) -> int:
    return token.start_pos or 0


def _whole(token: Token, word: str) -> int:
    """A whole number from 0 on."""
    count = _read(token, number_of)
    if not isinstance(count, int) or count not in INT64:
        raise QueryError(
            f"{str(token)[:40]} is not a 64-bit integer", hint="numbers are whole here", position=_at(token)
        )
    if count < 0:
        raise QueryError(f"{word} is negative", hint="use 0 or more", position=_at(token))
    return count


def _is_descending(direction: Token | None) -> bool:
    return direction is not None and direction.type == "DESC"


def _read(token: Token, reader: Callable[[str], T]) -> T:
    """`reader` over the token's text, its error moved to the token's place."""
    text = unquote(str(token)) if token.type == "STRING" else str(token)
    if len(text) > MAX_WORD:
        raise QueryError("this is too long", hint=f"{MAX_WORD} characters at most", position=_at(token))
    try:
        return reader(text)
    except InputError as error:
        raise QueryError(error.message, hint=error.hint, position=_at(token)) from None


def _once(clauses: tuple[Clause, ...], choices: str) -> dict[str, object]:
    values: dict[str, object] = {}
    for field, position, value in clauses:
        if field in values:
            raise QueryError(
                "this clause was already given",
                hint=f"give one of {choices}, and each clause once",
                position=position,
            )
        values[field] = value
    return values


def literals_of(condition: Condition) -> list[Literally]:
    match condition:
        case Not(term):
            return literals_of(term)
        case All(terms) | AnyOf(terms):
            return [literal for term in terms for literal in literals_of(term)]
        case Among(_, literals):
            return list(literals)
        case Compare(_, _, literal) | Like(_, literal):
            return [literal]
        case Within(_, low, high):
            return [low, high]
        case IsNull():
            return []


def _tests(condition: Condition) -> int:
    """How many values it names, a test without one counted as one."""
    match condition:
        case Not(term):
            return _tests(term)
        case All(terms) | AnyOf(terms):
            return sum(map(_tests, terms))
        case Among(_, literals):
            return len(literals)
        case Within():
            return 2
        case _:
            return 1


def _counted(condition: Condition, keyword: Token) -> Condition:
    if _tests(condition) > MAX_LITERALS:
        raise QueryError(
            "the condition names too many values",
            hint=f"{MAX_LITERALS} at most in one condition",
            position=_at(keyword),
        )
    return condition


def _check_integers(condition: Condition) -> None:
    """A dimension holds 64 bits; a payload holds whatever was sent, so a search takes any number."""
    for literal in literals_of(condition):
        if type(literal.value) is int and literal.value not in INT64:
            raise QueryError(
                f"{literal.value} is not a 64-bit integer",
                hint=f"use a number from {INT64.start} to {INT64.stop - 1}",
                position=literal.position,
            )


def _depth(condition: Condition) -> int:
    match condition:
        case Not(term):
            return 1 + _depth(term)
        case All(terms) | AnyOf(terms):
            return 1 + max(map(_depth, terms))
        case _:
            return 0


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


def _levels(expression: Expression) -> int:
    match expression:
        case Binary(_, left, right):
            return 1 + max(_levels(left), _levels(right))
        case Unary(_, term):
            return 1 + _levels(term)
        case _:
            return 0


def _shallow(expression: Expression) -> Expression:
    """As `_bounded`, of expressions."""
    if _levels(expression) > MAX_DEPTH:
        raise QueryError(
            "the expression is nested too deeply",
            hint=f"{MAX_DEPTH} operations inside each other at most",
            position=expression.position,
        )
    return expression
