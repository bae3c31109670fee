"""Arrow arrays as NumPy arrays and back, without copies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidemill.formats.arrays import Bytes, Ints, Mask, Offsets

# An import inside a function keeps start-up short: most readers take no fields of structs.


def string_buffers(array: pa.StringArray) -> tuple[Offsets, Bytes]:
    """Offsets and bytes of a string or binary array, without copying."""
    _, offsets, data = array.buffers()
    if offsets is None:
        return np.zeros(1, np.int32), np.empty(0, np.uint8)
    ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return ends, np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)


def one(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """A column as one array; copied only if it has several chunks."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks()


def column_at(rows: pa.RecordBatch | pa.Table, path: Sequence[str]) -> pa.Array:
    """The column at a path; the steps after the first lead into structs. Null where a struct on the way
    is."""
    array = stored_at(rows, path)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def stored_at(rows: pa.RecordBatch | pa.Table, path: Sequence[str]) -> pa.Array:
    """The same, dictionary-encoded if it was read so."""
    import pyarrow.compute as pc

    array = one(rows.column(path[0]))
    for step in path[1:]:
        array = pc.struct_field(array, [array.type.get_field_index(step)])
    return array


def unscaled(array: pa.Array) -> Ints:
    """Decimals of at most 18 digits as unscaled integers; the value at a null is arbitrary."""
    if not len(array):
        return np.empty(0, np.int64)
    words = np.frombuffer(array.buffers()[1], np.int64).reshape(-1, 2)
    return words[array.offset : array.offset + len(array), 0].copy()  # Arrow's own memory is read-only


def decimals(numbers: Ints, kind: pa.DataType, valid: Mask) -> pa.Array:
    """Unscaled integers as decimals of at most 18 digits; null where they are not valid."""
    wide = np.empty((numbers.size, 2), np.int64)  # 128 bits, little-endian
    wide[:, 0] = numbers
    wide[:, 1] = numbers >> 63
    bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, numbers.size, [bitmap, pa.py_buffer(wide)])


def flags(rows: Ints, size: int) -> pa.Array:
    """True in these rows, false in all others."""
    found = np.zeros(size, np.bool_)
    found[rows] = True
    return pa.array(found)
