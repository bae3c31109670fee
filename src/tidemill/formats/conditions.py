"""Evaluates conditions over whole columns, with the results of `model.conditions.evaluation` for each row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal, localcontext
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.formats.arrays import Mask
from tidemill.formats.arrow import unscaled
from tidemill.model.conditions.ast import Among, Compare, Condition, FieldTest, IsNull, Like, Scalar, Within
from tidemill.model.conditions.evaluation import evaluate
from tidemill.model.conditions.like import matcher

ColumnOf = Callable[[str], tuple[pa.Array, int]]
"""The values of a field, and the scale of integers that stand for decimals (else 0)."""

_COMPARE: Final[dict[str, Callable[[pa.Array, pa.Scalar], pa.Array]]] = {
    "=": pc.equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip
# How to compare integers with the integer below a literal that lies between two.
_TO_FLOOR: Final = {"<": "<=", ">=": ">"}
_WORD_DIGITS: Final = 18  # digits of a decimal that fits 64 bits
_LEAST, _MOST = -(2**63), 2**63 - 1


class _Kleene:
    """Three-valued logic: null is unknown."""

    def negated(self, term: pa.BooleanArray) -> pa.BooleanArray:
        return pc.invert(term)

    def every(self, terms: Iterable[pa.BooleanArray]) -> pa.BooleanArray:
        return reduce(pc.and_kleene, terms)

    def some(self, terms: Iterable[pa.BooleanArray]) -> pa.BooleanArray:
        return reduce(pc.or_kleene, terms)


def holds(condition: Condition, column_of: ColumnOf) -> Mask:
    """For each row whether the condition is true."""
    truth = evaluate(condition, lambda test: _tested(test, column_of), _Kleene())
    return np.asarray(truth.fill_null(False) if truth.null_count else truth)


def _tested(test: FieldTest, column_of: ColumnOf) -> pa.BooleanArray:
    values, scale = column_of(test.operand.text)
    match test:
        case Compare(_, operator, literal):
            return _compared(values, scale, operator, literal.value)
        case Among(_, literals):
            equal = (_compared(values, scale, "=", literal.value) for literal in literals)
            return reduce(pc.or_kleene, equal)
        case Within(_, low, high):
            above, below = (
                _compared(values, scale, operator, literal.value)
                for operator, literal in ((">=", low), ("<=", high))
            )
            return pc.and_kleene(above, below)
        case Like(_, pattern, _, any_case):
            return _matched(values, matcher(str(pattern.value), any_case))
        case IsNull():
            return pc.is_null(values)


def _matched(values: pa.Array, matches: Callable[[str], bool]) -> pa.BooleanArray:
    if pa.types.is_string(values.type):
        values = values.dictionary_encode()
    if not pa.types.is_dictionary(values.type):
        return pa.nulls(len(values), pa.bool_())
    known = [None if text is None else matches(text) for text in values.dictionary.to_pylist()]
    return pa.array(known, pa.bool_()).take(values.indices)


def _compared(values: pa.Array, scale: int, operator: str, literal: Scalar) -> pa.BooleanArray:
    """Compare a column with a literal. Values of different kinds are unordered, and not known to differ."""
    kind = values.type
    if pa.types.is_dictionary(kind) and isinstance(literal, str):
        return _compared(values.dictionary, 0, operator, literal).take(values.indices)
    if pa.types.is_string(kind) and isinstance(literal, str):
        return _COMPARE[operator](values, pa.scalar(literal))
    if pa.types.is_boolean(kind) and isinstance(literal, bool):
        return _COMPARE[operator](values.cast(pa.int8()), pa.scalar(int(literal), pa.int8()))
    if isinstance(literal, int | Decimal) and not isinstance(literal, bool):
        if pa.types.is_floating(kind):
            return _COMPARE[operator](values, pa.scalar(float(literal)))
        if pa.types.is_integer(kind):
            return _compared_exactly(values, operator, literal, scale)
        if pa.types.is_decimal(kind) and kind.precision > _WORD_DIGITS:
            return _compared_wide(values, operator, literal)
        if pa.types.is_decimal(kind):
            absent = np.asarray(values.is_null()) if values.null_count else None
            return _compared_exactly(pa.array(unscaled(values), mask=absent), operator, literal, kind.scale)
    return pa.nulls(len(values), pa.bool_())


def _compared_exactly(values: pa.Array, operator: str, literal: int | Decimal, scale: int) -> pa.BooleanArray:
    """Compare integers with a literal that may lie between two of them, or beyond all."""
    above, below = literal.as_integer_ratio()
    floor, rest = divmod(above * 10**scale, below)
    if not rest and _LEAST <= floor <= _MOST:
        return _COMPARE[operator](values, pa.scalar(floor, pa.int64()))
    if operator == "=":
        return _constant(values, False)
    if not _LEAST <= floor <= _MOST:
        return _constant(values, (floor > _MOST) == operator.startswith("<"))
    return _COMPARE[_TO_FLOOR.get(operator, operator)](values, pa.scalar(floor, pa.int64()))


def _compared_wide(values: pa.Array, operator: str, literal: int | Decimal) -> pa.BooleanArray:
    """The same for decimals that do not fit 64 bits."""
    kind = values.type
    above, below = literal.as_integer_ratio()
    floor, rest = divmod(above * 10**kind.scale, below)
    beyond = abs(floor) >= 10**kind.precision
    if operator == "=" and (rest or beyond):
        return _constant(values, False)
    if beyond:
        return _constant(values, (floor > 0) == operator.startswith("<"))
    with localcontext(prec=kind.precision):
        at = pa.scalar(Decimal(floor).scaleb(-kind.scale), kind)
    return _COMPARE[_TO_FLOOR.get(operator, operator) if rest else operator](values, at)


def _constant(values: pa.Array, truth: bool) -> pa.BooleanArray:
    """The same truth value for every row that has a value."""
    if not values.null_count:
        return pa.repeat(truth, len(values))
    return pc.if_else(values.is_valid(), pa.scalar(truth), pa.scalar(None, pa.bool_()))
