"""A condition as frozen values, each with the character it was read at. Positions do not count when two
conditions are compared. Whether the names in a condition exist is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final, Generic, TypeVar

from tidemill.model.errors import QueryError

Scalar = str | int | bool | Decimal
COMPARISONS: Final = ("=", "!=", "<", "<=", ">", ">=")
MAX_DEPTH: Final = 50  # parentheses and NOTs inside each other: what recurses stays shallow

T = TypeVar("T")  # what a test is about: a field, or in HAVING an expression
V = TypeVar("V")  # what it is compared with: a literal, or in HAVING an expression


@dataclass(frozen=True, slots=True)
class Path:
    """A dotted name: a stream, a metric, a dimension, a measure, a function, a field of a payload.

    `segments` are its steps: cut at the dots, but not at those inside `backticks`.
    """

    text: str
    position: int = field(default=0, compare=False)
    segments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.segments:
            object.__setattr__(self, "segments", tuple(self.text.split(".")))


@dataclass(frozen=True, slots=True)
class Literally:
    """A value written out in a condition."""

    value: Scalar
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Compare(Generic[T, V]):
    operand: T
    operator: str  # one of COMPARISONS
    value: V


@dataclass(frozen=True, slots=True)
class Among(Generic[T, V]):
    """`x IN (a, b)`."""

    operand: T
    values: tuple[V, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Like(Generic[T, V]):
    operand: T
    pattern: Literally
    negated: bool = False
    any_case: bool = False  # ILIKE


@dataclass(frozen=True, slots=True)
class Within(Generic[T, V]):
    """`x BETWEEN low AND high`, both included."""

    operand: T
    low: V
    high: V
    negated: bool = False


@dataclass(frozen=True, slots=True)
class IsNull(Generic[T, V]):
    operand: T
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Not(Generic[T, V]):
    term: AnyCondition[T, V]


@dataclass(frozen=True, slots=True)
class All(Generic[T, V]):
    """Every term holds (AND)."""

    terms: tuple[AnyCondition[T, V], ...]


@dataclass(frozen=True, slots=True)
class AnyOf(Generic[T, V]):
    """At least one term holds (OR)."""

    terms: tuple[AnyCondition[T, V], ...]


Test = Compare[T, V] | Among[T, V] | Like[T, V] | Within[T, V] | IsNull[T, V]
AnyCondition = Test[T, V] | Not[T, V] | All[T, V] | AnyOf[T, V]
Condition = AnyCondition[Path, Literally]
"""On the fields of a record."""
FieldTest = Test[Path, Literally]


def tests_in(condition: AnyCondition[T, V] | None) -> Iterator[Test[T, V]]:
    """The tests that a condition is made of, in the order in which they are written."""
    match condition:
        case None:
            return
        case Not(term):
            yield from tests_in(term)
        case All(terms) | AnyOf(terms):
            for term in terms:
                yield from tests_in(term)
        case _:
            yield condition


def values_of_test(test: Test[T, V]) -> tuple[V | Literally, ...]:
    """What a test compares its operand with."""
    match test:
        case Compare(_, _, value):
            return (value,)
        case Among(_, values):
            return values
        case Like(_, pattern):
            return (pattern,)
        case Within(_, low, high):
            return (low, high)
        case IsNull():
            return ()


def paths_in(condition: Condition | None) -> Iterator[Path]:
    """The paths of a condition, in the order in which they are written."""
    return (test.operand for test in tests_in(condition))


def literals_in(condition: Condition | None) -> Iterator[Literally]:
    return (literal for test in tests_in(condition) for literal in values_of_test(test))


def mapped(
    condition: AnyCondition[T, V], operand: Callable[[T], T], value: Callable[[V], V]
) -> AnyCondition[T, V]:
    """The same condition on other operands, compared with other values."""
    match condition:
        case Not(term):
            return Not(mapped(term, operand, value))
        case All(terms):
            return All(tuple(mapped(term, operand, value) for term in terms))
        case AnyOf(terms):
            return AnyOf(tuple(mapped(term, operand, value) for term in terms))
        case Compare(of, operator, other):
            return Compare(operand(of), operator, value(other))
        case Among(of, values, negated):
            return Among(operand(of), tuple(map(value, values)), negated)
        case Within(of, low, high, negated):
            return Within(operand(of), value(low), value(high), negated)
        case Like(of, pattern, negated, any_case):
            return Like(operand(of), pattern, negated, any_case)
        case IsNull(of, negated):
            return IsNull(operand(of), negated)


def bounded(condition: AnyCondition[T, V], position: int) -> AnyCondition[T, V]:
    """The condition, unless it is nested too deeply. Checked as it grows, so that nothing that walks a
    condition runs out of stack."""
    if _nesting(condition) > MAX_DEPTH:
        raise QueryError(
            "the condition is nested too deeply",
            hint=f"use at most {MAX_DEPTH} parentheses and NOTs inside each other",
            position=position,
        )
    return condition


def _nesting(condition: AnyCondition[T, V]) -> int:
    """How many parentheses and NOTs it takes to write the condition down."""
    match condition:
        case Not(term):
            return 1 + isinstance(term, All | AnyOf) + _nesting(term)
        case All(terms) | AnyOf(terms):
            return max(_in_parentheses(term, condition) + _nesting(term) for term in terms)
        case _:
            return 0


def _in_parentheses(term: AnyCondition[T, V], group: All[T, V] | AnyOf[T, V]) -> bool:
    return isinstance(term, AnyOf) or (isinstance(term, All) and isinstance(group, All))
