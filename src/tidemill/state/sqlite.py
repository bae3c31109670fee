"""The state of a warehouse in one SQLite file: WAL, full sync, every method one transaction.

It never holds a fact that the warehouse does not also hold, and never keeps one in memory: threads
and processes may open the same file side by side.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from tidemill.model.errors import InputError, StorageError
from tidemill.model.levels import BASE
from tidemill.model.slices import NewSlice, SliceEntry, SliceStatus
from tidemill.model.tiles import BaseTile, TileState
from tidemill.model.time import Interval
from tidemill.state import acts
from tidemill.state.acts import ENTRY, TILE
from tidemill.state.protocol import BatchRecord, ClockState, State, TileBuild
from tidemill.state.rows import TOTALS, from_row
from tidemill.state.schema import connect, storage_errors

STALE: Final = f"level = '{BASE.name}' AND desired IS NOT hash"  # as the partial index says it, so it is used


def open_state(path: Path) -> State:
    """The state kept in the file `path`, made when it is not there (its folder must be)."""
    return SqliteState(path)


class SqliteState:
    """`State` on SQLite. Connections are pooled: as many as there are calls at the same moment."""

    def __init__(self, path: Path) -> None:
        if not path.parent.is_dir():
            raise StorageError(
                "the folder of the state does not exist", where=str(path), hint="create the warehouse first"
            )
        self._path = path
        self._idle: list[sqlite3.Connection] = []
        self._guard = threading.Lock()
        self._closed = False
        self._give_back(connect(path))

    def enter(self, new: NewSlice) -> SliceEntry:
        return self.enter_all([new])[0]

    def enter_all(self, news: Sequence[NewSlice]) -> list[SliceEntry]:
        with self._write() as db:
            return [acts.enter(db, new) for new in news]

    def landings(self) -> int:
        with self._read() as db:
            total = db.execute("SELECT coalesce(sum(value), 0) FROM totals WHERE name = 'landings'")
            return int(total.fetchone()[0])

    def slice(self, id_or_prefix: str) -> SliceEntry | None:
        prefix = id_or_prefix.strip().lower()
        if not prefix:
            raise InputError("a slice is named by its id", hint="give the id, or the first characters of it")
        with self._read() as db:
            found = db.execute(
                f"SELECT {ENTRY} FROM slices WHERE id >= ? AND id < ? ORDER BY id LIMIT 5",
                (prefix, prefix + "\U0010ffff"),
            ).fetchall()
        entries = [from_row(row) for row in found]
        if not entries or entries[0].id == prefix:
            return entries[0] if entries else None
        if len(entries) > 1:
            names = ", ".join(entry.id[: len(prefix) + 8] for entry in entries)
            raise InputError(f"several slice ids start with {prefix!r}", hint=f"give more of one: {names}")
        return entries[0]

    def slice_at(self, seq: int) -> SliceEntry | None:
        with self._read() as db:
            row = db.execute(f"SELECT {ENTRY} FROM slices WHERE seq = ?", (seq,)).fetchone()
        return from_row(row) if row else None

    def slices(
        self,
        stream: str | None = None,
        status: SliceStatus | None = None,
        *,
        newest: bool = False,
        limit: int | None = None,
    ) -> list[SliceEntry]:
        wanted = {"stream": stream, "status": status.value if status else None}
        given = {column: value for column, value in wanted.items() if value is not None}
        where = " AND ".join(f"{column} = ?" for column in given) or "true"
        order = "DESC" if newest else "ASC"
        with self._read() as db:
            rows = db.execute(
                f"SELECT {ENTRY} FROM slices WHERE {where} ORDER BY seq {order} LIMIT ?",
                (*given.values(), -1 if limit is None else limit),
            ).fetchall()
        return [from_row(row) for row in rows]

    def pending(self, stream: str, max_bytes: int) -> list[SliceEntry]:
        taken: list[SliceEntry] = []
        with self._read() as db:
            rows = db.execute(
                f"SELECT {ENTRY} FROM slices WHERE stream = ? AND status = 'pending' ORDER BY seq", (stream,)
            )
            for row in rows:
                entry = from_row(row)
                max_bytes -= entry.slice.size
                if taken and max_bytes < 0:
                    break
                taken.append(entry)
        return taken

    def totals(self, stream: str) -> Mapping[str, int]:
        with self._read() as db:
            rows = db.execute("SELECT name, value FROM totals WHERE stream = ?", (stream,)).fetchall()
        return dict.fromkeys(TOTALS, 0) | dict(rows)

    def apply_batch(self, record: BatchRecord) -> bool:
        with self._write() as db:
            return acts.apply_batch(db, record)

    def has_batch(self, stream: str, batch: str) -> bool:
        with self._read() as db:
            return acts.has_batch(db, stream, batch)

    def clocks(self, stream: str) -> list[ClockState]:
        with self._read() as db:
            rows = db.execute(
                "SELECT source, max_seen, watermark FROM clocks WHERE stream = ? ORDER BY source", (stream,)
            ).fetchall()
        return [ClockState(*row) for row in rows]

    def runs(self, stream: str) -> list[str]:
        with self._read() as db:
            return acts.runs(db, stream)

    def replace_runs(self, stream: str, old: Sequence[str], new: Sequence[str]) -> bool:
        with self._write() as db:
            present = acts.runs(db, stream)
            gone = set(old)
            if not gone <= set(present):
                return False
            place = next((i for i, name in enumerate(present) if name in gone), len(present))
            kept = [name for name in present[place:] if name not in gone]
            db.execute("DELETE FROM runs WHERE stream = ? AND place >= ?", (stream, place))
            acts.append_runs(db, stream, place, [*new, *kept])
            return True

    def table_versions(self, stream: str) -> Mapping[str, int]:
        with self._read() as db:
            rows = db.execute("SELECT part_of, version FROM versions WHERE stream = ?", (stream,)).fetchall()
        return dict(rows)

    def stale_tiles(self, stream: str) -> list[BaseTile]:
        with self._read() as db:
            rows = db.execute(
                f"SELECT {TILE} FROM tiles INDEXED BY tiles_stale WHERE {STALE} AND stream = ?"
                " ORDER BY start",
                (stream,),
            ).fetchall()
            return [acts.base_tile(db, stream, row) for row in rows]

    def base_tile(self, stream: str, start: int) -> BaseTile | None:
        with self._read() as db:
            row = db.execute(
                f"SELECT {TILE} FROM tiles WHERE stream = ? AND level = ? AND start = ?",
                (stream, BASE.name, start),
            ).fetchone()
            return acts.base_tile(db, stream, row) if row else None

    def tiles(self, stream: str, level: str, span: Interval | None = None) -> list[TileState]:
        low, high = (span.start, span.end) if span else (-(1 << 63), (1 << 63) - 1)
        with self._read() as db:
            rows = db.execute(
                f"SELECT {TILE} FROM tiles WHERE stream = ? AND level = ? AND start >= ? AND start < ?"
                " AND hash IS NOT NULL ORDER BY start",
                (stream, level, low, high),
            ).fetchall()
        return [acts.tile_state(row) for row in rows]

    def tile_counts(self, stream: str) -> Mapping[str, int]:
        with self._read() as db:
            return dict(
                db.execute(
                    "SELECT level, count(*) FROM tiles WHERE stream = ? AND hash IS NOT NULL GROUP BY level",
                    (stream,),
                ).fetchall()
            )

    def apply_tiles(self, stream: str, version: int, builds: Iterable[TileBuild]) -> None:
        with self._write() as db:
            for build in builds:
                acts.apply_tile(db, stream, build)
            acts.saw_version(db, stream, "rollups", version)

    def restore(self, entries: Sequence[SliceEntry], records: Sequence[BatchRecord]) -> None:
        with self._write() as db:
            for table in ("slices", "batches", "tiles"):
                if db.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone():
                    raise StorageError(
                        "only an empty state can be restored",
                        where=str(self._path),
                        hint="move the file away first; `tidemill recover` does it",
                    )
            for entry in sorted(entries, key=lambda entry: entry.seq):
                acts.insert(db, entry)
            for record in records:
                acts.apply_batch(db, record)

    def dump(self) -> dict[str, list[dict[str, object]]]:
        with self._read() as db:
            tables = {
                "slices": "SELECT * FROM slices ORDER BY seq",
                "totals": "SELECT * FROM totals WHERE value != 0 ORDER BY stream, name",
                "batches": "SELECT * FROM batches ORDER BY stream, batch",
                "versions": "SELECT * FROM versions ORDER BY stream, part_of",
                "clocks": "SELECT * FROM clocks ORDER BY stream, source",
                "runs": "SELECT * FROM runs ORDER BY stream, place",
                "tiles": "SELECT * FROM tiles ORDER BY stream, level, start",
                "tile_slices": "SELECT t.stream, t.start, s.id AS slice, t.desired, t.observed"
                " FROM tile_slices t JOIN slices s ON s.seq = t.slice ORDER BY t.stream, t.start, s.id",
            }
            dumped: dict[str, list[dict[str, object]]] = {}
            for table, query in tables.items():
                rows = db.execute(query)
                columns = [column[0] for column in rows.description]
                dumped[table] = [dict(zip(columns, row, strict=True)) for row in rows]
            return dumped

    def close(self) -> None:
        with self._guard:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        connection = self._take()
        with storage_errors(self._path):
            try:
                connection.execute(begin)
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:  # a full disk may have rolled it back already
                        connection.execute("ROLLBACK")
                    raise
            finally:
                self._give_back(connection)

    def _read(self) -> AbstractContextManager[sqlite3.Connection]:
        """A consistent look: all statements inside see one commit."""
        return self._transaction("BEGIN")

    def _write(self) -> AbstractContextManager[sqlite3.Connection]:
        return self._transaction("BEGIN IMMEDIATE")

    def _take(self) -> sqlite3.Connection:
        with self._guard:
            if self._closed:
                raise StorageError("state is closed", where=str(self._path), hint="open the warehouse again")
            if self._idle:
                return self._idle.pop()
        return connect(self._path)

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._guard:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()
