"""`rebuild --rollups`, `--index` and `--columns`: makes them again from raw, with the same result.

They are made by the same code as in a round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidemill.ingest import arguments
from tidemill.model.errors import InputError
from tidemill.model.levels import BASE, LEVELS
from tidemill.model.time import Interval, align
from tidemill.outputs.index.indexer import Indexed, desired_parts, touches
from tidemill.outputs.rollups.output import RolledUp
from tidemill.outputs.rollups.planning import horizons_of
from tidemill.pipeline.rounds import tick_stream
from tidemill.storage.state.faults import Unguarded

if TYPE_CHECKING:
    from tidemill.model.levels import TileState
    from tidemill.outputs.rollups.roller import Rebuilt
    from tidemill.outputs.windows.refresh import WindowRefresh
    from tidemill.pipeline.workers import Workers
    from tidemill.raw.compaction.column_rewrite import RemadeColumns


@dataclass(frozen=True, slots=True)
class Remade:
    """What was made again of the rollups."""

    tiles: list[Rebuilt]
    sealed: int  # 5s tiles whose raw has expired: they stay as they are


@dataclass(frozen=True, slots=True)
class RemakePlan:
    """What would be made again now; slices that wait to be accepted are not considered."""

    tiles: Mapping[str, int]  # by level
    sealed: int
    parts: int  # of the index
    pending: int  # slices that are accepted before anything is made again


class Rebuilder:
    """Rebuilds the outputs of one warehouse."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def rollups(self, stream: str, start: str | int | None = None, end: str | int | None = None) -> Remade:
        """Rebuild the rollups of a span, or all, from raw. Returns what was rebuilt."""
        workers, span = self._workers, arguments.span(start, end)
        self._check_metrics(stream)
        with workers.warehouse.working("rebuild"):
            self._settle(stream)
            done = workers.output(stream, "rollups").rebuild(span, workers.warehouse.clock())
            assert isinstance(done, RolledUp)
            return Remade(list(done.tiles), done.sealed)

    def index(self, stream: str, start: str | int | None = None, end: str | int | None = None) -> Indexed:
        """Rebuild the index of a span, or all of it, from raw. Returns what was rebuilt."""
        workers, span = self._workers, arguments.span(start, end)
        self._check_indexed(stream)
        with workers.warehouse.working("rebuild"):
            self._settle(stream)
            done = workers.output(stream, "index").rebuild(_all(span), workers.warehouse.clock())
            assert isinstance(done, Indexed)
            return done

    def columns(self, stream: str) -> RemadeColumns:
        """Make the declared columns of raw again, in all parts with columns of another declaration. Returns
        what was made."""
        workers = self._workers
        declared = workers.project.stream(stream)
        with workers.warehouse.working("rebuild"):
            stale = workers.packer.stale(stream)  # before a round makes some of them
            self._settle(stream)
            done = workers.packer.remake_all(declared, workers.warehouse.clock())
            self._settle(stream)  # the index follows
            made = stale.parts - done.left.parts, stale.rows - done.left.rows
            return replace(done, parts=made[0], rows=made[1])

    def results(self, stream: str, window: str) -> WindowRefresh:
        """Rebuild the damaged results of a streaming window from raw. Returns what was rebuilt."""
        workers = self._workers
        declared = workers.project.stream(stream)
        with workers.warehouse.working("rebuild"):
            self._settle(declared.name)
            return workers.streaming_windows.repair(declared.name, window, workers.warehouse.clock())

    def plan(
        self,
        stream: str,
        start: str | int | None = None,
        end: str | int | None = None,
        *,
        rollups: bool = True,
        index: bool = True,
    ) -> RemakePlan:
        """What `rollups` and `index` would rebuild. Changes nothing."""
        workers, span = self._workers, arguments.span(start, end)
        tiles, sealed = self._tiles(stream, span) if rollups else ({}, 0)
        parts = self._parts(stream, span) if index else 0
        return RemakePlan(tiles, sealed, parts, workers.state.totals(stream)["pending_slices"])

    def _tiles(self, stream: str, span: Interval) -> tuple[dict[str, int], int]:
        """How many can be made again, by level, and how many 5s tiles are sealed."""
        self._check_metrics(stream)
        workers, whole = self._workers, LEVELS[1].tile  # 5s tiles are made again by the minute
        reach = Interval(align(span.start, whole), -(-span.end // whole) * whole)
        horizons = horizons_of(workers.warehouse, stream)
        base = workers.state.tiles(stream, BASE.name, reach)
        open_ = [tile for tile in base if not horizons.sealed(tile.key)]
        found = {BASE.name: _existing_tiles(open_)}
        for level in LEVELS[1:]:
            starts = {align(tile.key.start, level.tile) for tile in open_}
            above = workers.state.tiles(stream, level.name)
            found[level.name] = _existing_tiles([tile for tile in above if tile.key.start in starts])
        return {level: count for level, count in found.items() if count}, len(base) - len(open_)

    def _parts(self, stream: str, span: Interval) -> int:
        self._check_indexed(stream)
        workers, raw = self._workers, self._workers.warehouse.existing("raw", stream)
        parts = raw.snapshot().parts if raw is not None else []
        desired = desired_parts(workers.project.stream(stream), parts, workers.warehouse.clock())
        return sum(touches(part, _all(span)) for part in desired.values())

    def _check_metrics(self, stream: str) -> None:
        if not self._workers.project.stream(stream).metrics:
            raise InputError(f"stream {stream!r} has no metrics", hint="declare `metrics: {NAME: …}` for it")

    def _check_indexed(self, stream: str) -> None:
        if not self._workers.project.stream(stream).indexed:
            raise InputError(
                f"nothing is indexed in stream {stream!r}", hint="declare `indexed: [PATH, …]` for it"
            )

    def _settle(self, stream: str) -> None:
        """First accept what has landed and finish what a crash left."""
        workers = self._workers
        tick_stream(workers, workers.project.stream(stream), workers.warehouse.clock(), Unguarded())


def _existing_tiles(tiles: list[TileState]) -> int:
    return sum(tile.part is not None for tile in tiles)


def _all(span: Interval) -> Interval | None:
    return None if span == arguments.span(None, None) else span
