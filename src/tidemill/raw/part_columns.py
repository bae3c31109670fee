"""The declared columns of raw: made from payloads when a part is written, and read back from any part.

A part records the declaration that its columns were made by. Fields that are declared differently now are
read from its payloads, so that answers never depend on when a part was written. Every reader of declared
fields uses `PartColumns`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.formats.arrow import column_at, one, stored_at, string_buffers
from tidemill.formats.declared_columns import SIZE, RawColumn, RawColumns
from tidemill.formats.payload_columns import Columns, TypedRows, columns_in, typed
from tidemill.raw.footers import declared_by, declared_in
from tidemill.raw.part_payloads import PAYLOAD, PartPayloads
from tidemill.storage.tables.parts import read_footer

if TYPE_CHECKING:
    import pyarrow.parquet as pq

SAMPLE: Final = 4096  # rows that are sampled to see whether a column has few values
_FEW: Final = 4  # one in so many


# -- writing


def nested_columns(declared: RawColumns, values: Sequence[pa.Array], sizes: pa.Array) -> dict[str, pa.Array]:
    """The columns of the table, by name: the values of the fields that `own_columns` lists, and the sizes of
    payloads."""
    fields = [(own.path, array) for own, array in zip(declared.own, values, strict=True)]
    return {SIZE: sizes, **_nested(fields)}


def payload_sizes(payload: pa.Array) -> pa.Array:
    offsets, _ = string_buffers(payload)
    return pa.array(np.diff(offsets))


def coded_and_bounded(rows: pa.Table, declared: RawColumns) -> tuple[list[str], list[str]]:
    """Columns with few values, and columns for which row groups have the least and greatest value; by their
    Parquet names."""
    scalars = [each for each in declared.own if each.column.items is None]
    texts = [(each.leaf, each.path) for each in scalars if each.column.type == "string"]
    if not declared.keeps_payload:
        texts.append((PAYLOAD, (PAYLOAD,)))
    return (
        [leaf for leaf, path in texts if has_few_values(column_at(rows.slice(0, SAMPLE), path))],
        [each.leaf for each in scalars if each.column.type != "boolean"],
    )


@lru_cache(maxsize=64)
def own_columns(declared: RawColumns) -> Columns:
    """The fields that are read from payloads when a part is written."""
    return columns_in([one.column for one in declared.own])


def _nested(members: Sequence[tuple[tuple[str, ...], pa.Array]]) -> dict[str, pa.Array]:
    """Values by their paths as columns; a struct without any value is null."""
    found: dict[str, pa.Array] = {}
    for top in dict.fromkeys(path[0] for path, _ in members):
        inner = [(path[1:], array) for path, array in members if path[0] == top]
        found[top] = _struct(_nested(inner)) if inner[0][0] else inner[0][1]
    return found


def _struct(children: Mapping[str, pa.Array]) -> pa.Array:
    empty = np.ones(len(next(iter(children.values()))), np.bool_)
    for array in children.values():
        empty &= np.asarray(array.is_null())
    mask = pa.array(empty) if empty.any() else None
    return pa.StructArray.from_arrays(list(children.values()), list(children), mask=mask)


def has_few_values(array: pa.Array) -> bool:
    """Whether the first rows have few distinct values."""
    sample = array.slice(0, SAMPLE)
    return bool(pc.count_distinct(sample).as_py() * _FEW <= len(sample))


# -- reading


class PartColumns:
    """Where the values of some declared fields are in one part: in its columns, or in its payloads."""

    def __init__(self, fields: Columns, declared: RawColumns | None, *, sizes: bool = False) -> None:
        there = {
            each.column: each
            for each in (declared.columns if declared is not None else ())
            if declared is not None and each.name not in declared.misfits
        }
        self._fields = fields
        self._at: list[RawColumn | None] = [there.get(column) for column in fields.columns]
        self._rest = columns_in([c for c, at in zip(fields.columns, self._at, strict=True) if at is None])
        self._rounded = declared.rounded if declared is not None else frozenset()
        self._sizes = sizes
        self._says_sizes = declared is not None
        self._keeps_payload = declared is None or declared.keeps_payload
        self._payloads = PartPayloads(declared, [column.name for column in self._rest.columns])

    @property
    def keeps_payload(self) -> bool:
        """Whether payloads of the part have everything that was sent."""
        return self._keeps_payload

    @property
    def fields(self) -> list[str]:
        """The requested fields, in the order in which `typed` returns them."""
        return [column.name for column in self._fields.columns]

    @property
    def names(self) -> list[str]:
        """The columns to read from the part, by their Parquet names."""
        own = [at.leaf for at in self._at if at is not None]
        sizes = [SIZE] if self._sizes and self._says_sizes else []
        payload = self._payloads.names if self.needs_payload else []
        return list(dict.fromkeys([*own, *sizes, *payload]))

    @property
    def needs_payload(self) -> bool:
        return bool(self._rest.columns) or (self._sizes and not self._says_sizes)

    def sizes(self, rows: pa.RecordBatch | pa.Table) -> pa.Array:
        """The sizes of the payloads of rows, in bytes."""
        return one(rows.column(SIZE)) if self._says_sizes else payload_sizes(one(rows.column(PAYLOAD)))

    @property
    def texts(self) -> list[str]:
        """Those of the columns to read that hold strings."""
        return [at.leaf for at in self._at if at is not None and at.column.type == "string"]

    def typed(self, rows: pa.RecordBatch | pa.Table, *, coded: bool = False) -> TypedRows:
        """The requested fields of rows with the columns `names`. `coded`: those that were read
        dictionary-encoded stay so."""
        read = stored_at if coded else column_at
        rest = typed(self._rest, self._payloads.of(rows)) if self._rest.columns else TypedRows((), ())
        left = iter(rest.arrays)
        arrays = [next(left) if at is None else read(rows, at.path) for at in self._at]
        rounded = [column.name for column in self._fields.columns if column.name in self._rounded]
        return TypedRows(arrays, rest.misfits, [*rest.rounded, *rounded])


def size_column(path: str) -> str:
    """The column of a part with the sizes of payloads, or else the payloads themselves."""
    return SIZE if declared_by(read_footer(path)) is not None else PAYLOAD


def part_columns(file: pq.ParquetFile, path: str, fields: Columns, *, sizes: bool = False) -> PartColumns:
    """Where the fields are in a part; with `sizes`, also the sizes of payloads."""
    return PartColumns(fields, declared_in(file, path), sizes=sizes)
