"""The two tables that accept writes: raw events and quarantine, and what their parts say of themselves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import pyarrow as pa

from tidemill.formats.declared import RawColumns
from tidemill.model.time import format_instant
from tidemill.raw.footers import declared_by
from tidemill.storage import layout
from tidemill.storage.tables.parts import read_footer
from tidemill.storage.tables.schemas import stored_schema
from tidemill.storage.tables.snapshot import Part, Snapshot
from tidemill.storage.tables.table import Table

INSTANT: Final = pa.timestamp("us", tz="UTC")

RAW: Final = pa.schema(
    [
        pa.field("tenant", pa.string()),
        pa.field("event_time", INSTANT),
        pa.field("event_id", pa.string()),
        pa.field("event_type", pa.string()),
        pa.field("arrival", INSTANT),
        pa.field("watermark", INSTANT),  # of the stream, as it met it; late when event_time <= watermark
        pa.field("slice", pa.string()),
        pa.field("line", pa.int64()),
        pa.field("payload", pa.string()),
    ]
)
DAY_COLUMN: Final = "day"  # of event_time, as 2024-01-15: a folder for each, in tables of former versions
ROW_GROUP: Final = 8_192  # rows: what a search decodes for one event, and what statistics can leave out
RAW_STATS: Final = ("tenant", "event_time", "watermark", "slice")

QUARANTINE: Final = pa.schema(
    [
        pa.field("slice", pa.string()),
        pa.field("line", pa.int64()),
        pa.field("arrival", INSTANT),
        pa.field("outcome", pa.string()),  # rejected | conflict
        pa.field("reason", pa.string()),
        pa.field("detail", pa.string()),
        pa.field("tenant", pa.string()),
        pa.field("event_id", pa.string()),
        pa.field("content_hash", pa.string()),  # of a conflict: its own content, and that of the accepted one
        pa.field("accepted_hash", pa.string()),
        pa.field("payload", pa.binary()),
    ]
)
QUARANTINE_STATS: Final = ("slice", "arrival")


def raw_table(warehouse: Path, stream: str, columns: RawColumns) -> Table:
    """Its parts span days. A table that has a folder for each day keeps that: Delta cannot change it."""
    root = layout.raw(warehouse, stream)
    if (known := Table.existing(root)) is not None:
        show_columns(known, columns)
        return known
    return Table.open(
        root,
        schema=pa.schema([*RAW, *columns.fields]),
        name=f"{stream}_raw",
        description=f"accepted events of {stream}",
    )


def show_columns(raw: Table, columns: RawColumns, now: int = 0) -> None:
    """Have the table show the declared columns, but for those that a part has in another type: Delta knows
    one type of a column. They come back once the part is made again."""
    if not shows_all(raw, columns):
        hidden = _retyped(raw, columns)
        raw.reshape(_schema(raw, [one for one in columns.fields if one.name not in hidden]), now)


def shows_all(raw: Table, columns: RawColumns) -> bool:
    return raw.schema.equals(stored_schema(_schema(raw, columns.fields), ()), check_metadata=True)


def _schema(raw: Table, fields: Sequence[pa.Field]) -> pa.Schema:
    head = [pa.field(DAY_COLUMN, pa.string())] if is_by_day(raw) else []
    return pa.schema([*head, *RAW, *fields])


def _retyped(raw: Table, columns: RawColumns) -> set[str]:
    """Columns that some part has in another type, whatever their case."""
    wanted = {one.name.lower(): one for one in columns.fields}
    found: set[str] = set()
    for path in raw.snapshot().paths([part for part in raw.snapshot().parts if part.rows]):
        said = declared_by(read_footer(path))
        for there in said.fields if said is not None and said.id != columns.id else ():
            mine = wanted.get(there.name.lower())
            if mine is not None and (mine.name != there.name or mine.type != there.type):
                found.add(mine.name)
    return found


def stale_among(snapshot: Snapshot, parts: Sequence[Part], columns: RawColumns) -> list[Part]:
    """Parts whose columns are not those that would be made now."""
    return [
        part for part in parts if part.rows and _declaration(f"{snapshot.root}/{part.path}") != columns.id
    ]


@lru_cache(maxsize=65_536)
def _declaration(path: str) -> str | None:
    """The name of a part has its checksum: what it says once it says always."""
    declared = declared_by(read_footer(path))
    return declared.id if declared is not None else None


def is_by_day(raw: Table) -> bool:
    """Whether each part has to keep to one day."""
    return DAY_COLUMN in raw.partition_by


def partition_at(instant: int, *, by_day: bool) -> dict[str, str]:
    """Where in the table a part belongs whose first event is of this instant."""
    return {DAY_COLUMN: format_instant(instant)[:10]} if by_day else {}


def quarantine_table(warehouse: Path, stream: str) -> Table:
    return Table.open(
        layout.quarantine(warehouse, stream),
        schema=QUARANTINE,
        name=f"{stream}_quarantine",
        description=f"records of {stream} that were not accepted, with the reason",
    )
