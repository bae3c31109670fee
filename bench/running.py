"""One run of the benchmark: its plan, the contenders in turn, their times, and that they agree.

The best of the repetitions counts (peers on Spark run once), and no time counts before its result was
checked.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from bench import work
from bench.check import Outputs, as_json, differences, folder_outputs
from bench.contract import Ours, Store
from bench.measure import PeakMemory, Timing, run_peer
from bench.sales import DISORDER

if TYPE_CHECKING:
    from bench.windows import Wholes

OUT = work.WORK / "out"
GB = 1e9
PEERS = ("duckdb", "polars", "pyspark")
ONCE = frozenset({"pyspark"})  # peers so slow that a run is long enough to be repeatable


@dataclass(frozen=True, slots=True)
class Plan:
    """How much work; `--quick` is small and proves only that everything runs and agrees."""

    events: int = 2_000_000
    late: int = 10_000
    batches: int = 10
    tenants: int = 5_000
    repeats: int = 2
    queries: int = 21
    windows: int = 1_000
    window_rows: int = 2_000
    few_built: int = 100
    many_built: int = 100_000
    ticks: int = 9
    large_window: int = 5_000_000
    small_slices: int = 2_000
    posts: int = 2_000  # of 500 events
    single_posts: int = 10_000
    probes: int = 40
    thin_events: int = 300_000
    span_events: int = 2_000_000  # over a year
    hourly_events: int = 4_380
    thin_slices: int = 20_000
    vectors: int = 20_000
    deltas: int = 200_000
    live_slices: int = 200
    live_rows: int = 5_000  # of each of them
    gate_ids: tuple[int, ...] = (1_000_000, 10_000_000, 50_000_000)  # accepted before
    gate_batch: int = 1_000_000
    disorder: tuple[int, ...] = DISORDER  # per cent, of the cases about streaming
    on_spark: bool = True  # False: nothing is warmed up, no peer starts a JVM; for sizes too small to time


QUICK = Plan(
    events=200_000, late=1_000, batches=3, repeats=1,
    windows=100, many_built=10_000, ticks=3, large_window=500_000, small_slices=200,
    posts=200, single_posts=1_000, probes=5, vectors=2_000, deltas=20_000,
    thin_events=30_000, span_events=60_000, hourly_events=438, thin_slices=1_000, live_slices=40,
    live_rows=2_000, gate_ids=(100_000, 1_000_000, 5_000_000), gate_batch=100_000,
)  # fmt: skip
TINY = Plan(
    events=400, late=50, batches=2, tenants=20, repeats=1, queries=1, windows=48, window_rows=10, few_built=4,
    many_built=8, ticks=1, large_window=1_000, small_slices=100, posts=3, single_posts=20, probes=1,
    thin_events=60, span_events=60, hourly_events=30, thin_slices=30, vectors=20, deltas=200, live_slices=8,
    live_rows=50, gate_ids=(300, 2_000), gate_batch=100, disorder=(10,), on_spark=False,
)  # fmt: skip


class Skipped(Exception):  # noqa: N818 - it is no error
    """A case cannot run on this machine; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Result:
    """`ratio` is peer / ours where more is better (sense >=), ours / peer where less is (sense <=)."""

    case: str
    ours: float
    peer: float | None
    ratio: float | None
    target: float | None
    ok: bool
    unit: str
    sense: Literal[">=", "<=", ""] = ""
    note: str = ""


def faster(case: str, ours: float, peer: Timing, target: float | None, note: str = "") -> Result:
    """Ours against a peer by the stricter clock: the peer's start is not counted against it."""
    ratio = peer.work / ours
    said = f"{peer.process:.2f} s with its start, {peer.peak / GB:.2f} GB{note}"
    sense: Literal[">=", ""] = "" if target is None else ">="
    return Result(case, ours, peer.work, ratio, target, target is None or ratio >= target, "s", sense, said)


def within(case: str, ours: float, peer: float | None, target: float, unit: str, note: str = "") -> Result:
    """Ours against a limit: a share of `peer`, or the limit itself when there is none."""
    ratio = ours / peer if peer else None
    reached = ours if ratio is None else ratio
    return Result(case, ours, peer, ratio, target, reached <= target, unit, "<=", note)


