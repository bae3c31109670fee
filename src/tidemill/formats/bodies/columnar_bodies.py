"""Parquet and Arrow bodies. They are stored as they are; reading them once checks that they can be read.

Rows are counted, and measured as if written as JSON, batch by batch, so that reading stops early in a file
that unpacks to more than is allowed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pyarrow.types as kinds

from tidemill.config import Stream
from tidemill.config.gateway import Requests
from tidemill.formats.bodies.limits import beyond, check_events
from tidemill.formats.bodies.tenancy import other_tenant
from tidemill.formats.bodies.unpacked_size import arrow_size, parquet_size, parquet_sizes
from tidemill.formats.json_core import TOO_DEEP, TOO_LONG
from tidemill.model.errors import InputError, TooLargeError

PARQUET: Final = "application/vnd.apache.parquet"
ARROW_STREAM: Final = "application/vnd.apache.arrow.stream"
ARROW_FILE: Final = "application/vnd.apache.arrow.file"

_MAGIC: Final = {PARQUET: b"PAR1", ARROW_STREAM: b"\xff\xff\xff\xff", ARROW_FILE: b"ARROW1"}
# Reading so many pieces takes about a second at most.
_PIECES: Final = {PARQUET: 2_000, ARROW_STREAM: 10_000, ARROW_FILE: 10_000}
_TEXTS: Final = (kinds.is_string, kinds.is_large_string, kinds.is_string_view)
_BYTES: Final = (kinds.is_binary, kinds.is_large_binary, kinds.is_binary_view)
_TEXTUAL: Final = ("STRING", "NONE", "JSON", "ENUM", "BSON")  # to Parquet
_LISTS: Final = (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list)
_FLAT: Final = (
    kinds.is_null, kinds.is_boolean, kinds.is_integer, kinds.is_floating, kinds.is_decimal, kinds.is_date,
    kinds.is_timestamp, kinds.is_time, kinds.is_duration, kinds.is_fixed_size_binary,
)  # fmt: skip


def columnar_rows(
    content: bytes, media: str, stream: Stream, limits: Requests, tenant: str | None
) -> tuple[int, tuple[int, ...]]:
    """The number of rows, and the positions of the rows that name no tenant."""
    if not content.startswith(_MAGIC[media]):
        raise InputError(
            f"the body does not begin as {media} does", where="body", hint="set Content-Type to what it is"
        )
    rows = size = 0
    unnamed: list[int] = []
    column = stream.tenant.column if tenant is not None else None
    with _readable(media):
        for batch in _batches(content, media, limits):
            check_events(rows + batch.num_rows, limits)
            batch.validate(full=True)
            size += _written(batch, rows, limits)
            _check_size(size, limits)
            if column is not None and tenant is not None:
                unnamed.extend(rows + position for position in _unnamed(batch, column, tenant, rows))
            rows += batch.num_rows
    return rows, tuple(unnamed)


def _batches(content: bytes, media: str, limits: Requests) -> Iterator[pa.RecordBatch]:
    if media == PARQUET:
        yield from _row_groups(content, limits)
        return
    _check_size(arrow_size(content, media == ARROW_FILE), limits)
    source = pa.BufferReader(content)
    if media == ARROW_FILE:
        with ipc.open_file(source) as file:
            _check_schema(file.schema, limits)
            _check_pieces(file.num_record_batches, len(file.schema), media)
            yield from (file.get_batch(number) for number in range(file.num_record_batches))
    else:
        with ipc.open_stream(source) as stream:
            _check_schema(stream.schema, limits)
            for number, batch in enumerate(stream, start=1):
                _check_pieces(number, len(stream.schema), media)
                yield batch


def _row_groups(content: bytes, limits: Requests) -> Iterator[pa.RecordBatch]:
    """The row groups one by one. Everything that the footer shows is checked before anything is unpacked."""
    sizes = parquet_sizes(content)
    check_events(sizes.rows, limits)
    _check_pieces(sizes.groups, sizes.columns // max(1, sizes.groups), PARQUET)
    _check_size(parquet_size(content, sizes), limits)
    source = pa.BufferReader(content)
    with pq.ParquetFile(source) as file:
        _check_schema(file.schema_arrow, limits)
        repeated = _kept_once(file.schema)
    with pq.ParquetFile(source, read_dictionary=repeated) as file:
        for number in range(file.num_row_groups):  # one by one, since each has its own dictionaries
            yield from file.iter_batches(batch_size=limits.events, row_groups=[number])


def _check_pieces(pieces: int, columns: int, media: str) -> None:
    """Limit the number of row groups and columns: each piece takes time, even if it holds little."""
    if pieces > 1 and pieces * columns > _PIECES[media]:
        raise InputError(
            f"the rows come in {pieces} pieces of {columns} columns or more",
            where="body",
            hint="write larger row groups or record batches: one is best",
        )


def _check_size(size: int, limits: Requests) -> None:
    if size > limits.body:
        raise TooLargeError(
            f"the rows are more than {limits.body} bytes once they are unpacked",
            where="body",
            hint="send fewer rows in a request, or allow more with gateway.requests.body",
        )


def _kept_once(schema: pq.ParquetSchema) -> list[str]:
    """String columns of a file, to be read dictionary-encoded: a text shared by many rows is read once."""
    columns = (schema.column(position) for position in range(len(schema)))
    texts = (c for c in columns if c.physical_type == "BYTE_ARRAY" and c.logical_type.type in _TEXTUAL)
    return [column.path for column in texts]


@contextmanager
def _readable(media: str) -> Iterator[None]:
    try:
        yield
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        TypeError,
        LookupError,
        RecursionError,
        struct.error,
    ) as error:
        lines = str(error).splitlines()
        raise InputError(
            f"the body is not a whole {media}: {lines[0] if lines else type(error).__name__}",
            where="body",
            hint="it is damaged or cut off, or uses a feature that this reader lacks: write it again",
        ) from None


def _check_schema(schema: pa.Schema, limits: Requests) -> None:
    names = schema.names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"column {twice!r} occurs twice", where="body", hint="rename one")
    for field in schema:
        if 1 + _depth(field.type, field.name) > limits.depth:
            raise beyond(TOO_DEEP, 0, limits)


def _depth(kind: pa.DataType, name: str) -> int:
    """How deep a column is nested as JSON, 0 for a plain value; InputError when its type has no JSON form."""
    if isinstance(kind, pa.BaseExtensionType):
        return _depth(kind.storage_type, name)
    if kinds.is_dictionary(kind):
        return _depth(kind.value_type, name)
    if kinds.is_struct(kind):
        inner = [kind.field(position) for position in range(kind.num_fields)]
        return 1 + max((_depth(field.type, f"{name}.{field.name}") for field in inner), default=0)
    if kinds.is_map(kind):
        return 1 + max(_depth(kind.key_type, name), _depth(kind.item_type, name))
    if any(is_kind(kind) for is_kind in _LISTS):
        return 1 + _depth(kind.value_type, f"{name}[]")
    if any(is_kind(kind) for is_kind in (*_FLAT, *_TEXTS, *_BYTES)):
        return 0
    raise InputError(
        f"column {name!r} has the type {kind}, which has no JSON form",
        where="body",
        hint="leave the column out, or write it as text or numbers",
    )


def _written(batch: pa.RecordBatch, row: int, limits: Requests) -> int:
    """The size of a batch as JSON in bytes; TooLargeError for the first row with a text that is too long."""
    size = 0
    for array in batch.columns:
        each, longest = _measured(array)
        if longest > limits.field:
            rows = range(len(array))
            position = next(at for at in rows if _measured(array.slice(at, 1))[1] > limits.field)
            raise beyond(TOO_LONG, row + position, limits)
        size += each
    return size


def _measured(array: pa.Array) -> tuple[int, int]:
    """The size of an array as JSON in bytes, dictionary values counted for each row; and of the longest
    text."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _measured(array.storage)
    if kinds.is_dictionary(kind):
        return _repeated(array)
    if kinds.is_struct(kind):
        each = [_measured(child) for child in array.flatten()]
        return sum(size for size, _ in each), max((longest for _, longest in each), default=0)
    if kinds.is_map(kind):
        return _mapped(array)
    if any(is_kind(kind) for is_kind in _LISTS):
        elements = array.flatten()
        size, longest = _measured(elements)
        return size + len(elements) + len(array), longest  # a null in a list is written too
    if any(is_kind(kind) for is_kind in (*_TEXTS, *_BYTES)):
        return _summed(_lengths(array))
    return int(array.nbytes), 0


