"""The cases about metrics of all kinds, queries over them, and search.

Each gives one result or more and prints nothing; no time counts before DuckDB, over raw, got the same answer.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import duckdb
import pyarrow as pa

from bench.orders import RARE, Orders
from bench.ours_metrics import MetricStore
from bench.running import OUT, Bench, Result, within
from bench.work import START
from tidemill.model.time import DAY, format_instant

KINDS_TARGET = 1.6
QUERY_TARGET = 20.0
SEARCH_TARGET = 10.0
FILTER_TARGET = 3.0  # columns beside payloads
MONTH = 30 * DAY
WARM_EVENTS = 100_000
Rows = list[tuple[Any, ...]]


def _store(bench: Bench, name: str, *, kinds: bool, indexed: bool = False) -> MetricStore:
    """A fresh warehouse; Spark's workers are woken by a small one before it, as they are for all cases."""
    assert bench.ours is not None
    spark = bench.ours.session()
    if bench.plan.on_spark:
        warm = MetricStore(
            OUT / "metrics-warm", spark, kinds=kinds, indexed=indexed, settings="engine: {inline_bytes: 0}"
        )
        warm.load(Orders(WARM_EVENTS, DAY).slices())
        warm.close()
    return MetricStore(OUT / name, spark, kinds=kinds, indexed=indexed)


