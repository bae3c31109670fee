"""The index table of a stream: its columns, the names of its parts, and their footers.

An index part belongs to one raw part and one list of paths, and its name identifies both. Parts are not read
here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from tidemill.storage import layout
from tidemill.storage.tables.footers import Footer, number_in, text_in, texts_in
from tidemill.storage.tables.part_checksums import without_checksums
from tidemill.storage.tables.snapshot import Part
from tidemill.storage.tables.table import Table

BOOLEAN, NULL, NUMBER, STRING = "boolean", "null", "number", "string"
# Kinds of JSON values that can be searched, in the order of the rows.
KINDS: Final = (BOOLEAN, NUMBER, STRING)

INDEX: Final = pa.schema(
    [
        pa.field("path", pa.string()),
        # Null only if an array has one beside values: a condition may then be unknown.
        pa.field("kind", pa.string()),
        pa.field("text", pa.string()),  # of strings, and of booleans: false, true
        pa.field("number", pa.float64()),  # of numbers: the nearest double …
        pa.field("exact", pa.string()),  # … and the exact number if the double is not
        pa.field("row", pa.int32()),  # in the raw part
    ]
)
STATS: Final = ("path", "kind", "text", "number")
GROUP_ROWS: Final = 4096  # rows of a row group at most: what a look-up reads
FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class IndexFooter:
    """The footer of an index part."""

    stream: str
    raw: str  # path of its raw part in the table
    paths: tuple[str, ...]  # the indexed paths, ascending
    rows: int  # of the raw part
    format: int = FORMAT

    def to_footer(self) -> dict[str, object]:
        return {
            "kind": "index",
            "format": self.format,
            "stream": self.stream,
            "raw": self.raw,
            "paths": list(self.paths),
            "rows": self.rows,
        }

    @staticmethod
    def from_footer(footer: Footer) -> IndexFooter:
        return IndexFooter(
            stream=text_in(footer, "stream"),
            raw=text_in(footer, "raw"),
            paths=texts_in(footer, "paths"),
            rows=number_in(footer, "rows"),
            format=number_in(footer, "format"),
        )


def index_table(warehouse: Path, stream: str, partition_by: Sequence[str]) -> Table:
    """The index table, partitioned as raw is: new ones are not, those of earlier versions by day."""
    return Table.open(
        layout.index(warehouse, stream),
        schema=pa.schema([*(pa.field(name, pa.string()) for name in partition_by), *INDEX]),
        partition_by=partition_by,
        name=f"{stream}_index",
        description=f"where indexed attributes of {stream} have which value: rows of parts of raw",
    )


def index_path(raw: Part, paths: Sequence[str]) -> str:
    """The path of the index of a raw part in its table, without checksums: it follows from the part, the
    paths and the format."""
    return in_folder(raw.partition, index_name(raw, paths))


def in_folder(partition: Mapping[str, str], name: str) -> str:
    return "".join(f"{column}={value}/" for column, value in partition.items()) + name


def index_name(raw: Part, paths: Sequence[str]) -> str:
    identity = json.dumps([FORMAT, raw.path, raw.size, raw.rows, sorted(set(paths))])
    digest = hashlib.blake2b(identity.encode(), digest_size=6).hexdigest()
    return f"{Path(without_checksums(raw.path)).stem}-{digest}.parquet"
