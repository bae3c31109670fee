"""Has readers that nobody here wrote open the tables of a warehouse, and compares their rows with ours:
deltalake, Polars, DuckDB, and the official Delta connector of Spark, whose jars come from Maven's registry.

Prints a line for each step of a warehouse's life and each reader. Without Maven's registry the connector is
left out, and the last lines say so. It is no part of `make test`.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession
from tests.support.interop_story import Story, differences, tell
from tests.support.stock_readers import READERS, StockReader

CONNECTOR: Final = "4.4.0"  # the first release for Spark 4.2
SCALA: Final = "2.13"
SPARK: Final = "spark"
TRAVEL: Final = "expired"  # the last step before files go


def connector() -> str:
    """The package that fits the installed Spark."""
    line = ".".join(pyspark.__version__.split(".")[:2])
    return f"io.delta:delta-spark_{line}_{SCALA}:{CONNECTOR}"


def session() -> SparkSession:
    """A Spark with the connector, and nothing of ours."""
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.jars.packages", connector())
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.databricks.delta.snapshotPartitions", "1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )


def by_spark(spark: SparkSession) -> StockReader:
    def read(root: Path, version: int | None) -> pa.Table:
        reader = spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        return reader.load(str(root)).toArrow()

    return read


def with_spark() -> tuple[Mapping[str, StockReader], str]:
    """All readers, and why one is left out."""
    try:
        return {**READERS, SPARK: by_spark(session())}, ""
    except Exception as error:  # noqa: BLE001 - whatever keeps it from starting is told
        first = (str(error).splitlines() or [type(error).__name__])[0]
        return READERS, f"skipped: Spark with {connector()} does not start: {first[:300]}"


def told(step: str, story: Story, readers: Mapping[str, StockReader]) -> int:
    """How many differences there are, each printed."""
    found = list(differences(story, {name: readers[name] for name in READERS}))
    if SPARK in readers:  # it takes seconds for each version: those of before are read once
        found += differences(story, {SPARK: readers[SPARK]}, before=step == TRAVEL)
    rows = sum(len(rows) for _, rows in story.seen.values())
    same = f"{len(found)} differences" if found else "the same for all readers"
    print(f"{step:14} {len(story.seen):3} versions of tables, {rows:6} rows: {same}", flush=True)
    for one in found:
        print(f"  {one}", flush=True)
    return len(found)


def main() -> int:
    logging.basicConfig(level=logging.ERROR)
    readers, skipped = with_spark()
    print(f"readers: {', '.join(readers)}; Spark {pyspark.__version__}, {connector()}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        found = sum(told(step, story, readers) for step, story in tell(Path(folder) / "shop"))
    print(f"interop: {found} differences" if found else "interop: every reader reads what we read")
    if skipped:
        print(skipped)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
