"""Vectorised windows against the oracle: the same rows, as Arrow columns, assigned and aggregated."""

from __future__ import annotations

import math
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from tests.hypothesis_settings import at_length, examples

from tidemill.config.stream import Stream
from tidemill.config.windowing import WindowDeclaration, spec_of
from tidemill.model.slices import set_hash
from tidemill.model.streaming import Aggregate, Fate, Value
from tidemill.streaming.aggregate import aggregate
from tidemill.streaming.assign import assign
from tidemill.streaming.rows import row_schema
from tidemill.testing import StreamingOracle, StreamingRow, meet
from tidemill.testing.strategies_streaming import SCALES, TICKS, StreamingCase, declaration, streaming_cases

STREAM = Stream.model_validate(
    {
        "name": TICKS.name,
        "schema": {
            column: {"type": declared.type}
            | ({"scale": declared.scale} if declared.scale is not None else {})
            for column, declared in TICKS.fields.items()
        },
    }
)


def table_of(oracle: StreamingOracle, rows: list[StreamingRow]) -> pa.Table:
    """Used rows in the order in which they count."""
    used = [row for row in rows if oracle.fate(row).used]
    used.sort(key=lambda row: (oracle.at(row), row.seq, row.line))
    columns: dict[str, list[object]] = {
        "at": [oracle.at(row) for row in used],
        "time": [row.time for row in used],
        "seq": [row.seq for row in used],
        "line": [row.line for row in used],
        "name": [row.slice for row in used],
        "late": [oracle.fate(row) is not Fate.ON_TIME for row in used],
        "bytes": [row.size for row in used],
        "tenant": [row.tenant for row in used],
    }
    for column in oracle.spec.columns:
        columns[f"f.{column}"] = [plain(row.fields[column], SCALES.get(column)) for row in used]
    schema = row_schema(oracle.spec, STREAM)
    arrays = [
        pa.array(columns[field.name], pa.string()).dictionary_encode()
        if pa.types.is_dictionary(field.type)
        else pa.array(columns[field.name], field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def plain(value: Value, scale: int | None) -> object:
    return value if scale is None or value is None else Decimal(value).scaleb(-scale)


def same(each: Aggregate, found: object, told: Value) -> bool:
    if isinstance(found, Decimal):
        return int(found.scaleb(each.scale)) == told
    if each.type == "float" and isinstance(found, float) and isinstance(told, float):
        return math.isclose(found, told, rel_tol=1e-12, abs_tol=1e-12)
    return found == told


def check(case: StreamingCase) -> None:
    oracle = StreamingOracle(case.spec, SCALES)
    told = meet(
        case.slices, case.tolerance, idle_timeout=case.idle_timeout, max_bytes=case.max_bytes, now=case.now
    )
    table = table_of(oracle, told.rows)
    for flush in (False, True):
        assigned = assign(case.spec, table, told.watermark, flush=flush)
        every = aggregate(case.spec, STREAM, table, assigned).to_pylist()
        found = [each for each in every if each["closed"]]
        expected = oracle.numbered(told.rows, told.watermark, flush=flush)
        assert [
            (
                *(each["tenant"], each["start"], each["end"], each["ordinal"], each["rows"]),
                *(each["late_rows"], each["first_time"], each["last_time"], each["bytes"]),
                *(each["slices"], each["hash"], *(each[f"g.{column}"] for column in case.spec.grouped_by)),
            )
            for each in found
        ] == [
            (
                *(each.tenant, each.start, each.end, ordinal, each.rows),
                *(each.late_rows, each.first_time, each.last_time, each.bytes),
                *(len(each.slices), set_hash(each.slices), *each.group),
            )
            for ordinal, each in expected
        ]
        for row, (_, result) in zip(found, expected, strict=True):
            for each in case.spec.aggregates:
                assert same(each, row[f"a.{each.name}"], result.values[each.name]), each


@examples(150)
@given(streaming_cases())
def test_assigned_and_aggregated_rows_are_what_the_oracle_says(case: StreamingCase) -> None:
    check(case)


@pytest.mark.soak
@at_length(5_000)
@given(streaming_cases(max_slices=20))
def test_assigned_and_aggregated_rows_are_what_the_oracle_says_at_length(case: StreamingCase) -> None:
    check(case)


@examples(100)
@given(streaming_cases(max_slices=1, max_rows=1))
def test_a_declaration_of_a_random_window_is_read_as_that_window(case: StreamingCase) -> None:
    declared = WindowDeclaration.model_validate(declaration(case.spec))
    assert spec_of(STREAM, case.spec.name, declared) == case.spec