def _timed(call: Callable[[], object], times: int) -> float:
    """The median, in milliseconds."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        found.append((time.perf_counter() - began) * 1000)
    return statistics.median(found)


def _raw(db: duckdb.DuckDBPyConnection, store: MetricStore) -> None:
    """Raw as a view with the payload's fields, as somebody would ask it without Tidemill's rollups."""
    db.execute("SET TimeZone = 'UTC'; SET threads = 2; SET enable_progress_bar = false")
    files = ", ".join("'" + path.replace("'", "''") + "'" for path in store.files("raw"))
    fields = {
        "order_id": "VARCHAR", "status": "VARCHAR", "region": "VARCHAR", "channel": "VARCHAR",
        "amount": "DECIMAL(18,2)", "took_ms": "DECIMAL(18,3)", "stock": "BIGINT",
    }  # fmt: skip
    read = ", ".join(f"(payload ->> '$.{name}')::{kind} AS {name}" for name, kind in fields.items())
    db.execute(
        f"CREATE VIEW raw AS SELECT tenant, event_time, event_id, {read}, payload"
        f" FROM read_parquet([{files}], hive_partitioning = false)"
    )


def _rows(found: pa.Table) -> Rows:
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=str)


def _same(what: str, ours: Rows, theirs: Rows) -> None:
    if ours != theirs:
        raise RuntimeError(f"{what}: {len(ours)} rows of ours are not the {len(theirs)} that DuckDB has")


def metrics_kinds(bench: Bench) -> list[Result]:
    """The job with two counters, and with a gauge, a histogram and a state metric beside them."""
    slices = Orders(bench.plan.events, DAY).slices()
    times: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(bench.plan.repeats):
        for kinds in (False, True):
            bench.say(f"{'all kinds' if kinds else 'counters'}, {turn + 1} of {bench.plan.repeats}")
            store = _store(bench, "metrics", kinds=kinds)
            times[kinds].append(store.load(slices))
            if kinds and turn == 0:
                _check_kinds(store)
            store.close()
    few, all_kinds = min(times[False]), min(times[True])
    note = "2 counters against 5 metrics of four kinds"
    return [within("metrics_kinds", all_kinds, few, KINDS_TARGET, "s", note)]


def _check_kinds(store: MetricStore) -> None:
    """Every kind at 1m, against DuckDB over raw."""
    with duckdb.connect() as db:
        _raw(db, store)

        def theirs(text: str) -> Rows:
            return _rows(db.execute(text).to_arrow_table())

        def ours(text: str) -> Rows:
            return _rows(store.query(text))

        minute = "time_bucket(INTERVAL 1 MINUTE, event_time)"
        _same(
            "counter",
            ours("SELECT count, sum(amount) FROM orders.orders USING ROLLUP 1m GROUP BY region"),
            theirs(f"SELECT {minute}, region, count(*), sum(amount) FROM raw GROUP BY ALL"),
        )
        _same(
            "filtered counter",
            ours("SELECT count FROM orders.failures USING ROLLUP 1m"),
            theirs(f"SELECT {minute}, count(*) FROM raw WHERE status = 'FAILED' GROUP BY ALL"),
        )
        _same(
            "gauge",
            ours("SELECT min, max, last FROM orders.stock USING ROLLUP 1m GROUP BY channel"),
            theirs(
                f"SELECT {minute}, channel, min(stock), max(stock),"
                " arg_max(stock, {t: event_time, i: event_id}) FROM raw GROUP BY ALL"
            ),
        )
        changes = (
            "SELECT event_time, region, status, lag(status) OVER (PARTITION BY tenant, order_id"
            " ORDER BY event_time, event_id) AS before FROM raw"
        )
        _same(
            "state",
            ours("SELECT transitions FROM orders.life USING ROLLUP 1m GROUP BY from_state, to_state"),
            theirs(
                f"SELECT {minute}, coalesce(before, '(none)'), status, count(*) FROM ({changes})"
                " WHERE before IS DISTINCT FROM status GROUP BY ALL"
            ),
        )
        exact = theirs("SELECT quantile_disc(took_ms, 0.99) FROM raw")[0][0]
        about = ours("SELECT p99 FROM orders.took")[0][0]
        if abs(about - exact) > exact / 100:
            raise RuntimeError(f"histogram: p99 is {about}, by DuckDB {exact}")


def query_raw(bench: Bench) -> list[Result]:
    """A day at 1m and a month at 1h, against DuckDB that computes the same from raw."""
    return [
        *_queried(bench, "query_1d_1m", DAY, "1m", 50.0),
        *_queried(bench, "query_30d_1h", MONTH, "1h", 100.0),
    ]


def _queried(bench: Bench, name: str, span: int, interval: str, limit: float) -> list[Result]:
    store = _store(bench, "metrics", kinds=True)
    store.load(Orders(bench.plan.events, span).slices())
    asked = (
        f"SELECT count, sum(amount) FROM orders.orders BETWEEN {format_instant(START)}"
        f" AND {format_instant(START + span)} USING ROLLUP {interval} GROUP BY region"
    )
    unit = {"1m": "MINUTE", "1h": "HOUR"}[interval]
    text = (
        f"SELECT time_bucket(INTERVAL 1 {unit}, event_time), region, count(*), sum(amount) FROM raw"
        f" WHERE event_time >= make_timestamptz({START})"
        f" AND event_time < make_timestamptz({START + span}) GROUP BY ALL"
    )
    with duckdb.connect() as db:
        _raw(db, store)
        rows = _rows(store.query(asked))
        _same(name, rows, _rows(db.execute(text).to_arrow_table()))
        theirs = _timed(lambda: db.execute(text).fetchall(), bench.plan.repeats)
    ours = _timed(lambda: store.query(asked), bench.plan.queries)
    store.close()
    ratio = theirs / ours
    case, note = f"{name} vs duckdb over raw", f"median of {bench.plan.repeats}"
    return [
        within(name, ours, None, limit, "ms", f"median of {bench.plan.queries}, {len(rows)} rows"),
        Result(case, ours, theirs, ratio, QUERY_TARGET, ratio >= QUERY_TARGET, "ms", ">=", note),
    ]


def search_selective(bench: Bench) -> list[Result]:
    """Ten events of all of them, by an attribute that only they have."""
    store = _store(bench, "metrics", kinds=False, indexed=True)
    store.load(Orders(bench.plan.events, DAY).slices())
    with duckdb.connect() as db:
        _raw(db, store)
        text = "SELECT event_id FROM raw WHERE (payload ->> '$.customer.coupon') = 'golden-ticket'"
        theirs_ids = sorted(row[0] for row in db.execute(text).fetchall())
        assert len(theirs_ids) == RARE, theirs_ids
        theirs = _timed(lambda: db.execute(text).fetchall(), bench.plan.repeats)

    def ours() -> list[str]:
        return sorted(store.search("WHERE customer.coupon = 'golden-ticket' LIMIT 50"))

    _same("search", [(each,) for each in ours()], [(each,) for each in theirs_ids])
    took = _timed(ours, bench.plan.queries)
    store.close()
    ratio = theirs / took
    note = f"{RARE} hits of {bench.plan.events:,}, median of {bench.plan.queries}"
    case = "search_selective vs duckdb over raw"
    return [Result(case, took, theirs, ratio, SEARCH_TARGET, ratio >= SEARCH_TARGET, "ms", ">=", note)]


def filter_all(bench: Bench) -> list[Result]:
    """A query with FILTER over all events, on a column, beside the same of the payloads: by DuckDB, and by
    ours with a field that is not declared. All conditions are true of every event."""
    store = _store(bench, "metrics", kinds=False)
    store.load(Orders(bench.plan.events, DAY).slices())

    def ours(condition: str) -> Rows:
        text = f"SELECT count, sum(amount) FROM orders.orders FILTER {condition} GROUP BY region"
        return _rows(store.query(text))

    with duckdb.connect() as db:
        _raw(db, store)
        text = "SELECT region, count(*), sum(amount) FROM raw WHERE stock >= -50 GROUP BY ALL"
        rows = _rows(db.execute(text).to_arrow_table())
        theirs = _timed(lambda: db.execute(text).fetchall(), bench.plan.repeats)
    column, payload = "stock >= -50", "customer.plan = 'pro'"
    for condition in (column, payload):
        _same(f"FILTER {condition}", ours(condition), rows)
    took = _timed(lambda: ours(column), bench.plan.repeats)
    parsed = _timed(lambda: ours(payload), bench.plan.repeats)
    store.close()
    note, ratio = f"median of {bench.plan.repeats}", parsed / took
    ok = ratio >= FILTER_TARGET
    return [
        Result("filter_all vs duckdb over raw", took, theirs, theirs / took, None, True, "ms", "", note),
        Result("filter_all vs payloads", took, parsed, ratio, FILTER_TARGET, ok, "ms", ">=", note),
    ]
