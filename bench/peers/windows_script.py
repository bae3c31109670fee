"""The windows in plain PySpark on local[2]: `partitionBy`, as anybody would write it; run as `… JOB OUT`.

It is a yardstick: accepted rows in, one folder of Parquet per window out, and a crash leaves what it leaves.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from bench.peers.local_spark import start
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

SCHEMA = (
    "reading_id STRING, at LONG, network STRING, station STRING, temperature DECIMAL(18,1), humidity LONG, "
    "pressure DECIMAL(18,2), wind_speed DOUBLE, wind_direction LONG, rain DECIMAL(18,1), quality STRING, "
    "online BOOLEAN, note STRING"
)
ORDER = ["window", "event_time", "event_id", "tenant"]


def run(spark: SparkSession, job: dict[str, Any], out: Path) -> None:
    rows = (
        spark.read.parquet(*job["raw"])
        .select("event_time", "tenant", "event_id", F.from_json("payload", SCHEMA).alias("read"))
        .select("event_time", "tenant", "event_id", "read.*")
        .withColumn("window", F.floor(F.unix_micros("event_time") / job["span"]) * job["span"])
    )
    # No shuffle: a window lies within the one part of its day, so that it comes out as one file anyway.
    rows.sortWithinPartitions(*ORDER).write.partitionBy("window").parquet(str(out / "windows"))


def main() -> None:
    spark = start({})
    started = time.perf_counter()
    run(spark, json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
    print(json.dumps({"seconds": time.perf_counter() - started}))
    spark.stop()


if __name__ == "__main__":
    main()
