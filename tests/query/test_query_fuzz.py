"""Any text gives an answer or a QueryError; any query gives what plain Python gives from the same events."""

from __future__ import annotations

import itertools
import json
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples

from tidemill.model.errors import QueryError
from tidemill.model.levels import level_for
from tidemill.model.time import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    Interval,
    align,
    format_duration,
    format_instant,
    parse_instant,
)
from tidemill.query import Answer, Explanation
from tidemill.query.ratio import ratio, ratios

BASE = parse_instant("2024-01-01T10:00:00Z")
TOKENS = """
SELECT count FROM requests WHERE BETWEEN AND SINCE USING ROLLUP INTERVAL GROUP BY EDGES FILL ORDER LIMIT
FORMAT include exclude null zero drop rows series AS OR NOT IN LIKE IS NULL EXPLAIN DESC sum avg rate
latency_ms price api http.status ok region tenant failures `api` ( ) , . = != < >= ; 'x' "/a" 5 -1 1.5 true
plant plant.heat plant.delay plant.orders plant.direct states transitions ratio ratio(made,failures) value
first p50 p99.9 p0 percentile(0.5) percentile(2) state from_state to_state carry 0.5 { } [ : null
1m 5s 30s 7s 9d PT1H 2024-01-01 2024-01-01T10:00:00Z '2024-01-02' ' " ` \\ §
"""
WORDS = TOKENS.split()
CLAUSES = {
    "where": [
        "WHERE api = '/a'",
        "WHERE http.status > 3 OR NOT ok = true",
        "WHERE api LIKE '%' AND region IN ('eu')",
    ],
    "time": [
        "BETWEEN 2024-01-01T10:00:03Z AND 2024-01-01T11:00:00Z",
        "SINCE 20h",
        "BETWEEN 0001-01-01 AND 2024-01-02",
    ],
    "bucket": ["USING ROLLUP 1m", "INTERVAL 30s", "INTERVAL 14d", "INTERVAL 7s", "USING ROLLUP 1d"],
    "group": ["GROUP BY api", "GROUP BY tenant, ok", "GROUP BY nope"],
    "edges": ["EDGES include", "EDGES exclude", "EDGES null"],
    "fill": ["FILL zero", "FILL null", "FILL drop"],
    "order": ["ORDER BY count DESC", "ORDER BY bucket", "ORDER BY api"],
    "limit": ["LIMIT 0", "LIMIT 2"],
    "format": ["FORMAT rows", "FORMAT series"],
}


@pytest.fixture(scope="module")
def anything(tmp_path_factory, kit):
    events = [
        kit.Event(BASE + i * 7 * SECOND, api=f"/{'ab'[i % 2]}", latency=i, price=Decimal(i) / 4)
        for i in range(40)
    ]
    return kit.Questions(kit.Shelf(tmp_path_factory.mktemp("anything")).put(events))


def answered_or_refused(desk, text: str) -> None:
    try:
        outcome = desk.querier.ask(text, tenant=None, now=BASE)
    except QueryError as error:
        outcome = error
    assert isinstance(outcome, Answer | Explanation | QueryError)
    if isinstance(outcome, QueryError):
        assert outcome.hint
        assert outcome.position is None or 0 <= outcome.position <= len(text)


@examples(150)
@given(st.text(max_size=80))
def test_any_text(anything, text):
    answered_or_refused(anything, text)


@examples(200)
@given(st.lists(st.sampled_from(WORDS), max_size=25))
def test_any_words(anything, words):
    answered_or_refused(anything, " ".join(words))


@examples(125)
@given(
    st.lists(
        st.sampled_from(["count", "rate", "avg(price)", "sum(latency_ms)", "min(price)"]),
        min_size=1,
        unique=True,
    ),
    st.fixed_dictionaries({name: st.none() | st.sampled_from(texts) for name, texts in CLAUSES.items()}),
    st.booleans(),
)
def test_any_clauses(anything, items, clauses, explain):
    given_clauses = " ".join(text for text in clauses.values() if text)
    answered_or_refused(
        anything, f"{'EXPLAIN ' * explain}SELECT {', '.join(items)} FROM requests {given_clauses}"
    )


