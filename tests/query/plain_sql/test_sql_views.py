"""What the views hold, against loops over the events that were taken in."""

from __future__ import annotations

from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path

import pytest
from tests.support.sql_shop import BROKEN, EARLY, LATER, NOON, ORDERS, SIZES, Order, only

from tidemill.mill import Mill
from tidemill.model.errors import DamageError, IncompleteError, InputError, NotFoundError
from tidemill.model.levels import LEVELS
from tidemill.model.time import DAY, HOUR, MINUTE, SECOND, align, format_instant, from_datetime
from tidemill.testing import FakeClock

TENANTS = [None, "acme", "globex"]


def asked(mill, text: str, tenant: str | None = None):
    """The rows, as tuples."""
    table = mill.sql(text, tenant=tenant, all_tenants=tenant is None).table
    return [tuple(row.values()) for row in table.to_pylist()]


@pytest.mark.parametrize("tenant", TENANTS)
def test_raw_has_each_accepted_event_once(mill, tenant):
    rows = asked(
        mill, "SELECT event_id, tenant, event_time, payload FROM raw.orders ORDER BY event_id", tenant
    )
    assert [(id_, whose, from_datetime(at), text) for id_, whose, at, text in rows] == [
        (one.id, one.tenant, one.time, one.line()) for one in only(tenant)
    ]


@pytest.mark.parametrize("tenant", TENANTS)
@pytest.mark.parametrize("hour", [9, 10, 11])
def test_conditions_on_time_and_payload_choose_the_same_rows_as_a_loop(mill, tenant, hour):
    start = align(ORDERS[0].time, HOUR) + (hour - 9) * HOUR
    text = (
        "SELECT payload->>'region', count(*), sum((payload->>'amount')::DECIMAL(18, 2)) FROM raw.orders "
        f"WHERE event_time >= '{format_instant(start)}' AND event_time < '{format_instant(start + HOUR)}' "
        "AND (payload->>'stage') IN ('new', 'sent') GROUP BY 1 ORDER BY 1 NULLS FIRST"
    )
    wanted: dict[str | None, list[Order]] = defaultdict(list)
    for one in only(tenant):
        if start <= one.time < start + HOUR and one.stage in ("new", "sent"):
            wanted[one.region].append(one)
    assert asked(mill, text, tenant) == [
        (region, len(some), sum((one.amount for one in some if one.amount is not None), Decimal(0)))
        for region, some in sorted(wanted.items(), key=lambda pair: (pair[0] is not None, pair[0] or ""))
    ]


@pytest.mark.parametrize("tenant", TENANTS)
def test_declared_fields_are_columns_that_conditions_reach(mill, tenant):
    where = "amount > 1.00 AND site.name IN ('site 1', 'site 2')"
    text = f"SELECT region, site.name, sum(amount), count(*) FROM raw.orders WHERE {where} GROUP BY ALL"
    wanted: dict[tuple[object, ...], list[Decimal]] = defaultdict(list)
    for one in only(tenant):
        if one.amount is not None and one.amount > 1 and one.site in ("site 1", "site 2"):
            wanted[one.region, one.site].append(one.amount)
    rows = asked(mill, text, tenant)
    assert {(region, site): (total, n) for region, site, total, n in rows} == {
        key: (sum(amounts), len(amounts)) for key, amounts in wanted.items()
    }


def test_columns_that_are_not_made_yet_are_named(copied):
    mill = copied()
    config = mill.project.path
    config.write_text(
        config.read_text().replace("      stage: string\n", "      stage: string\n      added: string\n")
    )
    with Mill.open(config.parent, clock=FakeClock(NOON + HOUR)) as changed:
        (missing,) = changed.sql("SELECT 1 FROM raw.orders", all_tenants=True).completeness["orders"].missing
        assert missing.why == "not_built"
        assert f"columns of {len(ORDERS)} rows" in missing.detail
        early = changed.sql("SELECT count(*) AS n, count(added) AS a FROM raw.orders", all_tenants=True)
        assert early.table.to_pylist() == [{"n": len(ORDERS), "a": 0}]
        assert [one.why for one in early.completeness["orders"].missing] == ["not_built"]
        columns = changed.sql_views()["raw.orders"]
        changed.run_until_idle()
        assert sorted(changed.sql_views()["raw.orders"]) == sorted(columns)
        answer = changed.sql("SELECT count(*) AS n, count(added) AS a FROM raw.orders", all_tenants=True)
        assert answer.completeness["orders"].missing == ()
        assert answer.table.to_pylist() == [{"n": len(ORDERS), "a": 0}]


