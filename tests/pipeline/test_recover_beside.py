"""`recover` beside other processes: refused while a gateway runs, followed by a daemon."""

from __future__ import annotations

import pytest
from tests.support.damage import SLICES, Shop, answers, expected

from tidemill.ingest.gateway.log_folders import new_folder
from tidemill.mill import recover
from tidemill.model.errors import BusyError


def test_recover_is_refused_while_a_gateway_runs(shop: Shop) -> None:
    hold = new_folder(shop.warehouse)
    try:
        with pytest.raises(BusyError, match="is running on this warehouse; cannot recover now"):
            recover(shop.root, clock=shop.clock)
    finally:
        hold.release()
    recover(shop.root, clock=shop.clock)


@pytest.mark.long
def test_a_process_that_has_the_state_open_goes_on_with_the_new_one(shop: Shop) -> None:
    with shop.open() as mill:
        before = mill.state.dump()
        recover(shop.root, clock=shop.clock)
        assert mill.state.dump() == before
        shop.land(mill, SLICES)
        mill.run_until_idle()
        assert answers(mill, "orders") == expected("orders", SLICES + 1)
    with shop.open() as mill:  # nothing was written to a file that is gone
        assert answers(mill, "orders") == expected("orders", SLICES + 1)
