"""The database of a state in one SQLite file: WAL, full sync, one writer at a time.

Any number of threads and processes may open the same file. Connections are pooled: there are as many as
simultaneous calls.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Final

from tidemill.model.errors import DamageError, StorageError
from tidemill.storage.state.connection import Connection
from tidemill.storage.state.protocol import State
from tidemill.storage.state.schema import BUSY_SECONDS, LOG_BYTES, connect, storage_errors
from tidemill.storage.state.sql_state import SqlState

_REFERENCES: Final = "PRAGMA foreign_key_check"
_RECOVER: Final = "`tidemill recover` rebuilds it from the warehouse"


def open_state(path: Path) -> State:
    """The state in the file `path`, created if it does not exist (its folder must exist)."""
    return SqlState(SqliteDatabase(path))


def check_state(path: Path) -> bool:
    """Read the whole file, beside others that use it: pages, rows, indexes and references must fit together.
    DamageError if they do not. (Values that nothing else refers to are compared by `verify`.)"""
    with (
        storage_errors(path),
        closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db,
    ):
        db.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
        (page,) = db.execute("PRAGMA page_size").fetchone()
        found = ["the last page of the file is cut"] if path.stat().st_size % page else []
        found += [str(row[0]) for row in db.execute("PRAGMA integrity_check(1)") if row[0] != "ok"]
        found += [f"a row of {row[0]} refers to one that is gone" for row in db.execute(_REFERENCES)]
    if found:
        raise DamageError(found[0], where=path.name, hint=_RECOVER)
    return True


class SqliteDatabase:
    """`Database` on a file."""

    def __init__(self, path: Path) -> None:
        if not path.parent.is_dir():
            raise StorageError(
                "the folder of the state does not exist", where=str(path), hint="create the warehouse first"
            )
        self._path = path
        self._file: int | None = None  # which file the idle connections have open
        self._file_of: dict[int, int | None] = {}  # by connection, which file it has open
        self._idle: list[sqlite3.Connection] = []
        self._guard = threading.Lock()
        self._closed = False
        self._give_back(self._connect())

    @property
    def where(self) -> str:
        return str(self._path)

    def read(self) -> AbstractContextManager[Connection]:
        return self._transaction("BEGIN")

    def write(self, *, lasting: bool = True) -> AbstractContextManager[Connection]:
        return self._transaction("BEGIN IMMEDIATE", "FULL" if lasting else "NORMAL")

    def claim(self, *, lasting: bool = True) -> AbstractContextManager[Connection]:
        return self.write(lasting=lasting)

    def hold(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()  # it is the database of one machine

    def trim_log(self) -> None:
        if _size(self._path.with_name(f"{self._path.name}-wal")) <= LOG_BYTES:
            return
        connection = self._take()
        with storage_errors(self._path):
            try:
                connection.execute("PRAGMA busy_timeout = 0")  # readers continue, and the log stays
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            finally:
                connection.execute(f"PRAGMA busy_timeout = {int(BUSY_SECONDS * 1000)}")
                self._give_back(connection)

    def close(self) -> None:
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @contextmanager
    def _transaction(self, begin: str, sync: str = "FULL") -> Iterator[Connection]:
        """A transaction. Without a full sync only a power cut can undo it; that ends all processes as
        well."""
        connection = self._take()
        with storage_errors(self._path):
            try:
                if sync != "FULL":
                    connection.execute(f"PRAGMA synchronous = {sync}")
                connection.execute(begin)
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:  # a full disk may have rolled it back already
                        connection.execute("ROLLBACK")
                    raise
            finally:
                if sync != "FULL":
                    connection.execute("PRAGMA synchronous = FULL")
                self._give_back(connection)

    def _take(self) -> sqlite3.Connection:
        with self._guard:
            if self._closed:
                raise StorageError("state is closed", where=str(self._path), hint="open the warehouse again")
            if self._idle and self._is_current():
                return self._idle.pop()
        return self._connect()

    def _is_current(self) -> bool:
        """Whether the idle connections have the current file open. `recover` in another process may have
        replaced it; then they are closed, and the next call opens the new file."""
        if self._file == _number(self._path):
            return True
        for connection in self._idle:
            self._file_of.pop(id(connection), None)
            connection.close()
        self._idle.clear()
        return False

    def _connect(self) -> sqlite3.Connection:
        before = _number(self._path)
        connection = connect(self._path)
        number = _number(self._path)
        with self._guard:
            self._file = number
            # If the file was replaced meanwhile, it may have either one open: use it once.
            self._file_of[id(connection)] = number if before in (None, number) else None
        return connection

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._guard:
            if not self._closed and self._file_of.get(id(connection)) == self._file:
                self._idle.append(connection)
                return
            self._file_of.pop(id(connection), None)
        connection.close()


def _size(path: Path) -> int:
    """The size of a file; 0 if it does not exist."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _number(path: Path) -> int | None:
    """Identifies a file among others of the same name; None: there is none."""
    try:
        return os.stat(path).st_ino  # noqa: PTH116 (each transaction asks, and a Path takes long to make)
    except FileNotFoundError:
        return None
