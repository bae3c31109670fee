"""Streaming windows in memory, case by case: the golden cases, and more of their kind, on the kernels of the
product."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import count

import pytest
from tests.support.streaming_in_memory import STREAM, Emitted, EventTime, ProcessingTime, Windows

from tidemill.model.conditions.declared import parse_condition
from tidemill.model.slices import set_hash
from tidemill.model.streaming import (
    Aggregate,
    Fate,
    Function,
    LatePolicy,
    Trigger,
    Value,
    WindowKind,
    WindowSpec,
    window_id,
)
from tidemill.model.time import HOUR, MILLISECOND, SECOND, WEEK, parse_instant
from tidemill.testing.streaming import StreamingRow, nearest_root

SUM = (Aggregate("total", Function.SUM, "a", "integer"),)
_seqs = count(1)


def spec(kind: str, **more: object) -> WindowSpec:
    """A window that sums `a`."""
    described: dict[str, object] = {"aggregates": SUM, **more}
    if kind == "tumbling":
        described["step"] = described["size"]
    return WindowSpec(STREAM.name, "w", WindowKind(kind), **described)  # type: ignore[arg-type]


TEN = spec("tumbling", size=10 * SECOND)


def row(
    seconds: float, a: Value, *, tenant: str = "t", seq: int = 0, line: int = 1, **fields: Value
) -> StreamingRow:
    seq = seq or next(_seqs)
    time = round(seconds * SECOND)
    return StreamingRow(tenant, time, seq, line, f"slice-{seq}", 10, {"a": a, **fields})


def batch(*rows: tuple[float, Value] | tuple[float, Value, Value], by: str = "b") -> list[StreamingRow]:
    """Rows of one slice: seconds, `a`, and perhaps the value of a further column."""
    seq = next(_seqs)
    return [
        plain._replace(fields={**plain.fields, by: each[2]}) if len(each) > 2 else plain
        for line, each in enumerate(rows, start=1)
        for plain in [row(each[0], each[1], seq=seq, line=line)]
    ]


def sums(emitted: Iterable[Emitted]) -> list[Value]:
    return [each.result.values["total"] for each in emitted if not each.withdrawn]


def described(emitted: Iterable[Emitted]) -> list[tuple[object, ...]]:
    """(start, end in seconds, sum, revision, trigger) of results; of those taken back, `gone` for the sum."""
    return [
        (
            each.result.start / SECOND,
            each.result.end / SECOND,
            "gone" if each.withdrawn else each.result.values["total"],
            each.revision,
            str(each.trigger),
        )
        for each in emitted
    ]


def moment(instant: int | None) -> float | None:
    return None if instant is None else instant / SECOND


# --- the ordering of a pipeline ----------------------------------------------------------------------


def test_v1_v2_rows_wait_until_the_watermark_has_reached_them() -> None:
    pipe = EventTime(spec("count", count=1), SECOND)
    assert sums(pipe.land(batch((3, 3), (1, 1), (2, 2)))) == [1, 2]
    assert moment(pipe.watermark) == 2
    assert sums(pipe.land(batch((4, 4)))) == [3]
    assert moment(pipe.watermark) == 3


def test_v3_without_tolerance_a_row_of_the_watermark_is_late() -> None:
    pipe = EventTime(spec("count", count=1), 0)
    assert sums(pipe.land(batch((2, 2)))) == [2]
    assert moment(pipe.watermark) == 2
    assert pipe.land(batch((2, 2), (1, 1))) == []
    assert moment(pipe.watermark) == 2
    assert pipe.fates == {Fate.ON_TIME: 1, Fate.DISCARDED: 2}


def v4() -> EventTime:
    pipe = EventTime(TEN, 7 * SECOND)
    for seconds in (7, 1, 4):
        assert pipe.land(batch((seconds, seconds))) == []
    return pipe


def test_v4_v5_v6_v7_a_tumbling_window_comes_out_when_the_watermark_reaches_its_end() -> None:
    pipe = v4()
    assert moment(pipe.watermark) == 0
    assert described(pipe.land(batch((17, 17)))) == [(0, 10, 12, 1, "watermark")]  # V5
    assert moment(pipe.watermark) == 10
    assert pipe.land(batch((2, 100))) == []  # V6
    assert pipe.fates[Fate.DISCARDED] == 1
    assert described(pipe.land(batch((27, 27)))) == [(10, 20, 17, 1, "watermark")]  # V7
    assert moment(pipe.watermark) == 20


def test_v8_a_graceful_stop_brings_out_what_is_open_and_makes_up_no_watermark() -> None:
    pipe = v4()
    assert described(pipe.stop()) == [(0, 10, 12, 1, "stop")]
    assert moment(pipe.watermark) == 0
    assert pipe.stop() == []


def test_a_stop_flushes_all_windows_in_order() -> None:
    pipe = EventTime(TEN, 100 * SECOND)
    pipe.land(batch((35, 3), (5, 1), (15, 2)))
    assert described(pipe.stop()) == [(0, 10, 1, 1, "stop"), (10, 20, 2, 1, "stop"), (30, 40, 3, 1, "stop")]


def test_after_a_stop_more_rows_make_the_next_revision_and_equal_ones_none() -> None:
    pipe = v4()
    pipe.stop()
    pipe.land(batch((8, 5)))
    pipe.land(batch((12, 1)))
    assert described(pipe.stop()) == [(0, 10, 17, 2, "stop"), (10, 20, 1, 1, "stop")]
    assert described(pipe.land(batch((27, 2)))) == []  # both close as they had come out
    assert moment(pipe.watermark) == 20


# --- kinds -------------------------------------------------------------------------------------------


def test_v10_groups_of_a_tumbling_window_have_a_result_each() -> None:
    windows = Windows(spec("tumbling", size=10 * SECOND, group_by=("b",)))
    windows.push(batch((1, 2, "b1"), (2, 4, "b2"), (3, 3, "b1")))
    first = windows.advance(10 * SECOND)
    assert [(each.result.group, each.result.values["total"]) for each in first] == [
        (("b1",), 5),
        (("b2",), 4),
    ]
    assert first[0].window_id == first[1].window_id
    windows.push(batch((11, 7, "b2")))
    second = windows.advance(20 * SECOND)
    assert [(each.result.group, each.result.values["total"]) for each in second] == [(("b2",), 7)]


def test_v17_a_count_window_comes_out_with_its_last_row_and_a_stop_flushes_the_rest() -> None:
    windows = Windows(spec("count", count=2))
    windows.push(batch((1, 10), (2, 20), (3, 30), (4, 40), (5, 50)))
    assert described(windows.advance(3 * SECOND)) == [(1, 2.000001, 30, 1, "count")]
    assert described(windows.advance(5 * SECOND)) == [(3, 4.000001, 70, 1, "count")]
    assert described(windows.stop()) == [(5, 5.000001, 50, 1, "stop")]


def test_v20_a_state_window_opens_and_emits_by_conditions_and_groups_inside() -> None:
    windows = Windows(
        spec("state", open=parse_condition("a = 1"), emit=parse_condition("a = 4"), group_by=("k",))
    )
    windows.push(batch((1, 1, 1), (2, 2, 2), (3, 4, 1), by="k"))
    out = windows.advance(3 * SECOND)
    assert [(each.result.group, each.result.values["total"]) for each in out] == [((1,), 5), ((2,), 2)]
    assert {each.trigger for each in out} == {Trigger.STATE}


def test_d8_windows_without_rows_hold_nobody_up() -> None:
    windows = Windows(spec("tumbling", size=100))
    windows.push([StreamingRow("t", time, 1, line, "x") for line, time in enumerate((10, 50, 350), start=1)])
    out = windows.advance(1000)
    assert [(each.result.start, each.result.end, each.result.rows) for each in out] == [
        (0, 100, 2),
        (300, 400, 1),
    ]


def test_a_condition_on_a_float_takes_the_nearest_double_of_its_number() -> None:
    """As it does where whole columns are looked at: 0.1 of a feed is the 0.1 of the declaration."""
    windows = Windows(spec("state", open=parse_condition("f = 0.1"), emit=parse_condition("f > 0.1")))
    rows = [StreamingRow("t", at, 1, at, "x", fields={"a": at, "f": f}) for at, f in ((1, 0.1), (2, 0.5))]
    windows.push(rows)
    assert [each.result.values["total"] for each in windows.advance(2)] == [3]


def test_rows_outside_a_state_window_are_in_none_and_an_opening_row_may_emit() -> None:
    windows = Windows(spec("state", open=parse_condition("a >= 1"), emit=parse_condition("a >= 4")))
    windows.push(batch((1, 0), (2, 5), (3, 0), (4, 1), (5, 0), (6, 9), (7, 1)))
    assert described(windows.advance(7 * SECOND)) == [
        (2, 2.000001, 5, 1, "state"),
        (4, 6.000001, 10, 1, "state"),
    ]
    assert described(windows.stop()) == [(7, 7.000001, 1, 1, "stop")]


def test_conditions_compare_decimals_by_their_scale() -> None:
    windows = Windows(spec("state", open=parse_condition("d >= 1.5"), emit=parse_condition("d < 0.25")))
    windows.push(batch((1, 1, 149), (2, 2, 150), (3, 4, 25), (4, 8, 24), (5, 16, 24), by="d"))
    assert sums(windows.advance(9 * SECOND)) == [14]


def test_a_row_is_in_every_sliding_window_that_holds_it() -> None:
    pipe = EventTime(spec("sliding", size=10 * SECOND, step=4 * SECOND), 0)
    assert described(pipe.land(batch((9, 1), (12, 2)))) == [(0, 10, 1, 1, "watermark")]
    assert described(pipe.land(batch((16, 4)))) == [(4, 14, 3, 1, "watermark")]
    assert described(pipe.stop()) == [(8, 18, 7, 1, "stop"), (12, 22, 6, 1, "stop"), (16, 26, 4, 1, "stop")]


def test_a_row_exactly_a_gap_after_the_last_one_is_of_the_same_session() -> None:
    pipe = EventTime(spec("session", gap=5 * SECOND), 0)
    assert pipe.land(batch((1, 1), (6, 2))) == []
    assert pipe.land(batch((11, 4))) == []
    assert described(pipe.land(batch((16.000001, 8)))) == [(1, 16, 7, 1, "watermark")]


def test_exclusive_a_row_at_the_instant_that_a_session_ends_begins_the_next() -> None:
    pipe = EventTime(spec("session", gap=5 * SECOND, inclusive=False), 0)
    assert pipe.land(batch((1, 1), (5.999999, 2), (10.999998, 4))) == []
    assert described(pipe.land(batch((15.999998, 8)))) == [(1, 15.999998, 7, 1, "watermark")]
    assert described(pipe.land(batch((21, 16)))) == [(15.999998, 20.999998, 8, 1, "watermark")]


def test_sessions_are_of_a_key_and_of_a_tenant() -> None:
    windows = Windows(spec("session", gap=3 * SECOND, key=("b",)))
    windows.push([row(1, 1, b="x"), row(2, 2, b="y"), row(2, 4, b="x", tenant="u"), row(3, 8, b="x")])
    windows.push([row(4, 16, b=None)])
    out = windows.advance(7 * SECOND)
    assert [(each.result.tenant, each.result.group, each.result.values["total"]) for each in out] == [
        ("t", ("x",), 9),
        ("t", ("y",), 2),
        ("u", ("x",), 4),
        ("t", (None,), 16),
    ]
    assert len({each.window_id for each in out}) == 4


def test_counts_are_of_a_key_and_windows_of_one_instant_are_numbered() -> None:
    declared = spec("count", count=1, key=("b",))
    windows = Windows(declared)
    windows.push(batch((1, 1, "x"), (1, 2, "x"), (1, 4, "y")))
    out = windows.advance(SECOND)
    assert {each.window_id: each.result.values["total"] for each in out} == {
        window_id(declared, "t", ("x",), SECOND, 0): 1,
        window_id(declared, "t", ("x",), SECOND, 1): 2,
        window_id(declared, "t", ("y",), SECOND, 0): 4,
    }


def test_late_rows_that_count_in_the_next_count_window_make_no_other_window_come_out_again() -> None:
    """Those that count at one instant are numbered in the order in which they came."""
    declared = spec("count", count=1, late=LatePolicy.NEXT_WINDOW)
    windows = Windows(declared)
    windows.push(batch((1, 1)))
    out = windows.advance(SECOND)
    for late in (0.5, 0.7, 0.1):
        windows.late(row(late, 2))
        out += windows.advance(SECOND)
    assert [each.window_id for each in out] == [window_id(declared, "t", (), SECOND, n) for n in range(4)]
    assert {each.revision for each in out} == {1}


@pytest.mark.parametrize("unit", [MILLISECOND, WEEK])
def test_windows_of_milliseconds_and_of_weeks_lie_on_the_same_kind_of_grid(unit: int) -> None:
    """Weeks are aligned to the epoch, and so begin on Thursdays."""
    windows = Windows(spec("tumbling", size=unit))
    thursday = parse_instant("2024-02-29T00:00:00Z")
    times = (thursday, thursday + unit - 1, thursday + unit)
    windows.push(
        StreamingRow("t", time, 1, line, "x", fields={"a": 1}) for line, time in enumerate(times, start=1)
    )
    first = windows.advance(thursday + unit)
    assert [(each.result.start, each.result.end, each.result.rows) for each in first] == [
        (thursday, thursday + unit, 2)
    ]
    assert windows.advance(thursday + 2 * unit - 1) == []
    assert [each.result.start for each in windows.advance(thursday + 2 * unit)] == [thursday + unit]


def test_times_before_the_epoch_lie_in_windows_too() -> None:
    windows = Windows(TEN)
    windows.push(batch((-1, 1), (-10, 2), (-10.000001, 4)))
    assert described(windows.advance(0)) == [(-20, -10, 4, 1, "watermark"), (-10, 0, 3, 1, "watermark")]


# --- late rows ---------------------------------------------------------------------------------------


def test_a_late_row_counts_in_the_window_of_the_watermark_it_met() -> None:
    pipe = EventTime(spec("tumbling", size=10 * SECOND, late=LatePolicy.NEXT_WINDOW), 2 * SECOND)
    pipe.land(batch((3, 1)))
    assert described(pipe.land(batch((14, 2)))) == [(0, 10, 1, 1, "watermark")]
    assert pipe.land(batch((4, 4))) == []  # late: the watermark is 12
    (out,) = pipe.land(batch((22, 8)))
    assert described([out]) == [(10, 20, 6, 1, "watermark")]
    assert (out.result.late_rows, moment(out.result.first_time), moment(out.result.last_time)) == (1, 4, 14)
    assert pipe.fates[Fate.NEXT_WINDOW] == 1


def test_next_window_at_tolerance_0_keeps_rows_of_equal_times() -> None:
    pipe = EventTime(spec("tumbling", size=10 * SECOND, late=LatePolicy.NEXT_WINDOW), 0)
    for each in (1, 2, 4):
        assert pipe.land(batch((5, each))) == []
    assert described(pipe.land(batch((10, 8)))) == [(0, 10, 7, 1, "watermark")]


def test_reemit_brings_a_window_out_again_while_lateness_allows_it() -> None:
    declared = spec("tumbling", size=10 * SECOND, late=LatePolicy.REEMIT, max_lateness=20 * SECOND)
    pipe = EventTime(declared, 0)
    pipe.land(batch((1, 1)))
    (first,) = pipe.land(batch((12, 2)))
    (again,) = pipe.land(batch((2, 4)))
    assert described([first, again]) == [(0, 10, 1, 1, "watermark"), (0, 10, 5, 2, "late")]
    assert again.window_id == first.window_id
    assert (again.result.late_rows, again.supersedes, again.slices) == (1, (), 2)
    pipe.land(batch((25, 8)))
    assert described(pipe.land(batch((5, 16)))) == [(0, 10, 21, 3, "late")]  # 20 s late: the last that counts
    assert pipe.land(batch((4.999999, 32))) == []
    assert pipe.fates == {Fate.ON_TIME: 3, Fate.REEMITTED: 2, Fate.TOO_LATE: 1}


def test_a_late_row_may_open_a_window_that_nobody_had_seen() -> None:
    pipe = EventTime(spec("tumbling", size=SECOND, late=LatePolicy.REEMIT, max_lateness=HOUR), 0)
    pipe.land(batch((100, 1)))
    assert described(pipe.land(batch((40.5, 2)))) == [(40, 41, 2, 1, "watermark")]


def test_a_late_row_in_a_window_that_is_still_open_just_counts() -> None:
    pipe = EventTime(spec("tumbling", size=10 * SECOND, late=LatePolicy.REEMIT, max_lateness=SECOND), 0)
    pipe.land(batch((5, 1)))
    assert pipe.land(batch((4, 2))) == []
    assert described(pipe.land(batch((10, 4)))) == [(0, 10, 3, 1, "watermark")]


def session_by_late_rows() -> tuple[EventTime, list[Emitted]]:
    """Sessions [1, 8) and [10, 17) are out."""
    declared = spec("session", gap=5 * SECOND, late=LatePolicy.REEMIT, max_lateness=HOUR)
    pipe = EventTime(declared, 0)
    out = []
    for seconds, a in ((1, 1), (3, 2), (10, 4), (12, 8), (30, 16)):
        out += pipe.land(batch((seconds, a)))
    assert described(out) == [(1, 8, 3, 1, "watermark"), (10, 17, 12, 1, "watermark")]
    return pipe, out


def test_sessions_that_a_late_row_merges_are_replaced_by_one() -> None:
    pipe, (early, late) = session_by_late_rows()
    merged, gone = pipe.land(batch((6, 32)))
    assert described([merged, gone]) == [(1, 17, 47, 2, "late"), (10, 17, "gone", 2, "late")]
    assert merged.window_id == early.window_id
    assert merged.supersedes == (late.window_id,)
    assert (gone.window_id, gone.superseded_by) == (late.window_id, merged.window_id)


def test_a_session_that_begins_earlier_by_a_late_row_is_another_one() -> None:
    pipe, (early, _) = session_by_late_rows()
    fresh, gone = pipe.land(batch((0, 32)))
    assert described([fresh, gone]) == [(0, 8, 35, 1, "watermark"), (1, 8, "gone", 2, "late")]
    assert fresh.window_id != early.window_id
    assert fresh.supersedes == (early.window_id,)
    assert gone.superseded_by == fresh.window_id


def test_a_late_row_between_sessions_that_touches_neither_is_a_session_of_its_own() -> None:
    pipe, _ = session_by_late_rows()
    assert described(pipe.land(batch((22, 32)))) == [(22, 27, 32, 1, "watermark")]


def test_a_session_that_a_late_row_prolongs_beyond_the_watermark_is_not_over() -> None:
    declared = spec("session", gap=5 * SECOND, late=LatePolicy.REEMIT, max_lateness=HOUR)
    windows = Windows(declared)
    windows.push(batch((1, 1)))
    assert described(windows.advance(7 * SECOND)) == [(1, 6, 1, 1, "watermark")]
    windows.late(row(5, 2))
    assert described(windows.advance(7 * SECOND)) == [(1, 6, "gone", 2, "late")]
    assert described(windows.advance(10 * SECOND)) == [(1, 10, 3, 3, "late")]


def test_sessions_merged_into_one_that_is_still_open_are_named_when_it_comes_out() -> None:
    windows = Windows(spec("session", gap=5 * SECOND, late=LatePolicy.REEMIT, max_lateness=HOUR))
    windows.push(batch((2, 1), (9, 2)))
    (first,) = windows.advance(9 * SECOND)
    windows.late(row(1, 4))
    windows.late(row(5, 8))
    (gone,) = windows.advance(9 * SECOND)
    assert gone.withdrawn
    (merged,) = windows.advance(14 * SECOND)
    assert described([merged]) == [(1, 14, 15, 1, "watermark")]
    assert merged.supersedes == (first.window_id,)
    assert gone.superseded_by == merged.window_id


def test_a_late_row_changes_every_later_count_window_of_its_key() -> None:
    declared = spec("count", count=2, key=("b",), late=LatePolicy.REEMIT, max_lateness=HOUR)
    windows = Windows(declared)
    windows.push(batch((1, 1, "x"), (2, 2, "x"), (3, 4, "x"), (4, 8, "x"), (1, 16, "y"), (2, 32, "y")))
    before = windows.advance(4 * SECOND)
    assert sums(before) == [3, 48, 12]
    windows.late(row(1.5, 64, b="x"))
    after = windows.advance(4 * SECOND)
    assert described(after) == [
        (1, 1.500001, 65, 2, "late"),
        (2, 3.000001, 6, 1, "count"),
        (3, 4.000001, "gone", 2, "late"),
    ]
    assert after[2].superseded_by == after[1].window_id
    assert after[1].supersedes == (before[2].window_id,)


def test_a_window_of_the_same_slices_but_other_rows_comes_out_again() -> None:
    """Rows of one instant: the late one moves the others on, and no slice is new to the second window."""
    windows = Windows(spec("count", count=2, late=LatePolicy.REEMIT, max_lateness=HOUR))
    windows.push(batch((1, 1), (1, 2), (1, 4)))
    (first,) = windows.advance(SECOND)
    windows.late(row(0, 8))
    fresh, again = windows.advance(SECOND)
    assert described([first, fresh, again]) == [
        (1, 1.000001, 3, 1, "count"),
        (0, 1.000001, 9, 1, "count"),
        (1, 1.000001, 6, 2, "late"),
    ]
    assert again.window_id == first.window_id
    assert again.result.slices == first.result.slices


def test_a_late_row_that_opens_a_state_earlier_changes_what_follows() -> None:
    windows = Windows(
        spec(
            "state",
            open=parse_condition("a = 1"),
            emit=parse_condition("a = 4"),
            late=LatePolicy.REEMIT,
            max_lateness=HOUR,
        )
    )
    windows.push(batch((1, 0), (2, 2), (3, 4), (5, 1), (6, 4)))
    assert sums(windows.advance(6 * SECOND)) == [5]
    windows.late(row(1.5, 1))
    assert described(windows.advance(6 * SECOND)) == [(1.5, 3.000001, 7, 1, "state")]


# --- sources and time --------------------------------------------------------------------------------


def test_the_slowest_source_holds_the_watermark_until_it_is_idle() -> None:
    pipe = EventTime(TEN, 0, idle_timeout=60 * SECOND)
    pipe.land(batch((5, 1)), source="slow", arrival=0)
    assert pipe.land(batch((25, 2)), source="fast", arrival=30 * SECOND) == []
    assert moment(pipe.watermark) == 5
    assert pipe.tick(60 * SECOND - 1) == []
    assert described(pipe.tick(60 * SECOND)) == [(0, 10, 1, 1, "watermark")]
    assert moment(pipe.watermark) == 25


def test_an_idle_source_leaves_before_a_slice_that_arrives_later_meets_the_watermark() -> None:
    """And what it sends when it is back is late, and sends time nowhere."""
    declared = spec("tumbling", size=10 * SECOND, late=LatePolicy.REEMIT, max_lateness=HOUR)
    pipe = EventTime(declared, 0, idle_timeout=60 * SECOND)
    pipe.land(batch((5, 1)), source="slow", arrival=0)
    pipe.land(batch((25, 2)), source="fast", arrival=30 * SECOND)
    out = pipe.land(batch((6, 4)), source="slow", arrival=70 * SECOND)
    assert described(out) == [(0, 10, 5, 1, "watermark")]  # nobody looked in between
    assert out[0].result.late_rows == 1
    assert moment(pipe.watermark) == 25
    assert pipe.land(batch((45, 8)), source="fast", arrival=80 * SECOND) == []  # slow is back, at 6 s
    assert moment(pipe.watermark) == 25


def test_a_full_buffer_moves_the_watermark() -> None:
    pipe = EventTime(TEN, HOUR, max_bytes=20)  # a row takes 10
    assert pipe.land(batch((1, 1), (12, 2))) == []
    assert described(pipe.land(batch((25, 4), (31, 8)))) == [(0, 10, 1, 1, "watermark")]
    assert moment(pipe.watermark) == 12


def test_in_processing_time_ticks_are_the_watermarks() -> None:
    pipe = ProcessingTime(TEN)
    pipe.land(batch((900, 1), (0, 2)), arrival=4 * SECOND)
    assert pipe.tick(9 * SECOND) == []
    assert described(pipe.tick(10 * SECOND)) == [(0, 10, 3, 1, "watermark")]
    pipe.land(batch((5, 4)), arrival=10 * SECOND)  # at the very instant of the tick
    (out,) = pipe.stop()
    assert described([out]) == [(10, 20, 4, 1, "stop")]
    assert (out.result.late_rows, moment(out.result.first_time)) == (0, 10)
    assert pipe.windows.fates == {Fate.ON_TIME: 3}


def test_in_processing_time_a_tick_at_the_end_of_a_session_does_not_end_it() -> None:
    """A slice may still arrive in that instant, and joins it."""
    pipe = ProcessingTime(spec("session", gap=5 * SECOND))
    pipe.land(batch((900, 1)), arrival=SECOND)
    assert pipe.tick(6 * SECOND) == []
    pipe.land(batch((900, 2)), arrival=6 * SECOND)
    assert pipe.tick(11 * SECOND) == []
    assert described(pipe.tick(11 * SECOND + 1)) == [(1, 11, 3, 1, "watermark")]


def test_in_processing_time_a_tick_at_the_end_ends_a_session_that_does_not_include_it() -> None:
    pipe = ProcessingTime(spec("session", gap=5 * SECOND, inclusive=False))
    pipe.land(batch((900, 1)), arrival=SECOND)
    assert described(pipe.tick(6 * SECOND)) == [(1, 6, 1, 1, "watermark")]


# --- what a result says ------------------------------------------------------------------------------


def aggregates(values: Iterable[Value], column: str) -> Mapping[str, Value]:
    type = STREAM.fields[column].type
    scale = STREAM.fields[column].scale or 0
    functions = [Aggregate(str(f), f, column, type, scale) for f in Function if f is not Function.PERCENTILE]
    percentiles = [
        Aggregate(f"p{p}", Function.PERCENTILE, column, type, scale, p) for p in ("1", "50", "99.9")
    ]
    rows_counted = Aggregate("rows_counted", Function.COUNT)
    windows = Windows(spec("tumbling", size=SECOND, aggregates=(rows_counted, *functions, *percentiles)))
    windows.push(StreamingRow("t", n, 1, n, "x", fields={column: value}) for n, value in enumerate(values))
    (out,) = windows.advance(SECOND)
    return out.result.values


def test_aggregates_are_exact_and_nulls_do_not_count() -> None:
    assert aggregates([None, 3, 2**63 - 1, None, 4, 1], "a") == {
        "rows_counted": 6,
        "count": 4,
        "sum": 2**63 + 7,
        "avg": (2**63 + 7) / 4,
        "min": 1,
        "max": 2**63 - 1,
        "first": 3,
        "last": 1,
        "stddev": 4.611686018427388e18,
        "p1": 1,
        "p50": 3,
        "p99.9": 2**63 - 1,
    }


def test_decimals_keep_their_scale_and_averages_are_numbers() -> None:
    found = aggregates([10, 20, 25], "d")
    assert (found["sum"], found["min"], found["p50"]) == (55, 10, 20)
    assert found["avg"] == 55 / 300
    assert found["stddev"] == nearest_root(Fraction(3 * (100 + 400 + 625) - 55 * 55, 3 * 2 * 10_000))


def test_floats_add_up_in_any_order_and_strings_have_an_order() -> None:
    assert aggregates([1e16, 1.0, -1e16], "f")["sum"] == 1.0
    assert aggregates([1e308, 1e308, -1e308], "f")["sum"] == 1e308
    assert aggregates([0.5, 0.25], "f")["stddev"] == nearest_root(Fraction(1, 32))
    assert aggregates([None, None], "f") == dict.fromkeys(aggregates([1.5], "f")) | {
        "rows_counted": 2,
        "count": 0,
    }
    words = tuple(Aggregate(str(f), f, "b", "string") for f in (Function.MIN, Function.MAX, Function.FIRST))
    windows = Windows(spec("tumbling", size=10 * SECOND, aggregates=words))
    windows.push(batch((1, 1, "é"), (2, 1, "z"), (3, 1, "a")))
    assert windows.advance(10 * SECOND)[0].result.values == {
        "min": "a",
        "max": "é",
        "first": "é",
    }


def test_one_value_has_no_deviation() -> None:
    assert aggregates([5], "a")["stddev"] is None
    assert aggregates([5, 5], "a")["stddev"] == 0.0


def test_a_result_tells_what_it_is_made_of() -> None:
    windows = Windows(TEN)
    windows.push([row(3, 1, seq=901), row(2, 2, seq=902), row(9, 4, seq=901, line=2)])
    (out,) = windows.advance(10 * SECOND)
    assert (out.result.rows, out.result.late_rows, out.result.bytes) == (3, 0, 30)
    assert (moment(out.result.first_time), moment(out.result.last_time)) == (2, 9)
    assert out.result.slices == {set_hash(["slice-901", "slice-902"])}
    assert (out.slices, out.trigger) == (2, Trigger.WATERMARK)