def _repeated(array: pa.DictionaryArray) -> tuple[int, int]:
    values = array.dictionary
    if any(is_kind(values.type) for is_kind in (*_TEXTS, *_BYTES)):
        return _summed(pc.take(_lengths(values), array.indices))
    size, longest = _measured(values)
    # Counted as if every row held all of them: nested dictionaries are rare.
    return size * len(array), longest


def _mapped(array: pa.MapArray) -> tuple[int, int]:
    # The array may be a slice; its keys and items are those of all rows.
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    each = [_measured(side.slice(first, last - first)) for side in (array.keys, array.items)]
    return sum(size for size, _ in each) + last - first, max(longest for _, longest in each)


def _lengths(array: pa.Array) -> pa.Array:
    """The size of each text in bytes."""
    if not (kinds.is_string_view(array.type) or kinds.is_binary_view(array.type)):
        return pc.binary_length(array)
    if not len(array):
        return pa.array([], pa.int32())
    views = np.frombuffer(array.buffers()[1], np.int32)  # 16 bytes each, beginning with the length
    lengths = views[4 * array.offset : 4 * (array.offset + len(array)) : 4]
    return pc.if_else(array.is_valid(), pa.array(lengths), 0)


def _summed(lengths: pa.Array) -> tuple[int, int]:
    return int(pc.sum(lengths).as_py() or 0), int(pc.max(lengths).as_py() or 0)


