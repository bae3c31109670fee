"""`recover` of a warehouse that lost its state and a file: it does what it can, and rounds do the rest."""

from __future__ import annotations

import pytest
from tests.support.damage import KINDS, Shop, answers, composed, details, expected, vectors

from tidemill.mill import recover


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_and_a_file_that_are_lost_together(shop: Shop, kind: str) -> None:
    with shop.open() as mill:
        before = details(mill, "orders"), details(mill, "visits")
    KINDS[kind](shop).unlink()
    (shop.warehouse / "state.db").unlink()
    done = recover(shop.root, clock=shop.clock)
    assert done.left == []
    with shop.open() as mill:
        mill.run_until_idle()
        mill.repair()  # what no step of the recovery had to read
        assert answers(mill, "orders") == expected("orders")
        assert answers(mill, "visits") == expected("visits")
        assert composed(mill) == vectors()
        assert (details(mill, "orders"), details(mill, "visits")) == before
        assert not any(one.faults for one in mill.status())
        assert mill.verify().findings == []
