"""Writing one immutable Parquet part into staging, and reading back what a part says of itself.

The hot path of every build: no copies that are not needed. Nothing here knows the Delta log, and a
part written here is invisible until its table publishes and commits it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tidemill.model.errors import StorageError
from tidemill.storage.files import storage_errors, sync_file
from tidemill.storage.tables.stats import delta_stats

if TYPE_CHECKING:
    import pyarrow.parquet as pq  # imported where a file is opened: a query reads its files with DuckDB

FOOTER_KEY: Final = b"tidemill"
DAMAGED: Final = "`tidemill verify` says what is damaged; restore it, then run the same again"


@dataclass(frozen=True, slots=True)
class StagedPart:
    """A part whose bytes are durable in staging."""

    path: str  # absolute, in staging
    name: str  # its file name once published
    partition: tuple[tuple[str, str], ...]
    rows: int
    size: int
    stats: str  # Delta's JSON


def write_part(
    folder: Path,
    name: str,
    table: pa.Table,
    *,
    partition: Mapping[str, str],
    footer: Mapping[str, object],
    stats_columns: Sequence[str],
    row_group_rows: int = 131_072,
    row_groups: Sequence[int] = (),
    dictionary: Sequence[str] = (),
    level: int = 1,
    order: pa.Array | None = None,
) -> StagedPart:
    """Write `table` as zstd Parquet to `folder`/`name` and return once its bytes are on disk.

    The same columns, footer and options give the same bytes, however the table is chunked. Columns named
    in `partition` are left out of the file, as Delta wants it. Row groups have `row_group_rows` rows each, or
    begin at the rows that `row_groups` names (ascending, 0 first). With `order` (the places of all rows) they
    are written in that order, in which they never stand in memory as a whole. The name itself is durable only
    once the folder is synced, which `Table.publish` does for the final one.
    """
    assert "/" not in name, name
    assert not name.startswith((".", "_")), name  # readers skip such files
    import pyarrow.parquet as pq

    table = _checked(table.drop_columns([column for column in partition if column in table.column_names]))
    encoded = [
        field.name for field in table.schema if field.name in dictionary or pa.types.is_dictionary(field.type)
    ]
    stats = delta_stats(table, stats_columns)
    target, temporary = folder / name, folder / f".{name}.tmp"
    with storage_errors("write the part", target):
        try:
            with (
                pa.OSFile(str(temporary), "wb") as sink,
                pq.ParquetWriter(
                    sink,
                    table.schema,
                    compression="zstd",
                    compression_level=level,
                    use_dictionary=encoded or False,
                    write_statistics=list(stats_columns) or False,
                    store_schema=False,  # an Arrow schema would make readers see dictionary types
                ) as writer,
            ):
                starts = row_groups or range(0, table.num_rows, row_group_rows)
                for start, end in pairwise([*starts, table.num_rows]):
                    # one chunk per column and row group: chunk borders would move page borders
                    rows = table if order is None else table.take(order.slice(start, end - start))
                    group = (rows.slice(start, end - start) if order is None else rows).combine_chunks()
                    writer.write_table(group, end - start)
                text = json.dumps(footer, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
                writer.add_key_value_metadata({FOOTER_KEY: text.encode()})
            sync_file(temporary)
            size = temporary.stat().st_size
            temporary.replace(target)
        except (OSError, StorageError):
            temporary.unlink(missing_ok=True)
            raise
    return StagedPart(
        path=str(target.absolute()),
        name=name,
        partition=tuple(partition.items()),
        rows=table.num_rows,
        size=size,
        stats=stats,
    )


def _checked(table: pa.Table) -> pa.Table:
    for field in table.schema:
        if pa.types.is_timestamp(field.type):
            assert (field.type.unit, field.type.tz) == ("us", "UTC"), field
    return table.replace_schema_metadata(None)


@contextmanager
def open_part(
    path: str,
    dictionary: Sequence[str] = (),
    *,
    hint: str = DAMAGED,
    metadata: pq.FileMetaData | None = None,
) -> Iterator[pq.ParquetFile]:
    """A part, to be read piece by piece; StorageError with the hint when it cannot be. Who has read its
    metadata before hands it in."""
    import pyarrow.parquet as pq

    with storage_errors("read the part", path):
        try:
            # Column chunks are streamed: the size of a row group does not matter for memory.
            with pq.ParquetFile(
                path, metadata=metadata, read_dictionary=list(dictionary), buffer_size=1 << 20
            ) as file:
                yield file
        except pa.ArrowInvalid as error:
            raise StorageError(
                f"the part cannot be read: {str(error).splitlines()[0]}", hint=hint, where=path
            ) from error


def read_footer(path: Path | str) -> dict[str, object]:
    """What the part was made of, as its writer said; StorageError when it is not one of ours."""
    footer = _footer(path)
    if footer is None:
        raise StorageError(
            "the file is not a part that Tidemill wrote",
            hint="move it out of the warehouse, or run `tidemill verify`",
            where=str(path),
        )
    return footer


def is_ours(path: Path | str) -> bool:
    return _footer(path) is not None


def _footer(path: Path | str) -> dict[str, object] | None:
    import pyarrow.parquet as pq

    with storage_errors("read the part", path):
        try:
            metadata = pq.read_metadata(path).metadata or {}
        except pa.ArrowInvalid:
            return None
    if FOOTER_KEY not in metadata:
        return None
    footer = json.loads(metadata[FOOTER_KEY])
    assert isinstance(footer, dict), path
    return footer
