"""Conditions over whole columns: the same truth as `Predicate.holds`, for all rows at once.

Missing values make unknown, unknown is kept through NOT, AND and OR, and only true passes.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.formats.arrays import Mask
from tidemill.formats.arrow import unscaled
from tidemill.model.predicates import (
    And,
    FieldCompare,
    FieldIsNull,
    Literal,
    Negation,
    Node,
    OneOf,
    Or,
    Predicate,
)

ColumnOf = Callable[[str], tuple[pa.Array, int]]
"""The values of a field, and the scale of integers that stand for decimals (else 0)."""

_COMPARE: Final[dict[str, Callable[[pa.Array, pa.Scalar], pa.Array]]] = {
    "=": pc.equal, "!=": pc.not_equal,
    "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip
_TO_FLOOR: Final = {"<": "<=", ">=": ">"}  # of a literal between two integers, against the one below it
_WORD_DIGITS: Final = 18  # of a decimal that fits 64 bits
_LEAST, _MOST = -(2**63), 2**63 - 1


def holds(predicate: Predicate, column_of: ColumnOf) -> Mask:
    """For each row whether the condition is true."""
    truth = _truth(predicate.node, column_of)
    return np.asarray(truth.fill_null(False) if truth.null_count else truth)


def _truth(node: Node, column_of: ColumnOf) -> pa.BooleanArray:
    match node:
        case FieldCompare(column, operator, literal):
            return _compared(*column_of(column), operator, literal)
        case OneOf(column, literals):
            values, scale = column_of(column)
            return reduce(pc.or_kleene, [_compared(values, scale, "=", literal) for literal in literals])
        case FieldIsNull(column):
            return pc.is_null(column_of(column)[0])
        case Negation(inner):
            return pc.invert(_truth(inner, column_of))
        case And(parts):
            return reduce(pc.and_kleene, [_truth(part, column_of) for part in parts])
        case Or(parts):
            return reduce(pc.or_kleene, [_truth(part, column_of) for part in parts])


def _compared(values: pa.Array, scale: int, operator: str, literal: Literal) -> pa.BooleanArray:
    """Values of different kinds have no order and are not known to differ."""
    kind = values.type
    if pa.types.is_dictionary(kind) and isinstance(literal, str):
        return _compared(values.dictionary, 0, operator, literal).take(values.indices)
    if pa.types.is_string(kind) and isinstance(literal, str):
        return _COMPARE[operator](values, pa.scalar(literal))
    if pa.types.is_boolean(kind) and isinstance(literal, bool):
        return _COMPARE[operator](values.cast(pa.int8()), pa.scalar(int(literal), pa.int8()))
    if isinstance(literal, Decimal):
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


def _compared_exactly(values: pa.Array, operator: str, literal: Decimal, scale: int) -> pa.BooleanArray:
    """Integers against a literal that may lie between two of them, or beyond all."""
    above, below = literal.as_integer_ratio()
    floor, rest = divmod(above * 10**scale, below)
    if not rest and _LEAST <= floor <= _MOST:
        return _COMPARE[operator](values, pa.scalar(floor, pa.int64()))
    if operator in ("=", "!="):
        return _constant(values, operator == "!=")
    if not _LEAST <= floor <= _MOST:
        return _constant(values, (floor > _MOST) == operator.startswith("<"))
    return _COMPARE[_TO_FLOOR.get(operator, operator)](values, pa.scalar(floor, pa.int64()))


def _compared_wide(values: pa.Array, operator: str, literal: Decimal) -> pa.BooleanArray:
    """The same for decimals that 64 bits do not hold."""
    kind = values.type
    above, below = literal.as_integer_ratio()
    floor, rest = divmod(above * 10**kind.scale, below)
    beyond = abs(floor) >= 10**kind.precision
    if operator in ("=", "!=") and (rest or beyond):
        return _constant(values, operator == "!=")
    if beyond:
        return _constant(values, (floor > 0) == operator.startswith("<"))
    with localcontext(prec=kind.precision):
        at = pa.scalar(Decimal(floor).scaleb(-kind.scale), kind)
    return _COMPARE[_TO_FLOOR.get(operator, operator) if rest else operator](values, at)


def _constant(values: pa.Array, truth: bool) -> pa.BooleanArray:
    """The same wherever there is a value."""
    if not values.null_count:
        return pa.repeat(truth, len(values))
    return pc.if_else(values.is_valid(), pa.scalar(truth), pa.scalar(None, pa.bool_()))
