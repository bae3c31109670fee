"""Evaluates FILTER on the columns of a raw part, where these are equivalent to the payload: row groups are
excluded by minima and maxima, and no payload is read.

A field inside an object may also be inside an array, which a column does not see: rows without a value in
such a column are left to the payload. So are fields of which a value is rounded. A float is the double that
is nearest to what JSON says, so that only rows with the double of a literal itself are left to the payload.
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
from tidemill.formats.declared_columns import RawColumn, RawColumns
from tidemill.model.conditions.ast import (
    All,
    Among,
    AnyOf,
    Compare,
    Condition,
    Scalar,
    Within,
    paths_in,
    tests_in,
    values_of_test,
)

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_TYPES: Final = ("string", "integer", "boolean", "decimal", "float")  # whose columns can be compared

Bounds = tuple[Scalar | float, Scalar | float]


class ColumnFilter:
    """One condition over the columns of one part."""

    def __init__(self, condition: Condition, columns: Mapping[str, RawColumn], file: pq.ParquetFile) -> None:
        self._condition = condition
        self._columns = columns  # by path, as the condition names them
        self._file = file
        schema = file.schema
        self._leaves = {schema.column(number).path: number for number in range(len(schema))}
        self._doubles = _doubles_of(condition, columns)

    @property
    def names(self) -> list[str]:
        return [each.leaf for each in self._columns.values()]

    def may_match(self, group: int) -> bool:
        """Whether a row of the group can pass, by the statistics of its columns."""
        return _may_match(self._condition, lambda path: self._bounds(group, path))

    def _bounds(self, group: int, path: str) -> Bounds | None:
        """Minimum and maximum of a column; None: unknown, or not of all rows."""
        each = self._columns[path]
        statistics = self._file.metadata.row_group(group).column(self._leaves[each.leaf]).statistics
        if (
            statistics is None
            or not statistics.has_min_max
            or (len(each.path) > 1 and statistics.null_count != 0)
        ):
            return None
        low, high = statistics.min, statistics.max
        return (low, high) if isinstance(low, str | int | Decimal | float) else None

    def rows(self, groups: Sequence[int], inside: pa.Array) -> tuple[Mask, Mask]:
        """Which of these rows of some groups pass, and which need their payloads."""
        table = self._file.read_row_groups(groups, self.names, use_threads=False)
        values = {path: column_at(table, each.path).take(inside) for path, each in self._columns.items()}
        unknown = np.zeros(len(inside), np.bool_)
        for path, each in self._columns.items():
            if len(each.path) > 1 and values[path].null_count:
                unknown |= np.asarray(values[path].is_null())
        for path, doubles in self._doubles.items():
            unknown |= np.isin(values[path].to_numpy(zero_copy_only=False), doubles)
        return holds(self._condition, lambda path: (values[path], 0)), unknown


def column_filter(
    condition: Condition, declared: RawColumns | None, file: pq.ParquetFile
) -> ColumnFilter | None:
    """The filter; None if the columns of the part are not enough."""
    if declared is None:
        return None
    inexact = declared.misfits | declared.rounded
    known = {each.name: each for each in declared.columns if each.column.type in _TYPES}
    found: dict[str, RawColumn] = {}
    for path in paths_in(condition):
        name = ".".join(path.segments)
        if name not in known or name in inexact or any("." in step for step in path.segments):
            return None
        found[path.text] = known[name]
    return ColumnFilter(condition, found, file)


def _doubles_of(condition: Condition, columns: Mapping[str, RawColumn]) -> dict[str, list[float]]:
    """By the path of a float the doubles of what it is compared with: equal to one of them, a value may be
    less, equal or greater."""
    found: dict[str, list[float]] = {}
    for test in tests_in(condition):
        if columns[test.operand.text].column.type == "float":
            numbers = [literal.value for literal in values_of_test(test)]
            doubles = [float(n) for n in numbers if not isinstance(n, str) and _kind(n) == "number"]
            found.setdefault(test.operand.text, []).extend(doubles)
    return found


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
    for operator, literal in tests:
        if _kind(literal) != _kind(low):
            return False  # values of different kinds are unordered
        operator, value = _as_doubles(operator, literal) if isinstance(low, float) else (operator, literal)
        if operator in ("=", "<", "<=") and (low > value or (operator == "<" and low == value)):  # type: ignore[operator]
            return False
        if operator in ("=", ">", ">=") and (high < value or (operator == ">" and high == value)):  # type: ignore[operator]
            return False
    return True


def _as_doubles(operator: str, literal: Scalar) -> tuple[str, float]:
    """A value below a literal has a double that does not exceed the literal's double."""
    assert not isinstance(literal, str)
    return {"<": "<=", ">": ">="}.get(operator, operator), float(literal)


def _kind(value: Scalar | float) -> str:
    return "string" if isinstance(value, str) else "boolean" if isinstance(value, bool) else "number"
