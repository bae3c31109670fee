"""A compaction keeps within its memory, and what comes of it is the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.delta_mill import STRATEGIES, Plant, compact, delta

from tidemill.outputs.vectors.table import bucket_of

MANY = [name for name in (f"v{number}" for number in range(2_000)) if bucket_of(name) == "03"][:60]


@pytest.mark.long
def test_it_is_done_in_pieces_that_fit_and_gives_the_same_bytes(tmp_path: Path) -> None:
    found = {}
    for name, memory in (("whole", "memory: null"), ("pieces", "memory: 1MiB")):
        plant = Plant(tmp_path / name, STRATEGIES["tiered"].replace("}", f", {memory}}}"), dimension=64)
        for turn in range(10):
            plant.land(*(delta(f"{each}-{turn}", each, turn, "add", [turn] * 64) for each in MANY))
        plant.tick()
        done = plant.mill.chains.compact("drift", plant.clock(), force=True)
        assert (done.chains, done.deltas) == (60, 480)
        assert (done.pieces > 1) == (name == "pieces")
        found[name] = plant.rows()
        plant.check([])
        assert compact(plant) == 0
    assert found["pieces"] == found["whole"]


def test_the_budget_of_all_streams_holds_for_each(tmp_path: Path) -> None:
    plant = Plant(tmp_path / "plant", STRATEGIES["full"].replace("}", ", memory: 1GiB}"), dimension=64)
    config = (plant.folder / "tidemill.yaml").read_text()
    (plant.folder / "tidemill.yaml").write_text(
        config.replace("cores: 2", "cores: 2, compaction_memory: 1MiB")
    )
    plant.reopen()
    plant.land(
        *(delta(f"{each}-{turn}", each, turn, "add", [turn] * 64) for each in MANY for turn in range(10))
    )
    plant.tick()
    assert plant.mill.chains.compact("drift", plant.clock(), force=True).pieces > 1
