"""Chains follow raw: vectors now and at every instant are what the oracle says, however compacted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.delta_mill import EAGER, NOON, QUIET, STRATEGIES, WALK, Plant, compact, copy_of, delta

from tidemill.mill import Mill, recover
from tidemill.model.errors import InputError
from tidemill.model.failpoints import observed
from tidemill.model.slices import SliceStatus, set_hash
from tidemill.model.time import DAY, HOUR, MILLISECOND
from tidemill.storage.tables.parts import read_footer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.long


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Plant]:
    made = Plant(tmp_path / "plant", STRATEGIES["full"])
    yield made
    made.mill.close()


def shape(plant: Plant) -> list[tuple[str, str, int]]:
    return [(str(row["kind"]), str(row["delta_id"]), int(str(row["merged"]))) for row in plant.rows()]


# -- the cases


def test_d4_deltas_are_composed_in_order(plant: Plant) -> None:
    plant.land(
        delta("a", "v", 0, "replace", [1, 2, 3]),
        delta("b", "v", 1, "add", [0.5, 0, 0.5]),
        delta("c", "v", 2, "add", [0, 1, 0]),
    )
    plant.tick()
    assert plant.mill.vectors("drift", ["v"]).column("values").to_pylist() == [[1.5, 3, 3.5]]
    assert compact(plant) == 3
    assert plant.mill.vectors("drift", ["v"]).column("values").to_pylist() == [[1.5, 3, 3.5]]
    plant.check()


def test_d5_what_comes_after_a_checkpoint_starts_from_it(plant: Plant) -> None:
    plant.land(delta("a", "v", 0, "add", [1, 1, 1]))
    plant.tick()
    compact(plant)
    plant.land(delta("b", "v", 1, "add", [2, 2, 2]))
    plant.tick()
    assert shape(plant) == [("checkpoint", "a", 1), ("delta", "b", 1)]
    assert plant.mill.vectors("drift", ["v"]).column("values").to_pylist() == [[3, 3, 3]]


@pytest.mark.long
def test_d6_of_100_pending_tiered_merge_leaves_a_checkpoint_of_90_and_10(tmp_path: Path) -> None:
    plant = Plant(tmp_path / "plant", f"{{strategy: tiered_merge, keep_recent: 10, {QUIET}}}")
    plant.land(*(delta(f"d{n:03d}", "v", n, "add", [0.1 * n], [n % 3]) for n in range(100)))
    plant.tick()
    before = plant.vectors(["v"])
    assert compact(plant) == 90
    assert shape(plant) == [
        ("checkpoint", "d089", 90),
        *(("delta", f"d{n:03d}", 1) for n in range(90, 100)),
    ]
    assert plant.vectors(["v"]) == before
    plant.check()


def test_d7_one_row_is_left_for_a_boundary(tmp_path: Path) -> None:
    plant = Plant(tmp_path / "plant", STRATEGIES["boundary"])
    plant.land(delta("a", "v", 0, "set", [1], [0]), delta("b", "v", 1, "set", [2], [1]))
    plant.tick()
    assert compact(plant) == 2
    assert shape(plant) == [("checkpoint", "b", 2)]
    assert plant.mill.vectors("drift", ["v"]).column("values").to_pylist() == [[1, 2, 0]]
    plant.land(delta("c", "v", 9, "set", [3], [2]), delta("d", "v", 10, "add", [1, 1, 1]))
    plant.tick()
    compact(plant)
    assert shape(plant) == [("checkpoint", "c", 3), ("checkpoint", "d", 1)]
    plant.check()


# -- desired and observed


def test_a_part_says_what_the_table_was_made_of(plant: Plant) -> None:
    plant.land(delta("a", "v", 0, "add", [1, 1, 1]), delta("b", "w", 0, "add", [1, 1, 1]))
    plant.tick()
    plant.land(delta("c", "v", 1, "add", [1, 1, 1]))
    plant.tick()
    entries = plant.mill.state.slices("drift", SliceStatus.ACCEPTED)
    found = plant.mill.snapshot("chains", "drift")
    assert found is not None
    footers = sorted((read_footer(path) for path in found.paths()), key=lambda each: str(each["through"]))
    assert [footer["through"] for footer in footers] == [1, 1, 2]
    assert footers[-1]["hash"] == set_hash(entry.name for entry in entries)
    assert all(footer["kind"] == "chain" and footer["checkpoints"] == 0 for footer in footers)
    standing = plant.mill.status()[0].chains
    assert standing is not None
    assert (standing.parts, standing.pending, standing.checkpoints, standing.through) == (3, 3, 0, 2)


def test_a_round_with_nothing_new_commits_nothing(plant: Plant) -> None:
    plant.land(delta("a", "v", 0, "add", [1, 1, 1]))
    plant.tick()
    version = plant.version()
    plant.tick()
    plant.reopen()
    plant.tick()
    plant.land(delta("a", "v", 0, "add", [1, 1, 1]), delta("b", "v", 0, "add", [1, 1, 1]))
    plant.tick()
    assert plant.version() == version + 1, "what came again is not in it again"
    plant.check()


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_second_compaction_with_nothing_new_is_a_no_op(tmp_path: Path, name: str) -> None:
    plant = Plant(tmp_path / "plant", STRATEGIES[name])
    plant.land(*(delta(f"d{n}", f"v{n % 3}", n * 3, "add", [0.1 * n], [n % 3]) for n in range(20)))
    plant.tick()
    assert compact(plant) > 0
    version = plant.version()
    again = plant.mill.chains.compact("drift", plant.clock(), force=True)
    assert (again.chains, again.deltas, again.idle) == (0, 0, True)
    assert plant.version() == version
    assert plant.mill.chains.plan("drift", plant.clock(), force=True) == []
    plant.check()


def test_a_delta_before_the_checkpoint_has_its_chain_made_again(plant: Plant) -> None:
    plant.land(*(delta(f"d{n}", name, n, "add", [0.1, n, 1]) for n in (1, 2) for name in ["v"]))
    plant.land(delta("other", "w", 5, "add", [1, 1, 1]))
    plant.tick()
    compact(plant)
    plant.land(delta("late", "v", 1.5, "scale", [3]), delta("new", "w", 6, "scale", [2]))
    report = plant.mill.tick()
    (done,) = report.streams
    assert done.chains is not None
    assert done.chains.folded.remade == 1
    assert [row["delta_id"] for row in plant.rows()] == ["d1", "late", "d2", "other", "new"]
    plant.check()
    compact(plant)
    assert shape(plant) == [("checkpoint", "d2", 3), ("checkpoint", "new", 2)]
    plant.check()


def test_deltas_of_the_same_instant_are_ordered_by_their_ids(plant: Plant) -> None:
    plant.land(delta("b", "v", 0, "scale", [3]))
    plant.tick()
    compact(plant)
    plant.land(delta("a", "v", 0, "add", [1, 2, 3]), delta("c", "v", 0, "add", [1, 1, 1]))
    plant.tick()
    plant.check()
    compact(plant)
    assert shape(plant) == [("checkpoint", "c", 3)]
    plant.check()


def test_what_is_taken_back_leaves_the_chains(plant: Plant) -> None:
    first = plant.land(delta("a", "v", 0, "add", [1, 1, 1]), delta("x", "gone", 0, "add", [1, 1, 1]))
    plant.land(delta("b", "v", 1, "scale", [0.1]))
    plant.tick()
    compact(plant)
    plant.take_back(first)
    plant.tick()
    assert [row["vector_id"] for row in plant.rows()] == ["v"]
    plant.check()
    assert plant.mill.chains.verify("drift") == (1, [])


def test_taking_back_what_came_last_gives_what_stood_before_it(plant: Plant) -> None:
    plant.land(delta("a", "v", 0, "add", [1, 1, 1]), delta("x", "w", 0, "add", [1, 1, 1]))
    plant.tick()
    before = plant.rows()
    last = plant.land(delta("b", "v", 1, "scale", [0.1]))
    plant.tick()
    plant.take_back(last)
    plant.tick()
    assert plant.rows() == before
    plant.check()
    version = plant.version()
    plant.tick()
    assert plant.version() == version


def test_when_all_is_taken_back_no_chain_is_left(plant: Plant) -> None:
    only = plant.land(delta("a", "v", 0, "add", [1, 1, 1]))
    plant.tick()
    compact(plant)
    plant.take_back(only)
    plant.tick()
    assert plant.rows() == []
    plant.land(delta("b", "v", 1, "add", [1, 1, 2]))
    plant.tick()
    plant.check()


def test_a_slice_without_a_new_delta_leaves_a_round_idle(plant: Plant) -> None:
    plant.land(delta("a", "v", 0, "add", [1, 1, 1]))
    plant.tick()
    plant.land(delta("a", "v", 0, "add", [1, 1, 1]), delta("a", "v", 0, "add", [2, 2, 2]))
    (done,) = plant.mill.tick().streams
    assert done.chains is not None
    assert done.chains.idle
    plant.check()


def test_parts_that_are_gone_are_filled_in_again(plant: Plant) -> None:
    for n in range(3):
        plant.land(delta(f"d{n}", "v", n, "add", [1, 2, 3]))
        plant.tick()
    table = plant.mill.chains.store("drift").table
    newest = max(table.snapshot().parts, key=lambda part: part.path)
    table.commit([], [newest], info={}, now=plant.clock())
    plant.tick()
    assert [row["delta_id"] for row in plant.rows()] == ["d0", "d1", "d2"]
    plant.check()


def test_a_vector_that_was_deleted_is_not_there_until_a_delta_makes_it_anew(plant: Plant) -> None:
    plant.land(delta("a", "v", 0, "add", [1, 1, 1]), delta("b", "v", 1, "delete"))
    plant.tick()
    compact(plant)
    assert plant.rows()[0]["op"] == "delete"
    plant.check()
    plant.land(delta("c", "v", 2, "set", [7], [1]))
    plant.tick()
    plant.check()
    assert plant.mill.vectors("drift", ["v"]).column("values").to_pylist() == [[0, 7, 0]]


@pytest.mark.long
def test_many_small_parts_of_a_bucket_become_one(plant: Plant) -> None:
    for n in range(20):
        plant.land(delta(f"d{n:02d}", "v", n, "add", [0.1, 0.2, 0.3]))
        plant.tick()
    standing = plant.mill.chains.current("drift")
    assert standing is not None
    assert standing.parts < 17
    assert standing.pending == 20
    plant.check()


def test_vectors_of_another_dimension_are_made_again(plant: Plant) -> None:
    plant.land(delta("a", "v", 0, "add", [1], [0]), delta("b", "v", 1, "offset", [2]))
    plant.tick()
    compact(plant)
    plant.dimension = 5
    plant.declare(STRATEGIES["full"])
    plant.reopen()
    plant.tick()
    plant.check()
    assert plant.mill.vectors("drift", ["v"]).column("values").to_pylist() == [[3, 2, 2, 2, 2]]


def test_raw_of_deltas_does_not_expire_since_chains_are_made_again_from_it(plant: Plant) -> None:
    with (plant.folder / "tidemill.yaml").open("a") as file:
        file.write("    retention: {raw: 40d}\n")
    plant.reopen()
    first = plant.land(delta("a", "v", 0, "add", [1, 2, 3]))
    plant.land(delta("b", "v", 1, "scale", [0.1]))
    plant.tick()
    compact(plant)
    plant.clock.advance(60 * DAY)
    plant.land(delta("c", "v", 59 * 24 * 3600, "scale", [3]))
    plant.tick()
    (step,) = [step for step in plant.mill.retention.plan().steps if step.what == "raw"]
    assert "chains" in str(step.held_by)
    plant.take_back(first)
    plant.tick()
    plant.check()


# -- triggers


def test_count_age_and_length_each_bring_a_round_to_compact(tmp_path: Path) -> None:
    """A count of 3, an age of one minute by the clock that is passed in, more than 4 rows."""
    limits = "delta_threshold: 3, max_chain_length: 4, time_threshold: 2h"
    plant = Plant(tmp_path / "plant", f"{{strategy: time_boundary, interval: 10s, {limits}}}")

    def reasons() -> dict[str, int]:
        plant.clock.advance(MILLISECOND)
        done = plant.mill.tick().streams[0].chains
        assert done is not None
        assert done.compacted is not None
        return dict(done.compacted.reasons)

    plant.land(*(delta(f"a{n}", "many", n, "add", [1, 2, 3]) for n in range(3)))
    assert reasons() == {"count": 1}
    plant.land(delta("b", "old", 0, "add", [1, 2, 3]))
    assert reasons() == {}
    plant.clock.set(NOON + 2 * HOUR - 2 * MILLISECOND)
    assert reasons() == {}
    assert reasons() == {"age": 1}
    plant.land(*(delta(f"c{n}", "long", 3600 + n * 10, "add", [1, 2, 3]) for n in range(5)))
    assert reasons() == {"length": 1}
    assert [row["kind"] for row in plant.rows()] == ["checkpoint"] * 3
    assert reasons() == {}
    plant.check()


def test_what_a_compaction_did_is_told_with_bytes_before_and_after(plant: Plant) -> None:
    plant.land(*(delta(f"d{n:04d}", "v", n, "add", [0.001 * n, 1 / (n + 1), 3]) for n in range(400)))
    plant.tick()
    (step,) = plant.mill.chains.plan("drift", plant.clock(), force=True)
    before = plant.mill.chains.current("drift")
    done = plant.mill.chains.compact("drift", plant.clock(), force=True)
    after = plant.mill.chains.current("drift")
    assert before is not None
    assert after is not None
    assert (step.chains, step.deltas, step.bytes) == (1, 400, before.bytes)
    assert (done.chains, done.deltas, done.reasons) == (1, 400, {"asked": 1})
    assert (done.bytes_before, done.bytes_after) == (before.bytes, after.bytes)
    assert done.bytes_after < done.bytes_before / 2


def test_without_background_only_a_request_compacts(tmp_path: Path) -> None:
    eager = EAGER["full"].replace("{", "{background: false, ")
    plant = Plant(tmp_path / "plant", eager)
    plant.land(*(delta(f"d{n}", "v", n, "add", [1, 2, 3]) for n in range(5)))
    plant.tick()
    assert [row["kind"] for row in plant.rows()] == ["delta"] * 5
    done = plant.mill.chains.compact_now("drift", plant.clock(), force=False)
    assert done.compacted is not None
    assert done.compacted.deltas == 5
    plant.check()


def test_adaptive_merges_what_is_read_often_in_full(tmp_path: Path) -> None:
    plant = Plant(tmp_path / "plant", STRATEGIES["adaptive"])
    plant.land(
        *(delta(f"{name}{n}", name, n, "add", [1, 2, 3]) for n in range(5) for name in ("hot", "cold"))
    )
    plant.tick()
    for _ in range(200):
        plant.mill.vectors("drift", ["hot"])
    compact(plant)
    assert shape(plant) == [
        ("checkpoint", "cold2", 3),
        ("delta", "cold3", 1),
        ("delta", "cold4", 1),
        ("checkpoint", "hot4", 5),
    ]
    plant.land(*(delta(f"hot{n}", "hot", n, "add", [1, 2, 3]) for n in range(5, 9)))
    plant.tick()
    compact(plant)
    assert shape(plant)[3:] == [("checkpoint", "hot6", 7), ("delta", "hot7", 1), ("delta", "hot8", 1)]
    plant.check()


def test_a_stream_of_events_has_no_chains_and_says_which_has(plant: Plant) -> None:
    text = (plant.folder / "tidemill.yaml").read_text().replace("kind: delta", "kind: events")
    text = "\n".join(
        line for line in text.splitlines() if "vector:" not in line and "compaction:" not in line
    )
    other = plant.folder.parent / "other"
    other.mkdir()
    (other / "tidemill.yaml").write_text(text)
    with Mill.open(other, clock=plant.clock) as mill, pytest.raises(InputError) as raised:
        mill.chains.compact("drift", NOON)
    assert "kind: delta" in str(raised.value.hint)


# -- proof, crashes, recovery


def test_verify_finds_what_raw_does_not_give(plant: Plant) -> None:
    plant.land(*(delta(f"d{n}", f"v{n % 2}", n, "add", [0.1, 0.2, 0.3]) for n in range(6)))
    plant.tick()
    compact(plant)
    assert plant.mill.chains.verify("drift") == (2, [])
    keeper = plant.mill.chains.store("drift")
    victim = keeper.table.snapshot().parts[0]
    keeper.table.commit([], [victim], info={}, now=plant.clock())
    count, differences = plant.mill.chains.verify("drift")
    assert count == 2
    assert {each.what for each in differences} == {"is missing"}
    assert plant.mill.chains.compact_now("drift", plant.clock(), rebuild=True).folded.deltas == 6
    assert plant.mill.chains.verify("drift") == (2, [])
    plant.check()
    shutil.rmtree(plant.mill.project.warehouse / "chains")
    plant.reopen()
    plant.tick()
    assert plant.mill.chains.verify("drift") == (2, [])
    plant.check()


@pytest.mark.long
@pytest.mark.parametrize("name", ["full", "boundary"])
@pytest.mark.parametrize("point", WALK)
def test_a_process_that_dies_leaves_nothing_to_be_mended(tmp_path: Path, point: str, name: str) -> None:
    """At each time that the point is passed: by folding in, by making again, by compacting."""
    plant = Plant(tmp_path / "plant", EAGER[name])
    copies: list[Plant] = []

    def copy(passed: str) -> None:
        if passed == point:
            copies.append(copy_of(plant, tmp_path / f"copy-{len(copies)}"))

    with observed(copy):
        plant.land(*(delta(f"a{n}", f"v{n % 2}", n * 4, "add", [0.1, n, 3]) for n in range(6)))
        plant.tick()
        plant.land(delta("late", "v1", 0.5, "scale", [0.7]))
        plant.tick()
    assert len(copies) >= 3
    for copied in copies:
        copied.clock.set(plant.clock())
        copied.tick()
        copied.check()
        assert copied.mill.chains.verify("drift")[1] == []
        left = copied.mill.project.warehouse / "chains" / "drift" / "_staging"
        assert not list(left.iterdir())
        copied.mill.close()


def test_recover_needs_nothing_of_the_chains(plant: Plant, spark: SparkSession) -> None:
    plant.land(*(delta(f"d{n}", "v", n, "add", [0.1, 0.2, 0.3]) for n in range(6)))
    plant.tick()
    compact(plant)
    version = plant.version()
    plant.mill.close()
    recover(plant.folder, spark=spark, clock=plant.clock)
    plant.mill = Mill.open(plant.folder, clock=plant.clock)
    plant.tick()
    assert plant.version() == version
    plant.check()


def test_on_spark_chains_are_the_same_to_the_byte(plant: Plant, tmp_path: Path, spark: SparkSession) -> None:
    deltas = [delta(f"d{n}", f"v{n % 7}", n, "add", [0.1 * n, 1 / (n + 1), 3]) for n in range(40)]
    late = delta("late", "v3", 0.5, "scale", [0.3])
    other = Plant(tmp_path / "spark", STRATEGIES["full"])
    other.mill.close()
    file = other.folder / "tidemill.yaml"
    file.write_text(file.read_text().replace("inline_bytes: 1GiB", "inline_bytes: 0"))
    other.mill = Mill.open(other.folder, spark=spark, clock=other.clock)
    held = []
    for each in (plant, other):
        each.land(*deltas)
        each.tick()
        compact(each)
        each.land(late)
        each.tick()
        compact(each)
        each.check()
        assert each.mill.chains.verify("drift") == (7, [])
        parts = each.mill.snapshot("chains", "drift")
        assert parts is not None
        held.append([Path(path).read_bytes() for path in parts.paths()])
    other.mill.close()
    assert held[0] == held[1]


def test_a_payload_is_kept_as_it_was_sent(plant: Plant) -> None:
    """Numbers become float64 in chains; raw has what was sent."""
    content = b'{"delta_id":"a","vector_id":"v","ts":%d,"op":"add","values":[1,2.50,3e0]}\n' % (NOON // 1000)
    plant.mill.land("drift", content)
    plant.mill.run_until_idle()
    assert plant.mill.vectors("drift", ["v"]).column("values").to_pylist() == [[1.0, 2.5, 3.0]]
    assert json.loads(content)["values"] == [1, 2.5, 3]
