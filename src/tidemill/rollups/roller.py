"""Keeps the rollups of a stream current: finds stale tiles, says why, has them built, commits them.

The one question is whether a tile's desired set of slices differs from its observed one; late data, replays,
crashes and rebuilds are all answered by it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Final

from tidemill.config import Limits, Stream
from tidemill.engine import Engine
from tidemill.engine.jobs import spread
from tidemill.lake.snapshot import Part
from tidemill.lake.table import Table
from tidemill.model.failpoints import failpoint
from tidemill.model.levels import BASE, BY_NAME, LEVELS, below
from tidemill.model.slices import set_hash
from tidemill.model.tiles import BaseTile, TileKey, TileState
from tidemill.model.time import MIN_INSTANT, Interval, align
from tidemill.records.plan import plan_for
from tidemill.rollups.chronicle import Chronicle
from tidemill.rollups.events import metric_plan
from tidemill.rollups.kernel import Built, HighUnit, LowUnit, Tap, build_high, build_low
from tidemill.rollups.planning import Fresh, Horizons, Planner, TilePlan, file_bytes, tiles_hash
from tidemill.rollups.recall import declarations, tile_builds
from tidemill.rollups.spec import rollups_table, spec_for
from tidemill.state.protocol import State, TileBuild

log = logging.getLogger(__name__)

MINUTE_LEVEL: Final = LEVELS[1]
TILES_PER_ROUND: Final = 2_000  # 5s tiles built and committed at a time
DECLARED: Final = "@rollups"  # the mark of the metrics that all tiles are made for; no window is called so

Told = Callable[[], Horizons]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A tile that was built, and why."""

    key: TileKey
    revision: int
    rows: int
    reason: str
    slices: int


@dataclass(frozen=True, slots=True)
class Expiring:
    """What a level has before an instant, in whole parts."""

    before: int
    tiles: int = 0
    parts: Sequence[Part] = ()

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def bytes(self) -> int:
        return sum(part.size for part in self.parts)


