"""From a number to its events: what a cell lists adds up to its number, and is what a loop finds."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from tests.support.shop_story import HOUR, MINUTE, PROJECT, START, event, shop_at

from tidemill.model.errors import InputError, NotFoundError, QueryError
from tidemill.model.time import format_instant, from_datetime, parse_instant

pytestmark = pytest.mark.long

FROM, TO = START, START + 2 * HOUR
SPAN = f"BETWEEN {format_instant(FROM)} AND {format_instant(TO)}"
ODD_FROM, ODD_TO = parse_instant("2024-01-15T10:07:03Z"), parse_instant("2024-01-15T11:35:01Z")
ODD = f"BETWEEN {format_instant(ODD_FROM)} AND {format_instant(ODD_TO)}"
ALL = 10**18
MORE = """    metrics:
      few: {kind: counter, dimensions: [item], max_cardinality: 2}
      moves: {kind: state, object: item, state: state, dimensions: [region]}
      done: {kind: ratio, numerator: {metric: life, to: sold}, denominator: hits}
"""


def took(one):
    """The value of an event; some have none."""
    return Decimal(-1) if one.event["ms"] is None else one.ms


def valued(one):
    return one.event["ms"] is not None


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
    (f"SELECT count FROM shop.slow {SPAN} INTERVAL 1h", FROM, TO, HOUR, lambda one: took(one) >= 5),
    (f"SELECT count, min, max FROM shop.level {SPAN} INTERVAL 1h GROUP BY region", FROM, TO, HOUR, valued),
    (f"SELECT count, p50 FROM shop.took {ODD} INTERVAL 1h", ODD_FROM, ODD_TO, HOUR, valued),
    (f"SELECT count, sum(ms) / count AS mean FROM shop.hits {SPAN} INTERVAL 1h", FROM, TO, HOUR, None),
    ("SELECT count FROM shop.hits INTERVAL 1d", 0, ALL, 24 * HOUR, None),
    (
        f"SELECT count FROM shop.hits {SPAN} FILTER ms > 3 INTERVAL 1h",
        FROM,
        TO,
        HOUR,
        lambda one: took(one) > 3,
    ),
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
    found = shop_at(tmp_path_factory.mktemp("shop"), PROJECT.replace("    metrics:\n", MORE))
    found.land([event(n, n % 60, ms=None) for n in range(120, 130)])
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
        values = [
            Decimal(str(ms)) for one in cell.events if (ms := json.loads(one["payload"])["ms"]) is not None
        ]
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
    with pytest.raises(InputError, match="a cell of buckets needs a start"):
        shop.mill.cell(text, None, {"region": "eu"}, all_tenants=True)
    with pytest.raises(InputError, match="has a value for each GROUP BY"):
        shop.mill.cell(text, START, {}, all_tenants=True)
    with pytest.raises(NotFoundError, match="the answer has no row"):
        shop.mill.cell(text, START, {"region": "mars"}, all_tenants=True)
    with pytest.raises(InputError, match="lower and upper"):
        shop.mill.cell(f"SELECT bins FROM shop.took {SPAN}", all_tenants=True)
    for total in ("SELECT count FROM shop.hits", f"SELECT count FROM shop.hits {SPAN}"):
        with pytest.raises(InputError, match="the answer has no buckets"):
            shop.mill.cell(total, START, all_tenants=True)
    with pytest.raises(QueryError, match="a cell is a part of a row"):
        shop.mill.cell(f"{text} FORMAT series", START, {"region": "eu"}, all_tenants=True)


@pytest.mark.parametrize(
    "text",
    ["INTERVAL 1w", 'INTERVAL 1mo TIMEZONE "Europe/Berlin"', "INTERVAL 90m ORIGIN 2024-01-15T10:20:00Z"],
)
def test_cells_of_the_calendar_add_up(shop, text):
    whole = shop.mill.ask(f"SELECT count FROM shop.hits {text}", all_tenants=True).table.to_pylist()
    ids = []
    for row in whole:
        cell = shop.mill.cell(
            f"SELECT count FROM shop.hits {text}", from_datetime(row["bucket"]), all_tenants=True, limit=1000
        )
        assert cell.total == row["count"]
        ids += [one["event_id"] for one in cell.events]
    assert sorted(ids) == sorted(one.event["id"] for one in shop.accepted())


def test_the_events_of_every_bin_are_those_whose_value_lies_in_it(shop):
    text = f"SELECT bins FROM shop.took {SPAN} INTERVAL 1h GROUP BY region"
    rows = shop.mill.ask(text, all_tenants=True).table.to_pylist()
    assert len(rows) > 6
    for row in rows:
        group = {"region": row["region"], "lower": str(row["lower"]), "upper": row["upper"]}
        if row["lower"] is None:
            group["lower"] = None
        start = from_datetime(row["bucket"])
        cell = shop.mill.cell(text, start, group, all_tenants=True, limit=1000)

        def inside(one, row=row):
            lower, upper = row["lower"], row["upper"]
            value = took(one)
            above = lower is None or value > lower
            return valued(one) and above and (upper is None or value <= upper)

        ids = expected(shop, None, (start, start + HOUR), {"region": row["region"]}, inside)
        assert sorted(one["event_id"] for one in cell.events) == ids
        assert cell.total == row["count"] == cell.values["count"]


def histories(shop, until, by=None):
    """Of each object what was seen of it before an instant, in order."""
    found = {}
    for one in sorted(shop.accepted(by=by), key=lambda one: (one.time, one.event["id"])):
        if one.time < until:
            found.setdefault((one.event["tenant"], one.event["item"]), []).append(one.event)
    return found


@pytest.mark.parametrize(
    ("metric", "keys", "by"),
    [("life", ("state",), None), ("moves", ("state", "region"), None), ("life", ("state",), 1)],
)
def test_states_list_for_each_object_the_event_that_put_it_there(shop, metric, keys, by):
    as_of = None if by is None else max(one.arrival for one in shop.sent if one.slice == by)
    text = f"SELECT states FROM shop.{metric} {ODD} INTERVAL 40m GROUP BY {', '.join(keys)}"
    rows = shop.mill.ask(text, all_tenants=True, as_of=as_of).table.to_pylist()
    assert any(row["states"] for row in rows)
    for row in rows:
        start = from_datetime(row["bucket"])
        group = {name: row[name] for name in keys}
        cell = shop.mill.cell(text, start, group, all_tenants=True, as_of=as_of, limit=1000)
        ids = []
        for seen in histories(shop, min(start + 40 * MINUTE, ODD_TO), as_of).values():
            last = [seen[-1][name] for name in keys]
            if last == [group[name] for name in keys]:
                put = seen[-1]
                for one in reversed(seen):
                    if [one[name] for name in keys] != last:
                        break
                    put = one
                ids.append(put["id"])
        assert sorted(one["event_id"] for one in cell.events) == sorted(ids)
        assert cell.total == len(ids) == (row["states"] or 0)
        assert {one["state"] for one in cell.events} <= {row["state"]}
        assert sum(one.rows for one in cell.slices) == cell.total


@pytest.mark.parametrize("rule", ["", "(sold)"])
@pytest.mark.parametrize("tenant", [None, "acme"])
def test_transitions_list_the_events_that_made_them(shop, rule, tenant):
    whose = {"tenant": tenant, "all_tenants": tenant is None}
    text = f"SELECT transitions{rule} FROM shop.life {SPAN} INTERVAL 1h GROUP BY from_state, to_state"
    rows = shop.mill.ask(text, **whose).table.to_pylist()
    assert rows
    name = next(each for each in rows[0] if each.startswith("transitions"))
    made = []
    for (owner, _), seen in histories(shop, TO).items():
        for place, one in enumerate(seen):
            before = [each["state"] for each in seen[:place]]
            if (before and before[-1] == one["state"]) or tenant not in (None, owner):
                continue
            if rule and one["state"] == "sold":
                made += [(one["ts"] * 10**6, each, "sold", one["id"]) for each in {*before} - {"sold"}]
            elif not rule:
                made.append((one["ts"] * 10**6, before[-1] if before else "(none)", one["state"], one["id"]))
    listed = 0
    for row in rows:
        start, pair = from_datetime(row["bucket"]), (row["from_state"], row["to_state"])
        group = {"from_state": pair[0], "to_state": pair[1]}
        cell = shop.mill.cell(text, start, group, **whose, limit=1000)
        ids = [one[3] for one in made if one[1:3] == pair and start <= one[0] < start + HOUR]
        assert sorted(one["event_id"] for one in cell.events) == sorted(ids)
        assert cell.total == len(ids) == row[name]
        assert {(one["from_state"], one["to_state"]) for one in cell.events} == {pair}
        listed += cell.total
    assert listed == len([one for one in made if FROM <= one[0] < TO])


def test_a_ratio_of_transitions_lists_both_sides(shop):
    cell = shop.mill.cell(f"SELECT ratio FROM shop.done {SPAN}", all_tenants=True, limit=1000)
    above = [one for one in cell.events if one["metrics"] == ["life"]]
    below = [one for one in cell.events if one["metrics"] == ["hits"]]
    assert {one["to_state"] for one in above} == {"sold"}
    assert cell.values["ratio"] == round(Decimal(len(above)) / len(below), 6)


def test_keys_that_were_not_admitted_are_listed_together(shop):
    text = "SELECT count FROM shop.few GROUP BY item"
    rows = shop.mill.ask(text, all_tenants=True).table.to_pylist()
    assert "__other__" in {row["item"] for row in rows}
    ids = []
    for row in rows:
        cell = shop.mill.cell(text, None, {"item": row["item"]}, all_tenants=True, limit=1000)
        assert cell.total == row["count"]
        ids += [one["event_id"] for one in cell.events]
    assert sorted(ids) == sorted(one.event["id"] for one in shop.accepted())
