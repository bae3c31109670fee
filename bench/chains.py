"""The case about vectors: compaction of many sparse deltas, and vectors at an instant.

It gives one result for each peer and prints nothing; no time counts before its vectors were checked to be the
same, bit for bit, as those of the pure-Python loop.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bench.running import OUT, Bench, Result, within
from tidemill.formats.delta_arrays import deltas_from_rows, order_of, taken
from tidemill.mill import Mill
from tidemill.model.time import format_instant, parse_instant
from tidemill.outputs.vectors.fold import fold

DIMENSION: Final = 384
MOVED: Final = 16  # components of a delta
SLICES: Final = 20
ASKED: Final = 1_000
PYTHON_TARGET: Final = 20.0
NUMPY_TARGET: Final = 0.3
MOST_MS: Final = 200.0
BEGIN: Final = parse_instant("2024-01-15T00:00:00Z")
NOW: Final = parse_instant("2024-01-17T00:00:00Z")
STEP: Final = 400_000  # microseconds from a delta to the next
OPS: Final = ("add", "add", "add", "add", "set", "scale")
STREAM: Final = "embeddings"
PROJECT: Final = f"""
version: 1
streams:
  {STREAM}:
    kind: delta
    vector: {{dimension: {DIMENSION}}}
    compaction: {{strategy: full_merge, background: false}}
    schema:
      delta_id: {{type: string, required: true}}
      vector_id: {{type: string, required: true}}
      at: {{type: string, required: true}}
      op: {{type: string, required: true}}
      values: array
      indices: array
    identity: delta_id
    event_time: {{column: at, type: iso8601}}
"""

Floats = NDArray[np.float64]
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Job:
    """Deltas in order of time, as plain lists."""

    vectors: Sequence[int]
    ops: Sequence[str]
    indices: Sequence[Sequence[int]]
    values: Sequence[Sequence[float]]

    @property
    def names(self) -> list[str]:
        return [f"doc-{number:05}" for number in range(max(self.vectors) + 1)]


def job(vectors: int, deltas: int, seed: int = 7) -> Job:
    chance = random.Random(seed)
    which = [*range(vectors), *(chance.randrange(vectors) for _ in range(deltas - vectors))]
    return Job(
        which,
        [chance.choice(OPS) for _ in which],
        [sorted(chance.sample(range(DIMENSION), MOVED)) for _ in which],
        [[chance.uniform(-1, 1) for _ in range(MOVED)] for _ in which],
    )


def by_python(of: Job) -> list[list[float]]:
    """What anybody would write first: a list for each vector, and a loop."""
    found = [[0.0] * DIMENSION for _ in of.names]
    for number, op, indices, values in zip(of.vectors, of.ops, of.indices, of.values, strict=True):
        vector = found[number]
        if op == "add":
            for at, value in zip(indices, values, strict=True):
                vector[at] = vector[at] + value
        elif op == "set":
            for at, value in zip(indices, values, strict=True):
                vector[at] = value
        else:
            for at, value in zip(indices, values, strict=True):
                vector[at] = vector[at] * value
    return found


def from_disk_by_python(parts: Path, target: Path, count: int) -> None:
    """The same loop as a script: the deltas out of the parts, the vectors into a file, made durable."""
    rows = [row for part in sorted(parts.rglob("*.parquet")) for row in pq.read_table(part).to_pylist()]
    rows.sort(key=lambda row: (row["ts"], row["delta_id"]))
    found = by_python(
        Job(
            [int(row["vector_id"].removeprefix("doc-")) for row in rows],
            [row["op"] for row in rows],
            [row["indices"] for row in rows],
            [row["values"] for row in rows],
        )
    )
    names = [f"doc-{number:05}" for number in range(count)]
    pq.write_table(pa.table({"vector_id": names, "values": found}), target, compression="zstd")
    with target.open("rb") as written:
        os.fsync(written.fileno())


@dataclass(frozen=True, slots=True)
class Arrays:
    """The same deltas in memory, as numpy wants them."""

    vectors: NDArray[np.int64]
    ops: Sequence[str]
    indices: NDArray[np.int64]
    values: Floats


def by_numpy(of: Arrays, count: int) -> Floats:
    """One thread, a step for each delta, on arrays that are there."""
    found = np.zeros((count, DIMENSION))
    for number, op, indices, values in zip(of.vectors, of.ops, of.indices, of.values, strict=True):
        vector = found[number]
        if op == "add":
            vector[indices] += values
        elif op == "set":
            vector[indices] = values
        else:
            vector[indices] *= values
    return found


def rows_of(of: Job) -> pa.Table:
    names = of.names
    return pa.table(
        {
            "vector_id": pa.array([names[number] for number in of.vectors]),
            "ts": pa.array([BEGIN + STEP * number for number in range(len(of.vectors))], pa.int64()),
            "delta_id": pa.array([f"d{number:07}" for number in range(len(of.vectors))]),
            "op": pa.array(of.ops),
            "indices": pa.array(of.indices, pa.list_(pa.int32())),
            "values": pa.array(of.values, pa.list_(pa.float64())),
        }
    )


def landed(of: Job, folder: Path, bench: Bench) -> None:
    """A project with the deltas in its chains, none of them compacted."""
    assert bench.ours is not None
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "tidemill.yaml").write_text(PROJECT)
    with Mill.open(folder, spark=bench.ours.session(), clock=lambda: NOW) as mill:
        for start in range(SLICES):
            mill.land(STREAM, "".join(_lines(of, start)).encode(), name=f"{start}.ndjson")
        mill.run_until_idle()


def _lines(of: Job, start: int) -> list[str]:
    names = of.names
    return [
        json.dumps(
            {
                "delta_id": f"d{number:07}",
                "vector_id": names[of.vectors[number]],
                "at": format_instant(BEGIN + STEP * number),
                "op": of.ops[number],
                "indices": of.indices[number],
                "values": of.values[number],
            }
        )
        + "\n"
        for number in range(start, len(of.vectors), SLICES)
    ]


def timed(work: Callable[[], Found], repeats: int) -> tuple[float, Found]:
    """The best of several, and what came of the last."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        found = work()
        times.append(time.perf_counter() - began)
    return min(times), found


