"""The sparse jobs as a DuckDB script on two threads; run as `… JOB OUT`.

It writes the accepted visits sorted, five levels with bins, and a file for each day; `late` adds a slice to
them and writes again what it touches. It is a yardstick: no ledger, no fsync, no care for crashes.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import duckdb

LEVELS = {"5s": 5, "1m": 60, "1h": 3600, "1d": 86_400, "7d": 604_800}
FIELDS = {
    "visit_id": "VARCHAR",
    "ts": "BIGINT",
    "site": "VARCHAR",
    "kind": "VARCHAR",
    "fee": "DECIMAL(18,2)",
    "waited": "DECIMAL(18,1)",
    "desk": "BIGINT",
    "note": "VARCHAR",
}
PARQUET = "FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1"
KEYS = "site, kind"
SUMS = "sum(n)::BIGINT AS n, sum(fees) AS fees, min(least) AS least, max(most) AS most"


class Script:
    def __init__(self, job: dict[str, Any], out: Path) -> None:
        self.files: list[str] = job["files"]
        self.bounds: list[float] = job["bounds"]
        self.daily: bool = job["daily"]
        self.out = out
        self.db = duckdb.connect()
        self.db.execute("SET threads = 2; SET TimeZone = 'UTC'; SET enable_progress_bar = false")

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        return self.db.execute(sql).fetchall()

    def parse(self) -> None:
        """Table `ev`: the typed columns and the line, the first of each id."""
        files = ", ".join("'" + file.replace("'", "''") + "'" for file in self.files)
        self.run(f"""
            CREATE TABLE ev AS SELECT j.*, line FROM (
                SELECT json_transform(line, '{json.dumps(FIELDS)}') AS j, line
                FROM read_csv([{files}], columns = {{line: 'VARCHAR'}}, delim = '\x01', quote = '',
                    escape = '', header = false, auto_detect = false))
            QUALIFY row_number() OVER (PARTITION BY j.visit_id) = 1""")

    def write_raw(self) -> None:
        folder = self.out / "raw"
        folder.mkdir(parents=True, exist_ok=True)
        self.run(f"COPY (SELECT * FROM ev ORDER BY ts) TO '{folder}/{time.time_ns()}.parquet' ({PARQUET})")

    def roll_up(self) -> None:
        """Tables `c5s` … `c7d` (counter) and `b5s` … `b7d` (bins) of what this job adds."""
        bin_of = " + ".join(f"(waited > {bound})::INT" for bound in self.bounds)
        count = f"""SELECT {KEYS}, ts // 5000 * 5 AS bucket, count(*) AS n, sum(fee) AS fees,
            min(fee) AS least, max(fee) AS most FROM ev GROUP BY ALL"""
        bins = f"""SELECT {KEYS}, ts // 5000 * 5 AS bucket, {bin_of} AS bin, count(*) AS n
            FROM ev GROUP BY ALL"""
        for level, width in LEVELS.items():
            self.run(f"CREATE TABLE c{level} AS {count.replace('WIDTH', str(width))}")
            self.run(f"CREATE TABLE b{level} AS {bins.replace('WIDTH', str(width))}")
            bucket = "bucket // WIDTH * WIDTH AS bucket"
            count = f"SELECT {KEYS}, {bucket}, {SUMS} FROM c{level} GROUP BY ALL"
            bins = f"SELECT {KEYS}, {bucket}, bin, sum(n)::BIGINT AS n FROM b{level} GROUP BY ALL"

    def merge_levels(self) -> None:
        """Each level is one file of counts and one of bins; what is there is added to and written again."""
        (self.out / "levels").mkdir(exist_ok=True)
        for level in LEVELS:
            for table, key, sums in (("c", "bucket", SUMS), ("b", "bucket, bin", "sum(n)::BIGINT AS n")):
                target = self.out / "levels" / f"{table}{level}.parquet"
                rows = f"SELECT * FROM {table}{level}"
                if target.exists():
                    rows = (
                        f"SELECT {KEYS}, {key}, {sums} FROM "
                        f"({rows} UNION ALL BY NAME SELECT * FROM '{target}') GROUP BY ALL"
                    )
                new = target.with_suffix(".new")
                self.run(f"COPY (SELECT * FROM ({rows}) ORDER BY {KEYS}, bucket) TO '{new}' ({PARQUET})")
                new.replace(target)

    def write_days(self) -> None:
        """The days that this job has visits of, from all that was accepted of them."""
        if not self.daily:
            return
        days = {day for (day,) in self.run("SELECT DISTINCT ts // 86400000 FROM ev")}
        folder = self.out / "days"
        for day in days:
            shutil.rmtree(folder / f"day={day}", ignore_errors=True)
        columns = ", ".join(FIELDS)
        self.run(f"""
            COPY (SELECT {columns}, ts // 86400000 AS day FROM '{self.out}/raw/*.parquet'
                  WHERE day IN (SELECT DISTINCT ts // 86400000 FROM ev) ORDER BY ts, visit_id)
            TO '{folder}' ({PARQUET}, PARTITION_BY (day), OVERWRITE_OR_IGNORE)""")

    def whole(self) -> None:
        self.parse()
        self.write_raw()
        self.roll_up()
        self.merge_levels()
        self.write_days()

    def late(self) -> None:
        self.parse()
        self.run(f"DELETE FROM ev WHERE visit_id IN (SELECT visit_id FROM '{self.out}/raw/*.parquet')")
        self.write_raw()
        self.roll_up()
        self.merge_levels()
        self.write_days()


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    started = time.perf_counter()
    getattr(Script(job, Path(sys.argv[2])), job["mode"])()
    print(json.dumps({"seconds": time.perf_counter() - started}))


if __name__ == "__main__":
    main()
