"""The two tables that accept writes: raw events and quarantine, and the declarations of their parts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import pyarrow as pa

from tidemill.formats.declared_columns import RawColumns
from tidemill.model.errors import DamageError
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
        # of the stream when the row was accepted; the row is late if event_time <= watermark
        pa.field("watermark", INSTANT),
        pa.field("slice", pa.string()),
        pa.field("line", pa.int64()),
        pa.field("payload", pa.string()),
    ]
)
DAY_COLUMN: Final = "day"  # the day of event_time, as 2024-01-15: the partition in tables of earlier versions
ROW_GROUP: Final = 8_192  # rows of a row group: what a search decodes for one event
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
    """The raw table. Its parts span days; an existing table that is partitioned by day stays so, since Delta
    cannot change it."""
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
    """Add the declared columns to the schema of the table, except those that a part has in another type: in
    Delta a column has one type. They are added once the part is rewritten."""
    if not shows_all(raw, columns):
        hidden = retyped(raw.snapshot(), raw.schema, columns)
        raw.reshape(_schema(raw, [one for one in columns.fields if one.name not in hidden]), now)


def shows_all(raw: Table, columns: RawColumns) -> bool:
    return raw.schema.equals(stored_schema(_schema(raw, columns.fields), ()), check_metadata=True)


def _schema(raw: Table, fields: Sequence[pa.Field]) -> pa.Schema:
    head = [pa.field(DAY_COLUMN, pa.string())] if is_by_day(raw) else []
    return pa.schema([*head, *RAW, *fields])


def retyped(snapshot: Snapshot, schema: pa.Schema, columns: RawColumns) -> set[str]:
    """Columns that some part has in another type; names are compared without case. A part that cannot be read
    has what the `schema` of the table shows, and may have all else in another type."""
    fields = {one.name.lower(): one for one in columns.fields}
    shown = {one.name: one.type for one in schema}
    found: set[str] = set()
    for path in snapshot.paths([part for part in snapshot.parts if part.rows]):
        try:
            declaration = declared_by(read_footer(path))
        except DamageError:  # the table must open all the same: repair removes the part
            declared = stored_schema(pa.schema(columns.fields), ())
            found |= {one.name for one in declared if shown.get(one.name) != one.type}
            continue
        for there in declaration.fields if declaration is not None and declaration.id != columns.id else ():
            field = fields.get(there.name.lower())
            if field is not None and (field.name != there.name or field.type != there.type):
                found.add(field.name)
    return found


def stale_among(snapshot: Snapshot, parts: Sequence[Part], columns: RawColumns) -> list[Part]:
    """Parts whose columns differ from those that would be written now."""
    return [
        part for part in parts if part.rows and _declaration(f"{snapshot.root}/{part.path}")[0] != columns.id
    ]


def unfit_among(snapshot: Snapshot, parts: Sequence[Part], columns: RawColumns) -> dict[str, list[Part]]:
    """By field, the parts that are made by this declaration and have a value that its column cannot hold."""
    found: dict[str, list[Part]] = {}
    for part in parts:
        made_by, misfits = _declaration(f"{snapshot.root}/{part.path}") if part.rows else (None, frozenset())
        for name in sorted(misfits) if made_by == columns.id else ():
            found.setdefault(name, []).append(part)
    return found


@lru_cache(maxsize=65_536)
def _declaration(path: str) -> tuple[str | None, frozenset[str]]:
    """The declaration of a part, and the fields with values that its columns cannot hold. (Cached for good:
    the name of a part includes its checksum.)"""
    declared = declared_by(read_footer(path))
    return (declared.id, declared.misfits) if declared is not None else (None, frozenset())


def is_by_day(raw: Table) -> bool:
    """Whether each part must be within one day."""
    return DAY_COLUMN in raw.partition_by


def partition_at(instant: int, *, by_day: bool) -> dict[str, str]:
    """The partition of a part whose first event is at this instant."""
    return {DAY_COLUMN: format_instant(instant)[:10]} if by_day else {}


def quarantine_table(warehouse: Path, stream: str) -> Table:
    return Table.open(
        layout.quarantine(warehouse, stream),
        schema=QUARANTINE,
        name=f"{stream}_quarantine",
        description=f"records of {stream} that were not accepted, with the reason",
    )
