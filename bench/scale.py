"""`python -m bench.scale [--events N …] [--tasks N …]`: what each stage of a round costs.

A whole job at several sizes and numbers of tasks: CPU seconds of all processes by stage, bytes and files by
folder of the warehouse, commits, and statements of the state. Wall time is not used, so that a busy machine
gives about the same numbers. `extrapolate` is arithmetic over them, printed with its terms.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import psutil
from pyspark.sql import SparkSession

from bench import work
from bench.ours import Warehouse
from tidemill.engine.session import SessionSettings, start_session
from tidemill.storage.state.sqlite import connect

RATE = 1_000_000  # events a second
STORED = 100e12  # bytes of a warehouse
MICRO = 1e6
FOLDERS = ("slices", "raw", "rollups", "gate", "quarantine")
LANDING, REST = "land", "commit, state and driver"
STAGES = {"stage": "read and check", "gate": "gate", "write": "write raw", "tiles": "rollups"}


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one whole job."""

    tasks: int
    events: int
    input_bytes: int
    cpu: dict[str, float]  # seconds by stage
    bytes: dict[str, int]  # by folder of the warehouse
    files: dict[str, int]
    commits: int
    statements: int

    @property
    def per_event(self) -> float:
        """CPU microseconds for each event."""
        return sum(self.cpu.values()) / self.events * MICRO


class CpuByStage(logging.Handler):
    """Reads the CPU time of all processes when a job of the engine ends, and counts it for its stage."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.spent: dict[str, float] = {}
        self._last = cpu_seconds()

    def emit(self, record: logging.LogRecord) -> None:
        label = str(record.args[0]).split()[0] if isinstance(record.args, tuple) and record.args else ""
        self.count(STAGES.get(label, REST))

    def count(self, stage: str) -> None:
        """What was used since the last time belongs to this stage."""
        now = cpu_seconds()
        self.spent[stage] = self.spent.get(stage, 0.0) + now - self._last
        self._last = now


def cpu_seconds() -> float:
    """Of this process and all that it started, also of those that have ended."""
    total = 0.0
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue  # it ended between the two calls
    return total


@contextmanager
def traced(statements: list[str]) -> Iterator[None]:
    """Every statement on a state that is opened inside is added to the list."""

    def traced_connection(path: Path) -> sqlite3.Connection:
        made = connect(path)
        made.set_trace_callback(statements.append)
        return made

    with patch("tidemill.storage.state.sqlite.connect", traced_connection):
        yield


@contextmanager
def watched() -> Iterator[CpuByStage]:
    """The CPU time of what runs inside, by stage."""
    jobs = logging.getLogger("tidemill.engine.jobs")
    handler, level, passes = CpuByStage(), jobs.level, jobs.propagate
    jobs.addHandler(handler)
    jobs.setLevel(logging.DEBUG)
    jobs.propagate = False
    try:
        yield handler
    finally:
        jobs.removeHandler(handler)
        jobs.setLevel(level)
        jobs.propagate = passes


def measure(spark: SparkSession, tasks: int, events: int, folder: Path) -> Cost:
    """The whole job into an empty warehouse."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    whole = work.batch(events)
    statements: list[str] = []
    with traced(statements):
        store = Warehouse(folder, spark, "engine: {inline_bytes: 0}")
    statements.clear()
    with traced(statements), watched() as cpu:
        store.clock.set(max(each.arrival for each in whole.slices))
        landed = store.mill.ingest("requests", [each.file for each in whole.slices])
        cpu.count(LANDING)
        store.mill.tick()
        cpu.count(REST)
    counted = len(statements)
    accepted = sum(store.mill.slice(one.entry.id).counts.accepted for one in landed.landed)
    assert accepted == sum(each.get("accepted", 0) for each in whole.truth), "not what the feed says"
    store.close()
    held = {name: _files(folder / "warehouse" / name) for name in FOLDERS}
    return Cost(
        tasks,
        whole.records,
        sum(Path(each.file).stat().st_size for each in whole.slices),
        cpu.spent,
        {name: sum(path.stat().st_size for path in files) for name, files in held.items()},
        {name: len(files) for name, files in held.items()},
        sum(1 for path in (folder / "warehouse").rglob("_delta_log/*.json")),
        counted,
    )


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and "_delta_log" not in path.parts]


