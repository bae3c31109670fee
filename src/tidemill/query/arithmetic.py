"""Arithmetic and conditions over the columns of an answer: exact fractions, rounded once at the end, never
floats. Null if an operand is null or a divisor is zero."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import reduce
from typing import TYPE_CHECKING, Final

from tidemill.model.conditions.ast import Among, Compare, IsNull, Like, Literally, Test, Within
from tidemill.model.conditions.evaluation import evaluate
from tidemill.model.errors import QueryError
from tidemill.query.groups import flat
from tidemill.query.language.ast import Binary, Expression, Having, Unary, Value
from tidemill.query.ratio import DIGITS

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

MAX_SCALE: Final = 30  # digits after the point of a result
_LIMIT: Final = 10**38
_CONTEXT: Final = Context(prec=2_000)  # nothing is rounded on the way
_KEPT: Final[Mapping[str, Callable[[int], bool]]] = {
    "=": lambda order: order == 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
}


@dataclass(frozen=True, slots=True)
class Numbers:
    """For each row `over / under` with `under` above 0, both Python integers; meaningless where `null` is
    set."""

    over: NDArray[np.object_]
    under: NDArray[np.object_]
    null: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Truths:
    """For each row whether it is true, or false; neither if it is unknown."""

    true: NDArray[np.bool_]
    false: NDArray[np.bool_]


def scale_of(expression: Expression, scales: Mapping[Value, int]) -> int:
    """The number of decimals of an expression. Sums have the most that an operand has, products those of
    both. With a division anywhere in it, a result has `DIGITS` more than the most precise number in it."""
    if _divides(expression):
        return min(MAX_SCALE, max(_leaf_scales(expression, scales), default=0) + DIGITS)
    return min(MAX_SCALE, _plain_scale(expression, scales))


def computed(
    expression: Expression, columns: Mapping[Value, pa.ChunkedArray], rows: int, scale: int
) -> pa.ChunkedArray:
    """The value of an expression as a column of decimal128(38, scale), rounded half to even."""
    import pyarrow as pa

    numbers = _numbers(expression, columns, rows)
    unit, exact = 10**scale, list[Decimal | None]()
    for over, under, null in zip(numbers.over, numbers.under, numbers.null, strict=True):
        if null:
            exact.append(None)
            continue
        whole, rest = divmod(over * unit, under)
        whole += 2 * rest > under or (2 * rest == under and whole % 2)
        if abs(whole) >= _LIMIT:
            raise QueryError(
                "a number of the answer has more than 38 digits",
                hint="divide earlier in the expression, or multiply by less",
                position=expression.position,
            )
        exact.append(Decimal(whole).scaleb(-scale, _CONTEXT))
    return pa.chunked_array([pa.array(exact, type=pa.decimal128(38, scale))])


def holds(condition: Having, columns: Mapping[Value, pa.ChunkedArray], rows: int) -> NDArray[np.bool_]:
    """For each row whether the condition of HAVING is true."""
    return evaluate(condition, lambda test: _tested(test, columns, rows), _LOGIC).true


class _AnswerColumns:
    """NOT, AND and OR over columns of truths."""

    def negated(self, term: Truths) -> Truths:
        return Truths(term.false, term.true)

    def every(self, terms: Iterable[Truths]) -> Truths:
        return reduce(lambda a, b: Truths(a.true & b.true, a.false | b.false), terms)

    def some(self, terms: Iterable[Truths]) -> Truths:
        return reduce(lambda a, b: Truths(a.true | b.true, a.false & b.false), terms)


_LOGIC: Final = _AnswerColumns()


def _tested(
    test: Test[Expression, Expression], columns: Mapping[Value, pa.ChunkedArray], rows: int
) -> Truths:
    of = _numbers(test.operand, columns, rows)

    def compared(operator: str, other: Expression) -> Truths:
        return _compared(of, operator, _numbers(other, columns, rows))

    match test:
        case Compare(_, operator, value):
            return compared(operator, value)
        case Among(_, values):
            return _LOGIC.some(compared("=", value) for value in values)
        case Within(_, low, high):
            return _LOGIC.every((compared(">=", low), compared("<=", high)))
        case IsNull():
            return Truths(of.null, ~of.null)
        case Like():
            raise AssertionError("the grammar of HAVING has no LIKE")


def _compared(a: Numbers, operator: str, b: Numbers) -> Truths:
    import numpy as np

    order = a.over * b.under - b.over * a.under
    passed = np.fromiter(map(_KEPT[operator], order), np.bool_, len(order))
    known = ~(a.null | b.null)
    return Truths(passed & known, ~passed & known)


def _numbers(expression: Expression, columns: Mapping[Value, pa.ChunkedArray], rows: int) -> Numbers:
    import numpy as np

    match expression:
        case Value():
            return _of_column(columns[expression])
        case Literally(value):
            assert isinstance(value, int | Decimal)
            over, under = Decimal(value).as_integer_ratio()
            overs, unders = (np.full(rows, part, dtype=object) for part in (over, under))
            return Numbers(overs, unders, np.zeros(rows, np.bool_))
        case Unary(_, term):
            of = _numbers(term, columns, rows)
            return Numbers(-of.over, of.under, of.null)
        case Binary(operator, left, right):
            return _joined(operator, _numbers(left, columns, rows), _numbers(right, columns, rows))


def _joined(operator: str, a: Numbers, b: Numbers) -> Numbers:
    import numpy as np

    null = a.null | b.null
    match operator:
        case "+":
            return Numbers(a.over * b.under + b.over * a.under, a.under * b.under, null)
        case "-":
            return Numbers(a.over * b.under - b.over * a.under, a.under * b.under, null)
        case "*":
            return Numbers(a.over * b.over, a.under * b.under, null)
    zero = (b.over == 0).astype(np.bool_)
    divisor = np.where(zero, 1, b.over)
    sign = np.where(divisor < 0, -1, 1)
    return Numbers(a.over * b.under * sign, a.under * divisor * sign, null | zero)


def _of_column(column: pa.ChunkedArray) -> Numbers:
    import numpy as np
    import pyarrow.types as types

    scale = column.type.scale if types.is_decimal(column.type) else 0
    values = flat(column).to_pylist()
    over = np.empty(len(values), dtype=object)
    over[:] = [0 if value is None else int(Decimal(value).scaleb(scale, _CONTEXT)) for value in values]
    under = np.full(len(values), 10**scale, dtype=object)
    return Numbers(over, under, np.array([value is None for value in values], np.bool_))


def _divides(expression: Expression) -> bool:
    match expression:
        case Binary(operator, left, right):
            return operator == "/" or _divides(left) or _divides(right)
        case Unary(_, term):
            return _divides(term)
        case _:
            return False


def _leaf_scales(expression: Expression, scales: Mapping[Value, int]) -> list[int]:
    match expression:
        case Binary(_, left, right):
            return [*_leaf_scales(left, scales), *_leaf_scales(right, scales)]
        case Unary(_, term):
            return _leaf_scales(term, scales)
        case _:
            return [_plain_scale(expression, scales)]


def _plain_scale(expression: Expression, scales: Mapping[Value, int]) -> int:
    match expression:
        case Value():
            return scales[expression]
        case Literally(value):
            exponent = Decimal(value).as_tuple().exponent if isinstance(value, int | Decimal) else 0
            return max(0, -exponent) if isinstance(exponent, int) else 0
        case Unary(_, term):
            return _plain_scale(term, scales)
        case Binary("*", left, right):
            return _plain_scale(left, scales) + _plain_scale(right, scales)
        case Binary(_, left, right):
            return max(_plain_scale(left, scales), _plain_scale(right, scales))
