"""What a condition comes to over a payload: one value of a path that passes is enough, numbers are exact, and
what is unknown stays so."""

from __future__ import annotations

import itertools
import json
import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples

from tidemill.model.conditions.ast import All, Among, AnyOf, Compare, IsNull, Like, Literally, Not, Path
from tidemill.model.conditions.evaluation import truth, values_at
from tidemill.model.conditions.like import like
from tidemill.model.errors import QueryError
from tidemill.query.language.parse import parse_search

PAYLOAD = json.loads(
    """
    {"status": 500, "price": 0.1, "big": 9007199254740993, "huge": 123456789012345678901234567890,
     "region": "eu", "ok": true, "gone": null, "note": "a timeout of 5%",
     "tags": ["a", "b"], "mixed": ["a", 5, null], "none": [], "nulls": [null, null],
     "user": {"plan": "pro", "a.b": 1}, "a.b": {"c": "dotted"}, "a": {"b": {"c": "nested"}},
     "items": [{"sku": "x", "n": [1, 2]}, {"sku": "y"}, {"n": [[3]]}, "stray", 7]}
    """,
    parse_float=Decimal,
)


def judged(text: str, payload: object = PAYLOAD) -> bool | None:
    condition = parse_search(f"FILTER {text}").filter
    return truth(condition, lambda path: values_at(payload, path))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("status = 500", True),
        ("status = 500.0", True),
        ("status >= 500 AND status < 501", True),
        ("status > 5e2", False),
        ("status = '500'", None),
        ("status = true", None),
        ("price = 0.1", True),
        ("price = 0.1000000000000000055511151231257827", False),
        ("big = 9007199254740992", False),
        ("big > 9007199254740992", True),
        ("huge = 123456789012345678901234567890", True),
        ("ok = true", True),
        ("ok = 1", None),
        ("ok > false", True),
        ("region = 'eu'", True),
        ("region < 'us'", True),
        ("region != 'eu'", False),
        ("gone = 1", None),
        ("gone != 1", None),
        ("nothing = 1", None),
        ("nothing != 1", None),
        ("NOT nothing = 1", None),
        ("nothing = 1 OR ok = true", True),
        ("nothing = 1 AND ok = false", False),
        ("gone IS NULL", True),
        ("nothing IS NULL", True),
        ("none IS NULL", True),
        ("nulls IS NULL", True),
        ("mixed IS NULL", False),
        ("mixed IS NOT NULL", True),
        ("user IS NULL", True),
        ("tags = 'a'", True),
        ("tags = 'b'", True),
        ("tags = 'c'", False),
        ("tags != 'a'", False),
        ("tags != 'c'", True),
        ("tags < 'b'", True),
        ("tags > 'a' AND tags < 'b'", True),
        ("tags IN ('c', 'b')", True),
        ("tags NOT IN ('c', 'b')", False),
        ("tags NOT IN ('c', 'd')", True),
        ("mixed = 5", True),
        ("mixed = 6", None),
        ("mixed != 'a'", False),
        ("mixed != 'b'", None),
        ("none = 1", None),
        ("note LIKE '%timeout%'", True),
        ("note LIKE 'timeout%'", False),
        ("note NOT LIKE '%5\\%'", False),
        ("note LIKE '%5\\_'", False),
        ("tags LIKE '_'", True),
        ("tags NOT LIKE 'b%'", False),
        ("status LIKE '5%'", None),
        ("status NOT LIKE '5%'", None),
        ("user.plan = 'pro'", True),
        ("user.`a.b` = 1", True),
        ("user.a.b = 1", None),
        ("`a.b`.c = 'dotted'", True),
        ("a.b.c = 'nested'", True),
        ("items.sku = 'y'", True),
        ("items.n = 3", True),
        ("items.n != 3", False),
        ("items.n > 3", False),
    ],
)
def test_truths(text, expected):
    assert judged(text) is expected


def test_arrays_stand_for_their_elements_at_every_step():
    assert values_at(PAYLOAD, Path("items.n")) == [1, 2, 3]
    assert values_at(PAYLOAD, Path("items.sku")) == ["x", "y"]
    assert values_at(PAYLOAD, Path("items")) == ["stray", 7]
    assert values_at(PAYLOAD, Path("mixed")) == ["a", 5, None]
    assert values_at([{"a": 1}, {"a": [2, [3]]}], Path("a")) == [1, 2, 3]
    assert values_at({"a": None}, Path("a")) == [None]
    assert values_at({"a": None}, Path("a.b")) == []
    assert values_at("text", Path("a")) == []


def test_nothing_that_is_nested_deeply_runs_out_of_stack():
    deep: object = 1
    for _ in range(50_000):
        deep = [deep]
    assert values_at({"a": deep}, Path("a")) == [1]


