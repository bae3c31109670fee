"""Spans that fit no bucket, asked of a mill: every answer is what a loop over the events says."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from tidemill.mill import Mill
from tidemill.model.errors import QueryError
from tidemill.model.time import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    Interval,
    align,
    format_instant,
    parse_instant,
    to_datetime,
)
from tidemill.query import Answer, Explanation

START = parse_instant("2024-01-01T00:00:00Z")
CONFIG = """
version: 1
streams:
  visits:
    schema:
      id: {type: string, required: true}
      at: {type: string, required: true}
      page: string
      ms: integer
      order: string
      status: string
    event_time: {column: at, type: iso8601}
    identity: id
    metrics:
      visits: {kind: counter, dimensions: [page], measures: [ms]}
      first_pages: {kind: counter, dimensions: [page], max_cardinality: 2}
      speed: {kind: gauge, value: ms, dimensions: [page]}
      delay: {kind: histogram, value: ms}
      orders: {kind: state, object: order, state: status, dimensions: [page]}
      share: {kind: ratio, numerator: first_pages, denominator: visits}
"""


def at(text: str) -> int:
    return parse_instant(f"2024-01-01T{text}Z" if text[2] == ":" else text)


def visit(number: int, moment: int) -> dict[str, object]:
    return {
        "id": f"v{number:04}",
        "at": format_instant(moment),
        "page": "abc"[number % 3],
        "ms": number % 50,
        "order": f"o{number % 7}",
        "status": ["NEW", "WORK", "DONE"][number // 7 % 3],
    }


MOMENTS = [START + number * (26 * SECOND + 234_567) for number in range(2_000)]
VISITS = [visit(number, moment) for number, moment in enumerate(MOMENTS)]


@pytest.fixture(scope="module")
def mill(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spans")
    with opened(folder, CONFIG, START + 2 * DAY + 123_456) as made:
        made.land("visits", "\n".join(map(json.dumps, VISITS)).encode())
        made.tick()
        yield made


def opened(folder: Path, config: str, now: int) -> Mill:
    (folder / "tidemill.yaml").write_text(config)
    return Mill.open(folder, clock=lambda: now)


def inside(start: int, end: int) -> list[dict[str, object]]:
    return [one for one, moment in zip(VISITS, MOMENTS, strict=True) if start <= moment < end]


def between(start: int, end: int) -> str:
    return f"BETWEEN {format_instant(start)} AND {format_instant(end)}"


def rows(mill: Mill, text: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in mill.query(text).to_pylist()]


def test_hours_that_the_span_holds_a_part_of(mill):
    asked = f"SELECT count FROM visits {between(at('10:07:00'), at('12:30:00'))}"
    found = [row[1] for row in rows(mill, f"{asked} INTERVAL 1h")]
    edges = [at("10:07:00"), at("11:00:00"), at("12:00:00"), at("12:30:00")]
    assert found == [len(inside(*pair)) for pair in pairwise(edges)]
    assert rows(mill, asked) == [(sum(found),)]


def test_a_span_inside_one_bucket_holds_its_event(mill):
    moment = MOMENTS[777]
    assert rows(mill, f"SELECT count FROM visits {between(moment, moment + 1)}") == [(1,)]
    assert rows(mill, f"SELECT count FROM visits {between(moment + 1, moment + SECOND)}") == [(0,)]
    bucketed = rows(mill, f"SELECT count FROM visits {between(moment, moment + 1)} USING ROLLUP 1h")
    assert [row[1] for row in bucketed] == [1]


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (MOMENTS[100], MOMENTS[1800]),
        (MOMENTS[100] + 1, MOMENTS[1800] + 1),
        (MOMENTS[500], MOMENTS[500] + 7 * MINUTE + 13),
        (at("03:00:00"), at("03:00:07.5")),
    ],
)
class TestAnySpan:
    def test_counts_and_sums(self, mill, start, end):
        events = inside(start, end)
        wanted = (len(events), sum(e["ms"] for e in events))
        assert rows(mill, f"SELECT count, sum(ms) FROM visits {between(start, end)}") == [wanted]
        for interval in ("5s", "15m", "3h", "9d"):
            found = rows(mill, f"SELECT count, sum(ms) FROM visits {between(start, end)} INTERVAL {interval}")
            assert (sum(row[1] for row in found), sum(row[2] for row in found)) == wanted

    def test_gauges_and_percentiles(self, mill, start, end):
        values = [e["ms"] for e in inside(start, end)]
        ends = (values[0], values[-1], min(values), max(values)) if values else (None,) * 4
        text = f"SELECT first, last, min, max FROM visits.speed {between(start, end)}"
        assert rows(mill, text) == [ends]
        (found,) = rows(mill, f"SELECT p50, count FROM visits.delay {between(start, end)}")
        assert found == (sorted(values)[(len(values) - 1) // 2] if values else None, len(values))

    def test_limited_keys_and_ratios(self, mill, start, end):
        pages = Counter(e["page"] if e["page"] in "ab" else "__other__" for e in inside(start, end))
        text = f"SELECT count FROM visits.first_pages {between(start, end)} GROUP BY page"
        assert dict(rows(mill, text)) == dict(pages)
        (found,) = rows(mill, f"SELECT ratio FROM visits.share {between(start, end)}")
        assert found == ((1,) if pages else (None,))

    def test_states_and_transitions(self, mill, start, end):
        last: dict[object, object] = {}
        changes = 0
        for one, moment in zip(VISITS, MOMENTS, strict=True):
            if moment < end:
                changes += moment >= start and last.get(one["order"]) != one["status"]
                last[one["order"]] = one["status"]
        text = f"SELECT states FROM visits.orders {between(start, end)} GROUP BY state"
        assert dict(rows(mill, text)) == dict(Counter(last.values()))
        assert rows(mill, f"SELECT transitions FROM visits.orders {between(start, end)}") == [(changes,)]


def test_since_reads_a_few_buckets_at_each_end(mill):
    plan = mill.ask("EXPLAIN SELECT count FROM visits SINCE 90d")
    assert isinstance(plan, Explanation)
    fine = [piece for piece in plan.pieces if piece.source in ("5s", "1m", "raw")]
    assert all(piece.span.end - piece.span.start < 60 * MINUTE for piece in fine)
    answer = mill.ask("SELECT count FROM visits SINCE 90d")
    assert isinstance(answer, Answer)
    assert str(answer.span) == "[2023-10-05T00:00:00.123456Z, 2024-01-03T00:00:00.123456Z)"
    assert answer.table.to_pylist() == [{"count": len(VISITS)}]


def test_an_event_at_the_first_instant_there_is(tmp_path):
    ancient = CONFIG.replace("    identity: id", "    skew: {past: null}\n    identity: id")
    with opened(tmp_path, ancient, START) as mill:
        mill.land("visits", json.dumps(visit(1, parse_instant("0001-01-01T00:00:00Z"))).encode())
        mill.tick()
        first = parse_instant("0001-01-01T00:00:00Z")
        for level in ("5s", "1m", "1h", "1d", "7d"):
            text = f"SELECT count FROM visits USING ROLLUP {level}"
            answer = mill.query(text)
            assert answer.column("bucket").cast("int64").to_pylist() == [first]
            assert answer.column("count").to_pylist() == [1]
            assert mill.query(f"{text} {between(first, first + DAY)} EDGES null").num_rows == 1
        assert rows(mill, "SELECT count FROM visits BETWEEN 0001-01-01 AND 0001-01-02") == [(1,)]
        assert mill.verify().ok


ENDS = ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z")


def reaching(folder: Path, *moments: str) -> Mill:
    endless = CONFIG.replace("    identity: id", "    skew: {past: null, future: null}\n    identity: id")
    mill = opened(folder, endless, START)
    visits = [visit(number, parse_instant(moment)) for number, moment in enumerate(moments)]
    mill.land("visits", "\n".join(map(json.dumps, visits)).encode())
    mill.tick()
    return mill


@pytest.mark.parametrize("clauses", ["USING ROLLUP 7d", "INTERVAL 1y"])
def test_cells_that_reach_beyond_all_time_are_cut_off_there(tmp_path, clauses):
    with reaching(tmp_path, *ENDS) as mill:
        found = rows(mill, f"SELECT count FROM visits {clauses}")
    assert (str(found[0][0]), found[0][1]) == ("0001-01-01 00:00:00+00:00", 1)
    assert (found[-1][0].year, [count for _, count in found]) == (9999, [1, 1])


@pytest.mark.parametrize(
    ("end", "starts"),
    [
        (ENDS[0], {"1w": "0001-01-01", "1mo": "0001-01-01", "1q": "0001-01-01"}),
        (ENDS[1], {"1w": "9999-12-27", "1mo": "9999-12-01", "1q": "9999-10-01"}),
    ],
)
def test_short_cells_at_either_end_of_time_are_cut_off_there(tmp_path, end, starts):
    """All of time has half a million weeks: what matters is at its ends."""
    with reaching(tmp_path, end) as mill:
        for interval, start in starts.items():
            found = rows(mill, f"SELECT count FROM visits INTERVAL {interval}")
            assert [(str(bucket.date()), count) for bucket, count in found] == [(start, 1)]


def test_filter_looks_into_payloads_and_says_so(mill):
    span = between(MOMENTS[100] + 1, MOMENTS[900] + 1)
    events = [e for e in inside(MOMENTS[100] + 1, MOMENTS[900] + 1) if e["order"] in ("o1", "o2")]
    text = f"SELECT count, sum(ms) FROM visits {span} FILTER order IN ('o1', 'o2')"
    answer = mill.ask(text)
    assert isinstance(answer, Answer)
    assert answer.level == "raw"
    assert {piece.source for piece in answer.pieces} == {"raw"}
    assert [tuple(row.values()) for row in answer.table.to_pylist()] == [
        (len(events), sum(e["ms"] for e in events))
    ]
    pages = Counter(e["page"] for e in events)
    found = rows(mill, f"{text} WHERE page != 'c' INTERVAL 1h GROUP BY page")
    assert sum(row[2] for row in found) == pages["a"] + pages["b"]
    every = rows(mill, "SELECT count FROM visits FILTER order = 'o1' USING ROLLUP 1d")
    assert sum(row[1] for row in every) == sum(e["order"] == "o1" for e in VISITS)
    monthly = rows(mill, "SELECT count FROM visits FILTER order = 'o1' INTERVAL 1mo")
    assert [row[1] for row in monthly] == [sum(e["order"] == "o1" for e in VISITS)]
    assert "raw from" in str(mill.ask(f"EXPLAIN {text}"))
    with pytest.raises(QueryError, match="FILTER applies to events"):
        mill.query("SELECT states FROM visits.orders FILTER ms > 1")


def test_an_answer_with_filter_says_where_its_events_lie(mill):
    chosen = [number for number, event in enumerate(VISITS) if event["order"] in ("o1", "o2")]
    ms, moments = [VISITS[number]["ms"] for number in chosen], [MOMENTS[number] for number in chosen]
    data = Interval(align(moments[0], 5 * SECOND), align(moments[-1], 5 * SECOND) + 5 * SECOND)
    since = between(START, data.end - SECOND)
    for clauses, end in (("", data.end), (" WHERE page = 'a'", data.end), (f" {since}", data.end - SECOND)):
        answer = mill.ask(f"SELECT count FROM visits{clauses} FILTER order IN ('o1', 'o2')")
        assert answer.completeness.data == Interval(data.start, end)
    for metric, expected in (
        ("speed", {"min": min(ms), "max": max(ms), "first": ms[0], "last": ms[-1]}),
        ("delay", {"min": min(ms), "max": max(ms), "count": len(ms)}),
    ):
        values = ", ".join(expected)
        (row,) = mill.query(f"SELECT {values} FROM visits.{metric} FILTER order IN ('o1', 'o2')").to_pylist()
        assert row == expected
    hourly = rows(mill, "SELECT count FROM visits FILTER order IN ('o1', 'o2') USING ROLLUP 1h")
    assert hourly == sorted(Counter(to_datetime(align(moment, HOUR)) for moment in moments).items())
