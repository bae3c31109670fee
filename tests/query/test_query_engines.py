"""One query, two engines: DuckDB in process and Spark give the same table, bit for bit, types included."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.selection import one_in

from tidemill.config.stream import Stream
from tidemill.model.completeness import Available
from tidemill.model.errors import DamageError, QueryError
from tidemill.model.time import DAY, SECOND, parse_instant
from tidemill.query import Answer, Files, Querier, Runner
from tidemill.query.column_cache import KeptColumns

BASE = parse_instant("2024-01-01T10:00:00Z")
SPAN = "BETWEEN 2024-01-01T10:00:03Z AND 2024-01-01T11:30:00Z"
WHOLE = "BETWEEN 2024-01-01T10:05:00Z AND 2024-01-01T11:00:00Z"
ODD = "BETWEEN 2024-01-01T09:59:58.000001Z AND 2024-01-01T11:32:01.5Z"  # no bucket fits either end
QUERIES = [
    f"SELECT count, sum(latency), rate FROM plant.made {ODD} GROUP BY region",
    f"SELECT count, min(latency), rate FROM plant.made {ODD} INTERVAL 7m GROUP BY region, tenant FILL zero",
    f"SELECT first, last, avg FROM plant.heat {ODD} INTERVAL 1h GROUP BY region",
    f"SELECT p50, p99, count FROM plant.delay {ODD} INTERVAL 20m WHERE line > 0",
    f"SELECT p25 FROM plant.warmth {ODD}",
    f"SELECT states FROM plant.orders {ODD} GROUP BY state",
    f"SELECT states, transitions FROM plant.orders {ODD} INTERVAL 30m GROUP BY region",
    f"SELECT ratio FROM plant.direct {ODD} INTERVAL 1h",
    f"SELECT bins FROM plant.delay {ODD} INTERVAL 20m GROUP BY region",
    f"SELECT bins FROM plant.warmth {ODD} INTERVAL 20m FORMAT series",
    f"SELECT count_all, count, sum / count AS m FROM plant.delay {ODD} INTERVAL 1d TIMEZONE 'Asia/Kathmandu'",
    "SELECT count, rate FROM plant.made INTERVAL 1mo TIMEZONE 'Europe/Paris' HAVING count > 0",
    "SELECT count FROM plant.made WHERE region ILIKE 'E_' OR line BETWEEN 1 AND 2 GROUP BY region",
    "SELECT count FROM plant.made WHERE region NOT ILIKE 'É%' AND line NOT BETWEEN 1 AND 2 GROUP BY region",
    "SELECT count FROM plant.made",
    "SELECT count, sum(latency), min(latency), max(latency), avg(latency) FROM plant.made",
    f"SELECT count, rate FROM plant.made {WHOLE}",
    "SELECT count FROM plant.made USING ROLLUP 5s",
    "SELECT count, avg(latency) FROM plant.made USING ROLLUP 1m GROUP BY region",
    "SELECT count FROM plant.made INTERVAL 30s GROUP BY line, ok",
    "SELECT count FROM plant.made INTERVAL 9d",
    "SELECT count FROM plant.made USING ROLLUP 7d GROUP BY tenant",
    f"SELECT count, rate FROM plant.made {SPAN} INTERVAL 7m EDGES include",
    f"SELECT count, rate FROM plant.made {SPAN} INTERVAL 7m EDGES exclude FILL zero GROUP BY region",
    f"SELECT count, sum(latency) FROM plant.made {SPAN} INTERVAL 15m EDGES null FILL null",
    f"SELECT count, avg(latency) FROM plant.made {SPAN} USING ROLLUP 1m FILL carry GROUP BY ok",
    f"SELECT count FROM plant.made {SPAN} INTERVAL 10m GROUP BY region FORMAT series",
    "SELECT count FROM plant.made GROUP BY region, line ORDER BY count DESC, region LIMIT 3",
    "SELECT count FROM plant.made WHERE region = 'eu'",
    "SELECT count FROM plant.made WHERE region != 'eu' GROUP BY region",
    "SELECT count FROM plant.made WHERE NOT region = 'eu' OR region IS NULL GROUP BY region",
    "SELECT count FROM plant.made WHERE region IS NOT NULL AND line IS NULL",
    "SELECT count FROM plant.made WHERE line >= 2 AND line < 9223372036854775807 GROUP BY line",
    "SELECT count FROM plant.made WHERE line = -9223372036854775808",
    "SELECT count FROM plant.made WHERE line IN (1, 3) AND ok = true GROUP BY line",
    "SELECT count FROM plant.made WHERE region NOT IN ('eu', 'us') GROUP BY region",
    "SELECT count FROM plant.made WHERE region > 'eu' GROUP BY region",
    "SELECT count FROM plant.made WHERE region LIKE '%\\%%' GROUP BY region",
    "SELECT count FROM plant.made WHERE region LIKE '_u' GROUP BY region",
    "SELECT count FROM plant.made WHERE region LIKE 'a\\_b%' GROUP BY region",
    "SELECT count FROM plant.made WHERE region LIKE 'a\\x%' OR region LIKE '%\\\\\\\\' GROUP BY region",
    "SELECT count FROM plant.made WHERE region NOT LIKE 'é_' GROUP BY region",
    "SELECT count FROM plant.made WHERE region LIKE '😀_' GROUP BY region",
    "SELECT count FROM plant.made WHERE ok = false AND NOT (line > 1 OR region LIKE 'e%')",
    "SELECT count FROM plant.made WHERE tenant = 'acme' GROUP BY tenant",
    "SELECT count FROM plant.made WHERE region = 'nowhere' USING ROLLUP 1h FILL zero",
    "SELECT count FROM plant.made BETWEEN 1999-01-01 AND 1999-01-02 USING ROLLUP 1h GROUP BY region",
    "SELECT count FROM plant.made BETWEEN 1999-01-01 AND 1999-01-01",
    "SELECT value, avg, min, max, first, last, sum, count FROM plant.heat",
    "SELECT value, first, last, avg FROM plant.heat USING ROLLUP 5s GROUP BY region",
    f"SELECT value, first, rate FROM plant.heat {SPAN} INTERVAL 30m FILL carry GROUP BY region",
    "SELECT value, first, last, min FROM plant.load INTERVAL 2m WHERE line = 1",
    "SELECT count, sum, avg, min, max, p1, p50, p99.9, p100 FROM plant.delay",
    "SELECT p50, p99 FROM plant.delay USING ROLLUP 1m GROUP BY region, line",
    f"SELECT p50, percentile(0.9), count FROM plant.delay {SPAN} INTERVAL 20m FILL zero",
    "SELECT p25, p50, p75, min, max FROM plant.warmth INTERVAL 10m GROUP BY region",
    "SELECT p50 FROM plant.warmth WHERE region = 'nowhere'",
    "SELECT states FROM plant.orders",
    "SELECT states FROM plant.orders GROUP BY state, region",
    "SELECT states FROM plant.orders USING ROLLUP 1m GROUP BY state",
    f"SELECT states FROM plant.orders {SPAN} INTERVAL 10m GROUP BY state EDGES null",
    f"SELECT states FROM plant.orders {SPAN} USING ROLLUP 5s WHERE state IN ('NEW', 'DONE') FILL drop",
    f"SELECT states, transitions FROM plant.orders {WHOLE} GROUP BY region",
    f"SELECT states FROM plant.orders {WHOLE} GROUP BY state",
    "SELECT transitions, transitions(finished) FROM plant.orders GROUP BY from_state, to_state",
    f"SELECT transitions FROM plant.orders {SPAN} INTERVAL 10m WHERE from_state = '(none)' FILL zero",
    "SELECT ratio FROM plant.success_rate GROUP BY region",
    f"SELECT ratio FROM plant.success_rate {SPAN} USING ROLLUP 1m FILL null",
    "SELECT ratio FROM plant.direct INTERVAL 30m",
    "SELECT ratio(failures, made), ratio(orders, made) AS moved FROM plant INTERVAL 5m GROUP BY region",
    "SELECT count, max(latency), ratio(made, successes) FROM plant.made USING ROLLUP 1h GROUP BY line",
]
REGIONS = ["eu", "us", None, "a_b", "axb", "50%", "back\\", "éa", "😀x", "Zz"]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory, kit):
    states = ["NEW", "WORK", "DONE", None, "LOST"]
    sights = [
        kit.Sight(
            at=BASE + ((i * 37) % 5400 - 600) * SECOND,
            id=f"e{(i * 13) % 997:03}",
            region=REGIONS[i * 7 % 10],
            line=[1, 2, None, 3, -(2**63)][i % 5],
            ok=[True, False, None][i % 3],
            latency=None if i % 11 == 0 else (-1) ** i * (i * i * 9973) % 100_000 - 500,
            temp=None if i % 7 == 0 else Decimal((i * 131) % 9000 - 4000).scaleb(-2),
            order=f"o{i % 23}",
            status=states[i * 3 % 5],
            tenant=["acme", "umbra"][i % 4 == 0],
        )
        for i in range(400)
    ]
    sights.append(kit.Sight(at=BASE - 20 * DAY, id="early", order="old", status="NEW"))
    return kit.Shelf(tmp_path_factory.mktemp("engines") / "a [b] {c} *").put(sights)


@pytest.fixture(scope="module")
def both(kit, shelf, spark):
    return Querier({"plant": kit.PLANT}, lambda name: shelf, spark=lambda: spark)


@pytest.mark.parametrize(("at", "text"), one_in(3, enumerate(QUERIES)))
def test_both_engines_give_the_same_answer(both, at, text):
    tenant = "acme" if at % 3 == 0 and "tenant" not in text else None
    one, other = (both.ask(text, tenant=tenant, now=BASE, engine=name) for name in ("duckdb", "spark"))
    assert isinstance(one, Answer)
    assert isinstance(other, Answer)
    assert (one.engine, other.engine) == ("duckdb", "spark")
    assert other.table.schema.equals(one.table.schema, check_metadata=True)
    assert other.table.combine_chunks().equals(one.table.combine_chunks())
    assert (one.rows_read, one.files_read, one.level) == (other.rows_read, other.files_read, other.level)
    assert one.completeness == other.completeness


@pytest.fixture(scope="module")
def by_duckdb(kit, shelf):
    """Keeps no columns."""
    return Querier({"plant": kit.PLANT}, lambda name: shelf, Runner(columns=KeptColumns(budget=0)))


@pytest.fixture(scope="module")
def warm(kit, shelf):
    querier = Querier({"plant": kit.PLANT}, lambda name: shelf)
    querier.ask(QUERIES[0], tenant=None, now=BASE)
    return querier


@pytest.mark.parametrize(("at", "text"), list(enumerate(QUERIES)))
def test_an_answer_from_columns_that_are_kept_is_the_one_of_duckdb(by_duckdb, warm, at, text):
    tenant = "umbra" if at % 3 == 0 and "tenant" not in text else None
    one, other = (each.ask(text, tenant=tenant, now=BASE) for each in (by_duckdb, warm))
    assert other.table.schema.equals(one.table.schema, check_metadata=True)
    assert other.table.combine_chunks().equals(one.table.combine_chunks())
    assert other.completeness == one.completeness


def test_a_metric_that_a_ratio_names_twice_counts_twice(shelf):
    made = {"kind": "counter", "dimensions": ["region"]}
    twice = {"kind": "ratio", "numerator": ["made", "made"], "denominator": "made"}
    stream = Stream.model_validate(
        {"name": "plant", "schema": {"region": "string"}, "metrics": {"made": made, "twice": twice}}
    )
    querier = Querier({"plant": stream}, lambda name: shelf)
    for _ in range(2):
        answer = querier.ask("SELECT ratio FROM plant.twice", tenant=None, now=BASE)
        assert answer.table.to_pylist() == [{"ratio": Decimal(2)}]


@pytest.mark.parametrize("count", [2**53 + 1, 2**62 - 1, 2**62, 2**63 - 1])
def test_a_count_near_64_bits_is_exact_or_refused(kit, tmp_path, count):
    class Pile:
        version, available, raw = 1, Available(), None

        def files_for(self, level, spans):
            return Files((str(tmp_path / "large.parquet"),), 2) if level == "7d" else Files((), 0)

    row = {"metric": "made", "tenant": "acme", "bucket": 0, "count": count}
    kinds = {"metric": "string", "tenant": "string", "bucket": pa.timestamp("us", "UTC"), "count": "int64"}
    table = pa.Table.from_pylist([row, row | {"count": 1}], schema=pa.schema(list(kinds.items())))
    pq.write_table(table, tmp_path / "large.parquet")
    querier = Querier({"plant": kit.PLANT}, lambda name: Pile())
    for _ in range(2):
        if count + 1 < 2**63:
            answer = querier.ask("SELECT count FROM plant.made", tenant=None, now=BASE)
            assert answer.table.to_pylist() == [{"count": count + 1}]
        else:
            with pytest.raises(QueryError, match="64 bits"):
                querier.ask("SELECT count FROM plant.made", tenant=None, now=BASE)
            querier._runner._columns.use()  # as after an answer


def test_columns_that_are_kept_stay_within_their_budget(shelf):
    paths = shelf.files_for("5s", []).paths
    kept = KeptColumns(budget=1)
    for path in (*paths, *paths):
        assert len(kept.read(path, ["bucket", "none such"])["bucket"]) == pq.read_metadata(path).num_rows
    assert kept._bytes == 0


def test_answers_are_folded_without_duckdb_once_columns_are_kept(kit, shelf, monkeypatch):
    querier = Querier({"plant": kit.PLANT}, lambda name: shelf)
    first = querier.ask(QUERIES[0], tenant=None, now=BASE)
    monkeypatch.setattr("tidemill.query.run.plan_sql.aggregate", None)
    assert querier.ask(QUERIES[0], tenant=None, now=BASE).table == first.table


def test_there_are_many_queries_and_they_have_answers(both):
    answers = [both.ask(text, tenant=None, now=BASE) for text in QUERIES]
    assert len(QUERIES) >= 40
    assert sum(answer.table.num_rows > 1 for answer in answers) > 30


def test_a_stream_without_files_and_files_that_are_gone(kit, spark, tmp_path):
    class Pile:
        version, available, raw = 1, Available(), None
        paths: tuple[str, ...] = ()

        def files_for(self, level, spans):
            return Files(self.paths, 0)

    pile = Pile()
    querier = Querier({"plant": kit.PLANT}, lambda name: pile, spark=lambda: spark)
    for text in (
        "SELECT count FROM plant.made",
        "SELECT states FROM plant.orders GROUP BY state",
        "SELECT p50 FROM plant.delay",
    ):
        one, other = (querier.ask(text, tenant=None, now=BASE, engine=name) for name in ("duckdb", "spark"))
        assert one.table.equals(other.table)
    damaged, text = tmp_path / "damaged.parquet", "SELECT count FROM plant.made"
    damaged.write_bytes(b"PAR1 not at all PAR1")
    for path in (damaged, tmp_path / "gone.parquet"):
        pile.paths = (str(path),)
        with pytest.raises(DamageError, match=r"the part (is missing|cannot be read)"):
            querier.ask(text, tenant=None, now=BASE, engine="spark")
    row = {"metric": "made", "tenant": "acme", "bucket": 0, "count": 2**62}
    kinds = [
        ("metric", "string"),
        ("tenant", "string"),
        ("bucket", pa.timestamp("us", "UTC")),
        ("count", "int64"),
    ]
    pq.write_table(pa.Table.from_pylist([row, row], schema=pa.schema(kinds)), tmp_path / "large.parquet")
    pile.paths = (str(tmp_path / "large.parquet"),)
    for name in ("duckdb", "duckdb", "spark"):
        with pytest.raises(QueryError, match="64 bits"):
            querier.ask(text, tenant=None, now=BASE, engine=name)


def test_an_engine_that_does_not_exist_and_a_session_that_is_not_there(kit):
    querier = Querier({"plant": kit.PLANT}, lambda name: None)
    with pytest.raises(QueryError) as caught:
        querier.ask("SELECT count FROM plant.made", tenant=None, now=BASE, engine="flink")
    assert caught.value.hint == "engines: duckdb, spark"
    with pytest.raises(QueryError, match="no Spark session"):
        querier.ask("SELECT count FROM plant.made", tenant=None, now=BASE, engine="spark")
