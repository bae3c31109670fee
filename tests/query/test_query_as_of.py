"""AS OF: what a query said at an instant of arrival, held against what it did say then, and against loops."""

from __future__ import annotations

import pytest
from tests.support.shop_story import HOUR, PROJECT, SECOND, START, ShopStory, event, slices

from tidemill.model.errors import QueryError
from tidemill.model.time import format_instant

pytestmark = pytest.mark.long

SPAN = f"BETWEEN {format_instant(START)} AND {format_instant(START + 2 * HOUR)}"
LATER, END = format_instant(START + HOUR), format_instant(START + 2 * HOUR)  # the second hour
ODD = "BETWEEN 2024-01-15T10:07:03Z AND 2024-01-15T11:35:01Z"  # no bucket begins or ends there
QUERIES = [
    f"SELECT count, sum(ms), avg(ms) FROM shop.hits {SPAN} GROUP BY region ORDER BY region",
    f"SELECT count, rate FROM shop.hits {SPAN} INTERVAL 10m GROUP BY region ORDER BY bucket, region",
    f"SELECT count, sum(ms) FROM shop.hits {ODD} INTERVAL 7m ORDER BY bucket",
    f'SELECT count FROM shop.hits WHERE region = "eu" {ODD} USING ROLLUP 1m FILL zero',
    f"SELECT min, max, first, last, avg FROM shop.level {SPAN} GROUP BY region ORDER BY region",
    f"SELECT last FROM shop.level {SPAN} INTERVAL 15m FILL carry",
    f"SELECT p50, p99, count FROM shop.took {SPAN} INTERVAL 1h GROUP BY region ORDER BY bucket, region",
    f"SELECT bins FROM shop.took {SPAN}",
    f"SELECT states FROM shop.life {SPAN} INTERVAL 30m GROUP BY state ORDER BY bucket, state",
    f"SELECT transitions FROM shop.life {ODD} GROUP BY from_state, to_state ORDER BY from_state, to_state",
    f"SELECT ratio FROM shop.slowness {SPAN} INTERVAL 1h ORDER BY bucket",
    f"SELECT count FROM shop.hits {SPAN} FILTER ms > 3 INTERVAL 30m ORDER BY bucket",
    "SELECT count, sum(ms) FROM shop.hits",
]


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """The shop, and for each instant between slices what each query said then."""
    shop = ShopStory(tmp_path_factory.mktemp("shop"))
    said = []
    for records in [*slices(), []]:
        at = shop.clock()
        said.append(
            (at, {(text, who): answer(shop, text, who) for text in QUERIES for who in (None, "acme")})
        )
        shop.clock.advance(SECOND)
        if records:
            shop.land(records)
    yield shop, said
    shop.mill.close()


def answer(shop, text, who=None, as_of=None):
    if text is not QUERIES[-1] and not shop.ids and as_of is None:
        return None  # nothing is built yet: what a query says then is another matter
    asked = shop.mill.ask(text, tenant=who, all_tenants=who is None, check_tenant=False, as_of=as_of)
    return asked.table.to_pylist()


@pytest.mark.parametrize("text", QUERIES)
def test_it_says_what_was_said_then(story, text):
    shop, said = story
    reported = 0
    for at, then in said[1:]:
        for who in (None, "acme"):
            assert answer(shop, text, who, as_of=at) == then[text, who], (format_instant(at), who)
            reported += then[text, who] != answer(shop, text, who)
    assert reported  # it is another answer now


def test_counts_and_sums_are_those_of_a_loop(story):
    shop, said = story
    for at, _ in said[1:]:
        text = f"SELECT count, sum(ms) FROM shop.hits {SPAN} AS OF {format_instant(at)}"
        (found,) = shop.mill.ask(text, all_tenants=True).table.to_pylist()
        counted = [one for one in shop.accepted(by=at) if START <= one.time < START + 2 * HOUR]
        assert found == {"count": len(counted), "sum(ms)": sum(one.ms for one in counted)}


def test_before_anything_came_there_was_nothing(story):
    shop, said = story
    found = shop.mill.ask(QUERIES[-1], all_tenants=True, as_of=said[0][0])
    assert found.table.to_pylist()[0]["count"] in (None, 0)
    assert found.past.slices_after == len({one.slice for one in shop.accepted()})


