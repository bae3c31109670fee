"""A mill with a stream of deltas for tests of its chains, and the oracle that says what its vectors are."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from tests.support.oracles.vectors import VectorOracle

from tidemill.mill import Mill
from tidemill.model.deltas import Delta, Op
from tidemill.model.failpoints import POINTS
from tidemill.model.slices import SliceStatus
from tidemill.model.time import HOUR, MILLISECOND, SECOND, parse_instant
from tidemill.testing import FakeClock

QUIET = "delta_threshold: 1000, max_chain_length: 1000, time_threshold: 30d"
STRATEGIES = {
    "full": f"{{strategy: full_merge, {QUIET}}}",
    "tiered": f"{{strategy: tiered_merge, keep_recent: 2, {QUIET}}}",
    "boundary": f"{{strategy: time_boundary, interval: 10s, {QUIET}}}",
    "adaptive": f"{{strategy: adaptive, keep_recent: 2, {QUIET}}}",
}
EAGER = {
    name: text.replace(QUIET, "delta_threshold: 2, max_chain_length: 6, time_threshold: 5s")
    for name, text in STRATEGIES.items()
}
WALK = [point for point in POINTS if point.startswith("chains.")]

NOON = parse_instant("2024-01-15T12:00:00Z")
CONFIG = """
version: 1
engine: {{cores: 2, inline_bytes: 1GiB}}
streams:
  drift:
    kind: delta
    vector: {{dimension: {dimension}, overflow: {overflow}}}
    compaction: {compaction}
    schema:
      delta_id: {{type: string, required: true}}
      vector_id: {{type: string, required: true}}
      ts: {{type: integer, required: true}}
      op: {{type: string, required: true}}
      values: array
      indices: array
    event_time: {{column: ts, type: unixtimestamp_ms}}
    identity: delta_id
    pack: {pack}
    skew: {{past: 30d, future: 30d}}
    {more}
"""


def delta(
    name: str, vector: str, seconds: float, op: str | Op, values: Sequence[float] = (), indices: object = None
) -> Delta:
    """One that happens so many seconds after noon."""
    places = tuple(indices) if indices is not None else None  # type: ignore[call-overload]
    return Delta(vector, name, NOON + int(seconds * SECOND), Op(op), tuple(map(float, values)), places)


def record(of: Delta) -> dict[str, object]:
    found: dict[str, object] = {
        "delta_id": of.delta_id,
        "vector_id": of.vector_id,
        "ts": of.ts // MILLISECOND,
        "op": of.op.value,
    }
    if of.op is not Op.DELETE:
        found["values"] = list(of.values)
    if of.indices is not None:
        found["indices"] = list(of.indices)
    return found


def bits(values: Sequence[float] | None) -> bytes | None:
    """What two vectors must have in common to be the same."""
    return None if values is None else struct.pack(f"<{len(values)}d", *values)


class Plant:
    """Deltas land and are accepted by rounds; `oracle` knows those that count."""

    def __init__(
        self,
        folder: Path,
        compaction: str,
        dimension: int = 3,
        pack: str = "{}",
        more: str = "",
        overflow: str = "warn",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.dimension = dimension
        self.pack = pack
        self.more = more  # keys of the stream
        self.overflow = overflow
        self.clock = FakeClock(NOON + HOUR)
        self.slices: dict[str, list[Delta]] = {}
        self._landed = 0
        self.declare(compaction)
        self.mill = Mill.open(folder, clock=self.clock)

    def declare(self, compaction: str) -> None:
        (self.folder / "tidemill.yaml").write_text(
            CONFIG.format(
                compaction=compaction,
                dimension=self.dimension,
                pack=self.pack,
                more=self.more,
                overflow=self.overflow,
            )
        )

    def reopen(self) -> None:
        self.mill.close()
        self.mill = Mill.open(self.folder, clock=self.clock)

    def land(self, *deltas: Delta) -> str:
        self._landed += 1
        self.clock.advance(MILLISECOND)
        content = "".join(json.dumps(record(each)) + "\n" for each in deltas).encode()
        landed = self.mill.land("drift", content, name=f"slice-{self._landed}")
        self.slices[landed.entry.id] = list(deltas)
        return landed.entry.id

    def tick(self) -> None:
        self.clock.advance(MILLISECOND)
        self.mill.run_until_idle()

    def take_back(self, slice_id: str) -> None:
        self.mill.retract(self.mill.plan_retraction(slice_id, "a mistake"))
        del self.slices[slice_id]

    @property
    def oracle(self) -> VectorOracle:
        """Of the slices that were accepted; of deltas that came twice the first one counts."""
        found: dict[str, Delta] = {}
        for entry in self.mill.state.slices("drift", SliceStatus.ACCEPTED):
            for each in self.slices[entry.id]:
                found.setdefault(each.delta_id, each)
        return VectorOracle(self.dimension, found.values(), finite=self.overflow == "quarantine")

    # -- what the chains hold

    def rows(self) -> list[dict[str, object]]:
        """Of all chains, in order."""
        found = self.mill.snapshot("chains", "drift")
        paths = found.paths() if found is not None else []
        rows = [row for path in paths for row in pa.parquet.read_table(path, partitioning=None).to_pylist()]
        return sorted(rows, key=lambda row: (row["vector_id"], row["ts"], row["delta_id"]))

    def version(self) -> int:
        table = self.mill.warehouse.existing("chains", "drift")
        assert table is not None
        return table.version

    def vectors(self, ids: Sequence[str], at: int | None = None) -> list[bytes | None]:
        found = self.mill.vectors("drift", ids, at)
        columns = (found.column(name).to_pylist() for name in ("exists", "values"))
        return [bits(values) if exists else None for exists, values in zip(*columns, strict=True)]

    def check(self, instants: Sequence[int] = ()) -> None:
        """Every vector, now and then, is what the oracle says, to the bit."""
        oracle = self.oracle
        ids = [*oracle.ids, "nobody"]
        moments = sorted({each.ts for each in oracle.deltas} | set(instants))
        for at in [None, *moments, *(moment - 1 for moment in moments)]:
            assert self.vectors(ids, at) == [bits(oracle.at(name, at)) for name in ids], at


def compact(plant: Plant, *, force: bool = True) -> int:
    """How many deltas were merged."""
    return plant.mill.chains.compact("drift", plant.clock(), force=force).deltas


def copy_of(plant: Plant, to: Path) -> Plant:
    """The warehouse as it lies on disk now, opened by somebody else."""
    shutil.copytree(plant.folder, to)
    other = object.__new__(Plant)
    other.__dict__.update(plant.__dict__)
    other.folder = to
    other.slices = dict(plant.slices)
    other.mill = Mill.open(to, clock=plant.clock)
    return other
