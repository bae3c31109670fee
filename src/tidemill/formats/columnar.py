"""Rows of Parquet and Arrow slices as canonical JSON records, batch by batch.

Instants are RFC 3339 in UTC (one without a zone is taken as UTC), decimals plain numbers, bytes base64, a map
with string keys an object. A null is left out; NaN and infinities, which JSON lacks, become a written `null`,
so that they differ from missing values.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pyarrow.types as kinds

from tidemill.formats.json_values import SURROGATE, objects, quoted
from tidemill.model.errors import InputError
from tidemill.model.slices import Format

_ROWS: Final = 8192
_BINARY: Final = (kinds.is_binary, kinds.is_large_binary, kinds.is_fixed_size_binary, kinds.is_binary_view)
_OTHERWISE: Final = {
    **dict.fromkeys(("nan", "-nan", "inf", "-inf"), "null"),
    "-0": "-0.0",  # as an integer it would lose its sign
}


def columnar_records(path: Path, format: Format) -> Iterator[list[bytes]]:
    """Records in batches; InputError with the row where reading fails."""
    done = 0
    with _named(path, lambda: done):
        for batch in _batches(path, format):
            names = batch.schema.names
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise InputError(f"column {twice!r} occurs twice", where=str(path), hint="rename one")
            columns = {name: _texts(column, name) for name, column in zip(names, batch.columns, strict=True)}
            yield [text.encode("utf-8", SURROGATE) for text in objects(columns, batch.num_rows)]
            done += batch.num_rows


def _batches(path: Path, format: Format) -> Iterator[pa.RecordBatch]:
    if format is Format.PARQUET:
        with pq.ParquetFile(path, memory_map=True) as file:
            yield from file.iter_batches(batch_size=_ROWS)
        return
    with pa.memory_map(str(path)) as source:
        if not source.size():
            return
        if source.read(6) == b"ARROW1":
            with ipc.open_file(source) as file:
                for number in range(file.num_record_batches):
                    yield from _slices(file.get_batch(number))
            return
        source.seek(0)
        with ipc.open_stream(source) as stream:
            for batch in stream:
                yield from _slices(batch)


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, batch.num_rows, _ROWS):
        yield batch.slice(start, _ROWS)


@contextmanager
def _named(path: Path, row: Callable[[], int]) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot be read at row {row() + 1}: {str(error).splitlines()[0]}",
            where=str(path),
            hint="the file is damaged, or uses a feature that this reader lacks: write it again",
        ) from error


def _texts(array: pa.Array, name: str) -> list[str]:
    """One column as JSON text, empty for null."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _texts(array.storage, name)
    if kinds.is_null(kind):
        return [""] * len(array)
    if kinds.is_dictionary(kind):
        return _texts(array.dictionary_decode(), name)
    if kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind):
        return [quoted(text) if text is not None else "" for text in _strings(array)]
    if kinds.is_boolean(kind):
        return ["" if value is None else "true" if value else "false" for value in array.to_pylist()]
    if kinds.is_integer(kind):
        return ["" if value is None else str(value) for value in array.to_pylist()]
    if kinds.is_floating(kind):
        return _floats(array)
    if kinds.is_decimal(kind):
        return ["" if value is None else format(value, "f") for value in array.to_pylist()]
    if kinds.is_timestamp(kind):
        return [f'"{text}"' if text else "" for text in _instants(array).to_pylist()]
    if kinds.is_date(kind) or kinds.is_time(kind):
        return [f'"{text}"' if text else "" for text in pc.cast(array, pa.string()).to_pylist()]
    if kinds.is_duration(kind):
        return _texts(pc.cast(array, pa.int64()), name)
    if kinds.is_struct(kind):
        return _structs(array, name)
    if kinds.is_map(kind):
        return _maps(array, name)
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind):
        return _lists(array, name)
    if any(is_kind(kind) for is_kind in _BINARY):
        return [
            "" if value is None else f'"{base64.b64encode(value).decode()}"' for value in array.to_pylist()
        ]
    raise InputError(
        f"column {name!r} has the type {kind}, which has no JSON form",
        hint="leave the column out, or write it as text or numbers",
    )


def _strings(array: pa.Array) -> list[str | None]:
    try:
        return list(array.to_pylist())
    except UnicodeDecodeError:  # some writers do not check their strings: the bytes go through to the gate
        raw = array.cast(pa.large_binary()).to_pylist()
        return [None if value is None else value.decode("utf-8", SURROGATE) for value in raw]


def _floats(array: pa.Array) -> list[str]:
    """The shortest text that reads back as the same number of its own width."""
    if kinds.is_float16(array.type):
        array = pc.cast(array, pa.float32())
    texts = pc.cast(array, pa.string()).to_pylist()
    return ["" if text is None else _OTHERWISE.get(text, text) for text in texts]


def _instants(array: pa.Array) -> pa.Array:
    """RFC 3339 with 0, 3, 6 or 9 digits, as many as needed; without an offset if the column has no time
    zone."""
    plain = pc.cast(pc.cast(array, pa.int64()), pa.timestamp(array.type.unit))
    texts = pc.strftime(plain, "%Y-%m-%dT%H:%M:%S")
    if array.type.unit != "s":
        for _ in range({"ms": 0, "us": 1, "ns": 2}[array.type.unit]):
            texts = pc.replace_substring_regex(texts, r"(\.\d+)000$", r"\1")
        texts = pc.replace_substring_regex(texts, r"\.000$", "")
    return texts if array.type.tz is None else pc.binary_join_element_wise(texts, "Z", "")


def _structs(array: pa.StructArray, name: str) -> list[str]:
    fields = {
        array.type.field(position).name: _texts(child, f"{name}.{array.type.field(position).name}")
        for position, child in enumerate(array.flatten())
    }
    return _where_valid(array, objects(fields, len(array)))


def _lists(array: pa.Array, name: str) -> list[str]:
    """Lists as JSON arrays; a null element is written, so that elements keep their positions."""
    elements = [text or "null" for text in _texts(array.flatten(), f"{name}[]")]
    out: list[str] = []
    start = 0
    for length in pc.list_value_length(array).to_pylist():
        out.append("" if length is None else "[" + ",".join(elements[start : start + length]) + "]")
        start += length or 0
    return out


def _maps(array: pa.MapArray, name: str) -> list[str]:
    keys, items = array.keys, _texts(array.items, name)
    spans = list(pairwise(array.offsets.to_pylist()))
    if kinds.is_string(keys.type) or kinds.is_large_string(keys.type):
        members = list(zip(_strings(keys), items, strict=True))
        rows = [
            "{" + ",".join(f"{quoted(key or '')}:{text}" for key, text in sorted(members[a:b]) if text) + "}"
            for a, b in spans
        ]
    else:
        pairs = [f"[{key},{text or 'null'}]" for key, text in zip(_texts(keys, name), items, strict=True)]
        rows = ["[" + ",".join(pairs[a:b]) + "]" for a, b in spans]
    return _where_valid(array, rows)


def _where_valid(array: pa.Array, texts: Sequence[str]) -> list[str]:
    if not array.null_count:
        return list(texts)
    return [text if there else "" for text, there in zip(texts, array.is_valid().to_pylist(), strict=True)]
