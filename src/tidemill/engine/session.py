"""Starts the Spark session, with the settings that exact results depend on.

Nothing else in Tidemill may create a session. A session that the caller passes in is never stopped, and its
settings are never changed.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidemill.model.errors import ConfigError, MachineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

MIN_JAVA = 17

EXACT: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""Settings of every session: instants, overflow and division depend on them."""

_EVERYWHERE: Final[Mapping[str, str]] = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.adaptive.enabled": "false",
    "spark.python.worker.reuse": "true",
}
_CONTEXT: Final[Mapping[str, str]] = {
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
# Workers allocate and free arrays of many megabytes all the time, NumPy's and Arrow's. In one heap they are
# reused; mapped each time, every page would be a page fault, and a large page is one fault in place of 512.
_MEMORY: Final[Mapping[str, str]] = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
_WORKERS: Final[Mapping[str, str]] = {
    f"spark.executorEnv.{name}": value for name, value in _MEMORY.items() if name not in os.environ
}
# On one machine the JVM only schedules: the work is done by Python workers, beside which its optimising
# compiler would take longer than what it compiles. JVM and workers answer each other in small messages;
# through TCP each task waits 40 ms for an acknowledgement that the other side delays.
_LOCAL: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss4m",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "tidemill.engine.worker_daemon",
}
_BY_SUBMIT: Final = "PYSPARK_GATEWAY_PORT"  # set by spark-submit, which has already chosen the master
_REMOTE: Final = "SPARK_REMOTE"


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Where Spark runs and what it may use, as `engine` in tidemill.yaml says."""

    master: str | None = None  # None: what spark-submit or SPARK_REMOTE chose, otherwise this machine
    cores: int | None = None
    memory: str = "1g"
    conf: Mapping[str, str] = field(default_factory=dict)
    app: str = "tidemill"
    local_dir: Path | None = None


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


def package_version() -> str:
    """The installed version of Tidemill; 0.0.0 in a source tree that was never installed."""
    try:
        return metadata.version("tidemill")
    except metadata.PackageNotFoundError:
        return "0.0.0"


def is_running() -> bool:
    """Whether this process already has a session, which `start_session` then returns."""
    if "pyspark" not in sys.modules:
        return False
    from pyspark import SparkContext  # lazy: reading commands never load Spark

    return SparkContext._active_spark_context is not None


def remote_of(settings: SessionSettings) -> str | None:
    """The Spark Connect server to use, `sc://host:port`; None: Spark is not used through Connect."""
    if settings.master is not None:
        return settings.master if settings.master.startswith("sc://") else None
    return os.environ.get(_REMOTE) or None


def starts_here(settings: SessionSettings) -> bool:
    """Whether a session that is started by these settings runs its tasks on this machine."""
    return _BY_SUBMIT not in os.environ and (settings.master or "local").startswith("local")


def start_session(settings: SessionSettings = SessionSettings()) -> SparkSession:  # noqa: B008 - it is frozen
    """The session that the settings ask for: on this machine, on a cluster, or through Spark Connect."""
    remote = remote_of(settings)
    if remote is not None:
        return _connected(remote, settings)
    require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # One thread per worker: Spark already runs one worker per core.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    submitted, is_local = _BY_SUBMIT in os.environ, starts_here(settings)
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession  # lazy: reading commands never load Spark

    builder = SparkSession.builder.appName(settings.app)
    chosen: dict[str, str] = {}
    if not submitted:
        chosen |= {**_CONTEXT, "spark.driver.memory": settings.memory}
        builder = builder.master(settings.master or f"local[{settings.cores or default_cores()}]")
    if is_local:
        chosen |= _LOCAL
        chosen["spark.sql.shuffle.partitions"] = str(2 * (settings.cores or default_cores()))
    elif settings.cores is not None:
        chosen["spark.cores.max"] = str(settings.cores)
    if settings.local_dir is not None:
        chosen["spark.local.dir"] = str(settings.local_dir)
    for key, value in {**_EVERYWHERE, **_WORKERS, **chosen, **settings.conf, **EXACT}.items():
        builder = builder.config(key, value)
    with _java_errors():
        session = builder.getOrCreate()
    _ends_quietly(session)
    if not submitted:
        session.sparkContext.setLogLevel(settings.conf.get("spark.log.level", "ERROR"))
    return session


def _ends_quietly(session: SparkSession) -> None:
    """PySpark has a thread that reads from the JVM and prints a stack trace when that ends."""

    def lost(_request: object, _address: object) -> None:
        log.debug("the connection to the JVM was lost", exc_info=True)

    vars(session.sparkContext._accumulatorServer)["handle_error"] = lost
    silence_gateway()


def silence_gateway() -> None:
    """py4j writes a stack trace to the root logger if the JVM ends, or Ctrl-C is pressed, while it waits for
    a response. The error that follows says so; the trace is logged at level DEBUG here."""
    root = logging.getLogger()
    if _is_not_of_gateway not in root.filters:
        root.addFilter(_is_not_of_gateway)


def _is_not_of_gateway(record: logging.LogRecord) -> bool:
    if record.name != "root" or Path(record.pathname).parent.name != "py4j":
        return True
    log.debug("py4j: %s", record.getMessage(), exc_info=record.exc_info)
    return False


@contextmanager
def _java_errors() -> Iterator[None]:
    """Turns the end of Java before Spark could be reached into a MachineError; Java itself prints why."""
    from pyspark.errors import PySparkRuntimeError  # lazy: reading commands never load Spark

    try:
        yield
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise MachineError(
            "Java ended before Spark had started",
            where=os.environ.get("JAVA_HOME") or shutil.which("java") or "",
            hint="look at what it printed (`-vv` shows all of it). Spark needs modules that a reduced "
            f"runtime lacks: point JAVA_HOME at a whole JDK, {MIN_JAVA} or newer; or engine.memory or "
            "engine.conf has something that Java refuses",
        ) from error


def is_alive(session: SparkSession) -> bool:
    """Whether the session can still run jobs: its JVM runs, and has not stopped it."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    if is_connected(session):
        return True
    context = session.sparkContext
    process = getattr(context._gateway, "proc", None)  # None: somebody else started the JVM
    if context._jsc is None or (process is not None and process.poll() is not None):
        return False
    try:
        return not context._jsc.sc().isStopped()
    except (Py4JError, OSError):
        return False


