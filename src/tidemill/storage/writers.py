"""Writes tables as Parquet, Arrow or CSV files for others.

Batches are written as they come, a few of them in memory at a time. Numbers are exact; instants are RFC 3339.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from io import RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
from pyarrow import ipc

from tidemill.model.errors import InputError
from tidemill.storage.files import storage_errors, sync_folder

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Imports inside functions keep start-up short: commands that may write one of the formats often write none.

COMPRESSION: Final = "zstd"
_GROUP_ROWS: Final = 131_072  # of a Parquet row group
_GROUP_BYTES: Final = 32 << 20
_INSTANT: Final = "%Y-%m-%dT%H:%M:%S"  # of microseconds: six digits after the point

Target: TypeAlias = "Path | RawIOBase | pa.NativeFile"
Write = Callable[[pa.RecordBatch], None]
Writer = Callable[[Target, pa.Schema], AbstractContextManager[Write]]


@contextmanager
def parquet_file(target: Target, schema: pa.Schema) -> Iterator[Write]:
    import pyarrow.parquet as pq

    _refuse_intervals(schema, "Parquet")
    held: list[pa.RecordBatch] = []

    with pq.ParquetWriter(target, schema, compression=COMPRESSION, write_page_checksum=True) as writer:

        def flush() -> None:
            if held:
                writer.write_table(pa.Table.from_batches(held, schema), _GROUP_ROWS)
                held.clear()

        def write(batch: pa.RecordBatch) -> None:
            held.append(batch)
            if sum(b.num_rows for b in held) >= _GROUP_ROWS or sum(b.nbytes for b in held) >= _GROUP_BYTES:
                flush()

        yield write
        flush()


@contextmanager
def arrow_file(target: Target, schema: pa.Schema) -> Iterator[Write]:
    options = ipc.IpcWriteOptions(compression=COMPRESSION)
    sink = str(target) if isinstance(target, Path) else target
    with ipc.new_file(sink, schema, options=options) as writer:
        yield writer.write_batch


@contextmanager
def csv_file(target: Target, schema: pa.Schema) -> Iterator[Write]:
    """A writer of CSV. Instants are RFC 3339, in UTC or with the offset of the column's zone. Strings are
    quoted, so that an empty one differs from null."""
    import pyarrow.compute as pc
    import pyarrow.csv as pacsv

    _refuse_intervals(schema, "CSV")
    for field in schema:
        if pa.types.is_nested(field.type):
            raise InputError(
                f"column {field.name!r} holds lists, which CSV cannot represent",
                hint="leave it out (of a query: FORMAT series), or use parquet or arrow",
            )
    shown = pa.schema(
        [pa.field(f.name, pa.string() if pa.types.is_timestamp(f.type) else f.type) for f in schema]
    )
    opened = pa.OSFile(str(target), "wb") if isinstance(target, Path) else nullcontext(target)
    with opened as sink, pacsv.CSVWriter(sink, shown) as writer:

        def write(batch: pa.RecordBatch) -> None:
            columns = [
                pc.strftime(column, _INSTANT + ("Z" if column.type.tz == "UTC" else "%Ez"))
                if pa.types.is_timestamp(column.type)
                else column
                for column in batch.columns
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=shown))

        yield write


def _refuse_intervals(schema: pa.Schema, format_: str) -> None:
    for field in schema:
        if pa.types.is_interval(field.type):
            raise InputError(
                f"column {field.name!r} holds intervals, which {format_} cannot represent",
                hint="select them as text, for example CAST(x AS VARCHAR), or use arrow",
            )


WRITERS: Final[dict[str, Writer]] = {"parquet": parquet_file, "arrow": arrow_file, "csv": csv_file}


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """A path to write to; the target appears, durably, if the block ends without an error, and not at all
    otherwise."""
    if not target.absolute().parent.is_dir():
        raise InputError(
            "there is no such folder", where=str(target.parent), hint="make it first, or name another"
        )
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    with storage_errors("write", target):
        try:
            yield temporary
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    sync_folder(target.absolute().parent)


def write_batches(batches: Iterable[pa.RecordBatch], schema: pa.Schema, target: Path | None, to: str) -> None:
    """Write batches as `to`, as they come; None: to standard output."""
    if target is None:
        for piece in written_pieces(batches, schema, to):
            sys.stdout.buffer.write(piece)
        return
    with whole_file(target) as path, WRITERS[to](path, schema) as write:
        for batch in batches:
            write(batch)


def written_pieces(batches: Iterable[pa.RecordBatch], schema: pa.Schema, to: str) -> Iterator[bytes]:
    """A file of the format `to`, piece by piece, never as a whole."""
    sink = _PieceSink()
    with WRITERS[to](sink, schema) as write:
        for batch in batches:
            write(batch)
            if piece := sink.take():
                yield piece
    if piece := sink.take():
        yield piece


class _PieceSink(RawIOBase):
    """Collects what a writer writes, to be taken piece by piece."""

    def __init__(self) -> None:
        super().__init__()
        self._held: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, piece: Buffer, /) -> int:
        content = bytes(piece)
        self._held.append(content)
        self._position += len(content)
        return len(content)

    def tell(self) -> int:
        return self._position

    def take(self) -> bytes:
        """What was written since the last time."""
        held, self._held = self._held, []
        return b"".join(held)
