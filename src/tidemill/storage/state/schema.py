"""Opens connections to `state.db`; creates a new file and upgrades an older one.

Nothing here knows what the rows mean. A file written by a newer Tidemill is refused and never changed.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tidemill.model.errors import BusyError, StorageError
from tidemill.storage.state.ddl import VERSIONS

VERSION: Final = len(VERSIONS)
APPLICATION: Final = 0x7469_6465  # "tide", in the file's header: a foreign file is never written to
BUSY_SECONDS: Final = 30.0
LOG_BYTES: Final = 1 << 20  # bytes that the write-ahead log keeps on disk after a checkpoint


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
        raise StorageError(
            f"state cannot be used: {text}", where=str(path), hint="check that folder and file are writable"
        ) from error
    except OSError as error:
        raise StorageError(
            f"state cannot be used: {error.strerror or error}",
            where=str(path),
            hint="check that there is space and that folder and file are writable",
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
    """Check that the file is ours and has the version that this code writes."""
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
    if version < VERSION:
        _upgrade(connection)


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
