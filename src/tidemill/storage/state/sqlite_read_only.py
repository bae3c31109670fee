"""The database of a state in a file that may only be read: on a read-only medium, say, or of another user.

SQLite keeps a log and an index of it beside a database in WAL mode, and cannot open one without them where it
may not create them. If both are there, somebody has the database open, and SQLite reads beside them. If there
is no log, the file alone is the whole state: it is read as it is, and a reader finds out when somebody has
written it meanwhile.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Final, NamedTuple

from tidemill.model.errors import BusyError, DamageError, StorageError
from tidemill.storage.state.database import Connection
from tidemill.storage.state.sqlite import BUSY_SECONDS, VERSION, check_ours, storage_errors

_REFERENCES: Final = "PRAGMA foreign_key_check"
_RECOVER: Final = "`tidemill recover` rebuilds it from the warehouse"
_TRIES: Final = 20  # a log comes or goes while the file is being opened


class _FileVersion(NamedTuple):
    """The database file: another one, or written, if one of the first three differs."""

    number: int
    size: int
    changed: int
    log: bool  # whether there is one with something in it


class ReadOnlySqlite:
    """`Database` on a file that may only be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self.read() as connection:
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()

    @property
    def where(self) -> str:
        return str(self._path)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """BusyError if the file was written while the body read it as it is."""
        with storage_errors(self._path):
            connection, seen = self._opened()
            with closing(connection):
                connection.execute("BEGIN")
                yield connection
        if seen is not None and self._version()[:3] != seen[:3]:
            raise BusyError(
                "the state was written while it was read",
                where=self.where,
                hint="run the same again",
            )

    def write(self, *, lasting: bool = True) -> AbstractContextManager[Connection]:
        raise StorageError(
            "the warehouse may only be read here, and this changes it",
            where=str(self._path.parent),
            hint="run it where the folder is writable; commands that only read, such as query, work here",
        )

    def claim(self, *, lasting: bool = True) -> AbstractContextManager[Connection]:
        return self.write(lasting=lasting)

    def hold(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()

    def trim_log(self) -> None:
        pass  # that of a writer

    def close(self) -> None:
        pass  # each transaction has a connection of its own

    def _opened(self) -> tuple[sqlite3.Connection, _FileVersion | None]:
        """A connection, and the version of a file that is read as it is, without a log."""
        for _ in range(_TRIES):
            seen = self._version()
            connection = self._connect("mode=ro" if seen.log else "mode=ro&immutable=1")
            try:
                version = check_ours(connection, self._path)
            except sqlite3.OperationalError as error:
                connection.close()
                if self._version() == seen:
                    raise self._cannot_open(seen, str(error)) from error
                continue
            except BaseException:
                connection.close()
                raise
            if version < VERSION:
                connection.close()
                raise StorageError(
                    f"state has schema version {version}, and may not be upgraded to {VERSION} here",
                    where=self.where,
                    hint="run `tidemill status` once where its folder is writable",
                )
            return connection, None if seen.log else seen
        raise BusyError("the state is opened and closed all the time", where=self.where, hint="try again")

    def _connect(self, how: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{self._path.absolute().as_uri()}?{how}",
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )

    def _version(self) -> _FileVersion:
        found = self._path.stat()
        try:
            log = self._path.with_name(f"{self._path.name}-wal").stat().st_size > 0
        except FileNotFoundError:
            log = False
        return _FileVersion(found.st_ino, found.st_size, found.st_mtime_ns, log)

    def _cannot_open(self, seen: _FileVersion, why: str) -> StorageError:
        if not seen.log:
            hint = "check that the file may be read"
            return StorageError(f"state cannot be opened for reading: {why}", where=self.where, hint=hint)
        return StorageError(
            f"state has a log (-wal) that belongs to it, which cannot be read here: {why}",
            where=self.where,
            hint="a process died, or the warehouse was copied while in use: run `tidemill status` once where "
            "the folder is writable",
        )


def is_read_only(path: Path) -> bool:
    """Whether there is a state in a file that this process may not write, or not in that folder."""
    return path.exists() and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))


def check_state(path: Path) -> bool:
    """Read the whole file, beside others that use it: pages, rows, indexes and references must fit together.
    DamageError if they do not. (Values that nothing else refers to are compared by `verify`.)"""
    with storage_errors(path), _reading(path) as db:
        (page,) = db.execute("PRAGMA page_size").fetchone()
        found = ["the last page of the file is cut"] if path.stat().st_size % page else []
        found += [str(row[0]) for row in db.execute("PRAGMA integrity_check(1)") if row[0] != "ok"]
        found += [f"a row of {row[0]} refers to one that is gone" for row in db.execute(_REFERENCES)]
    if found:
        raise DamageError(found[0], where=path.name, hint=_RECOVER)
    return True


def _reading(path: Path) -> AbstractContextManager[Connection]:
    if is_read_only(path):
        return ReadOnlySqlite(path).read()
    return closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS))
