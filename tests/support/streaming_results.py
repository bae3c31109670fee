"""Results of a table and of the oracle in one form, so that they can be compared: by window and group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa

from tidemill.model.names import column_name
from tidemill.model.slices import set_hash
from tidemill.model.streaming import Value, WindowResult, WindowSpec, window_id
from tidemill.testing.streaming import same_results

Which = tuple[str, tuple[Value, ...]]  # window id, group


def by_id(spec: WindowSpec, numbered: Sequence[tuple[int, WindowResult]]) -> dict[Which, WindowResult]:
    """What the oracle says; slices are told by their hash, as tables do."""
    found = {}
    for ordinal, result in numbered:
        name = window_id(spec, result.tenant, result.group[: len(spec.key)], result.start, ordinal)
        found[name, result.group] = replace(result, slices=frozenset([set_hash(result.slices)]))
    assert len(found) == len(numbered)
    return found


def of_table(spec: WindowSpec, table: pa.Table) -> dict[Which, tuple[WindowResult, str]]:
    """Rows of a results table, each with the trigger that it came out by."""
    found: dict[Which, tuple[WindowResult, str]] = {}
    for row in table.to_pylist():
        result = result_of(spec, row)
        assert (row["window_id"], result.group) not in found
        found[row["window_id"], result.group] = result, row["trigger"]
    return found


def result_of(spec: WindowSpec, row: Mapping[str, object]) -> WindowResult:
    """A row of a results table. Slices are told by their hash."""
    times = {name: row[name] for name in ("start", "end", "first_time", "last_time")}
    numbers = {name: row[name] for name in ("rows", "late_rows", "bytes")}
    return WindowResult(
        tenant=str(row["tenant"]),
        group=tuple(plain(row[column_name(name)], 0) for name in spec.grouped_by),
        slices=frozenset([str(row["hash"])]),
        values={each.name: plain(row[each.name], each.scale) for each in spec.aggregates},
        **{name: instant(at) if at is not None else 0 for name, at in times.items()},
        **{name: int(str(number)) for name, number in numbers.items()},
    )


def agree(
    spec: WindowSpec, expected: Mapping[Which, WindowResult], found: Mapping[Which, WindowResult]
) -> None:
    assert found.keys() == expected.keys(), spec
    for which, result in expected.items():
        assert same_results(spec, [found[which]], [result]), (spec, found[which], result)


def instant(at: object) -> int:
    assert isinstance(at, datetime)
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def plain(value: object, scale: int) -> Value:
    if isinstance(value, Decimal):
        return int(value.scaleb(scale))
    assert value is None or isinstance(value, str | int | float | bool)
    return value
