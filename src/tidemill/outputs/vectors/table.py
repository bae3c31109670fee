"""The chain table of a stream: its columns, its buckets, and the footers of its parts.

All deltas and checkpoints of a vector are in one bucket, sorted by (tenant, vector, ts, delta). Parts are not
read here.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from tidemill.storage import layout
from tidemill.storage.tables.footers import Footer, number_in, optional_number_in, text_in
from tidemill.storage.tables.snapshot import Part
from tidemill.storage.tables.table import Table

BUCKETS: Final = 16
CHECKPOINT, DELTA = "checkpoint", "delta"
INSTANT: Final = pa.timestamp("us", tz="UTC")
VERSION: Final = 2  # of the footers and of the assignment of vectors to buckets

CHAIN: Final = pa.schema(
    [
        pa.field("bucket", pa.string()),
        pa.field("tenant", pa.string()),
        pa.field("vector_id", pa.string()),
        pa.field("kind", pa.string()),  # checkpoint: the vector itself, as a `replace` (or `delete`)
        pa.field("ts", INSTANT),  # for a checkpoint, as delta_id: of the last delta in it
        pa.field("delta_id", pa.string()),
        pa.field("op", pa.string()),
        pa.field("indices", pa.list_(pa.int32())),  # null: all components
        pa.field("values", pa.list_(pa.float64())),
        pa.field("merged", pa.int64()),  # how many deltas a checkpoint contains; 1 for a delta
        pa.field("first_ts", INSTANT),  # of the first of them
        pa.field("left_out", pa.int64()),  # how many of them were not applied to keep components finite
    ]
)
ROWS: Final = CHAIN.remove(0)  # the columns of a part
STATS: Final = ("tenant", "vector_id", "ts")


def chain_table(warehouse: Path, stream: str) -> Table:
    return Table.open(
        layout.chains(warehouse, stream),
        schema=CHAIN,
        partition_by=("bucket",),
        name=f"{stream}_chains",
        description=f"the vectors of {stream}: checkpoints, and the deltas since",
    )


def bucket_of(vector_id: str) -> str:
    """The bucket of a vector; vectors with the same id of all tenants are in one."""
    digest = hashlib.md5(vector_id.encode(), usedforsecurity=False).digest()
    return f"{digest[0] % BUCKETS:02d}"


def in_bucket(part: Part) -> str:
    return part.partition["bucket"]


@dataclass(frozen=True, slots=True)
class Made:
    """What the table was made from when a part was written: the accepted slices of the stream up to a ledger
    offset. It holds for the whole table, so the newest part counts."""

    through: int = 0
    hash: str = ""


@dataclass(frozen=True, slots=True)
class ChainFooter:
    """The footer of a part."""

    bucket: str
    made: Made
    checkpoints: int
    pending: int
    checkpoints_until: int | None  # no checkpoint of the part is later; None: it has none
    overflowed: int  # checkpoints with a component that is not finite, or was prevented from that
    declared: str  # hash of the declaration that its chains were made for; empty: unknown
    format: int = VERSION

    def to_footer(self) -> dict[str, object]:
        return {
            "kind": "chain",
            "format": self.format,
            "bucket": self.bucket,
            "through": self.made.through,
            "hash": self.made.hash,
            "checkpoints": self.checkpoints,
            "pending": self.pending,
            "checkpoints_until": self.checkpoints_until,
            "overflowed": self.overflowed,
            "declared": self.declared,
        }

    @staticmethod
    def from_footer(footer: Footer) -> ChainFooter:
        """Read a footer. Earlier versions lack the counts and the declaration."""
        return ChainFooter(
            bucket=text_in(footer, "bucket", ""),
            made=Made(number_in(footer, "through", 0), text_in(footer, "hash", "")),
            checkpoints=number_in(footer, "checkpoints", 0),
            pending=number_in(footer, "pending", 0),
            checkpoints_until=optional_number_in(footer, "checkpoints_until"),
            overflowed=number_in(footer, "overflowed", 0),
            declared=text_in(footer, "declared", ""),
            format=number_in(footer, "format", 1),
        )
