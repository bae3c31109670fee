"""A vector that becomes infinite is never silent: it is flagged, and may keep its numbers."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest
from tests.support.delta_mill import EAGER, NOON, Plant, compact, delta

from tidemill.model.time import SECOND

pytestmark = pytest.mark.long

HUGE = 1.7e308
STORY = (
    delta("d1", "v", 1, "replace", [HUGE, 1, 1]),
    delta("d2", "v", 2, "add", [HUGE, 1, 1]),  # the first component is infinite, or this is left out
    delta("d3", "v", 3, "scale", [0.5]),
    delta("d4", "v", 4, "offset", [2], (1, 2)),
    delta("d5", "w", 5, "add", [1, 2, 3]),
    delta("d6", "v", 6, "scale", [1e300], (1,)),
    delta("d7", "v", 7, "scale", [1e300], (1,)),  # and this one
)


def flags(plant: Plant, at: int | None = None) -> list[bool]:
    found: list[bool] = plant.mill.vectors("drift", ["v", "w"], at).column("overflow").to_pylist()
    return found


@pytest.mark.parametrize("strategy", EAGER)
@pytest.mark.parametrize("overflow", ["warn", "quarantine"])
def test_vectors_are_what_all_deltas_give_or_all_but_those(
    tmp_path: Path, strategy: str, overflow: str
) -> None:
    plant = Plant(tmp_path / "plant", EAGER[strategy], overflow=overflow)
    plant.land(*STORY[2:])
    plant.tick()
    plant.check()
    plant.land(*STORY[:2])  # late: what comes after them overflows, too
    plant.tick()
    plant.check()
    assert flags(plant) == [True, False]
    assert flags(plant, NOON + SECOND) == [False, False]
    compact(plant)
    plant.check()
    assert flags(plant) == [True, False]
    assert flags(plant, NOON + SECOND) == [False, False]
    (found,) = plant.mill.vectors("drift", ["v"]).column("values").to_pylist()
    assert all(map(math.isfinite, found)) == (overflow == "quarantine")
    assert plant.mill.verify().ok


def test_a_chain_says_which_deltas_were_left_out(tmp_path: Path) -> None:
    plant = Plant(tmp_path / "plant", EAGER["tiered"], overflow="quarantine")
    plant.land(*STORY)
    plant.tick()
    reported = [(link.delta_id, link.merged, link.left_out) for link in plant.mill.chain("drift", "v").links]
    assert reported == [("d4", 4, 1), ("d6", 1, 0), ("d7", 1, 1)]


def test_a_round_warns_once_and_the_status_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plant = Plant(tmp_path / "plant", EAGER["full"])
    with caplog.at_level(logging.WARNING, "tidemill.outputs.vectors.chainer"):
        plant.land(*STORY)
        plant.tick()
        plant.tick()
    assert [record.getMessage() for record in caplog.records] == ["1 vectors are no finite numbers: overflow"]
    standing = plant.mill.chains.current("drift")
    assert standing is not None
    assert standing.overflowed == 1


def test_chains_have_series(tmp_path: Path) -> None:
    plant = Plant(tmp_path / "plant", EAGER["tiered"])
    plant.land(*STORY[:4])
    plant.mill.meter.tick(plant.mill.tick())
    plant.land(delta("d0", "v", 0, "set", [1], (0,)))  # before the checkpoint
    plant.mill.meter.tick(plant.mill.tick())
    lines = plant.mill.meter.text().splitlines()
    wanted = {"deltas_total": 9, "deltas_merged_total": 5, "checkpoints": 1, "pending": 2, "overflowed": 1}
    for name, value in wanted.items():
        assert f'tidemill_chain_{name}{{stream="drift"}} {value}.0' in lines, name
    assert 'tidemill_chains_remade_total{stream="drift"} 1.0' in lines
