"""Rows that are put into other parts: written in an order that they did not stand in, by a commit that says
that nothing changed for who follows the log."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.storage.tables import log
from tidemill.storage.tables.part_checksums import without_checksums
from tidemill.storage.tables.parts import write_part
from tidemill.storage.tables.table import Table

SCHEMA = pa.schema([pa.field("day", pa.string()), pa.field("id", pa.int64()), pa.field("text", pa.string())])
ROWS = pa.table({"id": [3, 1, 2, 5, 4], "text": pa.array(["c", "a", "b", "e", "d"]).dictionary_encode()})


def staged(table: Table, name: str, rows: pa.Table, order: pa.Array | None = None) -> Path:
    folder = table.staging(name)
    part = write_part(
        folder,
        f"{name}.parquet",
        rows,
        partition={"day": "2024-01-15"},
        footer={"kind": "test"},
        stats_columns=("id",),
        row_group_rows=2,
        order=order,
    )
    table.commit(table.publish([part]), info={"batch": name})
    return table.root / "day=2024-01-15" / part.name


def test_an_order_gives_the_bytes_of_rows_that_stood_in_it(tmp_path: Path) -> None:
    table = Table.open(tmp_path / "t", schema=SCHEMA, partition_by=("day",), name="t")
    order = pa.array([1, 2, 0, 4, 3])
    ordered = staged(table, "ordered", ROWS, order)
    sorted_before = staged(table, "before", ROWS.take(order))
    assert pq.read_table(ordered, partitioning=None).to_pydict() == {
        "id": [1, 2, 3, 4, 5],
        "text": ["a", "b", "c", "d", "e"],
    }
    assert ordered.read_bytes() == sorted_before.read_bytes()
    one, other = table.snapshot().parts
    assert (one.mins, one.maxs) == (other.mins, other.maxs) == ({"id": 1}, {"id": 5})


def test_a_commit_without_a_change_of_data_says_so(tmp_path: Path) -> None:
    table = Table.open(tmp_path / "t", schema=SCHEMA, partition_by=("day",), name="t")
    staged(table, "first", ROWS)
    (old,) = table.snapshot().parts
    part = write_part(
        table.staging("second"),
        "second.parquet",
        ROWS,
        partition={"day": "2024-01-15"},
        footer={"kind": "test"},
        stats_columns=("id",),
    )
    version = table.commit(table.publish([part]), [old], info={"packed": "x"}, data_change=False)
    lines = log.entry_path(table.root, version).read_text().splitlines()
    actions = [action for line in lines for action in json.loads(line).items()]
    reported = {kind: action["dataChange"] for kind, action in actions if kind in ("add", "remove")}
    assert reported == {"add": False, "remove": False}
    assert [without_checksums(part.path) for part in table.snapshot().parts] == [
        "day=2024-01-15/second.parquet"
    ]
