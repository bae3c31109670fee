"""Keeps the rollups of a stream current: finds stale tiles, says why, has them built, commits them.

The one question is whether a tile's desired set of slices differs from its observed one; late data, replays,
crashes and rebuilds are all answered by it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tidemill.config import Limits, Stream
from tidemill.engine import Engine
from tidemill.engine.jobs import spread
from tidemill.lake.table import Table
from tidemill.model.failpoints import failpoint
from tidemill.model.levels import BASE, BY_NAME, LEVELS, below
from tidemill.model.slices import contribution_of, set_hash
from tidemill.model.tiles import BaseTile, TileKey, TileState
from tidemill.model.time import DAY, Interval, format_instant
from tidemill.records.plan import plan_for
from tidemill.rollups.cell_files import PARTIAL
from tidemill.rollups.events import metric_plan
from tidemill.rollups.kernel import (
    BaseTarget,
    Built,
    Carried,
    HighUnit,
    LowUnit,
    Tap,
    Target,
    build_high,
    build_low,
    delta_path,
    tile_span,
)
from tidemill.rollups.recall import tile_builds
from tidemill.rollups.spec import rollups_table, spec_for
from tidemill.state.protocol import State, TileBuild

log = logging.getLogger(__name__)

MINUTE_LEVEL, HOUR_LEVEL, DAY_LEVEL, WEEK_LEVEL = LEVELS[1:]
TILES_PER_ROUND: Final = 2_000  # 5s tiles built and committed at a time


@dataclass(frozen=True, slots=True)
class Fresh:
    """What the batch that was just accepted left for the tiles it touched."""

    tiles: Mapping[int, frozenset[str]]  # 5s tile start -> ids of the slices whose rows it holds
    folder: Path


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A tile that was built, and why."""

    key: TileKey
    revision: int
    rows: int
    reason: str
    slices: int


@dataclass(slots=True)
class _Plan:
    low: list[LowUnit]
    high: list[HighUnit]
    reasons: dict[TileKey, str]
    replaced: set[str]  # paths of the parts that go
    low_bytes: int = 0  # of the files that the low units read


