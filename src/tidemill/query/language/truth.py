"""What a condition comes to over the values of a JSON payload: true, false, or None for unknown.
Knows nothing of indexes and tables, and never rounds a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Final

from tidemill.query.language.ast import (
    All,
    Among,
    AnyOf,
    Compare,
    Condition,
    IsNull,
    Like,
    Not,
    Path,
    Scalar,
    Within,
)
from tidemill.query.language.like import like, lowered

JsonScalar = str | int | bool | Decimal | None
"""A value of a payload whose numbers were read as int or Decimal."""

_ORDERS: Final = {"=": (0,), "<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1)}


def truth(condition: Condition, values_of: Callable[[Path], Sequence[JsonScalar] | None]) -> bool | None:
    """A test holds when one of the values of its path passes it. It is unknown when none does and one is
    null or of another kind, or when there is no value. `!=`, NOT IN and NOT LIKE are NOT of the test
    without the NOT, so `tags != "a"` says that no element is "a". IS NULL is never unknown: it is true
    when there is no value but null."""
    match condition:
        case Compare(path, "!=", literal):
            return _negated(truth(Compare(path, "=", literal), values_of))
        case Compare(path, operator, literal):
            return _of_any(values_of(path), lambda value: _compared(value, operator, literal.value))
        case Among(path, literals, negated):
            found = _of_any(
                values_of(path),
                lambda value: _any(_compared(value, "=", literal.value) for literal in literals),
            )
            return _negated(found) if negated else found
        case Like(path, pattern, negated, any_case):
            matches = _matcher(str(pattern.value), any_case)
            found = _of_any(values_of(path), lambda value: matches(value) if isinstance(value, str) else None)
            return _negated(found) if negated else found
        case Within(path, low, high, negated):
            found = _of_any(values_of(path), lambda value: _inside(value, low.value, high.value))
            return _negated(found) if negated else found
        case IsNull(path, negated):
            return negated is any(value is not None for value in values_of(path) or ())
        case Not(term):
            return _negated(truth(term, values_of))
        case AnyOf(terms):
            return _any(truth(term, values_of) for term in terms)
        case All(terms):
            return _negated(_any(_negated(truth(term, values_of)) for term in terms))


def values_at(payload: object, path: Path) -> list[JsonScalar]:
    """The values at a path, in the order of the payload. An array stands for its elements at every step,
    and at the end; an object is no value, and neither is what is not there."""
    found: list[JsonScalar] = []
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


def _of_any(values: Sequence[JsonScalar] | None, test: Callable[[JsonScalar], bool | None]) -> bool | None:
    return _any(map(test, values)) if values else None


def _any(truths: Iterable[bool | None]) -> bool | None:
    unknown = False
    for found in truths:
        if found:
            return True
        unknown = unknown or found is None
    return None if unknown else False


def _negated(found: bool | None) -> bool | None:
    return None if found is None else not found


def _matcher(pattern: str, any_case: bool) -> Callable[[str], bool]:
    if not any_case:
        return like(pattern)
    matches = like(lowered(pattern))
    return lambda text: matches(lowered(text))


def _inside(value: JsonScalar, low: Scalar, high: Scalar) -> bool | None:
    """One value has to be within both bounds."""
    outside = (_negated(_compared(value, ">=", low)), _negated(_compared(value, "<=", high)))
    return _negated(_any(outside))


def _compared(value: JsonScalar, operator: str, literal: Scalar) -> bool | None:
    """Values of different kinds have no order and are not known to differ."""
    if isinstance(value, str) and isinstance(literal, str):
        order = (value > literal) - (value < literal)
    elif isinstance(value, bool) and isinstance(literal, bool):
        order = value - literal
    elif _is_number(value) and _is_number(literal):
        order = (value > literal) - (value < literal)  # type: ignore[operator]
    else:
        return None
    return order in _ORDERS[operator]


def _is_number(value: JsonScalar) -> bool:
    """To Python a bool is a number; to JSON it is not."""
    if isinstance(value, Decimal):
        return value.is_finite()
    return isinstance(value, int) and not isinstance(value, bool)
