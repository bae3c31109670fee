"""Conditions on rows: what is read, what it comes to, and that any text is a condition or an error."""

from __future__ import annotations

import pickle
from decimal import Decimal

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from tidemill.model.conditions.declared import MAX_LENGTH, DeclaredCondition, parse_condition
from tidemill.model.conditions.evaluation import FieldValue, truth
from tidemill.model.errors import QueryError
from tidemill.model.streaming import WindowKind, WindowSpec

ONE = Literally(Decimal(1))


def compare(column: str, operator: str, value: str | bool | Decimal) -> Condition:
    return Compare(Path(column), operator, Literally(value))


A, B, C = (Compare(Path(name), "=", ONE) for name in "abc")


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("a = 1", A),
        ("a==1", A),
        ("a <> 1", compare("a", "!=", Decimal(1))),
        ("a != 1", compare("a", "!=", Decimal(1))),
        ("a < -1.50", compare("a", "<", Decimal("-1.50"))),
        ("a <= +.5", compare("a", "<=", Decimal("0.5"))),
        ("a > 1e3", compare("a", ">", Decimal(1000))),
        ("a >= 99999999999999999999", compare("a", ">=", Decimal(99999999999999999999))),
        ("s = 'it''s'", compare("s", "=", "it's")),
        ('s = "say ""hi"""', compare("s", "=", 'say "hi"')),
        ("s = ''", compare("s", "=", "")),
        ("s = 'and \"so\" on'", compare("s", "=", 'and "so" on')),
        ("s = 'C:\\new\\'", compare("s", "=", "C:\\new\\")),
        ("flag = TRUE", compare("flag", "=", True)),
        ("flag != false", compare("flag", "!=", False)),
        ("user.name = 'x'", compare("user.name", "=", "x")),
        ("`in` = 1", compare("in", "=", Decimal(1))),
        ("in = 1", compare("in", "=", Decimal(1))),
        ("`user.name` = 'x'", Compare(Path("user.name", 0, ("user.name",)), "=", Literally("x"))),
        ("a IN (1, 'x', true)", Among(Path("a"), (ONE, Literally("x"), Literally(True)))),
        ("a not in (1)", Among(Path("a"), (ONE,), negated=True)),
        ("a is null", IsNull(Path("a"))),
        ("a Is Not Null", IsNull(Path("a"), negated=True)),
        ("s like 'a\\%%'", Like(Path("s"), Literally("a\\%%"))),
        ("s NOT ILIKE 'a_'", Like(Path("s"), Literally("a_"), negated=True, any_case=True)),
        ("a between 1 and 2", Within(Path("a"), ONE, Literally(Decimal(2)))),
        ("a not between 1 and 1 and b = 1", All((Within(Path("a"), ONE, ONE, negated=True), B))),
        ("not a = 1", Not(A)),
        ("  ( a = 1 )\n", A),
        ("a=1 and b=1 and c=1", All((A, B, C))),
        ("a = 1 or b = 1 and not c = 1", AnyOf((A, All((B, Not(C)))))),
        ("(a = 1 or b = 1) and c = 1", All((AnyOf((A, B)), C))),
        ("not (not a = 1) and (not (b = 1))", All((Not(Not(A)), Not(B)))),
    ],
)
def test_condition_is_read(text: str, condition: Condition) -> None:
    assert parse_condition(text) == DeclaredCondition(text, condition)


A_NAME = "expected a name, a name in `backticks`, '(' or NOT"
A_VALUE = "expected a string in quotes, a number, FALSE or TRUE"
A_TEST = "expected one of = != < <= > >=, BETWEEN, ILIKE, IN, IS, LIKE or NOT"


