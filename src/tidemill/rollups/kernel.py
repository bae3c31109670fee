"""The tile kernels: what changed in, new tiles out, staged.

A tile is the old one merged with what is new when it only grew; otherwise it is made again from what lies
below it. Both give the same rows in the same order, so the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ipc

from tidemill.lake.parts import StagedPart, write_part
from tidemill.model.levels import BASE, BY_NAME, LEVELS, Level
from tidemill.model.tiles import TileKey
from tidemill.model.time import Interval
from tidemill.records.plan import ReadPlan
from tidemill.rollups.cells import accumulate, from_rows, merge, no_cells, to_rows
from tidemill.rollups.events import read_events
from tidemill.rollups.spec import STATS, RollupSpec

MINUTE_LEVEL, HOUR_LEVEL, DAY_LEVEL, WEEK_LEVEL = LEVELS[1:]


@dataclass(frozen=True, slots=True)
class Target:
    """A tile to be written."""

    key: TileKey
    hash: str
    revision: int
    old: str | None  # its current part, when the new tile is that one merged with what is new
    below: Sequence[str] | None = None  # made again instead: the parts of the level below that did not change


@dataclass(frozen=True, slots=True)
class BaseTarget:
    """A 5s tile, and where its new events come from."""

    tile: Target
    slices: frozenset[str]  # what it will be made of
    partials: Sequence[str] = ()  # cells that the batch left
    raw: Sequence[str] = ()  # or raw parts to read again,
    wanted: frozenset[str] = frozenset()  # for these slices


@dataclass(frozen=True, slots=True)
class LowUnit:
    """The stale 5s tiles below one 1m tile, and that tile."""

    spec: RollupSpec
    plan: ReadPlan
    base: Sequence[BaseTarget]
    minute: Target
    folder: str


@dataclass(frozen=True, slots=True)
class HighUnit:
    """The 1h, 1d and 7d tiles above: `deltas` are the 1h cells that the units below left."""

    spec: RollupSpec
    hours: Sequence[Target]
    days: Sequence[Target]
    weeks: Sequence[Target]
    deltas: Sequence[str]
    folder: str


@dataclass(frozen=True, slots=True)
class Built:
    """A tile as staged."""

    key: TileKey
    hash: str
    revision: int
    part: StagedPart
    slices: frozenset[str]


@dataclass(frozen=True, slots=True)
class Tap:
    """Leaves the 5s cells of accepted events in staging while they are in memory."""

    spec: RollupSpec

    def __call__(self, rows: pa.Table, folder: Path, name: str) -> None:
        cells = accumulate(self.spec, rows, BASE.width)
        by_time = cells.take(pa.array(np.argsort(cells.column("bucket").to_numpy(), kind="stable")))
        write_cells(folder / f"{name}{PARTIAL}", by_time)


PARTIAL = ".cells"


def write_cells(path: Path, cells: pa.Table) -> None:
    cells = cells.unify_dictionaries().combine_chunks()
    with pa.OSFile(str(path), "wb") as sink, ipc.new_file(sink, cells.schema) as writer:
        writer.write_table(cells)


def read_cells(path: str) -> pa.Table:
    return ipc.open_file(pa.memory_map(path)).read_all()


def read_partial(path: str, span: Interval) -> pa.Table:
    """The cells of `span` of a file that is sorted by bucket."""
    cells = read_cells(path)
    buckets = cells.column("bucket").to_numpy()
    first, last = np.searchsorted(buckets, [span.start, span.end])
    return cells.slice(int(first), int(last - first))


def read_tile(spec: RollupSpec, path: str, span: Interval) -> pa.Table:
    """The cells of a tile's part that lie in `span`."""
    cells = from_rows(spec, pq.read_table(path, partitioning=None, columns=spec.schema.names[1:]))
    buckets = cells.column("bucket").to_numpy()
    inside = (buckets >= span.start) & (buckets < span.end)
    return cells if inside.all() else cells.filter(pa.array(inside))


