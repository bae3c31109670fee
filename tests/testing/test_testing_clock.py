from __future__ import annotations

import pytest

from tidemill.model.errors import InputError
from tidemill.model.time import MINUTE, SECOND
from tidemill.testing import FakeClock


def test_the_clock_moves_only_by_hand() -> None:
    clock = FakeClock(100)
    assert (clock(), clock()) == (100, 100)
    assert clock.advance(SECOND) == 100 + SECOND
    assert clock.advance("1m") == clock() == 100 + SECOND + MINUTE
    clock.set(7)
    assert clock() == 7


def test_only_time_that_passes_moves_what_waits_go_by() -> None:
    clock = FakeClock(100)
    clock.advance("5s")
    clock.step("-1h")
    clock.step("2h")
    assert (clock(), clock.monotonic()) == (100 + 5 * SECOND + 60 * MINUTE, 100 + 5 * SECOND)
    clock.set(7)
    assert clock.monotonic() == 100 + 5 * SECOND
    clock.set(7 + SECOND)
    assert clock.monotonic() == 100 + 6 * SECOND


def test_the_clock_goes_back_only_when_set() -> None:
    with pytest.raises(InputError):
        FakeClock(0).advance(-1)
