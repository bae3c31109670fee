"""The grammar of conditions, for the filters of `tidemill.yaml` and for WHERE, FILTER and HAVING:

    either := both (OR both)*
    both   := test (AND test)*
    test   := NOT test | "(" either ")"
            | operand (= | == | != | <> | < | <= | > | >=) value
            | operand [NOT] IN "(" value ("," value)* ")"
            | operand [NOT] (LIKE | ILIKE) string
            | operand [NOT] BETWEEN value AND value
            | operand IS [NOT] NULL

An operand is a field and a value a literal; in HAVING both are expressions, and there is no LIKE. Parentheses
are kept on a list and not on the stack, so that no text is too deep to be read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic

from tidemill.model.conditions.ast import (
    All,
    Among,
    AnyCondition,
    AnyOf,
    Compare,
    Condition,
    IsNull,
    Like,
    Literally,
    Not,
    Path,
    T,
    Test,
    V,
    Within,
    bounded,
)
from tidemill.model.conditions.literals import (
    OPEN_ESCAPE,
    decimal_of,
    is_open,
    kind_of,
    number_of,
    unquote,
    unquote_plain,
)
from tidemill.model.conditions.scanner import Scanner, Token
from tidemill.model.errors import QueryError

KEYWORDS: Final = frozenset(
    {"AND", "OR", "NOT", "IN", "LIKE", "ILIKE", "BETWEEN", "IS", "NULL", "TRUE", "FALSE"}
)
_SAME: Final = {"==": "=", "<>": "!="}


def read_condition(scanner: Scanner) -> Condition:
    """A condition on fields; what follows it is not read."""

    def operand() -> tuple[Path | None, int]:
        opened = 0
        while scanner.take("LPAR"):
            opened += 1
        first = None if opened and scanner.sees("NOT") else scanner.take("NAME", "QUOTED")
        return (read_path(scanner, first) if first else None), opened

    return ConditionReader(scanner, operand, lambda: read_literal(scanner)).read()


def read_path(scanner: Scanner, first: Token | None = None) -> Path:
    parts = [first or scanner.need("NAME", "QUOTED")]
    while scanner.take("DOT"):
        parts.append(scanner.need("NAME", "QUOTED"))
    segments = list[str]()
    for part in parts:
        quoted = part.kind == "QUOTED"
        segments.extend([part.text[1:-1].replace("``", "`")] if quoted else part.text.split("."))
    return Path(".".join(segments), parts[0].position, tuple(segments))


def read_literal(scanner: Scanner) -> Literally:
    token = scanner.need("STRING", "NUMBER", "TRUE", "FALSE")
    if token.kind == "NUMBER":
        number = scanner.read(token, decimal_of if scanner.plain else number_of)
        return Literally(number, token.position)
    value = text_of_string(scanner, token) if token.kind == "STRING" else token.kind == "TRUE"
    return Literally(value, token.position)


def text_of_string(scanner: Scanner, token: Token) -> str:
    return unquote_plain(token.text) if scanner.plain else unquote(token.text)


@dataclass(slots=True)
class _OpenGroup(Generic[T, V]):
    """The content of a pair of parentheses, as far as it is read."""

    position: int
    either: list[AnyCondition[T, V]] = field(default_factory=list)  # terms of OR that are complete
    both: list[AnyCondition[T, V]] = field(default_factory=list)  # terms of the AND that is read
    nots: int = 0  # before the term that comes next

    def add(self, term: AnyCondition[T, V]) -> None:
        for _ in range(self.nots):
            term = bounded(Not(term), self.position)
        self.nots = 0
        self.both.append(term)

    def next_term(self) -> None:
        """An OR was read."""
        self.either.append(self._whole_both())
        self.both = []

    def whole(self) -> AnyCondition[T, V]:
        terms = (*self.either, self._whole_both())
        return bounded(AnyOf(terms), self.position) if len(terms) > 1 else terms[0]

    def _whole_both(self) -> AnyCondition[T, V]:
        return bounded(All(tuple(self.both)), self.position) if len(self.both) > 1 else self.both[0]


class ConditionReader(Generic[T, V]):
    """Reads a condition whose tests compare what `operand` reads with what `value` reads.

    `operand` also reads the parentheses before it and returns how many of them it left open: only what
    follows says whether they enclose a condition. It returns None when no operand follows them.
    """

    def __init__(
        self,
        scanner: Scanner,
        operand: Callable[[], tuple[T | None, int]],
        value: Callable[[], V],
        *,
        patterns: bool = True,
    ) -> None:
        self._scanner = scanner
        self._operand = operand
        self._value = value
        self._patterns = ("LIKE", "ILIKE") if patterns else ()

    def read(self) -> AnyCondition[T, V]:
        scanner = self._scanner
        groups = [_OpenGroup[T, V](scanner.position)]
        while True:
            if scanner.take("NOT"):
                groups[-1].nots += 1
                continue
            operand, opened = self._operand()
            groups.extend(_OpenGroup[T, V](scanner.position) for _ in range(opened))
            if operand is None:
                if opened:
                    continue
                raise scanner.unexpected()
            groups[-1].add(self._test(operand))
            while not scanner.take("AND"):
                if scanner.take("OR"):
                    groups[-1].next_term()
                    break
                if len(groups) == 1:
                    return groups[0].whole()
                scanner.need("RPAR")
                done = groups.pop().whole()
                groups[-1].add(done)

    def _test(self, operand: T) -> Test[T, V]:
        scanner = self._scanner
        if operator := scanner.take("OPERATOR"):
            return Compare(operand, _SAME.get(operator.text, operator.text), self._value())
        if scanner.take("IS"):
            negated = scanner.take("NOT") is not None
            scanner.need("NULL")
            return IsNull(operand, negated)
        negated = scanner.take("NOT") is not None
        match scanner.need("IN", "BETWEEN", *self._patterns).kind:
            case "IN":
                return Among(operand, self._values(), negated)
            case "BETWEEN":
                low = self._value()
                scanner.need("AND")
                return _within(operand, low, self._value(), negated)
            case word:
                return Like(operand, self._pattern(), negated, word == "ILIKE")

    def _values(self) -> tuple[V, ...]:
        self._scanner.need("LPAR")
        values = [self._value()]
        while self._scanner.take("COMMA"):
            values.append(self._value())
        self._scanner.need("RPAR")
        return tuple(values)

    def _pattern(self) -> Literally:
        token = self._scanner.need("STRING")
        text = text_of_string(self._scanner, token)
        if is_open(text):
            raise QueryError(OPEN_ESCAPE[0], hint=OPEN_ESCAPE[1], position=token.position)
        return Literally(text, token.position)


def _within(operand: T, low: V, high: V, negated: bool) -> Within[T, V]:
    if isinstance(low, Literally) and isinstance(high, Literally):
        kinds = kind_of(low.value), kind_of(high.value)
        if kinds[0] != kinds[1]:
            raise QueryError(
                f"the bounds are {kinds[0]} and {kinds[1]}",
                hint="use two strings, two numbers, or two of true and false",
                position=high.position,
            )
    return Within(operand, low, high, negated)
