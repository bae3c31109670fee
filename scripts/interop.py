"""Runs the product with parts that nobody here wrote.

- Readers open the tables of a warehouse, and their rows are compared with ours: deltalake, Polars, DuckDB,
  and the official Delta connector of Spark, whose jars come from Maven's registry. It prints a line for each
  step of a warehouse's life.
- The demo, the walk over all points where a process can die, the oracles of the engine, the stories about a
  bucket and the services of the compose file run on a real S3 server (versitygw), which Go builds.

Without Maven's registry the connector is left out, without Go the server; the last lines say so. It is no
part of `make test`.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession
from tests.support import warehouse_location
from tests.support.interop_story import TableHistory, differences, tell
from tests.support.stock_readers import READERS, StockReader

from bench import s3_server

CONNECTOR: Final = "4.4.0"  # the first release for Spark 4.2
SCALA: Final = "2.13"
SPARK: Final = "spark"
TRAVELS: Final = ("expired", "old files gone")  # steps that keep files of earlier versions
ROOT: Final = Path(__file__).resolve().parent.parent
ABOUT_BUCKETS: Final = ("tests/pipeline/test_bucket.py", "tests/deploy/test_compose_runs.py")
IN_A_BUCKET: Final = (  # tests of any warehouse, with theirs in a bucket
    "tests/pipeline/test_crash.py",
    "tests/pipeline/test_engine_oracle.py",
    "tests/pipeline/test_whole_mill.py",
)


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


def told(step: str, story: TableHistory, readers: Mapping[str, StockReader]) -> int:
    """How many differences there are, each printed."""
    found = list(differences(story, {name: readers[name] for name in READERS}))
    if SPARK in readers:  # it takes seconds for each version: those of before are read twice
        found += differences(story, {SPARK: readers[SPARK]}, before=step in TRAVELS)
    rows = sum(len(rows) for _, rows in story.seen.values())
    same = f"{len(found)} differences" if found else "the same for all readers"
    print(f"{step:14} {len(story.seen):3} versions of tables, {rows:6} rows: {same}", flush=True)
    for one in found:
        print(f"  {one}", flush=True)
    return len(found)


def s3_program() -> tuple[str | None, str]:
    """The program of an S3 server, built if Go is here; or None, and why."""
    found = s3_server.program()
    if found is not None:
        return found, ""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        return None, f"skipped: no S3 server: neither Go is installed nor does {s3_server.VARIABLE} name one"
    print(f"building {s3_server.MODULE}, which takes some minutes", flush=True)
    done = subprocess.run(
        [go, "install", s3_server.MODULE],
        env={**os.environ, "GOBIN": str(s3_server.BUILT.parent)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode or not s3_server.BUILT.exists():
        last = (done.stderr.splitlines() or ["no reason given"])[-1]
        return None, f"skipped: no S3 server: Go does not build {s3_server.MODULE}: {last[:300]}"
    return str(s3_server.BUILT), ""


def on_a_bucket() -> tuple[bool, str]:
    """Whether all stories end well on the server, and what was left out."""
    program, skipped = s3_program()
    if program is None:
        return True, skipped
    address = f"s3://{s3_server.BUCKET}"
    with (
        tempfile.TemporaryDirectory() as folder,
        s3_server.running(program, Path(folder) / "objects") as server,
    ):
        demo = run(
            "-m", "examples.demo", f"{folder}/demo", "--warehouse", f"{address}/demo", **server.environment
        )
        placed = {**server.environment, warehouse_location.VARIABLE: f"{address}/tests"}
        walked = run_tests(*IN_A_BUCKET, **placed)
    told = run_tests("-m", "", *ABOUT_BUCKETS, **{s3_server.VARIABLE: program})
    return demo and walked and told, ""


def run_tests(*words: str, **environment: str) -> bool:
    return run("-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *words, **environment)


def run(*words: str, **environment: str) -> bool:
    """Whether Python ends well, run with these words."""
    print(f"bucket: {' '.join(words)}", flush=True)
    variables = {**os.environ, "PYTHONHASHSEED": "0", **environment}
    return subprocess.run([sys.executable, *words], cwd=ROOT, env=variables, check=False).returncode == 0


def main() -> int:
    logging.basicConfig(level=logging.ERROR)
    readers, skipped = with_spark()
    print(f"readers: {', '.join(readers)}; Spark {pyspark.__version__}, {connector()}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        found = sum(told(step, story, readers) for step, story in tell(Path(folder) / "shop"))
    print(
        f"interop: {found} differences" if found else "interop: every reader reads what we read", flush=True
    )
    stored, no_server = on_a_bucket()
    for line in filter(None, (skipped, no_server)):
        print(line)
    return 1 if found or not stored else 0


if __name__ == "__main__":
    sys.exit(main())
