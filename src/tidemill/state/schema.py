"""The tables of `state.db`, their version, and how a connection to them is opened.

Nothing here knows what the rows mean; a file written by a newer Tidemill is refused, never touched.
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

VERSION: Final = 1
APPLICATION: Final = 0x7469_6465  # "tide", in the file's header: a foreign file is never written to
BUSY_SECONDS: Final = 30.0

_TABLES: Final = """
CREATE TABLE slices (
    seq            INTEGER PRIMARY KEY,
    id             TEXT NOT NULL UNIQUE,
    stream         TEXT NOT NULL,
    source         TEXT NOT NULL,
    name           TEXT NOT NULL,
    format         TEXT NOT NULL,
    codec          TEXT NOT NULL,
    path           TEXT NOT NULL,
    size           INTEGER NOT NULL,
    arrival        INTEGER NOT NULL,
    declared_start INTEGER,
    declared_end   INTEGER,
    status         TEXT NOT NULL,
    records        INTEGER NOT NULL,
    accepted       INTEGER NOT NULL,
    duplicate      INTEGER NOT NULL,
    conflict       INTEGER NOT NULL,
    rejected       INTEGER NOT NULL,
    late           INTEGER NOT NULL,
    rejects        TEXT NOT NULL,
    observed_start INTEGER,
    observed_end   INTEGER,
    watermark      INTEGER,
    batch          TEXT,
    error          TEXT,
    landings       INTEGER NOT NULL
);
CREATE INDEX slices_by_stream ON slices (stream, seq);
CREATE INDEX slices_by_status ON slices (stream, status, seq);

CREATE TABLE totals (
    stream TEXT NOT NULL,
    name   TEXT NOT NULL,
    value  INTEGER NOT NULL,
    PRIMARY KEY (stream, name)
) WITHOUT ROWID;

CREATE TABLE batches (
    stream TEXT NOT NULL,
    batch  TEXT NOT NULL,
    PRIMARY KEY (stream, batch)
) WITHOUT ROWID;

CREATE TABLE versions (
    stream  TEXT NOT NULL,
    part_of TEXT NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (stream, part_of)
) WITHOUT ROWID;

CREATE TABLE clocks (
    stream    TEXT NOT NULL,
    source    TEXT NOT NULL,
    max_seen  INTEGER NOT NULL,
    watermark INTEGER NOT NULL,
    PRIMARY KEY (stream, source)
) WITHOUT ROWID;

CREATE TABLE runs (
    stream TEXT NOT NULL,
    place  INTEGER NOT NULL,
    name   TEXT NOT NULL,
    PRIMARY KEY (stream, place),
    UNIQUE (stream, name)
) WITHOUT ROWID;

CREATE TABLE tiles (
    stream   TEXT NOT NULL,
    level    TEXT NOT NULL,
    start    INTEGER NOT NULL,
    desired  TEXT,
    hash     TEXT,
    revision INTEGER NOT NULL,
    part     TEXT,
    rows     INTEGER NOT NULL,
    PRIMARY KEY (stream, level, start)
) WITHOUT ROWID;
CREATE INDEX tiles_stale ON tiles (stream, start) WHERE level = '5s' AND desired IS NOT hash;

CREATE TABLE tile_slices (
    stream   TEXT NOT NULL,
    start    INTEGER NOT NULL,
    slice    INTEGER NOT NULL REFERENCES slices (seq),
    desired  INTEGER NOT NULL,
    observed INTEGER NOT NULL,
    PRIMARY KEY (stream, start, slice)
) WITHOUT ROWID;
"""


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Whatever SQLite raises, as an error that says what can be done about it."""
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
            f"state can not be used: {text}", where=str(path), hint="check that folder and file are writable"
        ) from error
    except OSError as error:
        raise StorageError(
            f"state can not be used: {error.strerror or error}",
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
    """A connection in autocommit mode (transactions are opened by name), to a new file if need be."""
    with storage_errors(path):
        if not path.exists():
            _create(path)
        connection = _open(path)
        try:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
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
    """Make the file whole under another name first: two processes that both create it can not meet half
    of it, and the switch to WAL, for which SQLite does not wait, is done before anybody else looks."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        connection = _open(draft)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(
                f"BEGIN; {_TABLES} PRAGMA application_id = {APPLICATION};"
                f" PRAGMA user_version = {VERSION}; COMMIT;"
            )
        finally:
            connection.close()
        try:
            os.link(draft, path)
        except FileExistsError:
            return  # another process was first
        except OSError:  # no hard links here; the window between two creators is small but open
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
    """The file is ours and of the version this code writes."""
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
