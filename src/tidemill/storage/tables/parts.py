"""Writes one immutable Parquet part to staging, and reads parts and their footers.

On the hot path of every build: no unnecessary copies. A part written here is invisible until its table
publishes and commits it.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tidemill.model.errors import DamageError
from tidemill.storage.bucket_path import local_copy
from tidemill.storage.files import attempt, disk_error, storage_errors, sync_file
from tidemill.storage.tables.part_checksums import (
    MISSING,
    check_footer,
    check_part,
    checksums_of,
    damaged_part,
    named_checksums,
    with_checksums,
)
from tidemill.storage.tables.stats import delta_stats

if TYPE_CHECKING:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq  # imported where a file is opened: a query reads its files with DuckDB

FOOTER_KEY: Final = b"tidemill"
MOST_DIGITS: Final = 18  # of a decimal that fits 8 bytes
TAKEN: Final = 1 << 17  # rows that are put in order at once, about
_VIEW: Final = "V16"  # an entry of a view array


@dataclass(frozen=True, slots=True)
class StagedPart:
    """A part whose bytes are durable in staging."""

    path: str  # absolute, in staging
    name: str  # its file name once published, with its checksums
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
    bounded: Sequence[str] = (),
    level: int = 1,
    order: pa.Array | None = None,
) -> StagedPart:
    """Write `table` as zstd Parquet to `folder`, and return once its bytes are on disk. The file is called
    `name`, with its checksums added; the name is durable once `Table.publish` has synced the folder.

    Equal columns, footer and options give equal bytes, however the table is chunked. Columns in `partition`
    are left out of the file, as Delta requires. Row groups have `row_group_rows` rows each, or begin at the
    rows `row_groups` (ascending, 0 first), and have minima and maxima of `stats_columns` (which the table's
    log has too) and `bounded`; columns in structs are named by their paths. `order` lists the numbers of the
    rows to write, in the order to write them; what is written is never in memory as a whole.
    """
    assert "/" not in name, name
    assert not name.startswith((".", "_")), name  # readers skip such files
    import pyarrow.parquet as pq

    table = _checked(table.drop_columns([column for column in partition if column in table.column_names]))
    rows = table.num_rows if order is None else len(order)
    stats = delta_stats(_rows_of(table.select(stats_columns), order), stats_columns)
    with storage_errors("write the part", folder / name), attempt(folder / name) as temporary:
        with (
            pa.OSFile(str(temporary), "wb") as sink,
            pq.ParquetWriter(
                sink,
                table.schema,
                compression="zstd",
                compression_level=level,
                **_encodings(table.schema, dictionary),
                write_statistics=[*stats_columns, *bounded] or False,
                store_schema=False,  # an Arrow schema would make readers see dictionary types
                write_page_checksum=True,
            ) as writer,
        ):
            for group in _row_groups(table, row_groups or range(0, rows, row_group_rows), order):
                writer.write_table(group, group.num_rows)
            writer.add_key_value_metadata({FOOTER_KEY: _footer_text(footer)})
        sync_file(temporary)
        size = temporary.stat().st_size
        target = folder / with_checksums(name, checksums_of(temporary))
        temporary.replace(target)
    return StagedPart(
        path=str(target.absolute()),
        name=target.name,
        partition=tuple(partition.items()),
        rows=rows,
        size=size,
        stats=stats,
    )


def _footer_text(footer: Mapping[str, object]) -> bytes:
    return json.dumps(footer, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _rows_of(table: pa.Table, order: pa.Array | None) -> pa.Table:
    """The rows that are written, in any order."""
    return table if order is None or len(order) == table.num_rows else table.take(order)


def _row_groups(table: pa.Table, starts: Sequence[int], order: pa.Array | None) -> Iterator[pa.Table]:
    """The rows of each row group. Each column is one chunk: chunk borders would move page borders."""
    if order is None:
        for start, end in pairwise([*starts, table.num_rows]):
            yield table.slice(start, end - start).combine_chunks()
        return
    first, taken, ends = 0, table.slice(0, 0), [*starts, len(order)][1:]
    for start, end in zip(starts, ends, strict=True):
        if end > first + taken.num_rows:  # as many groups as may be taken at once, but one at least
            last = max(end, ends[bisect_right(ends, start + TAKEN) - 1])
            first, taken = start, _taken(table, order.slice(start, last - start))
        yield taken.slice(start - first, end - start)


def _taken(table: pa.Table, rows: pa.Array) -> pa.Table:
    """Some rows of a table, in this order. Texts in view arrays stay where they are."""
    columns = [
        _views_taken(column, rows) if _is_view(column) else column.take(rows) for column in table.columns
    ]
    return pa.table(columns, schema=table.schema).combine_chunks()


def _is_view(column: pa.ChunkedArray) -> bool:
    return bool(pa.types.is_string_view(column.type))


def _views_taken(column: pa.ChunkedArray, rows: pa.Array) -> pa.Array:
    """The same for a view array without nulls, which Arrow itself cannot do."""
    import numpy as np

    (views,) = column.chunks
    assert not views.null_count
    _, entries, *texts = views.buffers()
    found = np.frombuffer(entries, _VIEW)[views.offset : views.offset + len(views)][rows.to_numpy()]
    return pa.Array.from_buffers(column.type, len(rows), [None, pa.py_buffer(found), *texts])


def _encodings(schema: pa.Schema, dictionary: Sequence[str]) -> dict[str, object]:
    """How columns are encoded, as the writer takes it. Decimals of at most 18 digits are stored as integers.
    Times and numbers differ little from their neighbours: by differences they take fewer bytes, and are
    quicker both ways."""
    coded = {field.name: None for field in schema if pa.types.is_dictionary(field.type)}
    coded |= dict.fromkeys(dictionary)
    integers = [field.name for field in schema if field.name not in coded and _is_integer(field.type)]
    return {
        "use_dictionary": [*coded] or False,
        "column_encoding": dict.fromkeys(integers, "DELTA_BINARY_PACKED") or None,
        "store_decimal_as_integer": True,
    }


def _is_integer(kind: pa.DataType) -> bool:
    """Whether Parquet stores values of the type as integers of 4 or 8 bytes."""
    if pa.types.is_decimal(kind):
        return bool(kind.precision <= MOST_DIGITS)
    return any(is_kind(kind) for is_kind in (pa.types.is_integer, pa.types.is_timestamp, pa.types.is_date))


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
    metadata: pq.FileMetaData | None = None,
) -> Iterator[pq.ParquetFile]:
    """A part, to be read piece by piece; DamageError if it is not what was written. A caller that has its
    metadata passes it in."""
    import pyarrow.parquet as pq

    with part_errors(path):
        check_part(path)
        # Column chunks are streamed: memory does not depend on the size of a row group.
        with pq.ParquetFile(
            path,
            metadata=metadata,
            read_dictionary=list(dictionary),
            buffer_size=1 << 20,
            page_checksum_verification=True,
        ) as file:
            yield file


def read_part(
    path: Path | str,
    columns: Sequence[str] | None = None,
    *,
    where: pc.Expression | None = None,
    dictionary: Sequence[str] = (),
) -> pa.Table:
    """Columns of a part (None: all), and those of its rows that meet `where`."""
    import pyarrow.parquet as pq

    with part_errors(path):
        check_part(path)
        return pq.read_table(
            path,
            partitioning=None,
            columns=None if columns is None else list(columns),
            filters=where,
            read_dictionary=list(dictionary),
            page_checksum_verification=True,
        )


@contextmanager
def part_errors(path: Path | str) -> Iterator[None]:
    """Turns errors of Arrow about a part into a DamageError that names it."""
    try:
        yield
    except FileNotFoundError as error:
        if error.filename is not None and str(error.filename) != str(path):
            raise  # about another file, which the caller reads meanwhile
        raise damaged_part(path, MISSING) from error
    except OSError as error:
        if error.errno is not None:
            raise disk_error("read the part", path, error) from error
        raise damaged_part(path, f"cannot be read: {_first_line(error)}") from error  # as Arrow reports it
    except (
        pa.ArrowInvalid,
        pa.ArrowNotImplementedError,
        UnicodeDecodeError,
    ) as error:  # also for a name that is not text
        raise damaged_part(path, f"cannot be read: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def read_footer(path: Path | str) -> dict[str, object]:
    """The footer of a part; DamageError if it is not what was written."""
    with part_errors(path):
        check_footer(path)
        footer = _footer(path)
    if footer is None:
        raise damaged_part(path, "is not one that Tidemill wrote")
    return footer


def is_ours(path: Path | str) -> bool:
    """Whether Tidemill wrote the file, as far as can be found."""
    if named_checksums(path) is not None:
        return True
    try:
        with part_errors(path):
            return _footer(local_copy(path)) is not None
    except DamageError:
        return False


def _footer(path: Path | str) -> dict[str, object] | None:
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(path).metadata or {}
    if FOOTER_KEY not in metadata:
        return None
    try:
        footer = json.loads(metadata[FOOTER_KEY])
    except ValueError:
        return None
    return footer if isinstance(footer, dict) else None
