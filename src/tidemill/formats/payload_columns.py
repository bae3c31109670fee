"""Payloads as typed columns, by the declared schema; `decide` defines the values of a type.

Integers and decimals are read from their text, never through a float. A value that its type cannot hold,
because the schema has changed since it was accepted, is null and marked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.config.stream import Stream
from tidemill.formats.arrays import Ints, Mask
from tidemill.formats.arrow import decimals, string_buffers
from tidemill.formats.columns import instants, may_round, scaled_numbers, strings, whole_numbers
from tidemill.formats.decide import Number, instant_in
from tidemill.formats.declared_columns import Column, declared_column
from tidemill.formats.json_core import (
    ARRAY,
    ESCAPED,
    EXPONENT,
    FALSE,
    INTEGER,
    MINUS,
    OBJECT,
    STRING,
    TRUE,
    ZERO,
)
from tidemill.formats.locate import Paths, Values, elements, locate, paths_of, unescaped
from tidemill.model.errors import StorageError
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT
from tidemill.model.windows import LEADING


@dataclass(frozen=True, slots=True)
class Columns:
    """What is read from a payload."""

    columns: tuple[Column, ...]
    paths: Paths


@dataclass(frozen=True, slots=True)
class TypedRows:
    arrays: Sequence[pa.Array]  # one for each column
    misfits: Sequence[tuple[str, Ints]]  # column and rows: values that are null since they do not fit
    rounded: Sequence[str] = ()  # columns that may have lost a part of the texts


def columns_named(stream: Stream, names: Iterable[str]) -> Columns:
    """The declared fields with these names."""
    return columns_in([declared_column(stream, name) for name in names])


def columns_in(columns: Sequence[Column]) -> Columns:
    return Columns(tuple(columns), paths_of([column.name for column in columns]))


def columns_of(stream: Stream) -> Columns:
    """The declared columns of datasets, which follow the fixed ones."""
    return columns_named(stream, (name for name in stream.fields if name not in LEADING))


def typed(columns: Columns, payload: pa.StringArray) -> TypedRows:
    """The declared columns of accepted records; StorageError if a record is damaged."""
    if not columns.columns:
        return TypedRows((), ())
    offsets, read_only = string_buffers(payload)
    low, high = int(offsets[0]), int(offsets[-1])
    data = read_only[
        low:high
    ].copy()  # writable, as kernels are compiled: a copy costs less than compiling for read-only arrays
    ends = offsets.astype(np.int64) - low
    found = locate(data, ends[:-1], ends[1:], columns.paths)
    if found.damaged.any():
        raise damaged_payload(payload[int(np.flatnonzero(found.damaged)[0])].as_py())
    return typed_values(columns, found.values(data))


def damaged_payload(record: str) -> StorageError:
    return StorageError(
        f"a payload in raw is no JSON object: {record[:80]!r}",
        hint="`tidemill repair` sets the damaged part aside and makes it again",
    )


def typed_values(columns: Columns, found: Sequence[Values]) -> TypedRows:
    """The same for values that were found before: those of each column."""
    arrays: list[pa.Array] = []
    misfits: list[tuple[str, Ints]] = []
    rounded: list[str] = []
    for column, values in zip(columns.columns, found, strict=True):
        array, fits = _read(values, column)
        arrays.append(array)
        wrong = values.present & ~fits
        if wrong.any():
            misfits.append((column.name, np.flatnonzero(wrong)))
        if lossy_rows(values, array, column).any():
            rounded.append(column.name)
    return TypedRows(arrays, misfits, rounded)


def lossy_rows(values: Values, array: pa.Array, column: Column) -> Mask:
    """Rows whose value may have lost a part of what it was made of: digits, or that -0 was an integer."""
    found = np.zeros(values.tags.size, np.bool_)
    if column.type == "decimal":
        may_round(values.data, values.ends, values.tags, column.scale, found)
    elif column.items == "float":
        numbers = array.flatten().to_numpy(zero_copy_only=False)
        if (np.signbit(numbers) & (numbers == 0)).any():
            lists = np.flatnonzero(values.tags == ARRAY)
            offsets, tags, froms, _ = elements(values.data, values.starts[lists], values.ends[lists])
            whole = np.where(tags == INTEGER, froms, 0)
            lost = (tags == INTEGER) & (values.data[whole] == MINUS) & (values.data[whole + 1] == ZERO)
            before = np.append(0, np.cumsum(lost))
            found[lists] = before[offsets[1:]] > before[offsets[:-1]]
    return found


def _nulls(fits: Mask) -> tuple[int, pa.Buffer | None]:
    """How many rows have no value, and the validity bitmap."""
    missing = fits.size - int(np.count_nonzero(fits))
    return missing, pa.py_buffer(np.packbits(fits, bitorder="little")) if missing else None


def _spans(values: Values, fits: Mask, starts: Ints, ends: Ints) -> pa.StringArray:
    if not fits.all():
        starts, ends = np.where(fits, starts, 0), np.where(fits, ends, 0)
    texts = strings(values.data, starts, ends)
    missing, bitmap = _nulls(fits)
    if not missing:
        return texts
    _, offsets, body = texts.buffers()
    return pa.StringArray.from_buffers(fits.size, offsets, body, bitmap, missing)


def _string(values: Values, _column: Column) -> tuple[pa.Array, Mask]:
    escaped = values.tags == ESCAPED
    fits = escaped | (values.tags == STRING)
    if not escaped.any():
        return _spans(values, fits, values.starts, values.ends), fits
    starts, ends = np.where(fits, values.starts, 0), np.where(fits, values.ends, 0)
    body, offsets = unescaped(values.data, starts, ends, escaped.view(np.uint8))
    missing, bitmap = _nulls(fits)
    texts = pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(body)
    return pa.StringArray.from_buffers(fits.size, *texts, bitmap, missing), fits


def _json(values: Values, column: Column) -> tuple[pa.Array, Mask]:
    """The JSON text as it is in the payload."""
    fits = {"object": values.tagged(OBJECT), "array": values.tagged(ARRAY)}.get(column.type, values.present)
    quotes = values.tagged(STRING, ESCAPED).astype(np.int64)
    return _spans(values, fits, values.starts - quotes, values.ends + quotes), fits


def _boolean(values: Values, _column: Column) -> tuple[pa.Array, Mask]:
    fits = values.tagged(TRUE, FALSE)
    missing, bitmap = _nulls(fits)
    body = pa.py_buffer(np.packbits(values.tags == TRUE, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), fits.size, [bitmap, body], missing), fits


def _exact(values: Values, column: Column) -> tuple[Ints, Mask]:
    """Integers, or unscaled decimals; 0 where there is no value."""
    decimal = column.type == "decimal"
    span = values.data, values.starts, values.ends, values.tags
    numbers, fits = scaled_numbers(*span, column.scale) if decimal else whole_numbers(*span)
    is_number = (values.tags >= INTEGER) & (values.tags <= EXPONENT)
    for row in np.flatnonzero(is_number & ~fits).tolist():  # unusual numbers, by the definition
        number = Number(values.text(row))
        value = number.scaled(column.scale) if decimal else number.integer()
        if value is not None:
            numbers[row], fits[row] = value, True
    numbers[~fits] = 0
    return numbers, fits


def _integer(values: Values, column: Column) -> tuple[pa.Array, Mask]:
    numbers, fits = _exact(values, column)
    missing, bitmap = _nulls(fits)
    return pa.Array.from_buffers(pa.int64(), fits.size, [bitmap, pa.py_buffer(numbers)], missing), fits


def _decimal(values: Values, column: Column) -> tuple[pa.Array, Mask]:
    numbers, fits = _exact(values, column)
    return decimals(numbers, pa.decimal128(18, column.scale), fits), fits


def _float(values: Values, _column: Column) -> tuple[pa.Array, Mask]:
    """The nearest double; infinity beyond the largest."""
    fits: Mask = (values.tags >= INTEGER) & (values.tags <= EXPONENT)
    texts = _spans(values, fits, values.starts, values.ends)
    return pc.cast(texts, pa.float64()), fits


def _timestamp(values: Values, column: Column) -> tuple[pa.Array, Mask]:
    """Timestamps to the microsecond, as event times are."""
    is_plain = values.tags == STRING
    starts, ends = np.where(is_plain, values.starts, 0), np.where(is_plain, values.ends, 0)
    times, fits = instants(values.data, starts, ends, column.zone)
    fits &= (times >= MIN_INSTANT) & (times < MAX_INSTANT)
    for row in np.flatnonzero(values.tagged(STRING, ESCAPED) & ~fits).tolist():
        text = values.text(row)
        if values.tags[row] == ESCAPED:
            text = json.loads(f'"{text}"')
        if (found := instant_in(text, column.zone)) is not None:
            times[row], fits[row] = found, True
    times[~fits] = 0
    missing, bitmap = _nulls(fits)
    return pa.Array.from_buffers(column.arrow, fits.size, [bitmap, pa.py_buffer(times)], missing), fits


def _list(values: Values, column: Column) -> tuple[pa.Array, Mask]:
    """Lists with their null elements; a list with an element of another type is not a value of the column."""
    assert column.items is not None
    is_list = values.tags == ARRAY
    starts, ends = np.where(is_list, values.starts, 0), np.where(is_list, values.ends, 0)
    offsets, tags, froms, tos = elements(values.data, starts, ends)
    inside = Values(values.data, tags, froms, tos)
    array, fits = _read(inside, replace(column, type=column.items, items=None))
    wrong = np.append(0, np.cumsum(inside.present & ~fits))
    whole: Mask = is_list & (wrong[offsets[1:]] == wrong[offsets[:-1]])
    if not whole.all():  # leave out the elements of lists that are not values
        lengths = np.where(whole, np.diff(offsets), 0)
        array = array.filter(pa.array(np.repeat(whole, np.diff(offsets))))
        offsets = np.append(0, np.cumsum(lengths))
    missing, bitmap = _nulls(whole)
    buffers = [bitmap, pa.py_buffer(offsets.astype(np.int32))]
    return pa.Array.from_buffers(column.arrow, whole.size, buffers, missing, children=[array]), whole


def _read(values: Values, column: Column) -> tuple[pa.Array, Mask]:
    return _list(values, column) if column.items is not None else _READERS[column.type](values, column)


_READERS: Final = {
    "string": _string,
    "integer": _integer,
    "decimal": _decimal,
    "float": _float,
    "boolean": _boolean,
    "timestamp": _timestamp,
    "object": _json,
    "array": _json,
    "any": _json,
}
