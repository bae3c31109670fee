"""Batches of deltas that a stream declares: windows like others, with a hash, revisions, stats and events."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.support.delta_mill import NOON, Plant, bits, delta
from tests.support.oracles.vectors import VectorOracle

from tidemill.mill import Mill, recover
from tidemill.model.deltas import Delta
from tidemill.model.slices import set_hash
from tidemill.model.time import MINUTE
from tidemill.outputs.datasets.dataset import dataset_schema
from tidemill.outputs.vectors.batches import COLUMNS, deltas_in
from tidemill.outputs.vectors.chainer import Batched

MINUTES = "aggregation_span: 1m\n    coverage: watermark\n    late_slices: {late}"
FIRST = (  # of the first minute: five, of which two are left
    delta("a1", "v", 1, "add", [1, 1, 1]),
    delta("a2", "v", 2, "replace", [1, 2, 3]),
    delta("a3", "v", 3, "set", [9], (1,)),
    delta("a4", "w", 4, "add", [0.1], (0,)),
    delta("a5", "v", 50, "set", [7], (2,)),
)
LATER = delta("z1", "v", 200, "add", [0.5], (0,))  # the watermark passes the minutes before it


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    return Plant(tmp_path / "plant", "{}", more=MINUTES.format(late="{policy: reemit, max_lateness: 30d}"))


def batches(plant: Plant) -> Sequence[Batched]:
    return plant.mill.chains.windows("drift").found


def content(plant: Plant, one: Batched) -> tuple[Delta, ...]:
    assert one.file is not None
    return deltas_in((plant.mill.project.warehouse / one.file).read_bytes())


def listed(plant: Plant) -> list[dict[str, object]]:
    return [event["data"] for _, event in plant.mill.events()]  # type: ignore[misc]


def test_a_batch_is_a_window_with_an_id_a_hash_a_revision_stats_and_an_event(plant: Plant) -> None:
    landed = [plant.land(*FIRST[:2]), plant.land(*FIRST[2:], LATER)]
    plant.tick()
    (one,) = batches(plant)
    assert one.published is not None
    window = one.published.window
    assert (one.start, one.end, window.revision, window.trigger) == (NOON, NOON + MINUTE, 1, "complete")
    assert window.observed == set_hash(landed)
    stats = one.stats
    assert stats is not None
    assert (stats.received, stats.deltas, stats.vectors, stats.duration) == (5, 2, 2, 49_000_000)
    assert stats.bytes == window.bytes
    assert content(plant, one) == (FIRST[3], delta("a5", "v", 50, "replace", [1, 9, 7]))
    (event,) = listed(plant)
    assert (event["window_id"], event["revision"], event["hash"]) == (window.key.id, 1, window.observed)
    assert event["deltas"] == {
        "received": 5, "vectors": 2, "average": round(stats.bytes / 2, 1), "duration": "PT49S",
    }  # fmt: skip


def test_batches_applied_one_after_the_other_give_the_vectors(plant: Plant) -> None:
    plant.land(*FIRST, delta("b1", "v", 61, "scale", [3]), delta("b2", "w", 70, "delete"))
    plant.land(delta("b3", "w", 90, "offset", [0.3]), delta("b4", "v", 119, "add", [0.1, 0.2, 0.3]), LATER)
    plant.tick()
    sent: list[Delta] = []
    for one in batches(plant):
        sent += content(plant, one)
        for vector in ("v", "w"):
            found = VectorOracle(3, sent).at(vector)
            assert bits(found) == bits(plant.oracle.at(vector, one.end - 1)), (vector, one.start)
    assert len(batches(plant)) == 2


def test_a_late_delta_makes_the_next_revision_and_a_retraction_the_one_after(plant: Plant) -> None:
    plant.land(*FIRST, LATER)
    plant.tick()
    late = plant.land(delta("a0", "w", 30, "replace", [1, 1, 1]))
    plant.tick()
    (one,) = batches(plant)
    assert one.published is not None
    assert (one.published.window.revision, one.published.window.trigger) == (2, "slices")
    assert content(plant, one)[0] == delta("a0", "w", 30, "replace", [1, 1, 1])
    plant.take_back(late)
    plant.tick()
    (one,) = batches(plant)
    assert one.published is not None
    assert (one.published.window.revision, one.published.window.trigger) == (3, "retraction")
    assert content(plant, one)[0] == FIRST[3]
    assert [(event["revision"], event["supersedes"]) for event in listed(plant)] == [
        (1, None),
        (2, 1),
        (3, 2),
    ]


def test_a_late_delta_is_ignored_and_counted_where_that_is_declared(tmp_path: Path) -> None:
    plant = Plant(tmp_path / "plant", "{}", more=MINUTES.format(late="discard"))
    plant.land(*FIRST, LATER)
    plant.tick()
    plant.land(delta("a0", "w", 30, "replace", [1, 1, 1]))
    plant.tick()
    (one,) = batches(plant)
    assert one.published is not None
    assert (one.published.window.revision, one.published.ignored) == (1, 1)
    assert content(plant, one)[0] == FIRST[3]


def test_they_are_verified_recovered_and_made_again(plant: Plant) -> None:
    plant.land(*FIRST, LATER)
    plant.tick()
    assert plant.mill.verify().ok
    before = batches(plant)
    plant.mill.close()
    for path in plant.mill.project.warehouse.glob("state.db*"):
        path.unlink()
    recover(plant.folder)
    plant.mill = Mill.open(plant.folder, clock=plant.clock)
    (again,) = batches(plant)
    assert (again.stats, again.file) == (before[0].stats, before[0].file)
    assert again.published is not None
    assert before[0].published is not None
    assert again.published.window.observed == before[0].published.window.observed
    assert plant.mill.verify().ok
    assert again.file is not None
    (plant.mill.project.warehouse / again.file).write_bytes(b"ARROW1")
    (damaged,) = batches(plant)
    assert damaged.stats is None
    assert damaged.published is not None
    assert "6 bytes" in str(damaged.published.damage)
    assert not plant.mill.verify().ok


def test_a_window_in_which_nothing_happened_is_a_batch_of_nothing(plant: Plant, tmp_path: Path) -> None:
    plant.mill.ingest("drift", [], start=NOON + MINUTE, end=NOON + 2 * MINUTE, empty=True)
    plant.land(*FIRST, LATER)
    plant.tick()
    found = plant.mill.chains.windows("drift", folder=tmp_path / "copies").found
    assert [one.stats.received for one in found if one.stats is not None] == [5, 0]
    assert found[1].file == tmp_path / "copies" / "20240115T120100Z_1m.arrow"
    assert deltas_in(found[1].file.read_bytes()) == ()
    assert sorted(data["deltas"]["vectors"] for data in listed(plant)) == [0, 2]  # type: ignore[index]
    assert plant.mill.verify().ok


def test_they_come_out_again_when_the_deltas_are_read_from_other_columns(plant: Plant) -> None:
    plant.land(*FIRST, LATER)
    plant.tick()
    config = (plant.folder / "tidemill.yaml").read_text()
    config = config.replace("vector: {", "vector: {id: delta_id, ")
    (plant.folder / "tidemill.yaml").write_text(config)
    plant.mill.close()
    plant.mill = Mill.open(plant.folder, clock=plant.clock)
    plant.tick()
    (one,) = batches(plant)
    assert one.published is not None
    assert (one.published.window.revision, one.published.window.trigger) == (2, "columns")
    assert one.stats is not None
    assert one.stats.vectors == 5


def test_a_copy_and_one_made_on_request_have_the_same_columns_and_rows(plant: Plant, tmp_path: Path) -> None:
    plant.land(*FIRST, LATER)
    plant.tick()
    assert dataset_schema(plant.mill.project.stream("drift")).equals(COLUMNS)
    chains = plant.mill.chains
    (copied,) = chains.windows("drift", folder=tmp_path / "copies").found
    made, _ = chains.windows("drift", "1m", folder=tmp_path / "made").found
    assert copied.file is not None
    assert made.file is not None
    assert copied.file.name == made.file.name == "20240115T120000Z_1m.arrow"
    assert deltas_in(copied.file.read_bytes()) == deltas_in(made.file.read_bytes())
    assert made.published is None
    assert chains.windows("drift", tenant="default").found == chains.windows("drift").found
    assert chains.windows("drift", tenant="somebody").found == []
    newest = chains.windows("drift", "1m", limit=1)
    assert (len(newest.found), newest.more) == (1, True)