OF_KINDS = {
    "made": ["count", "rate", "sum(latency)", "avg(latency)", "ratio(made, failures)", "p50"],
    "heat": ["value", "first", "last(temp)", "avg", "count", "ratio(orders, made)", "states"],
    "delay": ["p50", "p99.9", "percentile(0.25)", "min", "max", "rate", "first"],
    "orders": ["states", "transitions", "transitions(finished)", "count", "transitions(x)"],
    "direct": ["ratio", "ratio(made, successes)", "count"],
}
KIND_CLAUSES = CLAUSES | {
    "where": ["WHERE region = 'eu'", "WHERE state = 'NEW'", "WHERE from_state IN ('NEW') OR line > 1"],
    "group": ["GROUP BY region", "GROUP BY state", "GROUP BY to_state, region", "GROUP BY line"],
    "fill": ["FILL zero", "FILL null", "FILL drop", "FILL carry"],
    "order": ["ORDER BY states", "ORDER BY p50 DESC", "ORDER BY bucket"],
}


@pytest.fixture(scope="module")
def plant(tmp_path_factory, kit):
    events = [
        kit.Sight(
            BASE + i * 70 * SECOND,
            f"e{i}",
            region=[None, "eu", "us"][i % 3],
            ok=i % 2 == 0,
            latency=i - 20,
            temp=Decimal(i) / 4,
            order=f"o{i % 5}",
            status=["NEW", "DONE", "WORK"][i % 3],
        )
        for i in range(40)
    ]
    return kit.Questions(kit.Shelf(tmp_path_factory.mktemp("plant")).put(events))


@examples(125)
@given(st.data(), st.sampled_from(sorted(OF_KINDS)), st.booleans())
def test_any_clauses_of_any_kind(plant, data, metric, explain):
    items = data.draw(st.lists(st.sampled_from(OF_KINDS[metric]), min_size=1, max_size=3, unique=True))
    clauses = data.draw(
        st.fixed_dictionaries(
            {name: st.none() | st.sampled_from(texts) for name, texts in KIND_CLAUSES.items()}
        )
    )
    rest = " ".join(text for text in clauses.values() if text)
    answered_or_refused(plant, f"{'EXPLAIN ' * explain}SELECT {', '.join(items)} FROM plant.{metric} {rest}")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
TERM = st.fixed_dictionaries(
    {},
    optional={
        "field": st.sampled_from(["region", "line", "state", "nope"]) | JSON,
        "op": st.sampled_from(["=", "!=", "<", "in", "like", "is_null", "~"]) | JSON,
        "value": JSON,
        "values": st.lists(JSON, max_size=2),
    },
)
DOCUMENT = st.fixed_dictionaries(
    {},
    optional={
        "select": st.lists(st.sampled_from([v for values in OF_KINDS.values() for v in values]), max_size=3)
        | JSON,
        "from": st.sampled_from([f"plant.{metric}" for metric in OF_KINDS]) | JSON,
        "where": TERM | st.fixed_dictionaries({"and": st.lists(TERM, max_size=2)}) | JSON,
        "between": st.just(["2024-01-01T10:00:00Z", "2024-01-01T11:00:00Z"]) | JSON,
        "since": st.just("2h") | JSON,
        "rollup": st.sampled_from(["1m", "1h", "2m"]) | JSON,
        "interval": st.sampled_from(["30s", "7s"]) | JSON,
        "group_by": st.lists(st.sampled_from(["region", "state", "line"]), max_size=2) | JSON,
        "edges": st.sampled_from(["include", "null"]) | JSON,
        "fill": st.sampled_from(["carry", "zero", "drop"]) | JSON,
        "order_by": JSON,
        "limit": st.integers(-1, 5) | JSON,
        "format": st.sampled_from(["rows", "series"]) | JSON,
        "explain": st.booleans() | JSON,
        "else": JSON,
    },
)


