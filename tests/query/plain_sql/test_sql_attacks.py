"""Statements that try to read, write or learn what is none of their business: all of them are refused.

The list is long on purpose. Each attack is run as whoever may use SQL: for all tenants.
"""

from __future__ import annotations

import duckdb
import pytest

from tidemill.model.errors import NotFoundError, QueryError, TidemillError
from tidemill.query.plain_sql.functions import FUNCTIONS, OPERATORS, TABLE_FUNCTIONS
from tidemill.query.plain_sql.service import SqlLimits, _Run
from tidemill.query.plain_sql.statement_check import Statement, check

SECRET = "/etc/passwd"
STATEMENTS = """
CREATE TABLE t (a INT)
CREATE TABLE t AS SELECT 1
CREATE OR REPLACE VIEW raw.orders AS SELECT 1
CREATE TEMP VIEW v AS SELECT 1
CREATE SCHEMA s
CREATE MACRO f(x) AS x
CREATE MACRO f() AS TABLE SELECT 1
CREATE FUNCTION f(x) AS x
CREATE TYPE t AS ENUM ('a')
CREATE SEQUENCE s
CREATE INDEX i ON raw.orders (tenant)
CREATE SECRET s (TYPE s3)
DROP VIEW raw.orders
DROP SCHEMA raw CASCADE
ALTER VIEW raw.orders RENAME TO o
INSERT INTO raw.orders SELECT * FROM raw.orders
UPDATE raw.orders SET tenant = 'x'
DELETE FROM raw.orders
TRUNCATE raw.orders
MERGE INTO raw.orders USING raw.orders o ON false WHEN MATCHED THEN DELETE
COPY raw.orders TO '/tmp/x.csv'
COPY (SELECT 1) TO '/tmp/x.parquet'
COPY raw.orders FROM '/etc/passwd'
COPY FROM DATABASE memory TO other
EXPORT DATABASE '/tmp/x'
IMPORT DATABASE '/tmp/x'
ATTACH '/tmp/x.db'
ATTACH '/tmp/x.db' AS x (READ_ONLY)
DETACH memory
USE raw
INSTALL httpfs
LOAD httpfs
LOAD '/tmp/x.duckdb_extension'
FORCE INSTALL httpfs FROM 'http://localhost'
UPDATE EXTENSIONS
SET threads = 1
SET GLOBAL memory_limit = '10GB'
SET VARIABLE a = 1
RESET threads
PRAGMA database_list
PRAGMA version
PRAGMA enable_profiling
PRAGMA table_info('raw.orders')
CALL pragma_version()
CALL duckdb_settings()
CHECKPOINT
FORCE CHECKPOINT
VACUUM
ANALYZE
BEGIN TRANSACTION
COMMIT
ROLLBACK
PREPARE p AS SELECT 1
EXECUTE p
DEALLOCATE p
COMMENT ON VIEW raw.orders IS 'x'
SHOW DATABASES
SHOW SCHEMAS
SHOW VARIABLES
SHOW TABLES FROM raw
DESCRIBE '/etc/passwd'
SUMMARIZE '/etc/passwd'
SHOW duckdb_settings
DESCRIBE pg_catalog.pg_class
EXPLAIN COPY (SELECT 1) TO '/tmp/x.csv'
EXPLAIN CREATE TABLE t (a INT)
EXPLAIN SELECT * FROM read_text('/etc/passwd')
EXPLAIN ANALYZE SELECT * FROM read_text('/etc/passwd')
EXPLAIN (FORMAT json) SELECT * FROM read_text('/etc/passwd')
EXPLAIN EXPLAIN SELECT 1
EXPLAIN PRAGMA version
SELECT 1; SELECT 2
SELECT 1; DROP VIEW raw.orders
; DROP VIEW raw.orders
PIVOT raw.orders ON tenant
SELECT 1 INTO OUTFILE '/tmp/x'
""".strip().splitlines()
TABLES = """
SELECT * FROM '/etc/passwd'
SELECT * FROM "/etc/passwd"
SELECT * FROM '/etc/*.csv'
FROM 'https://localhost/x.parquet'
FROM 's3://bucket/x.parquet'
FROM "access/tokens.json"
FROM 'warehouse/raw/orders/_delta_log/00000000000000000000.json'
FROM STATEMENTS
FROM mill
FROM source_0
FROM main.source_0
FROM memory.main.source_0
FROM temp.main.source_0
FROM orders
FROM memory.raw.orders
FROM system.main.duckdb_settings
FROM information_schema.tables
FROM information_schema.schemata
FROM pg_catalog.pg_tables
FROM pg_tables
FROM sqlite_master
FROM duckdb_tables
FROM duckdb_views
FROM duckdb_columns
FROM duckdb_settings
FROM raw."orders; DROP VIEW raw.orders"
FROM raw."../../access/tokens.json"
FROM raw.orders AT (VERSION => 1)
FROM raw.orders, 'x.csv'
SELECT (SELECT count(*) FROM '/etc/passwd')
SELECT EXISTS (FROM '/etc/passwd')
SELECT 1 WHERE 1 IN (FROM '/etc/passwd')
SELECT CASE WHEN true THEN (SELECT 1 FROM '/etc/passwd') END
SELECT [x FOR x IN (SELECT array_agg(1) FROM '/etc/passwd')]
SELECT sum((SELECT 1 FROM 'x.csv')) OVER () FROM raw.orders
SELECT * FROM raw.orders ORDER BY (SELECT 1 FROM 'x.csv')
SELECT * FROM raw.orders LIMIT (SELECT 1 FROM 'x.csv')
SELECT * FROM raw.orders GROUP BY (SELECT 1 FROM 'x.csv')
SELECT 1 FROM raw.orders HAVING (SELECT true FROM 'x.csv')
SELECT 1 FROM raw.orders QUALIFY (SELECT true FROM 'x.csv')
SELECT * REPLACE ((SELECT 1 FROM 'x.csv') AS tenant) FROM raw.orders
SELECT COLUMNS(c -> (SELECT true FROM 'x.csv')) FROM raw.orders
SELECT list_transform([1], lambda x: (SELECT 1 FROM 'x.csv'))
VALUES ((SELECT 1 FROM 'x.csv'))
SELECT 1 UNION ALL FROM 'x.csv'
WITH a AS (FROM 'x.csv') SELECT 1
WITH a AS (FROM b), b AS (SELECT 1) FROM a
WITH RECURSIVE a AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM 'x.csv') FROM a
WITH "x.csv" AS (SELECT 1) FROM main."x.csv"
SELECT * FROM (WITH "x.csv" AS (SELECT 1) FROM "x.csv"), "x.csv"
FROM raw.orders a, LATERAL (FROM 'x.csv') b
FROM raw.orders a JOIN 'x.csv' b ON true
FROM raw.orders a POSITIONAL JOIN 'x.csv'
FROM raw.orders a ASOF JOIN 'x.csv' b ON a.line >= b.line
FROM (PIVOT 'x.csv' ON a IN (1) USING count(*))
FROM (UNPIVOT 'x.csv' ON a INTO NAME n VALUE v)
SELECT /* harmless */ * FROM /**/ '/etc/passwd' -- raw.orders
TABLE "x.csv"
DESCRIBE FROM 'x.csv'
SUMMARIZE SELECT * FROM 'x.csv'
FROM (DESCRIBE FROM 'x.csv')
FROM (SHOW TABLES)
FROM (SHOW ALL TABLES)
""".strip().splitlines()
CALLS = """
SELECT * FROM query('SELECT 1')
SELECT * FROM query('FROM ' || '''/etc/passwd''')
SELECT * FROM query_table('raw.orders')
SELECT * FROM query_table(['raw.orders'])
FROM read_text('/etc/passwd')
FROM READ_TEXT('/etc/passwd')
FROM "read_text"('/etc/passwd')
FROM main.read_text('/etc/passwd')
FROM system.main.read_text('/etc/passwd')
FROM raw.orders, read_text('/etc/passwd')
FROM raw.orders, LATERAL read_text(payload)
FROM read_csv(['/etc/passwd'], header = false)
FROM unnest([1]), glob('*')
SELECT (FROM read_text('/etc/passwd'))
SELECT read_text('/etc/passwd')
SELECT '/etc/passwd'.read_text()
FROM range((SELECT count(*) FROM read_text('/etc/passwd')))
FROM unnest((SELECT list(content) FROM read_text('/etc/passwd')))
FROM json_each((SELECT content FROM read_text('/etc/passwd')))
FROM arrow_scan(1, 1, 1)
FROM arrow_scan_dumb(1, 1, 1)
FROM pandas_scan(1)
FROM python_map_function(1)
FROM seq_scan('raw.orders')
FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))
SELECT json_serialize_sql('SELECT 1')
SELECT json_serialize_plan('SELECT * FROM read_text(''/etc/passwd'')')
SELECT json_deserialize_sql('{}')
SELECT getenv('HOME')
SELECT getvariable('a')
SELECT current_setting('memory_limit')
SELECT nextval('s')
SELECT currval('s')
SELECT write_log('x')
SELECT sleep_ms(1000)
SELECT pg_sleep(1)
SELECT setseed(0.5)
SELECT current_query()
SELECT current_database()
SELECT txid_current()
SELECT pg_get_viewdef(1)
SELECT which_secret('s3://x', 's3')
SELECT count(*) FILTER (WHERE getvariable('a')) FROM raw.orders
SELECT sum(getvariable('a')) OVER () FROM raw.orders
SELECT max(line ORDER BY current_setting('threads')) FROM raw.orders
SELECT list_transform([1], lambda x: current_setting('threads'))
SELECT COALESCE(NULL, current_setting('threads'))
SELECT 1 BETWEEN 0 AND current_setting('threads')::INT
SELECT CAST(current_setting('threads') AS INT)
SELECT {'a': current_setting('threads')}
SELECT current_setting('threads') COLLATE NOCASE
SELECT no_such_function(1)
SELECT other.abs(1)
SELECT other.main.abs(1)
SELECT $1
SELECT ?
SELECT $name
""".strip().splitlines()


