"""Conditions on rows: what is read, what it comes to, and that any text is a condition or an error."""

from __future__ import annotations

import pickle
from decimal import Decimal

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.model.errors import InputError
from tidemill.model.predicates import (
    MAX_DEPTH,
    MAX_LENGTH,
    OPERATORS,
    And,
    FieldCompare,
    FieldIsNull,
    Given,
    Negation,
    Node,
    OneOf,
    Or,
    Predicate,
    mentions,
    parse_predicate,
)

ONE = Decimal(1)


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("a = 1", FieldCompare("a", "=", ONE)),
        ("a==1", FieldCompare("a", "=", ONE)),
        ("a <> 1", FieldCompare("a", "!=", ONE)),
        ("a != 1", FieldCompare("a", "!=", ONE)),
        ("a < -1.50", FieldCompare("a", "<", Decimal("-1.50"))),
        ("a <= +.5", FieldCompare("a", "<=", Decimal("0.5"))),
        ("a > 1e3", FieldCompare("a", ">", Decimal(1000))),
        ("a >= 99999999999999999999", FieldCompare("a", ">=", Decimal(99999999999999999999))),
        ("s = 'it''s'", FieldCompare("s", "=", "it's")),
        ('s = "say ""hi"""', FieldCompare("s", "=", 'say "hi"')),
        ("s = ''", FieldCompare("s", "=", "")),
        ("s = 'and \"so\" on'", FieldCompare("s", "=", 'and "so" on')),
        ("flag = TRUE", FieldCompare("flag", "=", True)),
        ("flag != false", FieldCompare("flag", "!=", False)),
        ("user.name = 'x'", FieldCompare("user.name", "=", "x")),
        ("`in` = 1", FieldCompare("in", "=", ONE)),
        ("`user.name` = 'x'", FieldCompare("user.name", "=", "x")),
        ("a IN (1, 'x', true)", OneOf("a", (ONE, "x", True))),
        ("a not in (1)", Negation(OneOf("a", (ONE,)))),
        ("a is null", FieldIsNull("a")),
        ("a Is Not Null", Negation(FieldIsNull("a"))),
        ("not a = 1", Negation(FieldCompare("a", "=", ONE))),
        ("  ( a = 1 )\n", FieldCompare("a", "=", ONE)),
        ("a=1 and b=1 and c=1", And(tuple(FieldCompare(c, "=", ONE) for c in "abc"))),
        (
            "a = 1 or b = 1 and not c = 1",
            Or(
                (
                    FieldCompare("a", "=", ONE),
                    And((FieldCompare("b", "=", ONE), Negation(FieldCompare("c", "=", ONE)))),
                )
            ),
        ),
        (
            "(a = 1 or b = 1) and c = 1",
            And(
                (Or((FieldCompare("a", "=", ONE), FieldCompare("b", "=", ONE))), FieldCompare("c", "=", ONE))
            ),
        ),
    ],
)
def test_condition_is_read(text: str, node: Node) -> None:
    assert parse_predicate(text) == Predicate(text, node)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "expected a column, NOT or ( at character 1, found the end", "write it as in: a = 1"),
        ("   ", "expected a column, NOT or ( at character 1, found the end", "write it as in"),
        (
            "a",
            "expected one of =, !=, <, <=, >, >=, IN, NOT IN, IS NULL, IS NOT NULL at character 2",
            "a = 1",
        ),
        ("1 = a", "expected a column, NOT or ( at character 1, found '1'", "a = 1"),
        ("a = ", "expected a value at character 4, found the end", "text goes in quotes"),
        ("a = open", "expected a value at character 5, found 'open'", "text goes in quotes: 'eu'"),
        ("a = null", "expected a value at character 5, found 'null'", "IS NULL"),
        ("a = 1 b = 2", "expected AND, OR or the end at character 7, found 'b'", "a = 1"),
        ("a = 1 and", "expected a column, NOT or ( at character 10, found the end", "a = 1"),
        ("(a = 1", "expected AND, OR or ) at character 7, found the end", "a = 1"),
        ("a = 1)", "expected AND, OR or the end at character 6, found ')'", "a = 1"),
        ("a in 1", "expected ( and a list of values at character 6, found '1'", "a = 1"),
        ("a in ()", "expected a value at character 7, found ')'", "text goes in quotes"),
        ("a in (1 2)", "expected a comma or ) at character 9, found '2'", "a = 1"),
        ("a is 1", "expected NULL or NOT NULL at character 6, found '1'", "a = 1"),
        ("a is not 1", "expected NULL at character 10, found '1'", "a = 1"),
        ("a not = 1", "expected IN at character 7, found '='", "a = 1"),
        ("a = 'x", "the quote at character 5 is not closed", "written twice"),
        ("a = 'it's'", "the quote at character 10 is not closed", "written twice"),
        ("`` = 1", "the quote at character 1 is not closed", "written twice"),
        ("a = 1; drop", "';' at character 6 is not part of a condition", "a = 1"),
        ("a =  $1", "'$' at character 6 is not part of a condition", "a = 1"),
        ("größe = 1", "'ö' at character 3", "a = 1"),
        ("a = " + "9" * 41, "the number at character 5 is too long", "40 digits"),
        ("a = 1e9999", "the number at character 5 is too long", "exponent of 999"),
        ("a = 1e" + "9" * 5000, "the number at character 5 is too long", "exponent of 999"),
        ("a = 1" + " " * MAX_LENGTH, "the condition has 10005 characters", "use 10000 at most"),
        ("(" * (MAX_DEPTH + 1) + "a = 1", "nested too deeply at character 52", "at most 50"),
        ("not " * 2000 + "a = 1", "nested too deeply at character 205", "at most 50"),
    ],
)
def test_mistake_is_told_with_its_place(text: str, message: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_predicate(text)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_nesting_up_to_the_limit_is_read_and_evaluated() -> None:
    deep = parse_predicate("not (" * (MAX_DEPTH // 2) + "a = 1" + ")" * (MAX_DEPTH // 2))
    assert deep.holds(lambda _: 2)
    assert pickle.loads(pickle.dumps(deep)) == deep  # noqa: S301
    assert len(repr(deep)) > 100


def holds(text: str, **row: Given) -> bool:
    return parse_predicate(text).holds(row.get)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i = 3", True),
        ("i = 3.0", True),
        ("i != 3", False),
        ("i > 2.99", True),
        ("i <= 3 and i >= 3", True),
        ("big = 9007199254740993", True),
        ("big = 9007199254740992", False),  # as a double it would be the same
        ("d = 0.10", True),
        ("d < 0.1000000000000000001", True),
        ("f = 0.1", True),  # the double nearest to it
        ("f >= 0.1 and f <= 0.1", True),
        ("f < 1e999", True),
        ("s = 'eu'", True),
        ("s < 'ez'", True),
        ("s in ('us', 'eu')", True),
        ("s not in ('us', 'eu')", False),
        ("yes = true", True),
        ("yes != true", False),
        ("yes = 1", False),  # a boolean is not a number, and it is not known to differ either
        ("not yes = 1", False),
        ("i = '3'", False),
        ("i != '3'", False),
        ("missing is null", True),
        ("i is not null", True),
    ],
)
def test_condition_holds(text: str, expected: bool) -> None:
    big = 9007199254740993
    assert holds(text, i=3, big=big, d=Decimal("0.1"), f=0.1, s="eu", yes=True, missing=None) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n = 1", False),
        ("not n = 1", False),
        ("n != 1", False),
        ("n in (1, 2)", False),
        ("n not in (1, 2)", False),
        ("n = 1 or a = 1", True),
        ("n = 1 or a = 2", False),
        ("not (n = 1 or a = 2)", False),
        ("n = 1 and a = 1", False),
        ("not (n = 1 and a = 2)", True),  # false whatever n is
        ("not (n = 1 and a = 1)", False),
        ("n is null and not n = 1", False),
        ("f = 1", False),
        ("not f = 1", False),
    ],
)
def test_what_is_missing_is_unknown(text: str, expected: bool) -> None:
    assert holds(text, n=None, a=1, f=float("nan")) is expected