def same(found: Floats, truth: Floats, who: str) -> None:
    assert found.tobytes() == truth.tobytes(), f"{who} has other vectors"


def chains(bench: Bench) -> list[Result]:
    """Compaction beside loops in memory and from disk to disk, the kernel alone, vectors at an instant."""
    vectors, deltas = bench.plan.vectors, bench.plan.deltas
    made = job(vectors, deltas)
    bench.say(f"{deltas} deltas of {vectors} vectors: pure Python, numpy, the kernel")
    python, lists = timed(lambda: by_python(made), bench.plan.repeats)
    truth = np.array(lists)
    arrays = Arrays(np.array(made.vectors), made.ops, np.array(made.indices), np.array(made.values))
    numpy, found = timed(lambda: by_numpy(arrays, vectors), bench.plan.repeats)
    same(found, truth, "numpy")
    deltas_ = deltas_from_rows(rows_of(made))
    ordered = taken(deltas_, order_of(deltas_))
    fold(None, None, ordered, DIMENSION)  # compiled
    kernel, folded = timed(lambda: fold(None, None, ordered, DIMENSION), bench.plan.repeats)
    same(folded.matrix, truth, "the kernel")
    bench.say("compaction")
    whole, note = _compacted(bench, made, truth)
    script = _scripted(bench, made, truth)
    reading, asked = _asked(bench, made, truth)
    rate = f"{deltas / kernel:,.0f} deltas/s"
    return [
        _beside("chains_kernel vs python", kernel, python, PYTHON_TARGET, rate),
        _beside("chains_kernel vs numpy", kernel, numpy, NUMPY_TARGET, rate),
        _beside("chains_compact vs python", whole, python, PYTHON_TARGET, note),
        _beside("chains_compact vs python from disk", whole, script, None, note),
        _beside("chains_compact vs numpy", whole, numpy, NUMPY_TARGET, note),
        within("chains_vectors", reading, None, MOST_MS, "ms", asked),
    ]


def _beside(case: str, ours: float, peer: float, target: float | None, note: str) -> Result:
    ratio = peer / ours
    ok = target is None or ratio >= target
    return Result(case, ours, peer, ratio, target, ok, "s", "" if target is None else ">=", note)


def _compacted(bench: Bench, made: Job, truth: Floats) -> tuple[float, str]:
    """From parts on disk to parts on disk, committed; each time from the same chains."""
    assert bench.ours is not None
    source, folder = OUT / "chains", OUT / "chains-compacted"
    landed(made, source, bench)
    times, note = [], ""
    for _ in range(bench.plan.repeats + 1):  # the first warms the workers up
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        with Mill.open(folder, spark=bench.ours.session(), clock=lambda: NOW) as mill:
            mill.chains.plan(STREAM, NOW, force=True)
            began = time.perf_counter()
            done = mill.chains.compact(STREAM, NOW, force=True)
            times.append(time.perf_counter() - began)
            same(_matrix(mill.vectors(STREAM, made.names)), truth, "compaction")
        assert done.deltas == len(made.vectors), done
        mib = f"{done.bytes_before / 2**20:.0f} MiB of deltas, {done.bytes_after / 2**20:.0f} MiB of vectors"
        note = f"read, merged, written, synced and committed: {mib}"
    return min(times[1:]), note


def _scripted(bench: Bench, made: Job, truth: Floats) -> float:
    parts, target = OUT / "chains" / "warehouse" / "chains" / STREAM, OUT / "chains-script.parquet"
    taken_, _ = timed(lambda: from_disk_by_python(parts, target, len(truth)), bench.plan.repeats)
    same(_matrix(pq.read_table(target)), truth, "the script")
    return taken_


def _matrix(found: pa.Table) -> Floats:
    values = found.column("values").combine_chunks()
    return np.asarray(values.flatten()).reshape(len(values), DIMENSION)


def _asked(bench: Bench, made: Job, truth: Floats) -> tuple[float, str]:
    """Vectors of random ids at an instant that the chains keep, in a process that has looked before."""
    chance = random.Random(1)
    at = BEGIN + STEP * len(made.vectors)
    with Mill.open(OUT / "chains-compacted", clock=lambda: NOW) as mill:
        times = []
        for _ in range(bench.plan.queries):
            some = chance.sample(range(len(truth)), min(ASKED, len(truth)))
            ids = [f"doc-{number:05}" for number in some]
            began = time.perf_counter()
            found = mill.vectors(STREAM, ids, at)
            times.append(1000 * (time.perf_counter() - began))
            same(_matrix(found), truth[some], "vectors()")
    return statistics.median(times), f"{len(some)} ids, median of {len(times)}, the first {times[0]:.0f} ms"
