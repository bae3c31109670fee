"""A table's life: created once, grown by columns, published to, read by anybody, vacuumed."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tidemill.model.errors import ConfigError, StorageError
from tidemill.storage.tables.part_checksums import without_checksums
from tidemill.storage.tables.parts import read_footer
from tidemill.storage.tables.table import Table

HOUR = 3_600_000_000


def age(path: Path, us: int) -> None:
    os.utime(path, ns=(us * 1000, us * 1000))


def files(table: Table) -> list[str]:
    return sorted(without_checksums(path.name) for path in table.root.glob("day=*/*"))


# -- opening


def test_lists_and_structs_are_read_back_as_they_were_declared(tmp_path: Path) -> None:
    """Else a table would be given the same columns again each time it is opened."""
    schema = pa.schema(
        [
            ("values", pa.list_(pa.float64())),
            ("at", pa.struct([("x", pa.list_(pa.struct([("y", pa.int64())])))])),
        ]
    )
    made = Table.open(tmp_path / "t", schema=schema, name="t")
    made.reshape(schema)
    found = Table.existing(tmp_path / "t")
    assert found is not None
    found.reshape(schema)
    assert found.version == made.version == 0


def test_new_table_asks_nothing_special_of_its_readers(table: Table) -> None:
    delta = DeltaTable(table.root)
    protocol = delta.protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
    assert delta.metadata().partition_columns == ["day"]
    assert delta.metadata().name == "raw"
    assert '"timestamp"' in delta.schema().to_json()
    assert table.version == 0
    assert table.snapshot().parts == []


def test_opening_again_changes_nothing(table: Table, opened: Callable[[], Table]) -> None:
    assert opened().version == 0
    assert opened().schema == table.schema


def test_existing_finds_no_table_where_there_is_none(tmp_path: Path) -> None:
    assert Table.existing(tmp_path / "none") is None
    (tmp_path / "half" / "_delta_log").mkdir(parents=True)  # a crash before the first entry
    assert Table.existing(tmp_path / "half") is None
    schema = pa.schema([("id", pa.int64())])
    assert Table.open(tmp_path / "half", schema=schema, name="half").version == 0


def test_new_columns_are_added_and_old_parts_read_as_null(table: Table, add: Any) -> None:
    add(table, "b1", 0)
    wider = pa.schema([*table.schema, pa.field("api", pa.string(), nullable=False)])
    grown = Table.open(table.root, schema=wider, partition_by=["day"], name="raw")
    assert grown.version == 2
    assert DeltaTable(table.root).transaction_version("tidemill") == 3
    assert grown.schema.names == ["tenant", "id", "ts", "day", "api"]
    assert grown.schema.field("api").nullable
    assert DeltaTable(table.root).to_pyarrow_table().column("api").null_count == 5
    again = Table.open(table.root, schema=wider, partition_by=["day"], name="raw")
    assert again.version == 2
    add(table, "b2", 5)  # opened before the column came: loses, looks again, lands
    assert table.version == 3


def test_columns_are_never_dropped_or_retyped(table: Table) -> None:
    other = pa.schema([("tenant", pa.string()), ("id", pa.string()), ("day", pa.string())])
    with pytest.raises(ConfigError) as caught:
        Table.open(table.root, schema=other, partition_by=[], name="raw")
    assert str(caught.value) == (
        "the table cannot take this schema: column 'ts' is missing; column 'id' is string instead of "
        "int64; partitioned by [] instead of ['day']"
    )
    assert "new name" in caught.value.hint


def test_how_arrow_holds_a_column_is_no_difference(tmp_path: Path) -> None:
    held = pa.schema([("a", pa.dictionary(pa.int32(), pa.string())), ("b", pa.large_string())])
    plain = pa.schema([("a", pa.string()), ("b", pa.string_view())])
    Table.open(tmp_path / "t", schema=held, name="t")
    assert Table.open(tmp_path / "t", schema=plain, name="t").schema.types == [pa.string(), pa.string()]


@pytest.mark.parametrize(
    "kind", [pa.timestamp("us"), pa.timestamp("ns", "UTC"), pa.uint64(), pa.time64("us")]
)
def test_types_that_not_every_reader_knows_are_refused(tmp_path: Path, kind: pa.DataType) -> None:
    with pytest.raises(ConfigError, match="column 'x' cannot be of type"):
        Table.open(tmp_path / "t", schema=pa.schema([("x", kind)]), name="t")


def test_partition_column_must_exist(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64())])
    with pytest.raises(ConfigError, match="partition column 'day'"):
        Table.open(tmp_path / "t", schema=schema, partition_by=["day"], name="t")


def test_a_warehouse_with_awkward_characters_works_and_an_escape_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64())])
    assert Table.open(tmp_path / "my wäre #1?", schema=schema, name="t").commit([], info={}) == 1
    with pytest.raises(ConfigError, match="hexadecimal"):
        Table.open(tmp_path / "a%20b", schema=schema, name="t")


def test_an_entry_torn_by_power_loss_was_never_acknowledged_and_is_set_aside(
    table: Table, opened: Callable[[], Table], add: Any
) -> None:
    add(table, "b1", 0)
    for torn in (b"", b"\0" * 100, b'{"commitInfo":{"timesta'):
        (table.root / "_delta_log" / f"{2:020d}.json").write_bytes(torn)
        assert opened().version == 1
    assert (table.root / "_staging" / "torn" / f"{2:020d}.json").exists()
    add(opened(), "b2", 5)
    assert opened().snapshot().rows == 10


# -- publishing


def test_published_parts_are_found_where_hive_would_look(table: Table, stage: Any) -> None:
    (part,) = table.publish([stage(table, "b1", 0, day="2024-01-02")])
    assert without_checksums(part.path) == "day=2024-01-02/b1-0.parquet"
    assert read_footer(table.root / part.path) == {"kind": "raw", "batch": "b1"}
    assert list(table.staging("b1").iterdir()) == []


def test_publish_can_be_repeated(table: Table, stage: Any) -> None:
    staged = [stage(table, "b1", 0), stage(table, "b1", 5)]
    Path(staged[0].path).rename(table.root / "moved")  # the crash came after the first of two
    (table.root / "day=2024-01-01").mkdir()
    (table.root / "moved").rename(table.root / "day=2024-01-01" / staged[0].name)
    first = table.publish(staged)
    assert table.publish(staged) == first
    table.commit(first, info={})
    assert table.publish(staged) == first
    stage(table, "b1", 0)  # staged anew although committed: the copy goes, the part stays
    assert table.publish(staged) == first
    assert list(table.staging("b1").iterdir()) == []
    assert table.snapshot().rows == 10


def test_an_unknown_file_of_that_name_is_replaced_but_a_committed_part_never(
    table: Table, stage: Any
) -> None:
    staged = stage(table, "b1", 0)
    target = table.root / "day=2024-01-01" / staged.name
    target.parent.mkdir()
    target.write_bytes(b"left by a run that was never committed")
    parts = table.publish([staged])
    assert target.stat().st_size == staged.size
    table.commit(parts, info={})
    written = target.stat().st_ino
    assert table.publish([stage(table, "b1", 0)]) == parts
    assert target.stat().st_ino == written
    (other,) = table.publish([stage(table, "b1", 0, 4000)])  # other rows have another name
    assert other.path != parts[0].path
    assert table.snapshot().parts == parts


def test_a_committed_part_that_is_damaged_is_replaced_by_the_same_one(table: Table, stage: Any) -> None:
    (part,) = table.publish([stage(table, "b1", 0)])
    table.commit([part], info={})
    (table.root / part.path).write_bytes(b"damaged")
    assert table.publish([stage(table, "b1", 0)]) == [part]
    assert (table.root / part.path).stat().st_size == part.size


def test_publish_of_a_part_that_is_nowhere_is_refused(table: Table, stage: Any) -> None:
    staged = stage(table, "b1", 0)
    Path(staged.path).unlink()
    with pytest.raises(StorageError, match="is gone") as caught:
        table.publish([staged])
    assert "again" in caught.value.hint


def test_clean_staging_removes_every_batch(table: Table, stage: Any) -> None:
    for batch in ("b1", "b2", "b3"):
        stage(table, batch, 0)
    table.clean_staging()
    assert list((table.root / "_staging").iterdir()) == []


# -- durability


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were fsynced, in order."""
    paths: list[str] = []
    real = os.fsync

    def spy(fd: int) -> None:
        paths.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        real(fd)

    monkeypatch.setattr(os, "fsync", spy)
    return paths


