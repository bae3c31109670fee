"""The declared fields of records between staging and writing: typed values in the staged columns, each once
and small, and flags for those that say less than what was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.formats.arrays import Mask, RecordChunk
from tidemill.formats.arrow import decimals, flags, one
from tidemill.formats.declared_columns import RawColumns
from tidemill.formats.locate import locate
from tidemill.formats.payload_columns import Columns, columns_in, lossy_rows, typed_values
from tidemill.formats.read import ReadChunk
from tidemill.formats.read_plan import ReadPlan
from tidemill.raw.part_columns import has_few_values

_FIELD: Final = "f"  # before the number of a field
_MISFIT: Final = "misfit:"  # before the name of a field: rows whose value is null since it does not fit …
_ROUNDED: Final = "rounded:"  # … and rows whose column may have lost a part of what was sent


@dataclass(frozen=True, slots=True)
class StagedFields:
    """The fields that become columns of raw, and the staged column that each is in."""

    columns: RawColumns
    names: tuple[str, ...]

    @classmethod
    def of(cls, columns: RawColumns, plan: ReadPlan) -> StagedFields:
        """Those that metrics use are staged for them in any case."""
        used = {name: f"m{index}" for index, name in enumerate(plan.measures)}
        used |= {name: f"d{index}" for index, name in enumerate(plan.dimensions)}
        names = (used.get(own.name, f"{_FIELD}{number}") for number, own in enumerate(columns.own))
        return cls(columns, tuple(names))

    @property
    def located(self) -> tuple[str, ...]:
        """The fields whose positions the scanner notes for this; none if one is a list, which it does not
        follow."""
        lists = any(column.items is not None for column in self._read.columns)
        return () if lists else tuple(column.name for column in self._read.columns)

    @property
    def _read(self) -> Columns:
        """The fields that are read here: those that are not there for metrics, and all decimals, which may be
        rounded."""
        own = zip(self.columns.own, self.names, strict=True)
        return _columns(
            tuple(one.column for one, name in own if name[0] == _FIELD or one.column.type == "decimal")
        )

    def staged(self, chunk: RecordChunk, read: ReadChunk) -> dict[str, pa.Array]:
        """The columns to stage for the valid records, beside those that were read for metrics."""
        fields, values = self._read, read.located
        if len(values) < len(fields.columns):
            starts, ends = (
                one(read.columns.column(name)).to_numpy() - chunk.base for name in ("start", "end")
            )
            values = locate(chunk.data, starts, ends, fields.paths).values(chunk.data)
        found = typed_values(fields, values)
        names = {own.name: name for own, name in zip(self.columns.own, self.names, strict=True)}
        staged = {
            names[column.name]: _small(array)
            for column, array in zip(fields.columns, found.arrays, strict=True)
            if names[column.name][0] == _FIELD
        }
        for field, rows in found.misfits:
            staged[f"{_MISFIT}{field}"] = flags(rows, read.columns.num_rows)
        for array, column, each in zip(found.arrays, fields.columns, values, strict=True):
            if column.name in found.rounded:
                staged[f"{_ROUNDED}{column.name}"] = pa.array(lossy_rows(each, array, column))
        return staged

    def values(self, staged: pa.Table) -> list[pa.Array]:
        """The values of the fields in all rows of a staged chunk."""
        return [
            _declared(one(staged.column(name)), own.column.arrow)
            for name, own in zip(self.names, self.columns.own, strict=True)
        ]

    def made(self, chunks: Sequence[pa.Table], accepted: Sequence[Mask]) -> RawColumns:
        """The columns as a part records them that is made of the accepted rows of these chunks."""
        flagged = {
            name
            for staged, mask in zip(chunks, accepted, strict=True)
            for name in staged.column_names
            if name.startswith((_MISFIT, _ROUNDED)) and (staged.column(name).to_numpy() & mask).any()
        }
        return self.columns.made(
            (name.removeprefix(_MISFIT) for name in flagged if name.startswith(_MISFIT)),
            (name.removeprefix(_ROUNDED) for name in flagged if name.startswith(_ROUNDED)),
        )


_columns = lru_cache(maxsize=64)(columns_in)


def _small(array: pa.Array) -> pa.Array:
    """The values in few bytes: texts by their numbers in a dictionary, if there are few of them."""
    if pa.types.is_string(array.type) and has_few_values(array):
        return array.dictionary_encode()
    return array


def _declared(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Staged values in the type of their column: metrics have decimals as unscaled integers."""
    if pa.types.is_dictionary(array.type):
        return array.dictionary_decode()
    if pa.types.is_decimal(kind) and pa.types.is_integer(array.type):
        return decimals(pc.fill_null(array, 0).to_numpy(), kind, np.asarray(array.is_valid()))
    return array
