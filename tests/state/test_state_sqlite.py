"""What is particular to the SQLite state: the file, its version, its errors, its indexes."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tidemill.model.errors import StorageError
from tidemill.model.slices import Codec, Format, NewSlice
from tidemill.state.schema import VERSION
from tidemill.state.sqlite import STALE, open_state


def test_it_is_in_wal_mode_with_full_sync(tmp_path: Path) -> None:
    state = open_state(tmp_path / "state.db")
    with state._read() as db:  # type: ignore[attr-defined]
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA synchronous").fetchone() == (2,)
        assert db.execute("PRAGMA foreign_keys").fetchone() == (1,)
    state.close()


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    open_state(path).close()
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(StorageError, match=f"schema version {VERSION + 1}, this Tidemill knows {VERSION}"):
        open_state(path)
    assert path.read_bytes() == before


def test_a_foreign_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE theirs (x)")
    with pytest.raises(StorageError, match="not the state of a warehouse"):
        open_state(path)


def test_a_damaged_file_says_how_to_get_it_back(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(b"this is no database at all" * 100)
    with pytest.raises(StorageError, match="damaged") as caught:
        open_state(path)
    assert "tidemill recover" in caught.value.hint


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="folder"):
        open_state(tmp_path / "no" / "state.db")


def test_reading_goes_on_while_another_connection_writes(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    state = open_state(path)
    state.enter(NewSlice("ab", "s", "file", "n", Format.JSON, Codec.NONE, "p", 1, 1))
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE slices SET name = 'changed'")
    reader = open_state(path)
    assert [entry.slice.name for entry in reader.slices()] == ["n"]
    writer.execute("COMMIT")
    assert [entry.slice.name for entry in reader.slices()] == ["changed"]
    writer.close()
    reader.close()
    state.close()


def test_stale_tiles_are_found_by_the_partial_index_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    open_state(path).close()
    with sqlite3.connect(path) as db:
        plan = db.execute(
            "EXPLAIN QUERY PLAN SELECT * FROM tiles INDEXED BY tiles_stale"
            f" WHERE {STALE} AND stream = 's' ORDER BY start"
        ).fetchall()
    assert [step[3] for step in plan] == ["SEARCH tiles USING INDEX tiles_stale (stream=?)"]
