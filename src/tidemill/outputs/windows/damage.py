"""Parts of results that somebody deleted or damaged: found, and left out so that they are made again.

It makes nothing itself: what is missing comes from raw with the next refresh, as after any other loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidemill.model.errors import StorageError
from tidemill.storage.tables.parts import read_footer
from tidemill.storage.tables.snapshot import Part
from tidemill.storage.tables.table import Table


@dataclass(frozen=True, slots=True)
class DamagedPart:
    part: Part
    what: str
    readable: bool = False  # it has another size, and is Parquet all the same


def damaged_parts(table: Table, *, read: bool) -> list[DamagedPart]:
    """Parts that are missing or of another size than was committed; with `read` also those that are no
    Parquet any more."""
    snapshot = table.snapshot()
    found = []
    for part, path in zip(snapshot.parts, snapshot.paths(), strict=True):
        what, unreadable = _size_damage(Path(path), part.size), None
        if read:
            unreadable = _unreadable(path)
        if what is not None or unreadable is not None:
            found.append(DamagedPart(part, unreadable or what or "", readable=read and unreadable is None))
    return found


def _size_damage(path: Path, size: int) -> str | None:
    try:
        has = path.stat().st_size
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return None if has == size else f"has {has} bytes, and {size} were written"


def _unreadable(path: str) -> str | None:
    try:
        read_footer(path)
    except StorageError as error:
        return f"cannot be read: {error.message}"
    return None


def leave_out(root: Path, damaged: Sequence[DamagedPart], now: int) -> None:
    """Readers of the table do without these parts from now on."""
    table = Table.existing(root)
    assert table is not None, root
    table.commit([], [one.part for one in damaged], info={"damaged": str(len(damaged))}, now=now)
