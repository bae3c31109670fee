"""The cases about event time: streaming windows from accepted rows, rows in order, and both as slices come.

Each gives one result or more and prints nothing; results count only if they are exactly the truth.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.check_streaming import check
from bench.measure import run_script
from bench.ours_streaming import ON_SPARK, WINDOWS, Live, StreamStore
from bench.running import GB, OUT, Bench, Plan, Result, within
from bench.sales import SLICES, TOLERANCE, Sales

SPARK_TARGET = 0.6
BYTEWAX_TARGET = 5.0
LIVE_TARGET = 4.0
TICK_TARGET = 1.0  # seconds
FLAT_TARGET = 1.25
BESIDE_LIVE = 10  # per cent of disorder, of the run beside Structured Streaming and the one of many slices
WARM_ROWS = 40_000
MIB = 1 << 20


def _store(bench: Bench, name: str, settings: str = "") -> StreamStore:
    assert bench.ours is not None
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return StreamStore(folder, bench.ours.session(), settings)


def _warm(bench: Bench) -> None:
    """Spark ends workers that have been idle for a minute, as they are while others are measured."""
    if not bench.plan.on_spark:
        return
    store = _store(bench, "streaming-warm", ON_SPARK)
    store.accept(Sales(WARM_ROWS).slices(0))
    for kind in WINDOWS:
        store.compute(kind, kind)
    store.close()


def _rate(rows: int, seconds: float) -> str:
    return f"{rows / seconds:,.0f} rows/s"


# -- windows, from what is accepted


def streaming_windows(bench: Bench) -> list[Result]:
    """Each kind, in each degree of disorder: ours, the same aggregation as a batch, and Bytewax."""
    sizes: dict[str, int] = {}
    return [result for disorder in bench.plan.disorder for result in _windows(bench, disorder, sizes)]


def _windows(bench: Bench, disorder: int, sizes: dict[str, int]) -> list[Result]:
    """`sizes`: of the batches that Bytewax was fastest with, by the number of processes, once known."""
    plan = bench.plan
    slices = Sales(plan.events).slices(disorder)
    bench.say(f"streaming windows, {disorder} % disorder")
    store = _store(bench, "streaming")
    store.accept(slices)
    os.sync()  # what was accepted is not the windows' to write
    _warm(bench)
    ours: dict[str, float] = {}
    for turn in range(plan.repeats):
        for kind in WINDOWS:
            took, results = store.compute(f"{kind}_{turn}", kind)
            check("tidemill", kind, plan.events, results)
            ours[kind] = min(took, ours.get(kind, took))
    raw = store.raw_files()
    store.close()
    found = _beside_spark(disorder, ours, raw, plan) if plan.on_spark else []
    bench.say("bytewax")
    files = [each.file for each in slices]
    return found + with_bytewax(disorder, ours["tumbling"], files, plan.events, sizes)


def _beside_spark(disorder: int, ours: dict[str, float], raw: Sequence[str], plan: Plan) -> list[Result]:
    peers = _spark(raw, plan.events)
    return [
        _beside(f"streaming_{kind}_{disorder} vs pyspark", ours[kind], peers[kind], plan.events, SPARK_TARGET)
        for kind in WINDOWS
    ]


def with_bytewax(
    disorder: int, ours: float, files: Sequence[str], rows: int, sizes: dict[str, int]
) -> list[Result]:
    """Tumbling windows beside it; when it is not installed, a result that says so."""
    case = f"streaming_tumbling_{disorder} vs bytewax"
    if importlib.util.find_spec("bytewax") is None:
        missing = "no peer: Bytewax is not installed, there are no wheels of it for Python 3.13 or newer"
        return [Result(case, ours, None, None, None, True, "s", note=missing)]
    said = _bytewax(files, rows, sizes)
    sizes.update({name: one["batch"] for name, one in said.items()})
    how = {name: f"; batches of {one['batch']}, its rows parsed before" for name, one in said.items()}
    best = {name: min(one["seconds"]) for name, one in said.items()}
    return [
        _beside(case, ours, best["1"], rows, BYTEWAX_TARGET, how["1"]),
        _beside(f"{case} x 2", ours, best["2"], rows, None, f"{how['2']}, two processes by key"),
    ]


def _beside(case: str, ours: float, peer: float, rows: int, target: float | None, how: str = "") -> Result:
    ratio = peer / ours
    sense: Literal[">=", ""] = "" if target is None else ">="
    note = f"{_rate(rows, ours)} beside {_rate(rows, peer)}{how}"
    return Result(case, ours, peer, ratio, target, target is None or ratio >= target, "s", sense, note)


def _spark(raw: Sequence[str], rows: int) -> dict[str, float]:
    """Seconds of each kind, the second of two runs."""
    out = _empty("streaming-pyspark")
    told = run_script("pyspark_windows", json.dumps({"raw": raw, "repeats": 1}), out)
    for kind in WINDOWS:
        check("pyspark", kind, rows, pq.read_table(out / kind))
    return {kind: min(seconds) for kind, seconds in told.said["seconds"].items()}


def _bytewax(files: Sequence[str], rows: int, sizes: Mapping[str, int]) -> dict[str, Any]:
    """By the number of processes: `seconds`, and the size of `batch` that they were reached with. Each of its
    three sizes runs once, in the first degree of disorder; in the others, the one that was fastest there."""
    out = _empty("streaming-bytewax")
    batches = {name: [size] for name, size in sizes.items()}
    job = {"files": files, "tolerance": TOLERANCE, "repeats": 1, "batches": batches}
    told = run_script("bytewax_windows", json.dumps(job), out)
    for processes in told.said:
        parts = [pq.read_table(path) for path in sorted(out.glob(f"tumbling-{processes}-*.parquet"))]
        check("bytewax", "tumbling", rows, pa.concat_tables(parts))
    return told.said


def _empty(name: str) -> Path:
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    return folder


# -- order, and as it comes


def streaming_ordered(bench: Bench) -> list[Result]:
    """All rows in order of event time with the watermarks between them, as `tail --ordered` reads them."""
    rows = bench.plan.events
    found = []
    for disorder in bench.plan.disorder:
        bench.say(f"in order, {disorder} % disorder")
        store = _store(bench, "streaming")
        store.accept(Sales(rows).slices(disorder))
        took = store.ordered()
        store.close()
        assert took.rows == rows, "not all rows came out"
        note = f"{_rate(rows, took.seconds)}, {took.watermarks} watermarks"
        found.append(
            Result(f"streaming_ordered_{disorder}", took.seconds, None, None, None, True, "s", note=note)
        )
    return found


def streaming_live(bench: Bench) -> list[Result]:
    """A tick for each slice, with all three windows declared: landing, accepting, windows and a stop. Twenty
    ticks are a measure of their own: each disorder runs once, one of them beside Structured Streaming."""
    found = []
    for disorder in bench.plan.disorder:
        bench.say(f"as it comes, {disorder} % disorder")
        run = _live(bench, bench.plan.events, disorder, SLICES)
        case = f"streaming_live_{disorder}"
        note = (
            f"{_rate(bench.plan.events, run.seconds)}, {100 * run.windows / run.seconds:.0f} % of it in "
            f"three windows; buffer peak {max(run.buffered)} rows, {run.peak_bytes / MIB:.2f} MiB"
        )
        found.append(Result(case, run.seconds, None, None, None, True, "s", note=note))
        if disorder == BESIDE_LIVE:
            found.append(within(f"{case}_longest_tick", max(run.ticks), None, TICK_TARGET, "s"))
            found += _beside_structured_streaming(bench, case, run) if bench.plan.on_spark else []
    return [*found, *_flat(bench)]


def _live(bench: Bench, rows: int, disorder: int, slices: int) -> Live:
    _warm(bench)
    store = _store(bench, "streaming")
    run = store.live(Sales(rows).slices(disorder, slices))
    for kind in WINDOWS:
        check("tidemill, slice by slice", kind, rows, store.results(kind))
    store.close()
    return run


def _beside_structured_streaming(bench: Bench, case: str, run: Live) -> list[Result]:
    rows = bench.plan.events
    bench.say("structured streaming")
    out = _empty("streaming-structured")
    files = [each.file for each in Sales(rows).slices(BESIDE_LIVE)]
    warm = Sales(WARM_ROWS).slices(0)[0].file
    told = run_script("spark_live", json.dumps({"files": files, "warm": warm}), out)
    for kind in WINDOWS:
        check("structured streaming", kind, rows, _closed(pq.read_table(out / "live" / kind)))
    how = f"; its longest trigger {told.said['longest']:.2f} s"
    peer = told.said["seconds"]
    return [_beside(f"{case} vs structured streaming", run.seconds, peer, rows, LIVE_TARGET, how)]


def _closed(found: pa.Table) -> pa.Table:
    """Without the row that closed all windows."""
    group = found.column("region" if "region" in found.column_names else "key")
    return found.filter(pc.not_equal(group, "closing"))


def _flat(bench: Bench) -> list[Result]:
    """Many slices: neither a tick nor the memory nor the buffer grows with what came before."""
    plan = bench.plan
    bench.say(f"{plan.live_slices} slices")
    run = _live(bench, plan.live_slices * plan.live_rows, BESIDE_LIVE, plan.live_slices)
    quarter = max(1, plan.live_slices // 4)
    ticks = sorted(run.ticks[quarter : 2 * quarter]), sorted(run.ticks[-quarter:])
    early, late = (each[len(each) // 2] for each in ticks)
    early_memory, late_memory = max(run.resident[: 2 * quarter]), max(run.resident[-quarter:])
    early_rows, late_rows = max(run.buffered[: 2 * quarter]), max(run.buffered[-quarter:])
    note = f"median tick of the last quarter of {plan.live_slices} slices, and of the second"
    return [
        within("streaming_live_flat_ticks", late, early, FLAT_TARGET, "s", note),
        within("streaming_live_flat_memory", late_memory / GB, early_memory / GB, FLAT_TARGET, "GB"),
        within("streaming_live_flat_buffer", late_rows, early_rows, FLAT_TARGET, "rows"),
    ]