def test_columns_are_named_once_each_in_order() -> None:
    assert parse_predicate("b = 1 or (a is null and not b in (2)) or c.d = 'x'").columns == ("b", "a", "c.d")


def test_mentions_say_where_things_are_written() -> None:
    first, second, third = mentions("a = 1 or not s IN ('x', 2) and `n` is not null")
    assert (first.test, first.position, first.operator, first.values) == (
        FieldCompare("a", "=", ONE),
        1,
        3,
        (5,),
    )
    assert (second.test, second.position, second.operator, second.values) == (
        OneOf("s", ("x", Decimal(2))), 14, 16, (20, 25),
    )  # fmt: skip
    assert (third.test, third.position, third.operator, third.values) == (FieldIsNull("n"), 32, 36, ())


WORDS = "a b.c `d` 1 -2.5 1e5 'x' \"y\" and OR not in is null true false"
SIGNS = "' \" ` ( ) , = == != <> < <= > >= ; é \x00"
PIECES = st.sampled_from(f"{WORDS} {SIGNS}".split())


@given(st.one_of(st.text(), st.lists(PIECES).map(" ".join), st.lists(PIECES).map("".join)))
def test_any_text_is_a_condition_or_an_error(text: str) -> None:
    try:
        found = parse_predicate(text)
    except InputError:
        return
    assert isinstance(found.holds(lambda _: None), bool)
    assert found.columns


VALUES = st.one_of(st.none(), st.integers(-3, 3))


@st.composite
def conditions(draw: st.DrawFn, depth: int = 3) -> str:
    if depth == 0 or draw(st.booleans()):
        sign, number = draw(st.sampled_from(OPERATORS)), draw(st.integers(-3, 3))
        return f"{draw(st.sampled_from('ab'))} {sign} {number}"
    inner = draw(st.lists(conditions(depth - 1), min_size=1, max_size=3))  # type: ignore[call-arg]
    word = draw(st.sampled_from([" and ", " or "]))
    return draw(st.sampled_from(["", "not "])) + "(" + word.join(inner) + ")"


@given(conditions(), VALUES, VALUES)
def test_logic_is_that_of_sql(text: str, a: int | None, b: int | None) -> None:
    """Against DuckDB, which reads the same words."""
    row = {"a": a, "b": b}
    sql = f"SELECT coalesce(({text}), false) FROM (SELECT $a::BIGINT AS a, $b::BIGINT AS b)"
    expected = duckdb.execute(sql, row).fetchone()
    assert expected is not None
    assert parse_predicate(text).holds(row.get) is expected[0]