def test_part_folder_log_entry_and_log_folder_are_synced_in_that_order(
    table: Table, stage: Any, synced: list[str]
) -> None:
    root = str(table.root)
    staged = [stage(table, "b1", 0), stage(table, "b1", 5)]
    written = [re.sub(r"\.[0-9a-f]{16}\.tmp$", "", path) for path in synced]
    assert written == [f"{root}/_staging/b1/.b1-{first}.parquet" for first in (0, 5)]
    synced.clear()
    parts = table.publish(staged)
    assert synced == [root, f"{root}/day=2024-01-01"]  # the new folder's own name, then the names in it
    synced.clear()
    table.commit(parts, info={})
    log = f"{root}/_delta_log"
    assert synced == [f"{log}/{0:020d}.json", f"{log}/{1:020d}.json", log]
    synced.clear()
    table.commit([], info={})
    assert synced == [f"{log}/{2:020d}.json", log]


def test_entries_of_other_writers_are_synced_before_ours_is_acknowledged(
    table: Table, opened: Callable[[], Table], synced: list[str]
) -> None:
    table.commit([], info={})
    other = opened()
    other.commit([], info={})
    synced.clear()
    table.commit([], info={})
    log = f"{table.root}/_delta_log"
    assert synced == [f"{log}/{2:020d}.json", f"{log}/{3:020d}.json", log]