@pytest.mark.parametrize(
    ("text", "message", "position", "hint"),
    [
        ("", "unexpected end of the condition", 0, A_NAME),
        ("   ", "unexpected end of the condition", 0, A_NAME),
        ("a", "unexpected end of the condition", 1, A_TEST),
        ("1 = a", "unexpected '1'", 0, A_NAME),
        ("a = ", "unexpected end of the condition", 3, A_VALUE),
        ("a = open", "unexpected 'open'", 4, A_VALUE),
        ("a = null", "unexpected 'null'", 4, f"{A_VALUE}; a missing value is tested with IS NULL"),
        ("a = 1 b = 2", "unexpected 'b'", 6, "expected the end of the condition, AND or OR"),
        ("a = 1 and", "unexpected end of the condition", 9, A_NAME),
        ("(a = 1", "unexpected end of the condition", 6, "expected ')', AND or OR"),
        ("a = 1)", "unexpected ')'", 5, "expected the end of the condition, AND or OR"),
        ("a in 1", "unexpected '1'", 5, "expected '('"),
        ("a in ()", "unexpected ')'", 6, A_VALUE),
        ("a in (1 2)", "unexpected '2'", 8, "expected ',' or ')'"),
        ("a is 1", "unexpected '1'", 5, "expected NOT or NULL"),
        ("a is not 1", "unexpected '1'", 9, "expected NULL"),
        ("a not = 1", "unexpected '='", 6, "expected BETWEEN, ILIKE, IN or LIKE"),
        ("a bewteen 1 and 2", "unexpected 'bewteen'", 2, f"did you mean BETWEEN? {A_TEST}"),
        ("a = 'x", "a quote is opened here and never closed, or no string belongs here", 4, A_VALUE),
        ("a = 1; drop", "unexpected ';'", 5, "expected the end of the condition, AND or OR"),
        ("a =  $1", "unexpected '$'", 5, A_VALUE),
        ("a = " + "9" * 41, "9" * 40 + " is not a number", 4, "use 40 digits and an exponent of 999 at most"),
        ("a = 1e9999", "1e9999 is not a number", 4, "use 40 digits and an exponent of 999 at most"),
        ("a like 'x\\'", "the pattern ends with an open escape", 7, "write \\"),
        ("a between 1 and 'x'", "the bounds are a number and a string", 16, "use two strings, two numbers"),
        ("a = 1" + " " * MAX_LENGTH, "the condition has 10005 characters", MAX_LENGTH, "use 10000 at most"),
        ("not " * 2000 + "a = 1", "the condition is nested too deeply", 0, "use at most 50 parentheses"),
    ],
)
def test_mistakes(text: str, message: str, position: int, hint: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse_condition(text)
    assert caught.value.message.startswith(message)
    assert caught.value.position == position
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize("opening", ["not (", "(a = 3 and b = 3 or a = 3 and (", "((("])
def test_nesting_up_to_the_limit_is_read_and_evaluated(opening: str) -> None:
    times = 25
    text = opening * times + "not a = 1" + ")" * (opening.count("(") * times)
    deep = parse_condition(text)
    assert holds(text, a=2, b=3) is (opening == "(((")
    assert pickle.loads(pickle.dumps(deep)) == deep  # noqa: S301
    assert len(repr(deep)) > 50


def holds(text: str, **row: FieldValue) -> bool:
    return truth(parse_condition(text).condition, lambda path: (row.get(path.text),)) is True


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
    assert parse_condition("b = 1 or (a is null and not b in (2)) or c.d = 'x'").columns == ("b", "a", "c.d")


WORDS = "a b.c `d` 1 -2.5 1e5 'x' \"y\" and OR not in is null true false"
SIGNS = "' \" ` ( ) , = == != <> < <= > >= ; é \x00"
PIECES = st.sampled_from(f"{WORDS} {SIGNS}".split())


@given(st.one_of(st.text(), st.lists(PIECES).map(" ".join), st.lists(PIECES).map("".join)))
def test_any_text_is_a_condition_or_an_error(text: str) -> None:
    try:
        found = parse_condition(text)
    except QueryError:
        return
    assert truth(found.condition, lambda _: ()) in (True, False, None)
    assert found.columns


VALUES = st.one_of(st.none(), st.integers(-3, 3))


@st.composite
def conditions(draw: st.DrawFn, depth: int = 3) -> str:
    if depth == 0 or draw(st.booleans()):
        sign, number = draw(st.sampled_from(COMPARISONS)), draw(st.integers(-3, 3))
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
    assert holds(text, **row) is expected[0]


# Computed before conditions had this form: an output made then is still current.
FINGERPRINTS = {
    "a = 1": ("28b9cdd05c9b67c4", "386fa9c39569d743"),
    "a == 1 and b<>2": ("ff43b8b1a56a8c63", "f3d91fd49a7bd805"),
    "region in ('eu', 'us') or not note is null": ("561732acd732989c", "7b6748bead3c8dd4"),
    "a.b >= -0": ("de0fd521cc8785c8", "c499ec450bbf9ef5"),
    "`a.b` <= +1.50e3 and c not in (true,false, 'it''s')": ("91032be77bfd3542", "4b1af5c5b2df3529"),
    "x = 'C:\\new\\'": ("79b6ffeeac37dbb7", "1b9c0f3066ad3117"),
    "not (a = 1 or (b is not null and c = .5)) and ((d = 007))": ("83b71383614c03ff", "3aad4b08f137fdba"),
    'NOT NOT a != "q""x"': ("31bdea68a43cb530", "dbb1f6e8188e4fee"),
    "a = 1e400": ("82a6591e1fe0adc8", "6a2d34be12a84839"),
    "(a = 1 and b = 2) and c = 3": ("c97a9dc8486bbfd3", "3aec552c103b9648"),
    "a = 1 or b = 2 and c = 3 or d = 4": ("cad3cff6cc9bbae2", "497dbca6ebc0a821"),
    "count > 10 AND total >= 0.250": ("01e1234d4b030a1e", "1e1933b7dd69b7e7"),
    "a = 12345678901234567890123456789012345678": ("4912b75f83eb8fcc", "3b14957a7ea5290f"),
}


@pytest.mark.parametrize("text", FINGERPRINTS)
def test_the_fingerprint_of_a_declared_window_stays_what_it_was(text: str) -> None:
    condition = parse_condition(text)
    states = WindowSpec("s", "w", WindowKind.STATE, open=condition, emit=parse_condition("b = 1"))
    results = WindowSpec("s", "w", WindowKind.TUMBLING, size=5, having=condition)
    assert (states.fingerprint, results.fingerprint) == FINGERPRINTS[text]


def test_conditions_that_differ_have_other_fingerprints() -> None:
    texts = [
        "s LIKE 'x'",
        "s ILIKE 'x'",
        "s NOT LIKE 'x'",
        "s IN ('x')",
        "s BETWEEN 'x' AND 'y'",
        "s IN ('x', 'y')",
    ]
    found = [WindowSpec("s", "w", WindowKind.TUMBLING, having=parse_condition(text)) for text in texts]
    assert len({spec.fingerprint for spec in found}) == len(texts)
