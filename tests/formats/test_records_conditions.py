"""Conditions over columns come to what they come to for each row."""

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
from tidemill.model.conditions.ast import (
    COMPARISONS,
    All,
    Among,
    AnyOf,
    Compare,
    Condition,
    IsNull,
    Like,
    Literally,
    Not,
    Path,
    Scalar,
    Within,
)
from tidemill.model.conditions.evaluation import FieldValue, truth

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
LITERALS: st.SearchStrategy[Scalar] = st.one_of(
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
COLUMNS = st.sampled_from(list(TYPES)).map(Path)
NEGATED = st.booleans()
WRITTEN = LITERALS.map(Literally)
PATTERNS = st.sampled_from(["", "%", "a%", "_", "A", "É", "%b"]).map(Literally)
LEAVES: st.SearchStrategy[Condition] = st.one_of(
    st.builds(Compare, COLUMNS, st.sampled_from(COMPARISONS), WRITTEN),
    st.builds(Among, COLUMNS, st.lists(WRITTEN, min_size=1, max_size=3).map(tuple), NEGATED),
    st.builds(Like, COLUMNS, PATTERNS, NEGATED, st.booleans()),
    st.builds(Within, COLUMNS, WRITTEN, WRITTEN, NEGATED),
    st.builds(IsNull, COLUMNS, NEGATED),
)
CONDITIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(All, st.lists(inner, min_size=1, max_size=3).map(tuple)),
        st.builds(AnyOf, st.lists(inner, min_size=1, max_size=3).map(tuple)),
    ),
    max_leaves=6,
)


def compare(column: str, operator: str, value: Scalar) -> Condition:
    return Compare(Path(column), operator, Literally(value))


def holds_for(condition: Condition, values: dict[str, FieldValue]) -> bool:
    return truth(condition, lambda path: (values[path.text],)) is True


def columns_of(rows: list[Row]) -> Callable[[str], tuple[pa.Array, int]]:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(TYPES)
    found = {
        name: pa.array(column, kind) for (name, kind), column in zip(TYPES.items(), columns, strict=True)
    }
    return lambda name: (one(found[name]), 0)


@examples(400)
@given(CONDITIONS, ROWS)
@example(compare("d", "<", Decimal("1e400")), [(None, Decimal(1), 1.0, None, None, None)])
def test_a_condition_holds_for_the_rows_it_holds_for_one_by_one(
    condition: Condition, rows: list[Row]
) -> None:
    expected = [holds_for(condition, dict(zip(TYPES, row, strict=True))) for row in rows]
    assert holds(condition, columns_of(rows)).tolist() == expected


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (compare("i", "=", 1), [True, False, False]),
        (compare("i", "!=", 1), [False, True, False]),
        (Not(compare("i", "=", 1)), [False, True, False]),
        (AnyOf((compare("i", "=", 1), IsNull(Path("i")))), [True, False, True]),
        (compare("i", ">", Decimal("1.5")), [False, True, False]),
        (Among(Path("i"), (Literally(1), Literally(3)), negated=True), [False, True, False]),
        (Within(Path("i"), Literally(2), Literally(3)), [False, True, False]),
        (Within(Path("i"), Literally(2), Literally(3), negated=True), [True, False, False]),
        (compare("i", "=", "1"), [False, False, False]),
        (Not(compare("i", "=", "1")), [False, False, False]),
    ],
)
def test_a_missing_value_is_unknown_and_unknown_does_not_pass(
    condition: Condition, expected: list[bool]
) -> None:
    rows: list[Row] = [(value, None, None, None, None, None) for value in (1, 2, None)]
    assert holds(condition, columns_of(rows)).tolist() == expected


@pytest.mark.parametrize("operator", COMPARISONS)
@pytest.mark.parametrize(
    "literal", ["0", "12.34", "12.345", "-12.345", "9" * 36 + ".99", "1e36", "-1e36", "1e40", "1e-9"]
)
def test_sums_that_64_bits_do_not_hold_are_compared_exactly(operator: str, literal: str) -> None:
    texts = ["0", "12.34", "-12.34", "-12.35", "9" * 36 + ".99", "-" + "9" * 36 + ".99", None]
    values = [None if text is None else Decimal(text) for text in texts]
    column = pa.array(values, pa.decimal128(38, 2))
    condition = compare("sum", operator, Decimal(literal))
    expected = [holds_for(condition, {"sum": value}) for value in values]
    assert holds(condition, lambda _: (column, 0)).tolist() == expected