def test_a_new_table_is_durable(tmp_path: Path, synced: list[str]) -> None:
    Table.open(tmp_path / "a" / "t", schema=pa.schema([("id", pa.int64())]), name="t")
    root = tmp_path / "a" / "t"
    log = root / "_delta_log"
    assert synced == [str(p) for p in (tmp_path, tmp_path / "a", log / f"{0:020d}.json", log, root)]


def test_checkpoints_come_every_fifty_commits_and_are_synced(table: Table, synced: list[str]) -> None:
    for _ in range(100):
        table.commit([], info={})
    log = table.root / "_delta_log"
    made = sorted(log.glob("*.checkpoint.parquet"))
    assert [int(path.name[:20]) for path in made] == [49, 99]
    assert {str(path) for path in made} | {str(log / "_last_checkpoint")} <= set(synced)
    assert len(list(log.glob("*.json"))) == 101  # nothing is cleaned behind our back
    assert len(table.commits(-1)) == 101


def test_a_disk_that_takes_no_more_is_a_storage_error_and_the_table_stays_whole(
    table: Table, opened: Callable[[], Table], stage: Any
) -> None:
    parts = table.publish([stage(table, "b1", 0)])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))  # a real failing write in deltalake
    try:
        with pytest.raises(StorageError) as caught:
            table.commit(parts, info={})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert "file size limit" in caught.value.hint
    assert opened().version == 0
    table.commit(parts, info={})
    assert opened().snapshot().rows == 5


# -- any reader


def test_stock_readers_see_the_rows(table: Table, add: Any) -> None:
    add(table, "b1", 0)
    add(table, "b2", 5, day="2024-01-02")
    by_deltalake = DeltaTable(table.root).to_pyarrow_table()
    assert sorted(by_deltalake.column("id").to_pylist()) == list(range(10))
    assert by_deltalake.schema.field("ts").type == pa.timestamp("us", "UTC")
    pruned = DeltaTable(table.root).to_pyarrow_table(filters=[("id", ">=", 7), ("day", "=", "2024-01-02")])
    assert sorted(pruned.column("id").to_pylist()) == [7, 8, 9]
    by_polars = pl.scan_delta(str(table.root)).filter(pl.col("id") >= 8).collect()
    assert sorted(by_polars["id"].to_list()) == [8, 9]
    assert by_polars["day"].to_list() == ["2024-01-02"] * 2


# -- expiry


def test_vacuum_deletes_only_old_unreferenced_files_of_ours(table: Table, stage: Any, add: Any) -> None:
    (live,) = add(table, "live", 0)
    (replaced,) = add(table, "replaced", 5)
    (orphan,) = table.publish([stage(table, "orphan", 10)])
    (young,) = table.publish([stage(table, "young", 15)])
    foreign = table.root / "day=2024-01-01" / "foreign.parquet"
    pl.DataFrame({"id": [1]}).write_parquet(foreign)
    now = 1_800_000_000_000_000
    table.commit([], [replaced], info={}, now=now - 3 * HOUR)
    old_staging, young_staging = stage(table, "old", 0), stage(table, "new", 0)
    for part in (live, replaced, orphan):
        age(table.root / part.path, now - 10 * HOUR)
    for path in (table.root / young.path, Path(young_staging.path)):
        age(path, now)
    for path in (foreign, Path(old_staging.path), Path(old_staging.path).parent, table.staging("live")):
        age(path, now - 10 * HOUR)
    age(table.root / "_delta_log" / f"{3:020d}.json", now)

    # removed three hours ago, whenever the entry was written: somebody may still be reading it
    assert table.vacuum(5 * HOUR, now) == [orphan.path]
    assert files(table) == ["foreign.parquet", "live-0.parquet", "replaced-5.parquet", "young-15.parquet"]
    assert sorted(f.name for f in (table.root / "_staging").iterdir() if list(f.iterdir())) == ["new"]

    later = now + 2 * HOUR + 1
    age(table.root / young.path, later)
    assert table.vacuum(5 * HOUR, later) == [replaced.path]
    assert table.vacuum(5 * HOUR, later) == []
    assert files(table) == ["foreign.parquet", "live-0.parquet", "young-15.parquet"]
    assert DeltaTable(table.root).to_pyarrow_table().num_rows == 5


