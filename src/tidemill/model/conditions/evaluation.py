"""Evaluates a condition: true, false or unknown.

The rules, for every engine that evaluates conditions:

- A test of a missing value is unknown, and so is a comparison of values of different kinds (a string and a
  number, say). Only IS NULL is never unknown.
- `!=`, NOT IN, NOT LIKE, NOT BETWEEN and IS NOT NULL are NOT of the test without the NOT.
- NOT keeps unknown. AND is false when a term is false, else unknown when one is unknown. OR is true when a
  term is true, else unknown when one is unknown.
- A record passes only when the condition is true.
- Where a field is a list (in a payload), a test holds when one of its values passes it.

`evaluate` combines the results of the tests of a condition; `truth` also evaluates the test of one value.
Numbers are compared exactly, but for a float: that is compared with the double nearest to the literal. Text
is compared by code points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Final, Protocol, TypeVar

from tidemill.model.conditions.ast import (
    All,
    Among,
    AnyCondition,
    AnyOf,
    Compare,
    Condition,
    FieldTest,
    IsNull,
    Like,
    Not,
    Path,
    Scalar,
    T,
    Test,
    V,
    Within,
)
from tidemill.model.conditions.like import matcher

FieldValue = str | int | bool | float | Decimal | None
B = TypeVar("B")

_ORDERS: Final = {"=": (0,), "<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1)}


class Logic(Protocol[B]):
    """NOT, AND and OR over truths of some kind: of one record, of a column of records, of SQL."""

    def negated(self, term: B) -> B: ...

    def every(self, terms: Iterable[B]) -> B: ...

    def some(self, terms: Iterable[B]) -> B: ...


def evaluate(condition: AnyCondition[T, V], test: Callable[[Test[T, V]], B], logic: Logic[B]) -> B:
    """Combine the results that `test` gives for the tests of a condition; it never gets `!=` or a negated
    test."""
    match condition:
        case Not(term):
            return logic.negated(evaluate(term, test, logic))
        case All(terms):
            return logic.every(evaluate(term, test, logic) for term in terms)
        case AnyOf(terms):
            return logic.some(evaluate(term, test, logic) for term in terms)
        case Compare(operand, "!=", value):
            return logic.negated(test(Compare(operand, "=", value)))
        case Among(operand, values, True):
            return logic.negated(test(Among(operand, values)))
        case Like(operand, pattern, True, any_case):
            return logic.negated(test(Like(operand, pattern, any_case=any_case)))
        case Within(operand, low, high, True):
            return logic.negated(test(Within(operand, low, high)))
        case IsNull(operand, True):
            return logic.negated(test(IsNull(operand)))
        case _:
            return test(condition)


class _Truths:
    """The logic of one record: True, False, or None for unknown."""

    def negated(self, term: bool | None) -> bool | None:
        return None if term is None else not term

    def every(self, terms: Iterable[bool | None]) -> bool | None:
        return self.negated(self.some(map(self.negated, terms)))

    def some(self, terms: Iterable[bool | None]) -> bool | None:
        unknown = False
        for term in terms:
            if term:
                return True
            unknown = unknown or term is None
        return None if unknown else False


_TRUTHS: Final = _Truths()


def truth(condition: Condition, values_of: Callable[[Path], Sequence[FieldValue]]) -> bool | None:
    """True, False or None, by the values that each path has in one record: none, one, or those of a list."""

    def of_record(test: FieldTest) -> bool | None:
        values = values_of(test.operand)
        if isinstance(test, IsNull):
            return all(value is None for value in values)
        passes = _passing(test)
        return _TRUTHS.some(map(passes, values)) if values else None

    return evaluate(condition, of_record, _TRUTHS)


def values_at(payload: object, path: Path) -> list[FieldValue]:
    """The values at a path, in the order of the payload. An array stands for its elements at every step, and
    at the end; objects and missing steps give no values."""
    found: list[FieldValue] = []
    left: list[tuple[object, int]] = [(payload, 0)]
    while left:
        value, step = left.pop()
        if isinstance(value, list | tuple):
            left.extend((element, step) for element in reversed(value))
        elif isinstance(value, Mapping):
            if step < len(path.segments) and path.segments[step] in value:
                left.append((value[path.segments[step]], step + 1))
        elif step == len(path.segments) and (value is None or isinstance(value, str | int | Decimal)):
            found.append(value)
    return found


def _passing(test: FieldTest) -> Callable[[FieldValue], bool | None]:
    match test:
        case Compare(_, operator, literal):
            return lambda value: compared(value, operator, literal.value)
        case Among(_, literals):
            return lambda value: _TRUTHS.some(compared(value, "=", literal.value) for literal in literals)
        case Like(_, pattern, _, any_case):
            matches = matcher(str(pattern.value), any_case)
            return lambda value: matches(value) if isinstance(value, str) else None
        case Within(_, low, high):
            return lambda value: _TRUTHS.every(
                (compared(value, ">=", low.value), compared(value, "<=", high.value))
            )
        case IsNull():
            return lambda value: value is None


def compared(value: FieldValue, operator: str, literal: Scalar) -> bool | None:
    """Values of different kinds have no order and are not known to differ."""
    if isinstance(value, str) and isinstance(literal, str):
        order = (value > literal) - (value < literal)
    elif isinstance(value, bool) and isinstance(literal, bool):
        order = value - literal
    elif isinstance(value, float) and _is_number(literal) and not math.isnan(value):
        order = (value > float(literal)) - (value < float(literal))
    elif _is_number(value) and _is_number(literal):
        order = (value > literal) - (value < literal)  # type: ignore[operator]
    else:
        return None
    return order in _ORDERS[operator]


def _is_number(value: FieldValue) -> bool:
    """To Python a bool is a number; here it is not."""
    if isinstance(value, Decimal):
        return value.is_finite()
    return isinstance(value, int) and not isinstance(value, bool)