class Roller:
    """Rollups of one stream."""

    def __init__(
        self, warehouse: Path, stream: Stream, limits: Limits, engine: Engine, state: State, raw: Table
    ) -> None:
        self.stream = stream
        self.engine = engine
        self.state = state
        self.raw = raw
        self.spec = spec_for(stream)
        self.plan = metric_plan(plan_for(stream, limits))
        self.table = rollups_table(warehouse, self.spec)

    @property
    def tap(self) -> Tap | None:
        return Tap(self.spec) if self.spec.metrics else None

    def catch_up(self) -> int:
        """Enter tiles that were committed but not recorded; how many. What was not is thrown away."""
        self.table.clean_staging()
        seen = self.state.table_versions(self.stream.name).get("rollups", -1)
        self.table.expect(seen)
        commits = self.table.commits(after=seen)
        if not commits:
            return 0
        current = self.table.snapshot().by_path
        added = {path for commit in commits for path in commit.added}
        builds = tile_builds(self.table, [part for path, part in current.items() if path in added])
        if builds:
            self.state.apply_tiles(self.stream.name, self.table.version, builds)
            log.warning("took up %d committed tiles", len(builds), extra={"stream": self.stream.name})
        return len(builds)

    def refresh(self, fresh: Fresh | None = None) -> list[Rebuilt]:
        """Build every stale tile, oldest first, each level from the one below."""
        if not self.spec.metrics:
            return []
        done: list[Rebuilt] = []
        stale = self.state.stale_tiles(self.stream.name)
        for round_of in _rounds(stale):
            done.extend(self._round(round_of, fresh))
        return done

    def _round(self, stale: Sequence[BaseTile], fresh: Fresh | None) -> list[Rebuilt]:
        name = set_hash(f"{t.state.key.start}:{set_hash(t.desired)}" for t in stale)[:24]
        folder = self.table.staging(name)
        plan = self._plan(stale, fresh, folder)
        log.info("building %d tiles", len(stale), extra={"stream": self.stream.name, "batch": name})
        sizes = [len(unit.base) for unit in plan.low]
        groups = spread(sizes, max(1, min(2 * self.engine.parallelism, sum(sizes) // 12)))
        low = [[plan.low[i] for i in group] for group in groups]
        built = self.engine.run(_low_group, low, "tiles 5s 1m", plan.low_bytes)
        minutes = {b.key: b.part.path for b in built if b.key.level == MINUTE_LEVEL.name}
        high = [part for unit in plan.high for part in _independent(replace(unit, minutes=minutes))]
        built += self.engine.run(build_high, high, "tiles 1h 1d 7d", _high_bytes(high))
        failpoint("rollups.after_build")
        self._commit(name, built, plan.replaced)
        return [
            Rebuilt(b.key, b.revision, b.rows, plan.reasons[b.key], len(b.slices))
            for b in built
            if not b.carried
        ]

    # -- planning

    def _plan(self, stale: Sequence[BaseTile], fresh: Fresh | None, folder: Path) -> _Plan:
        plan = _Plan([], [], {}, set())
        partials = sorted(str(p) for p in fresh.folder.glob(f"*{PARTIAL}")) if fresh else []
        hashes: dict[TileKey, str] = {t.state.key: set_hash(t.desired) for t in stale}
        by_minute: dict[int, list[BaseTile]] = {}
        for tile in stale:
            by_minute.setdefault(MINUTE_LEVEL.tile_of(tile.state.key.start), []).append(tile)
        shrunk: set[int] = set()  # starts of the 1m tiles below which something left
        for start, tiles in sorted(by_minute.items()):
            targets = []
            for tile in tiles:
                targets.append(self._base_target(tile, fresh, partials, plan))
                if tile.observed - tile.desired:
                    shrunk.add(start)
            key = TileKey(MINUTE_LEVEL.name, start)
            carried = self._carried(tile_span(key), tiles)
            minute = self._target(key, hashes, start in shrunk, plan)
            plan.low.append(LowUnit(self.spec, self.plan, targets, carried, minute, str(folder)))
        read = {path for unit in plan.low for target in unit.base for path in target.raw}
        plan.low_bytes = file_bytes([*partials, *read, *map(self._absolute, plan.replaced)])
        minutes = [TileKey(MINUTE_LEVEL.name, start) for start in by_minute]
        plan.high.extend(self._high_units(minutes, hashes, shrunk, folder, plan))
        return plan

    def _base_target(
        self, tile: BaseTile, fresh: Fresh | None, partials: Sequence[str], plan: _Plan
    ) -> BaseTarget:
        missing, gone = tile.desired - tile.observed, tile.observed - tile.desired
        key, state = tile.state.key, tile.state
        if state.part is not None:
            plan.replaced.add(state.part)
        old = self._absolute(state.part) if state.part is not None and not gone else None
        target = Target(key, set_hash(tile.desired), state.revision + 1, old)
        plan.reasons[key] = _reason(tile, missing, gone)
        if fresh is not None and not gone and fresh.tiles.get(key.start) == _ids(missing):
            return BaseTarget(target, tile.desired, partials=partials)
        span = tile_span(key)
        days = {format_instant(day)[:10] for day in span.windows(DAY)}
        parts = self.raw.snapshot().select({"day": days}, {"event_time": (span.start, span.end - 1)})
        wanted = _ids(missing if not gone else tile.desired)
        raw = self.raw.snapshot().paths(parts) if wanted else []
        return BaseTarget(target, tile.desired, raw=raw, wanted=wanted)

    def _carried(self, span: Interval, stale: Sequence[BaseTile]) -> list[Carried]:
        """Tiles that stay as they are but stand in a part that goes."""
        parts = {tile.state.part for tile in stale if tile.state.part is not None}
        touched = {tile.state.key for tile in stale}
        found = []
        for state in self.state.tiles(self.stream.name, BASE.name, span):
            if state.part in parts and state.key not in touched:
                tile = self.state.base_tile(self.stream.name, state.key.start)
                assert tile is not None
                assert state.hash is not None
                target = Target(state.key, state.hash, state.revision, self._absolute(str(state.part)))
                found.append(Carried(target, tile.observed))
        return found

    def _target(self, key: TileKey, hashes: dict[TileKey, str], made_again: bool, plan: _Plan) -> Target:
        """A tile above the base: merged when its old hash is that of what stands below now."""
        under = below(BY_NAME[key.level])
        assert under is not None
        span = tile_span(key)
        standing = {t.key: t for t in self.state.tiles(self.stream.name, under.name, span)}
        old = self._state(key)
        known = {k: t.hash for k, t in standing.items() if t.hash is not None}
        after = known | {k: h for k, h in hashes.items() if k.level == under.name and span.holds(k.start)}
        grown = old is not None and old.hash == _tiles_hash(known) and not made_again
        hashes[key] = _tiles_hash(after)
        changed = sum(1 for k, h in after.items() if known.get(k) != h)
        plan.reasons[key] = f"{changed} of {len(after)} tiles below changed"
        revision = (old.revision if old else 0) + 1
        if old is not None and old.part is not None:
            plan.replaced.add(old.part)
        if grown or not known:
            part = old.part if old is not None else None
            return Target(key, hashes[key], revision, self._absolute(part) if part else None)
        unchanged = [
            (k, self._absolute(t.part)) for k, t in standing.items() if k not in hashes and t.part is not None
        ]
        return Target(key, hashes[key], revision, None, unchanged)

    def _high_units(
        self,
        minutes: Sequence[TileKey],
        hashes: dict[TileKey, str],
        shrunk: set[int],
        folder: Path,
        plan: _Plan,
    ) -> Iterator[HighUnit]:
        by_year: dict[int, list[TileKey]] = {}
        for key in minutes:
            by_year.setdefault(WEEK_LEVEL.tile_of(key.start), []).append(key)
        for keys in by_year.values():
            levels: dict[str, list[Target]] = {}
            for level in (HOUR_LEVEL, DAY_LEVEL, WEEK_LEVEL):
                again = {level.tile_of(start) for start in shrunk}
                starts = sorted({level.tile_of(key.start) for key in keys})
                levels[level.name] = [
                    self._target(TileKey(level.name, start), hashes, start in again, plan) for start in starts
                ]
            yield HighUnit(
                spec=self.spec,
                hours=levels[HOUR_LEVEL.name],
                days=levels[DAY_LEVEL.name],
                weeks=levels[WEEK_LEVEL.name],
                deltas=[str(delta_path(folder, key)) for key in keys],
                folder=str(folder),
                minutes={},  # known when they are built
            )

    def _state(self, key: TileKey) -> TileState | None:
        found = self.state.tiles(self.stream.name, key.level, Interval(key.start, key.start + 1))
        return found[0] if found else None

    def _absolute(self, part: str) -> str:
        return str(self.table.root / part)

    # -- committing

    def _commit(self, name: str, built: Sequence[Built], replaced: Collection[str]) -> None:
        staged = list({b.part.path: b.part for b in built}.values())
        parts = self.table.publish(staged)
        paths = {part.path: published.path for part, published in zip(staged, parts, strict=True)}
        failpoint("rollups.before_commit")
        self.table.refresh()
        current = self.table.snapshot().by_path
        gone = [current[path] for path in sorted(replaced)]
        version = self.table.commit(parts, gone, info={"batch": name})
        failpoint("rollups.after_commit")
        records = [TileBuild(b.key, b.hash, b.revision, paths[b.part.path], b.rows, b.slices) for b in built]
        self.state.apply_tiles(self.stream.name, version, records)
        failpoint("rollups.after_state")
        self.table.clean_staging()


def file_bytes(paths: Iterable[str]) -> int:
    return sum(Path(path).stat().st_size for path in paths)


def _independent(unit: HighUnit) -> list[HighUnit]:
    """What can be built side by side: a tile that only grows needs nothing but what is new."""
    if any(target.below is not None for target in (*unit.days, *unit.weeks)):
        return [unit]
    return [replace(unit, days=(), weeks=()), replace(unit, hours=())]


def _high_bytes(units: Sequence[HighUnit]) -> int:
    targets = [target for unit in units for target in (*unit.hours, *unit.days, *unit.weeks)]
    unchanged = [path for target in targets for _, path in target.below or ()]
    old = [target.old for target in targets if target.old is not None]
    return file_bytes([*old, *unchanged, *(path for unit in units for path in unit.deltas)])


def _rounds(stale: Sequence[BaseTile]) -> Iterator[Sequence[BaseTile]]:
    for start in range(0, len(stale), TILES_PER_ROUND):
        yield stale[start : start + TILES_PER_ROUND]


def _low_group(units: Sequence[LowUnit]) -> Iterator[Built]:
    for unit in units:
        yield from build_low(unit)


def _tiles_hash(hashes: Mapping[TileKey, str]) -> str:
    return set_hash(f"{key.start}:{digest}" for key, digest in hashes.items())


def _reason(tile: BaseTile, missing: frozenset[str], gone: frozenset[str]) -> str:
    if tile.state.hash is None:
        return f"new: {_slices(len(missing))}"
    if gone:
        return f"{_slices(len(gone))} left, {len(missing)} came"
    return f"late: {_slices(len(missing))} beside {len(tile.observed)}"


def _ids(names: frozenset[str]) -> frozenset[str]:
    """The slices that rows of raw are marked with."""
    return frozenset(contribution_of(name)[0] for name in names)


def _slices(count: int) -> str:
    return "1 slice" if count == 1 else f"{count} slices"
