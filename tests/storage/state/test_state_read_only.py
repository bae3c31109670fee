"""A state in a file that may only be read: what it answers, and that no writer elsewhere is overlooked."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.mill import Mill
from tidemill.model.errors import BusyError, StorageError
from tidemill.storage.state.sql_state import SqlState
from tidemill.storage.state.sqlite import VERSION, open_state
from tidemill.storage.state.sqlite_read_only import ReadOnlySqlite


@pytest.fixture
def path(tmp_path) -> Path:
    found = tmp_path / "state.db"
    open_state(found).close()
    return found


def checkpoint(path: Path, text: str) -> None:
    state = open_state(path)
    state.set_checkpoint("s", "w", text)
    state.close()


def known(database: ReadOnlySqlite) -> list[str]:
    return list(SqlState(database).checkpoints("s").values())


def test_a_state_without_a_log_is_read_as_it_is_and_nothing_is_made_beside_it(path):
    checkpoint(path, "one")
    assert known(ReadOnlySqlite(path)) == ["one"]
    assert [each.name for each in path.parent.iterdir()] == ["state.db"]


def test_each_read_sees_what_writers_committed_before_it(path):
    database = ReadOnlySqlite(path)
    for text in ("one", "two"):
        checkpoint(path, text)  # closed again: what it wrote is in the file
        assert known(database) == [text]
    writer = open_state(path)
    for text in ("three", "four"):
        writer.set_checkpoint("s", "w", text)  # only in the log
        assert known(database) == [text]
    writer.close()
    assert known(database) == ["four"]


def test_a_file_that_is_written_while_it_is_read_is_no_answer(path):
    database = ReadOnlySqlite(path)

    def read_slowly() -> None:
        with database.read() as connection:
            connection.execute("SELECT name FROM sqlite_master").fetchall()
            checkpoint(path, "one")

    with pytest.raises(BusyError, match="written while it was read"):
        read_slowly()
    assert known(database) == ["one"]


def test_it_changes_nothing_and_says_where_to_do_it(path):
    with pytest.raises(StorageError, match="may only be read here") as caught:
        ReadOnlySqlite(path).write()
    assert caught.value.where == str(path.parent)


def test_a_state_of_an_earlier_version_is_named(path):
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION - 1}")
    connection.close()
    with pytest.raises(StorageError, match=f"version {VERSION - 1}, and may not be upgraded"):
        ReadOnlySqlite(path)


# -- a whole warehouse that may not be written: by permission, or for root on a read-only mount

PROJECT = """version: 1
streams:
  visits:
    schema: {id: {type: string, required: true}, at: {type: integer, required: true}, page: string}
    event_time: {column: at, type: unixtimestamp_s}
    identity: id
    metrics: {visits: {kind: counter, dimensions: [page]}}
"""
READ = (
    ("query", "SELECT count FROM visits GROUP BY page"),
    ("query", "SELECT count FROM visits FILTER id = 'a' AS OF 1h"),
    ("search", "visits"),
    ("sql", "SELECT count(*) AS n FROM raw.visits"),
    ("status",),
    ("ledger",),
    ("catalog",),
    ("repair", "--explain"),
)
MOUNTED = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" || exit 77; cd "$0" || exit 77; exec "$@"'


def in_read_only(folder: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    if os.geteuid() != 0:
        return subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False)
    if shutil.which("unshare") is None:
        pytest.skip("root may write everything, and there is no `unshare` to mount a folder read-only")
    command = ["unshare", "-m", "sh", "-c", MOUNTED, str(folder), *arguments]
    found = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    if found.returncode == 77 or "unshare" in found.stderr:
        pytest.skip(f"root may write everything, and may not mount here: {found.stderr.strip()}")
    return found


@pytest.mark.process
def test_commands_that_read_answer_from_a_warehouse_that_may_only_be_read(tmp_path):
    (tmp_path / "tidemill.yaml").write_text(PROJECT)
    with Mill.open(tmp_path) as mill:
        mill.land("visits", b'{"id": "a", "at": 1710500000, "page": "x"}\n')
        mill.tick()
        mill.land("visits", b'{"id": "b", "at": 1710500000, "page": "x"}\n')
    tidemill = [sys.executable, "-m", "tidemill.cli.main"]
    there = sorted(each for each in tmp_path.rglob("*"))
    folders = [tmp_path, *(each for each in there if each.is_dir())]
    for folder in folders if os.geteuid() else ():
        folder.chmod(0o555)
    try:
        answers = [in_read_only(tmp_path, [*tidemill, *words]) for words in READ]
        written = in_read_only(tmp_path, [*tidemill, "run", "--once"])
    finally:
        for folder in folders if os.geteuid() else ():
            folder.chmod(0o755)
    assert [(each.returncode, each.stderr if each.returncode else "") for each in answers] == [(0, "")] * len(
        READ
    )
    assert "1 slice has landed" in answers[0].stdout + answers[0].stderr
    assert written.returncode != 0
    assert "read-only" in written.stderr or "Permission denied" in written.stderr
    assert sorted(each for each in tmp_path.rglob("*")) == there
