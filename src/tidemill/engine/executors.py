"""Checks that the executors of a cluster can do the work: the same package, the same Python, the same files.

Done once, before the first job of a session that is not on this machine.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tidemill.engine.session import SessionSettings, is_connected, package_version, remote_of, starts_here
from tidemill.model.errors import MachineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HINT: Final = (
    "`tidemill bundle -o tidemill.tar.gz` packs what they need and prints the two settings to use; "
    "or install the same version of tidemill on every machine of the cluster"
)
_MISSING: Final = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
_KILLED: Final = "Python worker exited unexpectedly"
_ANSWER: Final = "host string, python string, version string, missing string, sees boolean"


def is_on_this_machine(session: SparkSession) -> bool:
    """Whether tasks run where the driver runs, so that they see the same files and packages."""
    return not is_connected(session) and str(session.sparkContext.master).startswith("local")


def runs_here(session: SparkSession | None, settings: SessionSettings) -> bool:
    """Whether tasks of this session, or of the one that these settings start, run on this machine."""
    if session is not None:
        return is_on_this_machine(session)
    return remote_of(settings) is None and starts_here(settings)


def check_executors(session: SparkSession, shared: Path | None) -> None:
    """MachineError when an executor lacks the package, has another version of it or of Python, or does not
    see the folder `shared`."""
    if is_on_this_machine(session):
        return
    tasks = 4 if is_connected(session) else max(2, int(session.sparkContext.defaultParallelism))
    probe = _probe(str(shared) if shared is not None and shared.is_dir() else "")
    probes = session.range(0, tasks, 1, tasks).mapInArrow(probe, _ANSWER)
    with executor_errors():
        answers = probes.toArrow().to_pylist()
    for answer in answers:
        problem = executor_problem(answer, shared)
        if problem is not None:
            raise problem


def executor_problem(answer: Mapping[str, object], shared: Path | None) -> MachineError | None:
    """What keeps the executor that gave this response from working; None: nothing."""
    where = f"executor on {answer['host']}"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if answer["missing"]:
        return MachineError(f"an executor has no module {answer['missing']!r}", where=where, hint=HINT)
    if answer["version"] != (own := package_version()):
        have = f"tidemill {answer['version']}, and this process {own}"
        return MachineError(f"an executor has {have}", where=where, hint=HINT)
    if answer["python"] != version:
        return MachineError(
            f"an executor runs Python {answer['python']}, and this process {version}",
            where=where,
            hint="set PYSPARK_PYTHON, or spark.pyspark.python in engine.conf, to the same version on both",
        )
    if not answer["sees"]:
        return MachineError(
            f"an executor does not see the warehouse {shared}",
            where=where,
            hint="put the warehouse on a file system that every machine of the cluster mounts at this path",
        )
    return None


@contextmanager
def executor_errors() -> Iterator[None]:
    """Turns the failure of a job because an executor lacks a module, or because its Python was killed, into a
    MachineError."""
    try:
        yield
    except Exception as error:
        if _KILLED in str(error):
            raise MachineError(
                "a Python worker of Spark has ended during a job",
                hint="if the machine has too little memory, the log of its kernel says so: lower "
                "engine.cores, engine.batch_bytes or engine.memory; otherwise `-vv` shows what Spark knows",
            ) from error
        missing = _MISSING.search(str(error))
        if missing is None:
            raise
        raise MachineError(f"an executor has no module {missing.group(1)!r}", hint=HINT) from error


def _probe(folder: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function that runs where this package may not exist: it is sent by value and imports inside."""

    def probe(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import importlib
        import os
        import socket
        import sys

        import pyarrow

        version, missing = "", ""
        try:
            for name in ("numpy", "numba", "duckdb", "deltalake", "orjson", "tidemill"):
                importlib.import_module(name)
            version = importlib.import_module("tidemill.engine.session").package_version()
        except ModuleNotFoundError as error:
            missing = str(error.name)
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        sees = not folder or os.path.isdir(folder)  # noqa: PTH112
        for batch in batches:
            for _ in range(batch.num_rows):
                values = [socket.gethostname(), python, version, missing, sees]
                names = ["host", "python", "version", "missing", "sees"]
                yield pyarrow.RecordBatch.from_arrays([pyarrow.array([v]) for v in values], names)

    return probe
