"""Leases when the wall clock steps: a dead holder frees its windows at once, a live one keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.model.time import HOUR, MINUTE
from tidemill.model.windows import Phase, Window, WindowKey
from tidemill.outputs.datasets.builder import LeaseWatch
from tidemill.storage.lease_holders import HolderFile, owner_of

NOON = 1_705_320_000_000_000
KEY = WindowKey("s", 0, HOUR)


class Timer:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def held_by(owner: str, until: int) -> list[Window]:
    return [Window(KEY, version=1, phase=Phase.BUILDING, owner=owner, lease_until=until)]


@pytest.mark.parametrize("step", [-HOUR, 0, HOUR])
def test_a_live_holder_that_renews_keeps_its_lease(tmp_path: Path, step: int) -> None:
    timer = Timer()
    watch, file = LeaseWatch(tmp_path, MINUTE, timer), HolderFile(tmp_path, "host-1-ab")
    file.open()
    for beat in range(10):  # every 20 seconds, by a wall clock that steps in the middle
        now = NOON + beat * MINUTE // 3 + (step if beat > 4 else 0)
        assert watch.void(held_by(owner_of("host-1-ab", 0), now + MINUTE), now) == {}
        timer.now += MINUTE // 3
    file.close()


@pytest.mark.parametrize("step", [-HOUR, 0, HOUR])
def test_a_holder_that_hangs_loses_its_lease_after_its_time(tmp_path: Path, step: int) -> None:
    timer = Timer()
    watch, file = LeaseWatch(tmp_path, MINUTE, timer), HolderFile(tmp_path, "host-1-ab")
    file.open()
    lease = held_by(owner_of("host-1-ab", 0), NOON + MINUTE)
    assert watch.void(lease, NOON + step) == {}
    timer.now += MINUTE - 1
    assert watch.void(lease, NOON + step + MINUTE - 1) == {}
    timer.now += 1
    assert watch.void(lease, NOON + step + MINUTE) == {KEY: NOON + MINUTE}
    file.close()


@pytest.mark.parametrize("step", [-HOUR, 0, HOUR])
def test_a_dead_holder_frees_its_windows_at_once(tmp_path: Path, step: int) -> None:
    watch, file = LeaseWatch(tmp_path, MINUTE, Timer()), HolderFile(tmp_path, "host-1-ab")
    file.open()
    file.close()
    lease = held_by(owner_of("host-1-ab", 0), NOON + MINUTE)
    assert watch.void(lease, NOON + step) == {KEY: NOON + MINUTE}


def test_of_a_holder_without_a_file_the_clock_decides_or_the_timer(tmp_path: Path) -> None:
    timer = Timer()
    watch = LeaseWatch(tmp_path, MINUTE, timer)
    lease = held_by("host-1-ab-0", NOON + MINUTE)
    assert watch.void(lease, NOON) == {}
    assert watch.void(lease, NOON + MINUTE) == {KEY: NOON + MINUTE}
    assert watch.void(lease, NOON - HOUR) == {}  # the clock was put back
    timer.now += MINUTE
    assert watch.void(lease, NOON - HOUR + MINUTE) == {KEY: NOON + MINUTE}
