"""The case about packing: many small slices into large parts, against pyarrow with no bookkeeping.

Gives one result and prints nothing; no time counts before every row was found to be the same.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from bench import readings
from bench.measure import Timing, run_peer
from bench.ours_windows import PROJECT, STREAM
from bench.readings import SMALL_PER_DAY, Bounded
from bench.running import OUT, Bench, Result, best, faster
from tidemill.mill import Mill
from tidemill.model.time import DAY, format_instant
from tidemill.storage.tables.table import Table
from tidemill.testing import FakeClock

ROWS = 1_000  # of a slice
TOGETHER = 10  # slices that one tick accepts
PEER = "packing"
SETTINGS = f"    pack: {{enabled: false, slices: {SMALL_PER_DAY}}}\n"


def pack(bench: Bench) -> list[Result]:
    """Everybody begins with the accepted rows in small parts, and puts those of a day into one."""
    assert bench.ours is not None
    slices = readings.small(bench.plan.small_slices, ROWS)
    accepted = OUT / "pack"
    _accept(accepted, bench.ours.session(), slices)
    bench.say(f"{len(slices)} slices are in {sum(map(len, _parts(accepted).values()))} parts")
    ours: list[float] = []
    peers: list[Timing] = []
    for turn in range(bench.plan.repeats):
        bench.say(f"pack, {turn + 1} of {bench.plan.repeats}")
        folder = OUT / "pack-ours"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(accepted, folder)
        out = OUT / "pack-peer"
        shutil.rmtree(out, ignore_errors=True)
        peers.append(run_peer(PEER, json.dumps(_parts(folder)), out))
        os.sync()  # what was copied is not ours to write
        ours.append(_pack(folder, bench.ours.session(), slices[-1].arrival, len(slices)))
        _agree(_parts(folder), out, len(slices) * ROWS)
    rows = len(slices) * ROWS
    note = f"; {rows / min(ours):,.0f} rows/s beside {rows / best(peers).work:,.0f}, {len(slices)} slices"
    return [faster("pack vs pyarrow", min(ours), best(peers), 0.5, note)]


def _accept(folder: Path, spark: SparkSession, slices: Sequence[Bounded]) -> None:
    folder.mkdir(parents=True)
    (folder / "tidemill.yaml").write_text(PROJECT + SETTINGS)
    clock = FakeClock(slices[0].arrival)
    with Mill.open(folder, spark=spark, clock=clock) as mill:
        for number, each in enumerate(slices, start=1):
            clock.set(each.arrival)
            mill.ingest(STREAM, [each.file], start=each.bounds.start, end=each.bounds.end)
            if number % TOGETHER == 0:
                mill.tick()
        mill.run_until_idle()


def _pack(folder: Path, spark: SparkSession, now: int, slices: int) -> float:
    """Seconds."""
    with Mill.open(folder, spark=spark, clock=FakeClock(now)) as mill:
        began = time.perf_counter()
        done = mill.pack(STREAM)
        took = time.perf_counter() - began
    assert sum(len(one.slices) for one in done) == slices, "not all are packed"
    return took


def _parts(folder: Path) -> dict[str, list[str]]:
    """Files of raw with rows, by the day that each keeps to."""
    table = Table.existing(folder / "warehouse" / "raw" / STREAM)
    assert table is not None
    found: dict[str, list[str]] = {}
    for part in table.snapshot().parts:
        if part.rows:
            first, last = (int(str(ends["event_time"])) // DAY for ends in (part.mins, part.maxs))
            assert first == last, "a full day shares its part with another"
            found.setdefault(format_instant(first * DAY)[:10], []).append(str(table.root / part.path))
    return found


def _agree(ours: dict[str, list[str]], peer: Path, rows: int) -> None:
    """Each day is one part, and both have the same rows in the same order."""
    found = 0
    for day, files in ours.items():
        if len(files) != 1:
            raise RuntimeError(f"{day} is in {len(files)} parts")
        mine = pq.read_table(files[0], partitioning=None)
        theirs = pq.read_table(peer / f"{day}.parquet", partitioning=None)
        if not mine.equals(theirs.select(mine.column_names).cast(mine.schema)):
            raise RuntimeError(f"the rows of {day} differ")
        found += mine.num_rows
    if found != rows:
        raise RuntimeError(f"{found} rows instead of {rows}")
