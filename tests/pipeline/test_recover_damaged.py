"""`recover` of a warehouse that lost its state and a file: it does what it can, and rounds do the rest."""

from __future__ import annotations

import pytest
from tests.support.damage import (
    HARMS,
    KINDS,
    Shop,
    check_restored,
    details,
    harm_all,
    harmed,
)
from tests.support.selection import one_in

from tidemill.mill import recover


@pytest.mark.parametrize(("kind", "harm"), harmed(["deleted", "flipped"], share=4, first=2))
def test_a_state_that_is_lost_beside_a_damaged_file(shop: Shop, kind: str, harm: str) -> None:
    with shop.open() as mill:
        before = details(mill, "orders"), details(mill, "visits")
    HARMS[harm](KINDS[kind](shop))
    (shop.warehouse / "state.db").unlink()
    done = recover(shop.root, clock=shop.clock)
    assert done.left == []
    with shop.open() as mill:
        mill.run_until_idle()
        mill.repair()  # what no step of the recovery had to read
        check_restored(mill, before)


@pytest.mark.parametrize("turn", one_in(3, range(3), first=1))
def test_a_state_that_is_lost_beside_a_damaged_file_of_every_kind(shop: Shop, turn: int) -> None:
    with shop.open() as mill:
        before = details(mill, "orders"), details(mill, "visits")
    harm_all(shop, turn)
    (shop.warehouse / "state.db").unlink()
    assert recover(shop.root, clock=shop.clock).left == []
    with shop.open() as mill:
        mill.run_until_idle()
        assert mill.repair().left == []  # what no step of the recovery had to read
        check_restored(mill, before)
