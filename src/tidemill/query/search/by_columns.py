"""FILTER by the columns of a raw part, where they say of every row exactly what its payload says: row groups
are left out by their least and greatest values, and no payload is read.

A field inside of an object may also be inside of an array there, which a column does not see: rows without a
value in such a column are left to the payload. So is what is rounded, or spelled in several ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from tidemill.formats.arrays import Mask
from tidemill.formats.arrow import column_at
from tidemill.formats.conditions import holds
from tidemill.formats.declared import RawColumn, RawColumns
from tidemill.model.conditions.ast import (
    All,
    Among,
    AnyOf,
    Compare,
    Condition,
    Scalar,
    Within,
    paths_in,
)

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_EXACT: Final = ("string", "integer", "boolean", "decimal")  # types whose columns hold what JSON says

Bounds = tuple[Scalar, Scalar]


class ColumnFilter:
    """One condition over the columns of one part."""

    def __init__(self, condition: Condition, columns: Mapping[str, RawColumn], file: pq.ParquetFile) -> None:
        self._condition = condition
        self._columns = columns  # by path, as the condition names them
        self._file = file
        schema = file.schema
        self._leaves = {schema.column(number).path: number for number in range(len(schema))}

    @property
    def names(self) -> list[str]:
        return [each.leaf for each in self._columns.values()]

    def may_match(self, group: int) -> bool:
        """Whether a row of the group can pass, by what the group says of its columns."""
        return _may_match(self._condition, lambda path: self._bounds(group, path))

    def _bounds(self, group: int, path: str) -> Bounds | None:
        """Least and greatest value of a column, None: not known, or not of all rows."""
        each = self._columns[path]
        said = self._file.metadata.row_group(group).column(self._leaves[each.leaf]).statistics
        if said is None or not said.has_min_max or (len(each.path) > 1 and said.null_count != 0):
            return None
        low, high = said.min, said.max
        return (low, high) if isinstance(low, str | int | Decimal) else None

    def rows(self, group: int, inside: pa.Array) -> tuple[Mask, Mask]:
        """Which of these rows of a group pass, and which only their payloads can tell of."""
        table = self._file.read_row_group(group, self.names, use_threads=False)
        values = {path: column_at(table, each.path).take(inside) for path, each in self._columns.items()}
        unknown = np.zeros(len(inside), np.bool_)
        for path, each in self._columns.items():
            if len(each.path) > 1 and values[path].null_count:
                unknown |= np.asarray(values[path].is_null())
        return holds(self._condition, lambda path: (values[path], 0)), unknown


def column_filter(
    condition: Condition, declared: RawColumns | None, file: pq.ParquetFile
) -> ColumnFilter | None:
    """None: the columns of the part cannot tell."""
    if declared is None:
        return None
    inexact = declared.misfits | declared.rounded
    known = {each.name: each for each in declared.columns if each.column.type in _EXACT}
    found: dict[str, RawColumn] = {}
    for path in paths_in(condition):
        name = ".".join(path.segments)
        if name not in known or name in inexact or any("." in step for step in path.segments):
            return None
        found[path.text] = known[name]
    return ColumnFilter(condition, found, file)


def _may_match(condition: Condition, bounds_of: Callable[[str], Bounds | None]) -> bool:
    match condition:
        case All(terms):
            return all(_may_match(term, bounds_of) for term in terms)
        case AnyOf(terms):
            return any(_may_match(term, bounds_of) for term in terms)
        case Compare(path, operator, literal):
            return _may_hold(bounds_of(path.text), [(operator, literal.value)])
        case Within(path, low, high, False):
            return _may_hold(bounds_of(path.text), [(">=", low.value), ("<=", high.value)])
        case Among(path, literals, False):
            bounds = bounds_of(path.text)
            return any(_may_hold(bounds, [("=", literal.value)]) for literal in literals)
        case _:
            return True


def _may_hold(bounds: Bounds | None, tests: Sequence[tuple[str, Scalar]]) -> bool:
    """Whether a value between the bounds, both included, can pass all tests."""
    if bounds is None:
        return True
    low, high = bounds
    for operator, value in tests:
        if _kind(value) != _kind(low):
            return False  # values of different kinds have no order
        if operator in ("=", "<", "<=") and (low > value or (operator == "<" and low == value)):  # type: ignore[operator]
            return False
        if operator in ("=", ">", ">=") and (high < value or (operator == ">" and high == value)):  # type: ignore[operator]
            return False
    return True


def _kind(value: Scalar) -> str:
    return "string" if isinstance(value, str) else "boolean" if isinstance(value, bool) else "number"