@examples(400)
@given(DOCUMENT)
def test_any_document(plant, document):
    for asked in (document, json.dumps(document)):
        try:
            outcome = plant.querier.ask(asked, tenant=None, now=BASE)
        except QueryError as error:
            outcome = error
        assert isinstance(outcome, Answer | Explanation) or outcome.hint


@examples(200)
@given(st.text(max_size=40).map(lambda text: "{" + text) | JSON.map(json.dumps))
def test_any_text_that_could_be_a_document(plant, text):
    try:
        outcome = plant.querier.ask(text, tenant=None, now=BASE)
    except QueryError as error:
        outcome = error
    assert isinstance(outcome, Answer | Explanation | QueryError)


EVENT = st.tuples(
    st.integers(0, 12 * 60),  # quarters of a minute after BASE: 3 hours
    st.sampled_from(["/a", "/b", "/c", None]),
    st.sampled_from([200, 404, 500, None]),
    st.sampled_from([True, False, None]),
    st.none() | st.integers(-50, 50),
    st.none() | st.integers(-(10**6), 10**6).map(lambda cents: Decimal(cents).scaleb(-2)),
    st.sampled_from(["acme", "umbra"]),
)
CONDITIONS = {
    "": lambda e: True,
    "WHERE api = '/a'": lambda e: e.api == "/a",
    "WHERE api != '/a'": lambda e: e.api is not None and e.api != "/a",
    "WHERE api IS NULL OR http.status >= 404": lambda e: e.api is None or (e.status or 0) >= 404,
    "WHERE NOT ok = true": lambda e: e.ok is False,
    "WHERE api IN ('/b', '/c') AND ok IS NOT NULL": lambda e: e.api in ("/b", "/c") and e.ok is not None,
    "WHERE api NOT LIKE '%b' AND http.status < 500": lambda e: (
        e.api in ("/a", "/c") and (e.status or 999) < 500
    ),
}
GROUPS = {"api": lambda e: e.api, "http.status": lambda e: e.status, "ok": lambda e: e.ok}
INTERVALS = [5 * SECOND, 30 * SECOND, MINUTE, 7 * MINUTE, 15 * MINUTE, 90 * MINUTE, HOUR, 2 * HOUR, DAY]


def quotient(num: Decimal | int, den: int, digits: int) -> Decimal | None:
    with localcontext() as context:
        context.prec = 80
        if den == 0:
            return None
        return (Decimal(num) / den).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_EVEN)


def summary(members: list, micros: int | None) -> tuple:
    latencies = [e.latency for e in members if e.latency is not None]
    prices = [e.price for e in members if e.price is not None]
    return (
        len(members),
        Decimal(sum(latencies)),
        min(latencies, default=None),
        max(prices, default=None),
        quotient(sum(prices), len(prices), 8),
        *([quotient(len(members) * SECOND, micros, 6)] if micros else []),
    )


def expected(events, keep, groups, span, interval, edges, fill) -> list[tuple]:
    """The answer by plain Python, straight from the events, cell by cell."""
    keys = [GROUPS[name] for name in groups]
    pool = [e for e in events if span is None or span.holds(e.at)]
    hits = [e for e in pool if keep(e)]
    if span is None:
        cells = sorted({align(e.at, interval) for e in pool})
        cells = list(range(cells[0], cells[-1] + 1, interval)) if cells else []
    else:
        cells = list(span.windows(interval))
    found = []

    def is_partial(cell: int) -> bool:
        return span is not None and not (span.start <= cell and cell + interval <= span.end)

    seen_groups = {
        tuple(key(e) for key in keys)
        for e in hits
        if edges != "exclude" or not is_partial(align(e.at, interval))
    }
    seen_groups |= {()} if not keys else set()
    for cell, group in itertools.product(cells, seen_groups):
        members = [
            e for e in hits if align(e.at, interval) == cell and tuple(key(e) for key in keys) == group
        ]
        partial = is_partial(cell)
        if partial and edges == "exclude":
            continue
        start, end = (
            (cell, cell + interval)
            if span is None
            else (max(cell, span.start), min(cell + interval, span.end))
        )
        if partial and edges == "null":
            values = (None,) * 6
        elif members:
            values = summary(members, end - start)
        elif fill == "zero":
            values = (0, Decimal(0), None, None, None, Decimal("0.000000"))
        elif fill == "null":
            values = (None,) * 6
        else:
            continue
        found.append((cell, *group, *values))
    return sorted(found, key=lambda row: [(value is None, value) for value in row[: 1 + len(keys)]])


