"""Any text and any document says something or is refused with a QueryError that has a hint, and soon."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples
from tests.support.query_documents import document_of

from tidemill.model.errors import QueryError
from tidemill.query.language.ast import Query, Search
from tidemill.query.language.document import QUERY_KEYS, SEARCH_KEYS, query_from, search_from
from tidemill.query.language.parse import parse, parse_search
from tidemill.query.language.unparse import text_of

WORD_TEXT = """
SELECT count FROM requests WHERE BETWEEN AND SINCE USING ROLLUP INTERVAL GROUP BY EDGES FILL ORDER LIMIT
FORMAT include exclude null zero drop carry rows series AS OR NOT IN LIKE IS NULL EXPLAIN DESC FILTER ts
arrival sum p99.9 http.status `api` ( ) , . = != < >= ; 'x' "/a" 5 -1 1.5 1e3 true false 1m 30s PT1H
2024-01-01 2024-01-01T10:00:00Z '2024-01-02' ' " ` \\ § - + * / now HAVING OFFSET
TIMEZONE WEEK START
monday ORIGIN ILIKE 1705327200 1mo 1w
"""
WORDS = WORD_TEXT.split()
QUERY = """
EXPLAIN SELECT count AS n, percentile(0.999), ratio(a, b) FROM requests.hits
WHERE NOT (a = 'x' OR b IN (1, -2.5, true)) AND c LIKE 'a\\%' AND d IS NOT NULL
BETWEEN 2024-01-01 AND '2024-01-02T10:00:00Z' USING ROLLUP 1m GROUP BY api, `http.status`
EDGES null FILL carry ORDER BY n DESC LIMIT 5 FORMAT series;
"""
SEARCH = """
WHERE region = "eu" AND status >= 500 FILTER user.`pl.an` <> "pro" AND note NOT LIKE "%timeout%"
SINCE 2h30m ORDER BY ts DESC, arrival LIMIT 50
"""


def read_or_refused(text: str) -> None:
    for reader in (parse, parse_search):
        try:
            said = reader(text)
        except QueryError as error:
            said = error
        if isinstance(said, QueryError):
            assert said.hint
            assert said.position is not None
            assert 0 <= said.position <= len(text)
        else:
            assert reader(text_of(said)) == said


@examples(250)
@given(st.text(max_size=80))
@example("WHERE ſ = 1")
@example("SELECT K FROM ſelect")
@example("SINCE 1K")
@example("LIMIT ٣")
def test_any_text(text):
    read_or_refused(text)


@examples(250)
@given(st.lists(st.sampled_from(WORDS), max_size=25), st.sampled_from(["", " ", "\n"]))
def test_any_words(words, between):
    read_or_refused(between.join(words))


def test_what_is_mutated_is_valid():
    assert isinstance(parse(QUERY), Query)
    assert isinstance(parse_search(SEARCH), Search)


@examples(250)
@given(st.data())
def test_mutated_texts(data):
    text = data.draw(st.sampled_from([QUERY, SEARCH]))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(at, min(len(text), at + 12)))
        text = text[:at] + data.draw(st.sampled_from(["", " ", *WORDS]) | st.text(max_size=3)) + text[end:]
    read_or_refused(text)


@pytest.mark.parametrize(
    "word", ["(", ")", "NOT ", "`", "'", '"', "\\", "a.", ",", "a AND ", "1", "-", "e1", ";", " "]
)
@pytest.mark.parametrize(
    "start", ["", "WHERE ", "WHERE a = ", "WHERE a LIKE '", "SELECT ", "SELECT a FROM b WHERE "]
)
def test_huge_texts_are_refused_or_read_soon(start, word):
    text = (start + word * 20_000)[:20_000]
    began = time.process_time()
    read_or_refused(text)
    read_or_refused(text + word)
    assert time.process_time() - began < 5


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["and", "or", "not", "field", "dimension", "op", "value", "values", "by", "desc", "as"]
            )
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
TESTS = st.fixed_dictionaries(
    {
        "field": st.sampled_from(["a", "a.b", "`x", ""]) | JSON,
        "op": st.sampled_from(["=", "in", "like", "is_null"]),
    },
    optional={"value": JSON, "values": JSON},
)
PARTS = {
    "select": st.just(["count"]) | JSON,
    "from": st.just("requests") | JSON,
    "where": TESTS | st.fixed_dictionaries({"and": st.lists(TESTS, max_size=2)}) | JSON,
    "limit": st.integers(0, 9) | JSON,
}


def documents(keys: tuple[str, ...]) -> st.SearchStrategy[dict[str, object]]:
    return st.fixed_dictionaries({}, optional={key: PARTS.get(key, JSON) for key in keys})


@examples(250)
@given(documents(QUERY_KEYS), documents(SEARCH_KEYS))
def test_any_document(query, search):
    for reader, document in (
        (query_from, query),
        (search_from, search),
        (query_from, search),
        (search_from, query),
    ):
        try:
            said = reader(document)
        except QueryError as error:
            said = error
        if isinstance(said, QueryError):
            assert said.hint
            assert said.where.split(",")[0] in ("query", "search")
        else:
            assert isinstance(said, Query | Search)
            assert reader(document_of(said)) == said


@examples(300)
@given(st.text(max_size=60) | JSON.map(str))
def test_any_json_text(text):
    for reader in (query_from, search_from):
        try:
            assert isinstance(reader(text), Query | Search)
        except QueryError as error:
            refused = error
            assert refused.hint