@dataclass
class Bench:
    """One run: the session, what has been measured so far, and the plan."""

    plan: Plan
    ours: Ours | None
    say: Callable[[str], None]
    cold_start: float = 0.0
    peaks: list[int] = field(default_factory=list)  # of ours, whole job
    drivers: list[int] = field(default_factory=list)  # peak of the driver in each batch of `grow`
    parts: int = 0  # of ours, after the whole job
    wholes: dict[str, list[Timing]] = field(default_factory=dict)
    lates: dict[str, list[Timing]] = field(default_factory=dict)
    digests: dict[str, Mapping[str, object]] = field(default_factory=dict)
    flat: tuple[list[float], list[float]] | None = None
    windows: Wholes | None = None

    def warm_up(self) -> None:
        """Start the session and run a small job of the same kind: nothing is compiled on the clock."""
        if self.ours is None or not self.plan.on_spark:
            return
        self.cold_start = self.ours.start()
        small = work.batch(200_000)
        store = self.fresh("warm")
        store.load(small.slices)
        store.load(work.late(1_000, 200_000).slices)
        store.query()
        store.close()

    def fresh(self, name: str) -> Store:
        assert self.ours is not None
        folder = OUT / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return self.ours.open(folder)

    def check(self, who: str, stage: str, outputs: Outputs, truth: Sequence[Mapping[str, int]]) -> None:
        """Against the feed's own truth, and against whoever was first to finish this stage."""
        path = OUT / "outputs.json"
        path.write_text(as_json(outputs))
        done = subprocess.run(
            [sys.executable, "-m", "bench.check", str(path)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{who}: the results of {stage} cannot be read:\n{done.stderr}")
        found: dict[str, object] = json.loads(done.stdout)
        if found["layout"]:
            raise RuntimeError(f"{who}, {stage}: {found['layout']}")
        if found["outcomes"] != [dict(each) for each in truth]:
            raise RuntimeError(f"{who}, {stage}: the outcomes are not those of the feed")
        wrong = differences(self.digests.setdefault(stage, found), found)
        if wrong:
            raise RuntimeError(f"{who}, {stage}: {', '.join(wrong)} differ from the other results")

    @property
    def peers(self) -> tuple[str, ...]:
        return PEERS if self.plan.on_spark else tuple(name for name in PEERS if name != "pyspark")

    def compare(self, peers: Sequence[str]) -> None:
        """Whole job, then late slice, by ours and the peers in turn; runs only what has not run yet."""
        whole, late = work.batch(self.plan.events), work.late(self.plan.late, self.plan.events)
        new = [name for name in peers if name not in self.wholes]
        with_ours = self.ours is not None and "ours" not in self.wholes
        for turn in range(self.plan.repeats):
            if with_ours:
                self.one_of_ours(whole, late)
            for name in new if turn == 0 else [each for each in new if each not in ONCE]:
                self.say(f"{name}, {turn + 1} of {self.plan.repeats}")
                self.one_of_peers(name, whole, late)

    def one_of_ours(self, whole: work.Work, late: work.Work) -> None:
        self.say("tidemill")
        store = self.fresh("ours")
        with PeakMemory() as memory:
            took = store.load(whole.slices)
        self.peaks.append(memory.peak)
        self.parts = store.parts()
        self.wholes.setdefault("ours", []).append(Timing(took, took, memory.peak))
        self.check("tidemill", "whole job", store.outputs(), whole.truth)
        took = store.load(late.slices)
        self.lates.setdefault("ours", []).append(Timing(took, took, 0))
        self.check("tidemill", "late slice", store.outputs(), late.truth)
        store.close()

    def one_of_peers(self, name: str, whole: work.Work, late: work.Work) -> None:
        out = OUT / name
        shutil.rmtree(out, ignore_errors=True)
        for stage, mode, part, kept in (
            ("whole job", "whole", whole, self.wholes),
            ("late slice", "late", late, self.lates),
        ):
            kept.setdefault(name, []).append(run_peer(name, part.job(mode), out))
            outcomes = json.loads((out / "outcomes.json").read_text())
            self.check(name, stage, folder_outputs(out, outcomes), part.truth)

    def grow(self) -> tuple[list[float], list[float]]:
        """Seconds of each batch into one warehouse, and of late slices into the first day after them all."""
        if self.flat is None:
            store = self.fresh("flat")
            loads = []
            for number in range(self.plan.batches):
                batch = work.batch(self.plan.events, number=number)
                with PeakMemory() as memory:
                    loads.append(store.load(batch.slices))
                self.drivers.append(memory.driver)
                self.say(f"batch {number + 1} of {self.plan.batches}: {loads[-1]:.2f} s")
                if number:
                    batch.discard()
            lates = [
                store.load(work.late(self.plan.late, self.plan.events, number).slices)
                for number in range(self.plan.repeats)
            ]
            store.close()
            shutil.rmtree(OUT / "flat")
            self.flat = loads, lates
        return self.flat


def best(timings: Sequence[Timing]) -> Timing:
    return min(timings, key=lambda timing: timing.work)
