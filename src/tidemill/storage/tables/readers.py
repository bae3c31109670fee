"""Snapshots of the tables of a warehouse, for readers in any number of threads.

It never writes, and gives out only snapshots: a table itself is for one thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.storage.tables.snapshot import Snapshot
    from tidemill.storage.tables.table import Table


from tidemill.storage import layout

# Imports inside functions keep start-up short: a mill that reads no table loads no Arrow.

_REPLACEABLE: Final = ("index", "chains")  # readers can do without them, from raw


@dataclass(slots=True)
class _OpenTable:
    """One table, and the lock for refreshing it."""

    guard: threading.Lock = field(default_factory=threading.Lock)
    table: Table | None = None


class TableReaders:
    """Snapshots by the kind of table and its stream. Waiting for one table does not block another.

    `committed` gives the versions of a stream's tables that are known to have been committed, by kind: a
    table never goes back, so an older one has lost entries of its log.
    """

    def __init__(self, warehouse: Path, committed: Callable[[str], Mapping[str, int]]) -> None:
        self._warehouse = warehouse
        self._committed = committed
        self._guard = threading.Lock()
        self._tables: dict[tuple[str, str], _OpenTable] = {}

    def snapshot(self, kind: layout.TableKind, stream: str) -> Snapshot | None:
        """The newest version; None before the first write. DamageError if it is older than one that was
        committed."""
        found = self.described(kind, stream)
        return None if found is None else found[0]

    def described(self, kind: layout.TableKind, stream: str) -> tuple[Snapshot, pa.Schema] | None:
        """The same, with the columns that the table has at that version."""
        from tidemill.storage.tables.table import Table, expect_version

        committed = self._committed(stream).get(kind, 0)  # before the table, which can only be ahead
        root = layout.table(self._warehouse, kind, stream)
        with self._guard:
            entry = self._tables.setdefault((kind, stream), _OpenTable())
        with entry.guard:
            if entry.table is None:
                entry.table = Table.existing(root)
            else:
                entry.table.refresh()
            if kind not in _REPLACEABLE:
                expect_version(root, entry.table, committed)
            return None if entry.table is None else (entry.table.snapshot(), entry.table.schema)

    def forget(self, stream: str) -> None:
        """Close the tables of a stream; they are opened again when needed."""
        with self._guard:
            for key in [key for key in self._tables if key[1] == stream]:
                del self._tables[key]
