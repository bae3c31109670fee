"""Snapshots: what a filter keeps, and that listing stays quick."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tidemill.model.time import Interval
from tidemill.storage.tables.parts import write_part
from tidemill.storage.tables.snapshot import Part, Snapshot
from tidemill.storage.tables.table import Table

S = 1_000_000


def test_parts_are_pruned_by_partition_and_statistics(table: Table, add: Any) -> None:
    add(table, "b1", 0, 10, day="2024-01-01")  # ids 0..9, ts (0..9) s + 1 us
    add(table, "b2", 10, 10, day="2024-01-01")
    add(table, "b3", 20, 10, day="2024-01-02")
    snapshot = table.snapshot()

    def batches(parts: list[Part]) -> list[str]:
        return [part.path.rsplit("/", 1)[1].split("-")[0] for part in parts]

    assert batches(snapshot.select()) == ["b1", "b2", "b3"]
    assert batches(snapshot.select({"day": ["2024-01-02"]})) == ["b3"]
    assert batches(snapshot.select({"day": []})) == []
    assert batches(snapshot.select(ranges={"id": (9, 10)})) == ["b1", "b2"]
    assert batches(snapshot.select(ranges={"id": (None, 9)})) == ["b1"]
    assert batches(snapshot.select(ranges={"id": (25, None)})) == ["b3"]
    assert batches(snapshot.select(ranges={"ts": (9 * S + 1, 9 * S + 1)})) == ["b1"]
    assert batches(snapshot.select(ranges={"ts": (10 * S + 1, 12 * S)})) == ["b2"]
    assert batches(snapshot.select(ranges={"tenant": ("b", None)})) == []
    assert batches(snapshot.select({"day": ["2024-01-01"]}, {"id": (15, 99)})) == ["b2"]


def test_bounds_come_back_as_the_part_was_published(table: Table, add: Any) -> None:
    published = add(table, "b1", 7, 3)
    assert table.snapshot().parts == published
    (part,) = published
    assert part.mins == {"tenant": "a", "id": 7, "ts": 7 * S}
    assert part.maxs == {"tenant": "a", "id": 9, "ts": 9 * S + 1000}
    assert (part.rows, part.partition) == (3, {"day": "2024-01-01"})


def test_bounds_are_the_same_from_a_checkpoint(table: Table, add: Any) -> None:
    published = add(table, "b1", 7, 3)
    for _ in range(60):
        table.commit([], info={})
    assert [path.name for path in (table.root / "_delta_log").glob("*.checkpoint.parquet")] == [
        f"{49:020d}.checkpoint.parquet"
    ]
    fresh = Table.existing(table.root)
    assert fresh is not None
    assert fresh.snapshot().parts == published


def test_a_text_bound_with_the_last_code_point_survives_the_log(table: Table, stage: Any) -> None:
    long = "k" * 500
    table.commit(table.publish([stage(table, "b", 0, tenant=long)]), info={})
    (part,) = table.snapshot().parts
    assert part.maxs["tenant"] == "k" * 64 + "\U0010ffff"
    assert table.snapshot().select(ranges={"tenant": (long, long)}) == [part]


def test_a_part_without_statistics_is_kept() -> None:
    part = Part("p.parquet", 1, 1, {}, {}, {})
    assert Snapshot(Path("/t"), 0, [part]).select(ranges={"id": (5, 6)}) == [part]


@pytest.mark.parametrize("seed", range(20))
def test_parts_that_overlap_spans_are_those_a_look_at_each_finds(seed: int) -> None:
    chance = random.Random(seed)
    parts = []
    for number in range(30):
        low = chance.randrange(100)
        bounds = ({}, {}) if number == 7 else ({"at": low}, {"at": low + chance.randrange(40)})
        parts.append(Part(f"p{number:02}", 1, 1, {"level": chance.choice("ab")}, *bounds))
    snapshot = Snapshot(Path("/t"), 0, parts)
    for _ in range(20):
        first, second = chance.randrange(70), chance.randrange(75, 150)
        spans = [Interval(first, first + chance.randrange(1, 5)), Interval(second, second + 1)]
        inside = {value for span in spans for value in range(span.start, span.end)}
        expected = [
            part
            for part in parts
            if part.partition == {"level": "a"}
            and (not part.mins or inside & set(range(part.mins["at"], part.maxs["at"] + 1)))  # type: ignore[call-overload, operator]
        ]
        assert snapshot.overlapping({"level": "a"}, "at", spans) == expected


def test_statistics_of_late_columns_of_a_wide_table_are_kept(tmp_path: Path) -> None:
    names = [f"c{i:02d}" for i in range(60)]
    schema = pa.schema([(name, pa.int64()) for name in names])
    wide = Table.open(tmp_path / "wide", schema=schema, name="wide")
    content = pa.table({name: [i] for i, name in enumerate(names)})
    part = write_part(wide.staging("b"), "p.parquet", content, partition={}, footer={}, stats_columns=["c59"])
    wide.commit(wide.publish([part]), info={})
    assert wide.snapshot().parts[0].mins == {"c59": 59}


def test_duckdb_reads_the_paths_of_a_selection(table: Table, add: Any) -> None:
    add(table, "b1", 0, 10)
    add(table, "b2", 10, 10, day="2024-01-02")
    snapshot = table.snapshot()
    paths = snapshot.paths(snapshot.select(ranges={"id": (12, 13)}))
    answer = duckdb.sql(f"select sum(id)::int, min(day)::varchar from read_parquet({paths})").fetchone()
    assert answer == (145, "2024-01-02")
    assert duckdb.sql(f"select count(*) from read_parquet({snapshot.paths()})").fetchone() == (20,)


@pytest.mark.parametrize("value", ["a b", "50%", "x%20y", "a/b", "é:ü", "k=v&w", "#?+"])
def test_awkward_partition_values_round_trip(table: Table, stage: Any, value: str) -> None:
    published = table.publish([stage(table, "b1", 0, day=value)])
    table.commit(published, info={})
    assert table.snapshot().parts == published
    assert published[0].partition == {"day": value}
    assert table.commits(0)[0].added == [published[0].path]
    assert DeltaTable(table.root).to_pyarrow_table().column("day").unique().to_pylist() == [value]
    read = f"select any_value(day)::varchar from read_parquet({table.snapshot().paths()})"
    assert duckdb.sql(read).fetchone() == (value,)
    table.commit([], published, info={}, now=1)
    assert table.snapshot().parts == []
    assert DeltaTable(table.root).file_uris() == []


def test_one_of_two_thousand_parts_is_found_by_its_statistics(
    table: Table, opened: Callable[[], Table]
) -> None:
    stats = '{{"numRecords":1,"minValues":{{"id":{0}}},"maxValues":{{"id":{0}}},"nullCount":{{"id":0}}}}'
    for batch in range(4):
        parts = []
        for i in range(batch * 500, batch * 500 + 500):
            path = table.root / "day=2024-01-01" / f"{i}.parquet"
            path.parent.mkdir(exist_ok=True)
            path.touch()
            parts.append(
                Part(f"day=2024-01-01/{i}.parquet", 0, 1, {"day": "2024-01-01"}, {}, {}, stats.format(i))
            )
        table.commit(parts, info={})
    snapshot = opened().snapshot()
    found = snapshot.select({"day": ["2024-01-01"]}, {"id": (1234, 1234)})
    assert [part.path for part in found] == ["day=2024-01-01/1234.parquet"]
    assert len(snapshot.parts) == 2000
