"""The database of a state in one SQLite file: WAL, full sync, one writer at a time.

A new file is created and an older one upgraded; one written by a newer Tidemill is refused and never changed.
Any number of threads and processes may open the same file. Connections are pooled: there are as many as
simultaneous calls.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Final

from tidemill.model.errors import BusyError, StorageError
from tidemill.storage.state.database import Connection
from tidemill.storage.state.ddl import VERSIONS
from tidemill.storage.state.protocol import State
from tidemill.storage.state.sql_state import SqlState

VERSION: Final = len(VERSIONS)
APPLICATION: Final = 0x7469_6465  # "tide", in the file's header: a foreign file is never written to
BUSY_SECONDS: Final = 30.0
LOG_BYTES: Final = 1 << 20  # bytes that the write-ahead log keeps on disk after a checkpoint
_DISK: Final = "check that the disk has free space, and that folder and file are writable"


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turns errors of SQLite into errors with a hint."""
    try:
        yield
    except sqlite3.OperationalError as error:
        text = str(error)
        if "locked" in text or "busy" in text:
            raise BusyError(
                f"state is locked by another process ({text})",
                where=str(path),
                hint=f"something has held it for more than {BUSY_SECONDS:.0f} s: find it, or try again",
            ) from error
        if "full" in text:
            raise StorageError(
                "no space left to write the state", where=str(path), hint="free disk space, then try again"
            ) from error
        raise StorageError(f"state cannot be used: {text}", where=str(path), hint=_DISK) from error
    except OSError as error:
        raise StorageError(
            f"state cannot be used: {error.strerror or error}",
            where=str(path),
            hint=_DISK,
        ) from error
    except sqlite3.DatabaseError as error:
        raise StorageError(
            f"state is damaged: {error}",
            where=str(path),
            hint="move the file away and run `tidemill recover`: the warehouse has all it needs",
        ) from error


def connect(path: Path) -> sqlite3.Connection:
    """A connection in autocommit mode (transactions are opened explicitly); creates the file if it does not
    exist."""
    with storage_errors(path):
        if not path.exists():
            _create(path)
        connection = _open(path)
        try:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
            _check(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=256
    )


def _create(path: Path) -> None:
    """Create the file under another name first, so that no other process sees it half-made; the switch to
    WAL, for which SQLite does not wait, is done before anyone else opens it."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        connection = _open(draft)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            _upgrade(connection)
        finally:
            connection.close()
        try:
            os.link(draft, path)
        except FileExistsError:
            return  # another process was first
        # a file system without hard links: two creators at the same moment could still collide
        except OSError:
            draft.replace(path)
        sync_folder(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Check that the file is ours, and upgrade it to the version that this code writes."""
    if check_ours(connection, path) < VERSION:
        _upgrade(connection)


def check_ours(connection: sqlite3.Connection, path: Path) -> int:
    """Check that the file is a state that this code can read; its version."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application != APPLICATION:
        raise StorageError(
            "this file is not the state of a warehouse",
            where=str(path),
            hint="move it away, then run `tidemill recover`, or name another warehouse folder",
        )
    if version > VERSION:
        raise StorageError(
            f"state has schema version {version}, this Tidemill knows {VERSION}",
            where=str(path),
            hint="use the newer Tidemill that wrote it, or move the file away and run `tidemill recover`",
        )
    return int(version)


def _upgrade(connection: sqlite3.Connection) -> None:
    """Apply the missing migrations, all or none; another process may be doing the same."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        for step in VERSIONS[version:]:
            for statement in step.split(";"):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {max(version, VERSION)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def open_state(path: Path) -> State:
    """The state in the file `path`, created if it does not exist (its folder must exist)."""
    return SqlState(SqliteDatabase(path))


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