def build_low(unit: LowUnit) -> Iterator[Built]:
    """5s tiles and the 1m tile above them; leaves the 1h cells of what is new for `build_high`."""
    spec, folder = unit.spec, Path(unit.folder)
    fresh: list[pa.Table] = []
    complete: list[pa.Table] = []
    for target in unit.base:
        span = tile_span(target.tile.key)
        new = _new_cells(unit, target, span)
        fresh.append(new)
        cells = merge(spec, [*_old(spec, target.tile, span), new], BASE.width)
        complete.append(cells)
        yield _write(spec, target.tile, cells, folder, target.slices)
    delta = merge(spec, fresh, MINUTE_LEVEL.width)
    span = tile_span(unit.minute.key)
    if unit.minute.below is not None:
        untouched = [read_tile(spec, path, span) for path in unit.minute.below]
        cells = merge(spec, [*complete, *untouched], MINUTE_LEVEL.width)
    else:
        cells = merge(spec, [*_old(spec, unit.minute, span), delta], MINUTE_LEVEL.width)
    yield _write(spec, unit.minute, cells, folder, frozenset())
    write_cells(delta_path(folder, unit.minute.key), merge(spec, [delta], HOUR_LEVEL.width))


def build_high(unit: HighUnit) -> Iterator[Built]:
    spec, folder = unit.spec, Path(unit.folder)
    delta = merge(spec, [read_cells(path) for path in unit.deltas], HOUR_LEVEL.width)
    staged: dict[TileKey, str] = {}
    for level, targets in ((HOUR_LEVEL, unit.hours), (DAY_LEVEL, unit.days), (WEEK_LEVEL, unit.weeks)):
        delta = merge(spec, [delta], level.width)
        for target in targets:
            built = _write(spec, target, _high_cells(spec, level, target, delta, staged), folder, frozenset())
            staged[target.key] = built.part.path
            yield built


def _high_cells(
    spec: RollupSpec, level: Level, target: Target, delta: pa.Table, staged: dict[TileKey, str]
) -> pa.Table:
    span = tile_span(target.key)
    if target.below is not None:
        below = LEVELS[LEVELS.index(level) - 1].name
        new = [path for key, path in staged.items() if key.level == below and span.holds(key.start)]
        tables = [read_tile(spec, path, span) for path in (*new, *target.below)]
        return merge(spec, tables, level.width)
    buckets = delta.column("bucket").to_numpy()
    mine = delta.filter(pa.array((buckets >= span.start) & (buckets < span.end)))
    return merge(spec, [*_old(spec, target, span), mine], level.width)


def tile_span(key: TileKey) -> Interval:
    return Interval(key.start, key.start + BY_NAME[key.level].tile)


def delta_path(folder: Path, key: TileKey) -> Path:
    return folder / f"{key.level}-{key.start}.delta"


def _old(spec: RollupSpec, target: Target, span: Interval) -> list[pa.Table]:
    return [read_tile(spec, target.old, span)] if target.old is not None else []


def _new_cells(unit: LowUnit, target: BaseTarget, span: Interval) -> pa.Table:
    if target.partials:
        return merge(unit.spec, [read_partial(path, span) for path in target.partials], BASE.width)
    events = read_events(unit.plan, target.raw, span, target.wanted)
    cells = [accumulate(unit.spec, table, BASE.width) for table in events]
    return merge(unit.spec, cells, BASE.width) if cells else no_cells(unit.spec)


def _write(spec: RollupSpec, target: Target, cells: pa.Table, folder: Path, slices: frozenset[str]) -> Built:
    key = target.key
    part = write_part(
        folder,
        f"{key.level}-{key.start}-r{target.revision}-{target.hash[:16]}.parquet",
        to_rows(spec, cells),
        partition={"level": key.level},
        footer={
            "kind": "tile",
            "stream": spec.stream,
            "level": key.level,
            "start": key.start,
            "revision": target.revision,
            "hash": target.hash,
            "slices": sorted(slices),
        },
        stats_columns=STATS,
    )
    return Built(key, target.hash, target.revision, part, slices)
