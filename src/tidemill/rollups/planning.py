"""What has to be built to make stale tiles current: which tiles, of what, and why. It opens no part.

A tile that only grew is the old one merged with what is new. Where something left, where metrics look at what
came before and the batch is not at hand, or where somebody asked for it, it is made again: the 5s tiles from
raw, those above from the tiles below them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tidemill.lake.snapshot import Snapshot
from tidemill.model.errors import StorageError
from tidemill.model.levels import BASE, BY_NAME, LEVELS, Level, below
from tidemill.model.names import ROLLUPS
from tidemill.model.slices import contribution_of, set_hash
from tidemill.model.tiles import BaseTile, TileKey, TileState
from tidemill.model.time import Interval, format_instant
from tidemill.records.plan import ReadPlan
from tidemill.rollups.cell_files import PARTIAL
from tidemill.rollups.kernel import (
    BaseTarget,
    Carried,
    HighUnit,
    LowUnit,
    Target,
    delta_path,
    tile_span,
)
from tidemill.rollups.roster import Roster
from tidemill.rollups.spec import RollupSpec
from tidemill.state.protocol import State

MINUTE_LEVEL, HOUR_LEVEL, DAY_LEVEL, WEEK_LEVEL = LEVELS[1:]
ABOVE: Final = (HOUR_LEVEL, DAY_LEVEL, WEEK_LEVEL)


@dataclass(frozen=True, slots=True)
class Fresh:
    """What the batch that was just accepted left for the tiles it touched."""

    tiles: Mapping[int, frozenset[str]]  # 5s tile start -> ids of the slices whose rows it holds
    folder: Path


@dataclass(frozen=True, slots=True)
class Horizons:
    """Before which instant things were let go of, by the name of a level; and before which raw was."""

    levels: Mapping[str, int] = field(default_factory=dict)
    raw: int | None = None

    def expired(self, key: TileKey) -> bool:
        """Whether the tile is known, and kept no more."""
        return key.level in self.levels and key.start < self.levels[key.level]

    def sealed(self, key: TileKey) -> bool:
        """Whether raw is gone for what the tile spans, all of it or some."""
        return self.raw is not None and key.start < self.raw


def horizons_of(told: Mapping[str, int]) -> Horizons:
    """As the log of expiries tells them: `raw`, and `rollups:` with the name of a level."""
    levels = {name.removeprefix(ROLLUPS): at for name, at in told.items() if name.startswith(ROLLUPS)}
    return Horizons(levels, told.get("raw"))


@dataclass(slots=True)
class TilePlan:
    low: list[LowUnit] = field(default_factory=list)
    high: list[HighUnit] = field(default_factory=list)
    reasons: dict[TileKey, str] = field(default_factory=dict)
    replaced: set[str] = field(default_factory=set)  # paths of the parts that go
    low_bytes: int = 0  # of the files that the low units read
    whole: dict[int, Sequence[str]] = field(default_factory=dict)  # 5s tiles made of raw alone -> its parts


class Planner:
    """Plans one round for the tiles of one stream."""

    def __init__(
        self,
        spec: RollupSpec,
        reading: ReadPlan,
        state: State,
        raw: Snapshot,
        table: Path,
        horizons: Horizons,
        roster: Roster | None,
    ) -> None:
        self._spec = spec
        self._reading = reading
        self._state = state
        self._raw = raw
        self._table = table
        self._horizons = horizons
        self._roster = roster
        self._plan = TilePlan()
        self._hashes: dict[TileKey, str] = {}  # of the tiles as they will be
        self._again: set[int] = set()  # starts of 5s tiles that are made again
        self._left: Mapping[int, frozenset[str]] = {}  # what the batch left, by 5s tile

    def plan(
        self, stale: Sequence[BaseTile], fresh: Fresh | None, folder: Path, *, anew: bool = False
    ) -> TilePlan:
        """For these 5s tiles; with `anew` all of them are made again, whatever they were made of."""
        found = {tile.state.key.start: tile for tile in stale}
        self._left = fresh.tiles if fresh is not None else {}
        self._again = {start for start, tile in found.items() if anew or self._must_be_made_again(tile)}
        for tile in self._with_neighbours(found):
            found[tile.state.key.start] = tile
            self._again.add(tile.state.key.start)
        tiles = [found[start] for start in sorted(found)]
        self._hashes = {tile.state.key: set_hash(tile.desired) for tile in tiles}
        partials = sorted(str(p) for p in fresh.folder.glob(f"*{PARTIAL}")) if fresh else []
        by_minute: dict[int, list[BaseTile]] = {}
        for tile in tiles:
            by_minute.setdefault(MINUTE_LEVEL.tile_of(tile.state.key.start), []).append(tile)
        for start, group in by_minute.items():
            self._plan.low.append(self._low_unit(start, group, partials, folder))
        read = {path for unit in self._plan.low for target in unit.base for path in target.raw}
        old = [self._absolute(path) for path in self._plan.replaced]
        self._plan.low_bytes = file_bytes([*partials, *read, *old])
        self._plan.high.extend(self._high_units(by_minute, folder))
        return self._plan

    def _must_be_made_again(self, tile: BaseTile) -> bool:
        if tile.observed - tile.desired:
            return True
        # What a change of state adds can not be told by the slices that came alone.
        return self._spec.follows and not self._is_left(tile) and not self._horizons.sealed(tile.state.key)

    def _is_left(self, tile: BaseTile) -> bool:
        """Whether the batch left all that the tile lacks."""
        return self._left.get(tile.state.key.start) == _ids(tile.desired - tile.observed)

    def _with_neighbours(self, found: Mapping[int, BaseTile]) -> list[BaseTile]:
        """Tiles that must be made again only because a level between them and one above is kept no more."""
        more: dict[int, BaseTile] = {}
        for level in LEVELS[1:]:
            under = below(level)
            assert under is not None
            for start in sorted({level.tile_of(each) for each in (*self._again, *more)}):
                if self._horizons.expired(TileKey(under.name, start)):
                    span = Interval(start, start + level.tile)
                    for state in self._state.tiles(self._spec.stream, BASE.name, span):
                        if state.key.start not in found and state.key.start not in more:
                            more[state.key.start] = self._base_tile(state.key.start)
        return list(more.values())

    def _base_tile(self, start: int) -> BaseTile:
        tile = self._state.base_tile(self._spec.stream, start)
        assert tile is not None, start
        return tile

    # -- 5s and 1m

    def _low_unit(
        self, start: int, tiles: Sequence[BaseTile], partials: Sequence[str], folder: Path
    ) -> LowUnit:
        key = TileKey(MINUTE_LEVEL.name, start)
        base = [self._base_target(tile, partials) for tile in tiles]
        again = any(tile.state.key.start in self._again for tile in tiles)
        return LowUnit(
            spec=self._spec,
            plan=self._reading,
            base=base,
            carried=self._carried(tile_span(key), tiles),
            minute=self._target(key, made_again=again),
            folder=str(folder),
            admit=self._roster.admit if self._roster is not None else None,
        )

    def _base_target(self, tile: BaseTile, partials: Sequence[str]) -> BaseTarget:
        missing, gone = tile.desired - tile.observed, tile.observed - tile.desired
        key, state = tile.state.key, tile.state
        again = key.start in self._again
        if again and self._horizons.sealed(key):
            raise _can_not_be_made_again(key)
        if state.part is not None:
            self._plan.replaced.add(state.part)
        old = self._absolute(state.part) if state.part is not None and not again else None
        target = self._kept(Target(key, set_hash(tile.desired), state.revision + 1, old))
        self._plan.reasons[key] = _reason(tile, missing, gone)
        if not again and self._is_left(tile):
            return BaseTarget(target, tile.desired, partials=partials)
        wanted = _ids(tile.desired if again else missing)
        parts = self._raw_parts(tile_span(key)) if wanted else []
        if again:
            self._plan.whole[key.start] = parts
        return BaseTarget(target, tile.desired, raw=parts, wanted=wanted)

    def _raw_parts(self, span: Interval) -> list[str]:
        return self._raw.paths(self._raw.select(ranges={"event_time": (span.start, span.end - 1)}))

    def _carried(self, span: Interval, tiles: Sequence[BaseTile]) -> list[Carried]:
        """Tiles that stay as they are but stand in a part that goes."""
        parts = {tile.state.part for tile in tiles if tile.state.part is not None}
        touched = {tile.state.key for tile in tiles}
        found = []
        for state in self._state.tiles(self._spec.stream, BASE.name, span):
            if state.part in parts and state.key not in touched:
                assert state.hash is not None
                target = Target(state.key, state.hash, state.revision, self._absolute(str(state.part)))
                found.append(Carried(target, self._base_tile(state.key.start).observed))
        return found

    # -- what lies above

    def _target(self, key: TileKey, *, made_again: bool) -> Target:
        """A tile above the base: merged when its old hash is that of what stands below now."""
        under = below(BY_NAME[key.level])
        assert under is not None
        span = tile_span(key)
        standing = {t.key: t for t in self._state.tiles(self._spec.stream, under.name, span)}
        old = self._standing(key)
        known = {k: t.hash for k, t in standing.items() if t.hash is not None}
        new = {k: h for k, h in self._hashes.items() if k.level == under.name and span.holds(k.start)}
        after = known | new
        self._hashes[key] = tiles_hash(after)
        changed = sum(1 for k, h in after.items() if known.get(k) != h)
        self._plan.reasons[key] = f"{changed} of {len(after)} tiles below changed"
        if old is not None and old.part is not None:
            self._plan.replaced.add(old.part)
        revision = (old.revision if old else 0) + 1
        grown = old is not None and old.hash == tiles_hash(known) and not made_again
        if grown or not known:
            part = old.part if old is not None else None
            target = Target(key, self._hashes[key], revision, self._absolute(part) if part else None)
            return self._kept(target)
        unchanged = [
            (k, self._absolute(t.part)) for k, t in standing.items() if k not in new and t.part is not None
        ]
        return self._kept(Target(key, self._hashes[key], revision, None, unchanged))

    def _high_units(self, minutes: Iterable[int], folder: Path) -> Iterator[HighUnit]:
        by_year: dict[int, list[int]] = {}
        for start in minutes:
            by_year.setdefault(WEEK_LEVEL.tile_of(start), []).append(start)
        for starts in by_year.values():
            levels = {level: self._targets(level, starts) for level in ABOVE}
            keys = [TileKey(MINUTE_LEVEL.name, start) for start in starts]
            yield HighUnit(
                spec=self._spec,
                hours=levels[HOUR_LEVEL],
                days=levels[DAY_LEVEL],
                weeks=levels[WEEK_LEVEL],
                deltas=[str(delta_path(folder, key)) for key in keys],
                folder=str(folder),
                minutes={},  # known when they are built
            )

    def _targets(self, level: Level, minutes: Sequence[int]) -> list[Target]:
        again = {level.tile_of(start) for start in self._again}
        starts = sorted({level.tile_of(start) for start in minutes})
        return [self._target(TileKey(level.name, start), made_again=start in again) for start in starts]

    # -- within

    def _kept(self, target: Target) -> Target:
        """One that is kept no more still carries what is new to the levels above."""
        return replace(target, revision=0, kept=False) if self._horizons.expired(target.key) else target

    def _standing(self, key: TileKey) -> TileState | None:
        found = self._state.tiles(self._spec.stream, key.level, Interval(key.start, key.start + 1))
        return found[0] if found else None

    def _absolute(self, part: str) -> str:
        return str(self._table / part)


def file_bytes(paths: Iterable[str]) -> int:
    return sum(Path(path).stat().st_size for path in paths)


def tiles_hash(hashes: Mapping[TileKey, str]) -> str:
    return set_hash(f"{key.start}:{digest}" for key, digest in hashes.items())


def _can_not_be_made_again(key: TileKey) -> StorageError:
    return StorageError(
        f"the {key.level} tile of {format_instant(key.start)} can not be made again: raw is gone for it",
        hint="it is sealed: it can be read, and late events are merged into it",
    )


def _reason(tile: BaseTile, missing: frozenset[str], gone: frozenset[str]) -> str:
    if tile.state.hash is None:
        return f"new: {_slices(len(missing))}"
    if gone:
        return f"{_slices(len(gone))} left, {len(missing)} came"
    if not missing:
        return f"made again of {_slices(len(tile.desired))}"
    return f"late: {_slices(len(missing))} beside {len(tile.observed)}"


def _ids(names: frozenset[str]) -> frozenset[str]:
    """The slices that rows of raw are marked with."""
    return frozenset(contribution_of(name)[0] for name in names)


def _slices(count: int) -> str:
    return "1 slice" if count == 1 else f"{count} slices"
