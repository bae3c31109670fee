"""Starts the Spark session with the settings that exact results depend on.

Nothing else in Tidemill may create a session; one that is handed in is used as it is and never stopped.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.model.errors import MachineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_JAVA = 17


def java_version() -> int | None:
    """Major version of the Java that Spark would start, or None when there is none."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not java:
        return None
    try:
        shown = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    except OSError:
        return None
    match = re.search(r'version "(\d+)(?:\.(\d+))?', shown.stderr + shown.stdout)
    if not match:
        return None
    major = int(match.group(1))
    return int(match.group(2) or 0) if major == 1 else major


def require_java() -> None:
    found = java_version()
    if found is None or found < MIN_JAVA:
        have = "no Java was found" if found is None else f"Java {found} was found"
        raise MachineError(
            f"Spark needs Java {MIN_JAVA} or newer; {have}",
            hint="install a JDK 17 or newer and put it on PATH, or point JAVA_HOME at it",
        )


def default_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_running() -> bool:
    """Whether this process has a session already. Then `start_session` gives that one."""
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


def start_session(
    cores: int | None = None, memory: str = "1g", app: str = "tidemill", local_dir: Path | None = None
) -> SparkSession:
    """A local session; on a cluster the caller makes the session and hands it in instead."""
    require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Workers take and give back arrays of many megabytes all the time. Kept in the heap they are reused;
    # mapped anew each time, every page of them would be a page fault.
    os.environ.setdefault("MALLOC_MMAP_MAX_", "0")
    os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(1 << 30))
    # One thread per worker: Spark already runs one worker per core.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(f"local[{cores or default_cores()}]")
        .appName(app)
        .config("spark.driver.memory", memory)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.speculation", "false")
        .config("spark.python.worker.reuse", "true")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.ansi.enabled", "true")
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.shuffle.partitions", str(2 * (cores or default_cores())))
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -Xss4m")
    )
    if local_dir is not None:
        builder = builder.config("spark.local.dir", str(local_dir))
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
