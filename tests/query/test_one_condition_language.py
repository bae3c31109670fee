"""One condition language: a filter of `tidemill.yaml`, FILTER of a query and a plain loop over the records
select the same records; HAVING selects the rows of an answer by the same rules."""

from __future__ import annotations

import json
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples

from tidemill.formats.conditions import holds as holds_for_columns
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
    Within,
)
from tidemill.model.conditions.declared import parse_condition
from tidemill.model.conditions.literals import condition_text
from tidemill.query.arithmetic import holds as holds_for_values
from tidemill.query.language.ast import Value
from tidemill.query.language.parse import parse_having, parse_search
from tidemill.query.search.kernel import holds as holds_for_payloads
from tidemill.testing.conditions import RecordValue, condition_is

COLUMNS = {"s": pa.string(), "i": pa.int64(), "d": pa.decimal128(18, 3), "o": pa.bool_(), "a.b": pa.string()}
TEXTS = st.sampled_from(["", "a", "b", "A", "ab", "é", "É", "it's", 'a"b', "%", "_", "İ", "\U0001f600"])
INTEGERS = st.integers(-3, 3) | st.sampled_from([2**53 + 1, 2**63 - 1, -(2**63)])
THOUSANDTHS = st.integers(-3_000, 3_000).map(lambda n: Decimal(n).scaleb(-3))
NUMBERS = INTEGERS | THOUSANDTHS | st.sampled_from([Decimal("0.0005"), Decimal("1E+30"), 10**30, 2**53])
PATHS = st.sampled_from(list(COLUMNS)).map(Path)
PATTERNS = st.sampled_from(["%", "a%", "%b", "_", "A_", "%'%", "", "É", "i"]).map(Literally)
KINDS = [kind.map(Literally) for kind in (TEXTS, NUMBERS, st.booleans())]
LITERALS = st.one_of(KINDS)
NEGATED = st.booleans()
TESTS: st.SearchStrategy[Condition] = st.one_of(
    st.builds(Compare, PATHS, st.sampled_from(COMPARISONS), LITERALS),
    st.builds(Among, PATHS, st.lists(LITERALS, min_size=1, max_size=3).map(tuple), NEGATED),
    st.builds(Like, PATHS, PATTERNS, NEGATED, st.booleans()),
    st.one_of([st.builds(Within, PATHS, kind, kind, NEGATED) for kind in KINDS]),
    st.builds(IsNull, PATHS, NEGATED),
)
CONDITIONS = st.recursive(
    TESTS,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(All, st.lists(inner, min_size=2, max_size=3).map(tuple)),
        st.builds(AnyOf, st.lists(inner, min_size=2, max_size=3).map(tuple)),
    ),
    max_leaves=6,
)
Record = dict[str, RecordValue]
RECORDS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "s": st.none() | TEXTS,
            "i": st.none() | INTEGERS,
            "d": st.none() | THOUSANDTHS,
            "o": st.none() | st.booleans(),
            "a.b": st.none() | TEXTS,
        },
    ),
    min_size=1,
    max_size=8,
)


def payload_of(record: Record) -> str:
    """As JSON; numbers keep the digits they have."""
    fields = {name: value for name, value in record.items() if name != "a.b"}
    if "a.b" in record:
        fields["a"] = {"b": record["a.b"]}
    text = json.dumps(fields, default=lambda number: f"<{number:f}>")
    return text.replace('"<', "").replace('>"', "")


@examples(300)
@given(CONDITIONS, RECORDS)
def test_a_filter_of_the_configuration_a_query_and_a_loop_select_the_same(
    condition: Condition, records: list[Record]
) -> None:
    text = condition_text(condition)
    columns = {
        name: pa.array([record.get(name) for record in records], kind) for name, kind in COLUMNS.items()
    }
    payloads = pa.array([payload_of(record) for record in records])
    declared, asked = parse_condition(text).condition, parse_search(f"FILTER {text}").filter
    assert asked == declared == condition

    expected = [condition_is(condition, record.get) is True for record in records]
    assert holds_for_columns(declared, lambda name: (columns[name], 0)).tolist() == expected
    assert holds_for_payloads(asked, payloads, {}).tolist() == expected


VALUES = {Value(Path("x")): "x", Value(Path("y")): "y"}
HAVINGS = st.recursive(
    st.one_of(
        st.builds(
            "{} {} {}".format,
            st.sampled_from(["x", "y"]),
            st.sampled_from([*COMPARISONS, "<>", "=="]),
            st.integers(-2, 2),
        ),
        st.builds(
            "{}{} IN ({}, {})".format,
            st.sampled_from(["x", "y"]),
            st.sampled_from(["", " NOT"]),
            st.integers(-2, 2),
            st.sampled_from([0, "1.5", ".5"]),
        ),
        st.builds(
            "{}{} BETWEEN {} AND {}".format,
            st.sampled_from(["x", "y"]),
            st.sampled_from(["", " NOT"]),
            st.integers(-2, 2),
            st.integers(-2, 2),
        ),
        st.builds("{} IS{} NULL".format, st.sampled_from(["x", "y"]), st.sampled_from(["", " NOT"])),
    ),
    lambda inner: st.one_of(
        st.builds("NOT ({})".format, inner),
        st.builds("({} {} {})".format, inner, st.sampled_from(["AND", "or"]), inner),
    ),
    max_leaves=5,
)


@examples(200)
@given(HAVINGS, st.lists(st.tuples(*[st.none() | st.integers(-2, 2)] * 2), min_size=1, max_size=6))
def test_having_selects_what_the_same_condition_on_fields_selects(
    text: str, rows: list[tuple[int | None, int | None]]
) -> None:
    columns = {
        value: pa.chunked_array([pa.array([row[index] for row in rows], pa.int64())])
        for index, value in enumerate(VALUES)
    }
    condition = parse_condition(text).condition
    expected = [condition_is(condition, dict(zip("xy", row, strict=True)).get) is True for row in rows]
    assert holds_for_values(parse_having(text), columns, len(rows)).tolist() == expected


@pytest.mark.parametrize(
    ("declared", "asked"),
    [(r"p = 'C:\new'", r"p = 'C:\\new'"), (r"p LIKE '100\%'", r"p LIKE '100\\%'"), ("p = '\\'", r"p = '\\'")],
)
def test_a_backslash_is_an_escape_only_in_a_query(declared: str, asked: str) -> None:
    assert parse_condition(declared).condition == parse_search(f"FILTER {asked}").filter


@pytest.mark.parametrize("text", ["p = +1", "p == 1", "p < .5", "in = 1", "p.0 = 1", "`a``b`.c IS NULL"])
def test_each_reads_what_only_the_other_could_read(text: str) -> None:
    assert parse_condition(text).condition == parse_search(f"WHERE {text}").where