@pytest.mark.parametrize("text", [*STATEMENTS, *TABLES, *CALLS])
def test_an_attack_is_refused_before_anything_runs(mill, text):
    with pytest.raises((QueryError, NotFoundError)) as error:
        mill.sql(text, all_tenants=True)
    assert error.value.hint
    assert "root:" not in f"{error.value} {error.value.hint}"


@pytest.fixture(scope="module")
def engine():
    with duckdb.connect() as opened:
        yield opened


def functions_of(*kinds: str) -> list[str]:
    names = duckdb.execute(
        "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type IN (SELECT unnest($1))",
        [list(kinds)],
    )
    return sorted(name for (name,) in names.fetchall())


def test_no_table_function_can_be_called_but_five_that_only_compute(engine):
    """Those that read files, settings, secrets, the catalog, memory by its address, and all others."""
    names = {name.lower() for name in functions_of("table", "table_macro", "pragma")}
    assert {"read_csv", "glob", "duckdb_secrets", "query", "parquet_metadata", "sniff_csv"} < names
    for name in sorted(names - TABLE_FUNCTIONS):
        for call in (f"{name}()", f"{name}('{SECRET}')", f"{name.upper()}('{SECRET}', 1)"):
            with pytest.raises(QueryError):
                check(f"SELECT * FROM {call}", [], engine)
    assert {"range", "generate_series", "unnest", "json_each", "json_tree"} == TABLE_FUNCTIONS


