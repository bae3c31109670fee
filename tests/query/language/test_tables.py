"""The parser that is loaded from tables is the one that the grammar makes."""

import pytest

from tidemill.query.language.tables import GRAMMAR, build, kept, made_of, parser_with

TEXTS = {
    "query": "EXPLAIN SELECT sum(latency_ms) / count FROM requests SINCE 2h INTERVAL 10m GROUP BY region",
    "search": "WHERE status >= 500 FILTER region ILIKE 'eu%' SINCE now-1h LIMIT 5",
    "expression": "p99.9 * 2",
    "having_either": "count > 3",
}


def test_the_tables_are_of_this_grammar_and_this_lark():
    assert kept()["made_of"] == made_of(GRAMMAR.read_text("utf-8")), "run scripts/grammar.py"


@pytest.mark.parametrize("start", TEXTS)
def test_both_parsers_read_the_same(start: str):
    by_grammar = build(GRAMMAR.read_text("utf-8")).parse(TEXTS[start], start=start)
    assert parser_with(None).parse(TEXTS[start], start=start) == by_grammar
