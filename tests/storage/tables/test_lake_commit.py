"""Commits under contention and crashes: the loser looks again, rows never double, readers see whole ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from tidemill.model.errors import ConflictError, Retry, StorageError
from tidemill.storage.tables.part_checksums import without_checksums
from tidemill.storage.tables.snapshot import Part
from tidemill.storage.tables.table import Table, check_inputs


def ids(table: Table) -> list[int]:
    """What a stock reader sees."""
    found: list[int] = DeltaTable(table.root).to_pyarrow_table().column("id").to_pylist()
    return sorted(found)


# -- what the pinned deltalake does: an upgrade that changes it must not pass silently


def raw_commit(
    delta: DeltaTable, actions: list[AddAction | RemoveAction], app: int | None, retries: int = 15
) -> None:
    delta.create_write_transaction(
        actions,
        "append",
        delta.schema(),
        ["day"],
        commit_properties=CommitProperties(
            max_commit_retries=retries,
            app_transactions=None if app is None else [Transaction("tidemill", app)],
        ),
        post_commithook_properties=PostCommitHookProperties(False, False),
    )


def new(name: str) -> AddAction:
    return AddAction(f"day=x/{name}", 1, {"day": "x"}, 1, True, '{"numRecords":1}')


def gone(name: str) -> RemoveAction:
    return RemoveAction(f"day=x/{name}", True, 1, 1, {"day": "x"})


def paths(table: Table) -> list[str]:
    return sorted(uri.rsplit("/", 1)[1] for uri in DeltaTable(table.root).file_uris())


def test_canary_app_transactions_are_recorded_but_not_enforced(table: Table) -> None:
    for name in ("a", "b"):
        raw_commit(DeltaTable(table.root), [new(name)], app=7)
    assert DeltaTable(table.root).transaction_version("tidemill") == 7
    assert paths(table) == ["a", "b"]


def test_canary_two_stale_commits_with_one_app_id_conflict(table: Table) -> None:
    first, second = DeltaTable(table.root), DeltaTable(table.root)
    raw_commit(first, [new("a")], app=2)
    with pytest.raises(CommitFailedError):
        raw_commit(second, [new("b")], app=2)
    assert paths(table) == ["a"]


def test_canary_without_app_id_a_stale_append_is_rebased_silently(table: Table) -> None:
    first, second = DeltaTable(table.root), DeltaTable(table.root)
    raw_commit(first, [new("a")], app=None)
    raw_commit(second, [new("b")], app=None)
    assert paths(table) == ["a", "b"]


def test_canary_without_retries_a_commit_is_a_compare_and_set(table: Table) -> None:
    first, second = DeltaTable(table.root), DeltaTable(table.root)
    raw_commit(first, [new("a")], app=None)
    with pytest.raises(CommitFailedError):
        raw_commit(second, [new("b")], app=None, retries=0)
    assert paths(table) == ["a"]


def test_canary_removing_what_is_gone_and_adding_what_is_there_pass_without_a_word(table: Table) -> None:
    raw_commit(DeltaTable(table.root), [new("a"), new("b")], app=None)
    raw_commit(DeltaTable(table.root), [gone("a")], app=None)
    raw_commit(DeltaTable(table.root), [gone("a"), gone("never")], app=None)
    raw_commit(DeltaTable(table.root), [new("b")], app=None)
    assert paths(table) == ["b"]


def test_canary_a_handle_does_not_see_its_own_commit_until_it_looks(table: Table) -> None:
    delta = DeltaTable(table.root)
    raw_commit(delta, [new("a")], app=None)
    assert delta.version() == 0
    delta.update_incremental()
    assert delta.version() == 1


# -- the one commit path


def test_commit_says_what_its_writer_said(table: Table, stage: Any) -> None:
    parts = table.publish([stage(table, "b1", 0)])
    info = {"batch": "b1", "slices": '["s1","s2"]', "operation": "accept", "timestamp": "mine"}
    assert table.commit(parts, info=info) == 1
    assert table.version == 1
    new_part = table.publish([stage(table, "b2", 5)])
    assert table.commit(new_part, parts, info={"pack": "1"}) == 2
    first, second = table.commits(0)
    assert (first.version, first.info, first.added, first.removed) == (1, info, [parts[0].path], [])
    assert (second.info, second.added, second.removed) == (
        {"pack": "1"},
        [new_part[0].path],
        [parts[0].path],
    )
    assert table.commits(2) == []
    assert table.commits(99) == []
    assert [commit.version for commit in table.commits(-1)] == [0, 1, 2]


def test_every_commit_carries_the_next_transaction_version(table: Table, add: Any) -> None:
    for number in range(1, 4):
        add(table, f"b{number}", number * 10)
        assert DeltaTable(table.root).transaction_version("tidemill") == number + 1


def test_a_commit_without_parts_is_a_commit(table: Table) -> None:
    assert table.commit([], info={"batch": "nothing accepted"}) == 1
    assert table.commits(0)[0].info == {"batch": "nothing accepted"}


def test_a_stale_writer_loses_then_lands_on_top(
    table: Table, opened: Callable[[], Table], stage: Any
) -> None:
    other = opened()
    mine, theirs = table.publish([stage(table, "b1", 0)]), other.publish([stage(other, "b2", 5)])
    overtaken = OvertakenOnce(table, lambda: other.commit(theirs, info={"batch": "b2"}))
    assert overtaken.commit(mine, info={"batch": "b1"}) == 2
    assert [commit.info["batch"] for commit in table.commits(0)] == ["b2", "b1"]
    assert ids(table) == list(range(10))
    assert DeltaTable(table.root).transaction_version("tidemill") == 3


class OvertakenOnce:
    """A table whose first commit meets a rival that commits after the checks and before the write."""

    def __init__(self, table: Table, rival: Callable[[], object]) -> None:
        self._table = table
        properties = table._properties

        def late(info: dict[str, str]) -> CommitProperties:
            made = properties(info)
            table._properties = properties  # type: ignore[method-assign]
            rival()
            return made

        table._properties = late  # type: ignore[method-assign]

    def commit(self, *args: Any, **options: Any) -> int:
        return self._table.commit(*args, **options)


def test_of_two_packs_of_the_same_parts_only_one_wins(
    table: Table, opened: Callable[[], Table], add: Any, stage: Any
) -> None:
    old = add(table, "b1", 0) + add(table, "b2", 5)
    other = opened()
    mine, theirs = table.publish([stage(table, "p1", 0, 10)]), other.publish([stage(other, "p2", 0, 10)])
    overtaken = OvertakenOnce(table, lambda: other.commit(theirs, old, info={"pack": "theirs"}))
    with pytest.raises(ConflictError, match="2 of the parts to remove are no longer in the table") as caught:
        overtaken.commit(mine, old, info={"pack": "mine"})
    assert caught.value.retry is Retry.REFRESH
    assert ids(table) == list(range(10))
    assert table.snapshot().parts == theirs


def test_a_pack_overtaken_by_an_append_is_not_redone(
    table: Table, opened: Callable[[], Table], add: Any, stage: Any
) -> None:
    old = add(table, "b1", 0) + add(table, "b2", 5)
    other = opened()
    packed = table.publish([stage(table, "p", 0, 10)])
    overtaken = OvertakenOnce(table, lambda: add(other, "b3", 10))
    assert overtaken.commit(packed, old, info={}) == 4
    assert ids(table) == list(range(15))


def test_the_same_parts_are_never_committed_twice(table: Table, add: Any) -> None:
    parts = add(table, "b1", 0)
    with pytest.raises(ConflictError, match="1 of the parts to add are already in the table"):
        table.commit(parts, info={"batch": "b1"})
    assert (table.version, ids(table)) == (1, [0, 1, 2, 3, 4])


def test_removing_what_is_gone_is_refused(table: Table, add: Any) -> None:
    parts = add(table, "b1", 0)
    assert table.commit([], parts, info={}, now=1) == 2
    with pytest.raises(ConflictError, match="no longer in the table"):
        table.commit([], parts, info={}, now=2)
    assert table.version == 2


def test_rules_of_the_inputs() -> None:
    a, b = (Part(name, 1, 1, {}, {}, {}) for name in ("a", "b"))
    check_inputs({"a"}, [b], [a])
    check_inputs(set(), [], [])
    with pytest.raises(ConflictError, match="b first"):
        check_inputs({"a"}, [], [b])
    with pytest.raises(ConflictError, match="a first"):
        check_inputs({"a"}, [b, a], [])


def test_a_part_whose_file_vanished_is_not_committed(table: Table, stage: Any) -> None:
    (part,) = table.publish([stage(table, "b1", 0)])
    (table.root / part.path).unlink()
    with pytest.raises(StorageError, match="No such file"):
        table.commit([part], info={})
    assert table.refresh() == 0


def test_removal_is_recorded_at_the_instant_given(table: Table, add: Any) -> None:
    parts = add(table, "b1", 0)
    table.commit([], parts, info={}, now=1_704_067_200_000_000)
    entry = (table.root / "_delta_log" / f"{2:020d}.json").read_text()
    assert '"deletionTimestamp":1704067200000' in entry


# -- several processes

CHILD = """
import sys
from pathlib import Path
import pyarrow as pa
from tidemill.storage.tables.parts import write_part
from tidemill.storage.tables.table import Table

root, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
table = Table.existing(root)
sys.stdin.readline()
for i in range(count):
    batch = f"{name}-{i}"
    content = pa.table({"id": [i, i + 1000]})
    staged = [
        write_part(table.staging(batch), f"{batch}-{n}.parquet", content.slice(n, 1), partition={"day": "x"},
                   footer={}, stats_columns=["id"])
        for n in (0, 1)
    ]
    parts = table.publish(staged)
    if name == "killed":
        import os
        os._exit(86)
    table.commit(parts, info={"batch": batch})
"""


def child(table: Table, name: str, count: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(table.root), name, str(count)],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_two_processes_commit_forty_times_while_a_reader_sees_only_whole_commits(table: Table) -> None:
    writers = [child(table, name, 20) for name in ("one", "two")]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"\n")
        writer.stdin.close()
    seen = 0
    while any(writer.poll() is None for writer in writers):
        reader = DeltaTable(table.root)  # a stock reader, in the middle of it
        found = reader.to_pyarrow_table().num_rows
        assert found == 2 * reader.version()
        assert found >= seen
        seen = found
    assert [writer.wait() for writer in writers] == [0, 0]
    commits = table.commits(0)
    assert [commit.version for commit in commits] == list(range(1, 41))
    assert {commit.info["batch"] for commit in commits} == {
        f"{n}-{i}" for n in ("one", "two") for i in range(20)
    }
    assert all(len(commit.added) == 2 for commit in commits)
    assert DeltaTable(table.root).transaction_version("tidemill") == 41
    assert ids(table) == sorted([i + k for i in range(20) for k in (0, 1000)] * 2)


def test_death_between_publish_and_commit_leaves_readers_as_they_were(table: Table, add: Any) -> None:
    add(table, "b1", 0)
    victim = child(table, "killed", 1)
    victim.communicate(b"\n")
    assert victim.returncode == 86
    left = sorted(path.name for path in table.root.glob("day=x/*"))
    assert [without_checksums(name) for name in left] == ["killed-0-0.parquet", "killed-0-1.parquet"]
    assert ids(table) == [0, 1, 2, 3, 4]
    assert table.refresh() == 1
    again = child(table, "killed-0", 1)  # another batch is not in its way
    again.communicate(b"\n")
    assert table.refresh() == 2
    young = max(path.stat().st_mtime_ns for path in table.root.glob("day=x/*")) // 1000
    assert table.vacuum(0, young + 1) == [f"day=x/{name}" for name in left]
    assert table.snapshot().rows == 7


def test_two_processes_may_create_the_same_table(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; import pyarrow as pa\n"
        "from tidemill.storage.tables.table import Table\n"
        "sys.stdin.readline()\n"
        "for i in range(20):\n"
        "    t = Table.open(Path(sys.argv[1]) / str(i), schema=pa.schema([('id', pa.int64())]), name='t')\n"
        "    t.commit([], info={'by': sys.argv[2]})\n"
    )
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), name],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for name in ("one", "two")
    ]
    for maker in makers:
        assert maker.stdin is not None
        maker.stdin.write(b"\n")
        maker.stdin.close()
    assert [maker.wait() for maker in makers] == [0, 0]
    for i in range(20):
        table = Table.open(tmp_path / str(i), schema=pa.schema([("id", pa.int64())]), name="t")
        assert sorted(commit.info["by"] for commit in table.commits(0)) == ["one", "two"]
