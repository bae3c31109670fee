"""Recomputes every tile from raw, with nothing taken over from how it was built, and compares bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from tidemill.engine import Engine
from tidemill.lake.parts import open_part
from tidemill.lake.snapshot import Part
from tidemill.lake.table import Table
from tidemill.model.errors import StorageError
from tidemill.model.levels import BASE, BY_NAME, LEVELS, Level, below
from tidemill.model.slices import set_hash
from tidemill.model.tiles import TileKey
from tidemill.model.time import DAY, Interval, format_instant
from tidemill.records.plan import ReadPlan
from tidemill.rollups.cell_files import read_cells, write_cells
from tidemill.rollups.cells import Cells, accumulate, cells_within, merge
from tidemill.rollups.events import read_events
from tidemill.rollups.kernel import Admit, tile_span
from tidemill.rollups.planning import tiles_hash
from tidemill.rollups.recall import tile_builds
from tidemill.rollups.rows import from_rows, read_part, row_buckets
from tidemill.rollups.spec import RollupSpec
from tidemill.state.protocol import TileBuild

HOUR_LEVEL, DAY_LEVEL, WEEK_LEVEL = LEVELS[2:]
_LOW: Final = frozenset(level.name for level in LEVELS[:3])


@dataclass(frozen=True, slots=True)
class Difference:
    """A tile that is not what raw says it should be."""

    level: str
    start: int
    what: str

    @property
    def place(self) -> str:
        return f"{self.level} {format_instant(self.start)}" if self.level else "table"


@dataclass(frozen=True, slots=True)
class DayUnit:
    spec: RollupSpec
    plan: ReadPlan
    day: int
    raw: Sequence[str]
    tiles: Mapping[TileKey, str]  # parts of the 5s, 1m and 1h tiles of the day
    out: str
    expired: frozenset[TileKey] = frozenset()  # tiles that are kept no more
    extra: Sequence[str] = ()  # 5s cells of the day that are added as they are: those of state metrics
    admit: Admit | None = None  # what becomes of cells that are made here
    unknown: frozenset[str] = frozenset()  # metrics that can not be told from what raw still has


@dataclass(frozen=True, slots=True)
class HighCheck:
    spec: RollupSpec
    cells: Sequence[str]  # 1h cells of the days, as recomputed
    tiles: Mapping[TileKey, str]  # the 1d and 7d tiles
    passed_over: frozenset[TileKey] = frozenset()  # tiles that are kept no more, or that raw is gone for
    unknown: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Known:
    """What tiles are held against, beside raw."""

    desired: Mapping[int, frozenset[str]]  # per 5s tile the names of slices that it should be made of
    expired: Mapping[TileKey, str] = field(default_factory=dict)  # tiles kept no more, with their hashes
    sealed: int | None = None  # raw is gone before this
    states: Mapping[int, Sequence[str]] = field(default_factory=dict)  # day -> 5s cells of state metrics
    admit: Admit | None = None

    def unknown(self, spec: RollupSpec) -> frozenset[str]:
        """Metrics that look at what came before, when that is gone from raw."""
        if self.sealed is None:
            return frozenset()
        return frozenset(m.name for m in spec.metrics if m.following is not None or m.limit is not None)


def check_day(unit: DayUnit) -> Iterator[Difference]:
    """5s, 1m and 1h tiles of one day; leaves the 1h cells for the levels above."""
    span = Interval(unit.day, unit.day + DAY)
    events = read_events(unit.plan, unit.raw, span, None)
    made = [accumulate(unit.spec, table, BASE.width) for table in events]
    if unit.admit is not None:
        made = [unit.admit(cells) for cells in made]
    made += [read_cells(path) for path in unit.extra]
    cells = merge(unit.spec, made, BASE.width)
    for level in LEVELS[:3]:
        cells = merge(unit.spec, [cells], level.width)
        yield from _compare(unit.spec, level, cells, unit.tiles, unit.expired, unit.unknown)
    write_cells(Path(unit.out), cells)


def check_high(unit: HighCheck) -> Iterator[Difference]:
    cells = merge(unit.spec, [read_cells(path) for path in unit.cells], HOUR_LEVEL.width)
    for level in (DAY_LEVEL, WEEK_LEVEL):
        cells = merge(unit.spec, [cells], level.width)
        yield from _compare(unit.spec, level, cells, unit.tiles, unit.passed_over, unit.unknown)


def _compare(
    spec: RollupSpec,
    level: Level,
    cells: Cells,
    tiles: Mapping[TileKey, str],
    passed_over: frozenset[TileKey],
    unknown: frozenset[str],
) -> Iterator[Difference]:
    starts = set((row_buckets(cells) // level.tile * level.tile).tolist())
    starts |= {key.start for key in tiles if key.level == level.name}
    read: dict[str, Cells] = {}
    for start in sorted(starts):
        key = TileKey(level.name, start)
        if key in passed_over:
            continue
        wanted = cells_within(cells, tile_span(key))
        if key not in tiles:
            yield Difference(level.name, start, f"is missing; raw has {row_buckets(wanted).size} rows for it")
            continue
        path = tiles[key]
        try:
            if path not in read:
                read[path] = from_rows(spec, read_part(spec, path))
        except (OSError, pa.ArrowException) as error:
            yield Difference(level.name, start, f"can not be read: {str(error).splitlines()[0]}")
            continue
        known = {metric: table for metric, table in wanted.items() if metric not in unknown}
        if difference := _difference(known, cells_within(read[path], tile_span(key))):
            yield Difference(level.name, start, difference)


def _difference(wanted: Cells, stored: Cells) -> str | None:
    for metric, cells in wanted.items():
        ours, theirs = _plain(cells), _plain(stored[metric])
        if ours.equals(theirs):
            continue
        if ours.num_rows != theirs.num_rows:
            return f"{metric} has {theirs.num_rows} rows; raw says {ours.num_rows}"
        for name in ours.column_names:
            if not ours.column(name).equals(theirs.column(name)):
                pairs = zip(ours.column(name).to_pylist(), theirs.column(name).to_pylist(), strict=True)
                row, (want, have) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
                return f"row {row} of {metric}: {name} is {have}; raw says {want}"
        return f"{metric} differs"
    return None


def _plain(cells: pa.Table) -> pa.Table:
    """Dictionaries spelled out: their order is not content."""
    columns = [
        column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        for column in cells.columns
    ]
    return pa.table(columns, names=cells.column_names).combine_chunks()


def verify_tiles(
    spec: RollupSpec, plan: ReadPlan, raw: Table, table: Table, engine: Engine, known: Known, folder: Path
) -> tuple[int, int, list[Difference]]:
    """Tiles compared with raw, tiles that raw is gone for, and what differs."""
    builds: list[TileBuild] = []
    found: list[Difference] = []
    for part in table.snapshot().parts:
        try:
            builds += tile_builds(table, [part])
        except StorageError as error:
            found.append(Difference("", 0, f"{part.path}: {error.message}"))
    parts = {build.key: str(table.root / str(build.part)) for build in builds}
    found += _hashes(builds, known)
    if len(parts) != len(builds):
        found.append(Difference("", 0, "a tile has more than one part"))
    if (told := sum(build.rows for build in builds)) != (rows := table.snapshot().rows):
        found.append(Difference("", 0, f"parts hold {rows} rows; their tiles say {told}"))
    sealed = frozenset(key for key in parts if known.sealed is not None and key.start < known.sealed)
    days = _days(spec, plan, raw, {k: p for k, p in parts.items() if k not in sealed}, known, folder)
    size = sum(part.size for each in (raw, table) for part in each.snapshot().parts)
    found += engine.run(check_day, days, "verify 5s 1m 1h", size)
    by_year: dict[int, list[str]] = {}
    for unit in days:
        by_year.setdefault(WEEK_LEVEL.tile_of(unit.day), []).append(unit.out)
    high = {key: path for key, path in parts.items() if key.level not in _LOW}
    passed_over = sealed | known.expired.keys()
    units = [
        HighCheck(
            spec,
            files,
            {k: p for k, p in high.items() if year <= k.start < year + WEEK_LEVEL.tile},
            passed_over | _sealed_above(year, known.sealed),
            known.unknown(spec),
        )
        for year, files in sorted(by_year.items())
    ]
    found += engine.run(check_high, units, "verify 1d 7d", size)
    return len(parts) - len(sealed), len(sealed), sorted(found, key=lambda d: (d.level, d.start))


def _days(
    spec: RollupSpec,
    plan: ReadPlan,
    raw: Table,
    parts: Mapping[TileKey, str],
    known: Known,
    folder: Path,
) -> list[DayUnit]:
    by_day: dict[int, list[str]] = {}
    for part in raw.snapshot().parts:
        for day in _days_of(raw.root, part) if part.rows else ():
            if known.sealed is None or day >= known.sealed:
                by_day.setdefault(day, []).append(str(raw.root / part.path))
    low = {key: path for key, path in parts.items() if key.level in _LOW}
    for key in low:
        by_day.setdefault(key.start - key.start % DAY, [])
    expired = frozenset(known.expired)
    return [
        DayUnit(
            spec=spec,
            plan=plan,
            day=day,
            raw=files,
            tiles={key: path for key, path in low.items() if day <= key.start < day + DAY},
            out=str(folder / f"{day}.cells"),
            expired=expired,
            extra=known.states.get(day, ()),
            admit=known.admit,
            unknown=known.unknown(spec),
        )
        for day, files in sorted(by_day.items())
    ]


def _days_of(root: Path, part: Part) -> list[int]:
    """The days that a part of raw has rows of."""
    with open_part(str(root / part.path)) as file:
        times = file.read(["event_time"], use_threads=False).column("event_time").cast(pa.int64()).to_numpy()
    return (np.unique(times // DAY) * DAY).tolist()


def _sealed_above(year: int, sealed: int | None) -> frozenset[TileKey]:
    """The 1d and 7d tiles of a year that begin where raw is gone: what is recomputed lacks a part of them."""
    if sealed is None:
        return frozenset()
    return frozenset(
        TileKey(level.name, start)
        for level in (DAY_LEVEL, WEEK_LEVEL)
        for start in range(year, min(sealed, year + WEEK_LEVEL.tile), level.tile)
    )


def _hashes(builds: Sequence[TileBuild], known: Known) -> Iterator[Difference]:
    """Each tile's hash must be that of what it is made of, down to the slices that raw names."""
    hashes = {build.key: build.hash for build in builds} | dict(known.expired)
    for build in builds:
        under = below(BY_NAME[build.key.level])
        if under is None:
            slices = known.desired.get(build.key.start, frozenset())
            if build.slices != slices:
                said = f"is made of {len(build.slices)} slices; raw has rows of {len(slices)}"
                yield Difference(build.key.level, build.key.start, said)
            elif build.hash != set_hash(slices):
                yield Difference(build.key.level, build.key.start, "its hash is not that of its slices")
            continue
        span = tile_span(build.key)
        made_of = {k: h for k, h in hashes.items() if k.level == under.name and span.holds(k.start)}
        if build.hash != tiles_hash(made_of):
            yield Difference(build.key.level, build.key.start, f"is not made of the {under.name} tiles below")
    there = {key.start for key in hashes if key.level == BASE.name}
    for start in sorted(set(known.desired) - there):
        yield Difference(BASE.name, start, f"is missing: {format_instant(start)}")
