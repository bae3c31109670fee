"""The index is exact: what it says equals a walk through the JSON, and conditions over it are `truth`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.model.conditions.ast import (
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
)
from tidemill.model.conditions.evaluation import FieldValue, truth, values_at
from tidemill.outputs.index.entries import payload_source
from tidemill.outputs.index.numbers import key_of, key_of_decimal, value_of
from tidemill.outputs.index.table import NULL, NUMBER
from tidemill.query.search.index_matcher import Matcher

NUMBERS = ["0", "-0.0", "7", "7.0", "70e-1", "0.1", "9007199254740992", "9007199254740993", "1e400", "1e-400",
           "9007199254740992.5", "0.12345678901234567", "0.123456789012345671", "-3", "1e20",
           "100000000000000000000", "12345678901234567000.0", "9223372036854775808", "5e-324"]  # fmt: skip
PATHS = ["a", "a.b", "tags", "x.y.z"]


class Raw(str):
    """A number as it is to be spelled."""


def spelled(value: object) -> str:
    match value:
        case Raw():
            return str(value)
        case dict():
            return "{" + ",".join(f"{json.dumps(k)}:{spelled(v)}" for k, v in value.items()) + "}"
        case list():
            return "[" + ",".join(map(spelled, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)


texts = st.sampled_from(["", "a", "b", "ab", "é", "\U0001f600", 'quote" \\', "ￜ", "a\nb", "true", "7"])
scalars = st.one_of(st.none(), st.booleans(), texts, st.sampled_from(NUMBERS).map(Raw))
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["b", "y", "z", "c"]), inner, max_size=3)
    ),
    max_leaves=6,
)
records = st.dictionaries(st.sampled_from(["a", "tags", "x", "other"]), anything, max_size=4)

literals = st.one_of(texts, st.booleans(), st.sampled_from(NUMBERS).map(Decimal), st.integers(-3, 8)).map(
    lambda value: Literally(value, 0)
)
paths = st.sampled_from(PATHS).map(lambda name: Path(name, 0))
leaves = st.one_of(
    st.builds(Compare, paths, st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), literals),
    st.builds(Among, paths, st.lists(literals, min_size=1, max_size=3).map(tuple), st.booleans()),
    st.builds(
        Like,
        paths,
        st.sampled_from(["%", "a%", "_", "%b", "\\%", "é_"]).map(lambda t: Literally(t, 0)),
        st.booleans(),
    ),
    st.builds(IsNull, paths, st.booleans()),
)
conditions: st.SearchStrategy[Condition] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(All, st.lists(inner, min_size=1, max_size=3).map(tuple)),
        st.builds(AnyOf, st.lists(inner, min_size=1, max_size=3).map(tuple)),
    ),
    max_leaves=5,
)


def parsed(payload: str) -> object:
    return json.loads(payload, parse_float=Decimal, parse_int=Decimal)


def naive(payloads: Sequence[str], condition: Condition) -> list[bool]:
    def judged(payload: str) -> bool:
        value = parsed(payload)
        return truth(condition, lambda path: values_at(value, path)) is True

    return [judged(payload) for payload in payloads]


@given(st.lists(records, max_size=8), st.lists(conditions, min_size=1, max_size=4))
def test_a_condition_over_entries_is_its_truth_over_the_payloads(
    found: list[dict[str, object]], asked: list[Condition]
) -> None:
    payloads = [spelled(record) for record in found]
    matcher = Matcher(payload_source(pa.array(payloads, pa.string()), PATHS))
    for condition in asked:
        assert matcher.rows(condition).tolist() == naive(payloads, condition)


@given(st.lists(records, max_size=8))
def test_entries_are_what_a_walk_through_the_json_finds(found: list[dict[str, object]]) -> None:
    payloads = [spelled(record) for record in found]
    source = payload_source(pa.array(payloads, pa.string()), PATHS)
    for name in PATHS:
        entries: set[tuple[int, type, FieldValue]] = set()
        for group in source.of(name):
            if group.kind == NULL:
                continue
            values = group.values()
            said: list[FieldValue]
            if group.kind == NUMBER:
                assert values.number is not None
                assert values.exact is not None
                keys = zip(values.number.tolist(), values.exact.to_pylist(), strict=True)
                said = [value_of(key) for key in keys]
            else:
                assert values.text is not None
                said = values.text.to_pylist()
                if group.kind == "boolean":
                    said = [text == "true" for text in said]
            listed = [(row, type(v), v) for row, v in zip(group.rows().tolist(), said, strict=True)]
            assert len(listed) == len(set(listed)), "a row has a value once"
            entries |= set(listed)
        walked = {
            (row, type(value), value)
            for row, payload in enumerate(payloads)
            for value in values_at(parsed(payload), Path(name, 0))
            if value is not None
        }
        assert entries == walked


@given(
    st.lists(
        st.sampled_from(NUMBERS) | st.decimals(allow_nan=False, allow_infinity=False).map(str), max_size=12
    )
)
def test_equal_numbers_have_equal_keys_and_others_have_not(spellings: list[str]) -> None:
    keys = [key_of(text) for text in spellings]
    for text, key in zip(spellings, keys, strict=True):
        assert value_of(key) == Decimal(text)
        assert key_of_decimal(Decimal(text)) == key
    for one, key in zip(spellings, keys, strict=True):
        for other, its in zip(spellings, keys, strict=True):
            assert (key == its) is (Decimal(one) == Decimal(other))
            if Decimal(one) < Decimal(other):
                assert key[0] <= its[0]


def test_a_double_is_not_enough_to_tell_two_whole_numbers_apart() -> None:
    payloads = ['{"id":9007199254740993}', '{"id":9007199254740992}', '{"id":9007199254740993.0}']
    matcher = Matcher(payload_source(pa.array(payloads), ["id"]))
    equal = Compare(Path("id", 0), "=", Literally(9007199254740993, 0))
    assert matcher.rows(equal).tolist() == [True, False, True]
    assert matcher.rows(Compare(Path("id", 0), "<", Literally(9007199254740993, 0))).tolist() == [
        False,
        True,
        False,
    ]


def test_an_array_fans_out_at_every_step_and_null_in_it_makes_unknown() -> None:
    payloads = [
        '{"items":[{"sku":"a"},{"sku":["b",null]}]}',
        '{"items":{"sku":"b"}}',
        '{"items":[]}',
        '{"items":"a"}',
    ]
    matcher = Matcher(payload_source(pa.array(payloads), ["items.sku"]))
    sku = Path("items.sku", 0)
    assert matcher.rows(Compare(sku, "=", Literally("b", 0))).tolist() == [True, True, False, False]
    assert matcher.rows(Compare(sku, "!=", Literally("c", 0))).tolist() == [False, True, False, False]
    assert matcher.rows(IsNull(sku, False)).tolist() == [False, False, True, True]


@pytest.mark.parametrize("text", ["1e999999999999999999999", "-1e-99999999999999999999", "9" * 5000])
def test_an_absurd_number_is_an_entry_like_any_other(text: str) -> None:
    source = payload_source(pa.array([f'{{"a":{text}}}']), ["a"])
    assert np.flatnonzero(Matcher(source).rows(IsNull(Path("a", 0), True))).tolist() == [0]
