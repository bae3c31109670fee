"""The log of a table: an entry or a checkpoint that was changed or lost is found when the table is opened."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.storage.tables.conftest import SCHEMA, Add

from tidemill.model.damage import Damage, FileKind
from tidemill.model.errors import DamageError
from tidemill.model.time import DAY
from tidemill.storage import layout
from tidemill.storage.file_scrub import ScrubTally
from tidemill.storage.tables import log, log_checksums, log_copies
from tidemill.storage.tables.readers import TableReaders
from tidemill.storage.tables.scrub import scrub_table
from tidemill.storage.tables.table import CHECKPOINT_EVERY, Table

COMMITS = 5


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    home = tmp_path / "warehouse"
    home.mkdir()
    layout.tick_lock(home).touch()
    return home


@pytest.fixture
def root(warehouse: Path) -> Path:
    return layout.raw(warehouse, "s")


def filled(root: Path, add: Add, commits: int) -> Table:
    table = Table.open(root, schema=SCHEMA, partition_by=["day"], name="s")
    for number in range(commits):
        add(table, f"b{number}", number * 10)
    return table


@pytest.fixture(scope="module")
def checkpointed(tmp_path_factory: pytest.TempPathFactory, add: Add) -> Path:
    """A warehouse with a table whose log has a checkpoint, and three entries after it."""
    home = tmp_path_factory.mktemp("checkpointed")
    layout.tick_lock(home).touch()
    filled(layout.raw(home, "s"), add, CHECKPOINT_EVERY + 2)
    return home


@pytest.fixture
def table(checkpointed: Path, warehouse: Path, root: Path) -> Table:
    """That table, in the warehouse of the test."""
    shutil.copytree(checkpointed, warehouse, dirs_exist_ok=True)
    found = Table.existing(root)
    assert found is not None
    return found


def entry(root: Path, version: int) -> Path:
    return log.entry_path(root, version)


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def scrubbed(warehouse: Path, root: Path, tally: ScrubTally | None = None) -> list[Damage]:
    checks = list(scrub_table(warehouse, root, FileKind.RAW, "s", tally or ScrubTally()))
    assert [one.file for one in checks] == sorted(one.file for one in checks)
    return [one.damage for one in checks if one.damage is not None]


def of_log(path: Path) -> str:
    return f"raw/s/_delta_log/{path.name}"


def test_a_sound_table_is_opened_and_scrubbed(warehouse: Path, root: Path, table: Table, add: Add) -> None:
    add(table, "more", 0)
    opened = Table.existing(root)
    assert opened is not None
    assert opened.snapshot().by_path == table.snapshot().by_path
    tally = ScrubTally()
    assert scrubbed(warehouse, root, tally) == []
    files = [path for path in warehouse.rglob("*") if path.suffix in (".json", ".parquet")]
    assert (tally.files, tally.unchecked) == (len(files), 0)
    assert tally.bytes == sum(path.stat().st_size for path in files)


@pytest.mark.parametrize("version", [0, 2, COMMITS], ids=["first", "middle", "last"])
@pytest.mark.parametrize("place", [3, 40, -3])
def test_a_flipped_bit_in_an_entry(warehouse: Path, root: Path, add: Add, version: int, place: int) -> None:
    filled(root, add, COMMITS)
    flip(entry(root, version), place)
    with pytest.raises(DamageError, match="the entry of the table's log is not what was written") as caught:
        Table.existing(root)
    assert caught.value.where == of_log(entry(root, version))
    (found,) = scrubbed(warehouse, root)
    assert (found.file, found.kind, found.stream) == (caught.value.where, FileKind.TABLE_LOG, "s")


@pytest.mark.parametrize("version", [0, 2, COMMITS], ids=["first", "middle", "last"])
def test_an_entry_that_is_lost(warehouse: Path, root: Path, add: Add, version: int) -> None:
    filled(root, add, COMMITS)
    entry(root, version).unlink()
    with pytest.raises(DamageError, match="the entry of the table's log is missing") as caught:
        Table.existing(root)
    assert caught.value.where == of_log(entry(root, version))
    assert [one.file for one in scrubbed(warehouse, root)] == [caught.value.where]


def test_an_entry_that_was_cut_is_no_torn_one(root: Path, add: Add) -> None:
    filled(root, add, COMMITS)
    last = entry(root, COMMITS)
    last.write_bytes(last.read_bytes()[:50])
    with pytest.raises(DamageError, match="has 50 bytes, and"):
        Table.existing(root)
    assert last.exists()


@pytest.mark.usefixtures("table")
def test_entries_before_the_checkpoint_are_not_needed_to_read(warehouse: Path, root: Path) -> None:
    flip(entry(root, 3), 40)
    assert Table.existing(root) is not None
    assert [one.file for one in scrubbed(warehouse, root)] == [of_log(entry(root, 3))]
    opened = Table.existing(root)
    assert opened is not None
    with pytest.raises(DamageError):
        opened.commits(after=1)


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize("harm", ["flipped", "cut", "lost"])
def test_a_damaged_checkpoint(warehouse: Path, root: Path, harm: str) -> None:
    (checkpoint,) = log.checkpoints(root).values()
    if harm == "flipped":
        flip(checkpoint, 300)
    elif harm == "cut":
        checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    else:
        checkpoint.unlink()
    with pytest.raises(DamageError, match="the checkpoint of the table's log") as caught:
        Table.existing(root)
    assert caught.value.where == of_log(checkpoint)
    assert [one.file for one in scrubbed(warehouse, root)] == [of_log(checkpoint)]


def test_a_log_that_is_gone(warehouse: Path, root: Path, add: Add) -> None:
    filled(root, add, COMMITS)
    shutil.rmtree(layout.table_log(root))
    with pytest.raises(DamageError, match="is missing"):
        Table.existing(root)
    assert len(scrubbed(warehouse, root)) == COMMITS + 1


def test_a_table_that_is_gone_is_known_by_what_the_state_has_seen(
    warehouse: Path, root: Path, add: Add
) -> None:
    filled(root, add, COMMITS)
    shutil.rmtree(root)
    assert TableReaders(warehouse, lambda _stream: {}).snapshot("raw", "s") is None
    with pytest.raises(DamageError, match=f"the table is gone, and version {COMMITS} of it was committed"):
        TableReaders(warehouse, lambda _stream: {"raw": COMMITS}).snapshot("raw", "s")
    (found,) = scrub_table(warehouse, root, FileKind.RAW, "s", ScrubTally(), committed=COMMITS)
    assert found.damage is not None
    assert found.damage.kind is FileKind.RAW


def test_a_lost_last_entry_is_known_by_what_the_state_has_seen(warehouse: Path, root: Path, add: Add) -> None:
    """Though its checksum was lost, too."""
    filled(root, add, COMMITS)
    entry(root, COMMITS).unlink()
    shutil.rmtree(layout.log_sums(root))
    assert Table.existing(root) is not None
    with pytest.raises(
        DamageError, match=f"at version {COMMITS - 1}, and version {COMMITS} was committed"
    ) as caught:
        TableReaders(warehouse, lambda _stream: {"raw": COMMITS}).snapshot("raw", "s")
    assert caught.value.where == of_log(entry(root, COMMITS))


def test_a_table_that_is_open_finds_what_was_changed_before_it_looks(root: Path, add: Add) -> None:
    writer = filled(root, add, COMMITS)
    reader = Table.existing(root)
    assert reader is not None
    add(writer, "next", 900)
    flip(entry(root, COMMITS + 1), 40)
    for _ in range(2):  # and does not forget it
        with pytest.raises(DamageError):
            reader.refresh()


def test_a_crash_between_a_commit_and_its_checksum_leaves_the_entry_unchecked(
    warehouse: Path, root: Path, add: Add
) -> None:
    filled(root, add, COMMITS)
    (sums,) = layout.log_sums(root).iterdir()
    lines = sums.read_bytes().splitlines(keepends=True)
    sums.write_bytes(b"".join(lines[:-1]) + lines[-1][:20])  # a line that was torn
    tally = ScrubTally()
    assert scrubbed(warehouse, root, tally) == []
    assert tally.unchecked == 1
    table = Table.existing(root)
    assert table is not None
    add(table, "next", 900)
    again = ScrubTally()
    assert scrubbed(warehouse, root, again) == []
    assert again.unchecked == 0


def test_a_torn_entry_that_nobody_acknowledged_is_set_aside(root: Path, add: Add) -> None:
    filled(root, add, COMMITS)
    entry(root, COMMITS + 1).write_bytes(b'{"commitInfo"')
    table = Table.existing(root)
    assert table is not None
    assert table.version == COMMITS


def test_tables_of_earlier_versions_are_read_as_they_are(warehouse: Path, root: Path, add: Add) -> None:
    filled(root, add, COMMITS)
    shutil.rmtree(layout.log_sums(root))
    table = Table.existing(root)
    assert table is not None
    assert table.version == COMMITS
    tally = ScrubTally()
    assert scrubbed(warehouse, root, tally) == []
    assert tally.unchecked == COMMITS + 1
    entry(root, 2).unlink()
    of_all, of_entry = scrubbed(warehouse, root)  # without checksums only Delta says that the log has a hole
    assert (of_all.file, of_entry.file) == ("raw/s/_delta_log", of_log(entry(root, 2)))
    assert of_entry.reason == "the file is missing"


def test_trimmed_entries_are_not_missed(warehouse: Path, root: Path, table: Table, add: Add) -> None:
    for number in range(CHECKPOINT_EVERY):
        add(table, f"more{number}", number * 10)
    now = entry(root, 0).stat().st_mtime_ns // 1000 + 2 * DAY
    floor = log.last_checkpoint(root)
    assert table.trim_log(DAY, now) == floor
    assert scrubbed(warehouse, root) == []
    assert min(int(name[:20]) for name in log_checksums.recorded(root)) == floor
    opened = Table.existing(root)
    assert opened is not None
    assert opened.version == 2 * CHECKPOINT_EVERY + 2
    entry(root, floor).unlink()
    assert [one.file for one in scrubbed(warehouse, root)] == [of_log(entry(root, floor))]


@pytest.mark.usefixtures("table")
def test_a_pointer_that_is_lost_or_garbled_does_no_harm(root: Path) -> None:
    pointer = layout.table_log(root) / "_last_checkpoint"
    assert json.loads(pointer.read_bytes())["version"] == CHECKPOINT_EVERY - 1
    for harm in (lambda: pointer.write_bytes(b"{"), pointer.unlink):
        harm()
        opened = Table.existing(root)
        assert opened is not None
        assert opened.version == CHECKPOINT_EVERY + 2


def test_a_damaged_part_is_scrubbed_and_a_replaced_one_is_not(warehouse: Path, root: Path, add: Add) -> None:
    table = filled(root, add, 3)
    one, other, third = table.snapshot().parts
    flip(root / one.path, 60)
    (root / other.path).unlink()
    (root / third.path).write_bytes(b"cut")
    found = scrubbed(warehouse, root)
    assert [(each.file, each.kind) for each in found] == [
        (f"raw/s/{part.path}", FileKind.RAW) for part in (one, other, third)
    ]
    assert [each.reason for each in found] == [
        "the part is not what was written: its checksum differs",
        "the file is missing",
        f"the part has 3 bytes, and {third.size} were written",
    ]
    table.commit([], [one, other, third], info={}, now=0)
    assert scrubbed(warehouse, root) == []


def test_an_entry_that_was_lost_comes_back_from_its_copy(root: Path, add: Add) -> None:
    filled(root, add, COMMITS)
    before = {path.name: path.read_bytes() for path in log.files(root)}
    assert len(list(layout.log_copies(root).iterdir())) == 1
    for name in before:
        (layout.table_log(root) / name).unlink()
        assert log_copies.is_kept(root, name)
        assert log_copies.put_back(root, name)
    assert {path.name: path.read_bytes() for path in log.files(root)} == before


def test_copies_around_one_that_a_power_cut_tore_are_found(root: Path, add: Add) -> None:
    table = filled(root, add, 3)
    (copies,) = layout.log_copies(root).iterdir()
    content = copies.read_bytes()
    copies.write_bytes(content[:-7])  # of the last one
    assert [log_copies.is_kept(root, entry(root, version).name) for version in range(4)] == [True] * 3 + [
        False
    ]
    add(table, "next", 90)  # knows that the one before it was copied
    kept = [log_copies.is_kept(root, entry(root, version).name) for version in range(5)]
    assert kept == [True, True, True, False, True]
    again = Table.existing(root)
    assert again is not None
    add(again, "last", 100)
    assert all(log_copies.is_kept(root, entry(root, version).name) for version in range(6))


def test_copies_of_an_earlier_version_are_read_and_not_made_again(root: Path, add: Add) -> None:
    filled(root, add, 2)
    for path in layout.log_copies(root).iterdir():
        path.unlink()
    names = [path.name for path in log.files(root)]
    for name in names:
        (layout.log_copies(root) / f"{name}.copy").write_bytes((layout.table_log(root) / name).read_bytes())
    assert all(log_copies.is_kept(root, name) for name in names)
    log_copies.keep(root, names)
    assert len(list(layout.log_copies(root).iterdir())) == len(names)
    log_copies.trim(root, 2)
    assert [log_copies.is_kept(root, name) for name in sorted(names)] == [False, False, True]


def test_copies_are_forgotten_with_the_versions_they_are_of(root: Path, add: Add) -> None:
    filled(root, add, 2)
    log_copies.trim(root, 2)
    assert log_copies.is_kept(root, entry(root, 2).name)
    log_copies.trim(root, log_checksums.SPAN)
    assert not log_copies.is_kept(root, entry(root, 2).name)