def test_where_nothing_came_since_it_is_the_ordinary_plan(story):
    shop, said = story
    found = shop.mill.ask(QUERIES[0], all_tenants=True, as_of=said[-1][0])
    assert not found.past.changed
    assert found.level != "raw"
    changed = shop.mill.ask(QUERIES[0], all_tenants=True, as_of=said[2][0])
    assert (changed.past.changed, changed.level) == (True, "raw")
    outside = (
        f"SELECT count FROM shop.hits BETWEEN 2030-01-01 AND 2030-02-01 AS OF {format_instant(said[1][0])}"
    )
    assert not shop.mill.ask(outside, all_tenants=True).past.changed


def test_since_is_as_of_then(story):
    shop, said = story
    at = said[2][0]
    found = shop.mill.ask("SELECT count FROM shop.hits SINCE 5h", all_tenants=True, as_of=at)
    counted = [one for one in shop.accepted(by=at) if at - 5 * HOUR <= one.time < at]
    assert found.table.to_pylist() == [{"count": len(counted)}]


def test_it_can_be_written_in_all_ways(story):
    shop, said = story
    at, now = said[2][0], shop.clock()
    plain = "SELECT count FROM shop.hits"
    asked = [
        f"{plain} AS OF {format_instant(at)}",
        f"{plain} AS OF '{format_instant(at)}'",
        f"{plain} LIMIT 1 AS OF {(now - at) // SECOND}s",
        {"select": ["count"], "from": "shop.hits", "as_of": format_instant(at)},
    ]
    expected = [{"count": len(shop.accepted(by=at))}]
    for one in asked:
        assert shop.mill.ask(one, all_tenants=True).table.to_pylist() == expected
    assert shop.mill.query(plain, all_tenants=True, as_of=at).to_pylist() == expected


def test_an_instant_without_an_offset_is_in_the_time_zone_of_the_stream(tmp_path):
    shop = ShopStory(tmp_path, PROJECT + "    query: {timezone: America/New_York}\n")
    first, second, *_ = slices()
    shop.land(first)
    at = shop.clock()
    shop.land(second)
    shop.clock.advance(12 * HOUR)
    local = format_instant(at - 5 * HOUR).removesuffix("Z")
    expected = [{"count": len(shop.accepted(by=at))}]
    plain = "SELECT count FROM shop.hits"
    assert shop.mill.query(f"{plain} AS OF {local}", all_tenants=True).to_pylist() == expected
    assert shop.mill.query(plain, all_tenants=True, as_of=local).to_pylist() == expected
    shop.mill.close()


def test_the_future_and_two_instants_are_refused(story):
    shop, _ = story
    with pytest.raises(QueryError, match="AS OF lies in the future"):
        shop.mill.ask("SELECT count FROM shop.hits AS OF 2090-01-01", all_tenants=True)
    with pytest.raises(QueryError, match="AS OF is given twice"):
        shop.mill.ask("SELECT count FROM shop.hits AS OF 1h", all_tenants=True, as_of="2h")


def test_what_was_retracted_since_is_missing_and_said(tmp_path):
    shop = ShopStory(tmp_path)
    first, second, *_ = slices()
    shop.land(first)
    shop.land(second)
    at = shop.clock()
    shop.clock.advance(HOUR)
    shop.mill.retract(shop.mill.plan_retraction(shop.ids[1], "wrong"))
    shop.mill.run_until_idle()
    found = shop.mill.ask(
        f"SELECT count FROM shop.hits {SPAN} INTERVAL 1h FILL null", all_tenants=True, as_of=at
    )
    assert [one.why for one in found.completeness.missing] == ["retracted"]
    assert shop.ids[1][:12] in found.past.missing[0].detail
    assert found.past.reaches_back_to is not None
    assert [row["count"] for row in found.table.to_pylist()] == [None, None]
    # after the retraction it is known again
    later = shop.mill.ask(f"SELECT count FROM shop.hits {SPAN}", all_tenants=True, as_of=shop.clock())
    assert later.table.to_pylist() == [{"count": 30}]
    shop.mill.close()


