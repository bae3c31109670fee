"""Conditions over columns have the truth that `Predicate.holds` has for each row."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples

from tidemill.formats.arrow import one
from tidemill.formats.conditions import holds
from tidemill.model.predicates import (
    OPERATORS,
    And,
    FieldCompare,
    FieldIsNull,
    Given,
    Literal,
    Negation,
    Node,
    OneOf,
    Or,
    Predicate,
)

TYPES = {
    "i": pa.int64(),
    "d": pa.decimal128(18, 3),
    "f": pa.float64(),
    "s": pa.string(),
    "c": pa.dictionary(pa.int32(), pa.string()),
    "o": pa.bool_(),
}
Row = tuple[int | None, Decimal | None, float | None, str | None, str | None, bool | None]

TEXTS = st.sampled_from(["", "a", "b", "é", "\U0001f600", "\uffff"])
NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([2**63 - 1, -(2**63)]),
)
THOUSANDTHS = st.integers(-3_000, 3_000).map(lambda n: Decimal(n).scaleb(-3))
LITERALS: st.SearchStrategy[Literal] = st.one_of(
    st.sampled_from([Decimal("0.0005"), Decimal("-0.0"), Decimal("1e30"), Decimal("-1e30"), Decimal("0.1")]),
    st.sampled_from([Decimal(2**63), Decimal(-(2**63)), Decimal(-(2**63) - 1), Decimal("1e400")]),
    THOUSANDTHS,
    NUMBERS.map(Decimal),
    TEXTS,
    st.booleans(),
)
ROWS = st.lists(
    st.tuples(
        st.none() | NUMBERS,
        st.none() | THOUSANDTHS | st.sampled_from([Decimal("999999999999999.999")]),
        st.none() | st.sampled_from([0.0, -0.0, 0.1, float("inf"), -float("inf"), 1e300, 0.5]),
        st.none() | TEXTS,
        st.none() | TEXTS,
        st.none() | st.booleans(),
    ),
    max_size=12,
)
COLUMNS = st.sampled_from([name.removeprefix("") for name in TYPES])
LEAVES: st.SearchStrategy[Node] = st.one_of(
    st.builds(FieldCompare, COLUMNS, st.sampled_from(OPERATORS), LITERALS),
    st.builds(OneOf, COLUMNS, st.lists(LITERALS, min_size=1, max_size=3).map(tuple)),
    st.builds(FieldIsNull, COLUMNS),
)
NODES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(Negation, inner),
        st.builds(And, st.lists(inner, min_size=1, max_size=3).map(tuple)),
        st.builds(Or, st.lists(inner, min_size=1, max_size=3).map(tuple)),
    ),
    max_leaves=6,
)


def columns_of(rows: list[Row]) -> Callable[[str], tuple[pa.Array, int]]:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(TYPES)
    found = {
        name: pa.array(column, kind) for (name, kind), column in zip(TYPES.items(), columns, strict=True)
    }
    return lambda name: (one(found[name]), 0)


@examples(400)
@given(NODES, ROWS)
@example(FieldCompare("d", "<", Decimal("1e400")), [(None, Decimal(1), 1.0, None, None, None)])
def test_a_condition_holds_for_the_rows_it_holds_for_one_by_one(node: Node, rows: list[Row]) -> None:
    predicate = Predicate("", node)

    def one_by_one(row: Row) -> bool:
        values: dict[str, Given] = dict(zip((name.removeprefix("") for name in TYPES), row, strict=True))
        return predicate.holds(values.__getitem__)

    assert holds(predicate, columns_of(rows)).tolist() == [one_by_one(row) for row in rows]


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (FieldCompare("i", "=", Decimal(1)), [True, False, False]),
        (Negation(FieldCompare("i", "=", Decimal(1))), [False, True, False]),
        (Or((FieldCompare("i", "=", Decimal(1)), FieldIsNull("i"))), [True, False, True]),
        (FieldCompare("i", ">", Decimal("1.5")), [False, True, False]),
        (Negation(OneOf("i", (Decimal(1), Decimal(3)))), [False, True, False]),
        (FieldCompare("i", "=", "1"), [False, False, False]),
        (Negation(FieldCompare("i", "=", "1")), [False, False, False]),
    ],
)
def test_a_missing_value_is_unknown_and_unknown_does_not_pass(node: Node, expected: list[bool]) -> None:
    rows: list[Row] = [(value, None, None, None, None, None) for value in (1, 2, None)]
    assert holds(Predicate("", node), columns_of(rows)).tolist() == expected


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(
    "literal", ["0", "12.34", "12.345", "-12.345", "9" * 36 + ".99", "1e36", "-1e36", "1e40", "1e-9"]
)
def test_sums_that_64_bits_do_not_hold_are_compared_exactly(operator: str, literal: str) -> None:
    texts = ["0", "12.34", "-12.34", "-12.35", "9" * 36 + ".99", "-" + "9" * 36 + ".99", None]
    values = [None if text is None else Decimal(text) for text in texts]
    column = pa.array(values, pa.decimal128(38, 2))
    predicate = Predicate("", FieldCompare("sum", operator, Decimal(literal)))
    expected = [predicate.holds(lambda _, value=value: value) for value in values]
    assert holds(predicate, lambda _: (column, 0)).tolist() == expected
