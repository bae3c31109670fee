"""Streaming windows as a plain PySpark batch on local[2], as anybody would write it; run as `… JOB OUT`.

It is a yardstick: accepted rows in, one Parquet folder per kind out, no order, no watermark, no ids, no
revisions. Each kind runs once before it is timed, so that nothing is compiled on the clock.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from bench.peers.local_spark import start
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

FIELDS = {
    "key": "STRING",
    "region": "STRING",
    "value": "LONG",
    "amount": "DECIMAL(18,2)",
}
GAP = "30 seconds"


def read(spark: SparkSession, raw: list[str], *names: str) -> DataFrame:
    """Only the fields that are needed are looked for in the payload."""
    schema = ", ".join(f"{name} {FIELDS[name]}" for name in names)
    rows = spark.read.parquet(*raw)
    return rows.select("event_time", F.from_json("payload", schema).alias("read")).select(
        "event_time", "read.*"
    )


def tumbling(spark: SparkSession, raw: list[str]) -> DataFrame:
    return (
        read(spark, raw, "key", "value", "amount")
        .groupBy(F.window("event_time", "1 minute"), "key")
        .agg(F.count("*").alias("n"), F.sum("amount").alias("total"), F.max("value").alias("top"))
        .select(F.col("window.start").alias("start"), "key", "n", "total", "top")
    )


def sliding(spark: SparkSession, raw: list[str]) -> DataFrame:
    return (
        read(spark, raw, "region", "value", "amount")
        .groupBy(F.window("event_time", "5 minutes", "1 minute"), "region")
        .agg(F.count("*").alias("n"), F.sum("amount").alias("total"), F.avg("value").alias("mean"))
        .select(F.col("window.start").alias("start"), "region", "n", "total", "mean")
    )


def session(spark: SparkSession, raw: list[str]) -> DataFrame:
    return (
        read(spark, raw, "key", "amount")
        .groupBy(F.session_window("event_time", GAP).alias("session"), "key")
        .agg(F.count("*").alias("n"), F.sum("amount").alias("total"))
        .select(F.col("session.start").alias("start"), "key", "n", "total")
    )


KINDS = {"tumbling": tumbling, "sliding": sliding, "session": session}


def run(spark: SparkSession, kind: str, raw: list[str], out: Path) -> float:
    folder = out / kind
    shutil.rmtree(folder, ignore_errors=True)
    began = time.perf_counter()
    KINDS[kind](spark, raw).write.parquet(str(folder))
    return time.perf_counter() - began


def main() -> None:
    job: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    spark, out = start({"spark.sql.shuffle.partitions": "8"}), Path(sys.argv[2])
    seconds: dict[str, list[float]] = {}
    for kind in KINDS:
        run(spark, kind, job["raw"], out)
        seconds[kind] = [run(spark, kind, job["raw"], out) for _ in range(job["repeats"])]
    print(json.dumps({"seconds": seconds}))
    spark.stop()


if __name__ == "__main__":
    main()
