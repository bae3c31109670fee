"""Reduces what a contender wrote to a digest, so that all of them can be compared; run as `… OUTPUTS`.

OUTPUTS is a JSON file of `Outputs`. Nothing here is timed, and nothing depends on the order of rows or files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import duckdb
import pyarrow.compute as pc
import pyarrow.parquet as pq

LEVELS = ("5s", "1m", "1h", "1d", "7d")
FIELDS = ("event_type", "api", "region", "status", "latency_ms", "bytes", "user_agent", "trace")
RAW_COLUMNS = ("tenant", "event_id", "ts", "payload", *FIELDS)
# ts: microseconds since the epoch; status, bytes: as BIGINT; latency_ms: in thousandths, as BIGINT
CELL_COLUMNS = ("tenant", "api", "region", "status", "bucket", "n", "sum", "min", "max")
# bucket: start in microseconds; n: events; sum, min, max of latency_ms in thousandths; all as BIGINT


def fields() -> str:
    """The declared fields as all of them spell those, of typed columns."""
    spelled = {name: f"{name}::BIGINT" for name in ("status", "bytes")}
    spelled["latency_ms"] = "(latency_ms * 1000)::BIGINT"
    return ", ".join(f"{spelled.get(name, name)} AS {name}" for name in FIELDS)


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where the results are. SQL is DuckDB's and must give the columns named above."""

    raw: str  # SELECT of RAW_COLUMNS
    raw_files: Sequence[str]  # each sorted by (tenant, time); if in a folder day=YYYY-MM-DD, all of that day
    rollups: Mapping[str, str]  # by level: SELECT of CELL_COLUMNS
    outcomes: Sequence[
        Mapping[str, int]
    ]  # per slice in order of arrival: accepted, duplicate, conflict, reason…


def folder_outputs(out: Path, outcomes: Sequence[Mapping[str, int]]) -> Outputs:
    """The outputs of a peer, all of which write the same layout."""
    cells = (
        "tenant, api, region, status::BIGINT AS status, bucket::BIGINT * 1000000 AS bucket, n::BIGINT AS n, "
    )
    cells += ", ".join(f"({name} * 1000)::BIGINT AS {name}" for name in ("sum", "min", "max"))
    return Outputs(
        raw=f"SELECT tenant, event_id, epoch_us(ts) AS ts, payload, {fields()} FROM "
        f"read_parquet('{out}/raw/*/*.parquet', hive_partitioning = false)",
        raw_files=[str(file) for file in sorted(out.glob("raw/*/*.parquet"))],
        rollups={
            level: f"SELECT {cells} FROM read_parquet('{out}/rollups/level={level}/**/*.parquet', "
            "hive_partitioning = false)"
            for level in LEVELS
        },
        outcomes=outcomes,
    )


def digest_of(db: duckdb.DuckDBPyConnection, select: str, columns: Sequence[str]) -> str:
    """Rows, and two sums of their 128-bit hashes: the same for the same multiset of rows."""
    spelled = ", ".join(f"coalesce({column}::VARCHAR, '\\N')" for column in columns)
    row = db.execute(f"""
        SELECT count(*), sum(md5_number_lower(k)::HUGEINT), sum(md5_number_upper(k)::HUGEINT)
        FROM (SELECT concat_ws('\x1f', {spelled}) AS k FROM ({select}))""").fetchone()
    assert row is not None
    return ":".join(str(value or 0) for value in row)


def badly_laid_out(files: Sequence[str]) -> list[str]:
    """Raw files that are not sorted by (tenant, time), not zstd, or in the wrong day's folder."""
    faults = []
    for name in files:
        file = pq.ParquetFile(name)
        if not file.metadata.num_rows:  # it speaks for parts that are gone
            continue
        group = file.metadata.row_group(0)
        columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
        if columns["payload"].compression != "ZSTD":
            faults.append(f"{name}: payload is not zstd")
        time = next(column for column in ("event_time", "time", "ts") if column in columns)
        table = file.read(columns=["tenant", time])
        tenant, moment = table["tenant"].combine_chunks(), table[time].combine_chunks()
        if pc.any(pc.less(tenant[1:], tenant[:-1])).as_py():
            faults.append(f"{name}: not sorted by tenant")
        back = pc.and_(pc.equal(tenant[1:], tenant[:-1]), pc.less(moment[1:], moment[:-1]))
        if pc.any(back).as_py():
            faults.append(f"{name}: not sorted by time within a tenant")
        days = {f"day={value:%Y-%m-%d}" for value in pc.min_max(moment).as_py().values()}
        if days != {Path(name).parent.name} and Path(name).parent.name.startswith("day="):
            faults.append(f"{name}: holds {sorted(days)}")
    return faults


def digest(outputs: Outputs) -> dict[str, object]:
    faults = badly_laid_out(outputs.raw_files)
    with duckdb.connect() as db:
        db.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
        return {
            "raw": digest_of(db, outputs.raw, RAW_COLUMNS),
            "outcomes": [{name: n for name, n in sorted(each.items()) if n} for each in outputs.outcomes],
            "rollups": {name: digest_of(db, outputs.rollups[name], CELL_COLUMNS) for name in LEVELS},
            "layout": faults,
        }


def differences(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """The parts of two digests that are not equal."""
    return [part for part in one if one[part] != other[part]]


def as_json(outputs: Outputs) -> str:
    return json.dumps(asdict(outputs))


def main() -> None:
    print(json.dumps(digest(Outputs(**json.loads(Path(sys.argv[1]).read_text())))))


if __name__ == "__main__":
    main()
