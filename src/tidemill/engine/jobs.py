"""The one way to run a kernel on Spark: units in, small Arrow results out.

A kernel is a module-level function `(unit) -> rows`; large data never passes through here: kernels read
slices and parts themselves and write staged files. Spark distributes the units and retries failed ones, so
two attempts at one unit may run at once: a kernel must never leave a half-written file under its final name.
"""

from __future__ import annotations

import gc
import logging
import os
import pickle
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from tidemill.engine.executors import check_executors, executor_errors
from tidemill.engine.session import (
    SessionSettings,
    default_cores,
    exact_session,
    forget_session,
    is_alive,
    is_connected,
    is_running,
    remote_of,
    start_session,
    stop_session,
)
from tidemill.model.errors import MachineError, StorageError, TidemillError, as_tidemill_error
from tidemill.model.names import SHARED_STAGING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

Unit = TypeVar("Unit")
Row = TypeVar("Row")

_is_frozen = False  # in a worker: see `_freeze_modules`

_RESULT = pa.schema([("unit", pa.int64()), ("row", pa.binary())])


class Engine:
    """Owns the session: started at the first job, stopped on close unless it was passed in."""

    def __init__(
        self,
        session: SparkSession | None = None,
        settings: SessionSettings = SessionSettings(),  # noqa: B008 - it is frozen
        *,
        inline_bytes: int = 0,
        shared: Path | None = None,
        on_start: Callable[[str, str | None], None] | None = None,
    ) -> None:
        """`on_start` is called with the master and the address of the web UI of a session that is used."""
        self._inline_bytes = inline_bytes
        self._session = None if session is None else exact_session(session)
        self._is_callers = session is not None
        self._passed_in = self._is_callers  # or started by somebody else in this process
        self._settings = settings
        self._shared = shared  # a folder that every executor must see
        self._on_start = on_start
        self._checked = False
        self._parallelism: int | None = None
        self._lock = threading.Lock()

    @property
    def session(self) -> SparkSession:
        with self._lock:
            if self._session is not None and not is_alive(self._session):
                self._forget(self._session)
            if self._session is None:
                self._passed_in = is_running()  # if it was started elsewhere, it is also stopped there
                self._session = exact_session(start_session(self._settings))
                self._parallelism = None
            if not self._checked:
                check_executors(self._session, self._shared)
                self._checked = True
                if self._on_start is not None:
                    self._on_start(_master_of(self._session, self._settings), self.ui)
            return self._session

    def _forget(self, session: SparkSession) -> None:
        """Leave a session whose JVM was killed or has ended, so that another is started; only that of the
        caller cannot be replaced."""
        if self._is_callers:
            raise MachineError(
                "the Spark session that was passed in has ended",
                hint="start another and open the mill with it; if nobody stopped it, its JVM was killed: "
                "look for its last words in the log of the driver, and for too little memory",
            )
        log.warning("the JVM of Spark has ended; starting another")
        forget_session(session)
        self._session, self._checked = None, False

    @property
    def parallelism(self) -> int:
        """How many units can run at once."""
        if self._session is None:
            return self._settings.cores or default_cores()
        connected = is_connected(self._session)
        if not connected and not str(self._session.sparkContext.master).startswith("local"):
            return int(self._session.sparkContext.defaultParallelism)  # grows as executors join
        if self._parallelism is None and connected:
            self._parallelism = _default_partitions(self._session)
        elif self._parallelism is None:
            self._parallelism = int(self._session.sparkContext.defaultParallelism)
        return self._parallelism

    @property
    def ui(self) -> str | None:
        """The address of Spark's web UI; None if there is no session, or it has none."""
        if self._session is None or is_connected(self._session):
            return None
        return self._session.sparkContext.uiWebUrl

    def run(
        self,
        kernel: Callable[[Unit], Iterable[Row]],
        units: Sequence[Unit],
        label: str,
        size: int | None = None,
    ) -> list[Row]:
        """Rows of `kernel(unit)` for all units, in the order of the units.

        `size` is about how many bytes of files they read: work that is too small for Spark is done here, by
        the same kernel on threads. Errors that a user or operator can fix are raised as they were; anything
        else is a bug and is raised as Spark reports it.
        """
        if not units:
            return []
        if size is not None and size <= self._inline_bytes:
            began = time.perf_counter()
            here = self._here(kernel, units)
            log.debug("%s: %d units here in %.3f s", label, len(units), time.perf_counter() - began)
            return here
        from pyspark import cloudpickle  # lazy: small work never loads Spark

        # By value: a unit may carry a function that only this process has (an event-time parser).
        blobs: list[bytes] = [cloudpickle.dumps(unit) for unit in units]  # type: ignore[no-untyped-call]

        shared = os.environ.get(SHARED_STAGING)

        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            if shared:
                os.environ[SHARED_STAGING] = shared
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    yield from _results(index, kernel, blobs[index])
            _freeze_modules()

        session = self.session
        began = time.perf_counter()
        tasks = tasks_for(len(units), self.parallelism)
        frame = session.range(0, len(units), 1, tasks).mapInArrow(task, "unit long, row binary")
        rows: list[tuple[int, bytes]] = []
        with _jvm_errors(session), _named(session, label):
            for batch in frame.toArrow().to_batches():
                rows.extend(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True))
        rows.sort(key=lambda pair: pair[0])
        log.debug("%s: %d units in %.3f s", label, len(units), time.perf_counter() - began)
        out: list[Row] = []
        for _, blob in rows:
            value = pickle.loads(blob)  # noqa: S301 - written by our own task a moment ago
            if isinstance(value, TidemillError):
                raise value
            out.append(value)
        return out

    def _here(self, kernel: Callable[[Unit], Iterable[Row]], units: Sequence[Unit]) -> list[Row]:
        if len(units) == 1:  # a thread for it would only cost
            return _rows(kernel, units[0])
        with ThreadPoolExecutor(min(len(units), self.parallelism)) as pool:
            return [row for rows in pool.map(partial(_rows, kernel), units) for row in rows]

    def close(self) -> None:
        with self._lock:
            if self._session is not None and not self._passed_in:
                stop_session(self._session)
            self._session = None
            self._checked = False


