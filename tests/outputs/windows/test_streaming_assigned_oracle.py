"""Vectorised windows against the oracle: the same rows, as Arrow columns, assigned and aggregated."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from tests.support.hypothesis_settings import at_length, examples
from tests.support.strategies.streaming import SCALES, StreamingCase, declaration, streaming_cases
from tests.support.streaming_in_memory import STREAM, table_of

from tidemill.config.windowing import WindowDeclaration, spec_of
from tidemill.model.slices import set_hash
from tidemill.model.streaming import Aggregate, Value
from tidemill.outputs.windows.aggregate import aggregate
from tidemill.outputs.windows.assign import assign
from tidemill.testing import StreamingOracle, meet


def same(each: Aggregate, found: object, reported: Value) -> bool:
    if isinstance(found, Decimal):
        return int(found.scaleb(each.scale)) == reported
    if each.type == "float" and isinstance(found, float) and isinstance(reported, float):
        return math.isclose(found, reported, rel_tol=1e-12, abs_tol=1e-12)
    return found == reported


def check(case: StreamingCase) -> None:
    """All results: which of them meet a condition is decided when they come out."""
    case = case._replace(spec=replace(case.spec, having=None))
    oracle = StreamingOracle(case.spec, SCALES)
    met_rows = meet(
        case.slices, case.tolerance, idle_timeout=case.idle_timeout, max_bytes=case.max_bytes, now=case.now
    )
    table = table_of(case.spec, met_rows.rows)
    for flush in (False, True):
        assigned = assign(case.spec, table, met_rows.watermark, flush=flush)
        every = aggregate(case.spec, STREAM, table, assigned).to_pylist()
        found = [each for each in every if each["closed"]]
        expected = oracle.numbered(met_rows.rows, met_rows.watermark, flush=flush)
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