def test_functions_that_are_not_on_the_list_cannot_be_called(engine):
    known = {name.lower() for name in functions_of("scalar", "aggregate", "macro")}
    others = {name for name in known - FUNCTIONS - OPERATORS if name.isidentifier()}
    named = {"current_setting", "getvariable", "nextval", "json_serialize_plan", "sleep_ms", "write_log"}
    assert named < others
    for name in sorted(others):
        with pytest.raises(QueryError, match="is not available"):
            check(f"SELECT {name}()", [], engine)
    suspects = ("read_", "file", "secret", "setting", "variable", "getenv", "query", "catalog", "sequence")
    assert [name for name in FUNCTIONS if any(word in name for word in suspects)] == ["parse_filename"]


@pytest.mark.parametrize(
    "text",
    [
        "FROM read_text('/etc/passwd')", "FROM '/etc/passwd'", "FROM glob('/etc/*')", "ATTACH '/tmp/x.db'",
        "COPY (SELECT 1) TO 'sql_attack.csv'", "INSTALL httpfs", "LOAD httpfs", "LOAD '/tmp/x.so'",
        "FROM read_csv('https://localhost/x')", "SET threads = 8", "SET enable_external_access = true",
        "SET memory_limit = '100GB'", "EXPORT DATABASE 'sql_attack'", "FROM parquet_metadata('/tmp/x')",
        "RESET lock_configuration", "SET python_enable_replacements = true", "FROM text",
    ],
)  # fmt: skip
def test_the_engine_itself_refuses_what_the_check_would(text, tmp_path, monkeypatch):
    """So that a gap in the check alone opens nothing."""
    monkeypatch.chdir(tmp_path)
    run = _Run(SqlLimits(64 << 20, 10_000_000))
    try:
        with pytest.raises(TidemillError):
            run.start(Statement(text, frozenset()), [])
    finally:
        run.close()
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("SELECT 'FROM read_csv(x)' AS a", [{"a": "FROM read_csv(x)"}]),
        ("SELECT 1 AS a; ", [{"a": 1}]),
        ("-- a comment\nSELECT 1 AS a -- another", [{"a": 1}]),
        ("WITH orders AS (SELECT 1 AS a) FROM orders", [{"a": 1}]),
        (
            "WITH RECURSIVE t AS (SELECT 1 AS a UNION ALL SELECT a + 1 FROM t WHERE a < 3) FROM t OFFSET 2",
            [{"a": 3}],
        ),
        ("WITH a AS (SELECT 1 AS a), b AS (SELECT a + 1 AS a FROM a) FROM b", [{"a": 2}]),
        ("SELECT (SELECT max(a) FROM t) AS a FROM (WITH t AS (SELECT 1 AS a) FROM t) AS t", None),
        ("SELECT a FROM range(3) t(a), LATERAL (SELECT a + 1 AS b) WHERE b = 3", [{"a": 2}]),
        ("VALUES (1), (2)", [{"col0": 1}, {"col0": 2}]),
        ("SELECT list_transform([1, 2], lambda x: x + 1) AS a", [{"a": [2, 3]}]),
        ("FROM (PIVOT (VALUES (1, 'x')) t(n, k) ON k IN ('x') USING sum(n))", [{"x": 1}]),
        ("SELECT key AS a FROM json_each('{\"k\": 1}')", [{"a": "k"}]),
        ("DESCRIBE SELECT 1 AS a", None),
        ("SUMMARIZE SELECT 1 AS a", None),
        ("EXPLAIN SELECT 1 AS a", None),
        ("/* why */ EXPLAIN ANALYZE SELECT 1 AS a", None),
    ],
)
def test_honest_statements_run(mill, text, rows):
    try:
        found = mill.sql(text).table.to_pylist()
    except NotFoundError:
        assert "FROM t) AS t" in text  # a name of WITH is not known outside of it
        return
    assert found
    assert rows is None or found == rows


