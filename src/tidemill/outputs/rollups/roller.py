"""Keeps the rollups of a stream current: finds stale tiles and why they are, has them built, commits them.

A tile is stale if its desired set of slices differs from its observed one; late data, replays, crashes and
rebuilds are all handled by that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from tidemill.config import Limits, Stream
from tidemill.engine import Engine
from tidemill.engine.jobs import balanced
from tidemill.formats.read_plan import plan_for
from tidemill.model.failpoints import failpoint
from tidemill.model.levels import BASE, BY_NAME, LEVELS, BaseTile, TileKey, TileState, below
from tidemill.model.slices import hash_of, set_hash
from tidemill.model.time import MIN_INSTANT, Interval, align
from tidemill.outputs.rollups.compaction import crowded_parts
from tidemill.outputs.rollups.events import metric_plan
from tidemill.outputs.rollups.kernel import (
    CarryUnit,
    HighUnit,
    LowUnit,
    Tap,
    TileWork,
    build_high,
    build_low,
    carry,
)
from tidemill.outputs.rollups.planning import (
    Fresh,
    Horizons,
    Planner,
    TilePlan,
    can_be_made,
    carry_units,
    expected_rows,
    file_bytes,
    is_made_of,
    tiles_hash,
)
from tidemill.outputs.rollups.recall import BuiltTiles, expired_tiles
from tidemill.outputs.rollups.spec import rollups_table, show_columns, spec_for
from tidemill.outputs.rollups.state_history import StateHistory, tiles_held
from tidemill.outputs.rollups.tile_parts import TilePart, declarations, tile_builds
from tidemill.storage import layout
from tidemill.storage.state.protocol import State, TileBuild
from tidemill.storage.tables.log import TAKEN_OVER
from tidemill.storage.tables.snapshot import Part
from tidemill.storage.tables.table import Table

log = logging.getLogger(__name__)

MINUTE_LEVEL: Final = LEVELS[1]
ROWS_PER_COMMIT: Final = 16_000_000  # expected rows at 5s that are built and committed at a time,
TILES_PER_COMMIT: Final = 100_000  # and so many tiles at most
TILES_PER_ROUND: Final = 50_000  # stale 5s tiles that one refresh builds: other streams wait meanwhile
# Name of the checkpoint for the metrics that all tiles are made for; no window has this name.
DECLARED: Final = "@rollups"

HorizonsOf = Callable[[], Horizons]


class Rebuilt(NamedTuple):
    """A tile that was built, and why. A tuple, since there may be very many."""

    key: TileKey
    revision: int
    rows: int
    reason: str
    slices: int


@dataclass(frozen=True, slots=True)
class Expiring:
    """What a level has before an instant."""

    before: int
    tiles: int = 0
    parts: Sequence[Part] = ()  # that hold them; their other tiles stay
    rows: int = 0
    bytes: int = 0  # about


@dataclass(frozen=True, slots=True)
class Committed:
    """What is recorded in the state after a commit."""

    new: list[TileBuild] = field(default_factory=list)
    moved: list[TileBuild] = field(default_factory=list)  # the same tiles in other parts


def tap_for(stream: Stream) -> Tap | None:
    """What to keep of each batch for the tiles of a stream; None if it has no metrics. Opens no table, so
    that damaged rollups do not prevent a stream from accepting."""
    spec = spec_for(stream)
    return Tap(spec) if spec.metrics else None


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
        horizons: HorizonsOf = Horizons,
    ) -> None:
        self.warehouse = warehouse
        self.stream = stream
        self.engine = engine
        self.state = state
        self.raw = raw
        self.horizons = horizons
        self.spec = spec_for(stream)
        self.plan = metric_plan(plan_for(stream, limits))
        self.table = rollups_table(warehouse, self.spec)
        self._current = False  # whether all tiles are known to be made for the metrics as declared
        self.state_history = StateHistory(warehouse, self.spec, self.plan, engine, state, raw, horizons)

    # -- in line with what was committed

    def catch_up(self) -> int:
        """Record tiles that were committed but not recorded; how many. Uncommitted ones are removed."""
        self.table.clean_staging()
        self.state_history.catch_up()
        seen = self.state.table_versions(self.stream.name).get("rollups", -1)
        self.table.expect(seen)
        commits = self.table.commits(after=seen)
        if not commits:
            return 0
        current = self.table.snapshot().by_path
        added = {path for commit in commits for path in commit.added}
        builds = tile_builds(self.table, [part for path, part in current.items() if path in added])
        builds += [gone for commit in commits for gone in self._tiles_removed_by(commit.info.get("expired"))]
        if builds:
            self.state.apply_tiles(self.stream.name, self.table.version, builds)
            log.warning("recorded %d committed tiles", len(builds), extra={"stream": self.stream.name})
        elif all(TAKEN_OVER in commit.info for commit in commits):
            self.state.record_seen(self.stream.name, {"rollups": self.table.version})
        return len(builds)

    def recall(self) -> int:
        """Record all tiles of the table, and those that are no longer kept, in a new state; how many the
        table holds."""
        self.state_history.catch_up()
        self.state_history.count_all_states()
        builds = tile_builds(self.table, self.table.snapshot().parts)
        self.state.apply_tiles(self.stream.name, self.table.version, builds)
        for level in LEVELS:
            expired = list(self._expired_tiles(level.name))
            self.state.apply_tiles(self.stream.name, self.table.version, expired)
        self._miss_tiles()
        return len(builds)

    def _miss_tiles(self) -> None:
        """Tiles above the base that were in a damaged part are built again; so are those that are not made of
        the tiles below: what changed these before the state was lost had not reached them."""
        name, horizons = self.stream.name, self.horizons()
        under = self.state.tiles(name, BASE.name)
        for level in LEVELS[1:]:
            made_of: dict[int, dict[int, str]] = {}
            for tile in under:
                made_of.setdefault(level.tile_of(tile.key.start), {})[tile.key.start] = str(tile.hash)
            tiles = self.state.tiles(name, level.name)
            known = {tile.key.start: tile.hash for tile in tiles}
            wrong = [
                start
                for start in sorted({*known, *made_of})
                if not is_made_of(known.get(start), made_of.get(start, {}))
                and can_be_made(self.state, name, TileKey(level.name, start), horizons)
            ]
            if wrong:
                self.state.miss_tiles(name, level.name, wrong)
            under = tiles

    def _expired_tiles(self, level: str) -> Iterator[TileBuild]:
        """Tiles of a level that must have existed, by what lies below them, and are no longer kept."""
        horizons = self.horizons()
        if level not in horizons.levels and level not in horizons.lost:
            return
        name, under = self.stream.name, below(BY_NAME[level])
        if under is None:
            stale = self.state.stale_tiles(name)
            unknown = [t for t in stale if t.state.hash is None and horizons.expired(t.state.key)]
            built = {
                one.name: {tile.key.start: str(tile.hash) for tile in self.state.tiles(name, one.name)}
                for one in LEVELS
            }
            offsets = {entry.id: entry.seq for entry in self.state.slices(name)}
            yield from expired_tiles(unknown, BuiltTiles(built), offsets)
            return
        known = {tile.key.start for tile in self.state.tiles(name, level)}
        groups: dict[int, dict[int, str]] = {}
        for tile in self.state.tiles(name, under.name):
            if tile.hash is not None:
                groups.setdefault(BY_NAME[level].tile_of(tile.key.start), {})[tile.key.start] = tile.hash
        for start, hashes in groups.items():
            if start not in known and horizons.expired(TileKey(level, start)):
                yield TileBuild(TileKey(level, start), tiles_hash(hashes), 0, None, 0)

    # -- building

    def take_up(
        self, batch: str, tiles: Mapping[int, frozenset[str]], slices: Mapping[str, int], folder: Path
    ) -> Fresh | None:
        """What the batch that was just accepted left for tiles. `slices`: its slices with their ledger
        offsets. None: it must be read from raw."""
        touched = self.state_history.add(batch, slices, folder)
        if touched is None:
            return None
        none: frozenset[str] = frozenset()
        more = {start: tiles.get(start, none) | ids for start, ids in touched.items()}
        return Fresh({**tiles, **more}, folder)

    @property
    def declared_before(self) -> str | None:
        """The hash of the declarations that all tiles were last made for; None if unknown."""
        return self.state.checkpoints(self.stream.name).get(DECLARED)

    def refresh(self, fresh: Fresh | None = None, now: int | None = None) -> list[Rebuilt]:
        """Build stale tiles, oldest first, each level from the one below; at most as many as one round may
        build: the others stay stale for the next round. `now` is the time at which replaced parts were
        replaced (as for `Table.commit`)."""
        if not self.spec.metrics:
            return []
        before = {part.path for part in self.table.snapshot().parts}
        done: list[Rebuilt] = []
        if outdated := self._outdated():
            context = {"stream": self.stream.name}
            log.warning("metrics were declared again: %d tiles are rebuilt", len(outdated), extra=context)
            done += [
                tile for some in self._rounds(outdated) for tile in self._round(some, None, now, again=True)
            ]
            show_columns(self.table, self.spec, now or 0)
        stale = _some(self.state.stale_tiles(self.stream.name), TILES_PER_ROUND)
        done += [tile for some in self._rounds(stale) for tile in self._round(some, fresh, now)]
        if not self._current:
            self.state.set_checkpoint(self.stream.name, DECLARED, self.spec.declared)
            self._current = True
        if done:
            self.compact(spared={part.path for part in self.table.snapshot().parts} - before, now=now)
        return done

    def _outdated(self) -> list[BaseTile]:
        """5s tiles that are made for other declarations, or below tiles that are, without those whose raw has
        expired."""
        name, horizons = self.stream.name, self.horizons()
        if self._current or self.state.checkpoints(name).get(DECLARED) == self.spec.declared:
            return []
        self._join_states()
        made = declarations(self.table)
        found = []
        for tile in self._base_tiles() if made else ():
            keys = (TileKey(level.name, level.tile_of(tile.key.start)) for level in LEVELS)
            declared = next((made[key] for key in keys if key in made), None)  # the finest level that is kept
            if declared not in (None, self.spec.declared) and not horizons.sealed(tile.key):
                found.append(tile.key.start)
        return self.state.base_tiles(name, found)

    def _base_tiles(self) -> list[TileState]:
        """All 5s tiles, also those that are not built yet or were lost."""
        stale = self.state.stale_tiles(self.stream.name)
        unbuilt = [tile.state for tile in stale if tile.state.hash is None]
        return [*self.state.tiles(self.stream.name, BASE.name), *unbuilt]

    def _join_states(self) -> None:
        """A slice changes the tiles in which it has rows, and those in which it changes states. Which these
        are depends on the metrics: bring the desired sets in line with those declared now."""
        name, horizons = self.stream.name, self.horizons()
        if not layout.state_history(self.warehouse, name).is_dir():
            return
        touched = self.state_history.touched if self.state_history.needed else {}
        paths = self.raw.snapshot().paths()
        found = self.engine.run(tiles_held, paths, "slices of tiles", file_bytes(paths))
        holding: dict[int, set[str]] = {}
        for start, slices in (*found, *touched.items()):
            holding.setdefault(start, set()).update(slices)
        bare = {entry.name: entry.id for entry in self.state.slices(name)}
        starts = [tile.key.start for tile in self._base_tiles() if not horizons.sealed(tile.key)]
        surplus: dict[int, frozenset[str]] = {}
        lacking: dict[int, frozenset[str]] = {}
        for tile in self.state.base_tiles(name, starts):
            start, desired = tile.state.key.start, {bare[one] for one in tile.desired}
            if left := desired - holding.get(start, set()):
                surplus[start] = frozenset(left)
            if more := touched.get(start, frozenset()) - desired:
                lacking[start] = more
        if surplus:
            self.state.leave_tiles(name, surplus)
        if lacking:
            self.state.touch_tiles(name, lacking)

    def rebuild(self, span: Interval) -> list[Rebuilt]:
        """Make all tiles again from raw whose 5s tiles touch `span`, except those whose raw has expired."""
        if not self.spec.metrics:
            return []
        # A process that has accepted nothing has not read the admitted keys yet.
        self.state_history.catch_up()
        self._join_states()
        horizons, name = self.horizons(), self.stream.name
        known = self.state.tiles(name, BASE.name, self.whole_minutes(span))
        tiles = self.state.base_tiles(name, [t.key.start for t in known if not horizons.sealed(t.key)])
        return [done for some in self._rounds(tiles) for done in self._round(some, None, again=True)]

    def sealed(self, span: Interval) -> int:
        """How many 5s tiles of the span cannot be made again, because their raw has expired."""
        tiles = self.state.tiles(self.stream.name, BASE.name, self.whole_minutes(span))
        return sum(self.horizons().sealed(tile.key) for tile in tiles)

    def whole_minutes(self, span: Interval) -> Interval:
        """The 5s tiles that `span` touches, extended to whole 1m tiles."""
        tile = MINUTE_LEVEL.tile
        return Interval(align(span.start, tile), -(-span.end // tile) * tile)

    def _rounds(self, stale: Sequence[BaseTile]) -> Iterator[Sequence[BaseTile]]:
        """Split the work; tiles below one 1m tile stay together, so that no later step finds them changed."""
        some: list[BaseTile] = []
        filled = 0
        for tile, rows in zip(stale, expected_rows(self.spec, self.raw.snapshot(), stale), strict=True):
            is_full = filled >= ROWS_PER_COMMIT or len(some) >= TILES_PER_COMMIT
            if is_full and _minute_tile(some[-1]) != _minute_tile(tile):
                yield some
                some, filled = [], 0
            some.append(tile)
            filled += rows
        if some:
            yield some

    def _round(
        self, stale: Sequence[BaseTile], fresh: Fresh | None, now: int | None = None, *, again: bool = False
    ) -> list[Rebuilt]:
        name = set_hash(f"{_start(t)}:{hash_of(t.desired)}" for t in stale)[:24]
        folder = self.table.staging(name)
        self.table.refresh()
        planner = Planner(
            self.spec,
            self.plan,
            self.state,
            self.raw.snapshot(),
            self.table.snapshot(),
            self.horizons(),
            self.state_history.admitted_keys,
        )
        plan = planner.plan(stale, fresh, folder, again=again)
        log.info("building %d tiles", len(stale), extra={"stream": self.stream.name, "batch": name})
        built = self._build(plan, folder)
        failpoint("rollups.after_build")
        done = self._replace(built, plan.replaced, {"batch": name}, now)
        failpoint("rollups.after_commit")
        unkept = [TileBuild(key, tile.hash, 0, None, 0, tile.slices) for key, tile in plan.unkept]
        self._record(done, unkept)
        failpoint("rollups.after_state")
        slices = {_start(tile): len(tile.desired) for tile in stale}
        return [
            Rebuilt(key, revision, rows, plan.reasons[key], slices.get(key.start, 0))
            for key, _, revision, _, rows, _ in done.new
        ]

    def _build(self, plan: TilePlan, folder: Path) -> list[TilePart]:
        states = self.state_history.state_cells_for(plan.whole, folder) if plan.whole else []
        states += self.state_history.changed_cells(plan.grown, folder) if plan.grown else []
        units = [replace(unit, extra=states) for unit in plan.low] if states else plan.low
        groups = balanced([unit.rows for unit in units], self.engine.parallelism)
        low = [[units[i] for i in group] for group in groups]
        built = self.engine.run(_low_group, low, "tiles 5s 1m", _low_bytes(units))
        if plan.days_too:
            both = [*plan.hours, *plan.above]
            built += self.engine.run(build_high, both, "tiles 1h 1d 7d", _high_bytes(both))
        else:
            built += self.engine.run(build_high, plan.hours, "tiles 1h", _high_bytes(plan.hours))
            built += self.engine.run(build_high, plan.above, "tiles 1d 7d", _high_bytes(plan.above))
        return built + self._carry(plan.carry)

    def _carry(self, units: Sequence[CarryUnit]) -> list[TilePart]:
        return self.engine.run(carry, units, "carry tiles", file_bytes(p for u in units for p in u.parts))

    def _replace(
        self,
        built: Sequence[TilePart],
        replaced: Collection[str],
        info: Mapping[str, str],
        now: int | None = None,
        *,
        data_change: bool = True,
    ) -> Committed:
        """Replace parts by new ones, in one commit."""
        parts = self.table.publish([each.part for each in built])
        failpoint("rollups.before_commit")
        self.table.refresh()
        current = self.table.snapshot().by_path
        removed = [current[path] for path in sorted(replaced)]
        self.table.commit(parts, removed, info=info, now=now, data_change=data_change)
        done = Committed()
        for each, part in zip(built, parts, strict=True):
            (done.moved if each.carried else done.new).extend(
                TileBuild(
                    TileKey(each.level, tile.start),
                    tile.hash,
                    tile.revision,
                    part.path,
                    tile.rows,
                    tile.slices,
                )
                for tile in each.tiles
            )
        return done

    def _record(self, done: Committed, gone: Sequence[TileBuild] = ()) -> None:
        self.state.apply_tiles(self.stream.name, self.table.version, [*done.new, *gone], done.moved)
        self.table.clean_staging()

    # -- few parts

    def compact(self, spared: Collection[str] = (), now: int | None = None) -> int:
        """Merge small parts of similar size; how many were removed. `spared` are paths that stay: those just
        written, which the next round may well replace."""
        self.table.refresh()
        snapshot = self.table.snapshot()
        crowded = crowded_parts([part for part in snapshot.parts if part.path not in spared])
        if not crowded:
            return 0
        paths = {part.path: () for parts in crowded for part in parts}
        name = f"compact-{set_hash(paths)[:24]}"
        folder = self.table.staging(name)
        units = [
            CarryUnit(self.spec, level, {str(self.table.root / p.path): () for p in parts}, str(folder))
            for parts in crowded
            for level in (parts[0].partition["level"],)
        ]
        built = self._carry(units)
        self._record(self._replace(built, paths, {"compacted": name}, now, data_change=False))
        log.info("merged %d parts into %d", len(paths), len(built), extra={"stream": self.stream.name})
        return len(paths)

    # -- letting go

    def expiring(self, level: str, before: int) -> Expiring:
        """The tiles of a level that lie before an instant."""
        before = align(before, MINUTE_LEVEL.tile if level == BASE.name else BY_NAME[level].tile)
        if level == LEVELS[-1].name and self.spec.follows:
            return Expiring(before)  # the number of objects in a state is counted from the first bucket on
        tiles = self._kept_before(level, before)
        current = self.table.snapshot().by_path
        rows: dict[str, int] = {}
        for tile in tiles:
            rows[str(tile.part)] = rows.get(str(tile.part), 0) + tile.rows
        parts = [current[path] for path in sorted(rows) if path in current]
        size = sum(part.size * rows[part.path] // max(1, part.rows) for part in parts)
        return Expiring(before, len(tiles), parts, sum(rows.values()), size)

    def expire(self, level: str, before: int, now: int) -> Expiring:
        """Delete them. Their sums remain in the levels above, and their hashes in the state. A part that also
        holds later tiles is cut: those move unchanged to a new part."""
        found = self.expiring(level, before)
        if found.parts:
            info = {"expired": f"{level}:{found.before}"}
            leaving: dict[str, list[int]] = {part.path: [] for part in found.parts}
            for tile in self._kept_before(level, found.before):
                leaving.setdefault(str(tile.part), []).append(tile.key.start)
            folder = self.table.staging(f"expire-{level}-{found.before}")
            kept = self._carry(carry_units(self.spec, self.table.snapshot(), leaving, folder))
            done = self._replace(kept, leaving, info, now)
            failpoint("expire.after_tiles")
            self._record(done, self._tiles_removed_by(info["expired"]))
        return found

    def _kept_before(self, level: str, before: int) -> list[TileState]:
        span = Interval(MIN_INSTANT, before)
        return [t for t in self.state.tiles(self.stream.name, level, span) if t.part is not None]

    def _tiles_removed_by(self, checkpoint: str | None) -> list[TileBuild]:
        """The tiles that were removed by a commit that says so, as the state records them."""
        if checkpoint is None:
            return []
        level, _, before = checkpoint.partition(":")
        tiles = self._kept_before(level, int(before))
        slices: dict[int, frozenset[str]] = {}
        if level == BASE.name:
            known = self.state.base_tiles(self.stream.name, [tile.key.start for tile in tiles])
            slices = {_start(tile): tile.observed for tile in known}
        none: frozenset[str] = frozenset()
        return [
            TileBuild(tile.key, str(tile.hash), 0, None, 0, slices.get(tile.key.start, none))
            for tile in tiles
        ]


def _start(tile: BaseTile) -> int:
    return tile.state.key.start


def _some(stale: Sequence[BaseTile], most: int) -> Sequence[BaseTile]:
    """The oldest ones, at least `most` if there are as many: those below one 1m tile stay together."""
    end = min(most, len(stale))
    while 0 < end < len(stale) and _minute_tile(stale[end - 1]) == _minute_tile(stale[end]):
        end += 1
    return stale[:end]


def _minute_tile(tile: BaseTile) -> int:
    return MINUTE_LEVEL.tile_of(_start(tile))


def _low_bytes(units: Sequence[LowUnit]) -> int:
    read = {path for unit in units for path in (*unit.partials, *unit.raw)}
    works = [work for unit in units for work in (unit.base, unit.minutes)]
    return file_bytes([*read, *_stored(works)])


def _high_bytes(units: Sequence[HighUnit]) -> int:
    handed = {path for unit in units for path in unit.handed}
    return file_bytes([*handed, *_stored([work for unit in units for work in unit.works])])


def _stored(works: Sequence[TileWork]) -> set[str]:
    return {path for work in works for path in (*work.old, *work.below)}


def _low_group(units: Sequence[LowUnit]) -> Iterator[TilePart]:
    for unit in units:
        yield from build_low(unit)
