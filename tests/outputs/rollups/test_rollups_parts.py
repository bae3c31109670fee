"""Parts of the rollups table: which tiles share one, what a footer says of them, which parts are merged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.config import Stream
from tidemill.engine.jobs import spread
from tidemill.model.levels import BASE, BY_NAME
from tidemill.model.slices import set_hash
from tidemill.model.time import DAY, HOUR, SECOND
from tidemill.outputs.rollups import tile_parts
from tidemill.outputs.rollups.cells import Cells, accumulate, merge
from tidemill.outputs.rollups.compaction import FAN_IN, LARGE, crowded_parts
from tidemill.outputs.rollups.kernel import CarryUnit, carry
from tidemill.outputs.rollups.rows import read_tiles
from tidemill.outputs.rollups.spec import spec_for
from tidemill.outputs.rollups.tile_parts import Tile, TilePart, TilesFooter, cut_by_weight, write_tiles
from tidemill.storage.tables.parts import read_footer
from tidemill.storage.tables.snapshot import Part

SPEC = spec_for(
    Stream.model_validate(
        {
            "name": "s",
            "schema": {"id": "string", "api": "string", "size": "integer"},
            "identity": "id",
            "metrics": {
                "h": {"kind": "histogram", "dimensions": ["api"], "value": "size"},
                "s": {"kind": "counter", "dimensions": ["api"], "measures": ["size"]},
            },
        }
    )
)
START = 20_000 * DAY


def cells(times: Sequence[int]) -> Cells:
    events = pa.table(
        {
            "tenant": pa.array(["t"] * len(times)).dictionary_encode(),
            "event_time": pa.array(times, pa.int64()),
            "event_id": pa.array([str(time) for time in times]),
            "d0": pa.array([f"/{time % 3}" for time in times]).dictionary_encode(),
            "m0": pa.array([time % 97 for time in times], pa.int64()),
        }
    )
    return merge(SPEC, [accumulate(SPEC, events, BASE.width)], BASE.width)


def tile(start: int, *slices: str, declared: str = "d") -> Tile:
    return Tile(start, set_hash(slices), 1, declared, frozenset(slices))


def hourly(count: int) -> tuple[list[Tile], list[int]]:
    """An event in each hour: a tile each, and none in between."""
    times = [START + number * HOUR + number * SECOND for number in range(count)]
    return [tile(BASE.tile_of(time), "x") for time in times], times


def read(parts: Sequence[TilePart]) -> dict[str, list[dict[str, object]]]:
    tables = [read_tiles(SPEC, p.part.path, [t.start for t in p.tiles], BASE.tile) for p in parts]
    return {name: table.to_pylist() for name, table in merge(SPEC, tables, BASE.width).items()}


def test_tiles_of_many_days_share_a_part(tmp_path: Path) -> None:
    tiles, times = hourly(2000)
    (part,) = write_tiles(SPEC, BASE, tiles, cells(times), tmp_path)
    assert [each.start for each in part.tiles] == [each.start for each in tiles]
    assert {each.rows for each in part.tiles} == {2}
    assert part.part.rows == 4000


def test_a_level_is_cut_at_the_borders_of_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_parts, "PART_ROWS", 100)
    tiles, times = hourly(500)
    parts = list(write_tiles(SPEC, BASE, tiles, cells(times), tmp_path))
    assert len(parts) == 10
    assert [each.start for part in parts for each in part.tiles] == [each.start for each in tiles]
    for part in parts:
        buckets = pq.read_table(part.part.path, partitioning=None).column("bucket").cast(pa.int64())
        starts = {BASE.tile_of(bucket) for bucket in buckets.to_pylist()}
        assert starts == {each.start for each in part.tiles}
        assert part.part.rows == sum(each.rows for each in part.tiles) <= 120
    assert read(parts) == {name: table.to_pylist() for name, table in cells(times).items()}


def test_a_tile_of_much_weight_is_alone() -> None:
    weights = np.array([40, 40, 40, 900, 0, 30, 70, 100, 10], np.int64)
    found = [weights[run].tolist() for run in cut_by_weight(weights, 6)]
    assert found == [[40, 40, 40], [900], [0], [30], [70], [100, 10]]


@given(weights=st.lists(st.integers(0, 1000), min_size=1), most=st.integers(1, 20))
def test_tiles_are_cut_where_units_of_work_would_be(weights: list[int], most: int) -> None:
    found = [list(range(run.start, run.stop)) for run in cut_by_weight(np.array(weights, np.int64), most)]
    assert found == spread(weights, most)


def test_what_leaves_a_part_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    tiles, times = hourly(50)
    (part,) = write_tiles(SPEC, BASE, tiles, cells(times), tmp_path)
    (tmp_path / "next").mkdir()
    gone = [tiles[7].start, tiles[30].start]
    (rest,) = carry(CarryUnit(SPEC, BASE.name, {part.part.path: gone}, str(tmp_path / "next")))
    assert rest.carried
    kept = [each for each in part.tiles if each.start not in gone]
    assert list(rest.tiles) == kept
    left = [time for time in times if BASE.tile_of(time) not in gone]
    assert read([rest]) == {name: table.to_pylist() for name, table in cells(left).items()}
    everything = {part.part.path: [each.start for each in tiles]}
    assert list(carry(CarryUnit(SPEC, BASE.name, everything, str(tmp_path / "next")))) == []


@pytest.mark.parametrize("level", ["5s", "1m"])
def test_a_footer_says_what_its_tiles_are_made_of(level: str) -> None:
    step = BY_NAME[level].tile
    slices = [("a",), ("a", "b"), ()]
    tiles = [
        Tile(number * step, set_hash(names), number + 1, declared, frozenset(names), 10 * number)
        for number, (names, declared) in enumerate(zip(slices, ("old", "new", "new"), strict=True))
    ]
    if level == "1m":
        tiles = [each._replace(slices=frozenset()) for each in tiles]
    footer = json.loads(json.dumps(TilesFooter("s", level, tiles).to_footer()))
    assert TilesFooter.from_footer(footer) == TilesFooter("s", level, tiles)


def test_a_footer_of_a_former_version_is_read() -> None:
    footer = {
        "kind": "tiles",
        "stream": "s",
        "declared": "d",
        "level": "5s",
        "tiles": [{"start": 5, "revision": 2, "hash": "h", "rows": 3, "slices": ["a", "b"]}],
    }
    assert TilesFooter.from_footer(footer).tiles == [Tile(5, "h", 2, "d", frozenset({"a", "b"}), 3)]


def test_names_stand_once_in_a_footer(tmp_path: Path) -> None:
    tiles, times = hourly(300)
    name = "f" * 64
    named = [each._replace(slices=frozenset({name})) for each in tiles]
    (part,) = write_tiles(SPEC, BASE, named, cells(times), tmp_path)
    assert json.dumps(read_footer(part.part.path)).count(name) == 1


def part_of(level: str, number: int, rows: int) -> Part:
    return Part(f"level={level}/{number}", rows, rows, {"level": level}, {"bucket": number}, {})


def test_parts_of_about_one_size_are_merged_once_there_are_enough() -> None:
    few = [part_of("5s", number, 10) for number in range(FAN_IN - 1)]
    others = [part_of("1m", number, 10) for number in range(FAN_IN - 1)]
    assert crowded_parts([*few, *others]) == []
    more = [*few, part_of("5s", FAN_IN, 12)]
    assert crowded_parts([*others, *reversed(more)]) == [more]


def test_a_part_that_is_large_or_of_another_size_is_left_alone() -> None:
    small = [part_of("5s", number, 10) for number in range(FAN_IN)]
    large = [part_of("5s", 100 + number, LARGE) for number in range(2 * FAN_IN)]
    middle = [part_of("5s", 200 + number, 1000) for number in range(FAN_IN - 1)]
    assert crowded_parts([*large, *middle, *small]) == [small]
    assert crowded_parts([*large, *middle]) == []