@examples(120)
@given(
    events=st.lists(EVENT, max_size=40),
    condition=st.sampled_from(sorted(CONDITIONS)),
    groups=st.lists(st.sampled_from(sorted(GROUPS)), unique=True, max_size=2),
    bounds=st.none() | st.tuples(st.integers(-30, 200), st.integers(0, 200), st.sampled_from([1, 5, 60])),
    interval=st.sampled_from(INTERVALS),
    edges=st.sampled_from(["include", "exclude", "null"]),
    fill=st.sampled_from(["null", "zero", "drop"]),
    tenant=st.none() | st.sampled_from(["acme", "umbra"]),
)
def test_answers_equal_plain_python(
    tmp_path_factory, kit, events, condition, groups, bounds, interval, edges, fill, tenant
):
    made = [
        kit.Event(BASE + at * 15_000_001, api, status, ok, "eu", latency, price, who)
        for at, api, status, ok, latency, price, who in events
    ]
    span = None
    if bounds:
        start = BASE + bounds[0] * bounds[2] * 1_000_003
        span = Interval(start, start + bounds[1] * 67 * bounds[2] * SECOND // 60)
    desk = kit.Questions(kit.Shelf(tmp_path_factory.mktemp("random")).put(made))
    time = f"BETWEEN '{format_instant(span.start)}' AND '{format_instant(span.end)}'" if span else ""
    by = f"GROUP BY {', '.join(groups)}" if groups else ""
    text = (
        "SELECT count, sum(latency_ms), min(latency_ms), max(price), avg(price), rate FROM requests "
        f"{condition} {time} INTERVAL {format_duration(interval)} {by} EDGES {edges} FILL {fill}"
    )
    answer = desk.ask(text, tenant)
    table = answer.table.set_column(0, "bucket", answer.table.column("bucket").cast(pa.int64()))
    rows = [tuple(row.values()) for row in table.to_pylist()]
    own = [e for e in made if tenant is None or e.tenant == tenant]
    assert rows == expected(own, CONDITIONS[condition], groups, span, interval, edges, fill)
    assert answer.level == level_for(interval).name
    desk.querier.close()

    total = desk.ask(
        "SELECT count, sum(latency_ms), min(latency_ms), max(price), avg(price) FROM requests "
        f"{condition} {time}",
        tenant,
    ).table.to_pylist()
    members = [e for e in own if CONDITIONS[condition](e) and (not span or span.holds(e.at))]
    assert [tuple(row.values()) for row in total] == [summary(members, None)]
    desk.querier.close()


@given(st.lists(st.tuples(st.integers(-(10**37), 10**37), st.integers(0, 2**63 - 1)), min_size=1))
def test_ratio_is_exact_and_rounds_half_to_even(pairs):
    check_ratios(pairs)


@given(st.lists(st.tuples(st.integers(-(10**6), 10**6), st.integers(0, 4 * 10**6)), min_size=1))
def test_ratio_of_small_numbers_is_exact_and_rounds_half_to_even(pairs):
    check_ratios(pairs)


def check_ratios(pairs: list[tuple[int, int]]) -> None:
    wanted = [None if den == 0 else round(Fraction(num * 10**6, den)) for num, den in pairs]  # half to even
    assert [ratio(num, den) for num, den in pairs] == wanted
    if all(w is None or abs(w) < 10**38 for w in wanted):
        nums = pa.array([Decimal(num) for num, _ in pairs], type=pa.decimal128(38, 0))
        dens = np.array([den for _, den in pairs], dtype=np.int64)
        assert ratios(nums, dens).to_pylist() == wanted
