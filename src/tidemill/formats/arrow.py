"""Arrow arrays without copies, and the files by which kernels hand tables on, memory-mapped when read."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from tidemill.formats.arrays import Bytes, Ints, Offsets


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A name to write to. The file appears under its own name when the block ends, so that two attempts of
    one task never write into each other's file. Nothing is synced."""
    attempt = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield attempt
        attempt.replace(path)
    except BaseException:
        attempt.unlink(missing_ok=True)
        raise


def write_ipc(path: Path, table: pa.Table) -> None:
    """Write a table for the next kernel."""
    with (
        whole(path) as attempt,
        pa.OSFile(str(attempt), "wb") as sink,
        ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table)


def read_ipc(path: str) -> pa.Table:
    """Memory-mapped: columns that are not looked at are not read."""
    return ipc.open_file(pa.memory_map(path)).read_all()


def string_buffers(array: pa.StringArray) -> tuple[Offsets, Bytes]:
    """Offsets and bytes of a string or binary array, without copying."""
    _, offsets, data = array.buffers()
    if offsets is None:
        return np.zeros(1, np.int32), np.empty(0, np.uint8)
    ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return ends, np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)


def one(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column as one array, without copying when it already is."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks()


def column_at(rows: pa.RecordBatch | pa.Table, path: Sequence[str]) -> pa.Array:
    """A column, or what is inside of a struct; null where the struct is."""
    array = one(rows.column(path[0]))
    for step in path[1:]:
        array = pc.struct_field(array, [array.type.get_field_index(step)])
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def unscaled(array: pa.Array) -> Ints:
    """Decimals of at most 18 digits as integers; anything where there is none."""
    if not len(array):
        return np.empty(0, np.int64)
    words = np.frombuffer(array.buffers()[1], np.int64).reshape(-1, 2)
    return words[array.offset : array.offset + len(array), 0].copy()  # Arrow's own is not to be written to
