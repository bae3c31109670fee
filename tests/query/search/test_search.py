"""A search: the index prunes, the payload filters, pages in order, a cursor that holds while data arrives."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples
from tests.support.search_mill import NOON, PATHS, SearchMill, event, ids

from tidemill.engine import Engine
from tidemill.model.conditions.evaluation import truth, values_at
from tidemill.model.conditions.types import check_types
from tidemill.model.errors import QueryError
from tidemill.model.time import HOUR, SECOND
from tidemill.outputs.index.attributes import attributes
from tidemill.query.language.parse import parse_search
from tidemill.query.search.search import SearchPage, explain, search

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = [
    event("a", 1, region="eu", status=200, tags=["x", "y"], note="fine"),
    event("b", 2, region="eu", status=503, tags=["y"], note="a timeout", user={"plan": "pro"}),
    event("c", 3, region="us", status=500, tags=[], note="timeout"),
    event("d", 4, "beta", region="eu", status=502.0, note="timeout again", user={"plan": "pro"}),
    event("e", 5, "beta", region=None, status="500"),
    event("f", 6, region="eu", status=599, note="none", user={"plan": "free"}),
]


@pytest.fixture(scope="module", params=["indexed", "half", "scanned"])
def plant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SearchMill:
    """The same events with an index of all parts, of some of them, and without any."""
    made = SearchMill(tmp_path_factory.mktemp("plant"))
    made.land(EVENTS[:3])
    if request.param == "half":
        made.indexer().refresh(made.clock())
    made.land(EVENTS[3:])
    if request.param == "indexed":
        made.indexer().refresh(made.clock())
    return made


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "fedcba"),
        ('WHERE region = "eu"', "fdba"),
        ('WHERE region = "eu" AND status >= 500', "fdb"),
        ('WHERE region = "eu" AND status >= 500 FILTER user.plan = "pro" AND note LIKE "%timeout%"', "db"),
        ("WHERE status = 502", "d"),
        ('WHERE status = "500"', "e"),
        ("WHERE status != 500", "fdba"),
        ("WHERE NOT status > 500", "ca"),
        ('WHERE tags = "y"', "ba"),
        ('WHERE tags != "x"', "b"),
        ("WHERE tags IS NULL", "fedc"),
        ('WHERE user.plan IN ("pro", "none") OR region = "us"', "dcb"),
        ('WHERE user.plan NOT IN ("pro")', "f"),
        ('WHERE region LIKE "_u" ORDER BY ts ASC LIMIT 3', "abd"),
        ('FILTER note LIKE "timeout%"', "dc"),
        ("ORDER BY arrival ASC", "abcdef"),
        ('WHERE tenant = "beta"', "ed"),
        ('WHERE tenant = "beta" AND NOT status = 1 FILTER user.plan = "pro"', "d"),
        ("BETWEEN 2024-01-15T12:00:02Z AND 2024-01-15T12:00:04Z", "cb"),
    ],
)
def test_a_search_finds_these_events_in_this_order(plant: SearchMill, text: str, expected: str) -> None:
    found = plant.search(text, total=True)
    assert "".join(ids(found)) == expected
    if "LIMIT" not in text:
        assert found.total == len(expected)
        assert found.cursor is None
    payloads = [json.loads(text)["event_id"] for text in found.rows.column("payload").to_pylist()]
    assert payloads == ids(found)


def test_a_page_has_all_that_is_known_of_an_event(plant: SearchMill) -> None:
    (row,) = plant.search("WHERE status = 503").rows.to_pylist()
    assert row["event_time"].timestamp() * SECOND == NOON + 2 * SECOND
    assert (row["tenant"], row["event_id"], row["event_type"], row["line"]) == ("acme", "b", None, 2)
    assert json.loads(row["payload"]) == EVENTS[1]


def test_a_tenant_sees_its_own_events_only(plant: SearchMill) -> None:
    assert ids(plant.search('WHERE region = "eu"', "beta")) == ["d"]
    assert ids(plant.search('WHERE region = "eu"', "nobody")) == []
    with pytest.raises(QueryError) as refused:
        plant.search('WHERE tenant = "acme"', "beta")
    assert refused.value.position == 6


def test_since_reaches_back_from_now(plant: SearchMill) -> None:
    over = plant.searched()
    found = search(over, parse_search("SINCE 2s"), tenant=None, now=NOON + 6 * SECOND)
    assert ids(found) == ["e", "d"]


def test_a_path_that_is_not_indexed_is_refused_with_those_that_are(plant: SearchMill) -> None:
    with pytest.raises(QueryError) as refused:
        plant.search('WHERE region = "eu" AND note = "fine"')
    assert refused.value.position == 24
    assert "note is not indexed" in refused.value.message
    assert all(path in refused.value.hint for path in (*PATHS, "tenant", "FILTER"))
    with pytest.raises(QueryError):
        plant.search('WHERE `user.plan` = "pro"')
    assert ids(plant.search('FILTER `user.plan` = "pro" OR note = "fine"')) == ["a"]


@pytest.mark.parametrize("limit", [0, -1, 10**9])
def test_a_page_has_bounds(plant: SearchMill, limit: int) -> None:
    with pytest.raises(QueryError):
        plant.search("", limit=limit)


def test_facts_and_the_plan_say_what_is_scanned(tmp_path: Path) -> None:
    made = SearchMill(tmp_path)
    made.land(EVENTS[:3])
    made.indexer().refresh(made.clock())
    made.land(EVENTS[3:])
    found = made.search("WHERE status = 503 BETWEEN 2024-01-15T12:00:00Z AND 2024-01-15T12:00:03Z")
    assert (found.facts.parts, found.facts.pruned, found.facts.scanned) == (2, 1, 0)
    assert (found.facts.index_groups, found.facts.index_entries, found.facts.rows_fetched) == (1, 3, 1)
    assert found.facts.rows_filtered == 0
    found = made.search("WHERE status = 503")
    assert (found.facts.scanned, found.facts.scanned_rows, found.facts.rows_filtered) == (1, 3, 3)
    plan = explain(made.searched(), parse_search("WHERE status = 503"), tenant=None, now=NOON + HOUR)
    assert (plan.parts, plan.pruned, plan.scanned, plan.scanned_rows) == (2, 0, 1, 3)
    assert (plan.index_groups, plan.index_entries, plan.payloads) == (1, 3, True)
    newest = made.search("LIMIT 1")
    assert ids(newest) == ["f"]


# -- pages


def pages(made: SearchMill, text: str, size: int, between: list[list[dict[str, object]]]) -> list[SearchPage]:
    found = [made.search(text, limit=size)]
    while (cursor := found[-1].cursor) is not None:
        if between:
            made.land(between.pop())
            made.indexer().refresh(made.clock())
        found.append(made.search(text, limit=size, cursor=cursor))
    return found


@examples(12)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=14),
    st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4), max_size=3),
    st.integers(1, 4),
    st.sampled_from(["", 'WHERE region = "r1" OR status < 3', "FILTER status < 4"]),
    st.sampled_from(["ts DESC", "ts ASC", "arrival ASC", "arrival DESC"]),
)
def test_pages_are_one_big_page_taken_at_the_start_whatever_arrives_meanwhile(
    tmp_path_factory: pytest.TempPathFactory,
    first: list[int],
    later: list[list[int]],
    size: int,
    condition: str,
    order: str,
) -> None:
    made = SearchMill(tmp_path_factory.mktemp("pages"))

    def events(seconds: list[int], name: str) -> list[dict[str, object]]:
        return [
            event(f"{name}{i}", s, region=f"r{s % 2}", status=i % 6, tenant="ab"[i % 2])
            for i, s in enumerate(seconds)
        ]

    half = len(first) // 2
    for number, some in enumerate((first[:half], first[half:])):
        if some:
            made.land(events(some, f"first{number}-"))
        if number == 0 and some:
            made.indexer().refresh(made.clock())
    text = f"{condition} ORDER BY {order}"
    whole = made.search(text, limit=1000)
    found = pages(made, text, size, [events(some, f"later{n}-") for n, some in enumerate(later)])
    assert [name for page in found for name in ids(page)] == ids(whole)
    assert all(page.rows.num_rows == size for page in found[:-1])


def test_a_cursor_of_another_search_or_no_cursor_at_all_is_refused(plant: SearchMill) -> None:
    cursor = plant.search("WHERE status > 0", limit=1).cursor
    assert cursor is not None
    assert ids(plant.search("WHERE   status > 0", limit=2, cursor=cursor)) == ["d", "c"]
    for text in ("WHERE status > 1", "WHERE status > 0 ORDER BY ts ASC", "FILTER status > 0"):
        with pytest.raises(QueryError, match="another search"):
            plant.search(text, cursor=cursor)
    with pytest.raises(QueryError, match="another search"):
        plant.search("WHERE status > 0", "acme", cursor=cursor)
    for garbage in ("", "x", "é", cursor[:-2], cursor + "AA", cursor[:20] + "A" + cursor[21:], "=" * 9):
        if garbage != cursor:
            with pytest.raises(QueryError, match="cursor"):
                plant.search("WHERE status > 0", cursor=garbage)


def test_the_span_of_a_search_does_not_move_from_page_to_page(plant: SearchMill) -> None:
    said, over = parse_search("SINCE 10s"), plant.searched()
    first = search(over, said, tenant=None, now=NOON + 6 * SECOND, limit=2)
    second = search(over, said, tenant=None, now=NOON + HOUR, limit=2, cursor=first.cursor)
    assert (ids(first), ids(second)) == (["e", "d"], ["c", "b"])
    assert first.span == second.span


def test_slices_that_the_ledger_does_not_know_yet_are_not_seen(plant: SearchMill) -> None:
    over = plant.searched()
    less = type(over)(over.stream, over.raw, over.index, over.indexed, 1, over.seqs)
    assert ids(search(less, parse_search(""), tenant=None, now=NOON)) == ["c", "b", "a"]


# -- both engines


@pytest.mark.parametrize("total", [False, True])
def test_spark_finds_the_same(plant: SearchMill, spark: SparkSession, total: bool) -> None:
    over = plant.searched()
    engine = Engine(session=spark)
    for text in (
        "LIMIT 2",
        'WHERE region = "eu" FILTER note LIKE "%e%"',
        "WHERE NOT tags = 'x' ORDER BY arrival",
    ):
        said = parse_search(text)
        here = search(over, said, tenant=None, now=NOON, total=total)
        there = search(over, said, tenant=None, now=NOON, total=total, engine=engine)
        assert there.rows.equals(here.rows)
        assert (there.total, there.cursor) == (here.total, here.cursor)


# -- many rows


@pytest.mark.long
def test_lookups_read_few_groups_and_agree_with_the_payloads(tmp_path: Path) -> None:
    made = SearchMill(tmp_path)
    rows = 30_000
    made.land(
        [
            event(
                f"e{i:06d}", i / 100, "abc"[i % 3], region=f"r{i % 7}", status=i % 500, tags=[f"t{i}", "all"]
            )
            for i in range(rows)
        ]
    )
    made.indexer().refresh(made.clock())
    found = made.search('WHERE tags = "t12345"')
    assert ids(found) == ["e012345"]
    assert (found.facts.index_groups, found.facts.rows_fetched) == (1, 1)
    found = made.search('WHERE status = 77 AND region = "r3" AND NOT tags = "t577"', total=True)
    expected = [i for i in range(rows) if i % 500 == 77 and i % 7 == 3 and i != 577]
    assert found.total == len(expected)
    assert ids(found) == [f"e{i:06d}" for i in reversed(expected)][:50]
    said = parse_search('WHERE status >= 490 FILTER event_id LIKE "%9" AND region != "r1"')
    got = search(made.searched(), said, tenant="a", now=NOON, limit=100_000)
    assert said.where is not None
    assert said.filter is not None
    naive = []
    for i in range(0, rows, 3):
        value = {"event_id": f"e{i:06d}", "region": f"r{i % 7}", "status": Decimal(i % 500)}
        if all(truth(c, lambda path, v=value: values_at(v, path)) for c in (said.where, said.filter)):  # type: ignore[misc]
            naive.append(f"e{i:06d}")
    assert sorted(ids(got)) == naive
    for order, expected in (("DESC", list(reversed(range(rows)))), ("ASC", list(range(rows)))):
        found_all = pages(made, f"ORDER BY ts {order}", 7_000, [])
        assert [name for page in found_all for name in ids(page)] == [f"e{i:06d}" for i in expected]
        assert found_all[0].facts.rows_fetched <= rows
    first = made.search("ORDER BY ts DESC LIMIT 3", "a")
    assert (ids(first), first.facts.rows_fetched) == (["e029997", "e029994", "e029991"], 8_192)


# -- attributes


def test_attributes_are_counted_from_the_index(tmp_path: Path) -> None:
    made = SearchMill(tmp_path)
    made.land(EVENTS[:3])
    made.land(EVENTS[3:])
    over = made.searched()
    assert attributes(over.raw, over.index, PATHS).left_out == 2
    made.indexer().refresh(made.clock())
    over = made.searched()
    found = attributes(over.raw, over.index, PATHS)
    by_path = {each.path: each for each in found.attributes}
    assert (found.events, found.parts, found.left_out) == (6, 2, 0)
    assert by_path["region"].top == (("eu", 4), ("us", 1))
    assert (by_path["status"].kinds, by_path["status"].events) == (("number", "string"), 6)
    assert (Decimal(200), 1) in by_path["status"].top
    assert ("500", 1) in by_path["status"].top
    assert (by_path["tags"].events, by_path["tags"].distinct, by_path["tags"].top) == (
        2,
        2,
        (("y", 2), ("x", 1)),
    )
    theirs = {each.path: each for each in attributes(over.raw, over.index, PATHS, tenant="beta").attributes}
    assert theirs["region"].top == (("eu", 1),)
    assert theirs["tags"].events == 0
    bounded = attributes(over.raw, over.index, PATHS, most_entries=1)
    assert (bounded.parts, bounded.left_out) == (1, 1)


@pytest.mark.parametrize(
    ("text", "position", "hint"),
    [
        ('WHERE status = "500"', 15, "a number without quotes"),
        ("WHERE region = 5", 15, "a string in quotes"),
        ('FILTER status IN (200, "500")', 23, "a number without quotes"),
        ('FILTER status LIKE "5%"', 19, "a number without quotes"),
        ('FILTER NOT (status BETWEEN "1" AND "2")', 27, "a number without quotes"),
    ],
)
def test_a_value_of_another_type_than_declared_is_refused(text, position, hint):
    said = parse_search(text)
    types = {"status": "integer", "region": "string", "note": "any"}
    with pytest.raises(QueryError) as caught:
        check_types(said.where or said.filter, types)
    assert hint in caught.value.hint
    assert caught.value.position == position


def test_what_is_not_declared_with_a_type_is_compared_with_anything():
    said = parse_search('FILTER note = 5 AND other LIKE "x" AND status IS NULL AND status > 1.5')
    check_types(said.filter, {"status": "integer", "note": "any"})