def _unnamed(batch: pa.RecordBatch, column: str, tenant: str, row: int) -> Iterator[int]:
    """Positions in the batch of rows that name no tenant; ForbiddenError for the first that names another."""
    for position, named in enumerate(_tenants(batch, column)):
        if named is None or named == "":
            yield position
        elif named != tenant:
            raise other_tenant(column, named, tenant, row + position)


def _tenants(batch: pa.RecordBatch, column: str) -> list[str | None]:
    """The value at a dotted column of each row, as the record will have it."""
    first, *steps = column.split(".")
    if first not in batch.schema.names:
        return [None] * batch.num_rows
    array = _plain(batch.column(first))
    for step in steps:
        if kinds.is_map(array.type):
            raise InputError(
                f"{column} is in a map, and names a tenant",
                where="body",
                hint="write a struct instead of the map, or send NDJSON",
            )
        if not kinds.is_struct(array.type):
            return [None] * batch.num_rows
        if array.type.get_field_index(step) < 0:
            _check_once(array.type, step, column)
            return [None] * batch.num_rows
        array = _plain(pc.struct_field(array, step))
    return _named(array, column)


def _plain(array: pa.Array) -> pa.Array:
    if isinstance(array.type, pa.BaseExtensionType):
        return _plain(array.storage)
    return _plain(array.dictionary_decode()) if kinds.is_dictionary(array.type) else array


def _check_once(kind: pa.StructType, step: str, column: str) -> None:
    """Refuse a column name that occurs twice: it would be unclear which of them counts."""
    if any(kind.field(position).name == step for position in range(kind.num_fields)):
        raise InputError(f"{step!r} of {column} occurs twice", where="body", hint="rename one")


def _named(array: pa.Array, column: str) -> list[str | None]:
    if kinds.is_null(array.type):
        return [None] * len(array)
    if not any(is_kind(array.type) for is_kind in _TEXTS):
        raise InputError(
            f"column {column} is of type {array.type}, and names a tenant",
            where="body",
            hint="write it as text",
        )
    named: list[str | None] = array.to_pylist()
    return named
