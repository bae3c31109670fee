"""The query text: what it says, and what it can get wrong. Each error points at the character and names what
could stand there."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tidemill.model.conditions.ast import (
    All,
    Among,
    AnyOf,
    Compare,
    IsNull,
    Like,
    Literally,
    Not,
    Path,
    Within,
)
from tidemill.model.errors import QueryError
from tidemill.model.time import HOUR, MINUTE, SECOND, parse_instant
from tidemill.query.language.ast import (
    Between,
    Binary,
    Choice,
    Every,
    Now,
    OrderKey,
    OriginClause,
    Rollup,
    Since,
    Unary,
    Value,
    Wall,
)
from tidemill.query.language.parse import parse

KEYWORD_TEXT = """
select from where between and since using rollup interval group by edges include exclude null fill zero drop
carry order asc desc limit format rows series as or in like is explain filter having offset timezone
week start origin now ilike monday
"""
OTHER_TEXT = "state first last rate value ts arrival tenant bucket p50 P1D t1h"
AFTER_A_NAME = "one of = != < <= > >=, BETWEEN, ILIKE, IN, IS, LIKE or NOT"
KEYWORDS, OTHER_WORDS = KEYWORD_TEXT.split(), OTHER_TEXT.split()
A, ONE, TWO = Value(Path("a")), Literally(1), Literally(2)


def refused(text: str) -> QueryError:
    with pytest.raises(QueryError) as caught:
        parse(text)
    return caught.value


def selected(text: str) -> Value:
    (item,) = parse(f"SELECT {text} FROM requests").items
    return item.value


def condition(text: str):
    return parse(f"SELECT count FROM requests WHERE {text}").where


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("count", Value(Path("count"))),
        ("count()", Value(Path("count"))),
        ("sum(latency_ms)", Value(Path("sum"), (Path("latency_ms"),))),
        ("p99.9", Value(Path("p99.9"))),
        ("p99.9(latency_ms)", Value(Path("p99.9"), (Path("latency_ms"),))),
        ("percentile(0.999)", Value(Path("percentile"), (Literally(Decimal("0.999")),))),
        ("percentile(1)", Value(Path("percentile"), (Literally(1),))),
        ("ratio(failures, requests)", Value(Path("ratio"), (Path("failures"), Path("requests")))),
        ("transitions(finished)", Value(Path("transitions"), (Path("finished"),))),
        ("sum(`http.size`)", Value(Path("sum"), (Path("http.size", 0, ("http.size",)),))),
        ("f('a', \"b\", true, -1.50)", None),
    ],
)
def test_values(text, value):
    found = selected(text)
    if value is None:
        assert [a.value for a in found.arguments] == ["a", "b", True, Decimal("-1.50")]
    else:
        assert found == value


def test_every_clause_in_any_order():
    query = parse(
        "explain select count as n, rate from requests.hits limit 7 fill carry format series edges exclude "
        "order by n desc, bucket group by api, `http.status` interval 30s "
        "between 2024-01-01 and '2024-01-01T10:00:00Z' where ok = true;"
    )
    assert query.explain
    assert [(i.value.text, i.alias and i.alias.text) for i in query.items] == [("count", "n"), ("rate", None)]
    assert query.source.text == "requests.hits"
    assert query.where == Compare(Path("ok"), "=", Literally(True))
    assert query.time == Between(Wall(parse_instant("2024-01-01")), parse_instant("2024-01-01T10:00:00Z"))
    assert query.bucket == Every(30 * SECOND)
    assert [path.text for path in query.groups] == ["api", "http.status"]
    assert (query.edges, query.fill, query.format) == (Choice("exclude"), Choice("carry"), Choice("series"))
    assert query.order == (
        OrderKey(Value(Path("n")), descending=True),
        OrderKey(Value(Path("bucket")), descending=False),
    )
    assert query.limit == 7
    other = parse("SELECT count FROM requests USING ROLLUP 1m SINCE PT2H FILL drop EDGES null FORMAT rows")
    assert (other.time, other.bucket) == (Since(2 * HOUR), Rollup("1m"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = 'x'", Compare(Path("a"), "=", Literally("x"))),
        ('a <> "x"', Compare(Path("a"), "!=", Literally("x"))),
        ("a >= -1.50", Compare(Path("a"), ">=", Literally(Decimal("-1.50")))),
        ("a < 2e3", Compare(Path("a"), "<", Literally(Decimal("2E+3")))),
        (
            "a NOT IN (1, 'x', false)",
            Among(Path("a"), (Literally(1), Literally("x"), Literally(False)), True),
        ),
        ("a LIKE 'x\\%'", Like(Path("a"), Literally("x\\%"), False)),
        ("a IS NOT NULL", IsNull(Path("a"), True)),
        (
            "NOT a = 1 AND b = 2 OR c = 3",
            AnyOf(
                (
                    All(
                        (
                            Not(Compare(Path("a"), "=", Literally(1))),
                            Compare(Path("b"), "=", Literally(2)),
                        )
                    ),
                    Compare(Path("c"), "=", Literally(3)),
                )
            ),
        ),
    ],
)
def test_conditions(text, said):
    assert condition(text) == said


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'it''s'", "it's"),
        ('"it\'s"', "it's"),
        ("'it\\'s'", "it's"),
        ('"a""b"', 'a"b'),
        ("'a\\nb\\tc'", "a\nb\tc"),
        ("'a\\\\b'", "a\\b"),
        ("'C:\\dir'", "C:\\dir"),
        ("''", ""),
        ("'-- not a comment'", "-- not a comment"),
    ],
)
def test_strings_in_either_quote(text, value):
    assert condition(f"a = {text}").value.value == value


def test_a_number_without_a_fraction_is_an_integer_and_any_other_a_decimal():
    kinds = [type(each.value) for each in condition("a IN (1, 1.0, 1e0, -0)").values]
    assert kinds == [int, Decimal, Decimal, int]


@pytest.mark.parametrize("word", [*KEYWORDS, *OTHER_WORDS, "TRUE", "false"])
def test_words_are_names_wherever_a_name_has_to_stand(word):
    query = parse(
        f"SELECT {word}, {word}(x) AS {word} FROM {word} "
        f"WHERE {word} = 1 AND ({word} IN (2) OR {word} IS NULL) "
        f"GROUP BY {word}, {word} ORDER BY {word} DESC, {word} LIMIT 3"
    )
    assert [path.text for path in query.groups] == [word, word]
    assert (query.source.text, query.items[0].value.text, query.items[1].alias.text) == (word, word, word)
    assert query.where.terms[0].operand.text == word
    assert [key.value.text for key in query.order] == [word, word]


@pytest.mark.parametrize("word", KEYWORDS)
def test_a_name_may_begin_with_a_keyword_or_go_on_after_it(word):
    query = parse(
        f"SELECT count FROM x WHERE {word}s = 1 AND {word}.x = 2 AND not{word} = 3 GROUP BY {word}_"
    )
    assert [term.operand.text for term in query.where.terms] == [f"{word}s", f"{word}.x", f"not{word}"]


def test_names_in_backticks():
    query = parse(
        "SELECT count AS `from` FROM `select` WHERE `not` = 1 AND `a``b` = 2 GROUP BY `order`, `a b`.c"
    )
    assert (query.items[0].alias.text, query.source.text) == ("from", "select")
    assert [term.operand.text for term in query.where.terms] == ["not", "a`b"]
    assert [path.segments for path in query.groups] == [("order",), ("a b", "c")]


def test_a_dot_in_backticks_parts_nothing():
    query = parse("SELECT count FROM x GROUP BY a.b, `a.b`, a.`b.c`.d")
    assert [path.text for path in query.groups] == ["a.b", "a.b", "a.b.c.d"]
    assert [path.segments for path in query.groups] == [("a", "b"), ("a.b",), ("a", "b.c", "d")]


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("", 0, "expected EXPLAIN or SELECT"),
        ("SELECT", 6, "expected a name, a name in `backticks`, a number, '-' or '('"),
        (
            "SELECT count FORM requests",
            13,
            "did you mean FROM? expected one of + - * /, ',', '(', AS or FROM",
        ),
        ("SELECT sum( FROM requests", 17, "expected ',' or ')'; 'FROM' before it is read as a name"),
        (
            "SELECT FROM requests",
            12,
            "expected one of + - * /, ',', '(', AS or FROM; 'FROM' before it is read as a name",
        ),
        (
            "SELECT count FROM requests WHERE api = x",
            39,
            "expected a string in quotes, a number, FALSE or TRUE",
        ),
        (
            "SELECT count FROM requests WHERE api 'x'",
            37,
            f"expected {AFTER_A_NAME}",
        ),
        (
            "SELECT count FROM requests WHERE api = 'x",
            39,
            "expected a string in quotes, a number, FALSE or TRUE",
        ),
        ("SELECT count FROM requests WHERE api LIKE 5", 42, "expected a string in quotes"),
        (
            "SELECT count FROM requests WHERE api IN ()",
            41,
            "expected a string in quotes, a number, FALSE or TRUE",
        ),
        (
            "SELECT count FROM requests WHERE not = 1",
            37,
            "expected a name, a name in `backticks`, '(' or NOT; to use 'not' as a name, write `not`",
        ),
        (
            "SELECT count FROM requests WHERE user-agent = 1",
            37,
            f"expected {AFTER_A_NAME}; a name with other characters goes in `backticks`",
        ),
        ("SELECT count FROM requests INTERVAL", 35, "expected a string in quotes or a duration such as 30s"),
        ("SELECT count FROM requests SINCE 999999999999999w", 33, "use a shorter duration, such as 30d"),
        ("SELECT count FROM requests EDGES zero", 33, "expected EXCLUDE, INCLUDE or NULL"),
        ("SELECT count FROM requests FILL include", 32, "expected CARRY, DROP, NULL or ZERO"),
        (
            "SELECT count FROM requests FILL zeroes",
            32,
            "did you mean ZERO? expected CARRY, DROP, NULL or ZERO",
        ),
        ("SELECT count FROM requests FORMAT json", 34, "expected ROWS or SERIES"),
        ("SELECT count FROM requests LIMIT x", 33, "expected a number"),
        ("SELECT count FROM requests LIMIT 1.5", 33, "numbers are whole here"),
        ("SELECT count FROM requests LIMIT -1", 33, "use 0 or more"),
        ("SELECT count FROM requests; DROP TABLE requests", 28, "expected the end of the query"),
        ("SELECT sum(*) FROM requests", 11, "only count(*) takes a star"),
        (
            "SELECT count FROM requests WHERE a = 9223372036854775808",
            37,
            "use a number from -9223372036854775808 to 9223372036854775807",
        ),
        ("SELECT count FROM requests WHERE a = 1e1000", 37, "use 40 digits and an exponent of 999 at most"),
        (
            "SELECT count FROM requests WHERE a LIKE 'a\\\\'",
            40,
            "write \\\\\\\\ for one backslash, \\% and \\_ for the characters themselves",
        ),
        (
            "SELECT count FROM requests SINCE 1h SINCE 2h",
            36,
            "give one of BETWEEN or SINCE, one of USING ROLLUP or INTERVAL, and each clause once",
        ),
    ],
)
def test_errors_point_at_the_character(text, position, expected):
    error = refused(text)
    assert (error.position, error.hint) == (position, expected)
    assert error.where == f"query, character {position + 1}"


def test_the_caret_stands_under_the_character():
    error = refused("SELECT count\nFROM requests\nGROUP BY api zero")
    assert error.message.splitlines() == ["unexpected 'zero'", "  GROUP BY api zero", "               ^"]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT count FROM requests WHERE " + "NOT " * 60 + "api = 'x'",
        "SELECT count FROM requests WHERE " + "(" * 3000 + "api = 'x'",
        "SELECT count FROM requests WHERE api IN (" + ",".join(["'x'"] * 1001) + ")",
        "SELECT count FROM requests WHERE api = '\ud800'",
        "SELECT count FROM requests WHERE api = '\0'",
        "SELECT count FROM requests LIMIT " + "9" * 5000,
        "SELECT count FROM requests WHERE a = 1e" + "9" * 5000,
        "SELECT count FROM requests INTERVAL " + "9" * 5000 + "s",
        "x" * 30_000,
    ],
    ids=["not", "open", "values", "surrogate", "nul", "digits", "exponent", "duration", "length"],
)
def test_absurd_texts_are_refused(text):
    assert refused(text).position is not None


def test_deep_parentheses_and_long_chains_are_fine():
    assert condition(f"{'(' * 3000}api = '/a'{')' * 3000}") == Compare(Path("api"), "=", Literally("/a"))
    assert len(condition(" OR ".join(["api = '/a'"] * 900)).terms) == 900
    assert len(condition(f"api IN ({', '.join(['1'] * 1000)})").values) == 1000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("BETWEEN now-1h AND now", Between(Now(-HOUR), Now())),
        ("BETWEEN now - 90m AND now + 5s", Between(Now(-90 * MINUTE), Now(5 * SECOND))),
        ("BETWEEN 'now-1h' AND \"NOW\"", Between(Now(-HOUR), Now())),
        ("BETWEEN 1705327200 AND 1705330800000", Between(1705327200 * SECOND, 1705330800 * SECOND)),
        ("BETWEEN 1705327200000001 AND '1705330800'", Between(1705327200000001, 1705330800 * SECOND)),
        ("BETWEEN 1705327200.25 AND 1705330800000000000", Between(1705327200250000, 1705330800 * SECOND)),
        ("SINCE now-1h", Since(HOUR)),
        ("SINCE 1705327200", Between(1705327200 * SECOND, Now())),
        ("SINCE 2024-01-15T14:00:00Z", Between(1705327200 * SECOND, Now())),
        ("SINCE '2024-01-15T14:00'", Between(Wall(1705327200 * SECOND), Now())),
        ("SINCE '7d'", Since(7 * 24 * HOUR)),
    ],
)
def test_times(text, said):
    assert parse(f"SELECT count FROM requests {text}").time == said


@pytest.mark.parametrize(
    ("text", "position", "hint"),
    [
        ("BETWEEN 2024 AND 2025", 27 + 8, "epoch numbers are seconds, milliseconds"),
        ("BETWEEN -1 AND now", 27 + 8, "between 1973 and 5138"),
        ("BETWEEN 1705327200.0000001 AND now", 27 + 8, "leave digits out"),
        ("BETWEEN now AND now-1h", 27 + 16, "start <= end"),
        ("BETWEEN 2024-01-02 AND 2024-01-01", 27 + 23, "start <= end"),
        ("SINCE soon", 27 + 6, "a duration such as 30s"),
        ("SINCE 'soon'", 27 + 6, "a duration such as 90m or 7d, an instant"),
        ("INTERVAL 0mo", 27 + 9, "use 1 to 9999"),
        ("INTERVAL 1.5mo", 27 + 9, "calendar units are 1w, 1mo, 1q and 1y"),
        ("INTERVAL 1d WEEK START noday", 27 + 23, "monday, tuesday"),
        ("INTERVAL 1d ORIGIN now", 27 + 19, "use an instant such as"),
        ("WHERE a BETWEEN 1 AND 'x'", 27 + 22, "two strings, two numbers"),
        ("HAVING count", 27 + 12, "BETWEEN"),
        ("HAVING " + "-" * 60 + "count > 1", 27 + 16, "50 operations"),
        ("OFFSET -1", 27 + 7, "use 0 or more"),
    ],
)
def test_errors_in_clauses(text, position, hint):
    error = refused(f"SELECT count FROM requests {text}")
    assert hint in error.hint
    assert error.position == position


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("30s", Every(30 * SECOND)),
        ("7d", Every(7 * 24 * HOUR)),
        ("1w", Every(1, "week")),
        ("2w", Every(2, "week")),
        ("P1W", Every(1, "week")),
        ("1mo", Every(1, "month")),
        ("P3M", Every(3, "month")),
        ("1q", Every(1, "quarter")),
        ("10y", Every(10, "year")),
        ("1w2d", Every(9 * 24 * HOUR)),
    ],
)
def test_intervals(text, said):
    assert parse(f"SELECT count FROM requests INTERVAL {text}").bucket == said


def test_clauses_of_the_calendar():
    query = parse(
        "SELECT count FROM requests INTERVAL 1w TIMEZONE 'Europe/Paris' WEEK START Sunday "
        "ORIGIN '2024-01-01T06:00'"
    )
    assert query.timezone == Choice("Europe/Paris")
    assert query.week_start == Choice("sunday")
    assert query.origin == OriginClause(Wall(parse_instant("2024-01-01T06:00")))


def test_arithmetic_binds_as_in_mathematics():
    a, b, c = (Value(Path(name)) for name in "abc")
    assert selected("a + b * c") == Binary("+", a, Binary("*", b, c))
    assert selected("(a + b) * c") == Binary("*", Binary("+", a, b), c)
    assert selected("a - b - c") == Binary("-", Binary("-", a, b), c)
    assert selected("a / b * -c") == Binary("*", Binary("/", a, b), Unary("-", c))
    assert selected("a - -1.5") == Binary("-", a, Literally(Decimal("-1.5")))
    assert selected("-(2) * a") == Binary("*", Literally(-2), a)
    assert selected("count(*)") == Value(Path("count"), star=True)


def test_having():
    a, b = Value(Path("a")), Value(Path("b"), (Path("x"),))
    said = parse("SELECT a FROM r HAVING NOT a > 1 AND (b(x) / 2 IS NOT NULL OR a BETWEEN 1 AND 2)").having
    half = Binary("/", b, Literally(2))
    within = Within(a, Literally(1), Literally(2))
    assert said == All(
        (Not(Compare(a, ">", Literally(1))), AnyOf((IsNull(half, negated=True), within))),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("(a + 1) * 2 > 3", Compare(Binary("*", Binary("+", A, ONE), TWO), ">", Literally(3))),
        ("((a) > (1))", Compare(A, ">", ONE)),
        ("((a + 1) > 2 OR a = 1) AND a < 2",
         All((AnyOf((Compare(Binary("+", A, ONE), ">", TWO), Compare(A, "=", ONE))), Compare(A, "<", TWO)))),
        ("(NOT (a = 1))", Not(Compare(A, "=", ONE))),
        ("a NOT IN (1, a / 2)", Among(A, (ONE, Binary("/", A, TWO)), negated=True)),
        ("a == .5", Compare(A, "=", Literally(Decimal("0.5")))),
        ("-a <> +1", Compare(Unary("-", A), "!=", ONE)),
    ],
)  # fmt: skip
def test_parentheses_of_having_are_those_of_conditions_or_of_values(text, said):
    assert parse(f"SELECT a FROM r HAVING {text}").having == said


def test_conditions_of_both_clauses():
    query = parse("SELECT count FROM r FILTER a.b NOT ILIKE 'x%' WHERE c NOT BETWEEN 1 AND 2 OFFSET 3")
    assert query.filter == Like(Path("a.b"), Literally("x%"), True, True)
    assert query.where == Within(Path("c"), Literally(1), Literally(2), True)
    assert query.offset == 3
