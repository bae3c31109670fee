"""The tile kernels: a tile that grew and a tile made again from what lies below it hold the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from tidemill.config import Limits, Stream
from tidemill.model.levels import BASE, LEVELS
from tidemill.model.tiles import TileKey
from tidemill.model.time import DAY, HOUR, MINUTE, SECOND
from tidemill.records.plan import plan_for
from tidemill.rollups.cell_files import write_partial
from tidemill.rollups.cells import Cells, accumulate, merge
from tidemill.rollups.events import metric_plan
from tidemill.rollups.kernel import (
    BaseTarget,
    Built,
    HighUnit,
    LowUnit,
    Target,
    build_high,
    build_low,
    delta_path,
    tile_span,
)
from tidemill.rollups.rows import read_tile
from tidemill.rollups.spec import spec_for

STREAM = Stream.model_validate(
    {
        "name": "s",
        "schema": {"id": "string", "api": "string", "size": "integer"},
        "identity": "id",
        "metrics": {"s": {"kind": "counter", "dimensions": ["api"], "measures": ["size"]}},
    }
)
SPEC, PLAN = spec_for(STREAM), metric_plan(plan_for(STREAM, Limits()))
MIDNIGHT = 20_000 * DAY
EARLY = [(MIDNIGHT + i * SECOND, "/a", i) for i in range(40)]
LATE = [(MIDNIGHT + 9 * HOUR + i * MINUTE, "/b", -i) for i in range(40)]
MORE = [(MIDNIGHT + i * 7 * SECOND, "/c", 2**40 + i) for i in range(40)]

Event = tuple[int, str, int]


def cells_of(events: Sequence[Event], width: int = BASE.width) -> Cells:
    time, api, size = zip(*events, strict=True)
    table = pa.table(
        {
            "tenant": pa.array(["t"] * len(events)).dictionary_encode(),
            "event_time": pa.array(time, pa.int64()),
            "event_id": pa.array([str(number) for number in range(len(events))]),
            "d0": pa.array(api).dictionary_encode(),
            "m0": pa.array(size, pa.int64()),
        }
    )
    return merge(SPEC, [accumulate(SPEC, table, width)], width)


def rows(cells: Cells) -> dict[str, list[dict[str, object]]]:
    return {name: table.to_pylist() for name, table in cells.items()}


class Tiles:
    """What stands, by tile; each round replaces some of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths: dict[TileKey, str] = {}
        self.rounds = 0

    def build(self, new: Sequence[Event], *, again: bool) -> None:
        """One round; `again`: the touched 5s tiles hold only `new`, and all above is made from below."""
        self.rounds += 1
        folder = self.folder / str(self.rounds)
        folder.mkdir()
        cells = cells_of(new)
        partial = folder / "new.cells"
        write_partial(partial, cells)
        starts = {BASE.tile_of(time) for time, _, _ in new}
        minutes = sorted({LEVELS[1].tile_of(start) for start in starts})
        touched = {TileKey(BASE.name, start) for start in starts}
        built: list[Built] = []
        for start in minutes:
            key = TileKey("1m", start)
            base = [
                BaseTarget(self._base(k, again), frozenset({"x"}), partials=[str(partial)])
                for k in sorted(touched)
                if tile_span(key).holds(k.start)
            ]
            minute = self._target(key, again, touched)
            built += build_low(LowUnit(SPEC, PLAN, base, [], minute, str(folder)))
        done = {TileKey("1m", start) for start in minutes}
        above: list[list[Target]] = []
        for level in LEVELS[2:]:
            keys = sorted({TileKey(level.name, level.tile_of(key.start)) for key in done})
            above.append([self._target(key, again, done) for key in keys])
            done |= set(keys)
        unit = HighUnit(
            spec=SPEC,
            hours=above[0],
            days=above[1],
            weeks=above[2],
            deltas=[str(delta_path(folder, TileKey("1m", start))) for start in minutes],
            folder=str(folder),
            minutes={b.key: b.part.path for b in built if b.key.level == "1m"},
        )
        built += build_high(unit)
        self.paths |= {b.key: b.part.path for b in built}

    def _base(self, key: TileKey, again: bool) -> Target:
        return Target(key, "h", self.rounds, None if again else self.paths.get(key))

    def _target(self, key: TileKey, again: bool, changed: set[TileKey]) -> Target:
        if not again:
            return Target(key, "h", self.rounds, self.paths.get(key))
        names = [level.name for level in LEVELS]
        under = names[names.index(key.level) - 1]
        standing = [(k, path) for k, path in self.paths.items() if k.level == under and k not in changed]
        below = [(k, path) for k, path in standing if tile_span(key).holds(k.start)]
        return Target(key, "h", self.rounds, None, below)

    def level(self, name: str) -> Cells:
        tiles = [
            read_tile(SPEC, path, tile_span(key)) for key, path in self.paths.items() if key.level == name
        ]
        return merge(SPEC, tiles, next(level.width for level in LEVELS if level.name == name))


def test_a_tile_that_grew_holds_what_all_its_events_make(tmp_path: Path) -> None:
    tiles = Tiles(tmp_path)
    for events in (EARLY, LATE, MORE):
        tiles.build(events, again=False)
    for level in LEVELS:
        assert rows(tiles.level(level.name)) == rows(cells_of([*EARLY, *LATE, *MORE], level.width))


def test_a_tile_made_again_holds_what_lies_below_it_now(tmp_path: Path) -> None:
    """Some 5s tiles lose what they had: all above them is made again, beside what did not change."""
    tiles = Tiles(tmp_path)
    tiles.build([*EARLY, *LATE], again=False)
    tiles.build(MORE, again=True)  # in the place of EARLY
    assert {BASE.tile_of(time) for time, _, _ in EARLY} <= {BASE.tile_of(time) for time, _, _ in MORE}
    for level in LEVELS:
        assert rows(tiles.level(level.name)) == rows(cells_of([*LATE, *MORE], level.width))
