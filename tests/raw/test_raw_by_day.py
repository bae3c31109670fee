"""A warehouse of former versions, whose raw has a folder for each day, goes on to work as it is."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.pipeline.test_retention import MIDNIGHT, at, expire
from tests.support.pipeline import CONFIG, NewPlant, Plant, ndjson

from tidemill.mill import recover
from tidemill.model.time import DAY, format_instant
from tidemill.query.search.search import SearchPage
from tidemill.raw.tables import RAW
from tidemill.storage.tables.table import Table

INDEXED = f"{CONFIG}    indexed: [region]\n    pack: {{slices: 2, enabled: false}}\n"


@pytest.fixture
def plant(new_plant: NewPlant) -> Plant:
    """A project whose raw was created by a former version."""
    found = new_plant(INDEXED)
    Table.open(
        found.warehouse / "raw" / "requests",
        schema=pa.schema([pa.field("day", pa.string()), *RAW]),
        partition_by=("day",),
        name="requests_raw",
    )
    return found


def day_of(days: int) -> str:
    return format_instant(MIDNIGHT - days * DAY)[:10]


def folders(plant: Plant, kind: str) -> set[str]:
    """Of the parts that the table names; none of them has a row of another day."""
    table = plant._table(kind)
    found = set()
    for part in table.snapshot().parts:
        folder = Path(part.path).parent.name
        found.add(folder)
        if kind == "raw" and part.rows:
            rows = pq.read_table(table.root / part.path, columns=["event_time"], partitioning=None)
            assert {f"day={time:%Y-%m-%d}" for time in rows.column("event_time").to_pylist()} == {folder}
    return found


def test_it_is_read_packed_searched_expired_and_recovered(plant: Plant) -> None:
    days = {f"day={day_of(one)}" for one in (5, 4, 0)}
    with plant.open() as mill:
        for turn in range(2):
            events = [at(one, 10 * turn + n) for one in (5, 4, 0) for n in range(3)]
            mill.land("requests", ndjson(*events), name=f"{turn}")
            mill.run_until_idle()
        assert folders(plant, "raw") == folders(plant, "index") == days
        before = plant.raw()
        (done,) = mill.pack()
        assert (len(done.slices), len(done.parts), done.rows) == (2, 3, 18)
        mill.run_until_idle()
        assert folders(plant, "raw") == folders(plant, "index") == days
        assert plant.raw() == before
        found = mill.search("requests", "WHERE region = 'eu' LIMIT 100", all_tenants=True)
        assert isinstance(found, SearchPage)
        assert found.rows.num_rows == sum(row["event_id"][-1] in "02468" for row in before) > 0  # type: ignore[index]
        assert mill.verify().findings == []
    plant.configure(f"{INDEXED}    retention: {{raw: 2d}}\n")
    with plant.open() as mill:
        expire(mill)
        mill.run_until_idle()
        assert plant._table("raw").snapshot().rows == 6
        assert mill.verify().findings == []
    for path in plant.warehouse.glob("state.db*"):
        path.unlink()
    recover(plant.root, spark=plant.spark)
    with plant.open() as mill:
        assert mill.state.totals("requests")["accepted"] == 18
        assert mill.verify().findings == []
