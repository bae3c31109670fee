"""The floor of the whole job, run as `… JOB OUT`: the lines parsed and written as one zstd Parquet file by
DuckDB on two threads, with no semantics.

What a contender takes more is the price of gate, order, rollups, durability and commits.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import duckdb

FIELDS = {
    "event_id": "VARCHAR", "ts": "BIGINT", "event_type": "VARCHAR", "tenant": "VARCHAR", "api": "VARCHAR",
    "region": "VARCHAR", "status": "VARCHAR", "latency_ms": "VARCHAR", "bytes": "VARCHAR",
    "user_agent": "VARCHAR", "trace": "VARCHAR",
}  # fmt: skip


def write(files: list[str], target: Path) -> float:
    """Seconds. Numbers are cast leniently: a line with a wrong one is written without it."""
    db = duckdb.connect()
    db.execute("SET threads = 2; SET preserve_insertion_order = false; SET enable_progress_bar = false")
    listed = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
    started = time.perf_counter()
    db.execute(f"""
        COPY (SELECT line AS payload, j.* REPLACE (TRY_CAST(j.status AS BIGINT) AS status,
                  TRY_CAST(j.latency_ms AS DECIMAL(18, 3)) AS latency_ms,
                  TRY_CAST(j.bytes AS BIGINT) AS bytes)
              FROM (SELECT line, json_transform(CASE WHEN json_valid(line) THEN line END,
                        '{json.dumps(FIELDS)}') AS j
                    FROM read_csv([{listed}], columns = {{line: 'VARCHAR'}}, delim = '\x01', quote = '',
                        escape = '', header = false, auto_detect = false, ignore_errors = true)))
        TO '{target}' (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)""")
    return time.perf_counter() - started


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    seconds = write([item["file"] for item in job["slices"]], Path(sys.argv[2]) / "floor.parquet")
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
