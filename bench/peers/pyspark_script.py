"""The job in plain PySpark on local[2], as a skilled engineer writes it in an hour; run as `… JOB OUT`.

It is a yardstick: DataFrame API only, no Python workers, no ledger, and a crash leaves whatever it leaves.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from bench.peers.local_spark import start
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

LEVELS = {"5s": 5, "1m": 60, "1h": 3600, "1d": 86_400, "7d": 604_800}
BY_HOUR = ("5s", "1m")
KEY = ["tenant", "event_id"]
DIMENSIONS = ["tenant", "api", "region", "status", "bucket"]
DAY_MS = 86_400_000
SETTINGS = {"spark.sql.shuffle.partitions": "8", "spark.sql.parquet.compression.codec": "zstd"}
SCHEMA = (
    "event_id STRING, ts LONG, event_type STRING, tenant STRING, api STRING, region STRING, "
    "status DECIMAL(18,3), latency_ms DECIMAL(18,3), bytes DECIMAL(18,3), user_agent STRING, trace STRING"
)


def parse(spark: SparkSession, slices: list[dict[str, Any]]) -> DataFrame:
    """Each line with its slice, its place in the order of arrival, and its fields."""
    numbers = [
        (Path(item["file"]).name, number, item["arrival"] // 1000) for number, item in enumerate(slices)
    ]
    names = F.broadcast(spark.createDataFrame(numbers, "name STRING, slice INT, arrival LONG"))
    return (
        spark.read.text([item["file"] for item in slices])
        .select(
            F.col("value").alias("payload"),
            F.col("_metadata.file_name").alias("name"),
            # Within a file the ids rise with the lines; between files the slice decides.
            F.monotonically_increasing_id().alias("place"),
        )
        .join(names, "name")
        .withColumn("record", F.from_json("payload", SCHEMA))
        .select("payload", "slice", "arrival", "place", "record.*", F.xxhash64("record").alias("same"))
        .withColumn("reason", reason())
    )


def reason() -> Column:
    def empty(name: str) -> Column:
        return F.coalesce(F.col(name), F.lit("")) == ""

    nothing = F.coalesce("event_id", "event_type", "tenant", "api", "trace").isNull()
    return (
        F.when(~F.is_valid_utf8("payload"), "encoding")
        .when(nothing, "malformed")
        .when(empty("event_id"), "missing_id")
        .when(empty("tenant") | empty("event_type"), "missing_field")
        .when(F.col("event_type") != "request", "unknown_type")
        .when(F.col("ts").isNull(), "bad_time")
        # from_json takes "200" in quotes for a number
        .when(F.rlike("payload", F.lit(r'"status"\s*:\s*"')), "wrong_type")
        .when(F.col("status").isNull() | F.col("latency_ms").isNull(), "wrong_type")
        .when(F.col("ts") > F.col("arrival") + DAY_MS, "skew")
    )


def gate(events: DataFrame) -> DataFrame:
    """The first of each key is accepted; another with the same values is a duplicate, else a conflict."""
    by_key = Window.partitionBy("reason", *KEY).orderBy("slice", "place")
    placed = events.select(
        *KEY, "slice", "payload", "ts", "api", "region", F.col("status").cast("long").alias("status"),
        F.col("latency_ms").alias("latency"), "same", "reason", "event_type", "user_agent", "trace",
        F.col("bytes").cast("long").alias("bytes"),
        F.row_number().over(by_key).alias("turn"), F.first("same").over(by_key).alias("first"),
    )  # fmt: skip
    return placed.withColumn(
        "outcome",
        F.when(F.col("reason").isNotNull(), F.col("reason"))
        .when(F.col("turn") == 1, "accepted")
        .when(F.col("same") == F.col("first"), "duplicate")
        .otherwise("conflict"),
    ).drop("turn", "first", "reason")


def gate_history(spark: SparkSession, judged: DataFrame, out: Path) -> DataFrame:
    """What the raw table already holds is no longer accepted."""
    keys = judged.select(*KEY)
    known = (
        spark.read.parquet(f"{out}/raw")
        .join(F.broadcast(keys), KEY, "left_semi")
        .select(*KEY, F.xxhash64(F.from_json("payload", SCHEMA)).alias("stored"))
    )
    return judged.join(F.broadcast(known), KEY, "left").withColumn(
        "outcome",
        F.when(F.col("stored").isNull() | (F.col("outcome") != "accepted"), F.col("outcome"))
        .when(F.col("same") == F.col("stored"), "duplicate")
        .otherwise("conflict"),
    )


def write_raw(accepted: DataFrame, out: Path) -> None:
    (
        accepted.select(
            *KEY,
            F.timestamp_millis("ts").alias("ts"),
            "payload",
            "event_type",
            "api",
            "region",
            "status",
            F.col("latency").alias("latency_ms"),
            "bytes",
            "user_agent",
            "trace",
        )
        .withColumn("day", F.to_date("ts"))
        .sortWithinPartitions("day", "tenant", "ts")
        .write.mode("append")
        .partitionBy("day")
        .option("compression", "zstd")
        .parquet(f"{out}/raw")
    )


def merged(cells: DataFrame) -> DataFrame:
    return cells.groupBy(*DIMENSIONS).agg(
        F.sum("n").alias("n"), F.sum("sum").alias("sum"), F.min("min").alias("min"), F.max("max").alias("max")
    )


def roll_up(accepted: DataFrame) -> dict[str, DataFrame]:
    base = (
        accepted.withColumn("bucket", F.floor(F.col("ts") / 5000) * 5)
        .groupBy(*DIMENSIONS)
        .agg(
            F.count("*").alias("n"),
            F.sum("latency").alias("sum"),
            F.min("latency").alias("min"),
            F.max("latency").alias("max"),
        )
        .persist()
    )
    levels = {"5s": base}
    for name, width in list(LEVELS.items())[1:]:
        base = merged(base.withColumn("bucket", F.floor(F.col("bucket") / width) * width)).persist()
        levels[name] = base
    return levels


def write_rollups(levels: dict[str, DataFrame], out: Path) -> None:
    for name, level in levels.items():
        target = f"{out}/rollups/level={name}"
        if name in BY_HOUR:
            hours = level.withColumn("hour", F.floor(F.col("bucket") / 3600))
            hours.repartition(4, "hour").write.partitionBy("hour").parquet(target)
        else:
            level.coalesce(1).write.parquet(target)


def merge_rollups(spark: SparkSession, levels: dict[str, DataFrame], out: Path) -> None:
    """Read what the late events touch, merge, write beside it and swap the folders."""
    for name, level in levels.items():
        target, fresh = out / "rollups" / f"level={name}", out / "rollups" / f"fresh-{name}"
        stored = spark.read.parquet(str(target))
        columns = [*DIMENSIONS, "n", "sum", "min", "max"]
        if name in BY_HOUR:
            hour = F.floor(F.col("bucket") / 3600).alias("hour")
            hours = [row[0] for row in level.select(hour).distinct().collect()]
            old = stored.where(F.col("hour").isin(hours)).select(columns)
            new = merged(old.union(level.select(columns))).withColumn("hour", hour)
            new.repartition(2, "hour").write.partitionBy("hour").parquet(str(fresh))
            for each in hours:
                shutil.rmtree(target / f"hour={each}", ignore_errors=True)
                (fresh / f"hour={each}").rename(target / f"hour={each}")
            shutil.rmtree(fresh)
        else:
            merged(stored.select(columns).union(level.select(columns))).coalesce(1).write.parquet(str(fresh))
            shutil.rmtree(target)
            fresh.rename(target)


def run(spark: SparkSession, job: dict[str, Any], out: Path) -> None:
    events = parse(spark, job["slices"])
    judged = gate(events)
    if job["mode"] == "late":
        judged = gate_history(spark, judged, out)
    judged = judged.persist()
    counts = judged.groupBy("slice", "outcome").count().collect()
    outcomes: list[dict[str, int]] = [{} for _ in job["slices"]]
    for number, outcome, count in counts:
        outcomes[number][outcome] = count
    (out / "outcomes.json").write_text(json.dumps(outcomes))
    accepted = judged.where("outcome = 'accepted'")
    levels = roll_up(accepted)
    if job["mode"] == "late":
        merge_rollups(spark, levels, out)
    else:
        write_rollups(levels, out)
    write_raw(accepted, out)


def main() -> None:
    spark = start(SETTINGS)
    started = time.perf_counter()
    run(spark, json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
    print(json.dumps({"seconds": time.perf_counter() - started}))
    spark.stop()


if __name__ == "__main__":
    main()
