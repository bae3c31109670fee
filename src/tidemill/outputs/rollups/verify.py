"""Recomputes every tile from raw, independent of how it was built, and compares bit for bit.

Tiles are recomputed and compared by spans of time; only a span that differs is compared tile by tile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from tidemill.engine import Engine
from tidemill.engine.jobs import spread
from tidemill.formats.read_plan import ReadPlan
from tidemill.model.errors import StorageError
from tidemill.model.levels import BASE, BY_NAME, LEVELS, Level, TileKey, below
from tidemill.model.slices import set_hash
from tidemill.model.time import Interval, format_instant
from tidemill.outputs.rollups.cell_files import read_cells, read_partial, write_cells
from tidemill.outputs.rollups.cells import Cells, accumulate, merge, of_tiles, with_empty
from tidemill.outputs.rollups.events import read_events
from tidemill.outputs.rollups.kernel import NOWHERE, Admit, Positions
from tidemill.outputs.rollups.planning import UNIT_ROWS, is_made_of
from tidemill.outputs.rollups.rows import read_tiles, row_buckets
from tidemill.outputs.rollups.spec import RollupSpec
from tidemill.outputs.rollups.tile_parts import tile_builds
from tidemill.storage.bucket_path import warehouse_path
from tidemill.storage.state.protocol import TileBuild
from tidemill.storage.tables.table import Table

HOUR_LEVEL, DAY_LEVEL, WEEK_LEVEL = LEVELS[2:]
_LOW: Final = LEVELS[:3]
_EVER: Final = Interval(-(1 << 62), 1 << 62)


@dataclass(frozen=True, slots=True)
class TileDifference:
    """A tile that differs from what raw gives."""

    level: str
    start: int
    what: str

    @property
    def position(self) -> str:
        return f"{self.level} {format_instant(self.start)}" if self.level else "table"


@dataclass(frozen=True, slots=True)
class Passed:
    """Tiles that are not compared."""

    expired: Mapping[str, Sequence[int]] = field(default_factory=dict)  # by level, ascending: no longer kept
    before: int | None = None  # those that begin earlier: their raw has expired
    unknown: frozenset[str] = frozenset()  # metrics that cannot be computed from the rest of raw


@dataclass(frozen=True, slots=True)
class SpanCheck:
    """The 5s, 1m and 1h tiles of whole days."""

    spec: RollupSpec
    plan: ReadPlan
    span: Interval
    raw: Sequence[str]
    stored: Mapping[str, Positions]  # by level
    out: str
    passed: Passed = field(default_factory=Passed)
    extra: Sequence[str] = ()  # 5s cells that are added unchanged: those of state metrics
    admit: Admit | None = None  # renames the keys of cells that are made here


@dataclass(frozen=True, slots=True)
class HighCheck:
    """The 1d and 7d tiles."""

    spec: RollupSpec
    cells: Sequence[str]  # 1h cells, as recomputed
    stored: Mapping[str, Positions]
    passed: Passed = field(default_factory=Passed)


@dataclass(frozen=True, slots=True)
class TileReference:
    """What tiles are compared with, besides raw."""

    desired: Mapping[int, frozenset[str]]  # by 5s tile the names of the slices that it should be made from
    # Tiles that are no longer kept, with their hashes.
    expired: Mapping[TileKey, str] = field(default_factory=dict)
    sealed: int | None = None  # raw before this has expired
    states: Sequence[str] = ()  # files of 5s cells of state metrics
    admit: Admit | None = None

    def is_guessed(self, key: TileKey, made_of: Collection[int]) -> bool:
        """Whether a tile whose raw has expired is above tiles that are no longer kept: what those were made
        of may be known no longer."""
        under = below(BY_NAME[key.level])
        assert under is not None
        is_sealed = self.sealed is not None and key.start < self.sealed
        return is_sealed and any(TileKey(under.name, start) in self.expired for start in made_of)

    def passed(self, spec: RollupSpec) -> Passed:
        expired: dict[str, list[int]] = {}
        for key in sorted(self.expired):
            expired.setdefault(key.level, []).append(key.start)
        return Passed(expired, self.sealed, self._unknown(spec))

    def _unknown(self, spec: RollupSpec) -> frozenset[str]:
        """Metrics that depend on earlier events, if those have expired."""
        if self.sealed is None:
            return frozenset()
        return frozenset(m.name for m in spec.metrics if m.following is not None or m.limit is not None)


def check_span(unit: SpanCheck) -> Iterator[TileDifference]:
    """Compare a span; writes the 1h cells for the levels above."""
    events = read_events(unit.plan, unit.raw, unit.span, None)
    made = [accumulate(unit.spec, table, BASE.width) for table in events]
    if unit.admit is not None:
        made = [unit.admit(cells) for cells in made]
    made += [read_partial(path, unit.span) for path in unit.extra]
    cells = merge(unit.spec, made, BASE.width)
    for level in _LOW:
        if level is not BASE:
            cells = merge(unit.spec, [cells], level.width)
        yield from _compare(unit.spec, level, cells, unit.stored.get(level.name, NOWHERE), unit.passed)
    write_cells(warehouse_path(unit.out), cells)


def check_high(unit: HighCheck) -> Iterator[TileDifference]:
    cells = merge(unit.spec, [read_cells(path) for path in unit.cells], HOUR_LEVEL.width)
    for level in (DAY_LEVEL, WEEK_LEVEL):
        cells = merge(unit.spec, [cells], level.width)
        yield from _compare(unit.spec, level, cells, unit.stored.get(level.name, NOWHERE), unit.passed)


def _compare(
    spec: RollupSpec, level: Level, cells: Cells, stored: Positions, passed: Passed
) -> Iterator[TileDifference]:
    expected = _not_passed(with_empty(spec, cells), level, passed)
    read: dict[str, Cells] = {}
    for path, starts in stored.items():
        try:
            read[path] = with_empty(spec, read_tiles(spec, path, starts, level.tile))
        except (OSError, pa.ArrowException) as error:
            reason = f"cannot be read: {str(error).splitlines()[0]}"
            yield from (TileDifference(level.name, start, reason) for start in starts)
    there = sorted(start for starts in stored.values() for start in starts)
    yield from _missing(level, of_tiles(expected, there, level.tile, inside=False))
    readable = sorted(start for path in read for start in stored[path])
    expected = of_tiles(expected, readable, level.tile)
    expected = {name: table for name, table in expected.items() if name not in passed.unknown}
    if _same(spec, level, expected, list(read.values())):
        return
    for path, held in read.items():
        for start in stored[path]:
            computed = of_tiles(expected, [start], level.tile)
            if difference := _difference(computed, of_tiles(held, [start], level.tile)):
                yield TileDifference(level.name, start, difference)


def _not_passed(cells: Cells, level: Level, passed: Passed) -> Cells:
    found = of_tiles(cells, passed.expired.get(level.name, ()), level.tile, inside=False)
    if passed.before is None:
        return found
    begins = {name: _starts(table, level) for name, table in found.items()}
    return {name: table.filter(pa.array(begins[name] >= passed.before)) for name, table in found.items()}


def _missing(level: Level, cells: Cells) -> Iterator[TileDifference]:
    bucket = row_buckets(cells)
    starts, counts = np.unique(bucket - bucket % level.tile, return_counts=True)
    for start, rows in zip(starts.tolist(), counts.tolist(), strict=True):
        yield TileDifference(level.name, start, f"is missing; raw has {rows} rows for it")


def _starts(table: pa.Table, level: Level) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    bucket = row_buckets({"": table})
    return bucket - bucket % level.tile


def _same(spec: RollupSpec, level: Level, expected: Cells, stored: Sequence[Cells]) -> bool:
    """Whether all tiles together hold exactly the expected cells, each in one row."""
    whole = stored[0] if len(stored) == 1 else with_empty(spec, merge(spec, stored, level.width))
    for name, table in expected.items():
        if sum(cells[name].num_rows for cells in stored) != table.num_rows:
            return False
        if not _plain(table).equals(_plain(whole[name])):
            return False
    return True


def _difference(expected: Cells, stored: Cells) -> str | None:
    for metric, cells in expected.items():
        computed, in_table = _plain(cells), _plain(stored[metric])
        if computed.equals(in_table):
            continue
        if computed.num_rows != in_table.num_rows:
            return f"{metric} has {in_table.num_rows} rows; raw says {computed.num_rows}"
        for name in computed.column_names:
            if not computed.column(name).equals(in_table.column(name)):
                pairs = zip(computed.column(name).to_pylist(), in_table.column(name).to_pylist(), strict=True)
                row, (want, have) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
                return f"row {row} of {metric}: {name} is {have}; raw says {want}"
        return f"{metric} differs"
    return None


def _plain(cells: pa.Table) -> pa.Table:
    """Dictionaries decoded: their order is not content."""
    columns = [
        column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        for column in cells.columns
    ]
    return pa.table(columns, names=cells.column_names).combine_chunks()


def verify_tiles(
    spec: RollupSpec,
    plan: ReadPlan,
    raw: Table,
    table: Table,
    engine: Engine,
    known: TileReference,
    folder: Path,
) -> tuple[int, int, list[TileDifference]]:
    """The number of tiles compared with raw, of tiles whose raw has expired, and the differences."""
    builds: list[TileBuild] = []
    found: list[TileDifference] = []
    for part in table.snapshot().parts:
        try:
            builds += tile_builds(table, [part])
        except StorageError as error:
            found.append(TileDifference("", 0, f"{part.path}: {error.message}"))
    found += _hashes(builds, known)
    if len({build.key for build in builds}) != len(builds):
        found.append(TileDifference("", 0, "a tile has more than one part"))
    if (counted := sum(build.rows for build in builds)) != (rows := table.snapshot().rows):
        found.append(TileDifference("", 0, f"parts hold {rows} rows; their tiles say {counted}"))
    sealed = [build for build in builds if known.sealed is not None and build.key.start < known.sealed]
    open_ = [build for build in builds if known.sealed is None or build.key.start >= known.sealed]
    units = _spans(spec, plan, raw, table, open_, known, folder)
    size = sum(part.size for each in (raw, table) for part in each.snapshot().parts)
    found += engine.run(check_span, units, "verify 5s 1m 1h", size)
    above = [build for build in open_ if BY_NAME[build.key.level] not in _LOW]
    high = HighCheck(spec, [unit.out for unit in units], _stored(table, above), known.passed(spec))
    found += engine.run(check_high, [high], "verify 1d 7d", size)
    return len(builds) - len(sealed), len(sealed), sorted(found, key=lambda d: (d.level, d.start))


def _spans(
    spec: RollupSpec,
    plan: ReadPlan,
    raw: Table,
    table: Table,
    builds: Sequence[TileBuild],
    known: TileReference,
    folder: Path,
) -> list[SpanCheck]:
    """All of time, in spans of whole days with about the same number of rows."""
    low = [build for build in builds if BY_NAME[build.key.level] in _LOW]
    rows: dict[int, int] = {}
    for build in low:
        day = HOUR_LEVEL.tile_of(build.key.start)
        rows[day] = rows.get(day, 0) + build.rows
    days = sorted(rows)
    groups = spread([rows[day] for day in days], -(-sum(rows.values()) // (2 * UNIT_ROWS)) or 1)
    first = known.sealed if known.sealed is not None else _EVER.start
    cuts = [first, *(days[group[0]] for group in groups[1:]), _EVER.end]
    snapshot, passed = raw.snapshot(), known.passed(spec)
    units = []
    for start, end in pairwise(cuts):
        span = Interval(start, end)
        units.append(
            SpanCheck(
                spec=spec,
                plan=plan,
                span=span,
                raw=snapshot.paths(snapshot.select(None, {"event_time": (start, end - 1)})),
                stored=_stored(table, [build for build in low if span.holds(build.key.start)]),
                out=str(folder / f"{start}.cells"),
                passed=passed,
                extra=known.states,
                admit=known.admit,
            )
        )
    return units


def _stored(table: Table, builds: Sequence[TileBuild]) -> dict[str, dict[str, list[int]]]:
    """The positions of these tiles, by level."""
    found: dict[str, dict[str, list[int]]] = {}
    for build in sorted(builds, key=lambda build: build.key):
        positions = found.setdefault(build.key.level, {})
        positions.setdefault(str(table.root / str(build.part)), []).append(build.key.start)
    return found


def _hashes(builds: Sequence[TileBuild], known: TileReference) -> Iterator[TileDifference]:
    """Check each tile's hash against what it is made from, down to the slices in raw."""
    hashes: dict[str, dict[int, str]] = {level.name: {} for level in LEVELS}
    for key, digest in known.expired.items():
        hashes[key.level][key.start] = digest
    for build in builds:
        hashes[build.key.level][build.key.start] = build.hash
    made_of = {level.name: _by_tile(level, hashes) for level in LEVELS[1:]}
    for build in builds:
        level, start = build.key.level, build.key.start
        if level == BASE.name:
            slices = known.desired.get(start, frozenset())
            if known.sealed is not None and start < known.sealed:
                slices |= build.slices  # of those that touched it, some may be known no longer
            if build.slices != slices:
                reason = f"is made of {len(build.slices)} slices; raw has rows of {len(slices)}"
                yield TileDifference(level, start, reason)
            elif build.hash != set_hash(slices):
                yield TileDifference(level, start, "its hash is not that of its slices")
        elif not is_made_of(build.hash, made_of[level].get(start, {})):
            under = below(BY_NAME[level])
            assert under is not None
            if known.is_guessed(build.key, made_of[level].get(start, {})):
                continue
            yield TileDifference(level, start, f"is not made of the {under.name} tiles below")
    for start in sorted(known.desired.keys() - hashes[BASE.name].keys()):
        yield TileDifference(BASE.name, start, f"is missing: {format_instant(start)}")


def _by_tile(level: Level, hashes: Mapping[str, Mapping[int, str]]) -> dict[int, dict[int, str]]:
    """For the tiles of a level, those below them with their hashes."""
    under = below(level)
    assert under is not None
    found: dict[int, dict[int, str]] = {}
    for start, digest in hashes[under.name].items():
        found.setdefault(level.tile_of(start), {})[start] = digest
    return found
