"""`verify` proves what is stored, or says what is wrong and where."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.support.forged_parts import first_part, replace_part
from tests.support.pipeline import SLICES, Plant, Story

from tidemill.mill import Mill
from tidemill.outputs.rollups.tile_parts import tile_builds
from tidemill.pipeline.verify import Audit
from tidemill.storage.tables.parts import read_footer, write_part
from tidemill.storage.tables.table import Table


@pytest.fixture
def plant(story: Story, tmp_path: Path) -> Plant:
    return story.after.copy(tmp_path / "plant")


def verify(plant: Plant) -> Audit:
    with plant.open() as mill:
        return mill.verify()


def findings(plant: Plant) -> list[tuple[str, str, str]]:
    audit = verify(plant)
    assert not audit.ok
    assert {finding.stream for finding in audit.findings} == {"requests"}
    return [(finding.what, finding.where, finding.difference) for finding in audit.findings]


def table_of(plant: Plant, kind: str) -> Table:
    table = Table.existing(plant.warehouse / kind / "requests")
    assert table is not None
    return table


def test_a_sound_warehouse_is_proven(plant: Plant) -> None:
    audit = verify(plant)
    (stream,) = audit.streams
    assert (audit.ok, audit.findings, stream.pending) == (True, [], 0)
    assert (stream.slices, stream.raw_rows) == (SLICES + 2, 30 * (SLICES + 2))
    assert stream.tiles > 0
    assert plant.leftovers() == []


def test_a_flipped_byte_in_a_slice_is_found(plant: Plant) -> None:
    with plant.open() as mill:
        entry = mill.ledger()[-1]
    path = plant.warehouse / entry.slice.path
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    said = f"its bytes are not those that landed: {entry.slice.path}"
    assert findings(plant) == [("slice", entry.id, said)]


def test_a_slice_that_is_gone_is_found(plant: Plant) -> None:
    with plant.open() as mill:
        entry = mill.ledger()[0]
    (plant.warehouse / entry.slice.path).unlink()
    assert findings(plant) == [("slice", entry.id, f"its file is gone: {entry.slice.path}")]


def test_a_changed_count_in_a_tile_is_found_with_its_place(plant: Plant) -> None:
    table = table_of(plant, "rollups")
    part = first_part(table, level="1h")

    def change(rows: pa.Table, footer: dict[str, object]) -> pa.Table:
        at = rows.column_names.index("count")
        counts = pc.add(rows.column("count"), 1)
        return rows.set_column(at, "count", pc.cast(counts, rows.column("count").type))

    replace_part(table, part, change)
    found = findings(plant)
    assert {what for what, _, _ in found} == {"tile"}
    assert {where.partition(" ")[0] for _, where, _ in found} == {"1h"}
    assert all("count is" in said and "raw says" in said for _, _, said in found)


def test_a_wrong_hash_is_found(plant: Plant) -> None:
    table = table_of(plant, "rollups")
    part = first_part(table, level="1m")
    path = table.root / part.path
    hashes = {build.hash for build in tile_builds(table, [part])}
    text = json.dumps(read_footer(path))
    for found in hashes:
        text = text.replace(found, "0" * 64)
    rows = pq.read_table(path, partitioning=None)
    staged = write_part(
        table.staging("test"),
        "x.parquet",
        rows,
        partition=part.partition,
        footer=json.loads(text),
        stats_columns=(),
    )
    table.commit(table.publish([staged]), [part], info={"test": "replaced"})
    table.clean_staging()
    found_at = [(what, where.partition(" ")[0], said) for what, where, said in findings(plant)]
    assert found_at.count(("tile", "1m", "is not made of the 5s tiles below")) == len(hashes)
    # And what is made of it is made of another tile than stands there.
    assert {(what, level) for what, level, _ in found_at} == {("tile", "1m"), ("tile", "1h")}


def test_a_tile_that_cannot_be_read_is_found(plant: Plant) -> None:
    table = table_of(plant, "rollups")
    damaged, gone = first_part(table, level="1m"), first_part(table, level="1d")
    path = table.root / damaged.path
    path.write_bytes(path.read_bytes()[:-10])
    (table.root / gone.path).unlink()
    said = [f"{where} {text}" for what, where, text in findings(plant) if what == "tile"]
    assert any(damaged.path in text for text in said), said
    assert any(gone.path in text for text in said), said


def test_a_raw_part_that_is_gone_is_found(plant: Plant) -> None:
    table = table_of(plant, "raw")
    part = first_part(table)
    (table.root / part.path).unlink()
    raw = [(where, said) for what, where, said in findings(plant) if what == "raw"]
    assert (f"raw/requests/{part.path}", "the part is missing") in raw


def test_a_raw_part_that_is_cut_off_is_found(plant: Plant) -> None:
    table = table_of(plant, "raw")
    part = first_part(table)
    path = table.root / part.path
    path.write_bytes(path.read_bytes()[:-40])
    raw = [(where, said) for what, where, said in findings(plant) if what == "raw"]
    reported = "the part is not what was written: its checksum differs"
    assert (f"raw/requests/{part.path}", reported) in raw


def test_an_event_that_stands_twice_is_found(plant: Plant) -> None:
    table = table_of(plant, "raw")
    part = first_part(table)
    path = table.root / part.path
    rows = pq.read_table(path, partitioning=None)
    footer = {**read_footer(path), "slices": [], "runs": [], "clocks": []}
    staged = write_part(
        table.staging("test"),
        "twice.parquet",
        rows.slice(0, 2),
        partition=part.partition,
        footer=footer,
        stats_columns=(),
    )
    table.commit(table.publish([staged]), info={"test": "twice"})
    table.clean_staging()
    found = findings(plant)
    twice = [f"{row['tenant']}/{row['event_id']}" for row in rows.slice(0, 2).to_pylist()]
    assert sorted(where for what, where, _ in found if what == "ids") == sorted(twice)
    slices = {row["slice"] for row in rows.slice(0, 2).to_pylist()}
    assert {where for what, where, _ in found if what == "raw"} == slices
    assert {what for what, _, _ in found} == {"ids", "raw", "tile"}


def test_a_raw_row_that_changed_is_found_by_its_slice_and_by_the_tiles(plant: Plant) -> None:
    table = table_of(plant, "raw")

    def change(rows: pa.Table, footer: dict[str, object]) -> pa.Table:
        payload = pc.replace_substring(rows.column("payload"), '"status": 200', '"status": 201')
        rows = rows.set_column(rows.column_names.index("payload"), "payload", payload)
        status = pc.if_else(pc.equal(rows.column("status"), 200), 201, rows.column("status"))
        return rows.set_column(rows.column_names.index("status"), "status", status)

    replace_part(table, first_part(table), change)
    found = findings(plant)
    assert {what for what, _, _ in found} == {"raw", "tile"}
    assert all("another payload than the slice" in said for what, _, said in found if what == "raw")
    levels = {where.partition(" ")[0] for what, where, _ in found if what == "tile"}
    assert levels == {"5s", "1m", "1h", "1d", "7d"}


def test_a_raw_row_without_a_slice_is_found(plant: Plant) -> None:
    table = table_of(plant, "raw")

    def change(rows: pa.Table, footer: dict[str, object]) -> pa.Table:
        names = pa.array(["f" * 64] * rows.num_rows)
        return rows.set_column(rows.column_names.index("slice"), "slice", names)

    part = first_part(table)
    replace_part(table, part, change)
    stranger = [said for what, where, said in findings(plant) if (what, where) == ("raw", "f" * 64)]
    assert stranger == [f"raw has {part.rows} rows of a slice that the ledger does not know"]


def test_rows_without_an_id_do_not_stand_twice(tmp_path: Path) -> None:
    """A stream that had no gate for a while: two equal records count twice, as they should."""
    project = tmp_path / "tidemill.yaml"
    text = """
version: 1
streams:
  readings:
    schema: {id: string, at: string}
    identity: id
    gate: none
    event_time: {column: at, type: iso8601}
    metrics: {seen: {kind: counter}}
"""
    record = b'{"id": "a", "at": "2024-01-15T10:00:00Z"}\n'
    for declared, sent in ((text, record * 2), (text.replace("    gate: none\n", ""), record)):
        project.write_text(declared)
        with Mill.open(tmp_path) as mill:
            mill.land("readings", sent, format="ndjson")
            mill.tick()
            assert mill.verify().findings == []
            count = mill.query("SELECT count FROM readings").column("count")[0].as_py()
    assert count == 3