@pytest.mark.parametrize("tenant", TENANTS)
def test_every_level_of_a_counter_adds_up_to_the_events(mill, tenant):
    text = (
        'SELECT level, bucket, region, site__name, sum("count"), sum(amount__count), sum(amount__sum), '
        "min(amount__min), max(amount__max) FROM rollups.orders WHERE metric = 'sold' GROUP BY ALL"
    )
    found = {
        (level, from_datetime(bucket), region, site): values
        for level, bucket, region, site, *values in asked(mill, text, tenant)
    }
    wanted: dict[tuple[object, ...], list[Order]] = defaultdict(list)
    for level in LEVELS:
        for one in only(tenant):
            wanted[level.name, align(one.time, level.width), one.region, one.site].append(one)
    assert found == {
        key: [len(some), *_measured([one.amount for one in some])] for key, some in wanted.items()
    }


def _measured(values: list[Decimal | None]) -> list[object]:
    known = [value for value in values if value is not None]
    return [len(known), sum(known, Decimal(0)), min(known, default=None), max(known, default=None)]


@pytest.mark.parametrize("tenant", TENANTS)
@pytest.mark.parametrize(("metric", "is_bounded"), [("waiting", True), ("queue", False)])
def test_bins_say_which_values_they_hold(mill, tenant, metric, is_bounded):
    rows = asked(
        mill, f"SELECT unnest(bins) FROM rollups.orders WHERE metric = '{metric}' AND level = '7d'", tenant
    )
    bins: Counter[tuple[object, object]] = Counter()
    for (one,) in rows:
        bins[one["low"], one["high"]] += one["count"]
    values = [one.waited for one in only(tenant) if one.waited is not None]
    assert sum(bins.values()) == len(values)
    for (low, high), count in bins.items():
        inside = [v for v in values if (low is None or v >= low) and (high is None or v <= high)]
        assert len(inside) == count, (low, high)
    ends = {tuple(None if end is None else int(end) for end in pair) for pair in bins}
    assert (ends == {(None, 0), (1, 10), (11, 20), (21, None)}) is is_bounded


def test_states_are_named_as_queries_name_them(mill):
    text = """SELECT state, sum("count") FROM rollups.orders WHERE metric = 'stages' AND level = '1d'
              AND state IS NOT NULL GROUP BY 1 HAVING sum("count") != 0"""
    last: dict[tuple[str, str], Order] = {}
    for one in sorted(ORDERS, key=lambda one: (one.time, one.id)):
        if one.region is not None:
            last[one.tenant, one.region] = one
    assert dict(asked(mill, text)) == Counter(one.stage for one in last.values())
    moved = asked(mill, "SELECT DISTINCT transition FROM rollups.orders WHERE transition IS NOT NULL")
    assert moved == [("change",)]


@pytest.mark.parametrize("tenant", TENANTS)
def test_datasets_have_the_current_rows_of_each_window(mill, tenant):
    columns = 'window_start, window_end, revision, event_id, amount, "site.name"'
    text = f"SELECT {columns} FROM datasets.orders ORDER BY event_id"
    rows = asked(mill, text, tenant)
    assert [(from_datetime(a), from_datetime(b), *rest) for a, b, _, *rest in rows] == [
        (align(one.time, HOUR), align(one.time, HOUR) + HOUR, one.id, one.amount, one.site)
        for one in only(tenant)
    ]
    newest = {from_datetime(start): revision for start, _, revision, *_ in rows}
    assert newest[align(EARLY[0].time, HOUR)] > 1, "the late slice was not built in"
    start = align(LATER[0].time, HOUR)
    text = f"SELECT count(*) FROM datasets.orders WHERE window_start = '{format_instant(start)}'"
    assert asked(mill, text, tenant) == [(sum(align(one.time, HOUR) == start for one in only(tenant)),)]