def test_time_runs_out_and_the_error_says_how_to_get_more(mill):
    with pytest.raises(QueryError, match="ran longer than 20ms") as error:
        mill.sql("SELECT count(*) FROM range(1000000000000)", timeout="20ms").table  # noqa: B018
    assert "--timeout" in error.value.hint


def test_memory_runs_out_and_the_error_says_how_to_get_more(mill):
    with pytest.raises(QueryError, match="needs more than 16 MiB") as error:
        mill.sql("SELECT count(*) FROM (SELECT DISTINCT range FROM range(50000000))", memory="16MiB").table  # noqa: B018
    assert "--memory" in error.value.hint
    answer = mill.sql("SELECT repeat('x', 1000) FROM range(100000)", memory="16MiB")
    with pytest.raises(QueryError, match="the rows need more than 16 MiB"):
        answer.table  # noqa: B018
    taken = mill.sql("SELECT repeat('x', 1000) FROM range(100000)", memory="16MiB")
    assert sum(batch.num_rows for batch in taken.batches()) == 100_000


@pytest.mark.parametrize("text", ["SELECT '\ud800'", "SELECT 'a\0b'"])
def test_a_statement_that_is_no_text_is_refused(mill, text):
    with pytest.raises(QueryError):
        mill.sql(text)


def test_a_statement_that_is_too_long_or_too_deep_is_refused(mill):
    with pytest.raises(QueryError, match="characters"):
        mill.sql("SELECT " + "1 + " * 30_000 + "1")
    with pytest.raises(QueryError):
        mill.sql("SELECT * FROM " + "(SELECT * FROM " * 2_000 + "raw.orders" + ")" * 2_000, all_tenants=True)


def test_an_unknown_name_says_what_was_meant(mill):
    with pytest.raises(NotFoundError) as error:
        mill.sql("SELECT * FROM raw.order")
    assert error.value.hint.startswith("did you mean raw.orders? views: ")
    with pytest.raises(NotFoundError) as error:
        mill.sql("SELECT * FROM orders")
    assert error.value.hint.startswith("did you mean raw.orders? views: ")
    with pytest.raises(QueryError, match='"tenantt"') as error:
        mill.sql("SELECT tenantt FROM raw.orders", all_tenants=True)
    assert "tenant" in error.value.hint
    with pytest.raises(QueryError, match="syntax error") as error:
        mill.sql("SELECT * FRM raw.orders")
    assert error.value.position is not None
