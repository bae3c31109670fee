"""The tile kernels: a tile that grew and a tile made again from what lies below it hold the same rows."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.config import Limits, Stream
from tidemill.formats.read_plan import plan_for
from tidemill.model.levels import BASE, BY_NAME, LEVELS, Level, TileKey, below
from tidemill.model.metrics import OTHER
from tidemill.model.time import DAY, HOUR, MINUTE, SECOND, Interval, format_instant
from tidemill.outputs.rollups.cell_files import read_cells, write_partial
from tidemill.outputs.rollups.cells import Cells, accumulate, cell_schema, merge
from tidemill.outputs.rollups.events import metric_plan, read_events
from tidemill.outputs.rollups.kernel import (
    CarryUnit,
    HighUnit,
    LowUnit,
    TileWork,
    build_high,
    build_low,
    carry,
    handed_path,
)
from tidemill.outputs.rollups.rows import read_tiles
from tidemill.outputs.rollups.spec import spec_for
from tidemill.outputs.rollups.tile_parts import Tile, TilePart
from tidemill.outputs.rollups.verify import SpanCheck, check_span

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


def tile(start: int, revision: int = 1) -> Tile:
    return Tile(start, f"{start}", revision, SPEC.declared, frozenset({"x"}))


class Tiles:
    """What stands, by tile; each round replaces some of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.places: dict[TileKey, str] = {}
        self.rounds = 0

    def build(self, new: Sequence[Event], *, again: bool) -> None:
        """One round; `again`: the touched 5s tiles hold only `new`, and all above is made from below."""
        self.rounds += 1
        folder = self.folder / str(self.rounds)
        folder.mkdir()
        partial, states = folder / "new.cells", folder / "new.states"
        write_partial(partial, cells_of(new))
        write_partial(states, states_of(new))
        touched = sorted({BASE.tile_of(time) for time, _, _ in new})
        works = {level.name: self._work(level, touched, again) for level in LEVELS}
        built = list(
            build_low(
                LowUnit(
                    SPEC,
                    PLAN,
                    base=works["5s"],
                    minutes=works["1m"],
                    hours_again=works["1h"].again,
                    folder=str(folder),
                    name="low",
                    partials=[str(partial)],
                    left=touched,
                    extra_for=touched,
                    extra=[str(states)],
                )
            )
        )
        handed = [str(handed_path(folder, "low", LEVELS[2]))]
        built += build_high(HighUnit(SPEC, [works["1h"], works["1d"], works["7d"]], handed, str(folder)))
        for level in LEVELS:
            standing = {path for key, path in self.places.items() if key.level == level.name}
            leaving = dict.fromkeys(sorted(standing), works[level.name].starts)
            built += carry(CarryUnit(SPEC, level.name, leaving, str(folder)))
        self.places = {TileKey(p.level, t.start): p.part.path for p in built for t in p.tiles}

    def _work(self, level: Level, touched: Sequence[int], again: bool) -> TileWork:
        starts = sorted({level.tile_of(start) for start in touched})
        under = below(level)
        if not again:
            return TileWork(
                level.name, [tile(s, self.rounds) for s in starts], old=self._where(level, starts)
            )
        beside: list[int] = []
        if under is not None:
            changed = {under.tile_of(start) for start in touched}
            beside = [
                key.start
                for key in self.places
                if key.level == under.name and key.start not in changed and level.tile_of(key.start) in starts
            ]
        below_ = self._where(under, beside) if under is not None else {}
        return TileWork(level.name, [tile(s, self.rounds) for s in starts], again=starts, below=below_)

    def _where(self, level: Level, starts: Sequence[int]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for start in sorted(starts):
            if (key := TileKey(level.name, start)) in self.places:
                found.setdefault(self.places[key], []).append(start)
        return found

    def level(self, name: str) -> Cells:
        level = BY_NAME[name]
        starts = [key.start for key in self.places if key.level == name]
        places = self._where(level, starts)
        tables = [read_tiles(SPEC, path, held, level.tile) for path, held in places.items()]
        return merge(SPEC, tables, level.width)


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
    """The 5s tile and the 1m tile that hold the first minute, made of raw."""
    admit = more.get("admit")
    assert admit is None or callable(admit)
    return LowUnit(
        SPEC,
        PLAN,
        base=TileWork("5s", [tile(MIDNIGHT)]),
        minutes=TileWork("1m", [tile(MIDNIGHT)]),
        hours_again=(),
        folder=str(folder),
        name="low",
        raw=[raw],
        wanted={MIDNIGHT: frozenset(wanted)},
        extra_for=[MIDNIGHT],
        extra=[str(more["extra"])] if "extra" in more else (),
        admit=admit,
    )


def without_api(cells: Cells) -> Cells:
    """As a roster would have it that admits no key of one metric."""
    table = cells["s"]
    other = pa.array([OTHER] * table.num_rows).dictionary_encode()
    return {**cells, "s": table.set_column(table.schema.get_field_index("k0"), "k0", other)}


def read_all(built: Sequence[TilePart], level: str) -> Cells:
    tile = BY_NAME[level].tile
    parts = [part for part in built if part.level == level]
    tables = [read_tiles(SPEC, p.part.path, [t.start for t in p.tiles], tile) for p in parts]
    return merge(SPEC, tables, BY_NAME[level].width)


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
    stored = {p.level: {p.part.path: [t.start for t in p.tiles]} for p in built}
    out, day = str(tmp_path / "out"), Interval(MIDNIGHT, MIDNIGHT + DAY)
    unit = SpanCheck(SPEC, PLAN, day, [raw], stored, out, extra=[str(extra)], admit=without_api)

    def said(unit: SpanCheck) -> list[str]:
        return [f"{difference.position}: {difference.what}" for difference in check_span(unit)]

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
