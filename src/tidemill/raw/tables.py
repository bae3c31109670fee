"""The two tables that accept writes: raw events and quarantine, and what their parts say of themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow as pa

from tidemill.model.time import format_instant
from tidemill.storage import layout
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


def raw_table(warehouse: Path, stream: str) -> Table:
    """Its parts span days. A table that has a folder for each day keeps that: Delta cannot change it."""
    root = layout.raw(warehouse, stream)
    known = Table.existing(root)
    by_day = known is not None and is_by_day(known)
    return Table.open(
        root,
        schema=pa.schema([pa.field(DAY_COLUMN, pa.string()), *RAW]) if by_day else RAW,
        partition_by=(DAY_COLUMN,) if by_day else (),
        name=f"{stream}_raw",
        description=f"accepted events of {stream}, payload verbatim",
    )


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
