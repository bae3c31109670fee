"""Conditions on the fields of a row: `a = 1 and (region in ('eu', 'us') or not note is null)`.

Parsed once, never evaluated as Python or SQL text. A comparison with a missing value is unknown, and a row
passes a condition only when it is true.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from tidemill.model.errors import InputError
from tidemill.model.tokens import EXAMPLE, ConditionToken, tokens_of

Literal = str | bool | Decimal
Given = Literal | int | float | None
"""A value of a row. A float is compared with the double nearest to the literal, everything else exactly."""

OPERATORS = ("=", "!=", "<", "<=", ">", ">=")
MAX_LENGTH: Final = 10_000
MAX_DEPTH: Final = 50  # of parentheses and NOTs inside each other: what recurses stays shallow


@dataclass(frozen=True, slots=True)
class FieldCompare:
    column: str
    operator: str  # one of OPERATORS
    value: Literal


@dataclass(frozen=True, slots=True)
class OneOf:
    column: str
    values: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class FieldIsNull:
    column: str


@dataclass(frozen=True, slots=True)
class Negation:
    inner: Node


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Node, ...]


Node = FieldCompare | OneOf | FieldIsNull | Negation | And | Or


@dataclass(frozen=True, slots=True)
class Predicate:
    text: str
    node: Node

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(_columns(self.node)))

    def holds(self, value_of: Callable[[str], Given]) -> bool:
        return _truth(self.node, value_of) is True


@dataclass(frozen=True, slots=True)
class Mention:
    """A test of one column, and where it is written; characters are counted from 1."""

    test: FieldCompare | OneOf | FieldIsNull
    position: int  # of the column
    operator: int = 0  # positions of what follows it
    values: tuple[int, ...] = ()


def parse_predicate(text: str) -> Predicate:
    """The condition that `text` says, or an InputError with the position and the expected words."""
    return Predicate(text, _Parser(text).whole())


def mentions(text: str) -> tuple[Mention, ...]:
    """The tests of a condition as they are written, for those who know the types of its columns."""
    parser = _Parser(text)
    parser.whole()
    return tuple(parser.mentions)


def _columns(node: Node) -> list[str]:
    match node:
        case Negation(inner):
            return _columns(inner)
        case And(parts) | Or(parts):
            return [column for part in parts for column in _columns(part)]
        case FieldCompare() | OneOf() | FieldIsNull():
            return [node.column]


# -- what it comes to

_ORDERS: Final = {"=": (0,), "!=": (-1, 1), "<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1)}


def _truth(node: Node, value_of: Callable[[str], Given]) -> bool | None:
    """True, false, or None: unknown."""
    match node:
        case FieldCompare(column, operator, literal):
            return _compared(value_of(column), operator, literal)
        case OneOf(column, literals):
            value = value_of(column)
            return _any(_compared(value, "=", literal) for literal in literals)
        case FieldIsNull(column):
            return value_of(column) is None
        case Negation(inner):
            return _negated(_truth(inner, value_of))
        case Or(parts):
            return _any(_truth(part, value_of) for part in parts)
        case And(parts):
            return _negated(_any(_negated(_truth(part, value_of)) for part in parts))


def _any(truths: Iterable[bool | None]) -> bool | None:
    unknown = False
    for truth in truths:
        if truth:
            return True
        unknown = unknown or truth is None
    return None if unknown else False


def _negated(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


def _compared(value: Given, operator: str, literal: Literal) -> bool | None:
    """Values of different kinds have no order and are not known to differ."""
    if isinstance(value, str) and isinstance(literal, str):
        order = (value > literal) - (value < literal)
    elif isinstance(value, bool) or isinstance(literal, bool):  # to Python a bool is a number
        if not (isinstance(value, bool) and isinstance(literal, bool)):
            return None
        order = value - literal
    elif isinstance(value, float) and isinstance(literal, Decimal):
        if math.isnan(value):
            return None
        order = (value > float(literal)) - (value < float(literal))
    elif isinstance(value, int | Decimal) and isinstance(literal, Decimal):
        order = (value > literal) - (value < literal)
    else:
        return None
    return order in _ORDERS[operator]


# -- how it is read

_SAME: Final = {"==": "=", "<>": "!="}
_MAX_DIGITS: Final = 40
_MAX_EXPONENT: Final = 999
_TESTS: Final = f"one of {', '.join(OPERATORS)}, IN, NOT IN, IS NULL, IS NOT NULL"


class _Parser:
    """Recursive descent; whatever the text, it ends with a node or an InputError."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise InputError(f"the condition has {len(text)} characters", hint=f"use {MAX_LENGTH} at most")
        self.mentions: list[Mention] = []
        self._tokens = tokens_of(text)
        self._at = 0

    def whole(self) -> Node:
        node = self._or(0)
        if self._next.kind != "end":
            raise self._unexpected("AND, OR or the end")
        return node

    @property
    def _next(self) -> ConditionToken:
        return self._tokens[self._at]

    def _take(self, kind: str, *texts: str) -> ConditionToken | None:
        token = self._next
        if token.kind != kind or (texts and token.text not in texts):
            return None
        self._at += kind != "end"
        return token

    def _unexpected(self, expected: str, hint: str = EXAMPLE) -> InputError:
        token = self._next
        found = "the end" if token.kind == "end" else repr(token.text[:60])
        return InputError(f"expected {expected} at character {token.position}, found {found}", hint=hint)

    def _or(self, depth: int) -> Node:
        parts = [self._and(depth)]
        while self._take("keyword", "or"):
            parts.append(self._and(depth))
        return Or(tuple(parts)) if len(parts) > 1 else parts[0]

    def _and(self, depth: int) -> Node:
        parts = [self._one(depth)]
        while self._take("keyword", "and"):
            parts.append(self._one(depth))
        return And(tuple(parts)) if len(parts) > 1 else parts[0]

    def _one(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            message = f"the condition is nested too deeply at character {self._next.position}"
            raise InputError(message, hint=f"at most {MAX_DEPTH} parentheses and NOTs inside each other")
        if self._take("keyword", "not"):
            return Negation(self._one(depth + 1))
        if self._take("sign", "("):
            node = self._or(depth + 1)
            if not self._take("sign", ")"):
                raise self._unexpected("AND, OR or )")
            return node
        return self._test()

    def _test(self) -> Node:
        column = self._take("word") or self._take("name")
        if column is None:
            raise self._unexpected("a column, NOT or (")
        name, operator = column.text.strip("`"), self._next.position
        if sign := self._take("sign", *OPERATORS, *_SAME):
            at, value = self._literal()
            return self._said(
                FieldCompare(name, _SAME.get(sign.text, sign.text), value), column.position, operator, at
            )
        if self._take("keyword", "is"):
            negative = self._take("keyword", "not")
            if not self._take("keyword", "null"):
                raise self._unexpected("NULL" if negative else "NULL or NOT NULL")
            node = self._said(FieldIsNull(name), column.position, operator)
            return Negation(node) if negative else node
        negative = self._take("keyword", "not")
        if not self._take("keyword", "in"):
            raise self._unexpected("IN" if negative else _TESTS)
        found = self._list()
        values = tuple(value for _, value in found)
        node = self._said(OneOf(name, values), column.position, operator, *(at for at, _ in found))
        return Negation(node) if negative else node

    def _said(
        self, test: FieldCompare | OneOf | FieldIsNull, position: int, operator: int, *values: int
    ) -> Node:
        self.mentions.append(Mention(test, position, operator, values))
        return test

    def _list(self) -> list[tuple[int, Literal]]:
        if not self._take("sign", "("):
            raise self._unexpected("( and a list of values")
        found = [self._literal()]
        while self._take("sign", ","):
            found.append(self._literal())
        if not self._take("sign", ")"):
            raise self._unexpected("a comma or )")
        return found

    def _literal(self) -> tuple[int, Literal]:
        """Where it is, and what."""
        if token := self._take("text"):
            quote = token.text[0]
            return token.position, token.text[1:-1].replace(quote * 2, quote)
        if token := self._take("keyword", "true", "false"):
            return token.position, token.text == "true"
        if token := self._take("number"):
            return token.position, _number(token)
        hint = "text goes in quotes: 'eu'; others are numbers, true and false; a missing value IS NULL"
        raise self._unexpected("a value", hint)


def _number(token: ConditionToken) -> Decimal:
    digits, _, exponent = token.text.lower().partition("e")
    if len(digits) > _MAX_DIGITS or len(exponent) > 6 or abs(int(exponent or 0)) > _MAX_EXPONENT:
        message = f"the number at character {token.position} is too long"
        raise InputError(message, hint=f"use {_MAX_DIGITS} digits and an exponent of {_MAX_EXPONENT} at most")
    return Decimal(token.text)