@pytest.fixture
def tale(tmp_path):
    """An empty shop, whose slices a test lands itself."""
    shop = ShopStory(tmp_path)
    yield shop
    shop.mill.close()


def test_what_is_carried_into_the_span_is_that_of_then(tale):
    tale.land([event(0, 0, ms=1), event(1, 90, ms=2)])
    at = tale.clock() - SECOND
    tale.land([event(2, 30, ms=9)])  # before the span
    text = f"SELECT last FROM shop.level BETWEEN {LATER} AND {END} INTERVAL 30m FILL carry"
    found = [tale.mill.ask(text, all_tenants=True, as_of=when).table for when in (at, None)]
    assert [table.column("last").to_pylist() for table in found] == [[1, 2], [9, 2]]


def test_transitions_are_those_of_then(tale):
    tale.land([event(0, 0, item="x", state="new"), event(1, 60, item="x", state="paid")])
    at = tale.clock() - SECOND
    late = tale.land([event(2, 30, item="x", state="paid")])  # before the span
    text = f"SELECT transitions FROM shop.life BETWEEN {LATER} AND {END}"

    def found(when=None):
        return tale.mill.ask(text, all_tenants=True, as_of=when).table.column("transitions").to_pylist()

    assert (found(at), found()) == ([1], [0])
    retracted = tale.clock()
    tale.mill.retract(tale.mill.plan_retraction(late, "wrong"))
    tale.mill.run_until_idle()
    assert (found(), found(retracted - SECOND)) == ([1], [None])


def test_what_counts_only_since_a_retraction_is_missing(tale):
    """The second slice contradicts the first, at another time; its record counts once the first is gone."""
    first = tale.land([event(3, 3)])
    second = tale.land([event(3, 90), event(4, 61)])
    at = tale.clock()
    tale.clock.advance(HOUR)
    text = f"SELECT count FROM shop.hits BETWEEN {LATER} AND {END}"
    assert tale.mill.ask(text, all_tenants=True).table.to_pylist() == [{"count": 1}]
    tale.mill.retract(tale.mill.plan_retraction(first, "wrong"))
    under_way = tale.mill.ask(f"SELECT count FROM shop.hits {SPAN} INTERVAL 1h", all_tenants=True, as_of=at)
    assert [one.what for one in under_way.completeness.pending] == ["retraction"]
    tale.mill.run_until_idle()
    assert tale.mill.ask(text, all_tenants=True).table.to_pylist() == [{"count": 2}]
    then = tale.mill.ask(text, all_tenants=True, as_of=at)
    assert then.table.to_pylist() == [{"count": None}]
    assert second[:12] in then.completeness.missing[0].detail
    (change,) = tale.mill.changes("shop", at, start=LATER, end=END)
    assert (change.entry.id, change.retracted) == (first, True)


def test_which_keys_were_admitted_before_a_retraction_is_missing(tmp_path):
    """The only key that is admitted is that of the first slice, which has no event in the span."""
    project = PROJECT.replace(
        "hits: {kind: counter, dimensions: [region]",
        "hits: {kind: counter, dimensions: [region], max_cardinality: 1",
    )
    tale = ShopStory(tmp_path, project)
    first = tale.land([event(0, 0, region="eu")])
    tale.land([event(1, 61, region="us")])
    at = tale.clock()
    tale.clock.advance(HOUR)
    text = f"SELECT count FROM shop.hits BETWEEN {LATER} AND {END} GROUP BY region"
    assert tale.mill.query(text, all_tenants=True).to_pylist() == [{"region": "__other__", "count": 1}]
    tale.mill.retract(tale.mill.plan_retraction(first, "wrong"))
    tale.mill.run_until_idle()
    assert tale.mill.query(text, all_tenants=True).to_pylist() == [{"region": "us", "count": 1}]
    then = tale.mill.ask(text, all_tenants=True, as_of=at)
    assert then.table.column("count").to_pylist() == [None]
    assert [one.why for one in then.completeness.missing] == ["retracted"]
    total = tale.mill.ask(text.replace("GROUP BY region", ""), all_tenants=True, as_of=at)
    assert (total.table.to_pylist(), total.completeness.missing) == ([{"count": 1}], ())
    tale.mill.close()