def test_numbers_that_are_none_are_unknown():
    assert judged("a = 1", {"a": Decimal("NaN")}) is None
    assert judged("a > 1", {"a": Decimal("Infinity")}) is None


# -- LIKE


@given(st.text("ab%_\\", max_size=8), st.text("ab%_\\", max_size=8))
@examples(700)
def test_like_is_what_the_pattern_says(pattern, text):
    if len(re.findall(r"\\*$", pattern)[0]) % 2:
        with pytest.raises(QueryError, match="open escape"):
            like(pattern)
    else:
        assert like(pattern)(text) is naive_like(pattern, text)


def naive_like(pattern: str, text: str) -> bool:
    if not pattern:
        return not text
    head, rest = pattern[0], pattern[1:]
    if head == "%":
        return any(naive_like(rest, text[i:]) for i in range(len(text) + 1))
    if head == "_":
        return bool(text) and naive_like(rest, text[1:])
    if head == "\\":
        head, rest = rest[0], rest[1:]
    return text[:1] == head and naive_like(rest, text[1:])


def test_no_pattern_runs_away():
    """One that tried every way to place its `%` would not end."""
    assert not like("%a" * 30 + "%b")("a" * 20_000)
    assert not like("%_a" * 30 + "%b")("a" * 20_000)
    assert not like("%" * 5_000 + "b")("a" * 20_000)


# -- against a model that asks each value in turn

SCALARS = st.sampled_from([None, True, False, 0, 1, 2, Decimal("1.0"), Decimal("1.5"), "", "a", "ab", "1"])
LITERALS = SCALARS.filter(lambda value: value is not None).map(Literally)
PATHS = st.sampled_from([Path("p"), Path("q")])
TESTS = st.one_of(
    st.builds(Compare, PATHS, st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), LITERALS),
    st.builds(Among, PATHS, st.lists(LITERALS, min_size=1, max_size=3).map(tuple), st.booleans()),
    st.builds(Like, PATHS, st.sampled_from(["a%", "_", "%", "", "a_"]).map(Literally), st.booleans()),
    st.builds(IsNull, PATHS, st.booleans()),
)
CONDITIONS = st.recursive(
    TESTS,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(All, st.lists(inner, min_size=2, max_size=3).map(tuple)),
        st.builds(AnyOf, st.lists(inner, min_size=2, max_size=3).map(tuple)),
    ),
    max_leaves=8,
)
YES, MAYBE, NO = 1, 0, -1


def kind(value) -> str:
    return {str: "text", bool: "truth", int: "number", Decimal: "number"}.get(type(value), "nothing")


def model(condition, values) -> int:
    """Kleene's logic as numbers: NOT is minus, OR the greatest, AND the least."""
    match condition:
        case Not(term):
            return -model(term, values)
        case All(terms):
            return min(model(term, values) for term in terms)
        case AnyOf(terms):
            return max(model(term, values) for term in terms)
        case IsNull(path, negated):
            found = YES if all(value is None for value in values[path.text]) else NO
            return -found if negated else found
        case Compare(path, "!=", literal):
            return -model(Compare(path, "=", literal), values)
        case Among(path, literals, negated):
            found = max(model(Compare(path, "=", literal), values) for literal in literals)
            return -found if negated else found
        case Like(path, pattern, negated):
            known = [
                MAYBE if not isinstance(value, str) else YES if naive_like(pattern.value, value) else NO
                for value in values[path.text]
            ]
            found = max(known, default=MAYBE)
            return -found if negated else found
        case Compare(path, operator, literal):
            ways = {
                "=": lambda a, b: a == b,
                "<": lambda a, b: a < b,
                "<=": lambda a, b: a <= b,
                ">": lambda a, b: a > b,
                ">=": lambda a, b: a >= b,
            }
            known = [
                MAYBE
                if kind(value) != kind(literal.value)
                else YES
                if ways[operator](value, literal.value)
                else NO
                for value in values[path.text]
            ]
            return max(known, default=MAYBE)


@given(CONDITIONS, st.lists(SCALARS, max_size=3), st.lists(SCALARS, max_size=3))
@examples(700)
def test_truth_is_that_of_the_model(condition, p, q):
    values = {"p": p, "q": q}
    expected = {YES: True, MAYBE: None, NO: False}[model(condition, values)]
    assert truth(condition, lambda path: values[path.text]) is expected
    assert truth(condition, lambda path: values_at(values, path)) is expected


def test_equal_numbers_are_equal_however_they_are_written():
    for a, b in itertools.product((1, Decimal("1"), Decimal("1.000"), Decimal("10E-1")), repeat=2):
        assert truth(Compare(Path("p"), "=", Literally(a)), lambda _, b=b: [b]) is True
