"""The deltas of a part of raw: from its columns, or from its payloads where columns say less.

Deltas were checked by the gate. A record that is not a delta was accepted under another declaration, which is
an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from tidemill.formats.arrow import column_at
from tidemill.formats.declared_columns import Column, RawColumn, RawColumns, vector_columns
from tidemill.formats.delta_arrays import Deltas, deltas_from_columns, deltas_from_payloads
from tidemill.model.errors import ConfigError
from tidemill.raw.part_payloads import PartPayloads

if TYPE_CHECKING:
    from tidemill.config.vectors import Vector

_KNOWN: Final = ("event_time", "event_id")


class PartDeltas:
    """Reads deltas from rows of one part."""

    def __init__(self, vector: Vector, declared: RawColumns | None, where: str = "") -> None:
        self._vector = vector
        self._where = where
        self._columns = _exact_columns(vector, declared) if declared is not None else None
        self._payloads = PartPayloads(declared)

    @property
    def names(self) -> list[str]:
        """The columns to read from the part, by their Parquet names."""
        if self._columns is None:
            return [*_KNOWN, *self._payloads.names]
        return list(dict.fromkeys([*_KNOWN, *(each.leaf for each in self._columns)]))

    def of(self, rows: pa.RecordBatch) -> Deltas:
        """The deltas of rows with the columns `names`. ConfigError if one is not a delta of these vectors."""
        time, ids = (rows.column(name) for name in _KNOWN)
        try:
            if self._columns is None:
                return deltas_from_payloads(self._payloads.of(rows), time, ids, self._vector)
            found = [column_at(rows, each.path) for each in self._columns]
            return deltas_from_columns(found, time, ids, self._vector)
        except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ConfigError(
                "raw has records that are not deltas of these vectors",
                hint="they were accepted before `kind: delta` was declared as it is now: "
                "declare the deltas as a stream of their own",
                where=self._where,
            ) from error


def _exact_columns(vector: Vector, declared: RawColumns) -> list[RawColumn] | None:
    """Vector, operation, values and indices, if the part has them as columns that are equal to the
    payloads."""
    inexact = declared.misfits | declared.rounded
    there = {each.column: each for each in declared.columns if each.name not in inexact}
    name, *others = vector_columns(vector)
    names = (name, Column(name.name, "integer"))  # an id may be declared as a whole number
    found = [next((there[each] for each in names if each in there), None), *map(there.get, others)]
    columns = [each for each in found if each is not None]
    return columns if len(columns) == len(found) else None
