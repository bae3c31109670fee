"""Rollups as an output of a stream: tiles that are made from known sets of slices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Final

from tidemill.config import Stream
from tidemill.ingest.expiry_log import Loss
from tidemill.ingest.retraction_log import is_deciding_again
from tidemill.ingest.warehouse import Warehouse
from tidemill.model.expiry import ExpiryStep
from tidemill.model.levels import BASE, BY_NAME, LEVELS, Level, TileState
from tidemill.model.names import ROLLUPS
from tidemill.model.slices import SliceEntry
from tidemill.model.time import MIN_INSTANT, Interval, format_instant
from tidemill.outputs.contract import Difference, Need, RawFacts, RoundStart, Stage, Verified
from tidemill.outputs.rollups.compaction import QuietVersions, crowded_parts
from tidemill.outputs.rollups.history_files import history_files
from tidemill.outputs.rollups.planning import Fresh, can_be_made, horizons_of
from tidemill.outputs.rollups.roller import DECLARED, Rebuilt, Roller
from tidemill.outputs.rollups.spec import declared_as, declared_metrics
from tidemill.outputs.rollups.verify import TileReference, verify_tiles
from tidemill.raw.accept.batch import Batch
from tidemill.storage import layout
from tidemill.storage.file_scrub import FileCheck, ScrubTally, check_files
from tidemill.storage.files import remove_tree
from tidemill.storage.state.protocol import TileBuild
from tidemill.storage.tables.table import tidy

EVER: Final = Interval(MIN_INSTANT, 1 << 62)


@dataclass(frozen=True, slots=True)
class RolledUp:
    """The tiles that were built, and how many parts were merged away while there was nothing else to do."""

    tiles: Sequence[Rebuilt] = ()
    merged: int = 0
    sealed: int = 0  # by a rebuild: 5s tiles whose raw has expired, which stay as they are

    @property
    def idle(self) -> bool:
        return not self.tiles


class Rollups:
    """The rollups of one stream."""

    name = "rollups"
    stage = Stage.ACCEPTED

    def __init__(self, warehouse: Warehouse, stream: Stream, roller: Callable[[], Roller]) -> None:
        self._warehouse = warehouse
        self._stream = stream
        self._roller = roller
        self._quiet = QuietVersions()
        self._fresh: Fresh | None = None
        self._has_batch = False

    # -- a round

    def catch_up(self) -> None:
        self._roller().catch_up()

    def has_work(self) -> bool:
        state, name = self._warehouse.state, self._stream.name
        if self._has_batch or (self._stream.metrics and state.stale_tiles(name)):
            return True
        table = self._warehouse.existing("rollups", name)
        if (table.version if table is not None else 0) != state.table_versions(name).get(self.name, 0):
            return True
        if any(layout.staging(layout.rollups(self._warehouse.root, name)).glob("*")):
            return True
        declared = self._stream.kept_metrics and table is not None
        return bool(declared) and state.checkpoints(name).get(DECLARED) != declared_as(self._stream)

    def accepted(self, batch: Batch) -> None:
        self._has_batch = True
        if batch.taps is None:
            return
        roller, offsets = self._roller(), dict[str, int]()
        if roller.state_history.needed:
            found = (self._warehouse.state.slice(result.slice) for result in batch.record.results)
            offsets = {entry.id: entry.seq for entry in found if entry is not None}
        self._fresh = roller.take_up(batch.id, batch.record.tiles, offsets, batch.taps)

    def refresh(self, start: RoundStart) -> RolledUp | None:
        """Build stale tiles; they wait until everything that a retraction sent back is decided."""
        fresh, self._fresh = self._fresh, None  # the files it refers to are removed after this round
        has_work = self.has_work()
        self._has_batch = False
        if not has_work or is_deciding_again(self._warehouse.state, self._stream.name):
            return None
        roller, now = self._roller(), start.now
        self._warehouse.progress(self._stream.name, "tiles", 0.0)
        was_current = roller.declared_before == roller.spec.declared
        tiles = roller.refresh(fresh, now)
        self._record_declaration(now, was_current=was_current)
        self._warehouse.progress(self._stream.name, "tiles", 1.0)
        roller.state_history.tidy()
        tidy([roller.table], self._warehouse.project.engine.keep_replaced, now)
        return RolledUp(tiles)

    def _record_declaration(self, now: int, *, was_current: bool) -> None:
        """Record that all tiles whose raw exists are made for the metrics as declared now. A warehouse
        without such a log starts one; its tiles count as current if the state says so."""
        log, metrics = self._warehouse.declarations, declared_metrics(self._stream)
        known = log.of(self._stream.name)
        if metrics or known:
            is_new = was_current and not known
            sealed = None if is_new else self._warehouse.expiries.seal(self._stream.name)
            log.built(self._stream.name, metrics, sealed, now)

    def compact(self, now: int) -> int:
        """Merge small parts once nothing was written for `pack.idle`. (A round with work merges too, but
        spares what it wrote itself.)"""
        stream, table = self._stream, self._warehouse.existing("rollups", self._stream.name)
        if table is None or not stream.pack.enabled or not stream.metrics:
            return 0
        if not self._quiet.is_due(stream.name, table.version, stream.pack.idle, now):
            return 0
        if is_deciding_again(self._warehouse.state, stream.name):
            return 0
        if not crowded_parts(table.snapshot().parts):
            return 0
        self.catch_up()
        return self._roller().compact(now=now)

    # -- beside it

    def verify(self, raw: RawFacts, now: int) -> Verified:
        roller = self._roller()
        if not roller.spec.metrics:
            return Verified()
        called = {entry.id: entry.name for entry in raw.entries}
        desired: dict[int, frozenset[str]] = {}
        for fact in raw.parts:
            _join(desired, fact.tiles, called)
        folder = roller.table.staging("verify")
        known = self._known(roller, desired, raw.entries, folder)
        tiles, sealed, differences = verify_tiles(
            roller.spec, roller.plan, roller.raw, roller.table, self._warehouse.engine, known, folder
        )
        remove_tree(folder)
        command = f"tidemill rebuild {self._stream.name} --rollups"
        found = [Difference("tile", one.position, one.what, command) for one in differences]
        return Verified(tiles, sealed, found)

    def _known(
        self,
        roller: Roller,
        desired: dict[int, frozenset[str]],
        entries: Sequence[SliceEntry],
        folder: Path,
    ) -> TileReference:
        """What tiles are compared with: raw alone, and the state for what has expired."""
        horizons = roller.horizons()
        expired = {
            tile.key: tile.hash
            for level in {*horizons.levels, *horizons.lost}
            for tile in self._warehouse.state.tiles(self._stream.name, level)
            if tile.part is None and tile.hash is not None and horizons.expired(tile.key)
        }
        known = TileReference(desired, expired, horizons.raw)
        if not roller.spec.in_order:
            return known
        if horizons.raw is not None:  # raw no longer shows which slices touched which tile
            touched = roller.state_history.touched
        else:
            seqs = {entry.id: entry.seq for entry in entries}
            again = roller.state_history.recount(roller.raw.snapshot().paths(), seqs, folder)
            admit = again.admitted_keys.admit if again.admitted_keys is not None else None
            touched, known = again.touched, TileReference(desired, expired, None, again.cells, admit)
        _join(desired, touched, {entry.id: entry.name for entry in entries})
        return known

    def scrub(self, tally: ScrubTally, after: str = "") -> Iterator[FileCheck]:
        """Check the observations of objects, and the admitted keys."""
        root, name = self._warehouse.root, self._stream.name
        files = history_files(root, name, self._stream.kept_metrics, self._warehouse.state)
        yield from check_files(files, tally, after)

    def recover(self, now: int) -> int:
        if not layout.raw(self._warehouse.root, self._stream.name).is_dir():
            return 0
        roller, was_followed = self._roller(), self._was_followed()
        begins_again = roller.state_history.begins_again(had_log=was_followed)
        with roller.state_history.beginning_again() if begins_again else nullcontext():
            found = roller.recall()
        if begins_again and was_followed:
            self._start_again(now)
        return found

    def _was_followed(self) -> bool:
        """Whether tiles were made for a metric that needs the state history, as it is declared now."""
        declared, known = declared_metrics(self._stream), self._warehouse.declarations.of(self._stream.name)
        return bool(known) and any(known[-1].metrics.get(name) == declared[name] for name in self._in_order())

    def _in_order(self) -> set[str]:
        """Metrics that depend on the order of events: those of states, and with a limit on their keys."""
        return {
            metric.name
            for metric in self._roller().spec.metrics
            if metric.following is not None or metric.limit is not None
        }

    def rebuild(self, span: Interval | None, now: int) -> RolledUp:
        roller, reach = self._roller(), span or EVER
        self._warehouse.progress(self._stream.name, "tiles", 0.0)
        done = RolledUp(roller.rebuild(reach), sealed=roller.sealed(reach))
        self._warehouse.progress(self._stream.name, "tiles", 1.0)
        return done

    def irreplaceable(self, files: Collection[str]) -> Mapping[str, str]:
        """Tiles whose raw, or whose lower levels, have expired."""
        lost: dict[str, str] = {}
        folder = layout.rollups(self._warehouse.root, self._stream.name).relative_to(self._warehouse.root)
        whole = folder.as_posix()
        for tile in self._for_good(self._in_table(files)):
            key = tile.key
            what = f"the {key.level} tiles from {format_instant(key.start)} on, where raw is gone for them"
            lost.setdefault(whole if whole in files else f"{whole}/{tile.part}", what)
        seal = self._warehouse.expiries.seal(self._stream.name)
        if seal is not None:
            of_history = layout.state_history(self._warehouse.root, self._stream.name)
            inside = of_history.relative_to(self._warehouse.root).as_posix()
            what = f"states and admitted keys from before {format_instant(seal)}: raw is gone for them"
            lost |= {file: what for file in files if file.startswith(f"{inside}/")}
        return lost

    def _for_good(self, parts: Collection[str]) -> list[TileState]:
        """The tiles in these parts that cannot be made again. A tile above one of them cannot either."""
        state, name = self._warehouse.state, self._stream.name
        horizons = horizons_of(self._warehouse, name)
        lost: list[TileState] = []
        gone = {level: list(spans) for level, spans in horizons.lost.items()}
        for level in LEVELS:
            for tile in state.tiles(name, level.name):
                if tile.part in parts and not can_be_made(
                    state, name, tile.key, replace(horizons, lost=gone)
                ):
                    lost.append(tile)
                    span = Interval(tile.key.start, tile.key.start + level.tile)
                    gone.setdefault(level.name, []).append(span)
        return lost

    def _in_table(self, files: Collection[str]) -> frozenset[str]:
        """The parts of the table among these files; all of them if its folder is one."""
        root, name = self._warehouse.root, self._stream.name
        table = layout.rollups(root, name)
        if table.relative_to(root).as_posix() not in files:
            return layout.in_table(table, root, files)
        tiles = (tile for level in LEVELS for tile in self._warehouse.state.tiles(name, level.name))
        return frozenset(tile.part for tile in tiles if tile.part is not None)

    def lose(self, files: Collection[str], now: int) -> None:
        """What is lost for good is recorded first, then the state changes: until the parts leave the table,
        readers get the damage as an error."""
        parts = self._in_table(files)
        table = self._warehouse.existing("rollups", self._stream.name) if parts else None
        if parts:
            if lost := self._for_good(parts):
                self._lose_for_good(lost, now)
            self._warehouse.state.lose_tiles(self._stream.name, parts)
        if table is not None:
            table.leave_out(parts, now)
        root = self._warehouse.root
        if layout.in_table(layout.state_history(root, self._stream.name), root, files):
            self._start_again(now)

    def _start_again(self, now: int) -> None:
        """Make observations and admitted keys again from raw. Where some of raw has expired, the metrics that
        need them count from there on, as if they were declared now: answers name the time before as
        missing."""
        name, metrics = self._stream.name, declared_metrics(self._stream)
        seal = self._warehouse.expiries.seal(name)
        if seal is None:
            self._roller().catch_up()
            return
        in_order = self._in_order()
        others = {key: metric for key, metric in metrics.items() if key not in in_order}
        self._warehouse.declarations.built(name, others, seal, now)
        self._warehouse.declarations.built(name, metrics, seal, now)
        roller = self._roller()
        with roller.state_history.beginning_again():
            roller.rebuild(EVER)

    def _lose_for_good(self, tiles: Sequence[TileState], now: int) -> None:
        """Record tiles that cannot be made again in the state alone, like expired ones. The same for tiles
        above them that may still change: they could not be made from the tiles below."""
        name, folder = self._stream.name, layout.rollups(self._warehouse.root, self._stream.name)
        sealed = self._warehouse.expiries.seal(name)
        losses: dict[tuple[str, str], set[int]] = {}
        for tile in tiles:
            file = (folder / str(tile.part)).relative_to(self._warehouse.root).as_posix()
            for level in LEVELS[LEVELS.index(BY_NAME[tile.key.level]) :]:
                start = level.tile_of(tile.key.start)
                is_changing = sealed is None or start + level.tile > sealed
                if level.name == tile.key.level or is_changing:
                    losses.setdefault((level.name, file), set()).add(start)
        lines = [
            Loss(name, f"{ROLLUPS}{level}", span, file, now)
            for (level, file), starts in sorted(losses.items())
            for span in self._runs(BY_NAME[level], starts)
        ]
        self._warehouse.expiries.append(lines)
        base = [tile.key.start for tile in tiles if tile.key.level == BASE.name]
        made_of = {one.state.key.start: one.observed for one in self._warehouse.state.base_tiles(name, base)}
        none: frozenset[str] = frozenset()
        known = [
            TileBuild(
                tile.key, str(tile.hash), 0, None, 0,
                made_of.get(tile.key.start, none) if tile.key.level == BASE.name else none,
            )
            for tile in tiles
        ]  # fmt: skip
        version = self._warehouse.state.table_versions(name).get("rollups", -1)
        self._warehouse.state.apply_tiles(name, version, known)

    def _runs(self, level: Level, starts: Collection[int]) -> Iterator[Interval]:
        """Tiles of a level as few spans: neighbours are joined."""
        known = [tile.key.start for tile in self._warehouse.state.tiles(self._stream.name, level.name)]
        for is_lost, run in groupby(sorted({*known, *starts}), key=lambda start: start in starts):
            if is_lost:
                first, *rest = run
                yield Interval(first, (rest[-1] if rest else first) + level.tile)

    def needs_raw_from(self, before: int, version: int) -> Iterator[Need]:
        if not self._stream.metrics:
            return
        stale = [tile.state.key.start for tile in self._warehouse.state.stale_tiles(self._stream.name)]
        if stale:
            first = min(stale)
            yield Need(first, f"{len(stale)} stale tiles, the first of {format_instant(first)}")

    def expiring(self, now: int) -> Iterator[ExpiryStep]:
        name = self._stream.name
        if self._warehouse.existing("rollups", name) is None:
            return
        for level, keep in self._stream.retention.rollups.items():
            found = self._roller().expiring(level, now - keep)
            files, rows, size = len(found.parts), found.rows, found.bytes
            yield ExpiryStep(name, f"{ROLLUPS}{level}", keep, found.before, files, rows, size)

    def expire(self, step: ExpiryStep, now: int) -> None:
        roller = self._roller()
        roller.expire(step.what.removeprefix(ROLLUPS), step.before, now)
        roller.table.vacuum(self._warehouse.project.engine.keep_replaced, now)


def _join(
    desired: dict[int, frozenset[str]], more: Mapping[int, frozenset[str]], called: Mapping[str, str]
) -> None:
    """Assign slices, under the names of their contributions, to the tiles they touch."""
    for start, ids in more.items():
        names = frozenset(called.get(each, each) for each in ids)
        desired[start] = desired.get(start, frozenset()) | names
