"""What the streaming windows must come to, worked out by DuckDB from the generated columns, and whether a
contender's results are exactly that. Nothing here is timed.

How much disorder there was does not matter: no row is late, so there is one truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from bench.sales import Sales

MINUTE_MS = 60_000
GAP_MS = 30_000
_NAMED = "'k-' || lpad(key::VARCHAR, 4, '0') AS key"
TRUTHS = {
    "tumbling": f"""
        SELECT (ts // {MINUTE_MS}) * {MINUTE_MS} * 1000 AS start, {_NAMED}, count(*) AS n,
               sum(amount)::BIGINT AS total, max(value)::BIGINT AS top FROM rows GROUP BY ALL""",
    "sliding": f"""
        SELECT ((ts // {MINUTE_MS}) - back) * {MINUTE_MS} * 1000 AS start,
               'region-' || lpad(region::VARCHAR, 2, '0') AS region, count(*) AS n,
               sum(amount)::BIGINT AS total, sum(value)::DOUBLE / count(*) AS mean
        FROM rows, range(5) AS t(back) GROUP BY ALL""",
    "session": f"""
        SELECT min(ts) * 1000 AS start, {_NAMED}, count(*) AS n, sum(amount)::BIGINT AS total
        FROM (SELECT *, sum(first::INT) OVER (PARTITION BY key ORDER BY ts ROWS UNBOUNDED PRECEDING) AS number
              FROM (SELECT *, coalesce(ts - lag(ts) OVER (PARTITION BY key ORDER BY ts) > {GAP_MS}, true)
                              AS first FROM rows))
        GROUP BY key, number""",
}


@cache
def truth(rows: int, kind: str) -> pa.Table:
    """start in microseconds, key or region, n, total in cents, and what else it has."""
    with duckdb.connect() as db:
        db.execute("SET enable_progress_bar = false; SET memory_limit = '2GB'")
        found = db.execute(f"WITH rows AS (FROM '{Sales(rows).table()}') {TRUTHS[kind]}").to_arrow_table()
    return _sorted(found)


def check(who: str, kind: str, rows: int, found: pa.Table) -> None:
    """Every window once, with exactly these values."""
    wanted = truth(rows, kind)
    have = _sorted(_plain(found, wanted.column_names).cast(wanted.schema))
    if have.num_rows != wanted.num_rows:
        raise RuntimeError(f"{who}, {kind}: {have.num_rows} windows instead of {wanted.num_rows}")
    for name in wanted.column_names:
        if not have.column(name).equals(wanted.column(name)):
            raise RuntimeError(f"{who}, {kind}: {name} is not what the rows come to")


def _plain(found: pa.Table, names: Sequence[str]) -> pa.Table:
    """Instants as microseconds, amounts as cents."""
    columns = []
    for name in names:
        column = found.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        elif pa.types.is_decimal(column.type):
            cents = pc.multiply(column.cast(pa.decimal128(30, 2)), pa.scalar(100, pa.decimal128(3, 0)))
            column = cents.cast(pa.int64())
        columns.append(column)
    return pa.table(columns, names=list(names))


def _sorted(found: pa.Table) -> pa.Table:
    order = [(name, "ascending") for name in found.column_names[:2]]
    return found.sort_by(order).combine_chunks()
