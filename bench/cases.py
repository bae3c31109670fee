"""The cases of the benchmark: what is measured, against what, and what we promised.

Each gives one result or more and prints nothing; what one of them measured, the next may use.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench import work
from bench.bucket import bucket
from bench.chains import chains
from bench.gate_runs import gate_flat
from bench.gateway import gateway, gateway_visible
from bench.measure import run_peer
from bench.metrics import filter_all, metrics_kinds, query_raw, search_selective
from bench.packing import pack
from bench.raw_size import raw_size
from bench.running import GB, OUT, Bench, Result, best, faster, within
from bench.spans import spans
from bench.sparse import hourly, many_slices, year
from bench.startup import startup
from bench.streaming import streaming_live, streaming_ordered, streaming_windows
from bench.windows import windows_late, windows_memory, windows_tick, windows_whole


def whole_job(bench: Bench) -> list[Result]:
    bench.compare(bench.peers)
    ours = best(bench.wholes["ours"]).work
    targets: dict[str, float | None] = {"duckdb": 1.0, "polars": None, "pyspark": 8.0}
    return [
        faster(f"whole_job vs {name}", ours, best(bench.wholes[name]), targets[name]) for name in bench.peers
    ]


def floor(bench: Bench) -> list[Result]:
    """The whole job against what it takes to parse the lines and write one file, with no semantics."""
    bench.compare(())
    ours = best(bench.wholes["ours"]).work
    whole = work.batch(bench.plan.events)
    timings = []
    for _ in range(bench.plan.repeats):
        out = OUT / "floor"
        shutil.rmtree(out, ignore_errors=True)
        timings.append(run_peer("floor", whole.job("whole"), out))
    least = best(timings)
    note = f"parse and one zstd Parquet, no semantics; {least.process:.2f} s with its start"
    return [within("floor", ours, least.work, 2.0, "s", note)]


def late_slice(bench: Bench) -> list[Result]:
    peers = [name for name in bench.peers if name in bench.wholes] or ["duckdb"]
    bench.compare(peers)
    ours = best(bench.lates["ours"]).work
    return [
        faster(f"late_slice vs {name}", ours, best(bench.lates[name]), 1.0 if name == "duckdb" else None)
        for name in peers
    ]


def peak_memory(bench: Bench) -> list[Result]:
    bench.compare(())
    return [within("peak_memory", max(bench.peaks) / GB, None, 3.5, "GB", "whole job, all processes, RSS")]


def flat_cost(bench: Bench) -> list[Result]:
    loads, _ = bench.grow()
    note = " ".join(f"{seconds:.2f}" for seconds in loads)
    return [within("flat_cost", loads[-1], loads[1], 1.25, "s", f"batches: {note}")]


def late_after_20m(bench: Bench) -> list[Result]:
    bench.compare(())
    _, lates = bench.grow()
    return [within("late_after_20m", min(lates), best(bench.lates["ours"]).work, 1.25, "s")]


def driver_memory(bench: Bench) -> list[Result]:
    """The largest the driver was up to the last batch, beside the first batch."""
    bench.grow()
    first, most = bench.drivers[0] / GB, max(bench.drivers) / GB
    events = f"{bench.plan.events:,} and {bench.plan.events * bench.plan.batches:,} events"
    return [within("driver_memory", most, first, 1.3, "GB", f"driver, in Python and in the JVM; {events}")]


def many_tenants(bench: Bench) -> list[Result]:
    bench.compare(())
    many = work.batch(bench.plan.events, tenants=bench.plan.tenants)
    times, parts = [], 0
    for _ in range(bench.plan.repeats):
        store = bench.fresh("tenants")
        times.append(store.load(many.slices))
        parts = store.parts()
        store.close()
    few = best(bench.wholes["ours"]).work
    return [
        within("many_tenants", min(times), few, 1.5, "s", f"{bench.plan.tenants} tenants against 3"),
        within("many_tenants_files", parts, bench.parts, 1.0, "files"),
    ]


def cold_start(bench: Bench) -> list[Result]:
    note = "session and first small job"
    return [Result("cold_start", bench.cold_start, None, None, None, True, "s", note=note)]


def peers_only(bench: Bench) -> list[Result]:
    """What the peers take on this machine, without ours."""
    bench.compare(bench.peers)
    return [
        Result(f"{case}: {name}", 0.0, best(timings).work, None, None, True, "s", "",
               f"{best(timings).process:.2f} s with its start, {max(t.peak for t in timings) / GB:.2f} GB")
        for case, kept in (("whole_job", bench.wholes), ("late_slice", bench.lates))
        for name, timings in kept.items()
    ]  # fmt: skip


CASES: dict[str, Callable[[Bench], list[Result]]] = {
    "cold_start": cold_start,
    "startup": startup,
    "whole_job": whole_job,
    "floor": floor,
    "raw_size": raw_size,
    "peak_memory": peak_memory,
    "late_slice": late_slice,
    "metrics_kinds": metrics_kinds,
    "query_raw": query_raw,
    "search_selective": search_selective,
    "filter_all": filter_all,
    "spans": spans,
    "many_tenants": many_tenants,
    "flat_cost": flat_cost,
    "late_after_20m": late_after_20m,
    "driver_memory": driver_memory,
    "gate_flat": gate_flat,
    "bucket": bucket,
    "windows_whole": windows_whole,
    "windows_late": windows_late,
    "windows_tick": windows_tick,
    "windows_memory": windows_memory,
    "pack": pack,
    "streaming_windows": streaming_windows,
    "streaming_ordered": streaming_ordered,
    "streaming_live": streaming_live,
    "year": year,
    "hourly": hourly,
    "many_slices": many_slices,
    "gateway": gateway,
    "gateway_visible": gateway_visible,
    "chains": chains,
}


def clean() -> None:
    """Results of contenders are not kept; the input is (see `make clean`)."""
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)


def save(results: Sequence[Result], run: Mapping[str, object], path: Path) -> None:
    """`run` says what was run, on what, and how long each case took."""
    rows = [
        {name: getattr(result, name) for name in Result.__dataclass_fields__ if getattr(result, name) != ""}
        for result in results
    ]
    path.write_text(json.dumps({"run": run, "results": rows}, indent=1) + "\n")
