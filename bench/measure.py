"""Peak memory of a tree of processes, and a peer run as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

ROOT = Path(__file__).resolve().parent.parent
EVERY = 0.05  # seconds between two samples
WORKERS = ("pyspark.daemon", "tidemill.engine.worker_daemon")  # what Python workers of Spark are started as


def resident(root: psutil.Process) -> tuple[int, int, int]:
    """Resident bytes of a process and all its descendants (pages they share count for each), of the largest
    Python worker of Spark among them, and of all but the workers: the driver, in Python and in the JVM."""
    total = largest = driver = 0
    try:
        tree = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0, 0, 0
    for process in tree:
        try:
            size = process.memory_info().rss
            total += size
            if any(name in WORKERS for name in process.cmdline()):
                largest = max(largest, size)
            else:
                driver += size
        except psutil.Error:
            continue  # it ended between the two calls
    return total, largest, driver


@dataclass
class PeakMemory:
    """Samples from another thread while the block runs; bytes of all processes, of one Python worker, and of
    the driver."""

    pid: int = field(default_factory=os.getpid)
    peak: int = 0
    worker: int = 0
    driver: int = 0

    def __enter__(self) -> Self:
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        root = psutil.Process(self.pid)
        while True:
            total, worker, driver = resident(root)
            self.peak, self.worker = max(self.peak, total), max(self.worker, worker)
            self.driver = max(self.driver, driver)
            if self._done.wait(EVERY):
                return


@dataclass(frozen=True, slots=True)
class Timing:
    work: float  # seconds inside the process, from when its libraries (and its session) are there
    process: float  # seconds with the start of the process included
    peak: int  # bytes


@dataclass(frozen=True, slots=True)
class Told:
    """What a script said in its last line, and what the process took."""

    said: dict[str, Any]
    process: float  # seconds
    peak: int  # bytes


def run_script(script: str, job: str, out: Path) -> Told:
    """Run `bench.peers.<script>` on the job; its results are in `out`."""
    out.mkdir(parents=True, exist_ok=True)
    told = out / "job.json"
    told.write_text(job)
    os.sync()  # what the run before left in the page cache is not this one's to write
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", f"bench.peers.{script}", str(told), str(out)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    with PeakMemory(process.pid) as memory:
        printed, complaint = process.communicate()
        took = time.perf_counter() - started
    if process.returncode:
        raise RuntimeError(f"peer {script} failed:\n{complaint}")
    return Told(json.loads(printed.splitlines()[-1]), took, memory.peak)


def run_peer(name: str, job: str, out: Path) -> Timing:
    """Run `bench.peers.<name>_script`, which does the job once."""
    told = run_script(f"{name}_script", job, out)
    return Timing(told.said["seconds"], told.process, told.peak)
