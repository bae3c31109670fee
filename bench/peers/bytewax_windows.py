"""Event-time tumbling windows in Bytewax, as its guide has them; run as `… JOB OUT`.

Everything that can be is in its favour: the rows are parsed and keyed in memory before the clock starts,
aggregates do not wait for order, nothing is recovered, no wall clock wakes windows of long ago, and of three
sizes of batches the one that is fastest counts. As one process, and as two that share nothing: each has the
rows of half of the keys before it starts.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from zlib import crc32

import bytewax.operators as op
import pyarrow as pa
import pyarrow.parquet as pq
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.operators import windowing as win
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import run_main

Row = tuple[datetime, int, int]  # when, cents, value
Folded = tuple[int, int, int]  # count, sum of cents, greatest value
Found = tuple[str, tuple[int, Folded]]  # key, number of the window
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
BATCHES = (1_000, 10_000, 100_000)  # rows; its own sources have 1,000, a slice is the last


class Rows(DynamicSource[tuple[str, Row]]):
    """Rows in memory, in order of arrival."""

    def __init__(self, rows: list[tuple[str, Row]], batch: int) -> None:
        self.rows = rows
        self.batch = batch

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Batches:
        return Batches(self.rows, self.batch)


class Batches(StatelessSourcePartition[tuple[str, Row]]):
    def __init__(self, rows: list[tuple[str, Row]], batch: int) -> None:
        self.left: Iterator[list[tuple[str, Row]]] = (
            rows[first : first + batch] for first in range(0, len(rows), batch)
        )

    def next_batch(self) -> Iterable[tuple[str, Row]]:
        batch = next(self.left, None)
        if batch is None:
            raise StopIteration
        return batch


class Kept(DynamicSink[Any]):
    def __init__(self, found: list[Any]) -> None:
        self.found = found

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Keeping:
        return Keeping(self.found)


class Keeping(StatelessSinkPartition[Any]):
    def __init__(self, found: list[Any]) -> None:
        self.found = found

    def write_batch(self, items: list[Any]) -> None:
        self.found.extend(items)


def nothing() -> Folded:
    return 0, 0, -1


def folded(so_far: Folded, row: Row) -> Folded:
    count, total, top = so_far
    _, amount, value = row
    return count + 1, total + amount, value if value > top else top


def merged(a: Folded, b: Folded) -> Folded:
    return a[0] + b[0], a[1] + b[1], max(a[2], b[2])


def flow(
    rows: list[tuple[str, Row]],
    batch: int,
    tolerance: timedelta,
    found: list[Found],
    late: list[object],
) -> Dataflow:
    still = datetime.now(UTC)
    clock: win.EventClock[Row] = win.EventClock(
        ts_getter=lambda row: row[0],
        wait_for_system_duration=tolerance,
        now_getter=lambda: still,  # or else the watermark would run on while rows of long ago are replayed …
        to_system_utc=lambda _: None,  # … and each window be woken up again and again
    )
    windower = win.TumblingWindower(align_to=EPOCH, length=MINUTE)
    dataflow = Dataflow("sales")
    stream = op.input("rows", dataflow, Rows(rows, batch))
    windows = win.fold_window("fold", stream, clock, windower, nothing, folded, merged, ordered=False)
    op.output("found", windows.down, Kept(found))
    op.output("late", windows.late, Kept(late))
    return dataflow


def read(files: list[str], part: int, parts: int) -> list[tuple[str, Row]]:
    rows: list[tuple[str, Row]] = []
    for file in files:
        with Path(file).open(encoding="utf-8") as lines:
            for line in lines:
                said: dict[str, Any] = json.loads(line)
                if crc32(said["key"].encode()) % parts == part:
                    at = datetime.fromtimestamp(said["ts"] / 1000, UTC)
                    rows.append((said["key"], (at, round(said["amount"] * 100), said["value"])))
    return rows


def write(found: list[Found], file: Path) -> None:
    """A window's id is its number, counted from `align_to`."""
    columns = [(number * 60_000_000, key, *values) for key, (number, values) in found]
    start, key, n, total, top = zip(*columns, strict=True)
    pq.write_table(pa.table({"start": start, "key": key, "n": n, "total": total, "top": top}), file)


def work(job: dict[str, Any], part: int, parts: int, out: Path, told: Connection) -> None:
    """One process: reads its rows, then runs with each size of batches that it is told, until it is 0."""
    rows, tolerance = read(job["files"], part, parts), timedelta(microseconds=job["tolerance"])
    gc.collect()
    gc.freeze()  # or else the collector would walk through all rows again and again
    told.send(len(rows))
    found: list[Found] = []
    while batch := told.recv():
        found = []
        late: list[object] = []
        began = time.perf_counter()
        run_main(flow(rows, batch, tolerance, found, late))
        told.send((began, time.perf_counter()))
        assert not late, f"{len(late)} rows were late"
    write(found, out / f"tumbling-{parts}-{part}.parquet")


def timed(workers: list[Connection], batch: int) -> float:
    """From when the first one starts to when the last one is done."""
    for worker in workers:
        worker.send(batch)
    began, ended = zip(*(worker.recv() for worker in workers), strict=True)
    return float(max(ended) - min(began))


def run(job: dict[str, Any], parts: int, out: Path) -> dict[str, Any]:
    workers, processes = [], []
    for part in range(parts):
        here, there = Pipe()
        process = Process(target=work, args=(job, part, parts, out, there))
        process.start()
        there.close()  # so that a process that died is noticed
        workers.append(here)
        processes.append(process)
    for worker in workers:
        worker.recv()
    sizes = job["batches"].get(str(parts), BATCHES)  # those that were the fastest before, if that is known
    tried = {batch: timed(workers, batch) for batch in sizes}
    batch = min(tried, key=lambda size: tried[size])
    seconds = [tried[batch], *(timed(workers, batch) for _ in range(job["repeats"] - 1))]
    for worker in workers:
        worker.send(0)
    for process in processes:
        process.join()
        assert process.exitcode == 0, process.exitcode
    return {"seconds": seconds, "batch": batch, "tried": tried}


def main() -> None:
    job: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps({parts: run(job, parts, Path(sys.argv[2])) for parts in (1, 2)}))


if __name__ == "__main__":
    main()