@pytest.mark.parametrize("tenant", TENANTS)
def test_windows_have_the_newest_results_and_their_history_all_of_them(mill, tenant):
    watermark = max(one.time for one in ORDERS) - SECOND
    wanted: dict[tuple[object, ...], list[Order]] = defaultdict(list)
    for one in only(tenant):
        start = align(one.time, 10 * MINUTE)
        if start + 10 * MINUTE <= watermark:
            wanted[start, one.tenant, one.region].append(one)
    text = "SELECT window_start, tenant, region, n, total FROM windows.orders_ten"
    found = {
        (from_datetime(start), whose, region): (n, total)
        for start, whose, region, n, total in asked(mill, text, tenant)
    }
    assert found == {key: (len(some), _total(some)) for key, some in wanted.items()}
    history = asked(mill, "SELECT count(*), max(revision) FROM windows.orders_ten_history", tenant)
    assert history == [(mill.results("orders", "ten", tenant=tenant, revisions=True).num_rows, 2)]
    assert history[0][0] > len(found)


def _total(orders: list[Order]) -> Decimal | None:
    known = [one.amount for one in orders if one.amount is not None]
    return sum(known, Decimal(0)) if known else None


def test_quarantine_has_what_was_not_accepted(mill):
    rows = asked(mill, "SELECT line, reason, payload_text, payload FROM quarantine.orders ORDER BY line")
    first = len(EARLY) + 1
    assert [(line, text, bytes_.decode()) for line, _, text, bytes_ in rows] == [
        (first + n, text, text) for n, text in enumerate(BROKEN)
    ]
    assert [reason for _, reason, *_ in rows] == ["bad_time", "malformed", "malformed"]
    assert asked(mill, "SELECT payload_text FROM quarantine.orders", "acme") == [(BROKEN[0],)]


def test_streams_are_joined_and_words_of_sql_are_quoted(mill):
    text = "SELECT sum((payload->>'size')::INT) * (SELECT count(*) FROM raw.orders) FROM raw.\"select\""
    assert asked(mill, text) == [(sum(SIZES.values()) * len(ORDERS),)]
    answer = mill.sql(text, all_tenants=True)
    assert list(answer.completeness) == ["orders", "select"]
    assert asked(mill, 'SELECT count(*) FROM RAW."SELECT"') == [(len(SIZES),)]


def test_a_field_that_is_called_like_a_column_of_ours_keeps_its_name(mill):
    text = 'SELECT event_id, size, window_start, window_start_ FROM datasets."select" ORDER BY 1'
    rows = [(id_, size, own, from_datetime(start)) for id_, size, own, start in asked(mill, text)]
    assert rows == [(name, size, 1, align(NOON, DAY)) for name, size in SIZES.items()]


def test_views_of_a_stream_without_events_are_there_and_empty(mill):
    for view in ("raw.empty", "rollups.empty", "datasets.empty", "windows.empty_all", "quarantine.empty"):
        assert asked(mill, f"SELECT count(*) FROM {view}") == [(0,)]


def test_all_views_are_listed_with_columns_that_they_have(mill):
    views = mill.sql_views()
    assert " ".join(views) == (
        "raw.orders rollups.orders datasets.orders quarantine.orders raw.select datasets.select "
        "quarantine.select raw.empty rollups.empty datasets.empty quarantine.empty windows.orders_ten "
        "windows.orders_ten_history windows.empty_all windows.empty_all_history"
    )
    for view, columns in views.items():
        name = view.replace("select", '"select"')
        assert mill.sql(f"FROM {name} LIMIT 0", all_tenants=True).schema.names == [
            name for name, _ in columns
        ]
    listed = mill.sql("SHOW ALL TABLES").table.to_pylist()
    assert {f"{row['schema']}.{row['name']}" for row in listed} == set(views)


