"""Sparse feeds: many small tiles and results in few parts, which stay right whatever happens to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.pipeline.test_recover import dump, forget
from tests.support.pipeline import CONFIG, NewPlant, Plant, ndjson, request

from tidemill.mill import recover
from tidemill.model.failpoints import observed
from tidemill.model.levels import BY_NAME, LEVELS
from tidemill.model.time import DAY, HOUR, MINUTE
from tidemill.outputs.rollups import compaction, tile_parts
from tidemill.outputs.rollups.compaction import FAN_IN

EVENTS = 240  # one in every seven hours: seventy days
STEP = 7 * HOUR + 3 * MINUTE
WINDOWS = f"""{CONFIG}
    windows:
      daily:
        kind: tumbling
        size: 1d
        group_by: region
        aggregates: {{count: count}}
        late: {{policy: reemit, max_lateness: 200d}}
"""


def at(plant: Plant, number: int) -> int:
    return plant.clock() - DAY - (EVENTS - number) * STEP


def event(plant: Plant, number: int, **changes: object) -> dict[str, object]:
    return request(number, ts=at(plant, number) // 1000, tenant="acme", **changes)


def feed(plant: Plant, slices: int) -> None:
    """All events in so many slices, a tick for each."""
    many = EVENTS // slices
    with plant.open() as mill:
        for first in range(0, EVENTS, many):
            mill.land("requests", ndjson(*(event(plant, n) for n in range(first, first + many))))
            mill.tick()


def parts_by_level(plant: Plant) -> Counter[str]:
    return Counter(part.partition["level"] for part in plant._table("rollups").snapshot().parts)


def assert_right(plant: Plant, numbers: Sequence[int]) -> None:
    """Every level counts these events, in their buckets."""
    with plant.open() as mill:
        assert mill.verify().findings == []
        assert mill.state.stale_tiles("requests") == []
    stored = plant._table("rollups").snapshot()
    for level in LEVELS:
        wanted = Counter(at(plant, n) // level.width * level.width for n in numbers)
        found = counted(plant, level.name)
        assert found == wanted, level.name
        # each tile in exactly one part, as the state says
        with plant.open() as mill:
            tiles = mill.state.tiles("requests", level.name)
        held = Counter(str(tile.part) for tile in tiles)
        parts = {part.path for part in stored.parts if part.partition["level"] == level.name}
        assert set(held) == parts
        assert sum(tile.rows for tile in tiles) == sum(p.rows for p in stored.parts if p.path in parts)


def counted(plant: Plant, level: str) -> Counter[int]:
    """What the rows of a level say, by bucket."""
    snapshot = plant._table("rollups").snapshot()
    found: Counter[int] = Counter()
    for path in snapshot.paths(snapshot.select({"level": [level]})):
        rows = pq.read_table(path, partitioning=None)
        buckets = rows.column("bucket").cast(pa.int64()).to_pylist()
        for bucket, count in zip(buckets, rows.column("count").to_pylist(), strict=True):
            found[bucket] += count
    return found


@pytest.fixture(scope="module")
def fed(new_plant: NewPlant) -> Plant:
    """In one slice and one tick. Copy before you touch."""
    plant = new_plant()
    feed(plant, 1)
    return plant


@pytest.fixture
def plant(fed: Plant, tmp_path: Path) -> Plant:
    return fed.copy(tmp_path / "plant")


def test_a_sparse_feed_is_one_part_a_level(plant: Plant) -> None:
    assert parts_by_level(plant) == Counter([level.name for level in LEVELS])
    assert_right(plant, range(EVENTS))


def test_a_late_event_leaves_the_tiles_beside_it_as_they_were(plant: Plant) -> None:
    with plant.open() as mill:
        before = {t.key: t for level in LEVELS for t in mill.state.tiles("requests", level.name)}
        mill.land("requests", ndjson(event(plant, 100, event_id="late")))
        report = mill.tick()
        assert [tile.key.level for tile in report.streams[0].tiles] == [level.name for level in LEVELS]
        touched = {tile.key for tile in report.streams[0].tiles}
        for level in LEVELS:
            for tile in mill.state.tiles("requests", level.name):
                if tile.key not in touched:
                    assert (tile.hash, tile.revision) == (before[tile.key].hash, before[tile.key].revision)
                    assert tile.rows == before[tile.key].rows
    assert_right(plant, [*range(EVENTS), 100])
    assert max(parts_by_level(plant).values()) == 2  # the tile that changed, and the others


def test_what_is_taken_back_leaves_only_its_own_tiles(plant: Plant) -> None:
    with plant.open() as mill:
        landed = mill.land("requests", ndjson(*(event(plant, n, event_id=f"x{n}") for n in (3, 90, 200))))
        mill.tick()
    assert_right(plant, [*range(EVENTS), 3, 90, 200])
    with plant.open() as mill:
        mill.retract(mill.plan_retraction(landed.entry.id, "sent by mistake"))
        mill.run_until_idle()
    assert_right(plant, range(EVENTS))


def test_the_state_is_recovered_from_shared_parts(plant: Plant) -> None:
    with plant.open() as mill:
        mill.land("requests", ndjson(event(plant, 100, event_id="late")))
        mill.tick()
    before = dump(plant)
    forget(plant)
    recover(plant.root, spark=plant.spark)
    for table, rows in dump(plant).items():
        assert rows == before[table], table
    assert_right(plant, [*range(EVENTS), 100])


def test_all_of_it_made_again_is_what_it_was(plant: Plant) -> None:
    before = plant.tiles()
    with plant.open() as mill:
        mill.remake.rollups("requests")
    assert plant.tiles() == before
    assert_right(plant, range(EVENTS))


def test_a_part_across_the_horizon_is_cut(plant: Plant) -> None:
    plant.configure(f"{CONFIG}    retention: {{rollups: {{5s: 30d, 1m: 40d}}}}\n")
    with plant.open() as mill:
        done = {step.what: step for step in mill.retention.expire(mill.retention.plan())}
        assert mill.retention.plan().due == []
        assert mill.verify().findings == []
    for level, days in (("5s", 30), ("1m", 40)):
        horizon = (plant.clock() - days * DAY) // HOUR * HOUR
        kept = [n for n in range(EVENTS) if at(plant, n) >= horizon]
        assert counted(plant, level) == Counter(
            at(plant, n) // BY_NAME[level].width * BY_NAME[level].width for n in kept
        )
        assert done[f"rollups:{level}"].rows == EVENTS - len(kept)
    assert parts_by_level(plant) == Counter([level.name for level in LEVELS])
    before = dump(plant)
    forget(plant)
    recover(plant.root, spark=plant.spark)
    assert dump(plant)["tiles"] == before["tiles"]


def test_a_process_that_dies_as_it_cuts_leaves_nothing_to_repair(plant: Plant, tmp_path: Path) -> None:
    plant.configure(f"{CONFIG}    retention: {{rollups: {{5s: 30d}}}}\n")
    copies: list[Plant] = []
    with (
        plant.open() as mill,
        observed(
            lambda point: (
                copies.append(plant.copy(tmp_path / "died")) if point == "expire.after_tiles" else None
            )
        ),
    ):
        mill.retention.expire(mill.retention.plan())
    (died,) = copies
    with died.open() as mill:
        mill.run_until_idle()
        assert mill.verify().findings == []
    assert died.tiles() == plant.tiles()
    assert dump(died)["tiles"] == dump(plant)["tiles"]


# -- compaction


@pytest.fixture(scope="module")
def dripped(new_plant: NewPlant) -> Plant:
    """The same events in many slices, a tick for each: a small part of each level for each, were they not
    merged. Copy before you touch."""
    plant = new_plant(WINDOWS)
    feed(plant, 3 * FAN_IN)
    return plant


def test_small_parts_are_merged_and_nothing_else_changes(dripped: Plant, fed: Plant) -> None:
    assert_right(dripped, range(EVENTS))
    assert max(parts_by_level(dripped).values()) <= 2 * FAN_IN
    assert dripped.tiles()[1] == fed.tiles()[1]  # the rows of one slice in one tick


def test_an_idle_round_merges_what_waits_once_nothing_was_written_for_a_while(
    dripped: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "FAN_IN", 2)
    plant = dripped.copy(tmp_path / "plant")
    with plant.open() as mill:
        assert [mill.tick().idle for _ in range(2)] == [True, True]
        plant.clock.advance("30s")
        assert mill.tick().streams[0].compacted > 1
        while not mill.tick().idle:
            plant.clock.advance("30s")
        assert mill.verify().findings == []
    assert sum(parts_by_level(plant).values()) < sum(parts_by_level(dripped).values())
    assert plant.tiles()[1] == dripped.tiles()[1]


def test_merging_parts_changes_no_tile(
    dripped: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant = dripped.copy(tmp_path / "plant")
    before, state = plant.tiles(), dump(plant)
    monkeypatch.setattr(compaction, "FAN_IN", 2)
    with plant.open() as mill:
        roller = mill.workers.roller("requests")
        while roller.compact():
            pass
        assert mill.verify().findings == []
    assert plant.tiles() == before
    after = dump(plant)
    ids = ("level", "start", "hash", "revision", "rows", "desired")
    assert [[t[i] for i in ids] for t in after["tiles"]] == [[t[i] for i in ids] for t in state["tiles"]]
    assert sum(parts_by_level(plant).values()) < sum(parts_by_level(dripped).values())
    forget(plant)
    recover(plant.root, spark=plant.spark)
    assert dump(plant)["tiles"] == after["tiles"]


def test_a_process_that_dies_as_it_merges_leaves_nothing_to_repair(
    dripped: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant = dripped.copy(tmp_path / "plant")
    before = plant.tiles()
    monkeypatch.setattr(compaction, "FAN_IN", 2)
    monkeypatch.setattr("tidemill.storage.state.sql_state.SqlState.apply_tiles", _dies)
    with plant.open() as mill, pytest.raises(KeyboardInterrupt):
        mill.workers.roller("requests").compact()
    monkeypatch.undo()
    with plant.open() as mill:
        mill.run_until_idle()
        assert mill.verify().findings == []
    assert plant.tiles() == before


def _dies(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_level_of_many_parts_stays_right(new_plant: NewPlant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts so small that every level has several, of which late events hit some."""
    monkeypatch.setattr(tile_parts, "PART_ROWS", 16)
    monkeypatch.setattr(compaction, "LARGE", 8)
    plant = new_plant()
    feed(plant, 4)
    assert parts_by_level(plant)["5s"] >= EVENTS // 16
    with plant.open() as mill:
        late = [event(plant, n, event_id=f"late{n}") for n in range(0, EVENTS, 40)]
        mill.land("requests", ndjson(*late))
        mill.tick()
    assert_right(plant, [*range(EVENTS), *range(0, EVENTS, 40)])


def test_results_of_windows_are_merged_and_stay_what_they_were(
    dripped: Plant, new_plant: NewPlant, tmp_path: Path
) -> None:
    table = dripped._table("windows/requests/daily")
    assert len(table.snapshot().parts) <= 2 * FAN_IN
    assert any("merged" in part.path for part in table.snapshot().parts)
    once = new_plant(WINDOWS)
    feed(once, 1)
    with dripped.open() as mill, once.open() as other:
        assert mill.verify().findings == []
        ours, theirs = mill.results("requests", "daily"), other.results("requests", "daily")
        names = ["window_id", "region", "rows", "count"]
        assert ours.select(names).to_pylist()[:60] == theirs.select(names).to_pylist()[:60]
    plant = dripped.copy(tmp_path / "plant")
    before = dump(plant)
    forget(plant)
    recover(plant.root, spark=plant.spark)
    after = dump(plant)
    reported = [{k: v for k, v in e.items() if k in ("id", "type", "data")} for e in before["outbox"]]
    assert [{k: v for k, v in e.items() if k in ("id", "type", "data")} for e in after["outbox"]] == reported
    with plant.open() as mill:
        mill.run_until_idle()
        assert mill.verify().findings == []
