"""What all tests share: one Spark session for those that ask for it, and the pure tests first.

Importing this file must not start a JVM, nor import Spark.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from shutil import disk_usage
from types import ModuleType
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.bucket_server import bucket_server
from tests.support.damage import shop, shop_template
from tests.support.hypothesis_settings import register_profiles
from tests.support.pipeline import new_plant, plant, story
from tests.support.postgres_server import postgres_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "bucket_server",
    "new_plant",
    "plant",
    "postgres_server",
    "shop",
    "shop_template",
    "story",
]  # fixtures of the whole pipeline, for every folder
# Fixtures that make a warehouse with all outputs, or a server for each test: `make quick` leaves them out.
LONG_FIXTURES = frozenset({"shop_template", "serving"})
PROCESSES: Final = ("subprocess", "multiprocessing")
register_profiles()
# Durability means waiting for a disk; where memory can hold the warehouses of the tests, nothing waits.
IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108 -- pytest makes a folder of its own in it
ROOM_NEEDED: Final = 6 << 30
if IN_MEMORY.is_dir() and os.access(IN_MEMORY, os.W_OK) and disk_usage(IN_MEMORY).free >= ROOM_NEEDED:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))
os.environ.pop("COLUMNS", None)  # a worker is given one; what is printed to no terminal is not cut
# A JVM of a test lives for seconds or minutes: compiling its code thoroughly costs more than it brings.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")
# Modules and collected tests are objects that stay: walking them again and again took a tenth of the run.
COLLECT_EVERY: Final = 50_000  # new objects
gc.set_threshold(COLLECT_EVERY)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one session of the run, stopped at its end."""
    from tidemill.engine.session import SessionSettings, start_session

    session = start_session(SessionSettings(cores=2, memory="1g", app="tests"))
    yield session
    session.stop()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Bytes by no name: some hold the time or chance, and every worker must see the same tests."""
    return "bytes" if isinstance(val, bytes) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what uses the session, and run it last: a pure failure shows before a JVM starts. Mark what may
    start processes or damages whole warehouses, which `make quick` leaves out, and properties, which a soak
    runs with other examples."""
    for item in items:
        if isinstance(item, pytest.Function) and _may_start_processes(item.module):
            item.add_marker(pytest.mark.process)
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if LONG_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.long)
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.property)
    items.sort(key=lambda item: item.get_closest_marker("spark") is not None)


def pytest_collection_finish() -> None:
    """What there is by now stays to the end of the run."""
    gc.freeze()


@cache
def _may_start_processes(module: ModuleType) -> bool:
    """Whether it imports what starts processes, or takes something from a part of the tests that does."""
    origins = {getattr(value, "__module__", None) or "" for value in vars(module).values()}
    parts = [
        module,
        *(sys.modules[name] for name in origins & sys.modules.keys() if name.startswith("tests.")),
    ]
    return any(getattr(value, "__name__", "") in PROCESSES for part in parts for value in vars(part).values())
