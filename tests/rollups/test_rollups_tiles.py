"""The tile kernels: a tile that grew and a tile made again from what lies below it hold the same rows."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.config import Limits, Stream
from tidemill.model.levels import BASE, LEVELS
from tidemill.model.metrics import OTHER
from tidemill.model.tiles import TileKey
from tidemill.model.time import DAY, HOUR, MINUTE, SECOND, Interval, format_instant
from tidemill.records.plan import plan_for
from tidemill.rollups.cell_files import read_cells, write_partial
from tidemill.rollups.cells import Cells, accumulate, cell_schema, merge
from tidemill.rollups.events import metric_plan, read_events
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
from tidemill.rollups.verify import DayUnit, check_day

STREAM = Stream.model_validate(
    {
        "name": "s",
        "schema": {"id": "string", "api": "string", "size": "integer"},
        "identity": "id",
        "metrics": {
            "g": {"kind": "gauge", "dimensions": ["api"], "value": "size"},
            "h": {"kind": "histogram", "dimensions": ["api"], "value": "size"},
            "s": {"kind": "counter", "dimensions": ["api"], "measures": ["size"]},
            "t": {"kind": "state", "object": "id", "state": "api"},
        },
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
            "event_id": pa.array([id_of(event) for event in events]),
            "d0": pa.array(api).dictionary_encode(),
            "m0": pa.array(size, pa.int64()),
        }
    )
    return merge(SPEC, [accumulate(SPEC, table, width)], width)


def id_of(event: Event) -> str:
    return f"{event[1]}:{event[2]}"


def states_of(events: Sequence[Event], width: int = BASE.width) -> Cells:
    """State cells as they are handed in: every event is an object that is seen once."""
    columns = {
        "tenant": ["t"] * len(events),
        "state": [api for _, api, _ in events],
        **{name: [None] * len(events) for name in ("rule", "from", "to")},
        "bucket": [time // width * width for time, _, _ in events],
        "count": [1] * len(events),
    }
    return merge(SPEC, [{"t": pa.table(columns, schema=cell_schema(SPEC.metric("t")))}], width)


def whole(events: Sequence[Event], width: int = BASE.width) -> Cells:
    return merge(SPEC, [cells_of(events, width), states_of(events, width)], width)


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
        partial, states = folder / "new.cells", folder / "new.states"
        write_partial(partial, cells_of(new))
        write_partial(states, states_of(new))
        starts = {BASE.tile_of(time) for time, _, _ in new}
        minutes = sorted({LEVELS[1].tile_of(start) for start in starts})
        touched = {TileKey(BASE.name, start) for start in starts}
        built: list[Built] = []
        for start in minutes:
            key = TileKey("1m", start)
            base = [
                BaseTarget(
                    self._base(k, again), frozenset({"x"}), partials=[str(partial)], extra=[str(states)]
                )
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
        assert rows(tiles.level(level.name)) == rows(whole([*EARLY, *LATE, *MORE], level.width))


def test_a_tile_made_again_holds_what_lies_below_it_now(tmp_path: Path) -> None:
    """Some 5s tiles lose what they had: all above them is made again, beside what did not change."""
    tiles = Tiles(tmp_path)
    tiles.build([*EARLY, *LATE], again=False)
    tiles.build(MORE, again=True)  # in the place of EARLY
    assert {BASE.tile_of(time) for time, _, _ in EARLY} <= {BASE.tile_of(time) for time, _, _ in MORE}
    for level in LEVELS:
        assert rows(tiles.level(level.name)) == rows(whole([*LATE, *MORE], level.width))


# -- tiles of one minute from raw, and what is done to cells on the way


RAW = [*EARLY, *((time + SECOND // 2, "/é", -7) for time, _, _ in EARLY[:20])]


def raw_part(folder: Path, events: Sequence[Event]) -> str:
    """As accept writes it; every second line is of another slice."""
    time = pa.array([event[0] for event in events], pa.int64())
    table = pa.table(
        {
            "tenant": ["t"] * len(events),
            "event_time": time.cast(pa.timestamp("us", tz="UTC")),
            "event_id": [id_of(event) for event in events],
            "slice": ["even" if line % 2 == 0 else "odd" for line in range(len(events))],
            "line": list(range(len(events))),
            "payload": [json.dumps({"id": id_of(e), "api": e[1], "size": e[2]}) for e in events],
        }
    )
    path = folder / "raw.parquet"
    pq.write_table(table, path)
    return str(path)


def minute_unit(folder: Path, raw: str, wanted: Collection[str], **more: object) -> LowUnit:
    """The 5s tiles that hold the first minute, made of raw."""
    minute = TileKey("1m", MIDNIGHT)
    base = [
        BaseTarget(
            Target(TileKey(BASE.name, start), "h", 1, None),
            frozenset(wanted),
            raw=[raw],
            wanted=frozenset(wanted),
            extra=[str(more["extra"])] if "extra" in more else (),
        )
        for start in range(MIDNIGHT, MIDNIGHT + MINUTE, BASE.tile)
    ]
    admit = more.get("admit")
    assert admit is None or callable(admit)
    return LowUnit(SPEC, PLAN, base, [], Target(minute, "h", 1, None), str(folder), admit)


def without_api(cells: Cells) -> Cells:
    """As a roster would have it that admits no key of one metric."""
    table = cells["s"]
    other = pa.array([OTHER] * table.num_rows).dictionary_encode()
    return {**cells, "s": table.set_column(table.schema.get_field_index("k0"), "k0", other)}


def read_all(built: Sequence[Built], level: str) -> Cells:
    tiles = [read_tile(SPEC, b.part.path, tile_span(b.key)) for b in built if b.key.level == level]
    return merge(SPEC, tiles, next(each.width for each in LEVELS if each.name == level))


def test_events_of_raw_come_with_their_id_and_place(tmp_path: Path) -> None:
    raw = raw_part(tmp_path, RAW)
    (events,) = read_events(PLAN, [raw], Interval(MIDNIGHT, MIDNIGHT + 3 * SECOND), frozenset({"odd"}))
    assert {
        name: events.column(name).to_pylist() for name in ("event_id", "slice", "line", "d0", "d1", "m0")
    } == {
        "event_id": ["/a:1", "/é:-7"],
        "slice": ["odd", "odd"],
        "line": [1, 41],
        "d0": ["/a", "/é"],
        "d1": ["/a:1", "/é:-7"],
        "m0": [1, -7],
    }


def test_a_tile_made_of_raw_holds_the_wanted_slices_only(tmp_path: Path) -> None:
    raw = raw_part(tmp_path, RAW)
    built = list(build_low(minute_unit(tmp_path, raw, {"even"})))
    assert rows(read_all(built, "1m")) == rows(cells_of(RAW[::2], MINUTE))
    assert rows(read_all(built, "5s")) == rows(cells_of(RAW[::2]))


def test_fresh_cells_pass_admission_and_state_cells_are_added_as_they_are(tmp_path: Path) -> None:
    raw = raw_part(tmp_path, RAW)
    extra = tmp_path / "states.cells"
    write_partial(extra, states_of([*RAW, *LATE]))  # of other tiles too: they are not this unit's
    built = list(build_low(minute_unit(tmp_path, raw, {"even", "odd"}, extra=extra, admit=without_api)))
    for level in LEVELS[:2]:
        wanted = merge(SPEC, [without_api(cells_of(RAW)), states_of(RAW)], level.width)
        found = read_all(built, level.name)
        assert rows(found) == rows(wanted)
        assert set(found["s"].column("k0").to_pylist()) == {OTHER}
        assert set(found["g"].column("k0").to_pylist()) == {"/a", "/é"}
        assert sum(found["t"].column("count").to_pylist()) == len(RAW)


def test_verification_makes_cells_in_the_same_way_and_tells_what_differs(tmp_path: Path) -> None:
    raw = raw_part(tmp_path, RAW)
    extra = tmp_path / "states.cells"
    write_partial(extra, states_of(RAW))
    built = list(build_low(minute_unit(tmp_path, raw, {"even", "odd"}, extra=extra, admit=without_api)))
    tiles = {b.key: b.part.path for b in built}
    out = str(tmp_path / "out")
    unit = DayUnit(SPEC, PLAN, MIDNIGHT, [raw], tiles, out, extra=[str(extra)], admit=without_api)

    def said(unit: DayUnit) -> list[str]:
        return [f"{difference.place}: {difference.what}" for difference in check_day(unit)]

    # /a and /é of two metrics, one key of the counter, and two states; no 1h tile was built
    assert said(unit) == [f"1h {format_instant(MIDNIGHT)}: is missing; raw has 7 rows for it"]
    assert rows(read_cells(unit.out)) == rows(
        merge(SPEC, [without_api(cells_of(RAW)), states_of(RAW)], LEVELS[2].width)
    )
    first = f"5s {format_instant(MIDNIGHT)}"
    assert said(replace(unit, admit=None))[0] == f"{first}: s has 8 rows; raw says 12"
    assert said(replace(unit, extra=()))[0] == f"{first}: t has 12 rows; raw says 0"
    write_partial(extra, states_of(RAW[1:]))
    assert said(unit)[0] == f"{first}: row 0 of t: count is 5; raw says 4"