def test_a_table_is_untidy_once_for_each_so_many_versions(table: Table, opened: Callable[[], Table]) -> None:
    for _ in range(9):
        table.commit([], info={})
    assert not table.is_untidy(10)
    for _ in range(2):  # past the multiple, not on it
        table.commit([], info={})
    assert table.is_untidy(10)
    assert not opened().is_untidy(10)  # who passed it does the work
    table.vacuum(HOUR, HOUR)
    assert not table.is_untidy(10)


def test_vacuum_keeps_a_part_that_was_written_again_after_it_was_removed(
    table: Table, stage: Any, add: Any
) -> None:
    now = 1_800_000_000_000_000
    (part,) = add(table, "again", 0)
    table.commit([], [part], info={}, now=now - 10 * HOUR)
    entry = table.root / "_delta_log" / f"{2:020d}.json"
    age(entry, now - 10 * HOUR)
    table.publish([stage(table, "again", 0)])  # staged again, not committed yet
    age(table.root / part.path, now)
    assert table.vacuum(5 * HOUR, now) == []
    age(table.root / part.path, now - 11 * HOUR)
    assert table.vacuum(5 * HOUR, now) == [part.path]


def test_a_removal_without_a_time_is_as_old_as_its_entry(table: Table, add: Any) -> None:
    now = 1_800_000_000_000_000
    (part,) = add(table, "foreign", 0)
    table.commit([], [part], info={}, now=1)
    entry = table.root / "_delta_log" / f"{2:020d}.json"
    text = entry.read_text()
    assert '"deletionTimestamp":0,' in text
    entry.write_text(text.replace('"deletionTimestamp":0,', ""))
    age(table.root / part.path, now - 10 * HOUR)
    age(entry, now)
    assert table.vacuum(5 * HOUR, now) == []
    age(entry, now - 6 * HOUR)
    assert table.vacuum(5 * HOUR, now) == [part.path]


def test_a_table_notices_commits_of_others_and_entries_that_went(
    table: Table, opened: Callable[[], Table], add: Any
) -> None:
    other = opened()
    add(table, "b1", 0)
    assert other.refresh() == table.version == 1
    for _ in range(109):
        table.commit([], info={})
    for path in (table.root / "_delta_log").iterdir():
        age(path, 0)
    assert table.trim_log(0, HOUR) > 50  # of the entry that the other one is at, and of many after it
    assert other.refresh() == table.version == 110


def test_trimmed_log_still_opens_and_says_what_is_gone(
    table: Table, opened: Callable[[], Table], add: Any
) -> None:
    add(table, "b1", 0)
    for _ in range(109):
        table.commit([], info={})
    log = table.root / "_delta_log"
    now = 1_800_000_000_000_000
    for path in log.iterdir():
        version = int(path.name[:20]) if path.name[:1] == "0" else 110
        age(path, now - (10 * HOUR if version < 60 else 0))
    assert table.trim_log(5 * HOUR, now) == 49  # all below checkpoint 49, which version 60 needs
    assert opened().snapshot().rows == 5
    assert DeltaTable(table.root, version=60).to_pyarrow_table().num_rows == 5
    assert [commit.version for commit in opened().commits(105)] == [106, 107, 108, 109, 110]
    with pytest.raises(StorageError, match="version 11 of the table is no longer in its log") as caught:
        opened().commits(10)
    assert "tidemill recover" in caught.value.hint


def test_import_is_light() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, tidemill.storage.tables.table; print('pyspark' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert loaded.stdout == "False\n"
