"""The tile kernels: what changed in, new tiles out, staged.

A tile is the old one merged with what is new when it only grew; otherwise it is made again from what lies
below it. Both give the same rows in the same order. 5s tiles that are built together share a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from tidemill.lake.parts import StagedPart, write_part
from tidemill.model.levels import BASE, BY_NAME, LEVELS, Level
from tidemill.model.slices import set_hash
from tidemill.model.tiles import TileKey
from tidemill.model.time import Interval
from tidemill.records.plan import ReadPlan
from tidemill.rollups.cell_files import (
    PARTIAL,
    of_tiles,
    read_cells,
    read_partial,
    write_cells,
    write_partial,
)
from tidemill.rollups.cells import Cells, accumulate, cells_within, merge
from tidemill.rollups.events import read_events
from tidemill.rollups.recollecting import note
from tidemill.rollups.rows import read_tile, row_buckets, to_rows
from tidemill.rollups.spec import STATS, RollupSpec

MINUTE_LEVEL, HOUR_LEVEL, DAY_LEVEL, WEEK_LEVEL = LEVELS[1:]

_REPEATED: Final = ("bucket", "count")  # how columns end that have few values: faster by dictionary

Admit = Callable[[Cells], Cells]
"""What becomes of cells just made of events before they are merged with others; it must be picklable."""


@dataclass(frozen=True, slots=True)
class Target:
    """A tile to be written."""

    key: TileKey
    hash: str
    revision: int
    old: str | None  # its current part, when the new tile is that one merged with what is new
    below: Sequence[tuple[TileKey, str]] | None = None  # made again instead, also from these unchanged tiles
    kept: bool = True  # else it is made only for the levels above


@dataclass(frozen=True, slots=True)
class BaseTarget:
    """A 5s tile, and where its new events come from."""

    tile: Target
    slices: frozenset[str]  # names of what it will be made of
    partials: Sequence[str] = ()  # cells that the batch left
    raw: Sequence[str] = ()  # or raw parts to read again,
    wanted: frozenset[str] = frozenset()  # for the slices with these ids
    extra: Sequence[str] = ()  # cells that are added as they are: those of state metrics


@dataclass(frozen=True, slots=True)
class Carried:
    """A 5s tile that did not change, but shares a part with one that did."""

    tile: Target
    slices: frozenset[str]


@dataclass(frozen=True, slots=True)
class LowUnit:
    """The stale 5s tiles below one 1m tile, those that move with them, and that tile."""

    spec: RollupSpec
    plan: ReadPlan
    base: Sequence[BaseTarget]
    carried: Sequence[Carried]
    minute: Target
    folder: str
    admit: Admit | None = None


@dataclass(frozen=True, slots=True)
class HighUnit:
    """The 1h, 1d and 7d tiles above: `deltas` are the 1h cells that the units below left."""

    spec: RollupSpec
    hours: Sequence[Target]
    days: Sequence[Target]
    weeks: Sequence[Target]
    deltas: Sequence[str]
    folder: str
    minutes: Mapping[TileKey, str]  # parts of the 1m tiles just built: a 1h tile may be made again from them


@dataclass(frozen=True, slots=True)
class Built:
    """A tile as staged."""

    key: TileKey
    hash: str
    revision: int
    part: StagedPart
    rows: int
    slices: frozenset[str]
    carried: bool = False  # the same tile as before, in another part
    kept: bool = True


@dataclass(frozen=True, slots=True)
class Tap:
    """Leaves the 5s cells of accepted events in staging while they are in memory, and what the chronicle
    needs of them."""

    spec: RollupSpec

    def __call__(self, rows: pa.Table, folder: Path, name: str) -> None:
        write_partial(folder / f"{name}{PARTIAL}", accumulate(self.spec, rows, BASE.width))
        note(self.spec, rows, folder, name)


def build_low(unit: LowUnit) -> Iterator[Built]:
    """5s tiles and the 1m tile above them; leaves the 1h cells of what is new for `build_high`."""
    spec, folder = unit.spec, Path(unit.folder)
    span = tile_span(unit.minute.key)
    old = _Parts(spec, span)
    fresh = _fresh_cells(unit, span)
    growing = [t.tile for t in unit.base if t.tile.old is not None]
    touched = fresh
    if growing:
        touched = merge(spec, [*(old.tile(t.old, t.key) for t in growing), fresh], BASE.width)
    yield from _write(spec, [(t.tile, t.slices) for t in unit.base], touched, folder)
    if unit.carried:
        moved = merge(spec, [old.tile(c.tile.old, c.tile.key) for c in unit.carried], BASE.width)
        kept = [(c.tile, c.slices) for c in unit.carried]
        yield from (replace(built, carried=True) for built in _write(spec, kept, moved, folder))
    delta = merge(spec, [fresh], MINUTE_LEVEL.width)
    if unit.minute.below is not None:
        unchanged = [old.tile(path, key) for key, path in unit.minute.below]
        cells = merge(spec, [touched, *unchanged], MINUTE_LEVEL.width)
    else:
        cells = _grown(spec, unit.minute, delta, MINUTE_LEVEL.width)
    yield from _write(spec, [(unit.minute, frozenset())], cells, folder)
    write_cells(delta_path(folder, unit.minute.key), merge(spec, [delta], HOUR_LEVEL.width))


class _Parts:
    """Parts of the 5s level below one 1m tile, each read once."""

    def __init__(self, spec: RollupSpec, span: Interval) -> None:
        self._spec = spec
        self._span = span
        self._read: dict[str, Cells] = {}

    def tile(self, path: str | None, key: TileKey) -> Cells:
        assert path is not None, key
        if path not in self._read:
            self._read[path] = read_tile(self._spec, path, self._span)
        return cells_within(self._read[path], tile_span(key))


def build_high(unit: HighUnit) -> Iterator[Built]:
    spec, folder = unit.spec, Path(unit.folder)
    deltas = [read_cells(path) for path in unit.deltas]
    staged = dict(unit.minutes)
    for level, targets in ((HOUR_LEVEL, unit.hours), (DAY_LEVEL, unit.days), (WEEK_LEVEL, unit.weeks)):
        if not targets:
            continue
        delta = merge(spec, deltas, level.width)
        deltas = [delta]
        for target in targets:
            cells = _high_cells(spec, level, target, delta, staged)
            for built in _write(spec, [(target, frozenset())], cells, folder):
                staged[target.key] = built.part.path
                yield built


def _high_cells(
    spec: RollupSpec, level: Level, target: Target, delta: Cells, staged: dict[TileKey, str]
) -> Cells:
    span = tile_span(target.key)
    if target.below is not None:
        below = LEVELS[LEVELS.index(level) - 1].name
        new = [(key, path) for key, path in staged.items() if key.level == below and span.holds(key.start)]
        tables = [read_tile(spec, path, tile_span(key)) for key, path in (*new, *target.below)]
        return merge(spec, tables, level.width)
    return _grown(spec, target, cells_within(delta, span), level.width)


def tile_span(key: TileKey) -> Interval:
    return Interval(key.start, key.start + BY_NAME[key.level].tile)


def delta_path(folder: Path, key: TileKey) -> Path:
    return folder / f"{key.level}-{key.start}.delta"


def _grown(spec: RollupSpec, target: Target, new: Cells, width: int) -> Cells:
    """The tile as it was with what is new; merged cells by themselves are already a tile."""
    if target.old is None:
        return new
    return merge(spec, [read_tile(spec, target.old, tile_span(target.key)), new], width)


def _fresh_cells(unit: LowUnit, span: Interval) -> Cells:
    """The 5s cells of what is new: from what the batch left or from raw, and what is added to them."""
    admit = unit.admit or _as_they_are
    made: list[Cells] = []
    for target in unit.base:
        if not target.partials:
            within = tile_span(target.tile.key)
            events = read_events(unit.plan, target.raw, within, target.wanted)
            made += [admit(accumulate(unit.spec, table, BASE.width)) for table in events]
    made += [admit(cells) for cells in _left(unit.base, span, lambda target: target.partials)]
    made += _left(unit.base, span, lambda target: target.extra)
    return merge(unit.spec, made, BASE.width)


def _left(
    targets: Sequence[BaseTarget], span: Interval, paths_of: Callable[[BaseTarget], Sequence[str]]
) -> list[Cells]:
    """The cells of each target in the files it names; targets that name the same read them together."""
    by_path: dict[str, list[int]] = {}
    for target in targets:
        for path in paths_of(target):
            by_path.setdefault(path, []).append(target.tile.key.start)
    return [of_tiles(read_partial(path, span), starts, BASE.tile) for path, starts in by_path.items()]


def _as_they_are(cells: Cells) -> Cells:
    return cells


def _write(
    spec: RollupSpec, tiles: Sequence[tuple[Target, frozenset[str]]], cells: Cells, folder: Path
) -> Iterator[Built]:
    """One part with the given tiles of one level, which says what each of them is made of."""
    level = BY_NAME[tiles[0][0].key.level]
    tile_of_row = row_buckets(cells) // level.tile * level.tile
    starts, counts = np.unique(tile_of_row, return_counts=True)
    rows = dict(zip(starts.tolist(), counts.tolist(), strict=True))
    assert rows.keys() <= {target.key.start for target, _ in tiles}
    name = set_hash(f"{target.key.start}:{target.revision}:{target.hash}" for target, _ in tiles)[:24]
    table = to_rows(spec, cells)
    part = write_part(
        folder,
        f"{level.name}-{tiles[0][0].key.start}-{name}.parquet",
        table,
        partition={"level": level.name},
        footer={
            "kind": "tiles",
            "stream": spec.stream,
            "declared": spec.declared,
            "level": level.name,
            "tiles": [
                {
                    "start": target.key.start,
                    "revision": target.revision,
                    "hash": target.hash,
                    "rows": rows.get(target.key.start, 0),
                    "slices": sorted(slices),
                }
                for target, slices in tiles
            ],
        },
        stats_columns=STATS,
        dictionary=[each for each in table.column_names if each.endswith(_REPEATED)],
    )
    for target, slices in tiles:
        yield Built(
            target.key,
            target.hash,
            target.revision,
            part,
            rows.get(target.key.start, 0),
            slices,
            kept=target.kept,
        )
