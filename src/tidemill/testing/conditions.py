"""The truth of a condition for one record, computed as simply as possible: a loop over its values.

It shares only the types of conditions with the product, none of its code; if the two differ, one is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

from tidemill.model.conditions.ast import (
    All,
    Among,
    AnyOf,
    Compare,
    Condition,
    FieldTest,
    IsNull,
    Like,
    Literally,
    Not,
    Within,
)

RecordValue = str | bool | int | float | Decimal | Fraction | None


def condition_is(
    condition: Condition, value_of: Callable[[str], RecordValue | list[RecordValue]]
) -> bool | None:
    """True, False, or None if a missing value decides, as in SQL. `value_of` returns the value of a field,
    None if it is missing, and the values of a list."""
    if isinstance(condition, Not):
        inner = condition_is(condition.term, value_of)
        return None if inner is None else not inner
    if isinstance(condition, All | AnyOf):
        terms = [condition_is(term, value_of) for term in condition.terms]
        decisive = isinstance(condition, AnyOf)
        return decisive if decisive in terms else None if None in terms else not decisive
    found = value_of(condition.operand.text)
    values: list[RecordValue] = list(found) if isinstance(found, list) else [found]
    if isinstance(condition, IsNull):
        return condition.negated is not all(value is None for value in values)
    outcomes = [_passes(condition, value) for value in values]
    passed = True if True in outcomes else None if None in outcomes or not outcomes else False
    negative = condition.operator == "!=" if isinstance(condition, Compare) else condition.negated
    return passed if passed is None else passed is not negative


def _passes(test: FieldTest, value: RecordValue) -> bool | None:
    """Whether one value passes, as if the test were not negated."""
    if isinstance(test, Compare):
        return _order(value, test.value, "=" if test.operator == "!=" else test.operator)
    if isinstance(test, Among):
        outcomes = [_order(value, literal, "=") for literal in test.values]
        return True if True in outcomes else None if None in outcomes else False
    if isinstance(test, Within):
        outcomes = [_order(value, test.low, ">="), _order(value, test.high, "<=")]
        return False if False in outcomes else None if None in outcomes else True
    assert isinstance(test, Like)
    return _has_form(value, str(test.pattern.value), test.any_case) if isinstance(value, str) else None


def _order(value: RecordValue, literal: Literally, operator: str) -> bool | None:
    one, other = _comparable(value, literal.value), _comparable(literal.value, value)
    if type(one) is not type(other) or one is None or one != one:
        return None
    less, equal = one < other, one == other  # type: ignore[operator]
    return {"=": equal, "<": less, "<=": less or equal, ">": not (less or equal), ">=": not less}[operator]


def _comparable(value: RecordValue, with_: RecordValue) -> str | bool | float | Fraction | None:
    """A number as a fraction, or as the nearest double when the other one is a double."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, float) or isinstance(with_, float):
        return float(value)
    return Fraction(value)


def _has_form(text: str, pattern: str, any_case: bool) -> bool:
    if any_case:
        text, pattern = (
            "".join("i" if char == "İ" else min(char.lower(), char, key=len) for char in each)
            for each in (text, pattern)
        )
    pieces = re.findall(r"\\.|.", pattern, re.DOTALL)
    forms = {"%": ".*", "_": "."}
    expression = "".join(forms.get(piece) or re.escape(piece[-1]) for piece in pieces)
    return re.fullmatch(expression, text, re.DOTALL) is not None
