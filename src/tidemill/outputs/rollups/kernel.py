"""The tile kernels: changes in, new tiles out, staged. All tiles of a unit are made in one pass.

A tile that only grew is the old one merged with what is new; otherwise it is made again from the level below.
Both give the same rows in the same order.

Cells are *handed on* from level to level: to a tile that grows, what is new below it; to one that is made
again, all changed tiles below it. Tiles that did not change are read from their parts. One that stays as it
is gets nothing, and hands on nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import pyarrow as pa

from tidemill.formats.read_plan import ReadPlan
from tidemill.model.levels import BASE, BY_NAME, LEVELS, Level, below
from tidemill.model.time import Interval
from tidemill.outputs.rollups.cell_files import PARTIAL, read_cells, read_partial, write_cells
from tidemill.outputs.rollups.cells import Cells, accumulate, merge, no_cells, of_tiles
from tidemill.outputs.rollups.events import read_tile_events
from tidemill.outputs.rollups.history_kernel import note
from tidemill.outputs.rollups.rows import read_tiles
from tidemill.outputs.rollups.spec import RollupSpec
from tidemill.outputs.rollups.tile_parts import Tile, TilePart, TilesFooter, write_tiles
from tidemill.storage.bucket_path import warehouse_path
from tidemill.storage.tables.parts import read_footer

MINUTE_LEVEL, HOUR_LEVEL, DAY_LEVEL = LEVELS[1:4]

Admit = Callable[[Cells], Cells]
"""What becomes of cells just made of events before they are merged with others; it must be picklable."""

Positions = Mapping[str, Sequence[int]]
"""Paths of parts, each with the starts (ascending) of some of the tiles in it."""

NOWHERE: Final[Positions] = {}


@dataclass(frozen=True, slots=True)
class TileWork:
    """Tiles of one level that are built together."""

    level: str
    tiles: Sequence[Tile]  # those that are written
    unkept: Sequence[int] = ()  # starts of tiles that are not kept: made only for the levels above
    old: Positions = field(default_factory=dict)  # parts of the tiles that only grow
    again: Sequence[int] = ()  # starts of the tiles that are made again,
    below: Positions = field(default_factory=dict)  # also from these tiles below, which did not change,
    # and from their own parts in the time of tiles below that are gone, and that raw no longer has
    sealed: Positions = field(default_factory=dict)

    @property
    def starts(self) -> list[int]:
        return sorted([*(tile.start for tile in self.tiles), *self.unkept])


@dataclass(frozen=True, slots=True)
class LowUnit:
    """Stale 5s tiles, the 1m tiles above them, and the sources of their new events."""

    spec: RollupSpec
    plan: ReadPlan
    base: TileWork
    minutes: TileWork
    hours_again: Sequence[int]  # starts of the 1h tiles that are made again
    folder: str
    name: str
    partials: Sequence[str] = ()  # cells from the accepted batch,
    left: Sequence[int] = ()  # for the 5s tiles that begin here
    raw: Sequence[str] = ()  # raw parts to read again,
    wanted: Mapping[int, frozenset[str]] = field(
        default_factory=dict
    )  # for these tiles, of slices with these ids
    extra_for: Sequence[int] = ()  # starts of the 5s tiles that the batch left nothing for,
    extra: Sequence[str] = ()  # and cells that are added to them unchanged: those of state metrics
    admit: Admit | None = None
    days_too: bool = False  # also hand cells to 1d: no higher tile waits for the 1h tiles
    rows: int = 1  # about how many the 5s tiles will have


@dataclass(frozen=True, slots=True)
class HighUnit:
    """Tiles of higher levels, one after another: `handed` are files of cells for the first level."""

    spec: RollupSpec
    works: Sequence[TileWork]
    handed: Sequence[str]
    folder: str
    leave: str | None = None  # where to write the cells for the level after the last,
    again: Sequence[int] = ()  # of which these tiles are made again


@dataclass(frozen=True, slots=True)
class CarryUnit:
    """Parts of one level that are removed; their tiles, except for those that leave, move unchanged to new
    parts."""

    spec: RollupSpec
    level: str
    parts: Positions  # with the tiles that leave
    folder: str


@dataclass(frozen=True, slots=True)
class Tap:
    """Writes the 5s cells of accepted events to staging while they are in memory, and what the state history
    needs."""

    spec: RollupSpec

    @property
    def columns(self) -> Sequence[str]:
        """What it reads of the accepted rows, beside the dimensions and measures."""
        if self.spec.in_order:
            return ("tenant", "event_time", "event_id", "slice", "line")
        if any(metric.keeps_ends for metric in self.spec.metrics):  # the id decides between equal times
            return ("tenant", "event_time", "event_id")
        return ("tenant", "event_time")

    def __call__(self, rows: pa.Table, folder: Path, name: str) -> None:
        write_cells(folder / f"{name}{PARTIAL}", accumulate(self.spec, rows, BASE.width, by_time=True))
        note(self.spec, rows, folder, name)


def build_low(unit: LowUnit) -> Iterator[TilePart]:
    """Build 5s tiles and the 1m tiles above them; write cells for the levels above."""
    spec, folder = unit.spec, warehouse_path(unit.folder)
    fresh = _fresh_cells(unit)
    cells = _cells(spec, unit.base, fresh)
    yield from _written(spec, unit.base, cells, folder)
    handed = _handed_on(spec, MINUTE_LEVEL, unit.minutes.again, fresh, cells)
    handed = of_tiles(handed, unit.minutes.starts, MINUTE_LEVEL.tile)
    cells = _cells(spec, unit.minutes, handed)
    yield from _written(spec, unit.minutes, cells, folder)
    handed = _handed_on(spec, HOUR_LEVEL, unit.hours_again, handed, cells)
    write_cells(handed_path(folder, unit.name, HOUR_LEVEL), handed)
    if unit.days_too:
        write_cells(handed_path(folder, unit.name, DAY_LEVEL), merge(spec, [handed], DAY_LEVEL.width))


def build_high(unit: HighUnit) -> Iterator[TilePart]:
    spec, folder = unit.spec, warehouse_path(unit.folder)
    level = BY_NAME[unit.works[0].level]
    files = [of_tiles(read_cells(path), unit.works[0].starts, level.tile) for path in unit.handed]
    handed = merge(spec, files, level.width)
    cells = handed
    for number, work in enumerate(unit.works):
        if number:
            level = BY_NAME[work.level]
            handed = _handed_on(spec, level, work.again, handed, cells)
            handed = of_tiles(handed, work.starts, level.tile)
        cells = _cells(spec, work, handed)
        yield from _written(spec, work, cells, folder)
    if unit.leave is not None:
        above = LEVELS[LEVELS.index(BY_NAME[unit.works[-1].level]) + 1]
        write_cells(warehouse_path(unit.leave), _handed_on(spec, above, unit.again, handed, cells))


def carry(unit: CarryUnit) -> Iterator[TilePart]:
    level = BY_NAME[unit.level]
    tiles: list[Tile] = []
    tables: list[Cells] = []
    for path, leaving in unit.parts.items():
        gone = frozenset(leaving)
        kept = [tile for tile in TilesFooter.from_footer(read_footer(path)).tiles if tile.start not in gone]
        if kept:
            tiles += kept
            starts = sorted(tile.start for tile in kept)
            tables.append(read_tiles(unit.spec, path, starts, level.tile))
    cells = tables[0] if len(tables) == 1 else merge(unit.spec, tables, level.width)
    for part in write_tiles(unit.spec, level, tiles, cells, warehouse_path(unit.folder)):
        yield replace(part, carried=True)


def handed_path(folder: Path, name: str, level: Level) -> Path:
    return folder / f"{name}.{level.name}"


def _cells(spec: RollupSpec, work: TileWork, handed: Cells) -> Cells:
    """All cells of the tiles: those handed to them, the old ones, and those of unchanged tiles below."""
    level = BY_NAME[work.level]
    stored = [read_tiles(spec, path, starts, level.tile) for path, starts in work.old.items()]
    under = below(level)
    if under is not None:
        stored += [read_tiles(spec, path, starts, under.tile) for path, starts in work.below.items()]
        stored += [read_tiles(spec, path, starts, under.tile) for path, starts in work.sealed.items()]
    return merge(spec, [handed, *stored], level.width) if stored else handed


def _handed_on(spec: RollupSpec, level: Level, again: Sequence[int], handed: Cells, cells: Cells) -> Cells:
    """The cells that a level gets, from what the level below was handed and now holds."""
    if not again:
        return merge(spec, [handed], level.width)
    new = of_tiles(handed, again, level.tile, inside=False)
    return merge(spec, [new, of_tiles(cells, again, level.tile)], level.width)


def _written(spec: RollupSpec, work: TileWork, cells: Cells, folder: Path) -> Iterator[TilePart]:
    level = BY_NAME[work.level]
    if work.unkept:
        cells = of_tiles(cells, work.unkept, level.tile, inside=False)
    return write_tiles(spec, level, work.tiles, cells, folder)


def _fresh_cells(unit: LowUnit) -> Cells:
    """The new 5s cells: from the accepted batch or from raw, and those that are added unchanged."""
    admit = unit.admit or _as_they_are
    starts = unit.base.starts
    if not starts:
        return no_cells(unit.spec)
    span = Interval(starts[0], starts[-1] + BASE.tile)
    made: list[Cells] = []
    if unit.wanted:
        events = read_tile_events(unit.plan, unit.raw, unit.wanted, BASE.tile)
        made += [admit(accumulate(unit.spec, table, BASE.width)) for table in events]
    if unit.left:
        made += [admit(of_tiles(read_partial(p, span), unit.left, BASE.tile)) for p in unit.partials]
    made += [of_tiles(read_partial(path, span), unit.extra_for, BASE.tile) for path in unit.extra]
    return merge(unit.spec, made, BASE.width)


def _as_they_are(cells: Cells) -> Cells:
    return cells
