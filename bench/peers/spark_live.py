"""Streaming windows in Spark Structured Streaming on local[2], as anybody would write it; run as `… JOB OUT`.

Three queries over the same files, one file for each trigger, a watermark of 30 s, Parquet out. A last file
with one row of a day later closes what is open. One small file goes through all of them before any is timed.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.peers.local_spark import start
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

SCHEMA = "id STRING, ts LONG, key STRING, region STRING, value LONG, amount DECIMAL(18,2)"
DAY_MS = 86_400_000
FIRST = 1_700_000_000  # seconds; time of the first file


def read(spark: SparkSession, folder: Path) -> DataFrame:
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))
    return rows.withColumn("at", F.timestamp_millis("ts")).withWatermark("at", "30 seconds")


def tumbling(rows: DataFrame) -> DataFrame:
    return (
        rows.groupBy(F.window("at", "1 minute"), "key")
        .agg(F.count("*").alias("n"), F.sum("amount").alias("total"), F.max("value").alias("top"))
        .select(F.col("window.start").alias("start"), "key", "n", "total", "top")
    )


def sliding(rows: DataFrame) -> DataFrame:
    return (
        rows.groupBy(F.window("at", "5 minutes", "1 minute"), "region")
        .agg(F.count("*").alias("n"), F.sum("amount").alias("total"), F.avg("value").alias("mean"))
        .select(F.col("window.start").alias("start"), "region", "n", "total", "mean")
    )


def session(rows: DataFrame) -> DataFrame:
    return (
        rows.groupBy(F.session_window("at", "30 seconds").alias("session"), "key")
        .agg(F.count("*").alias("n"), F.sum("amount").alias("total"))
        .select(F.col("session.start").alias("start"), "key", "n", "total")
    )


KINDS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "tumbling": tumbling,
    "sliding": sliding,
    "session": session,
}


def run(spark: SparkSession, files: list[str], out: Path) -> tuple[float, float]:
    """Seconds of all three queries side by side, and the longest trigger of any."""
    shutil.rmtree(out, ignore_errors=True)
    folder = out / "in"
    folder.mkdir(parents=True)
    for number, file in enumerate(files):
        _place(Path(file).read_text(), folder, number)
    last = json.loads(Path(files[-1]).read_text().splitlines()[-1])
    closing = {**last, "id": "closing", "ts": last["ts"] + DAY_MS, "key": "closing", "region": "closing"}
    _place(json.dumps(closing) + "\n", folder, len(files))
    began = time.perf_counter()
    queries = [one(spark, kind, folder, out) for kind in KINDS]
    for query in queries:
        query.awaitTermination()
    took = time.perf_counter() - began
    triggers = [p["durationMs"]["triggerExecution"] for q in queries for p in q.recentProgress]
    return took, max(triggers) / 1000


def _place(text: str, folder: Path, number: int) -> None:
    """Files are read in the order of their times."""
    path = folder / f"{number:04d}.json"
    path.write_text(text)
    os.utime(path, (FIRST + number, FIRST + number))


def one(spark: SparkSession, kind: str, folder: Path, out: Path) -> StreamingQuery:
    return (
        KINDS[kind](read(spark, folder))
        .writeStream.outputMode("append")
        .format("parquet")
        .option("checkpointLocation", str(out / f"{kind}-checkpoint"))
        .trigger(availableNow=True)
        .start(str(out / kind))
    )


def main() -> None:
    job: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    spark, out = start({"spark.sql.shuffle.partitions": "2"}), Path(sys.argv[2])
    run(spark, [job["warm"]], out / "warm")
    seconds, longest = run(spark, job["files"], out / "live")
    print(json.dumps({"seconds": seconds, "longest": longest}))
    spark.stop()


if __name__ == "__main__":
    main()