@contextmanager
def _jvm_errors(session: SparkSession) -> Iterator[None]:
    """Turns whatever a job fails with when its JVM ends into a MachineError."""
    try:
        yield
    except Exception as error:
        if is_alive(session):
            raise
        raise MachineError(
            "the JVM of Spark has ended during a job",
            hint="the next job starts another. If it ends again, the machine may have too little memory: "
            "see the log of its kernel, and lower engine.memory or engine.cores",
        ) from error


@contextmanager
def _named(session: SparkSession, label: str) -> Iterator[None]:
    """Gives the jobs inside it a name in Spark's web UI."""
    if is_connected(session):
        tag = re.sub(r"[^A-Za-z0-9_-]+", "-", f"tidemill {label}")
        session.addTag(tag)
    else:
        session.sparkContext.setJobDescription(f"tidemill {label}")
    try:
        with executor_errors():
            yield
    finally:
        if is_connected(session):
            session.removeTag(tag)


def _master_of(session: SparkSession, settings: SessionSettings) -> str:
    if is_connected(session):
        return remote_of(settings) or "sc://"
    return str(session.sparkContext.master)


def _default_partitions(session: SparkSession) -> int:
    """How many tasks a Spark Connect server gives a job that asks for none: its cores."""
    from pyspark.sql import functions as f  # lazy: reading commands never load Spark

    return max(1, session.range(0, 4096).select(f.spark_partition_id()).distinct().count())


def _rows(kernel: Callable[[Unit], Iterable[Row]], unit: Unit) -> list[Row]:
    try:
        return list(kernel(unit))
    except MemoryError as error:
        raise as_tidemill_error(error) from error
    except OSError as error:  # a full disk, a missing file: not a bug
        raise StorageError(
            f"cannot go on: {error.strerror or str(error).splitlines()[0]}",
            where=str(error.filename or ""),
            hint="look at the disk and its free space, then run the same again; "
            "`tidemill repair --explain` says which files of the warehouse are damaged or gone",
        ) from error


def _freeze_modules() -> None:
    """Take what a worker holds after its first task, mostly modules, out of garbage collection: a worker
    of Spark collects garbage after each task, and looked at half a million objects for it."""
    global _is_frozen
    if not _is_frozen:
        gc.collect()
        gc.freeze()
        _is_frozen = True


def _results(index: int, kernel: Callable[[Unit], Iterable[Row]], blob: bytes) -> Iterator[pa.RecordBatch]:
    unit: Unit = pickle.loads(blob)  # noqa: S301 - pickled by the driver of this job
    rows: Sequence[object]
    try:
        rows = _rows(kernel, unit)
    except TidemillError as error:
        rows = [error]
    yield pa.RecordBatch.from_arrays(
        [pa.array([index] * len(rows), pa.int64()), pa.array([pickle.dumps(r) for r in rows], pa.binary())],
        schema=_RESULT,
    )


def tasks_for(units: int, cores: int) -> int:
    """A task costs some 40 ms where Spark reaches its Python workers through TCP, so a few units share one;
    many are distributed more finely."""
    return min(units, cores if units <= 8 * cores else 4 * cores)


def spread(sizes: Sequence[int], groups: int) -> list[list[int]]:
    """Indices of `sizes` in at most `groups` consecutive runs of about the same total."""
    total, target = sum(sizes), max(1, -(-sum(sizes) // max(1, groups)))
    out: list[list[int]] = []
    current: list[int] = []
    filled = 0
    for index, size in enumerate(sizes):
        if current and filled + size / 2 > target * (len(out) + 1) and len(out) < groups - 1:
            out.append(current)
            current = []
        current.append(index)
        filled += size
    if current:
        out.append(current)
    assert total == sum(sizes[i] for group in out for i in group)
    return out


def balanced(sizes: Sequence[int], groups: int) -> list[list[int]]:
    """Indices of `sizes` in at most `groups` groups of about the same total: each size, the largest first,
    goes to the group that has least."""
    out: list[list[int]] = [[] for _ in range(max(1, min(groups, len(sizes))))]
    filled = [0] * len(out)
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        least = filled.index(min(filled))
        out[least].append(index)
        filled[least] += max(1, sizes[index])
    return [sorted(group) for group in out if group]
