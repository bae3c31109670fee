"""The search text: clauses in any order, each at most once, with the conditions of queries."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tidemill.model.conditions.ast import All, Compare, Like, Literally, Path
from tidemill.model.errors import QueryError
from tidemill.model.time import HOUR, parse_instant
from tidemill.query.language.ast import Between, Search, Since, Wall
from tidemill.query.language.parse import parse_search

EXAMPLE = (
    'WHERE region = "eu" AND status >= 500 FILTER user.plan = "pro" AND note LIKE "%timeout%" '
    "SINCE 2h ORDER BY ts DESC LIMIT 50"
)


def test_the_whole_of_it():
    assert parse_search(EXAMPLE) == Search(
        where=All(
            (
                Compare(Path("region"), "=", Literally("eu")),
                Compare(Path("status"), ">=", Literally(500)),
            )
        ),
        filter=All(
            (
                Compare(Path("user.plan", 0, ("user", "plan")), "=", Literally("pro")),
                Like(Path("note"), Literally("%timeout%"), negated=False),
            )
        ),
        time=Since(2 * HOUR),
        order=(("ts", True),),
        limit=50,
    )


def test_clauses_come_in_any_order():
    shuffled = (
        'LIMIT 50 ORDER BY ts DESC SINCE 2h FILTER user.plan = "pro" AND note LIKE "%timeout%" '
        'WHERE region = "eu" AND status >= 500;'
    )
    assert parse_search(shuffled) == parse_search(EXAMPLE)


@pytest.mark.parametrize("text", ["", "  \n", ";"])
def test_the_empty_text_is_a_search(text):
    assert parse_search(text) == Search()


def test_times_orders_and_numbers_of_any_size():
    found = parse_search(
        "EXPLAIN BETWEEN 2024-01-01 AND 2024-01-02T00:00:00Z ORDER BY arrival, `ts` DESC "
        "FILTER a = 123456789012345678901234567890 AND b < 1.5e-3"
    )
    assert found.explain
    assert found.time == Between(Wall(parse_instant("2024-01-01")), parse_instant("2024-01-02"))
    assert found.order == (("arrival", False), ("ts", True))
    assert [term.value.value for term in found.filter.terms] == [
        123456789012345678901234567890,
        Decimal("0.0015"),
    ]


@pytest.mark.parametrize("word", ["where", "filter", "since", "order", "limit", "ts", "arrival", "true"])
def test_words_are_names_in_conditions(word):
    found = parse_search(f"WHERE {word} = 1 FILTER {word} IS NULL AND {word}.{word} IN (2) LIMIT 1")
    assert (found.where.operand.text, found.filter.terms[0].operand.text) == (word, word)


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("region = 'eu'", 0, "expected ';', the end of the search, BETWEEN, EXPLAIN, FILTER, LIMIT, ORDER"),
        (
            "WHERE a = 1 GROUP BY a",
            12,
            "expected ';', the end of the search, AND, BETWEEN, FILTER, LIMIT, OR, ORDER",
        ),
        ("WHERE a = 1 WHERE b = 2", 12, "each clause once"),
        ("SINCE 1h BETWEEN 2024-01-01 AND 2024-01-02", 9, "give one of BETWEEN or SINCE"),
        ("ORDER BY region", 9, "order by ts or arrival, each once"),
        ("ORDER BY ts, ts DESC", 13, "order by ts or arrival, each once"),
        ("LIMIT -5", 6, "use 0 or more"),
        ("FILTER a LIKE 'x\\\\'", 14, "for one backslash"),
        ("FILTER a", 8, "expected one of = != < <= > >=, BETWEEN, ILIKE, IN, IS, LIKE or NOT"),
        ("WHERE a = null", 10, "expected a string in quotes, a number, FALSE or TRUE"),
    ],
)
def test_errors_point_at_the_character(text, position, expected):
    with pytest.raises(QueryError) as caught:
        parse_search(text)
    assert caught.value.position == position
    assert expected in caught.value.hint
    assert caught.value.where == f"search, character {position + 1}"