# -- whose


def test_one_tenant_or_all_by_the_rule_of_queries(mill):
    with pytest.raises(InputError, match="several tenants, and none is named"):
        mill.sql("SELECT count(*) FROM raw.orders")
    with pytest.raises(InputError, match="both one tenant and all"):
        mill.sql("SELECT 1 FROM raw.orders", tenant="acme", all_tenants=True)
    with pytest.raises(NotFoundError, match="no events of a tenant 'nobody'") as error:
        mill.sql("SELECT count(*) FROM raw.orders", tenant="nobody")
    assert "acme, globex" in error.value.hint
    assert mill.sql('SELECT count(*) AS n FROM raw."select"').table.to_pylist() == [{"n": len(SIZES)}]
    assert mill.sql("SELECT 42 AS n").table.to_pylist() == [{"n": 42}]


@pytest.mark.parametrize(
    "view",
    ["raw.orders", "rollups.orders", "datasets.orders", "windows.orders_ten", "windows.orders_ten_history"],
)
@pytest.mark.parametrize(
    "text",
    [
        "SELECT DISTINCT tenant FROM {view}",
        "SELECT DISTINCT tenant FROM {view} WHERE tenant = 'globex' OR true",
        "SELECT DISTINCT b.tenant FROM {view} a RIGHT JOIN {view} b ON false",
        "WITH everything AS MATERIALIZED (FROM {view}) SELECT DISTINCT tenant FROM everything",
        "SELECT DISTINCT tenant FROM (SELECT * FROM {view} UNION ALL SELECT * FROM {view})",
    ],
)
def test_no_statement_gets_around_the_tenant(mill, view, text):
    assert asked(mill, text.format(view=view), "acme") == [("acme",)]


# -- what it lacks


def test_the_answer_says_what_is_pending_and_strict_refuses_it(copied):
    mill = copied()
    text = "SELECT count(*) AS n FROM raw.orders"
    before = mill.sql(text, all_tenants=True)
    assert before.completeness["orders"].pending == ()
    mill.land("orders", b'{"id": "new", "at": 1705320000, "tenant": "acme"}\n')
    answer = mill.sql(text, all_tenants=True)
    assert [one.what for one in answer.completeness["orders"].pending] == ["landed"]
    assert not answer.is_complete
    assert any("1 slice has landed" in line for line in answer.lines())
    with pytest.raises(IncompleteError):
        mill.sql(text, all_tenants=True, strict=True)
    assert answer.table.to_pylist() == before.table.to_pylist() == [{"n": len(ORDERS)}]


def test_a_damaged_part_is_an_error_that_names_it_and_other_views_are_read(copied):
    mill = copied()
    (part, *_) = mill.snapshot("raw", "orders").paths()
    with Path(part).open("r+b") as file:
        file.seek(100)
        file.write(b"\x00\x01\x02")
    with pytest.raises(DamageError, match="checksum differs") as error:
        mill.sql("SELECT count(*), min(payload) FROM raw.orders", all_tenants=True).table  # noqa: B018
    assert part.endswith(error.value.where)
    assert asked(mill, "SELECT DISTINCT metric FROM rollups.orders WHERE metric = 'sold'") == [("sold",)]


def test_a_damaged_dataset_is_found_when_its_window_is_read_and_not_before(copied):
    mill = copied()
    first, *_ = mill.windows.datasets("orders")
    path = mill.project.warehouse / first.file
    path.write_bytes(path.read_bytes()[:-50] + b"\x00" * 50)
    with pytest.raises(DamageError):
        mill.sql("SELECT count(*) FROM datasets.orders", all_tenants=True).table  # noqa: B018
    other = format_instant(align(LATER[0].time, HOUR))
    assert asked(mill, f"SELECT count(*) > 0 FROM datasets.orders WHERE window_start = '{other}'") == [
        (True,)
    ]
