"""The case about the memory of the gate: what a batch costs beside a million accepted ids, and beside more.

Runs are written as batches and merges leave them; the gate itself is the kernel of a round. CPU seconds
count, and none before every outcome was compared with what was made.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bench.running import OUT, Bench, Result, within
from tidemill.formats.key_runs import hash_keys
from tidemill.raw.accept.gate import GateUnit, KeyedChunk, gate
from tidemill.raw.accept.id_runs import FAN_IN
from tidemill.raw.accept.run_files import write_run
from tidemill.storage.ipc import write_ipc

GROWTH = 1.3  # of the cost per event, at most
TENANT = "acme"
DIGITS = 20  # of an id
EVERY_REPEATED, EVERY_CHANGED = 100, 1000  # of the events of a probe: sent before, and with other content

Words = NDArray[np.uint64]
Numbers = NDArray[np.int64]


def gate_flat(bench: Bench) -> list[Result]:
    """CPU microseconds of the gate for each event, with few accepted ids and with many."""
    folder = OUT / "gate"
    costs: dict[bool, list[float]] = {True: [], False: []}
    for ids in bench.plan.gate_ids:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        files = _history(folder, ids, bench.plan.gate_batch)
        for recent, found in costs.items():
            since = max(0, ids - bench.plan.gate_ids[0]) if recent else 0
            probe = _Probe.made(folder, since, ids, bench.plan.gate_batch)
            tries = [probe.cost(files) for _ in range(bench.plan.repeats + 1)]
            found.append(min(tries[1:]))  # the first of a process checks the sums of all files
        bench.say(f"{ids:,} ids in {len(files)} runs")
    shutil.rmtree(folder)
    return [
        _result(bench, "gate_flat", costs[True], GROWTH, "repeats are recent"),
        _result(bench, "gate_flat_old", costs[False], None, "repeats are of any age"),
    ]


def _result(bench: Bench, case: str, costs: Sequence[float], target: float | None, what: str) -> Result:
    each = ", ".join(f"{ids:,}: {cost:.2f}" for ids, cost in zip(bench.plan.gate_ids, costs, strict=True))
    note = f"CPU for each event by accepted ids, {what}: {each}"
    if target is not None:
        return within(case, costs[-1], costs[0], target, "us", note)
    return Result(case, costs[-1], costs[0], costs[-1] / costs[0], None, True, "us", "", note)


def _history(folder: Path, ids: int, batch: int) -> list[str]:
    """Runs of so many ids as batches leave them: FAN_IN of a size become one, again and again."""
    files: list[str] = []
    size = batch
    while size * FAN_IN <= ids:
        size *= FAN_IN
    first = 0
    while first < ids:
        while size > max(batch, ids - first):
            size //= FAN_IN
        count = min(size, ids - first)
        path = folder / f"{len(files):04d}.run"
        write_run(path, _run(first, count), [path.stem])
        files.append(str(path))
        first += count
    return files


def _run(first: int, count: int) -> pa.Table:
    numbers = np.arange(first, first + count)
    high, _ = _keys(numbers)
    order = np.argsort(high, kind="stable")
    sorted_numbers = numbers[order]
    return pa.table(
        {
            "high": high[order],
            "content": _content(sorted_numbers),
            "seq": sorted_numbers // 100_000,
            "line": sorted_numbers % 100_000,
            "key": _texts(sorted_numbers, f"{TENANT}\0", pa.binary()),
        }
    )


def _texts(numbers: Numbers, before: str, type_: pa.DataType) -> pa.Array:
    """The ids of numbered events: their decimal digits behind a prefix."""
    width = len(before) + DIGITS
    out = np.empty((numbers.size, width), np.uint8)
    out[:, : len(before)] = np.frombuffer(before.encode(), np.uint8)
    left = numbers.copy()
    for place in range(width - 1, len(before) - 1, -1):
        out[:, place] = 48 + left % 10
        left //= 10
    offsets = np.arange(numbers.size + 1, dtype=np.int32) * width
    return pa.Array.from_buffers(
        type_, numbers.size, [None, pa.py_buffer(offsets), pa.py_buffer(out.reshape(-1))]
    )


def _keys(numbers: Numbers) -> tuple[Words, Words]:
    tenant = pa.DictionaryArray.from_arrays(pa.array(np.zeros(numbers.size, np.int32)), pa.array([TENANT]))
    return hash_keys(tenant, _texts(numbers, "", pa.string()))


def _content(numbers: Numbers) -> Words:
    """A hash of the content of each event."""
    return numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class _Probe:
    """A staged batch: new events, and some that were accepted before, with their content or another."""

    folder: Path
    events: int
    repeated: int
    changed: int

    @classmethod
    def made(cls, folder: Path, since: int, ids: int, events: int) -> _Probe:
        """Events after `ids` others; what it repeats is spread over those from `since` on."""
        numbers = np.arange(ids, ids + events)
        at = np.arange(events)
        old = at % EVERY_REPEATED == 0
        numbers[old] = np.linspace(since, ids - 1, int(old.sum()), dtype=np.int64)
        changed = old & (at % EVERY_CHANGED == 0)
        content = _content(numbers)
        content[changed] += np.uint64(1)
        high, low = _keys(numbers)
        order = np.argsort(high, kind="stable")
        texts = _texts(numbers[order], f"{TENANT}\0", pa.binary())
        places = order.astype(np.int32)
        keys = {"high": high[order], "low": low[order], "content": content[order], "at": places}
        write_ipc(folder / "probe.keys", pa.table({**keys, "record": places, "text": texts}))
        return cls(folder, events, int(old.sum()), int(changed.sum()))

    def cost(self, runs: list[str]) -> float:
        """CPU microseconds for each event."""
        chunk = KeyedChunk(1 << 40, 1, str(self.folder / "probe.keys"))
        unit = GateUnit(
            0, 1 << 64, [chunk], runs, str(self.folder / "own.run"), str(self.folder / "own.drops")
        )
        began = time.process_time()
        (found,) = gate(unit)
        took = time.process_time() - began
        assert found.keys == self.events - self.repeated
        assert found.duplicates.get(0, 0) == self.repeated - self.changed
        assert found.conflicts.get(0, 0) == self.changed
        return took / self.events * 1e6
