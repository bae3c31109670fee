"""Plans what to build to make stale tiles current: which tiles, from what, and why. It opens no part.

A tile that only grew is the old one merged with what is new. If something left it, if metrics depend on
earlier events and the batch is not in memory, or if a rebuild was asked for, it is made again: 5s tiles from
raw, higher ones from the tiles below. Tiles above one that is made again are made again too.

The cost of a round depends on rows, not on tiles: units are runs of neighbouring tiles with about the same
number of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from tidemill.engine.jobs import spread
from tidemill.formats.arrays import Ints
from tidemill.formats.read_plan import ReadPlan
from tidemill.ingest.expiry_log import ExpiryLog
from tidemill.ingest.warehouse import Warehouse
from tidemill.model.errors import StorageError
from tidemill.model.levels import (
    BASE,
    BY_NAME,
    LEVELS,
    TO_BE_MADE,
    BaseTile,
    Level,
    TileKey,
    TileState,
    below,
)
from tidemill.model.names import ROLLUPS
from tidemill.model.slices import contribution_of, hash_of, set_hash
from tidemill.model.time import Interval, format_instant
from tidemill.outputs.rollups.admitted_keys import AdmittedKeys
from tidemill.outputs.rollups.cell_files import PARTIAL
from tidemill.outputs.rollups.kernel import CarryUnit, HighUnit, LowUnit, TileWork, handed_path
from tidemill.outputs.rollups.spec import RollupSpec
from tidemill.outputs.rollups.tile_parts import PART_ROWS, Tile
from tidemill.storage.bucket_path import size_of
from tidemill.storage.state.protocol import Tiles
from tidemill.storage.tables.snapshot import Snapshot

MINUTE_LEVEL, HOUR_LEVEL, DAY_LEVEL, WEEK_LEVEL = LEVELS[1:]
UNIT_ROWS: Final = 4 * PART_ROWS  # expected rows of the 5s tiles that are built in one pass
_NOTHING: Final = set_hash(())
FEW_ROWS: Final = PART_ROWS // 4  # parts that keep fewer rows are carried together


@dataclass(frozen=True, slots=True)
class Fresh:
    """What the batch that was just accepted left for the tiles it touched."""

    tiles: Mapping[int, frozenset[str]]  # 5s tile start -> ids of the slices whose rows it holds
    folder: Path


@dataclass(frozen=True, slots=True)
class Horizons:
    """The instants before which each level, and raw, have expired."""

    levels: Mapping[str, int] = field(default_factory=dict)
    raw: int | None = None
    lost: Mapping[str, Sequence[Interval]] = field(default_factory=dict)  # by level: whole tiles
    lost_raw: Sequence[Interval] = ()  # spans of damaged parts of raw that cannot be made again

    def expired(self, key: TileKey) -> bool:
        """Whether the tile is known but no longer kept: its level has expired there, or it was lost."""
        if not self.levels and not self.lost:
            return False
        lost = self.lost.get(key.level, ())
        return self.let_go(key) or any(span.start <= key.start < span.end for span in lost)

    def let_go(self, key: TileKey) -> bool:
        """Whether all tiles of its level up to that one have expired."""
        return key.level in self.levels and key.start < self.levels[key.level]

    def sealed(self, key: TileKey) -> bool:
        """Whether raw has expired, or is lost, for some or all of the tile."""
        if self.raw is not None and key.start < self.raw:
            return True
        span = Interval(key.start, key.start + BY_NAME[key.level].tile)
        return any(span.overlaps(one) for one in self.lost_raw)

    def open(self, key: TileKey) -> bool:
        """Whether the tile, and those above it, can be made again from raw. One above it keeps what raw no
        longer has, unless it has expired itself: then all of it must be in raw."""
        above = LEVELS[LEVELS.index(BY_NAME[key.level]) + 1 :]
        unkept = (TileKey(level.name, level.tile_of(key.start)) for level in above)
        return not self.sealed(key) and not any(self.let_go(one) and self.sealed(one) for one in unkept)


def horizons_of(warehouse: Warehouse, stream: str) -> Horizons:
    """From the log of expiries: `raw`, and `rollups:` with the name of a level."""
    log = warehouse.expiries
    until = log.horizons(stream)
    levels = {name.removeprefix(ROLLUPS): at for name, at in until.items() if name.startswith(ROLLUPS)}
    lost_raw = [one.span for one in warehouse.lost("raw", stream)]
    return Horizons(levels, until.get("raw"), lost_tiles(log, stream), lost_raw)


def can_be_made(tiles: Tiles, stream: str, key: TileKey, horizons: Horizons) -> bool:
    """Whether a tile can be made again: a 5s tile from raw, a higher one from those below it, or from raw."""
    if key.level == BASE.name:
        return not horizons.sealed(key)
    span = Interval(key.start, key.start + BY_NAME[key.level].tile)
    under = LEVELS[: LEVELS.index(BY_NAME[key.level])]
    if any(span.overlaps(one) for level in under for one in horizons.lost.get(level.name, ())):
        return False
    return not _is_let_go_below(tiles, stream, span, under, horizons) or horizons.open(key)


def _is_let_go_below(
    tiles: Tiles, stream: str, span: Interval, under: Iterable[Level], horizons: Horizons
) -> bool:
    return any(
        horizons.let_go(tile.key)
        for level in under
        if level.name in horizons.levels
        for tile in tiles.tiles(stream, level.name, span)
    )


def lost_tiles(log: ExpiryLog, stream: str) -> dict[str, list[Interval]]:
    """By level, the spans of tiles that were lost with damaged files."""
    return {
        name.removeprefix(ROLLUPS): [one.span for one in losses]
        for name, losses in log.losses(stream).items()
        if name.startswith(ROLLUPS)
    }


@dataclass(slots=True)
class TilePlan:
    """Units of one list may run in parallel; `hours` need the output of `low`, and `above` the output of
    `hours`, unless `days_too`."""

    low: list[LowUnit] = field(default_factory=list)
    hours: list[HighUnit] = field(default_factory=list)
    above: list[HighUnit] = field(default_factory=list)
    carry: list[CarryUnit] = field(default_factory=list)
    days_too: bool = True
    reasons: dict[TileKey, str] = field(default_factory=dict)
    # tiles that only the state knows from now on
    unkept: list[tuple[TileKey, Tile]] = field(default_factory=list)
    # Parts that are replaced, with the tiles that changed.
    replaced: dict[str, list[int]] = field(default_factory=dict)
    whole: list[int] = field(default_factory=list)  # starts of 5s tiles made only from raw
    # Starts of 5s tiles that only grow, by events of raw: by the ids of the slices that they lack.
    grown: dict[frozenset[str], list[int]] = field(default_factory=dict)


class _Target(NamedTuple):
    """A tile to be built."""

    tile: Tile
    kept: bool
    old: str | None  # its part, if it only grows
    again: bool
    below: Sequence[tuple[str, int]] = ()  # parts and starts of tiles below that did not change
    # its own part, and starts of tiles below that are gone with their raw
    sealed: Sequence[tuple[str, int]] = ()
    partial: bool = False  # it lacks what is gone: that only matters to tiles above it


class Planner:
    """Plans one round for the tiles of one stream."""

    def __init__(
        self,
        spec: RollupSpec,
        reading: ReadPlan,
        state: Tiles,
        raw: Snapshot,
        table: Snapshot,
        horizons: Horizons,
        admitted_keys: AdmittedKeys | None,
    ) -> None:
        self._spec = spec
        self._reading = reading
        self._state = state
        self._raw = raw
        self._table = table
        self._horizons = horizons
        self._admitted_keys = admitted_keys
        self._plan = TilePlan()
        self._made_again: set[int] = set()  # starts of 5s tiles that are made again
        self._all_levels = False  # whether tiles above these are made again even if nothing below changed
        self._left: Mapping[int, frozenset[str]] = {}  # what the batch left, by 5s tile

    def plan(
        self, stale: Sequence[BaseTile], fresh: Fresh | None, folder: Path, *, again: bool = False
    ) -> TilePlan:
        """Plan these 5s tiles, and those above them; with `again` all of them are made again."""
        self._all_levels = again
        found = {tile.state.key.start: tile for tile in stale}
        self._left = fresh.tiles if fresh is not None else {}
        self._made_again = {start for start, tile in found.items() if again or self._must_be_made_again(tile)}
        for tile in self._with_neighbours():
            found.setdefault(tile.state.key.start, tile)
            self._made_again.add(tile.state.key.start)
        tiles = [found[start] for start in sorted(found)]
        levels = self._targets(tiles)
        hours = {HOUR_LEVEL.tile_of(start) for start in found}
        is_spared = len(levels[HOUR_LEVEL.name]) < len(hours)
        is_again = any(target.again for target in levels[DAY_LEVEL.name].values())
        self._plan.days_too = not is_again and not is_spared
        partials = sorted(str(p) for p in fresh.folder.glob(f"*{PARTIAL}")) if fresh else []
        self._add_units(found, levels, partials, folder)
        self._plan.carry = carry_units(self._spec, self._table, self._plan.replaced, folder)
        return self._plan

    def _must_be_made_again(self, tile: BaseTile) -> bool:
        if tile.observed - tile.desired:
            return True
        if tile.state.hash == TO_BE_MADE and not self._horizons.sealed(tile.state.key):
            return True
        # What a change of state adds does not follow from the new slices alone.
        return self._spec.follows and not self._is_left(tile) and not self._horizons.sealed(tile.state.key)

    def _is_left(self, tile: BaseTile) -> bool:
        """Whether the batch left everything that the tile lacks."""
        return self._left.get(tile.state.key.start) == _missing(tile.desired, tile.observed)

    def _with_neighbours(self) -> list[BaseTile]:
        """Add tiles that must be made again only because a level between them and a higher one is not
        kept."""
        more: set[int] = set()
        for level in LEVELS[1:]:
            under = below(level)
            assert under is not None
            starts = sorted({level.tile_of(each) for each in (*self._made_again, *more)})
            gone = [start for start in starts if self._horizons.let_go(TileKey(under.name, start))]
            spans = [Interval(start, start + level.tile) for start in gone]
            beside = self._state.tiles(self._spec.stream, BASE.name, spans) if spans else []
            more |= {
                tile.key.start for tile in beside if not self._horizons.sealed(tile.key)
            } - self._made_again
        return self._state.base_tiles(self._spec.stream, more) if more else []

    # -- which tiles, of what

    def _targets(self, tiles: Sequence[BaseTile]) -> dict[str, dict[int, _Target]]:
        """By level and start."""
        found = {BASE.name: {tile.state.key.start: self._base_target(tile) for tile in tiles}}
        for level in LEVELS[1:]:
            under = below(level)
            assert under is not None
            starts = {level.tile_of(tile.state.key.start) for tile in tiles}
            found[level.name] = self._targets_above(level, under, starts, found[under.name])
        return found

    def _base_target(self, tile: BaseTile) -> _Target:
        key, state = tile.state.key, tile.state
        again = key.start in self._made_again
        if again and self._horizons.sealed(key):
            raise _cannot_be_made_again(key)
        self._plan.reasons[key] = _reason(tile.desired, tile.observed, is_new=state.hash is None)
        return self._target(key, hash_of(tile.desired), state, again=again, slices=tile.desired)

    def _targets_above(
        self, level: Level, under: Level, starts: Iterable[int], changed: Mapping[int, _Target]
    ) -> dict[int, _Target]:
        """The tiles at these starts, except those that already are what they should be."""
        parents: dict[int, list[int]] = {start: [] for start in sorted(starts)}
        for start in changed:
            parents[level.tile_of(start)].append(start)
        spans = [Interval(start, start + level.tile) for start in parents]
        known: dict[int, dict[int, TileState]] = {start: {} for start in parents}
        for tile in self._state.tiles(self._spec.stream, under.name, spans):
            known[level.tile_of(tile.key.start)][tile.key.start] = tile
        positions = [Interval(start, start + 1) for start in parents]
        built = {t.key.start: t for t in self._state.tiles(self._spec.stream, level.name, positions)}
        again = {level.tile_of(start) for start in self._made_again}
        targets = {
            start: self._target_above(
                TileKey(level.name, start),
                built.get(start),
                known[start],
                {s: changed[s] for s in new},
                is_again=start in again,
            )
            for start, new in parents.items()
        }
        return {start: target for start, target in targets.items() if target is not None}

    def _target_above(
        self,
        key: TileKey,
        old: TileState | None,
        known: Mapping[int, TileState],
        new: Mapping[int, _Target],
        *,
        is_again: bool,
    ) -> _Target | None:
        """A tile can be merged if its old hash equals the hash of the current tiles below it, and no 5s tile
        below it `is_again` made. None if it stays as it is."""
        before = {start: str(tile.hash) for start, tile in known.items()}
        after = before | {start: target.tile.hash for start, target in new.items()}
        made = tiles_hash(after)
        if old is not None and old.part is not None and old.hash == made and not self._all_levels:
            return None
        changed = sum(1 for start, digest in after.items() if before.get(start) != digest)
        self._plan.reasons[key] = f"{changed} of {len(after)} tiles below changed"
        grows = old is not None and is_made_of(old.hash, before)
        first = not known and (old is None or old.hash is None)  # otherwise what it was made of is lost
        is_again = is_again or any(target.again for target in new.values())
        if (grows or first) and not is_again:
            return self._target(key, made, old, again=False)
        unchanged = [(tile.part, start) for start, tile in known.items() if start not in new and tile.part]
        gone = [
            start
            for start, tile in known.items()
            if self._is_gone(tile) and (start not in new or not new[start].again)
        ]
        sealed = [(old.part, start) for start in gone] if old is not None and old.part is not None else []
        partial = len(sealed) < len(gone) or any(target.partial for target in new.values())
        target = self._target(key, made, old, again=True, below=unchanged, sealed=sealed)
        if partial and target.kept:
            raise _cannot_be_made_again(key)
        return target._replace(partial=partial)

    def _is_gone(self, tile: TileState) -> bool:
        """Whether neither the tile nor raw has its buckets: a tile above keeps them as they are, since a tile
        is as long as some whole buckets of the one above."""
        return not tile.part and tile.hash != _NOTHING and self._horizons.expired(tile.key)

    def _target(
        self,
        key: TileKey,
        made: str,
        old: TileState | None,
        *,
        again: bool,
        slices: frozenset[str] = frozenset(),
        below: Sequence[tuple[str, int]] = (),
        sealed: Sequence[tuple[str, int]] = (),
    ) -> _Target:
        """The tile that will have the hash `made`. One that is not kept still carries what is new to the
        levels above."""
        part = old.part if old is not None else None
        if part is not None:
            self._plan.replaced.setdefault(part, []).append(key.start)
        kept = not self._horizons.expired(key)
        revision = (old.revision if old is not None else 0) + 1 if kept else 0
        tile = Tile(key.start, made, revision, self._spec.declared, slices)
        if not kept:
            self._plan.unkept.append((key, tile))
        return _Target(tile, kept, part if not again else None, again, below, sealed)

    # -- units of work

    def _add_units(
        self,
        tiles: Mapping[int, BaseTile],
        levels: Mapping[str, Mapping[int, _Target]],
        partials: Sequence[str],
        folder: Path,
    ) -> None:
        base = levels[BASE.name]
        counts = expected_rows(self._spec, self._raw, [tiles[start] for start in base])
        expected = dict(zip(base, counts, strict=True))
        by_hour = _grouped(base, MINUTE_LEVEL)
        hours = list(by_hour)
        rows = [sum(int(expected[start]) for start in by_hour[hour]) for hour in hours]
        names: dict[int, str] = {}  # by hour, the unit that builds it
        for number, run in enumerate(spread(rows, -(-sum(rows) // UNIT_ROWS))):
            name, built = f"{number:05d}", [hours[i] for i in run]
            names |= dict.fromkeys(built, name)
            unit = self._low_unit(tiles, levels, built, by_hour, partials, folder, name)
            self._plan.low.append(replace(unit, rows=sum(rows[i] for i in run)))
        by_day = _grouped(hours, HOUR_LEVEL)
        row_of = dict(zip(hours, rows, strict=True))
        days = list(by_day)
        sizes = [sum(row_of[hour] for hour in by_day[day]) for day in days]
        for number, run in enumerate(spread(sizes, -(-sum(sizes) // UNIT_ROWS))):
            group = [days[i] for i in run]
            read = dict.fromkeys(names[hour] for day in group for hour in by_day[day])
            self._plan.hours.append(
                HighUnit(
                    spec=self._spec,
                    works=[self._work(HOUR_LEVEL, _present(levels[HOUR_LEVEL.name], group))],
                    handed=[str(handed_path(folder, name, HOUR_LEVEL)) for name in read],
                    folder=str(folder),
                    leave=None if self._plan.days_too else str(handed_path(folder, f"h{number}", DAY_LEVEL)),
                    again=_starts_made_again(levels[DAY_LEVEL.name].values()),
                )
            )
        handed = [str(unit.leave) for unit in self._plan.hours]
        if self._plan.days_too:
            handed = [str(handed_path(folder, unit.name, DAY_LEVEL)) for unit in self._plan.low]
        works = [self._work(level, list(levels[level.name].values())) for level in (DAY_LEVEL, WEEK_LEVEL)]
        self._plan.above.append(HighUnit(self._spec, works, handed, str(folder)))

    def _low_unit(
        self,
        tiles: Mapping[int, BaseTile],
        levels: Mapping[str, Mapping[int, _Target]],
        hours: Sequence[int],
        by_hour: Mapping[int, Sequence[int]],
        partials: Sequence[str],
        folder: Path,
        name: str,
    ) -> LowUnit:
        starts = [start for hour in hours for start in by_hour[hour]]
        above = {HOUR_LEVEL.tile_of(hour): None for hour in hours}
        left = [start for start in starts if start not in self._made_again and self._is_left(tiles[start])]
        whole = [start for start in starts if start in self._made_again]
        self._plan.whole += whole
        there = frozenset(left)
        grown = [start for start in starts if start not in self._made_again and start not in there]
        for start in grown if self._spec.follows else ():
            if lacking := _missing(tiles[start].desired, tiles[start].observed):
                self._plan.grown.setdefault(lacking, []).append(start)
        wanted = {start: self._from_raw(tiles[start]) for start in starts if start not in there}
        wanted = {start: ids for start, ids in wanted.items() if ids}
        return LowUnit(
            spec=self._spec,
            plan=self._reading,
            base=self._work(BASE, [levels[BASE.name][start] for start in starts]),
            minutes=self._work(MINUTE_LEVEL, _present(levels[MINUTE_LEVEL.name], hours)),
            hours_again=_starts_made_again(_present(levels[HOUR_LEVEL.name], above)),
            folder=str(folder),
            name=name,
            partials=partials if left else (),
            left=left,
            raw=raw_parts(self._raw, list(wanted)),
            wanted=wanted,
            extra_for=sorted([*whole, *grown]),
            admit=self._admitted_keys.admit if self._admitted_keys is not None else None,
            days_too=self._plan.days_too,
        )

    def _from_raw(self, tile: BaseTile) -> frozenset[str]:
        again = tile.state.key.start in self._made_again
        return _ids(tile.desired) if again else _missing(tile.desired, tile.observed)

    def _work(self, level: Level, targets: Sequence[_Target]) -> TileWork:
        old: dict[str, list[int]] = {}
        unchanged: dict[str, list[int]] = {}
        sealed: dict[str, list[int]] = {}
        for target in targets:
            if target.old is not None:
                old.setdefault(self._absolute(target.old), []).append(target.tile.start)
            for part, start in target.below:
                unchanged.setdefault(self._absolute(part), []).append(start)
            for part, start in target.sealed:
                sealed.setdefault(self._absolute(part), []).append(start)
        return TileWork(
            level=level.name,
            tiles=[target.tile for target in targets if target.kept],
            unkept=sorted(target.tile.start for target in targets if not target.kept),
            old={path: sorted(starts) for path, starts in old.items()},
            again=_starts_made_again(targets),
            below={path: sorted(starts) for path, starts in unchanged.items()},
            sealed={path: sorted(starts) for path, starts in sealed.items()},
        )

    def _absolute(self, part: str) -> str:
        return str(self._table.root / part)


def carry_units(
    spec: RollupSpec, table: Snapshot, leaving: Mapping[str, Sequence[int]], folder: Path
) -> list[CarryUnit]:
    """Units for the other tiles of parts that tiles leave. Small parts of one level are carried together."""
    units: list[CarryUnit] = []
    small: dict[str, tuple[int, dict[str, list[int]]]] = {}
    for path, starts in sorted(leaving.items()):
        part = table.by_path[path]
        level, position = part.partition["level"], {str(table.root / path): sorted(starts)}
        if part.rows >= FEW_ROWS:
            units.append(CarryUnit(spec, level, position, str(folder)))
            continue
        rows, positions = small.get(level, (0, {}))
        small[level] = (rows + part.rows, positions | position)
        if rows + part.rows >= UNIT_ROWS:
            units.append(CarryUnit(spec, level, small.pop(level)[1], str(folder)))
    units += [CarryUnit(spec, level, positions, str(folder)) for level, (_, positions) in small.items()]
    return units


def file_bytes(paths: Iterable[str]) -> int:
    return sum(size_of(path) for path in paths)


def tiles_hash(hashes: Mapping[int, str]) -> str:
    """The hash of a tile above the base: of the tiles below it, by their starts. Those that are made of
    nothing, since all their slices were retracted, do not count: of expired ones only the state knows."""
    return set_hash(f"{start}:{digest}" for start, digest in hashes.items() if digest != _NOTHING)


def is_made_of(digest: str | None, hashes: Mapping[int, str]) -> bool:
    """Whether that is the hash of a tile above these. Earlier versions counted those made of nothing, too."""
    return digest in (tiles_hash(hashes), set_hash(f"{start}:{one}" for start, one in hashes.items()))


def _grouped(starts: Iterable[int], level: Level) -> dict[int, list[int]]:
    """The starts by the tile of a level that they lie in, in order."""
    found: dict[int, list[int]] = {}
    for start in sorted(starts):
        found.setdefault(start - start % level.tile, []).append(start)
    return found


def _present(targets: Mapping[int, _Target], starts: Iterable[int]) -> list[_Target]:
    """Those of the tiles at these starts that are built."""
    return [targets[start] for start in starts if start in targets]


def _starts_made_again(targets: Iterable[_Target]) -> list[int]:
    return sorted(target.tile.start for target in targets if target.again)


def _cannot_be_made_again(key: TileKey) -> StorageError:
    return StorageError(
        f"the {key.level} tile of {format_instant(key.start)} cannot be made again: raw is gone for it",
        hint="it is sealed: it can be read, and late events are merged into it",
    )


@lru_cache(maxsize=1024)
def _reason(desired: frozenset[str], observed: frozenset[str], *, is_new: bool) -> str:
    missing, gone = desired - observed, observed - desired
    if is_new:
        return f"new: {_slices(len(missing))}"
    if gone:
        return f"{_slices(len(gone))} left, {len(missing)} came"
    if not missing:
        return f"made again of {_slices(len(desired))}"
    return f"late: {_slices(len(missing))} beside {len(observed)}"


@lru_cache(maxsize=1024)
def _ids(names: frozenset[str]) -> frozenset[str]:
    """The ids of slices as rows of raw have them."""
    return frozenset(contribution_of(name)[0] for name in names)


@lru_cache(maxsize=1024)
def _missing(desired: frozenset[str], observed: frozenset[str]) -> frozenset[str]:
    """The ids of the slices that a tile lacks."""
    return _ids(desired - observed)


def _slices(count: int) -> str:
    return "1 slice" if count == 1 else f"{count} slices"


def expected_rows(spec: RollupSpec, raw: Snapshot, tiles: Sequence[BaseTile]) -> list[int]:
    """About how many rows the 5s tiles will have, in order: the events in raw, if spread evenly over its
    parts, for each metric; or the rows they have now."""
    starts = np.array([tile.state.key.start for tile in tiles], np.int64)
    order = np.argsort(starts, kind="stable")
    starts = starts[order]
    change = np.zeros(starts.size + 1)
    for part in raw.parts:
        low, high = part.mins.get("event_time"), part.maxs.get("event_time")
        if part.rows and isinstance(low, int) and isinstance(high, int):
            first, last = BASE.tile_of(low), BASE.tile_of(high)
            density = part.rows / ((last - first) // BASE.tile + 1)
            at, end = np.searchsorted(starts, [first, last + 1])
            change[at] += density
            change[end] -= density
    events = np.empty(starts.size)
    events[order] = np.cumsum(change[:-1])
    made = (events * max(1, len(spec.declared_metrics))).astype(np.int64)
    rows = np.array([tile.state.rows for tile in tiles], np.int64)
    least: list[int] = np.maximum(np.maximum(made, rows), 1).tolist()
    return least


def raw_parts(raw: Snapshot, starts: Sequence[int]) -> list[str]:
    """Paths of the parts of raw that may hold events of the 5s tiles that begin at `starts`."""
    if not starts:
        return []
    begins: Ints = np.array(sorted(starts), np.int64)
    span = (int(begins[0]), int(begins[-1]) + BASE.tile - 1)
    found = []
    for part in raw.select(None, {"event_time": span}):
        low, high = part.mins.get("event_time"), part.maxs.get("event_time")
        if isinstance(low, int) and isinstance(high, int):
            first, last = np.searchsorted(begins, [low - BASE.tile + 1, high + 1])
            if first == last:
                continue
        found.append(part)
    return raw.paths(found)
