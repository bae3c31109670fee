"""The golden cases of event time and streaming windows, through the whole mill: land, tick, look."""

from __future__ import annotations

from decimal import Decimal

from tests.outputs.windows.conftest import NewRows, summed

TEN_SECONDS = summed(size="10s")


def test_v4_to_v7_tumbling_windows_move_by_the_watermark_alone(new_rows: NewRows) -> None:
    rows = new_rows(tolerance="7s", windows={"w": TEN_SECONDS})
    rows.feed((7, 7), (1, 1), (4, 4))
    assert rows.results("w", "sum") == []  # V4
    rows.feed((17, 17))
    assert rows.watermark() == 10
    assert rows.results("w", "sum") == [(0, 10, Decimal(12))]  # V5
    rows.feed((2, 100))
    assert rows.results("w", "sum", "late_rows") == [(0, 10, Decimal(12), 0)]  # V6
    with rows.open() as mill:
        assert mill.state.totals("rows")["late"] == 1
    rows.feed((27, 27))
    assert rows.watermark() == 20
    assert rows.results("w", "sum") == [(0, 10, Decimal(12)), (10, 20, Decimal(17))]  # V7
    assert rows.verify() == []


def test_v8_a_graceful_stop_lets_open_windows_out_and_moves_no_watermark(new_rows: NewRows) -> None:
    rows = new_rows(tolerance="7s", windows={"w": TEN_SECONDS})
    rows.feed((7, 7), (1, 1), (4, 4))
    rows.stop()
    assert rows.results("w", "sum", "trigger", "revision") == [(0, 10, Decimal(12), "stop", 1)]
    assert rows.watermark() == 0
    rows.feed((17, 17))  # the same content: what came out is current
    assert rows.results("w", "sum", "revision") == [(0, 10, Decimal(12), 1)]


def test_after_a_stop_more_rows_are_the_next_revision(new_rows: NewRows) -> None:
    rows = new_rows(tolerance="7s", windows={"w": TEN_SECONDS})
    rows.feed((7, 7), (1, 1), (4, 4))
    rows.stop()
    rows.feed((9, 9), (17, 17))
    assert rows.results("w", "sum", "trigger", "revision") == [(0, 10, Decimal(21), "watermark", 2)]
    assert rows.verify() == []


def test_v10_tumbling_by_group(new_rows: NewRows) -> None:
    window = summed(size="10s", group_by="b")
    rows = new_rows(windows={"w": window})
    rows.feed({"at": 1, "a": 2, "b": 1}, {"at": 2, "a": 4, "b": 2}, {"at": 3, "a": 3, "b": 1})
    rows.feed({"at": 10, "a": 0, "b": 9})
    assert rows.results("w", "b", "sum") == [(0, 10, 1, Decimal(5)), (0, 10, 2, Decimal(4))]
    rows.feed({"at": 11, "a": 7, "b": 2}, {"at": 20, "a": 0, "b": 9})
    assert rows.results("w", "b", "sum")[2:] == [(10, 20, 2, Decimal(7)), (10, 20, 9, Decimal(0))]


def test_v17_count_windows(new_rows: NewRows) -> None:
    rows = new_rows(windows={"w": summed("count", n=2)})
    for number, value in enumerate((10, 20, 30, 40, 50)):
        rows.feed((number, value))
    assert [row[2] for row in rows.results("w", "sum")] == [30, 70]
    rows.stop()
    assert [row[2:] for row in rows.results("w", "sum", "trigger")] == [
        (30, "count"),
        (70, "count"),
        (50, "stop"),
    ]
    rows.feed((5, 60))
    assert [row[2:] for row in rows.results("w", "sum", "revision")] == [(30, 1), (70, 1), (110, 2)]


def test_v20_state_windows_by_group(new_rows: NewRows) -> None:
    rows = new_rows(windows={"w": summed("state", open="a = 1", emit="a = 4", group_by="b")})
    rows.feed({"at": 1, "a": 1, "b": 1}, {"at": 2, "a": 2, "b": 2}, {"at": 3, "a": 4, "b": 1})
    assert rows.results("w", "b", "sum") == [(1, 3.000001, 1, Decimal(5)), (1, 3.000001, 2, Decimal(2))]


def test_d8_nothing_is_stuck_between_distant_windows(new_rows: NewRows) -> None:
    rows = new_rows(windows={"w": summed(size="100ms")})
    rows.feed((0.010, 1), (0.050, 1), (0.350, 1))
    assert rows.results("w", "rows") == [(0, 0.1, 2)]
    rows.feed((0.400, 1))
    assert rows.results("w", "rows") == [(0, 0.1, 2), (0.3, 0.4, 1)]
