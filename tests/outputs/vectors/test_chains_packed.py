"""Chains follow raw through packing: the rows lie in other parts, and every vector is what it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.delta_mill import Plant, delta
from tests.support.selection import one_in


@pytest.mark.long
@pytest.mark.parametrize(
    "strategy",
    one_in(2, ["{strategy: tiered_merge, keep_recent: 1, delta_threshold: 2}", "{strategy: full_merge}"]),
)
def test_vectors_are_the_same_before_and_after_slices_are_packed(tmp_path: Path, strategy: str) -> None:
    plant = Plant(tmp_path / "p", strategy, pack="{slices: 3}")
    landed = []
    for number in range(7):
        landed.append(
            plant.land(
                delta(f"a{number}", "a", number, "add", [0.1, number, -1.5]),
                delta(f"b{number}", "b", 50 - number, "scale" if number % 3 else "set", [1.25], [number % 3]),
            )
        )
        plant.tick()
        plant.check()
    assert sum(len(one["slice_hashes"]) for one in plant.mill.packer.manifest("drift")["parts"]) == 6
    plant.take_back(landed[1])  # from a packed part
    plant.tick()
    plant.check()
    plant.land(delta("late", "a", 2.5, "offset", [0.3]))  # before what was merged
    plant.tick()
    plant.check()
    assert plant.mill.verify().ok
    plant.mill.pack("drift", rebuild=True)
    plant.check()
    assert plant.mill.verify().ok
    plant.mill.close()


def test_chains_that_lag_behind_raw_are_not_wrong(tmp_path: Path) -> None:
    """As after a crash between the two: the next round brings them in line."""
    plant = Plant(tmp_path / "p", "{strategy: full_merge}")
    plant.land(delta("1", "a", 1, "add", [1, 2, 3]))
    plant.tick()
    plant.land(delta("2", "a", 2, "add", [1, 2, 3]))
    plant.mill.workers.acceptor("drift").accept()
    assert plant.mill.verify().ok
    plant.check()
    plant.tick()
    assert plant.mill.verify().ok
    plant.mill.close()
