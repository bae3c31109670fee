"""The two tables that accept writes: raw events and quarantine, and what their parts say of themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow as pa

from tidemill.lake.table import Table

INSTANT: Final = pa.timestamp("us", tz="UTC")

RAW: Final = pa.schema(
    [
        pa.field("day", pa.string()),  # of event_time, as 2024-01-15
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
    return Table.open(
        warehouse / "raw" / stream,
        schema=RAW,
        partition_by=("day",),
        name=f"{stream}_raw",
        description=f"accepted events of {stream}, payload verbatim",
    )


def quarantine_table(warehouse: Path, stream: str) -> Table:
    return Table.open(
        warehouse / "quarantine" / stream,
        schema=QUARANTINE,
        name=f"{stream}_quarantine",
        description=f"records of {stream} that were not accepted, with the reason",
    )
