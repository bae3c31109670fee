"""One shop for all tests that only read, and a copy of it for those that break something."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.sql_shop import NOON, build_shop

from tidemill.mill import Mill
from tidemill.model.time import HOUR
from tidemill.testing import FakeClock


@pytest.fixture(scope="session")
def shop_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sql") / "shop"
    build_shop(folder)
    return folder


@pytest.fixture(scope="session")
def mill(shop_folder: Path) -> Iterator[Mill]:
    with Mill.open(shop_folder, clock=FakeClock(NOON + HOUR)) as opened:
        yield opened


@pytest.fixture
def copied(shop_folder: Path, tmp_path: Path) -> Iterator[Callable[[], Mill]]:
    """Opens a copy of the shop that a test may break."""
    target = tmp_path / "copy"
    shutil.copytree(shop_folder, target)
    opened: list[Mill] = []

    def make() -> Mill:
        opened.append(Mill.open(target, clock=FakeClock(NOON + HOUR)))
        return opened[-1]

    yield make
    for one in opened:
        one.close()
