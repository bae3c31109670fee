"""What a window may declare beside its kind, through the whole mill: what rows are late for, windows for each
row, conditions on results, states that the opening row does not end, and where late rows go next."""

from __future__ import annotations

from tests.outputs.windows.conftest import NewRows, Rows, seconds, summed

from tidemill.model.streaming import Fate
from tidemill.raw.tail.late import late_rows, late_totals

REEMIT = {"policy": "reemit", "max_lateness": "10s", "by": "window"}


def fates(rows: Rows) -> dict[str, dict[str, int]]:
    with rows.open() as mill:
        totals = late_totals(mill.feed("rows"))
    return {
        window: {fate.value: count for fate, count in of.items()} for window, of in totals.windows.items()
    }


# -- late for the watermark, or for the window


def test_by_window_a_row_behind_the_watermark_counts_while_its_window_is_open(new_rows: NewRows) -> None:
    windows = {
        "row": summed(size="10s"),
        "window": summed(size="10s", late={"by": "window"}),
        "session": summed("session", gap="4s", late={"by": "window"}),
    }
    rows = new_rows(windows=windows)
    rows.feed((5, 1))
    rows.feed((3, 2))  # the watermark is 5
    rows.feed((12, 4))
    rows.feed((9, 8))  # the watermark is 12, and the window [0, 10) is out
    rows.feed((30, 16))
    assert rows.results("row", "sum") == [(0, 10, 1), (10, 20, 4)]
    assert rows.results("window", "sum", "revision", "late_rows") == [(0, 10, 3, 1, 0), (10, 20, 4, 1, 0)]
    assert rows.results("session", "sum") == [(3, 16, 15)]  # 9 s + 4 s had not passed
    assert fates(rows) == {
        "row": {"discarded": 2},
        "window": {"on_time": 1, "discarded": 1},
        "session": {"on_time": 2},
    }
    assert rows.verify() == []


def test_by_window_lateness_is_measured_from_the_end_of_the_window(new_rows: NewRows) -> None:
    rows = new_rows(
        windows={"w": summed(size="10s", late=REEMIT), "s": summed("session", gap="1s", late=REEMIT)}
    )
    rows.feed((1, 1))
    rows.feed((19.999, 2))
    rows.feed((2, 4))  # [0, 10) ended less than 10 s ago
    assert rows.results("w", "sum", "revision", "trigger") == [(0, 10, 5, 2, "late")]
    rows.feed((20, 8))
    rows.feed((3, 16))  # exactly 10 s ago
    assert rows.results("w", "sum", "revision") == [(0, 10, 5, 2), (10, 20, 2, 1)]
    assert fates(rows) == {"w": {"reemitted": 1, "too_late": 1}, "s": {"too_late": 2}}
    assert rows.verify() == []


def test_by_window_a_row_counts_in_those_sliding_windows_that_were_open(new_rows: NewRows) -> None:
    windows = {
        "w": summed("sliding", size="10s", step="5s", late={"by": "window"}),
        "next": summed("sliding", size="10s", step="5s", late={"policy": "next_window", "by": "window"}),
    }
    rows = new_rows(windows=windows)
    rows.feed((1, 1))
    rows.feed((12, 2))
    rows.feed((7, 4))  # [0, 10) is out, [5, 15) is open
    rows.feed((1, 8))  # [-5, 5) and [0, 10) are out
    rows.feed((40, 16))
    assert rows.results("w", "sum") == [(-5, 5, 1), (0, 10, 1), (5, 15, 6), (10, 20, 2)]
    assert rows.results("next", "sum") == [(-5, 5, 1), (0, 10, 1), (5, 15, 14), (10, 20, 10)]
    assert fates(rows) == {"w": {"on_time": 1, "discarded": 1}, "next": {"on_time": 1, "next_window": 1}}
    with rows.open() as mill:
        newer, older = late_rows(mill.feed("rows")).column("done").to_pylist()
        totals = late_totals(mill.feed("rows"))
        metrics = mill.meter.text()
    for window, dropped, moved in (("w", 1, 0), ("next", 0, 1)):  # one was in time for its window
        reported = f'stream="rows",window="{window}"'
        assert f'tidemill_late_rows_total{{fate="dropped",{reported}}} {dropped}.0' in metrics
        assert f'tidemill_late_rows_total{{fate="next_window",{reported}}} {moved}.0' in metrics
        assert f'fate="on_time",{reported}' not in metrics
    assert {each["window"]: (each["fate"], each["start"] is not None) for each in newer} == {
        "w": (Fate.DISCARDED, False),
        "next": (Fate.NEXT_WINDOW, True),
    }
    assert [seconds(each["start"]) for each in older] == [5, 5]
    assert (totals.rows, totals.dropped) == (2, 1)
    assert rows.verify() == []


