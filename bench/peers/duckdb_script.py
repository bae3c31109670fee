"""The job as a DuckDB script on two threads, as fast as we could make it; run as `… JOB OUT`.

Keys first, payload last: the first scan keeps only the parsed columns (a table of them is small, and its row
ids are the order of arrival), the second joins the lines to them by position, file by file, two at a time.
The declared fields are typed columns beside the payload.
It is a yardstick: no ledger, no fsync, and a crash leaves whatever it leaves.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb

LEVELS = {"5s": 5, "1m": 60, "1h": 3600, "1d": 86_400, "7d": 604_800}
# Levels with many rows are kept one file an hour, so that a late slice rewrites the hours that it touches.
BY_HOUR = ("5s", "1m")
FIELDS = {
    "event_id": "VARCHAR",
    "ts": "BIGINT",
    "event_type": "VARCHAR",
    "tenant": "VARCHAR",
    "api": "VARCHAR",
    "region": "VARCHAR",
    "status": "JSON",  # "200" in quotes would turn into a number otherwise
    "latency_ms": "DECIMAL(9,3)",
    "bytes": "DECIMAL(18,3)",
    "user_agent": "VARCHAR",
    "trace": "VARCHAR",
}
PARQUET = "FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1"
REASON = """CASE WHEN NOT valid THEN 'malformed'
    WHEN event_id IS NULL OR event_id = '' THEN 'missing_id'
    WHEN tenant IS NULL OR tenant = '' OR event_type IS NULL THEN 'missing_field'
    WHEN event_type <> 'request' THEN 'unknown_type'
    WHEN ts IS NULL THEN 'bad_time'
    WHEN status IS NULL OR quoted OR latency IS NULL THEN 'wrong_type'
    ELSE 'skew' END"""
Row = tuple[Any, ...]


def text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def lines(files: list[str], more: str = "") -> str:
    """Every line of the files as it stands; lines that are not UTF-8 are skipped (and kept apart)."""
    return (
        f"read_csv([{', '.join(map(text, files))}], columns = {{line: 'VARCHAR'}}, delim = '\x01', "
        f"quote = '', escape = '', header = false, auto_detect = false, filename = true, "
        f"ignore_errors = true{more})"
    )


class Script:
    def __init__(self, job: dict[str, Any], out: Path) -> None:
        self.slices: list[dict[str, Any]] = job["slices"]
        self.out = out
        self.db = duckdb.connect()
        self.db.execute("SET threads = 2; SET TimeZone = 'UTC'; SET enable_progress_bar = false")
        self.outcomes: dict[str, dict[str, int]] = {
            item["file"]: {"accepted": 0, "duplicate": 0, "conflict": 0} for item in self.slices
        }

    def run(self, sql: str) -> list[Row]:
        return self.db.execute(sql).fetchall()

    def count(self, rows: list[Row]) -> None:
        for file, outcome, number in rows:
            self.outcomes[file][outcome] = self.outcomes[file].get(outcome, 0) + number

    def parse(self) -> None:
        """Table `ev`: the parsed columns of each line in order of arrival, and a hash of all its values."""
        files = [item["file"] for item in self.slices]
        values = ", ".join("st" if name == "status" else f"j.{name}" for name in FIELDS)
        self.run(f"""
            CREATE TABLE ev AS
            SELECT filename, valid, j.event_id, j.tenant, j.event_type, j.ts, j.api, j.region,
                st::BIGINT AS status, starts_with(j.status::VARCHAR, '"') AS quoted, j.latency_ms AS latency,
                j.bytes::BIGINT AS bytes, j.user_agent, j.trace, hash({values}) AS same
            FROM (SELECT *, TRY_CAST(j.status::VARCHAR AS DOUBLE) AS st FROM (
                SELECT filename, valid,
                    json_transform(CASE WHEN valid THEN line END, '{json.dumps(FIELDS)}') AS j
                FROM (SELECT filename, line, json_valid(line) AS valid
                      FROM {lines(files, ", store_rejects = true")})))""")
        self.count(
            self.run("""
            SELECT file_path, 'encoding', count(DISTINCT line) FROM reject_errors
            JOIN reject_scans USING (scan_id, file_id) GROUP BY ALL""")
        )

    def reject(self) -> None:
        """Table `gone`: row ids of what is not accepted; here the rejected ones."""
        arrivals = ", ".join(f"({text(item['file'])}, {item['arrival'] // 1000})" for item in self.slices)
        oldest = min(item["arrival"] for item in self.slices) // 1000 + 86_400_000
        self.run(f"""
            CREATE TABLE gone AS SELECT ev.rowid AS row, filename, {REASON} AS outcome
            FROM ev JOIN (VALUES {arrivals}) AS a (file, arrival) ON filename = file
            WHERE NOT valid OR event_id IS NULL OR event_id = '' OR tenant IS NULL OR tenant = ''
                OR event_type IS NULL OR event_type <> 'request' OR ts IS NULL OR status IS NULL OR quoted
                OR latency IS NULL OR (ts > {oldest} AND ts > arrival + 86400000)""")

    def gate(self) -> None:
        """The first of each (tenant, event_id) stays; candidates are found by hash, then compared exactly."""
        self.run("""
            CREATE TABLE again AS SELECT rowid AS row, filename, tenant, event_id, same
            FROM ev WHERE hash(tenant, event_id) IN
                (SELECT hash(tenant, event_id) AS h FROM ev GROUP BY h HAVING count(*) > 1)
                AND rowid NOT IN (SELECT row FROM gone)""")
        self.run("""
            INSERT INTO gone SELECT row, filename, CASE WHEN same = first THEN 'duplicate' ELSE 'conflict' END
            FROM (SELECT *, row_number() OVER w AS place, first_value(same) OVER w AS first
                  FROM again WINDOW w AS (PARTITION BY tenant, event_id ORDER BY row)) WHERE place > 1""")

    def tally(self) -> None:
        self.count(self.run("SELECT filename, outcome, count(*) FROM gone GROUP BY ALL"))
        self.count(
            self.run("""
            SELECT filename, 'accepted', count(*) FROM ev
            WHERE rowid NOT IN (SELECT row FROM gone) GROUP BY ALL""")
        )
        (self.out / "outcomes.json").write_text(json.dumps(list(self.outcomes.values())))

    def write_raw(self) -> None:
        ranges = self.run("""
            SELECT filename, min(rowid), max(rowid),
                list(DISTINCT ts // 86400000) FILTER (rowid NOT IN (SELECT row FROM gone))
            FROM ev GROUP BY filename""")
        work = [(file, low, high, day) for file, low, high, days in ranges for day in days or []]
        for day in {day for *_, day in work}:
            self.folder(day).mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda item: self.write_part(*item), work))

    def folder(self, day: int) -> Path:
        return self.out / "raw" / f"day={time.strftime('%Y-%m-%d', time.gmtime(day * 86_400))}"

    def write_part(self, file: str, low: int, high: int, day: int) -> None:
        target = self.folder(day) / f"{Path(file).stem}.parquet"
        self.db.cursor().execute(f"""
            COPY (SELECT tenant, event_id, make_timestamptz(ts * 1000) AS ts, line AS payload, event_type,
                      api, region, status, latency::DECIMAL(18, 3) AS latency_ms, bytes, user_agent, trace
                  FROM {lines([file])} POSITIONAL JOIN
                      (SELECT rowid AS row, * EXCLUDE (filename, valid, quoted, same) FROM ev
                       WHERE rowid BETWEEN {low} AND {high})
                  WHERE row NOT IN (SELECT row FROM gone) AND ts // 86400000 = {day}
                  ORDER BY tenant, ts) TO '{target}' ({PARQUET})""")

    def roll_up(self) -> None:
        """Tables `r5s` … `r7d` of what this job adds, each from the one below."""
        cells = "count(*) AS n, sum(latency) AS sum, min(latency) AS min, max(latency) AS max"
        source = f"""SELECT tenant, api, region, status, ts // 5000 * 5 AS bucket, {cells}
            FROM ev WHERE rowid NOT IN (SELECT row FROM gone) GROUP BY ALL"""
        for level, width in LEVELS.items():
            self.run(f"CREATE TABLE r{level} AS {source.replace('WIDTH', str(width))}")
            source = f"""SELECT tenant, api, region, status, bucket // WIDTH * WIDTH AS bucket,
                sum(n)::BIGINT AS n, sum(sum) AS sum, min(min) AS min, max(max) AS max
                FROM r{level} GROUP BY ALL"""

    def write_rollups(self) -> None:
        for level in LEVELS:
            folder = self.out / "rollups" / f"level={level}"
            folder.mkdir(parents=True, exist_ok=True)
            if level in BY_HOUR:
                self.run(f"""COPY (SELECT *, bucket // 3600 AS hour FROM r{level}) TO '{folder}'
                    ({PARQUET}, PARTITION_BY (hour), OVERWRITE_OR_IGNORE)""")
            else:
                self.run(f"COPY r{level} TO '{folder}/part.parquet' ({PARQUET})")

    def gate_history(self) -> None:
        """What the raw table already holds is a duplicate or a conflict; both id columns are read whole."""
        raw = f"read_parquet('{self.out}/raw/*/*.parquet', hive_partitioning = false)"
        self.run(f"""
            CREATE TABLE known AS SELECT ev.rowid AS row, ev.filename, same, raw.tenant, raw.event_id
            FROM {raw} AS raw JOIN ev USING (tenant, event_id)
            WHERE ev.rowid NOT IN (SELECT row FROM gone)""")
        if not self.run("SELECT 1 FROM known LIMIT 1"):
            return
        fields = {**FIELDS, "status": "DOUBLE"}
        values = ", ".join(f"j.{name}" for name in fields)
        self.run(f"""
            INSERT INTO gone SELECT row, filename, CASE WHEN same = first THEN 'duplicate' ELSE 'conflict' END
            FROM known JOIN (SELECT tenant, event_id, hash({values}) AS first FROM (
                SELECT tenant, event_id, json_transform(payload, '{json.dumps(fields)}') AS j FROM {raw}
                SEMI JOIN known USING (tenant, event_id))) USING (tenant, event_id)""")

    def merge_rollups(self) -> None:
        """Add what this job adds to the stored levels, rewriting whole files."""
        for level in LEVELS:
            folder = self.out / "rollups" / f"level={level}"
            if level in BY_HOUR:
                hours = self.run(f"SELECT DISTINCT bucket // 3600 FROM r{level}")
                for (hour,) in hours:
                    part = folder / f"hour={hour}"
                    part.mkdir(exist_ok=True)
                    self.merge(part, f"(SELECT * FROM r{level} WHERE bucket // 3600 = {hour})")
            else:
                self.merge(folder, f"r{level}")

    def merge(self, folder: Path, added: str) -> None:
        old = list(folder.glob("*.parquet"))
        union = f"SELECT * FROM {added}"
        if old:
            stored = (
                f"read_parquet([{', '.join(text(str(file)) for file in old)}], hive_partitioning = false)"
            )
            union += f" UNION ALL BY NAME SELECT * FROM {stored}"
        new = folder / f"part-{time.time_ns()}.parquet"
        self.run(f"""
            COPY (SELECT tenant, api, region, status, bucket, sum(n)::BIGINT AS n, sum(sum) AS sum,
                min(min) AS min, max(max) AS max FROM ({union}) GROUP BY ALL) TO '{new}' ({PARQUET})""")
        for file in old:
            file.unlink()

    def late(self) -> None:
        self.parse()
        self.reject()
        self.gate()
        self.gate_history()
        self.tally()
        self.write_raw()
        self.roll_up()
        self.merge_rollups()

    def whole(self) -> None:
        self.parse()
        self.reject()
        self.gate()
        self.tally()
        self.write_raw()
        self.roll_up()
        self.write_rollups()


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    started = time.perf_counter()
    script = Script(job, Path(sys.argv[2]))
    getattr(script, job["mode"])()
    print(json.dumps({"seconds": time.perf_counter() - started}))


if __name__ == "__main__":
    main()
