"""Finds deleted or damaged parts of results, and removes them from the table.

The next refresh makes what is missing again from raw, as after any other loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidemill.ingest.expiry_log import DATASETS, RAW
from tidemill.model.errors import StorageError
from tidemill.model.streaming import Close, WindowSpec
from tidemill.model.time import MIN_INSTANT, Interval
from tidemill.storage.bucket_path import warehouse_path
from tidemill.storage.leases import tenure_of
from tidemill.storage.tables.parts import read_footer
from tidemill.storage.tables.snapshot import Part
from tidemill.storage.tables.table import Table


@dataclass(frozen=True, slots=True)
class DamagedPart:
    part: Part
    what: str
    readable: bool = False  # it has another size, but is valid Parquet


def damaged_parts(table: Table, *, read: bool) -> list[DamagedPart]:
    """Parts that are missing or differ in size from what was committed; with `read` also those that are not
    valid Parquet. Without it, those of a bucket that were found intact in the same tenure are skipped."""
    snapshot, known = table.snapshot(), tenure_of(table.root)
    intact = known.intact.get(table.root, frozenset()) if known is not None and not read else frozenset()
    found = []
    for part, path in zip(snapshot.parts, snapshot.paths(), strict=True):
        if part.path in intact:
            continue
        what, unreadable = _size_damage(warehouse_path(path), part.size), None
        if read:
            unreadable = _unreadable(path)
        if what is not None or unreadable is not None:
            found.append(DamagedPart(part, unreadable or what or "", readable=read and unreadable is None))
    if known is not None:
        damaged = {one.part.path for one in found}
        known.intact[table.root] = frozenset(part.path for part in snapshot.parts) - damaged
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


def sealed_before(spec: WindowSpec, horizons: Mapping[str, int]) -> int | None:
    """Windows that begin before this instant are never computed again: what they are made of has expired."""
    kinds = (RAW, DATASETS) if spec.close is Close.COMPLETE else (RAW,)
    return max((horizons[kind] for kind in kinds if kind in horizons), default=None)


def lost_span(part: Part, sealed: int) -> Interval | None:
    """The time of the windows in a damaged part whose results cannot be computed again; None: all can."""
    first, last = part.mins.get("start"), part.maxs.get("end")
    start = first if isinstance(first, int) else MIN_INSTANT
    end = min(last, sealed) if isinstance(last, int) else sealed
    return Interval(start, end) if start < end else None


def leave_out(root: Path, damaged: Sequence[DamagedPart], now: int) -> None:
    """Remove these parts from the table."""
    table = Table.existing(root)
    assert table is not None, root
    table.commit([], [one.part for one in damaged], info={"damaged": str(len(damaged))}, now=now)
