"""The cases about windows: built from accepted rows, rebuilt for a late slice, ticked among many, in memory.

Each gives one result or more and prints nothing; what one of them measured, the next may use.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from bench import readings
from bench.check_windows import digests
from bench.measure import PeakMemory, Timing, run_peer
from bench.ours_windows import IDLE, WindowStore
from bench.readings import Bounded
from bench.running import GB, OUT, Bench, Result, best, faster, within
from bench.work import START
from tidemill.model.time import DAY, HOUR

LATE_ROWS = 2_000
LATE_WINDOWS = 3
TICK_ROWS = 100
PEER = "windows"


@dataclass
class Wholes:
    """What `windows_whole` measured, and the warehouse it left for `windows_late`."""

    store: WindowStore
    ours: list[float]
    peers: list[Timing]
    slices: list[Bounded]


def _store(bench: Bench, name: str, settings: str = "") -> WindowStore:
    assert bench.ours is not None
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return WindowStore(folder, bench.ours.session(), settings)


def _warm(bench: Bench) -> None:
    """Spark ends workers that have been idle for a minute, as they are while others are measured."""
    if not bench.plan.on_spark:
        return
    store = _store(bench, "windows-warm", "engine: {inline_bytes: 0}\n")
    store.accept(readings.days(24, 100))
    store.build()
    store.close()


def _wholes(bench: Bench) -> Wholes:
    if bench.windows is None:
        bench.windows = _whole(bench)
    return bench.windows


def _whole(bench: Bench) -> Wholes:
    plan = bench.plan
    slices = readings.days(plan.windows, plan.window_rows)
    ours: list[float] = []
    peers: list[Timing] = []
    truth: dict[str, str] | None = None
    for turn in range(plan.repeats):
        bench.say(f"windows, {turn + 1} of {plan.repeats}")
        _warm(bench)
        store = _store(bench, "windows")
        store.accept(slices)
        os.sync()  # what was accepted is not the builders' to write
        built = store.build()
        ours.append(built.seconds)
        assert sorted(built.windows) == [START + n * HOUR for n in range(plan.windows)], "not each once"
        found = digests({start: [path] for start, path in store.datasets().items()}, OUT / "files.json")
        truth = _agree("tidemill", truth, found, plan.windows * plan.window_rows)
        if turn + 1 < plan.repeats:
            store.close()
        if turn or not plan.on_spark:
            continue  # once: it takes six times as long as ours
        out = OUT / "windows-peer"
        shutil.rmtree(out, ignore_errors=True)
        job = {"raw": store.raw_files(), "span": HOUR}
        peers.append(run_peer(PEER, json.dumps(job), out))
        folders = {int(folder.name.partition("=")[2]): folder for folder in out.glob("windows/window=*")}
        found = digests({at: folder.glob("*.parquet") for at, folder in folders.items()}, OUT / "files.json")
        truth = _agree("pyspark", truth, found, plan.windows * plan.window_rows)
    return Wholes(store, ours, peers, slices)


def _agree(who: str, truth: dict[str, str] | None, found: dict[str, str], rows: int) -> dict[str, str]:
    have = sum(int(digest.partition(":")[0]) for digest in found.values())
    if have != rows:
        raise RuntimeError(f"{who}: {have} rows in windows instead of {rows}")
    wrong = [start for start in truth or {} if truth and found.get(start) != truth[start]]
    if wrong:
        raise RuntimeError(f"{who}: {len(wrong)} windows differ from the other results, {wrong[0]} first")
    return found


def windows_whole(bench: Bench) -> list[Result]:
    done, plan = _wholes(bench), bench.plan
    what = f"; {plan.windows} windows of {plan.window_rows} accepted rows, leases, syncs and events included"
    if not done.peers:
        return [Result("windows_whole", min(done.ours), None, None, None, True, "s", note=what)]
    return [faster("windows_whole vs pyspark", min(done.ours), best(done.peers), 1.0, what)]


def windows_late(bench: Bench) -> list[Result]:
    """A slice that arrives a day after all windows were built and touches three of them."""
    done = _wholes(bench)
    seconds, whole_ticks = [], []
    store, rows = done.store, sum(each.rows for each in done.slices)
    arrival = done.slices[-1].arrival + DAY
    hours = range(5, bench.plan.windows - LATE_WINDOWS, 7 * LATE_WINDOWS)
    for number in range(2 * bench.plan.repeats):
        late = readings.late(number, hours[number % len(hours)], LATE_ROWS, arrival, LATE_WINDOWS)
        arrival += HOUR
        if number % 2:
            built = store.load([late])
            whole_ticks.append(built.seconds)
        else:
            store.accept([late])
            built = store.build()
            seconds.append(built.seconds)
        touched = [late.bounds.start + n * HOUR for n in range(LATE_WINDOWS)]
        assert sorted(built.windows) == touched, f"rebuilt {len(built.windows)} windows instead of 3"
        rows += late.rows
    found = digests({start: [path] for start, path in store.datasets().items()}, OUT / "files.json")
    _agree("tidemill", None, found, rows)
    store.close()
    bench.windows = None
    note = f"3 windows of {bench.plan.windows}; landing and accepting included {min(whole_ticks):.2f} s"
    return [within("windows_late", min(seconds), min(done.ours), 0.02, "s", note)]


def windows_tick(bench: Bench) -> list[Result]:
    """Ticks that accept a slice and rebuild the one window it touches, among few windows and among many."""
    _warm(bench)
    stores: dict[int, WindowStore] = {}
    times: dict[int, list[float]] = {}
    for windows in (bench.plan.few_built, bench.plan.many_built):
        bench.say(f"{windows} built windows")
        store = stores[windows] = _store(bench, f"windows-{windows}")
        store.fill(windows)
        times[windows] = []
    mills = {windows: store.mill(windows=True) for windows, store in stores.items()}
    for number in range(bench.plan.ticks + 1):  # the first one opens tables
        for windows, store in stores.items():
            hour = windows * (number + 1) // (bench.plan.ticks + 2)
            arrival = store.clock() + HOUR
            store.land(mills[windows], [readings.fresh(number, hour, TICK_ROWS, arrival)])
            began = time.perf_counter()
            report = mills[windows].tick()
            took = (time.perf_counter() - began) * 1000
            assert [outcome.key.start for outcome in report.builds] == [hour * HOUR], report.builds
            if number:
                times[windows].append(took)
            assert mills[windows].tick().idle
    for store in stores.values():
        store.close()
    few, many = (statistics.median(found) for found in times.values())
    note = f"{bench.plan.many_built} built windows and 1 stale against {bench.plan.few_built} and 1"
    return [within("windows_tick", many, few, 3.0, "ms", f"{note}; median of {bench.plan.ticks}")]


def windows_memory(bench: Bench) -> list[Result]:
    """One window of many rows, built by a process of its own, against one of a tenth."""
    peaks: dict[int, Mapping[str, float]] = {}
    for rows in (bench.plan.large_window // 10, bench.plan.large_window):
        bench.say(f"a window of {rows} rows")
        slices = readings.one_hour(rows)
        store = _store(bench, "windows-memory", "engine: {inline_bytes: 0}\n" if bench.plan.on_spark else "")
        store.accept(slices)
        store.close()
        readings.discard(slices)
        peaks[rows] = _built_alone(store, slices[-1].arrival + IDLE, rows)
    shutil.rmtree(OUT / "windows-memory")
    small, large = peaks.values()
    note = f"{bench.plan.large_window} rows ({large['seconds']:.1f} s) against a tenth of them, RSS"
    return [
        within(case, large[of], small[of], 1.5, "GB", f"{note}, {what}")
        for case, of, what in (
            ("windows_memory", "tree", "all processes"),
            ("windows_memory_worker", "worker", "the Python worker alone"),
        )
    ]


def _built_alone(store: WindowStore, now: int, rows: int) -> Mapping[str, float]:
    command = [sys.executable, "-m", "bench.ours_windows", str(store.folder), str(now), store.settings]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with PeakMemory(process.pid) as memory:
        printed, complaint = process.communicate()
    if process.returncode:
        raise RuntimeError(f"the window was not built:\n{complaint}")
    told = json.loads(printed.splitlines()[-1])
    assert (told["windows"], told["rows"]) == (1, rows), told
    return {"tree": memory.peak / GB, "worker": memory.worker / GB, "seconds": told["seconds"]}
