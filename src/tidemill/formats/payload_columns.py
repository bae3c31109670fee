"""Payloads as typed columns, by the declared schema: `decide` says what a value of a type is.

Integers and decimals are read from their text, never through a float. What a type cannot hold (the schema
changed since it was accepted) is null and marked, never guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.config.stream import Stream
from tidemill.formats.arrays import Bytes, Ints, Mask
from tidemill.formats.arrow import string_buffers
from tidemill.formats.columns import scaled_numbers, strings, whole_numbers
from tidemill.formats.decide import Number
from tidemill.formats.json_core import ARRAY, ESCAPED, EXPONENT, FALSE, INTEGER, NULL, OBJECT, STRING, TRUE
from tidemill.formats.locate import Located, Paths, locate, paths_of, unescaped
from tidemill.model.errors import StorageError
from tidemill.model.windows import LEADING


@dataclass(frozen=True, slots=True)
class Column:
    """A declared field that is read from the payload."""

    name: str
    type: str
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Columns:
    """What is read from a payload."""

    columns: tuple[Column, ...]
    paths: Paths


@dataclass(frozen=True, slots=True)
class TypedRows:
    arrays: Sequence[pa.Array]  # one per column
    misfits: Sequence[tuple[str, Ints]]  # column and rows, where a value is null because its type is another


def columns_of(stream: Stream) -> Columns:
    declared = tuple(
        Column(name, found.type, found.scale or 0)
        for name, found in stream.fields.items()
        if name not in LEADING
    )
    return Columns(declared, paths_of([column.name for column in declared]))


def typed(columns: Columns, payload: pa.StringArray) -> TypedRows:
    """The declared columns of records that were accepted; StorageError when one is damaged."""
    if not columns.columns:
        return TypedRows((), ())
    offsets, read_only = string_buffers(payload)
    low, high = int(offsets[0]), int(offsets[-1])
    data = read_only[
        low:high
    ].copy()  # writable, as the kernels are compiled: a copy costs less than a second set
    ends = offsets.astype(np.int64) - low
    found = locate(data, ends[:-1], ends[1:], columns.paths)
    if found.damaged.any():
        record = payload[int(np.flatnonzero(found.damaged)[0])].as_py()
        raise StorageError(
            f"a payload in raw is no JSON object: {record[:80]!r}",
            hint="`tidemill repair` sets the damaged part aside and makes it again",
        )
    arrays: list[pa.Array] = []
    misfits: list[tuple[str, Ints]] = []
    for number, column in enumerate(columns.columns):
        values = _Values(data, found, number)
        array, fits = _READERS[column.type](values, column)
        arrays.append(array)
        wrong = values.present & ~fits
        if wrong.any():
            misfits.append((column.name, np.flatnonzero(wrong)))
    return TypedRows(arrays, misfits)


class _Values:
    """One column of a run of records: tags, and spans in the data."""

    def __init__(self, data: Bytes, found: Located, number: int) -> None:
        self.data = data
        self.tags = found.tags[number]
        self.starts = found.starts[number]
        self.ends = found.ends[number]
        self.present: Mask = self.tags > NULL

    def text(self, row: int) -> str:
        return self.data[self.starts[row] : self.ends[row]].tobytes().decode()

    def tagged(self, *tags: int) -> Mask:
        wanted = np.zeros(ARRAY + 1, np.bool_)
        wanted[list(tags)] = True
        found: Mask = wanted[self.tags]
        return found


def _nulls(fits: Mask) -> tuple[int, pa.Buffer | None]:
    """How many rows have no value, and the bitmap that says which have one."""
    missing = fits.size - int(np.count_nonzero(fits))
    return missing, pa.py_buffer(np.packbits(fits, bitorder="little")) if missing else None


def _spans(values: _Values, fits: Mask, starts: Ints, ends: Ints) -> pa.StringArray:
    if not fits.all():
        starts, ends = np.where(fits, starts, 0), np.where(fits, ends, 0)
    texts = strings(values.data, starts, ends)
    missing, bitmap = _nulls(fits)
    if not missing:
        return texts
    _, offsets, body = texts.buffers()
    return pa.StringArray.from_buffers(fits.size, offsets, body, bitmap, missing)


def _string(values: _Values, _column: Column) -> tuple[pa.Array, Mask]:
    escaped = values.tags == ESCAPED
    fits = escaped | (values.tags == STRING)
    if not escaped.any():
        return _spans(values, fits, values.starts, values.ends), fits
    starts, ends = np.where(fits, values.starts, 0), np.where(fits, values.ends, 0)
    body, offsets = unescaped(values.data, starts, ends, escaped.view(np.uint8))
    missing, bitmap = _nulls(fits)
    texts = pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(body)
    return pa.StringArray.from_buffers(fits.size, *texts, bitmap, missing), fits


def _json(values: _Values, column: Column) -> tuple[pa.Array, Mask]:
    """JSON text as it stands in the payload."""
    fits = {"object": values.tagged(OBJECT), "array": values.tagged(ARRAY)}.get(column.type, values.present)
    quotes = values.tagged(STRING, ESCAPED).astype(np.int64)
    return _spans(values, fits, values.starts - quotes, values.ends + quotes), fits


def _boolean(values: _Values, _column: Column) -> tuple[pa.Array, Mask]:
    fits = values.tagged(TRUE, FALSE)
    missing, bitmap = _nulls(fits)
    body = pa.py_buffer(np.packbits(values.tags == TRUE, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), fits.size, [bitmap, body], missing), fits


def _exact(values: _Values, column: Column) -> tuple[Ints, Mask]:
    """Integers, or decimals times ten to their scale; 0 where there is none."""
    decimal = column.type == "decimal"
    span = values.data, values.starts, values.ends, values.tags
    numbers, fits = scaled_numbers(*span, column.scale) if decimal else whole_numbers(*span)
    is_number = (values.tags >= INTEGER) & (values.tags <= EXPONENT)
    for row in np.flatnonzero(is_number & ~fits).tolist():  # the unusual ones, by the definition itself
        number = Number(values.text(row))
        value = number.scaled(column.scale) if decimal else number.integer()
        if value is not None:
            numbers[row], fits[row] = value, True
    numbers[~fits] = 0
    return numbers, fits


def _integer(values: _Values, column: Column) -> tuple[pa.Array, Mask]:
    numbers, fits = _exact(values, column)
    missing, bitmap = _nulls(fits)
    return pa.Array.from_buffers(pa.int64(), fits.size, [bitmap, pa.py_buffer(numbers)], missing), fits


def _decimal(values: _Values, column: Column) -> tuple[pa.Array, Mask]:
    numbers, fits = _exact(values, column)
    wide = np.empty((numbers.size, 2), np.int64)  # 128 bits, little end first
    wide[:, 0] = numbers
    wide[:, 1] = numbers >> 63
    missing, bitmap = _nulls(fits)
    kind = pa.decimal128(18, column.scale)
    return pa.Array.from_buffers(kind, fits.size, [bitmap, pa.py_buffer(wide)], missing), fits


def _float(values: _Values, _column: Column) -> tuple[pa.Array, Mask]:
    """The nearest double; beyond the largest one that is infinity."""
    fits: Mask = (values.tags >= INTEGER) & (values.tags <= EXPONENT)
    texts = _spans(values, fits, values.starts, values.ends)
    return pc.cast(texts, pa.float64()), fits


_READERS: Final = {
    "string": _string,
    "integer": _integer,
    "decimal": _decimal,
    "float": _float,
    "boolean": _boolean,
    "object": _json,
    "array": _json,
    "any": _json,
}