def stop_session(session: SparkSession) -> None:
    """Stop a session that was started here, whether or not its JVM still runs."""
    if is_alive(session):
        session.stop()
    else:
        forget_session(session)


def forget_session(session: SparkSession) -> None:
    """Make PySpark forget a session that is not alive, so that the next one gets a JVM of its own. There is
    no public way: PySpark keeps one JVM for the life of a process."""
    from pyspark import SparkContext  # lazy: reading commands never load Spark
    from pyspark.sql import SparkSession

    context = session.sparkContext
    if SparkContext._active_spark_context is not context:
        return  # somebody else in this process did
    with warnings.catch_warnings(), suppress(Exception):  # whatever its end had broken
        warnings.simplefilter("ignore")  # that the JVM could not be stopped is why this is called
        context.stop()
    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.kill()  # a JVM whose context has stopped is of no use either
        process.wait()


def _connected(remote: str, settings: SessionSettings) -> SparkSession:
    """A session of a Spark Connect server."""
    from pyspark.sql import SparkSession  # lazy: reading commands never load Spark

    try:
        builder = SparkSession.builder.remote(remote)
        for key, value in {**settings.conf, **EXACT}.items():
            builder = builder.config(key, value)
        return builder.getOrCreate()
    except ImportError as error:  # PySpark needs gRPC for this, which the classic way does not
        raise MachineError(
            f"Spark Connect ({remote}) needs packages that are not installed: {error}",
            hint="pip install 'pyspark[connect]', or unset SPARK_REMOTE and set engine.master",
        ) from error


def is_connected(session: SparkSession) -> bool:
    """Whether the session uses a Spark Connect server, and so has no context in this process."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def exact_session(session: SparkSession) -> SparkSession:
    """The session itself if it has the settings that exact results need; otherwise a new one on the same
    cluster that does. The given one is not changed."""
    wrong = {name: held for name, held in _held(session).items() if held != EXACT[name]}
    if not wrong:
        return session
    if is_connected(session):
        settings = ", ".join(f"{name} is {held}" for name, held in wrong.items())
        needed = "; ".join(f'spark.conf.set("{name}", "{EXACT[name]}")' for name in wrong)
        raise ConfigError(f"this Spark session would give other results: {settings}", hint=needed)
    own = session.newSession()
    for name, value in EXACT.items():
        own.conf.set(name, value)
    return own


def _held(session: SparkSession) -> dict[str, str]:
    return {name: str(session.conf.get(name, "")) for name in EXACT}
