"""A small table, and ways to put parts into it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pytest

from tidemill.storage.tables.parts import StagedPart, write_part
from tidemill.storage.tables.snapshot import Part
from tidemill.storage.tables.table import Table

SCHEMA = pa.schema(
    [
        ("tenant", pa.string()),
        ("id", pa.int64()),
        ("ts", pa.timestamp("us", "UTC")),
        ("day", pa.string()),
    ]
)


class Stage(Protocol):
    def __call__(
        self, table: Table, batch: str, first: int, count: int = 5, *, day: str = ..., tenant: str = ...
    ) -> StagedPart: ...


class Add(Protocol):
    def __call__(
        self, table: Table, batch: str, first: int, count: int = 5, *, day: str = ...
    ) -> list[Part]: ...


@pytest.fixture(scope="session")
def stage() -> Stage:
    """One part with the ids first, first + 1 ...; id i happened at i seconds and 1 microsecond."""

    def staged(
        table: Table, batch: str, first: int, count: int = 5, *, day: str = "2024-01-01", tenant: str = "a"
    ) -> StagedPart:
        ids = range(first, first + count)
        content = pa.table(
            {
                "tenant": pa.array([tenant] * count, pa.string()),
                "id": pa.array(ids, pa.int64()),
                "ts": pa.array([i * 1_000_000 + 1 for i in ids], pa.timestamp("us", "UTC")),
            }
        )
        return write_part(
            table.staging(batch),
            f"{batch}-{first}.parquet",
            content,
            partition={"day": day},
            footer={"kind": "raw", "batch": batch},
            stats_columns=["tenant", "id", "ts"],
        )

    return staged


@pytest.fixture(scope="session")
def add(stage: Stage) -> Add:
    """Stage, publish and commit one part."""

    def added(table: Table, batch: str, first: int, count: int = 5, *, day: str = "2024-01-01") -> list[Part]:
        parts = table.publish([stage(table, batch, first, count, day=day)])
        table.commit(parts, info={"batch": batch})
        return parts

    return added


@pytest.fixture
def opened(tmp_path: Path) -> Callable[[], Table]:
    """Opens the same table again and again, as several processes would."""
    return lambda: Table.open(tmp_path / "raw", schema=SCHEMA, partition_by=["day"], name="raw")


@pytest.fixture
def table(opened: Callable[[], Table]) -> Table:
    return opened()