# -- a window for each row


def test_a_window_for_each_row_looks_back_and_ahead(new_rows: NewRows) -> None:
    windows = {
        "back": summed("sliding", size="2s", step="row"),
        "both": summed("sliding", size="2s", step="row", lookahead="1s"),
        "keyed": summed("sliding", size="2s", step="row", key="who"),
    }
    rows = new_rows(windows=windows)
    rows.feed({"at": 1, "a": 1, "who": "x"}, {"at": 3, "a": 2, "who": "y"})
    rows.feed({"at": 4, "a": 4, "who": "x"})
    rows.feed({"at": 5.001, "a": 8, "who": "y"})
    assert rows.results("back", "sum") == [
        (-1, 1.000001, 1),
        (1, 3.000001, 3),
        (2, 4.000001, 6),
        (3.001, 5.001001, 12),
    ]
    assert rows.results("both", "sum") == [(-1, 2.000001, 1), (1, 4.000001, 7), (2, 5.000001, 6)]
    assert rows.results("keyed", "who", "sum") == [
        (-1, 1.000001, "x", 1),
        (1, 3.000001, "y", 2),
        (2, 4.000001, "x", 4),
        (3.001, 5.001001, "y", 8),
    ]
    assert rows.verify() == []


def test_a_late_row_changes_the_windows_of_the_rows_around_it(new_rows: NewRows) -> None:
    late = {"policy": "reemit", "max_lateness": "1h"}
    rows = new_rows(windows={"w": summed("sliding", size="2s", step="row", lookahead="1s", late=late)})
    rows.feed((1, 1), (3, 2), (9, 4))
    rows.feed((20, 8))
    rows.feed((4, 16))
    assert rows.results("w", "sum", "revision") == [
        (-1, 2.000001, 1, 1),
        (1, 4.000001, 19, 2),
        (2, 5.000001, 18, 1),
        (7, 10.000001, 4, 1),
    ]
    assert rows.verify() == []


def test_rows_of_one_instant_have_a_window_each(new_rows: NewRows) -> None:
    rows = new_rows(windows={"w": summed("sliding", size="2s", step="row", late="next_window")})
    rows.feed((1, 1), (1, 2))
    assert rows.results("w", "sum") == [(-1, 1.000001, 3), (-1, 1.000001, 3)]
    rows.feed((0, 4))  # late: it counts right after the watermark, and what is out stays as it is
    rows.feed((2, 8))
    assert rows.results("w", "sum", "revision") == [
        (-1, 1.000001, 3, 1),
        (-1, 1.000001, 3, 1),
        (-0.999999, 1.000002, 7, 1),
        (0, 2.000001, 15, 1),
    ]


# -- conditions on results


def test_results_that_do_not_meet_the_condition_do_not_come_out(new_rows: NewRows) -> None:
    rows = new_rows(windows={"w": summed(size="10s", group_by="who", having="sum >= 3 and who != 'z'")})
    rows.feed({"at": 1, "a": 3, "who": "x"}, {"at": 2, "a": 2, "who": "y"}, {"at": 3, "a": 9, "who": "z"})
    rows.feed((10, 0))
    assert rows.results("w", "who", "sum") == [(0, 10, "x", 3)]
    assert len(rows.results("w", revisions=True)) == 1
    assert rows.verify() == []


