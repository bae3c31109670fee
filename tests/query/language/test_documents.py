"""Queries and searches as JSON documents: the meaning of the text, and errors that name the place."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from tests.support.query_documents import document_of

from tidemill.model.errors import QueryError
from tidemill.query.language.document import query_from, search_from
from tidemill.query.language.parse import parse, parse_search
from tidemill.query.language.unparse import text_of

QUERY = {
    "select": ["count", {"value": "sum(latency_ms)", "as": "total"}, "percentile(0.999)"],
    "from": "requests",
    "where": {
        "and": [
            {"dimension": "region", "op": "=", "value": "eu"},
            {
                "or": [
                    {"dimension": "http.status", "op": ">=", "value": 500},
                    {"field": "ok", "op": "is_null"},
                ]
            },
            {"not": {"field": "api", "op": "like", "value": "/a%"}},
            {"field": "tier", "op": "not_in", "values": [1, 2.5, True, "x"]},
        ]
    },
    "between": ["2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z"],
    "interval": "30s",
    "group_by": ["api", "http.status"],
    "edges": "null",
    "fill": "carry",
    "order_by": [{"by": "count", "desc": True}, "api"],
    "limit": 10,
    "format": "rows",
    "explain": True,
}
TEXT = (
    "EXPLAIN SELECT count, sum(latency_ms) AS total, percentile(0.999) FROM requests "
    "WHERE region = 'eu' AND (http.status >= 500 OR ok IS NULL) AND NOT api LIKE '/a%' "
    "AND tier NOT IN (1, 2.5, true, 'x') "
    "BETWEEN 2024-01-01T00:00:00Z AND 2024-01-02T00:00:00Z INTERVAL 30s GROUP BY api, http.status "
    "EDGES null FILL carry ORDER BY count DESC, api LIMIT 10 FORMAT rows"
)
SEARCH = {
    "where": {"field": "region", "op": "=", "value": "eu"},
    "filter": {
        "and": [{"field": "user.plan", "op": "!=", "value": "pro"}, {"field": "x", "op": "is_not_null"}]
    },
    "since": "2h",
    "order_by": [{"by": "ts", "desc": True}],
    "limit": 50,
}


def test_a_document_says_what_the_text_says():
    assert query_from(QUERY) == parse(TEXT)
    assert query_from(json.dumps(QUERY)) == parse(TEXT)
    assert text_of(query_from(QUERY)) == TEXT
    asked = (
        "WHERE region = 'eu' FILTER user.plan != 'pro' AND x IS NOT NULL SINCE 2h ORDER BY ts DESC LIMIT 50"
    )
    assert search_from(SEARCH) == search_from(json.dumps(SEARCH)) == parse_search(asked)
    assert search_from({}) == search_from("{}") == parse_search("")
    assert query_from({"select": ["count"], "from": "r", "rollup": "1m"}) == parse(
        "SELECT count FROM r USING ROLLUP 1m"
    )


def test_a_document_comes_back():
    assert document_of(search_from(SEARCH)) == SEARCH
    assert query_from(document_of(parse(TEXT))) == parse(TEXT)
    assert document_of(parse("SELECT count FROM r")) == {"select": ["count"], "from": "r"}


def test_positions_are_those_of_the_text():
    query = query_from({"select": ["count"], "from": "r", "group_by": ["apy"]})
    assert text_of(query)[query.groups[0].position :] == "apy"


def test_names_in_documents_have_quotes_already():
    document = {
        "filter": {"and": [{"field": name, "op": "is_null"} for name in ("user-agent.x y", "`a.b`.c")]}
    }
    terms = search_from(document).filter.terms
    assert [term.operand.segments for term in terms] == [("user-agent", "x y"), ("a.b", "c")]


def test_numbers_are_what_was_written():
    text = '{"filter": {"field": "a", "op": "in", "values": [0.1, 1.50, 12345678901234567890.5, 1e2, 7]}}'
    values = [literal.value for literal in search_from(text).filter.values]
    assert list(map(str, values)) == ["0.1", "1.50", "12345678901234567890.5", "1E+2", "7"]
    (value,) = search_from({"filter": {"field": "a", "op": "in", "values": [0.1]}}).filter.values
    assert value.value == Decimal("0.1")


OPERATORS = (
    "operators: =, !=, <, <=, >, >=, in, not_in, like, not_like, ilike, not_ilike, between, not_between, "
    "is_null, is_not_null"
)


def with_(**parts: object) -> dict[str, object]:
    return {"select": ["count"], "from": "requests", **parts}


@pytest.mark.parametrize(
    ("document", "where", "hint"),
    [
        ([], "query", "give an object"),
        ({"from": "requests"}, "query", "give 'select'"),
        ({"select": ["count"]}, "query", "give 'from'"),
        (with_(filters=1), "query, /filters", "keys: select, from, where"),
        (with_(select="count"), "query, /select", "give a list"),
        (with_(select=[]), "query, /select", "give 1 to 1000"),
        (with_(select=["count", 5]), "query, /select/1", 'give a value such as "count"'),
        (with_(select=["sum("]), "query, /select/0", "expected a name"),
        (with_(select=[{"as": "x"}]), "query, /select/0", 'give {"value"'),
        (with_(select=[{"value": "count", "a/s": "x"}]), "query, /select/0/a~1s", "keys: value, as"),
        (with_(**{"from": ""}), "query, /from", "write names with dots between them"),
        (with_(**{"from": "a..b"}), "query, /from", "write names with dots between them"),
        (with_(where={}), "query, /where", 'give {"and"'),
        (with_(where={"and": []}), "query, /where/and", "give 1 to 1000"),
        (
            with_(where={"and": [{"field": "a", "op": "~", "value": 1}]}),
            "query, /where/and/0/op",
            OPERATORS,
        ),
        (with_(where={"not": {"field": "a", "op": "="}}), "query, /where/not", "'=' needs 'value'"),
        (
            with_(where={"field": "a", "op": "=", "values": [1]}),
            "query, /where/values",
            "keys: field, op, value",
        ),
        (with_(where={"and": [], "or": []}), "query, /where/or", "keys: and"),
        (
            with_(where={"field": "a", "dimension": "b", "op": "is_null"}),
            "query, /where/field",
            "keys: dimension",
        ),
        (with_(where={"field": "a", "op": "=", "value": None}), "query, /where/value", "is_null"),
        (with_(where={"field": "a", "op": "=", "value": float("nan")}), "query, /where/value", "a number"),
        (
            with_(where={"field": "a", "op": "=", "value": 2**63}),
            "query, /where/value",
            "use -9223372036854775808",
        ),
        (with_(where={"field": "a", "op": "=", "value": 10**5000}), "query, /where/value", "40 digits"),
        (
            with_(where={"field": "a", "op": "in", "values": [1, [2]]}),
            "query, /where/values/1",
            "use a string",
        ),
        (
            with_(where={"field": "a", "op": "like", "value": 5}),
            "query, /where/value",
            "a pattern as a string",
        ),
        (
            with_(where={"field": "a", "op": "like", "value": "x\\"}),
            "query, /where/value",
            "for one backslash",
        ),
        (with_(where={"field": "a", "op": "=", "value": "\0"}), "query, /where/value", "remove it"),
        (with_(between=["2024-01-01"]), "query, /between", "give [start, end]"),
        (with_(between=["2024-01-01", 5]), "query, /between/1", "epoch numbers are seconds"),
        (with_(between=["2024-01-02", "2024-01-01"]), "query, /between/1", "start <= end"),
        (with_(between=["soon", "2024-01-01"]), "query, /between/0", "use RFC 3339"),
        (with_(since="2h", between=["2024-01-01", "2024-01-02"]), "query, /since", "give one of"),
        (with_(since=5), "query, /since", "epoch numbers are seconds"),
        (with_(interval="5x"), "query, /interval", "use 250ms"),
        (with_(interval="5s", rollup="1m"), "query, /interval", "give one of"),
        (with_(group_by="api"), "query, /group_by", "give a list"),
        (with_(edges="zero"), "query, /edges", "use one of include, exclude, null"),
        (with_(fill=None), "query, /fill", "use one of null, zero, drop, carry"),
        (with_(format="json"), "query, /format", "use one of rows, series"),
        (with_(order_by=[{"by": "count", "desc": 1}]), "query, /order_by/0/desc", "use true or false"),
        (with_(order_by=[{"desc": True}]), "query, /order_by/0", 'give {"by"'),
        (with_(limit=-1), "query, /limit", "from 0 to"),
        (with_(limit=True), "query, /limit", "from 0 to"),
        (with_(explain="yes"), "query, /explain", "use true or false"),
        (with_(offset=-1), "query, /offset", "from 0 to"),
        (with_(having="count"), "query, /having", "expected one of = != < <= > >="),
        (with_(having=5), "query, /having", "give a value as a string"),
        (with_(timezone=5), "query, /timezone", "the name of a time zone"),
        (with_(week_start="noday"), "query, /week_start", "use one of monday, tuesday"),
        (with_(origin="now"), "query, /origin", "give an instant"),
        (with_(origin=True), "query, /origin", "give an instant"),
        (with_(since="soon"), "query, /since", "a duration such as 90m"),
        (
            with_(where={"field": "a", "op": "between", "values": [1]}),
            "query, /where/values",
            "give [low, high]",
        ),
        (with_(where={"field": "a", "op": "between", "values": [1, "x"]}), "query, as text", "two numbers"),
        ("{", "query", "give one JSON object"),
        ("[" * 100_000, "query", "50 conditions inside each other"),
        ('{"select": ["count"], "from": "r", "limit": NaN}', "query", "use a number"),
        ('{"select": ["count"], "select": ["rate"], "from": "r"}', "query", "give each key once"),
        ('{"select": ["count"], "from": "r", "limit": 1e99999999999999999999}', "query", "40 digits"),
        (" " * 300_000, "query", "200000 at most"),
        (with_(group_by=["x" * 500] * 100), "query, as text", "use 20000 at most"),
    ],
)
def test_errors_name_the_place(document, where, hint):
    with pytest.raises(QueryError) as caught:
        query_from(document)
    assert caught.value.where == where
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("document", "where", "hint"),
    [
        ({"select": ["count"]}, "search, /select", "keys: where, filter, between, since, order_by, limit"),
        ({"order_by": ["region"]}, "search, /order_by/0", "order by ts or arrival, each once"),
        ({"order_by": ["ts", {"by": "ts"}]}, "search, /order_by/1/by", "order by ts or arrival, each once"),
        ({"filter": {"or": [5]}}, "search, /filter/or/0", 'give {"and"'),
    ],
)
def test_errors_of_searches_name_the_place(document, where, hint):
    with pytest.raises(QueryError) as caught:
        search_from(document)
    assert caught.value.where == where
    assert hint in caught.value.hint


def test_conditions_nested_too_deeply_are_refused_where_it_is_too_much():
    condition: dict[str, object] = {"field": "a", "op": "is_null"}
    for _ in range(50):
        condition = {"not": condition}
    assert search_from({"where": condition}).where is not None
    with pytest.raises(QueryError) as caught:
        search_from({"where": {"not": condition}})
    assert caught.value.where == "search, /where" + "/not" * 51