class Roller:
    """Rollups of one stream."""

    def __init__(
        self,
        warehouse: Path,
        stream: Stream,
        limits: Limits,
        engine: Engine,
        state: State,
        raw: Table,
        horizons: Told = Horizons,
    ) -> None:
        self.stream = stream
        self.engine = engine
        self.state = state
        self.raw = raw
        self.horizons = horizons
        self.spec = spec_for(stream)
        self.plan = metric_plan(plan_for(stream, limits))
        self.table = rollups_table(warehouse, self.spec)
        self._current = False  # whether all tiles are known to be made for the metrics as declared
        self.chronicle = Chronicle(warehouse, self.spec, self.plan, engine, state, raw)

    @property
    def tap(self) -> Tap | None:
        return Tap(self.spec) if self.spec.metrics else None

    # -- in line with what was committed

    def catch_up(self) -> int:
        """Enter tiles that were committed but not recorded; how many. What was not is thrown away."""
        self.table.clean_staging()
        self.chronicle.catch_up()
        seen = self.state.table_versions(self.stream.name).get("rollups", -1)
        self.table.expect(seen)
        commits = self.table.commits(after=seen)
        if not commits:
            return 0
        current = self.table.snapshot().by_path
        added = {path for commit in commits for path in commit.added}
        builds = tile_builds(self.table, [part for path, part in current.items() if path in added])
        builds += [gone for commit in commits for gone in self._gone_with(commit.info.get("expired"))]
        if builds:
            self.state.apply_tiles(self.stream.name, self.table.version, builds)
            log.warning("took up %d committed tiles", len(builds), extra={"stream": self.stream.name})
        return len(builds)

    def recall(self) -> int:
        """Enter all tiles that the table holds in a state that was made anew, and those that are kept no
        more; how many the table holds."""
        self.chronicle.catch_up()
        self.chronicle.tell_all()
        builds = tile_builds(self.table, self.table.snapshot().parts)
        self.state.apply_tiles(self.stream.name, self.table.version, builds)
        for level in LEVELS:
            expired = list(self._expired_tiles(level.name))
            self.state.apply_tiles(self.stream.name, self.table.version, expired)
        return len(builds)

    def _expired_tiles(self, level: str) -> Iterator[TileBuild]:
        """Tiles of a level that there must have been, by what lies below them, and that are kept no more."""
        before = self.horizons().levels.get(level)
        if before is None:
            return
        name, under = self.stream.name, below(BY_NAME[level])
        if under is None:
            for base in self.state.stale_tiles(name):
                if base.state.key.start < before and base.state.hash is None:
                    yield TileBuild(base.state.key, set_hash(base.desired), 0, None, 0, base.desired)
            return
        span = Interval(MIN_INSTANT, before)
        built = {tile.key.start for tile in self.state.tiles(name, level, span)}
        groups: dict[int, dict[TileKey, str]] = {}
        for tile in self.state.tiles(name, under.name, span):
            if tile.hash is not None:
                groups.setdefault(BY_NAME[level].tile_of(tile.key.start), {})[tile.key] = tile.hash
        for start, hashes in groups.items():
            if start not in built:
                yield TileBuild(TileKey(level, start), tiles_hash(hashes), 0, None, 0)

    # -- building

    def take_up(
        self, batch: str, tiles: Mapping[int, frozenset[str]], slices: Mapping[str, int], folder: Path
    ) -> Fresh | None:
        """What the batch that was just accepted left for tiles. `slices`: its slices with their places in the
        ledger. None: it has to be read from raw."""
        touched = self.chronicle.add(batch, slices, folder)
        if touched is None:
            return None
        none: frozenset[str] = frozenset()
        both = {start: tiles.get(start, none) | touched.get(start, none) for start in {*tiles, *touched}}
        return Fresh(both, folder)

    @property
    def declared_before(self) -> str | None:
        """The hash of the declarations that all tiles were last made for; None: nobody knows."""
        return self.state.marks(self.stream.name).get(DECLARED)

    def refresh(self, fresh: Fresh | None = None) -> list[Rebuilt]:
        """Build every stale tile, oldest first, each level from the one below."""
        if not self.spec.metrics:
            return []
        done: list[Rebuilt] = []
        if outdated := self._outdated():
            story = {"stream": self.stream.name}
            log.warning("metrics are declared anew: %d tiles are made again", len(outdated), extra=story)
            done += [tile for some in _rounds(outdated) for tile in self._round(some, None, anew=True)]
        stale = self.state.stale_tiles(self.stream.name)
        done += [tile for some in _rounds(stale) for tile in self._round(some, fresh)]
        if not self._current:
            self.state.set_mark(self.stream.name, DECLARED, self.spec.declared)
            self._current = True
        return done

    def _outdated(self) -> list[BaseTile]:
        """5s tiles that were made for metrics declared otherwise; those stay that raw is gone for."""
        name, horizons = self.stream.name, self.horizons()
        if self._current or self.state.marks(name).get(DECLARED) == self.spec.declared:
            return []
        made = declarations(self.table)
        found = []
        for tile in self.state.tiles(name, BASE.name) if made else ():
            keys = (TileKey(level.name, level.tile_of(tile.key.start)) for level in LEVELS)
            declared = next((made[key] for key in keys if key in made), None)  # the finest that is kept
            if declared not in (None, self.spec.declared) and not horizons.sealed(tile.key):
                base = self.state.base_tile(name, tile.key.start)
                assert base is not None, tile
                found.append(base)
        return found

    def rebuild(self, span: Interval) -> list[Rebuilt]:
        """Make all tiles again from raw whose 5s tiles touch `span`; not those that raw is gone for."""
        if not self.spec.metrics:
            return []
        self.chronicle.catch_up()  # in a process that accepted nothing, nobody has read the roster yet
        horizons = self.horizons()
        tiles = [
            found
            for tile in self.state.tiles(self.stream.name, BASE.name, self.reach(span))
            if not horizons.sealed(tile.key)
            and (found := self.state.base_tile(self.stream.name, tile.key.start)) is not None
        ]
        return [done for some in _rounds(tiles) for done in self._round(some, None, anew=True)]

    def sealed(self, span: Interval) -> int:
        """How many 5s tiles of the span can not be made again, since raw is gone for them."""
        tiles = self.state.tiles(self.stream.name, BASE.name, self.reach(span))
        return sum(self.horizons().sealed(tile.key) for tile in tiles)

    def reach(self, span: Interval) -> Interval:
        """The 5s tiles that `span` touches: those of whole 1m tiles."""
        tile = MINUTE_LEVEL.tile
        return Interval(align(span.start, tile), -(-span.end // tile) * tile)

    def _round(self, stale: Sequence[BaseTile], fresh: Fresh | None, *, anew: bool = False) -> list[Rebuilt]:
        name = set_hash(f"{t.state.key.start}:{set_hash(t.desired)}" for t in stale)[:24]
        folder = self.table.staging(name)
        horizons, roster = self.horizons(), self.chronicle.roster
        planner = Planner(
            self.spec, self.plan, self.state, self.raw.snapshot(), self.table.root, horizons, roster
        )
        plan = planner.plan(stale, fresh, folder, anew=anew)
        log.info("building %d tiles", len(stale), extra={"stream": self.stream.name, "batch": name})
        built = self._build(plan, folder)
        failpoint("rollups.after_build")
        self._commit(name, built, plan)
        return [
            Rebuilt(b.key, b.revision, b.rows, plan.reasons[b.key], len(b.slices))
            for b in built
            if b.kept and not b.carried
        ]

    def _build(self, plan: TilePlan, folder: Path) -> list[Built]:
        states = self.chronicle.state_cells_for(plan.whole, folder) if plan.whole else []
        units = [_with_states(unit, plan.whole, states) for unit in plan.low] if states else plan.low
        sizes = [len(unit.base) for unit in units]
        groups = spread(sizes, max(1, min(2 * self.engine.parallelism, sum(sizes) // 12)))
        low = [[units[i] for i in group] for group in groups]
        built = self.engine.run(_low_group, low, "tiles 5s 1m", plan.low_bytes)
        minutes = {b.key: b.part.path for b in built if b.key.level == MINUTE_LEVEL.name}
        high = [part for unit in plan.high for part in _independent(replace(unit, minutes=minutes))]
        return built + self.engine.run(build_high, high, "tiles 1h 1d 7d", _high_bytes(high))

    def _commit(self, name: str, built: Sequence[Built], plan: TilePlan) -> None:
        staged = list({b.part.path: b.part for b in built if b.kept}.values())
        parts = self.table.publish(staged)
        paths = {part.path: published.path for part, published in zip(staged, parts, strict=True)}
        failpoint("rollups.before_commit")
        self.table.refresh()
        current = self.table.snapshot().by_path
        gone = [current[path] for path in sorted(plan.replaced)]
        version = self.table.commit(parts, gone, info={"batch": name})
        failpoint("rollups.after_commit")
        records = [
            TileBuild(b.key, b.hash, b.revision, paths[b.part.path], b.rows, b.slices)
            if b.kept
            else TileBuild(b.key, b.hash, 0, None, 0, b.slices)
            for b in built
        ]
        self.state.apply_tiles(self.stream.name, version, records)
        failpoint("rollups.after_state")
        self.table.clean_staging()

    # -- letting go

    def expiring(self, level: str, before: int) -> Expiring:
        """The tiles of a level that lie before an instant, as far as whole parts do."""
        before = align(before, MINUTE_LEVEL.tile if level == BASE.name else BY_NAME[level].tile)
        if level == LEVELS[-1].name and self.spec.follows:
            return Expiring(before)  # how many objects are in a state is counted from its first bucket on
        tiles = self._kept_before(level, before)
        current = self.table.snapshot().by_path
        paths = {str(tile.part) for tile in tiles}
        return Expiring(before, len(tiles), [current[path] for path in sorted(paths) if path in current])

    def expire(self, level: str, before: int, now: int) -> Expiring:
        """Let go of them. Their sums live on in the levels above, and their places in the state."""
        found = self.expiring(level, before)
        if found.parts:
            info = {"expired": f"{level}:{found.before}"}
            self.table.commit([], found.parts, info=info, now=now)
            failpoint("expire.after_tiles")
            gone = self._gone_with(info["expired"])
            self.state.apply_tiles(self.stream.name, self.table.version, gone)
        return found

    def _kept_before(self, level: str, before: int) -> list[TileState]:
        span = Interval(MIN_INSTANT, before)
        return [t for t in self.state.tiles(self.stream.name, level, span) if t.part is not None]

    def _gone_with(self, told: str | None) -> list[TileBuild]:
        """The tiles that went with a commit that says so, as the state knows them from then on."""
        if told is None:
            return []
        level, _, before = told.partition(":")
        builds = []
        for tile in self._kept_before(level, int(before)):
            assert tile.hash is not None
            slices: frozenset[str] = frozenset()
            if level == BASE.name:
                known = self.state.base_tile(self.stream.name, tile.key.start)
                slices = known.observed if known is not None else slices
            builds.append(TileBuild(tile.key, tile.hash, 0, None, 0, slices))
        return builds


def _with_states(unit: LowUnit, whole: Mapping[int, object], files: Sequence[str]) -> LowUnit:
    """With the cells of state metrics for the tiles that are made of raw alone."""
    return replace(
        unit,
        base=[
            replace(target, extra=files) if target.tile.key.start in whole else target for target in unit.base
        ],
    )


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
    """Tiles below one 1m tile stay together: what a round leaves as it is, the next must not find changed."""
    some: list[BaseTile] = []
    for _, group in groupby(stale, key=lambda tile: MINUTE_LEVEL.tile_of(tile.state.key.start)):
        some += group
        if len(some) >= TILES_PER_ROUND:
            yield some
            some = []
    if some:
        yield some


def _low_group(units: Sequence[LowUnit]) -> Iterator[Built]:
    for unit in units:
        yield from build_low(unit)