def test_a_late_row_can_bring_a_result_to_meet_the_condition_and_back(new_rows: NewRows) -> None:
    late = {"policy": "reemit", "max_lateness": "1h"}
    rows = new_rows(windows={"w": summed(size="10s", having="sum >= 3", late=late)})
    rows.feed((1, 1))
    rows.feed((10, 0))
    assert rows.results("w", "sum") == []
    rows.feed((2, 2))
    assert rows.results("w", "sum", "revision", "trigger") == [(0, 10, 3, 1, "watermark")]
    rows.feed((3, -1))
    assert rows.results("w", "sum") == []
    assert rows.results("w", "sum", "trigger", "withdrawn", revisions=True) == [
        (0, 10, 3, "watermark", False),
        (0, 10, 2, "late", True),
    ]
    assert rows.verify() == []


def test_a_late_row_finds_the_session_that_did_not_come_out(new_rows: NewRows) -> None:
    """Where it began is known, although nothing of it stands."""
    late = {"policy": "reemit", "max_lateness": "1h"}
    windows = {
        "s": summed("session", gap="3s", having="sum >= 7", late=late),
        "c": summed("count", n=2, having="sum >= 7", late=late),
    }
    rows = new_rows(windows=windows)
    rows.feed((1, 1), (3, 2))
    rows.feed((20, 0))
    assert rows.results("s", "sum") == rows.results("c", "sum") == []
    rows.feed((5, 4))
    assert rows.results("s", "sum", "revision") == [(1, 8, 7, 2)]
    rows.feed((2, 8))
    assert rows.results("s", "sum", "revision") == [(1, 8, 15, 3)]
    assert rows.results("c", "sum") == [(1, 2.000001, 9)]
    with rows.open() as mill:
        reported = [event["data"] for _, event in mill.events()]
    assert sum(data["withdrawn"] for data in reported) == 0
    assert rows.verify() == []


# -- states, and where late rows go


def test_the_row_that_opens_a_state_need_not_end_it(new_rows: NewRows) -> None:
    windows = {
        "same": summed("state", open="a >= 1", emit="a >= 4"),
        "later": summed("state", open="a >= 1", emit="a >= 4", emit_on_open=False),
    }
    rows = new_rows(windows=windows)
    rows.feed((1, 5), (2, 2), (3, 6), (4, 0))
    assert [row[2] for row in rows.results("same", "sum")] == [5, 8]
    assert [row[2] for row in rows.results("later", "sum")] == [13]
    assert rows.verify() == []


def test_late_rows_go_to_the_next_count_and_state_window(new_rows: NewRows) -> None:
    """They count at the watermark they met, after the rows that were there; nothing that is out changes."""
    windows = {
        "c": summed("count", n=2, late="next_window"),
        "s": summed("state", open="a >= 1", emit="a >= 4", late="next_window"),
    }
    rows = new_rows(windows=windows)
    rows.feed((1, 1), (2, 4))
    rows.feed((1.5, 2))
    rows.feed((1.2, 5))
    assert rows.results("c", "sum", "revision") == [(1, 2.000001, 5, 1), (2, 2.000001, 7, 1)]
    assert rows.results("s", "sum", "revision") == [(1, 2.000001, 5, 1), (2, 2.000001, 7, 1)]
    rows.feed((3, 4))
    assert rows.results("s", "sum", "revision")[2:] == [(3, 3.000001, 4, 1)]
    assert rows.verify() == []


def test_a_late_row_goes_to_the_next_session_although_one_ends_at_the_watermark(new_rows: NewRows) -> None:
    rows = new_rows(windows={"w": summed("session", gap="4s", key="who", late="next_window")})
    rows.feed({"at": 1, "a": 1, "who": "x"}, {"at": 5, "a": 2, "who": "y"})
    assert rows.results("w", "sum") == [(1, 5, 1)]
    rows.feed({"at": 2, "a": 4, "who": "x"})
    rows.feed({"at": 20, "a": 8, "who": "y"})
    assert rows.results("w", "who", "sum", "revision") == [
        (1, 5, "x", 1, 1),
        (5, 9, "y", 2, 1),
        (5.000001, 9.000001, "x", 4, 1),
    ]
    assert rows.verify() == []