# -- what follows from it


def tables(costs: Sequence[Cost]) -> Iterator[str]:
    """The measurements, as Markdown."""
    stages = list(dict.fromkeys(stage for cost in costs for stage in cost.cpu))
    yield f"| tasks | events | {' | '.join(stages)} | CPU in all |"
    yield "|---" * (len(stages) + 3) + "|"
    for cost in costs:
        each = " | ".join(f"{cost.cpu.get(stage, 0.0) / cost.events * MICRO:.2f}" for stage in stages)
        yield f"| {cost.tasks} | {cost.events:,} | {each} | {cost.per_event:.2f} us |"
    yield ""
    yield f"| tasks | events | {' | '.join(FOLDERS)} | commits | statements |"
    yield "|---" * (len(FOLDERS) + 4) + "|"
    for cost in costs:
        each = " | ".join(f"{cost.bytes[name] / cost.events:.1f} B, {cost.files[name]}" for name in FOLDERS)
        yield f"| {cost.tasks} | {cost.events:,} | {each} | {cost.commits} | {cost.statements} |"


def extrapolate(costs: Sequence[Cost]) -> Iterator[str]:
    """What the largest jobs say of `RATE` and `STORED`, with every term; of the numbers of tasks, the one at
    which an event costs most."""
    by_tasks = {cost.tasks: [each for each in costs if each.tasks == cost.tasks] for cost in costs}
    marginal = {tasks: _one_more(of) for tasks, of in by_tasks.items()}
    cpu = max(marginal.values())
    largest = max(costs, key=lambda cost: cost.events)
    said = ", ".join(f"{each:.2f} us ({tasks} tasks)" for tasks, each in marginal.items())
    yield f"CPU of one more event: {said}; the most is {cpu:.2f} us"
    yield f"cores at {RATE:,} events/s: {RATE:,} x {cpu:.2f} us = {RATE * cpu / MICRO:.1f}"
    size = largest.input_bytes / largest.events
    yield f"input at that rate: {RATE:,} x {size:.0f} B = {RATE * size / 1e6:.0f} MB/s"
    kept = {name: largest.bytes[name] / largest.events for name in FOLDERS}
    whole = sum(kept.values())
    said = " + ".join(f"{name} {each:.1f}" for name, each in kept.items())
    yield f"stored for each event: {said} = {whole:.1f} B"
    held = STORED / whole
    days = held / RATE / 86400
    yield f"events in {STORED / 1e12:.0f} TB: {STORED:.0e} B / {whole:.1f} B = {held:.2e}, {days:.1f} days"
    yield f"ids among them: {held:.2e} x {kept['gate']:.1f} B = {held * kept['gate'] / 1e12:.1f} TB"


def _one_more(costs: Sequence[Cost]) -> float:
    """CPU microseconds that an event adds to a large job: what the largest took beyond the smallest."""
    small, large = (pick(costs, key=lambda cost: cost.events) for pick in (min, max))
    if large.events == small.events:
        return large.per_event
    more = sum(large.cpu.values()) - sum(small.cpu.values())
    return more / (large.events - small.events) * MICRO


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--events", type=int, nargs="+", default=[100_000, 400_000])
    parser.add_argument("--tasks", type=int, nargs="+", default=[1, 2, 4])
    asked = parser.parse_args()
    folder = work.WORK / "out" / "scale"
    costs: list[Cost] = []
    for tasks in asked.tasks:
        spark = start_session(SessionSettings(cores=tasks, memory="1g", app="scale"))
        measure(spark, tasks, min(asked.events), folder)  # workers start, kernels are loaded
        costs += [measure(spark, tasks, events, folder) for events in asked.events]
        spark.stop()
    shutil.rmtree(folder, ignore_errors=True)
    print("\n".join([*tables(costs), "", *extrapolate(costs)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
