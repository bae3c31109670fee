"""Text in, `ast.Query` or `ast.Search` out; an error points at the character and says what was expected.
Knows the grammar only: function names, measures and dimensions are plain names here.

    query      := [EXPLAIN] SELECT item ("," item)* FROM path clause* [";"]
    search     := [EXPLAIN] clause* [";"]
    item       := expression [AS path]
    expression := product (("+" | "-") product)*
    product    := factor (("*" | "/") factor)*
    factor     := value | number | "-" factor | "(" expression ")"
    value      := path ["(" [argument ("," argument)* | "*"] ")"]
    path       := name ("." name)*          a bare name, or one in `backticks`

The clauses are the methods of `_Reader` with the same names. They come in any order, each at most once.
Conditions are read by `model.conditions.parse`. Keywords are case-insensitive, and are names wherever a name
is expected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Final, TypeVar

from tidemill.model.conditions.ast import MAX_DEPTH, Condition, Literally, Path, literals_in, tests_in
from tidemill.model.conditions.ast import values_of_test as compared_with
from tidemill.model.conditions.literals import number_of, unquote
from tidemill.model.conditions.parse import (
    KEYWORDS,
    ConditionReader,
    read_condition,
    read_literal,
    read_path,
)
from tidemill.model.conditions.scanner import Scanner, Token
from tidemill.model.errors import InputError, QueryError
from tidemill.query.language.ast import (
    SEARCH_ORDERS,
    WEEKDAYS,
    AsOfClause,
    Between,
    Binary,
    Choice,
    Expression,
    Having,
    Item,
    Moment,
    Now,
    OrderKey,
    OriginClause,
    Query,
    Rollup,
    Search,
    Since,
    Unary,
    Value,
)
from tidemill.query.language.time_clauses import (
    INT64,
    checked_span,
    duration_of,
    epoch_of,
    every_of,
    moment_of,
    since_of,
)

MAX_TEXT: Final = 20_000  # characters
MAX_LITERALS: Final = 1_000  # values written out in one condition

_WORDS: Final = KEYWORDS | {
    "ASC", "AS", "BY", "CARRY", "DESC", "DROP", "EDGES", "EXCLUDE", "EXPLAIN", "FILL", "FILTER", "FORMAT",
    "FROM", "GROUP", "HAVING", "INCLUDE", "INTERVAL", "LIMIT", "NOW", "OF", "OFFSET", "ORDER", "ORIGIN",
    "ROLLUP", "ROWS", "SELECT", "SERIES", "SINCE", "START", "TIMEZONE", "USING", "WEEK", "WHERE", "ZERO",
}  # fmt: skip
_RANKS: Final = {"PLUS": 1, "MINUS": 1, "STAR": 2, "SLASH": 2, "NEGATIVE": 3, "LPAR": 0}  # greater: tighter
_SHOWN: Final = 60  # characters of the text shown on each side of the caret

Clause = tuple[str, object]  # the field of Query or Search, and its value
T = TypeVar("T")


def parse(text: str) -> Query:
    """The query in `text`, or a QueryError with the position and what was expected there."""
    return _parsed(text, "query", _QueryReader.query)


def parse_search(text: str) -> Search:
    """The search in `text`; the empty text is one too. Errors are those of `parse`."""
    return _parsed(text, "search", _QueryReader.search)


def parse_expression(text: str) -> Expression:
    """One value as it is written after SELECT: `count`, `sum(latency_ms)`, `sum(bytes) / count`."""
    return _parsed(text, "expression", _QueryReader.expression)


def parse_having(text: str) -> Having:
    """A condition on values as it is written after HAVING."""
    return _parsed(text, "condition", _QueryReader.condition_on_values)


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


def _parsed(text: str, what: str, read: Callable[[_QueryReader], T]) -> T:
    try:
        scanner = Scanner(text, what, keywords=_WORDS, longest=MAX_TEXT)
        parsed = read(_QueryReader(scanner))
        scanner.end()
    except QueryError as error:
        raise pointed(error, text, what) from None
    return parsed


class _QueryReader:
    """Reads one text; each method reads what it is named after, from where the scanner is."""

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner

    def query(self) -> Query:
        explain = self._scanner.take("EXPLAIN")
        self._scanner.need("SELECT")
        items = self._listed(self._item)
        self._scanner.need("FROM")
        source = self._path()
        clauses = self._clauses(_QUERY_CLAUSES, "BETWEEN or SINCE, one of USING ROLLUP or INTERVAL")
        query = Query(items=items, source=source, explain=explain is not None, **clauses)  # type: ignore[arg-type]
        _check_integers(query.where)
        return query

    def search(self) -> Search:
        explain = self._scanner.take("EXPLAIN")
        clauses = self._clauses(_SEARCH_CLAUSES, "BETWEEN or SINCE")
        return Search(explain=explain is not None, **clauses)  # type: ignore[arg-type]

    def _clauses(
        self, readers: Mapping[str, Callable[[_QueryReader, Token], Clause]], choices: str
    ) -> dict[str, object]:
        found: dict[str, object] = {}
        twice: Token | None = None
        while keyword := self._scanner.take(*readers):
            name, value = readers[keyword.kind](self, keyword)
            twice = twice or (keyword if name in found else None)
            found[name] = value
        self._scanner.take("SEMICOLON")
        self._scanner.end()
        if twice is not None:
            raise QueryError(
                "this clause was already given",
                hint=f"give one of {choices}, and each clause once",
                position=twice.position,
            )
        return found

    def _listed(self, read: Callable[[], T]) -> tuple[T, ...]:
        found = [read()]
        while self._scanner.take("COMMA"):
            found.append(read())
        return tuple(found)

    def _path(self) -> Path:
        return read_path(self._scanner)

    # -- values

    def _item(self) -> Item:
        value = self.expression()
        return Item(value, self._path() if self._scanner.take("AS") else None)

    def expression(self) -> Expression:
        expression, opened = self._operand(closed=True)
        assert expression is not None
        assert not opened
        return expression

    def _operand(self, *, closed: bool = False) -> tuple[Expression | None, int]:
        """An expression, and how many of the parentheses before it are left open: those of a condition.
        None when NOT follows them. With `closed`, none may be left open.

        Operators wait on a list until what follows binds no tighter, so that nothing recurses.
        """
        scanner, operands, operators = self._scanner, list[Expression](), list[Token]()
        leading = not closed  # so far there are only parentheses
        while True:
            if leading and operators and scanner.sees("NOT"):
                return None, len(operators)
            if first := scanner.take("NAME", "QUOTED", "NUMBER"):
                operands.append(self._value_or_number(first))
            elif sign := scanner.take("LPAR", "MINUS"):
                operators.append(sign if sign.kind == "LPAR" else replace(sign, kind="NEGATIVE"))
                leading = leading and sign.kind == "LPAR"
                continue
            elif leading and not operators:
                return None, 0
            else:
                raise scanner.unexpected()
            leading = False
            operator = self._operator(operands, operators)
            if operator is None:
                break
            operators.append(operator)
        if operators and (closed or any(each.kind != "LPAR" for each in operators)):
            raise scanner.unexpected()
        return operands[0], len(operators)

    def _operator(self, operands: list[Expression], operators: list[Token]) -> Token | None:
        """The operator after an operand, once what binds tighter is joined; None after the last operand."""
        while True:
            if operator := self._scanner.take("PLUS", "MINUS", "STAR", "SLASH"):
                _join(operands, operators, _RANKS[operator.kind])
                return operator
            is_open = any(each.kind == "LPAR" for each in operators)
            if not is_open or not self._scanner.take("RPAR"):
                _join(operands, operators, 1)
                return None
            _join(operands, operators, 1)
            operators.pop()  # the parenthesis

    def _value_or_number(self, first: Token) -> Expression:
        if first.kind == "NUMBER":
            return Literally(self._scanner.read(first, number_of), first.position)
        function = read_path(self._scanner, first)
        if not self._scanner.take("LPAR"):
            return Value(function)
        if star := self._scanner.take("STAR"):
            if function.text.lower() != "count":
                raise QueryError(
                    f"{function.text}(*) is not a value",
                    hint="only count(*) takes a star",
                    position=star.position,
                )
            self._scanner.need("RPAR")
            return Value(function, star=True)
        if self._scanner.take("RPAR"):
            return Value(function)
        arguments = self._listed(self._argument)
        self._scanner.need("RPAR")
        return Value(function, arguments)

    def _argument(self) -> Path | Literally:
        if any(self._scanner.sees(kind) for kind in ("STRING", "NUMBER", "TRUE", "FALSE")):
            return read_literal(self._scanner)
        return self._path()

    def condition_on_values(self) -> Having:
        reader = ConditionReader[Expression, Expression](
            self._scanner, self._operand, self.expression, patterns=False
        )
        return reader.read()

    # -- clauses

    def where(self, keyword: Token) -> Clause:
        return "where", _counted(read_condition(self._scanner), keyword)

    def filter(self, keyword: Token) -> Clause:
        return "filter", _counted(read_condition(self._scanner), keyword)

    def having(self, _: Token) -> Clause:
        return "having", self.condition_on_values()

    def between(self, _: Token) -> Clause:
        """BETWEEN instant AND instant"""
        start, position = self._instant()
        self._scanner.need("AND")
        end, end_position = self._instant()
        try:
            checked_span(start, end)
        except InputError as error:
            raise QueryError(error.message, hint=error.hint, position=end_position) from None
        return "time", Between(start, end, position)

    def since(self, _: Token) -> Clause:
        """SINCE duration, or SINCE instant"""
        position = self._scanner.position
        token = self._scanner.need("INSTANT", "DURATION", "NOW", "NUMBER", "STRING")
        if token.kind == "NOW":
            start: Moment | Since = self._relative()
        else:
            start = self._read(token, epoch_of if token.kind == "NUMBER" else since_of)
        if isinstance(start, Since):
            return "time", Since(start.duration, position)
        if isinstance(start, Now) and start.offset <= 0:
            return "time", Since(-start.offset, position)
        return "time", Between(start, Now(), position)

    def rollup(self, _: Token) -> Clause:
        """USING ROLLUP level"""
        self._scanner.need("ROLLUP")
        token = self._scanner.need("DURATION", "STRING")
        return "bucket", Rollup(self._read(token, str), token.position)

    def interval(self, _: Token) -> Clause:
        token = self._scanner.need("DURATION", "STRING")
        return "bucket", replace(self._read(token, every_of), position=token.position)

    def timezone(self, _: Token) -> Clause:
        token = self._scanner.need("STRING")
        return "timezone", Choice(unquote(token.text), token.position)

    def week_start(self, _: Token) -> Clause:
        """WEEK START day"""
        self._scanner.need("START")
        token = self._scanner.need("NAME")
        if token.text.lower() not in WEEKDAYS:
            raise QueryError(
                f"{token.text[:40]!r} is not a day of the week",
                hint=f"use one of {', '.join(WEEKDAYS)}",
                position=token.position,
            )
        return "week_start", Choice(token.text.lower(), token.position)

    def as_of(self, _: Token) -> Clause:
        """AS OF instant, or AS OF duration: so long ago"""
        self._scanner.need("OF")
        position = self._scanner.position
        token = self._scanner.need("INSTANT", "DURATION", "NOW", "NUMBER", "STRING")
        if token.kind == "NOW":
            return "as_of", AsOfClause(self._relative(), position)
        found = self._read(token, epoch_of if token.kind == "NUMBER" else since_of)
        moment = Now(-found.duration) if isinstance(found, Since) else found
        return "as_of", AsOfClause(moment, position)

    def origin(self, _: Token) -> Clause:
        moment, position = self._instant()
        if isinstance(moment, Now):
            raise QueryError(
                "buckets cannot start at now: they would move with every query",
                hint="use an instant such as 2024-01-01T06:00:00Z",
                position=position,
            )
        return "origin", OriginClause(moment, position)

    def group(self, _: Token) -> Clause:
        """GROUP BY path, …"""
        self._scanner.need("BY")
        return "groups", self._listed(self._path)

    def edges(self, keyword: Token) -> Clause:
        return "edges", self._choice(keyword, "INCLUDE", "EXCLUDE", "NULL")

    def fill(self, keyword: Token) -> Clause:
        return "fill", self._choice(keyword, "NULL", "ZERO", "DROP", "CARRY")

    def format(self, keyword: Token) -> Clause:
        return "format", self._choice(keyword, "ROWS", "SERIES")

    def order(self, _: Token) -> Clause:
        """ORDER BY expression [ASC | DESC], …"""
        self._scanner.need("BY")
        return "order", self._listed(lambda: OrderKey(self.expression(), self._is_descending()))

    def search_order(self, _: Token) -> Clause:
        """ORDER BY ts or arrival [ASC | DESC], …"""
        self._scanner.need("BY")
        order: dict[str, bool] = {}
        for path, descending in self._listed(lambda: (self._path(), self._is_descending())):
            name = path.text.lower()
            if name not in SEARCH_ORDERS or name in order:
                twice = f"{path.text!r} was already given"
                raise QueryError(
                    twice if name in order else f"events cannot be ordered by {path.text!r}",
                    hint=f"order by {' or '.join(SEARCH_ORDERS)}, each once",
                    position=path.position,
                )
            order[name] = descending
        return "order", tuple(order.items())

    def limit(self, _: Token) -> Clause:
        return "limit", self._whole("LIMIT")

    def offset(self, _: Token) -> Clause:
        return "offset", self._whole("OFFSET")

    def _choice(self, keyword: Token, *words: str) -> Choice:
        return Choice(self._scanner.need(*words).kind.lower(), keyword.position)

    def _is_descending(self) -> bool:
        direction = self._scanner.take("ASC", "DESC")
        return direction is not None and direction.kind == "DESC"

    def _whole(self, word: str) -> int:
        """A whole number from 0 on."""
        token = self._scanner.need("NUMBER")
        count = self._scanner.read(token, number_of)
        if not isinstance(count, int) or count not in INT64:
            raise QueryError(
                f"{token.text[:40]} is not a 64-bit integer",
                hint="numbers are whole here",
                position=token.position,
            )
        if count < 0:
            raise QueryError(f"{word} is negative", hint="use 0 or more", position=token.position)
        return count

    def _instant(self) -> tuple[Moment, int]:
        token = self._scanner.need("INSTANT", "NOW", "NUMBER", "STRING")
        if token.kind == "NOW":
            return self._relative(), token.position
        return self._read(token, epoch_of if token.kind == "NUMBER" else moment_of), token.position

    def _relative(self) -> Now:
        """What may follow `now`."""
        sign = self._scanner.take("PLUS", "MINUS")
        if sign is None:
            return Now()
        offset = self._scanner.read(self._scanner.need("DURATION"), duration_of)
        return Now(offset if sign.kind == "PLUS" else -offset)

    def _read(self, token: Token, reader: Callable[[str], T]) -> T:
        if token.kind == "STRING":
            token = replace(token, text=unquote(token.text))
        return self._scanner.read(token, reader)


_SEARCH_CLAUSES: Final = {
    "WHERE": _QueryReader.where,
    "FILTER": _QueryReader.filter,
    "BETWEEN": _QueryReader.between,
    "SINCE": _QueryReader.since,
    "ORDER": _QueryReader.search_order,
    "LIMIT": _QueryReader.limit,
}
_QUERY_CLAUSES: Final = {
    **_SEARCH_CLAUSES,
    "USING": _QueryReader.rollup,
    "INTERVAL": _QueryReader.interval,
    "TIMEZONE": _QueryReader.timezone,
    "WEEK": _QueryReader.week_start,
    "ORIGIN": _QueryReader.origin,
    "GROUP": _QueryReader.group,
    "HAVING": _QueryReader.having,
    "EDGES": _QueryReader.edges,
    "FILL": _QueryReader.fill,
    "ORDER": _QueryReader.order,
    "OFFSET": _QueryReader.offset,
    "AS": _QueryReader.as_of,
    "FORMAT": _QueryReader.format,
}


def _join(operands: list[Expression], operators: list[Token], rank: int) -> None:
    """Joins operands by the last operators, as long as these bind at least as tight as `rank`."""
    while operators and _RANKS[operators[-1].kind] >= rank:
        operator, right = operators.pop(), operands.pop()
        if operator.kind != "NEGATIVE":
            operands.append(_shallow(Binary(operator.text, operands.pop(), right)))
        elif isinstance(right, Literally):
            assert isinstance(right.value, int | Decimal)
            operands.append(Literally(-right.value, operator.position))
        else:
            operands.append(_shallow(Unary("-", right, operator.position)))


def _counted(condition: Condition, keyword: Token) -> Condition:
    if sum(len(compared_with(test)) or 1 for test in tests_in(condition)) > MAX_LITERALS:
        raise QueryError(
            "the condition names too many values",
            hint=f"{MAX_LITERALS} at most in one condition",
            position=keyword.position,
        )
    return condition


def _check_integers(condition: Condition | None) -> None:
    """A dimension holds 64 bits; a payload holds whatever was sent, so FILTER takes any number."""
    for literal in literals_in(condition):
        if type(literal.value) is int and literal.value not in INT64:
            raise QueryError(
                f"{literal.value} is not a 64-bit integer",
                hint=f"use a number from {INT64.start} to {INT64.stop - 1}",
                position=literal.position,
            )


def _levels(expression: Expression) -> int:
    match expression:
        case Binary(_, left, right):
            return 1 + max(_levels(left), _levels(right))
        case Unary(_, term):
            return 1 + _levels(term)
        case _:
            return 0


def _shallow(expression: Expression) -> Expression:
    """The expression, unless it is nested too deeply. Checked as it grows, so that nothing that walks an
    expression runs out of stack."""
    if _levels(expression) > MAX_DEPTH:
        raise QueryError(
            "the expression is nested too deeply",
            hint=f"{MAX_DEPTH} operations inside each other at most",
            position=expression.position,
        )
    return expression
