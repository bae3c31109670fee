"""The oracle of streaming windows against the contract, case by case, and the feeds to ask it about."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples
from tests.support.strategies.streaming import SCALES, StreamingCase, records, renamed, streaming_cases

from tidemill.model.conditions.declared import parse_condition
from tidemill.model.streaming import (
    Aggregate,
    Close,
    Fate,
    Function,
    LatePolicy,
    Value,
    WindowKind,
    WindowSpec,
)
from tidemill.model.time import Interval
from tidemill.testing import StreamingOracle, StreamingRow, StreamingSlice, meet, same_results
from tidemill.testing.conditions import condition_is
from tidemill.testing.streaming import aggregated, nearest_root

quick = examples(100)
SUM = (Aggregate("total", Function.SUM, "a", "integer"),)


def spec(kind: str, **more: object) -> WindowSpec:
    reported: dict[str, object] = {"aggregates": SUM, **more}
    return WindowSpec("s", "w", WindowKind(kind), **reported)  # type: ignore[arg-type]


def rows(*reported: tuple[int, Value], met: int | None = None, b: str | None = None) -> list[StreamingRow]:
    return [
        StreamingRow("t", time, 1, line, "x", 10, {"a": a, "b": b}, met)
        for line, (time, a) in enumerate(reported, start=1)
    ]


def sums(
    oracle: StreamingOracle, given: list[StreamingRow], watermark: int | None, **more: bool
) -> list[object]:
    """(start, end, sum) of what stands."""
    found = oracle.standing(given, watermark, **more)
    return [(each.start, each.end, each.values["total"]) for each in found]


# --- windows -----------------------------------------------------------------------------------------


def test_a_tumbling_window_stands_once_the_watermark_has_reached_its_end() -> None:
    """V4, V5, V8."""
    oracle = StreamingOracle(spec("tumbling", size=10, step=10))
    given = rows((7, 7), (1, 1), (4, 4), (17, 17))
    assert sums(oracle, given, None) == []
    assert sums(oracle, given, 9) == []
    assert sums(oracle, given, 10) == [(0, 10, 12)]
    assert sums(oracle, given, 10, flush=True) == [(0, 10, 12), (10, 20, 17)]


def test_sliding_windows_overlap_and_lie_on_the_grid_of_their_step() -> None:
    oracle = StreamingOracle(spec("sliding", size=10, step=4))
    assert sums(oracle, rows((-1, 1), (9, 2)), 18) == [
        (-8, 2, 1),
        (-4, 6, 1),
        (0, 10, 2),
        (4, 14, 2),
        (8, 18, 2),
    ]


def test_a_session_ends_a_gap_after_its_last_row() -> None:
    oracle = StreamingOracle(spec("session", gap=5, inclusive=False))
    given = rows((1, 1), (5, 2), (10, 4))
    assert sums(oracle, given, 9) == []
    assert sums(oracle, given, 14) == [(1, 10, 3)]
    assert sums(oracle, given, 15) == [(1, 10, 3), (10, 15, 4)]


def test_rows_exactly_a_gap_apart_are_one_session() -> None:
    oracle = StreamingOracle(spec("session", gap=5))
    given = rows((1, 1), (5, 2), (10, 4), (16, 8))
    assert [total for _, _, total in sums(oracle, given, 30)] == [7, 8]


def test_count_and_state_windows_close_by_rows_that_the_watermark_has_passed() -> None:
    """V17, V20."""
    counts = StreamingOracle(spec("count", count=2))
    given = rows((1, 10), (2, 20), (3, 30), (4, 40), (5, 50))
    assert sums(counts, given, 3) == [(1, 3, 30)]
    assert sums(counts, given, 9) == [(1, 3, 30), (3, 5, 70)]
    assert sums(counts, given, 9, flush=True) == [(1, 3, 30), (3, 5, 70), (5, 6, 50)]
    states = StreamingOracle(spec("state", open=parse_condition("a = 1"), emit=parse_condition("a = 4")))
    assert sums(states, rows((1, 0), (2, 1), (3, 2), (4, 4), (5, 4)), 9) == [(2, 5, 7)]


def test_results_come_by_start_tenant_ordinal_and_group_with_nulls_first() -> None:
    oracle = StreamingOracle(spec("count", count=1, key=("b",)))
    given = (
        rows((1, 1), (1, 2), b="x") + rows((1, 4)) + [StreamingRow("s", 1, 1, 1, "x", 0, {"a": 8, "b": "y"})]
    )
    given = [row._replace(seq=seq) for seq, row in enumerate(given)]
    found = [(ordinal, each.tenant, each.group) for ordinal, each in oracle.numbered(given, 1)]
    assert found == [(0, "s", ("y",)), (0, "t", (None,)), (0, "t", ("x",)), (1, "t", ("x",))]


def test_a_result_tells_what_it_is_made_of() -> None:
    oracle = StreamingOracle(spec("tumbling", size=10, step=10, late=LatePolicy.NEXT_WINDOW))
    (found,) = oracle.standing(rows((12, 1)) + rows((3, 2), met=11)[:1], 20)
    assert (found.rows, found.late_rows, found.first_time, found.last_time, found.bytes) == (2, 1, 3, 12, 20)
    assert found.slices == {"x"}


# --- late rows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "time", "fate", "at"),
    [
        (LatePolicy.DISCARD, 11, Fate.ON_TIME, 11),
        (LatePolicy.DISCARD, 10, Fate.DISCARDED, 10),
        (LatePolicy.NEXT_WINDOW, 3, Fate.NEXT_WINDOW, 10),
        (LatePolicy.REEMIT, 6, Fate.REEMITTED, 6),
        (LatePolicy.REEMIT, 5, Fate.TOO_LATE, 5),
    ],
)
def test_the_fate_of_a_row_follows_from_the_watermark_it_met(
    policy: LatePolicy, time: int, fate: Fate, at: int
) -> None:
    oracle = StreamingOracle(spec("tumbling", size=10, step=10, late=policy, max_lateness=4))
    (row,) = rows((time, 1), met=10)
    assert (oracle.fate(row), oracle.at(row)) == (fate, at)
    assert oracle.fate(row._replace(met=None)) is Fate.ON_TIME
    assert oracle.fates([row]) == {fate: 1}


def test_a_complete_window_has_the_rows_of_the_slices_its_datasets_were_built_of() -> None:
    oracle = StreamingOracle(spec("tumbling", size=20, step=20, close=Close.COMPLETE))
    given = rows((1, 1), (12, 2), met=50) + [row._replace(slice="y") for row in rows((13, 4), (25, 8))]

    def found(built: dict[Interval, frozenset[str]]) -> list[object]:
        return [(each.start, each.values["total"], each.late_rows) for each in oracle.complete(given, built)]

    first, second = Interval(0, 10), Interval(10, 20)
    both = frozenset("xy")
    assert found({first: both}) == []
    assert found({first: both, second: frozenset("x")}) == [(0, 3, 0)]
    assert found({first: both, second: both, Interval(20, 30): both}) == [(0, 7, 0)]
    assert found({Interval(0, 100): both}) == [(0, 7, 0), (20, 8, 0)]


# --- watermarks --------------------------------------------------------------------------------------


def landed(source: str, arrival: int, *times: int) -> StreamingSlice:
    return StreamingSlice(f"{source}{arrival}", source, arrival, tuple(("t", time, 10, {}) for time in times))


def test_rows_of_a_slice_meet_the_watermark_that_earlier_slices_made() -> None:
    met_rows = meet([landed("a", 0, 3, 1, 2), landed("a", 1, 4), landed("a", 2)], 1)
    assert [(row.time, row.met) for row in met_rows.rows] == [(3, None), (1, None), (2, None), (4, 2)]
    assert [(row.seq, row.line) for row in met_rows.rows] == [(1, 1), (1, 2), (1, 3), (2, 1)]
    assert met_rows.watermark == 3


def test_the_slowest_source_holds_the_watermark_until_it_is_idle() -> None:
    slices = [landed("slow", 0, 5), landed("fast", 30, 25)]
    assert meet(slices, 0).watermark == 5
    assert meet(slices, 0, idle_timeout=60, now=59).watermark == 5
    assert meet(slices, 0, idle_timeout=60, now=60).watermark == 25
    assert meet(slices, 0, idle_timeout=60, now=600).watermark == 25
    back = meet([*slices, landed("slow", 70, 6), landed("fast", 80, 45)], 0, idle_timeout=60)
    assert ([row.met for row in back.rows], back.watermark) == ([None, 5, 25, 25], 25)


def test_a_full_buffer_moves_the_watermark_as_far_as_it_must() -> None:
    met_rows = meet([landed("a", 0, 1, 12), landed("a", 1, 25, 31)], 1000, max_bytes=20)
    assert (met_rows.watermark, met_rows.released_early) == (12, 2)


# --- aggregates and conditions -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "type", "values", "expected"),
    [
        (Function.COUNT, "string", ["a", None, "b"], 2),
        (Function.SUM, "integer", [2**63 - 1, 2**63 - 1], 2**64 - 2),
        (Function.SUM, "float", [1e16, 1.0, -1e16], 1.0),
        (Function.SUM, "float", [1e308, 1e308], inf),
        (Function.SUM, "integer", [None], None),
        (Function.AVG, "integer", [1, 2], 1.5),
        (Function.MIN, "string", ["é", "z"], "z"),
        (Function.MAX, "float", [1.5, inf], inf),
        (Function.FIRST, "boolean", [None, False, True], False),
        (Function.LAST, "boolean", [True, False, None], False),
        (Function.STDDEV, "integer", [1], None),
        (Function.STDDEV, "integer", [1, 2, 3, 4], (5 / 3) ** 0.5),
    ],
)
def test_aggregates(function: Function, type: str, values: list[Value], expected: Value) -> None:
    reported = [StreamingRow("t", 0, 1, line, "x", 0, {"v": value}) for line, value in enumerate(values)]
    assert aggregated(Aggregate("v", function, "v", type), reported) == expected


@pytest.mark.parametrize(
    ("percent", "expected"), [("0.1", 15), ("20", 15), ("20.1", 20), ("50", 35), ("100", 50)]
)
def test_a_percentile_is_the_value_of_the_nearest_rank(percent: str, expected: int) -> None:
    reported = [
        StreamingRow("t", 0, 1, line, "x", 0, {"v": v}) for line, v in enumerate((40, 15, 35, 50, 20))
    ]
    assert (
        aggregated(Aggregate("v", Function.PERCENTILE, "v", "integer", percent=percent), reported) == expected
    )


@quick
@given(st.floats(0, 1e300))
def test_the_nearest_root_of_a_square_is_the_number(number: float) -> None:
    assert nearest_root(Fraction(number) ** 2) == number


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 1", True),
        ("a > 0.5 and b = 'x'", True),
        ("n = 1", None),
        ("not n = 1", None),
        ("n = 1 and a = 2", False),
        ("n = 1 or a = 1", True),
        ("n is null", True),
        ("n in (1, 2)", None),
        ("b in ('y', 'x')", True),
        ("ok != true", True),
        ("a between 1 and 2", True),
        ("a not between 1 and 2", False),
        ("b like '_'", True),
        ("b not ilike 'X%'", False),
        ("n like 'x'", None),
        ("b = 1", None),
    ],
)
def test_conditions_are_true_false_or_unknown(text: str, expected: bool | None) -> None:
    given: dict[str, str | bool | Fraction | None] = {"a": Fraction(1), "b": "x", "n": None, "ok": False}
    assert condition_is(parse_condition(text).condition, given.__getitem__) is expected


def test_results_are_compared_to_the_bit_but_for_averages_of_floats() -> None:
    both = (Aggregate("mean", Function.AVG, "f", "float"), *SUM)
    declared = spec("tumbling", size=10, step=10, aggregates=both)
    (one,) = StreamingOracle(declared).standing(
        [StreamingRow("t", 1, 1, 1, "x", 0, {"f": 0.3, "a": 1})], None, flush=True
    )
    assert same_results(declared, [one], [replace(one, values={"mean": 0.1 + 0.2, "total": 1})])
    assert not same_results(declared, [one], [replace(one, values={"mean": 0.3, "total": 2})])
    assert not same_results(declared, [one], [replace(one, values={"mean": nan, "total": 1})])
    assert not same_results(declared, [one], [])


# --- cases -------------------------------------------------------------------------------------------


@quick
@given(streaming_cases())
def test_records_of_a_case_say_what_its_rows_say(case: StreamingCase) -> None:
    for each in case.slices:
        assert [len(record) for record in records(each)] == [size for _, _, size, _ in each.rows]
        for record, (tenant, time, _, fields) in zip(records(each), each.rows, strict=True):
            document = json.loads(record, parse_float=Fraction)
            assert (document["tenant"], document["at"], document["b"], document["a"]) == (
                tenant,
                time,
                fields["b"],
                fields["a"],
            )
            d = fields["d"]
            assert document["d"] == (Fraction(d, 100) if isinstance(d, int) else None)
    arrivals = [each.arrival for each in case.slices]
    assert arrivals == sorted(arrivals)
    assert all(time < each.arrival for each in case.slices for _, time, _, _ in each.rows)
    assert [each.name for each in renamed(case.slices, {each.name: "n" for each in case.slices})] == [
        "n"
    ] * len(case.slices)


@pytest.mark.variety
def test_cases_are_of_every_kind_and_rich_in_late_rows() -> None:
    seen: Counter[object] = Counter()

    @examples(900)
    @given(streaming_cases())
    def look(case: StreamingCase) -> None:
        oracle = StreamingOracle(case.spec, SCALES)
        met_rows = meet(
            case.slices,
            case.tolerance,
            idle_timeout=case.idle_timeout,
            max_bytes=case.max_bytes,
            now=case.now,
        )
        seen.update([case.spec.kind, case.spec.late])
        seen.update(fate for fate, count in oracle.fates(met_rows.rows).items() if count)
        seen["standing"] += bool(oracle.standing(met_rows.rows, met_rows.watermark))
        seen["late used"] += any(
            each.late_rows for each in oracle.standing(met_rows.rows, met_rows.watermark)
        )

    look()
    assert set(seen) >= {*WindowKind, *LatePolicy, *Fate}
    assert seen["standing"] > 100
    assert seen["late used"] > 20
