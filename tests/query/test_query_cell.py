"""From a number to its events: what a cell lists adds up to its number, and is what a loop finds."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from tests.support.shop_story import HOUR, MINUTE, START, told

from tidemill.model.errors import InputError, NotFoundError, QueryError
from tidemill.model.time import format_instant, from_datetime, parse_instant

FROM, TO = START, START + 2 * HOUR
SPAN = f"BETWEEN {format_instant(FROM)} AND {format_instant(TO)}"
ODD_FROM, ODD_TO = parse_instant("2024-01-15T10:07:03Z"), parse_instant("2024-01-15T11:35:01Z")
ODD = f"BETWEEN {format_instant(ODD_FROM)} AND {format_instant(ODD_TO)}"
ALL = 10**18
# query, span, interval (None: a total), whether an event counts
CASES = [
    (
        f"SELECT count, sum(ms) FROM shop.hits {SPAN} INTERVAL 30m GROUP BY region",
        FROM,
        TO,
        30 * MINUTE,
        None,
    ),
    (
        f"SELECT count, sum(ms) FROM shop.hits {ODD} INTERVAL 7m GROUP BY region",
        ODD_FROM,
        ODD_TO,
        7 * MINUTE,
        None,
    ),
    ("SELECT count, sum(ms) FROM shop.hits GROUP BY region", 0, ALL, None, None),
    (f"SELECT count FROM shop.slow {SPAN} INTERVAL 1h", FROM, TO, HOUR, lambda one: one.ms >= 5),
    (f"SELECT count, min, max FROM shop.level {SPAN} INTERVAL 1h GROUP BY region", FROM, TO, HOUR, None),
    (f"SELECT count, p50 FROM shop.took {ODD} INTERVAL 1h", ODD_FROM, ODD_TO, HOUR, None),
    (f"SELECT count FROM shop.hits {SPAN} FILTER ms > 3 INTERVAL 1h", FROM, TO, HOUR, lambda one: one.ms > 3),
    (
        f'SELECT count FROM shop.hits WHERE region = "eu" {SPAN} INTERVAL 1h',
        FROM,
        TO,
        HOUR,
        lambda one: one.event["region"] == "eu",
    ),
]


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    found = told(tmp_path_factory.mktemp("shop"))
    yield found
    found.mill.close()


def expected(shop, tenant, span, group, counts):
    return sorted(
        one.event["id"]
        for one in shop.accepted(tenant=tenant)
        if span[0] <= one.time < span[1]
        and all(one.event[name] == value for name, value in group.items())
        and (counts is None or counts(one))
    )


@pytest.mark.parametrize("tenant", [None, "acme"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0][:60])
def test_the_events_of_every_cell_add_up_to_its_number(shop, case, tenant):
    text, start, end, interval, counts = case
    whose = {"tenant": tenant, "all_tenants": tenant is None}
    table = shop.mill.ask(text, **whose).table.to_pylist()
    assert table
    for row in table:
        bucket = None if interval is None else from_datetime(row["bucket"])
        group = {"region": row["region"]} if "region" in row else {}
        cell = shop.mill.cell(text, bucket, group, **whose, limit=1000)
        inside = (start, end) if bucket is None else (max(start, bucket), min(end, bucket + interval))
        ids = expected(shop, tenant, inside, group, counts)
        assert sorted(one["event_id"] for one in cell.events) == ids
        assert cell.total == len(ids) == row["count"] == cell.values["count"]
        values = [Decimal(str(json.loads(one["payload"])["ms"])) for one in cell.events]
        if "sum(ms)" in row:
            assert sum(values) == row["sum(ms)"]
        if "min" in row:
            assert (min(values), max(values)) == (row["min"], row["max"])
        assert sum(one.rows for one in cell.slices) == cell.total
        assert [piece.span.start for piece in cell.pieces] == sorted(
            piece.span.start for piece in cell.pieces
        )
        if interval is not None:
            assert (cell.pieces[0].span.start, cell.pieces[-1].span.end) == inside


def test_a_ratio_lists_the_events_of_both_sides(shop):
    text = f"SELECT ratio FROM shop.slowness {SPAN} INTERVAL 1h"
    cell = shop.mill.cell(text, START, all_tenants=True, limit=1000)
    below = [one for one in cell.events if "hits" in one["metrics"]]
    above = [one for one in cell.events if "slow" in one["metrics"]]
    assert cell.values["ratio"] == round(Decimal(len(above)) / len(below), 6)
    assert {one["event_id"] for one in above} <= {one["event_id"] for one in below}


def test_pages_are_in_order_of_event_time_and_each_event_once(shop):
    text = "SELECT count FROM shop.hits"
    whole = shop.mill.cell(text, all_tenants=True, limit=1000).events
    pages = []
    while True:
        page = shop.mill.cell(text, all_tenants=True, offset=len(pages), limit=13)
        pages += page.events
        if not page.more:
            break
    assert pages == whole
    assert [one["event_time"] for one in pages] == sorted(one["event_time"] for one in pages)


def test_as_of_lists_what_counted_then(shop):
    at = max(one.arrival for one in shop.sent if one.slice == 1)
    cell = shop.mill.cell("SELECT count FROM shop.hits", all_tenants=True, as_of=at, limit=1000)
    assert cell.total == cell.values["count"] == len(shop.accepted(by=at)) == 90


def test_tiles_are_current_and_of_the_levels_of_its_pieces(shop):
    cell = shop.mill.cell(f"SELECT count FROM shop.hits {SPAN} INTERVAL 1h", START, all_tenants=True)
    assert [piece.source for piece in cell.pieces] == ["1h"]
    (tile,) = cell.tiles
    assert (tile.key.level, tile.key.start) == ("1h", parse_instant("2024-01-15"))
    assert tile.hash is not None


def test_what_is_no_cell_is_refused(shop):
    text = f"SELECT count FROM shop.hits {SPAN} INTERVAL 1h GROUP BY region"
    with pytest.raises(InputError, match="a cell of buckets has a start"):
        shop.mill.cell(text, None, {"region": "eu"}, all_tenants=True)
    with pytest.raises(InputError, match="has a value for each GROUP BY"):
        shop.mill.cell(text, START, {}, all_tenants=True)
    with pytest.raises(NotFoundError, match="the answer has no row"):
        shop.mill.cell(text, START, {"region": "mars"}, all_tenants=True)
    with pytest.raises(QueryError, match="states and transitions"):
        shop.mill.cell(f"SELECT transitions FROM shop.life {SPAN}", all_tenants=True)
