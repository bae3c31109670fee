"""Streaming windows over time: late rows by policy, sessions that merge, idle sources, retractions, other
declarations, crashes and recoveries. What stands is always what a computation from raw says."""

from __future__ import annotations

import shutil
from decimal import Decimal
from pathlib import Path

import pytest
from tests.outputs.windows.conftest import EPOCH, NewRows, Rows, summed
from tests.support.forged_parts import forge

from tidemill.mill import Mill, recover
from tidemill.model.failpoints import observed
from tidemill.model.slices import set_hash
from tidemill.model.time import HOUR, SECOND
from tidemill.storage.checksums import read_arrow


def test_next_window_takes_a_late_row_at_the_watermark_it_met(new_rows: NewRows) -> None:
    rows = new_rows(windows={"w": summed(size="10s", late="next_window")})
    rows.feed((5, 1), (12, 2))
    rows.feed((3, 100))
    assert rows.results("w", "sum", "late_rows") == [(0, 10, Decimal(1), 0)]
    rows.feed((20, 4))
    assert rows.results("w", "sum", "late_rows", "revision")[1:] == [(10, 20, Decimal(102), 1, 1)]
    assert rows.verify() == []


def test_next_window_into_a_window_that_closes_in_the_same_round(new_rows: NewRows) -> None:
    rows = new_rows(windows={"w": summed(size="10s", late="next_window")})
    rows.land((5, 1), (12, 2))
    rows.land((3, 100))
    rows.feed((20, 4))
    assert rows.results("w", "sum", "rows") == [(0, 10, Decimal(1), 1), (10, 20, Decimal(102), 2)]


def test_reemit_brings_a_window_out_again_within_its_bound(new_rows: NewRows) -> None:
    late = {"policy": "reemit", "max_lateness": "5s"}
    rows = new_rows(windows={"w": summed(size="10s", group_by="b", late=late)})
    rows.feed({"at": 8, "a": 1, "b": 1}, {"at": 9, "a": 2, "b": 2}, {"at": 12, "a": 3, "b": 1})
    rows.feed({"at": 7, "a": 10, "b": 1})  # 5 s late
    rows.feed({"at": 6.999, "a": 100, "b": 1})  # a millisecond more
    assert rows.results("w", "b", "sum", "late_rows", "revision", "trigger") == [
        (0, 10, 1, Decimal(11), 1, 2, "late"),
        (0, 10, 2, Decimal(2), 0, 1, "watermark"),
    ]
    assert rows.verify() == []


def test_rows_late_for_a_window_that_is_still_open(new_rows: NewRows) -> None:
    """V3: at tolerance 0 an equal time is late; the policy says what becomes of it."""
    windows = {
        "dropped": summed(size="10s"),
        "kept": summed(size="10s", late={"policy": "reemit", "max_lateness": "1h"}),
        "moved": summed(size="10s", late="next_window"),
    }
    rows = new_rows(windows=windows)
    rows.feed((2, 1))
    rows.feed((2, 10), (1, 100))
    rows.feed((10, 0))
    assert rows.results("dropped", "sum") == [(0, 10, Decimal(1))]
    assert rows.results("kept", "sum", "late_rows", "revision") == [(0, 10, Decimal(111), 2, 1)]
    assert rows.results("moved", "sum") == [(0, 10, Decimal(111))]


def test_sliding_windows_share_their_rows(new_rows: NewRows) -> None:
    rows = new_rows(windows={"w": summed("sliding", size="10s", step="5s")})
    rows.feed((1, 1), (6, 2), (11, 4), (16, 8))
    assert rows.results("w", "sum") == [(-5, 5, Decimal(1)), (0, 10, Decimal(3)), (5, 15, Decimal(6))]
    rows.feed((30, 0))
    assert rows.results("w", "sum")[3:] == [(10, 20, Decimal(12)), (15, 25, Decimal(8))]
    assert rows.verify() == []


def test_rows_exactly_a_gap_apart_are_one_session(new_rows: NewRows) -> None:
    late = {"policy": "reemit", "max_lateness": "1h"}
    rows = new_rows(windows={"w": summed("session", gap="5s", key="who", late=late)})
    rows.feed(*({"at": at, "a": 1, "who": "x"} for at in (0, 5, 10)), {"at": 3, "a": 1, "who": "y"})
    rows.feed({"at": 30, "a": 0, "who": "z"})
    assert rows.results("w", "who", "rows") == [(0, 15, "x", 3), (3, 8, "y", 1)]
    rows.feed({"at": 15, "a": 1, "who": "x"}, {"at": 8.001, "a": 1, "who": "y"})
    assert rows.results("w", "who", "rows") == [(0, 20, "x", 4), (3, 8, "y", 1), (8.001, 13.001, "y", 1)]
    assert rows.verify() == []


def test_exclusive_sessions_close_after_their_gap_and_touching_ones_are_two(new_rows: NewRows) -> None:
    gap = {"duration": "5s", "inclusive": False}
    rows = new_rows(windows={"w": summed("session", gap=gap, key="who")})
    rows.feed(*({"at": at, "a": 1, "who": "x"} for at in (0, 4.999, 9.999)), {"at": 3, "a": 1, "who": "y"})
    rows.feed({"at": 30, "a": 0, "who": "z"})
    assert rows.results("w", "who", "rows") == [(0, 9.999, "x", 2), (3, 8, "y", 1), (9.999, 14.999, "x", 1)]
    assert rows.verify() == []


def test_a_late_row_merges_sessions_and_supersedes_the_one_replaced(new_rows: NewRows) -> None:
    late = {"policy": "reemit", "max_lateness": "1h"}
    rows = new_rows(windows={"w": summed("session", gap="5s", key="who", late=late)})
    rows.feed({"at": 0, "a": 1, "who": "x"}, {"at": 8, "a": 2, "who": "x"}, {"at": 40, "a": 0, "who": "z"})
    first, second = rows.results("w", "window_id", "revision")
    assert (first[:2], second[:2]) == ((0, 5), (8, 13))
    rows.feed({"at": 4, "a": 4, "who": "x"})
    assert rows.results("w", "sum", "revision", "supersedes", "late_rows") == [
        (0, 13, Decimal(7), 2, [second[2]], 1)
    ]
    story = rows.results("w", "window_id", "revision", "withdrawn", "superseded_by", revisions=True)
    assert (8, 13, second[2], 2, True, first[2]) in story
    assert rows.verify() == []


def test_a_late_row_before_a_session_moves_its_beginning(new_rows: NewRows) -> None:
    late = {"policy": "reemit", "max_lateness": "1h"}
    rows = new_rows(windows={"w": summed("session", gap="5s", key="who", late=late)})
    rows.feed({"at": 8, "a": 2, "who": "x"}, {"at": 40, "a": 0, "who": "z"})
    rows.feed({"at": 4, "a": 4, "who": "x"}, {"at": 41, "a": 4, "who": "z"})
    assert rows.results("w", "who", "sum") == [(4, 13, "x", Decimal(6))]
    rows.feed({"at": 60, "a": 1, "who": "x"})
    assert rows.results("w", "who", "sum") == [(4, 13, "x", Decimal(6)), (40, 46, "z", Decimal(4))]
    assert rows.verify() == []


def test_a_late_row_that_joins_a_closed_session_to_an_open_one_takes_it_back(new_rows: NewRows) -> None:
    late = {"policy": "reemit", "max_lateness": "1h"}
    rows = new_rows(windows={"w": summed("session", gap="5s", late=late)})
    rows.feed((0, 1), (8, 2))  # the watermark is at 8: the first session is out, the second open
    assert rows.results("w", "sum") == [(0, 5, Decimal(1))]
    rows.feed((4, 4))
    assert rows.results("w", "sum") == []
    rows.feed((20, 0))
    assert rows.results("w", "sum", "revision") == [(0, 13, Decimal(7), 3)]
    assert rows.verify() == []


def test_a_late_row_changes_every_later_count_window_of_its_key(new_rows: NewRows) -> None:
    late = {"policy": "reemit", "max_lateness": "1h"}
    rows = new_rows(windows={"w": summed("count", n=2, late=late)})
    for at, value in enumerate((10, 20, 30, 40, 50)):
        rows.feed((at + 1, value))
    assert [row[2] for row in rows.results("w", "sum")] == [30, 70]
    rows.feed((2.5, 1))
    assert [row[2] for row in rows.results("w", "sum")] == [30, 31, 90]
    assert rows.verify() == []


def test_count_windows_of_many_keys_go_on_where_they_were(new_rows: NewRows) -> None:
    rows = new_rows(windows={"w": summed("count", n=3, key="b")})
    for at in range(20):
        rows.feed({"at": at, "a": at, "b": at % 3})
    sums = [(row[2], row[3]) for row in rows.results("w", "b", "sum")]
    assert sums == [(0, 9), (1, 12), (2, 15), (0, 36), (1, 39), (2, 42)]
    assert rows.verify() == []


def test_an_idle_source_leaves_and_comes_back_without_sending_time_backwards(new_rows: NewRows) -> None:
    rows = new_rows(windows={"w": summed(size="10s")}, event_time={"idle_timeout": "1m"})
    rows.feed((1, 1), source="slow")
    rows.feed((25, 2), source="fast")
    assert rows.watermark() == 1
    assert rows.results("w", "sum") == []
    rows.clock.advance(59 * SECOND)
    rows.tick()
    assert rows.watermark() == 1
    rows.feed((26, 4), source="fast")
    rows.clock.advance(SECOND)
    rows.tick()  # a minute of silence: no arrival is needed
    assert rows.watermark() == 26
    assert rows.results("w", "sum") == [(0, 10, Decimal(1))]
    rows.feed((5, 100), (28, 8), source="slow")
    assert rows.watermark() == 26
    assert rows.results("w", "sum") == [(0, 10, Decimal(1))]
    with rows.open() as mill:
        assert mill.state.totals("rows")["late"] == 1


def test_processing_time_windows_move_by_ticks(new_rows: NewRows) -> None:
    rows = new_rows(windows={"w": summed(size="10s")}, event_time={"enabled": False})
    rows.feed((99, 1), (5, 2))
    rows.clock.advance(9 * SECOND)
    rows.feed((1, 4))
    assert rows.results("w", "sum") == []
    rows.clock.advance(SECOND)
    rows.tick()
    (result,) = rows.results("w", "sum", "late_rows")
    assert result[2:] == (Decimal(7), 0)
    assert rows.verify() == []


def test_a_retraction_takes_back_what_only_that_slice_brought(new_rows: NewRows) -> None:
    rows = new_rows(windows={"w": summed(size="10s"), "s": summed("session", gap="3s")})
    rows.feed((1, 1))
    wrong = rows.feed((2, 100), (15, 50))
    rows.feed((16, 2), (40, 0))
    assert rows.results("w", "sum") == [(0, 10, Decimal(101)), (10, 20, Decimal(52))]
    with rows.open() as mill:
        mill.retract(mill.plan_retraction(wrong, "sent by mistake"))
        mill.run_until_idle()
    assert rows.results("w", "sum", "revision", "trigger") == [
        (0, 10, Decimal(1), 2, "retraction"),
        (10, 20, Decimal(2), 2, "retraction"),
    ]
    assert rows.results("s", "sum") == [(1, 4, Decimal(1)), (16, 19, Decimal(2))]
    assert rows.verify() == []


def test_a_retraction_that_sends_the_watermark_back_takes_open_windows_back(new_rows: NewRows) -> None:
    rows = new_rows(windows={"w": summed(size="10s")})
    rows.feed((1, 1))
    wrong = rows.feed((500, 100))
    assert rows.results("w", "sum") == [(0, 10, Decimal(1))]
    with rows.open() as mill:
        mill.retract(mill.plan_retraction(wrong, "a clock in the future"))
        mill.run_until_idle()
    assert rows.watermark() == 1
    assert rows.results("w", "sum") == []
    rows.feed((3, 2), (10, 0))
    assert rows.results("w", "sum", "revision") == [(0, 10, Decimal(3), 3)]
    assert rows.verify() == []


def test_another_declaration_makes_the_results_anew(new_rows: NewRows) -> None:
    rows = new_rows(windows={"w": summed(size="10s")})
    rows.feed((1, 1), (12, 2), (30, 4))
    rows.redeclare(windows={"w": summed(size="5s", aggregates=["max"])})
    rows.tick()
    assert rows.results("w", "sum", "max") == [(0, 5, Decimal(1), 1), (10, 15, Decimal(2), 2)]
    assert rows.verify() == []


def test_windows_that_close_when_they_are_complete(new_rows: NewRows) -> None:
    window = summed(size="30m", close="complete")
    sliding = summed("sliding", size="2h", step="1h", close="complete")
    rows = new_rows(windows={"w": window, "two": sliding}, aggregation_span="1h")
    with rows.open() as mill:
        for hour in (0, 1, 2):
            line = b'{"id": "h%d", "ts": %d, "a": %d}' % (
                hour,
                (EPOCH + hour * HOUR) // 1000 + 60_000,
                hour + 1,
            )
            mill.land("rows", line, start=EPOCH + hour * HOUR, end=EPOCH + (hour + 1) * HOUR)
            mill.run_until_idle()
            expected = [(h * 3600, h * 3600 + 1800, Decimal(h + 1), "complete") for h in range(hour + 1)]
            assert rows.results("w", "sum", "trigger") == expected
    assert rows.results("two", "sum") == [(0, 7200, Decimal(3)), (3600, 10800, Decimal(5))]
    assert rows.verify() == []
    with rows.open() as mill:  # taken back: its hour is withdrawn, and what lies in it
        slice_id = mill.ledger("rows")[1].id
        mill.retract(mill.plan_retraction(slice_id, "wrong"))
        mill.run_until_idle()
    assert rows.results("w", "sum") == [(0, 1800, Decimal(1)), (7200, 9000, Decimal(3))]
    assert rows.results("two", "sum") == []
    assert rows.verify() == []


def test_complete_windows_name_slices_as_they_were_decided_last(new_rows: NewRows) -> None:
    """In one process: the slice that repeats what was taken back is decided again, and named so."""
    rows = new_rows(windows={"w": summed(size="1h", close="complete")}, aggregation_span="1h")
    first = b'{"id": "x", "ts": %d, "a": 1}' % (EPOCH // 1000)
    second = first + b'\n{"id": "y", "ts": %d, "a": 2}' % (EPOCH // 1000 + 5)
    with rows.open() as mill:
        for content in (first, second):
            mill.land("rows", content, start=EPOCH, end=EPOCH + HOUR)
        mill.run_until_idle()
        kept, wrong = mill.ledger("rows")
        assert made_of(mill) == set_hash([wrong.name, kept.name])
        mill.retract(mill.plan_retraction(wrong.id, "sent by mistake"))
        mill.run_until_idle()
        again = mill.ledger("rows")[0]
        assert (again.id, again.name) == (kept.id, f"{kept.id}~1")
        assert made_of(mill) == set_hash([again.name])
    assert rows.results("w", "sum") == [(0, 3600, Decimal(3))]
    assert rows.verify() == []


def made_of(mill: Mill) -> str:
    """The hash of the slices that the only result of the window is made of."""
    (result,) = mill.results("rows", "w").to_pylist()
    return str(result["hash"])


def _story(rows: Rows) -> tuple[object, ...]:
    with rows.open() as mill:
        reported = {event["id"] for _, event in mill.events()}
    found = [rows.results(name, "sum", "rows", "revision", "hash") for name in ("w", "s", "c")]
    return (*found, reported)


LIFE = {
    "w": summed(size="10s", late={"policy": "reemit", "max_lateness": "1h"}),
    "s": summed("session", gap="4s", key="b", late={"policy": "reemit", "max_lateness": "1h"}),
    "c": summed("count", n=3, late="next_window"),
}


def _live(rows: Rows, step: int) -> None:
    base = 7 * step
    rows.land(*({"at": base + i, "a": i, "b": i % 2} for i in (0, 5, 3)))
    if step % 2:
        rows.land({"at": base - 12, "a": 1000, "b": 1})


def test_a_process_that_dies_anywhere_leaves_nothing_to_repair(new_rows: NewRows, tmp_path: Path) -> None:
    """Copies of the warehouse at every fail point of streaming windows go on to the same results."""
    rows = new_rows(windows=LIFE, event_time={"late_tolerance": "2s"})
    _live(rows, 0)
    rows.tick()
    _live(rows, 1)
    copies: dict[str, Path] = {}

    def copy(point: str) -> None:
        if point.startswith("results."):
            target = tmp_path / f"copy-{len(copies)}-{point}"
            shutil.copytree(rows.folder, target, ignore=shutil.ignore_patterns("copy-*"))
            copies[target.name] = target

    with observed(copy):
        rows.tick()
    assert {name.split("-")[2] for name in copies} == {
        "results.after_fold", "results.before_commit", "results.after_commit", "results.after_state",
    }  # fmt: skip
    _finish(rows)
    expected = _story(rows)
    for folder in copies.values():
        left = rows.elsewhere(folder)
        left.number = 7
        _finish(left)
        assert _story(left) == expected, folder.name
        assert left.verify() == []


def _finish(rows: Rows) -> None:
    with rows.open() as mill:
        mill.run_until_idle()
    _live(rows, 2)
    rows.tick()
    rows.feed({"at": 100, "a": 0, "b": 5})


def test_a_lost_state_is_recovered_with_its_results_and_events(new_rows: NewRows) -> None:
    rows = new_rows(windows=LIFE, event_time={"late_tolerance": "2s"})
    for step in range(4):
        _live(rows, step)
        rows.tick()
    before = _story(rows)
    for path in rows.folder.glob("**/state.db*"):
        path.unlink()
    recover(rows.folder, clock=rows.clock, spark=rows.spark)
    assert _story(rows) == before
    rows.tick()
    assert _story(rows) == before  # nothing is told again, nothing comes out again
    assert rows.verify() == []


def test_what_a_stop_let_out_outlives_a_lost_state(new_rows: NewRows) -> None:
    rows = new_rows(windows=LIFE, event_time={"late_tolerance": "20s"})
    for step in range(2):
        _live(rows, step)
    rows.tick()
    rows.stop()
    before = _story(rows)
    assert any("stop" in row for row in rows.results("s", "trigger"))
    assert rows.verify() == []
    for path in rows.folder.glob("**/state.db*"):
        path.unlink()
    recover(rows.folder, clock=rows.clock, spark=rows.spark)
    rows.tick()
    assert _story(rows) == before
    rows.feed({"at": 3.5, "a": 1, "b": 1})  # on time, and in a window that a stop let out
    assert rows.verify() == []
    rows.feed({"at": 100, "a": 0, "b": 9})
    assert rows.results("w", "sum")[:2] == [(-10, 0, Decimal(1000)), (0, 10, Decimal(9))]
    assert rows.verify() == []


def test_verify_finds_a_result_that_was_tampered_with(new_rows: NewRows) -> None:
    rows = new_rows(windows={"w": summed(size="10s")})
    rows.feed((1, 1), (12, 2), (30, 4))
    assert rows.verify() == []
    forge(rows.folder / "warehouse" / "windows" / "rows" / "w", "sum", lambda _: Decimal(9))
    assert rows.scrub() == []  # by its checksum it is whole
    found = rows.verify()
    assert len(found) == 2
    assert all("differs in sum" in one for one in found)


@pytest.mark.parametrize("inline_bytes", [1 << 23, 0], ids=["inline", "spark"])
def test_the_same_on_spark_and_in_process(new_rows: NewRows, inline_bytes: int) -> None:
    rows = new_rows(windows=LIFE, engine={"cores": 2, "inline_bytes": inline_bytes})
    for step in range(3):
        _live(rows, step)
        rows.tick()
    assert rows.results("w", "sum", "late_rows") == [(-10, 0, Decimal(1000), 1), (0, 10, Decimal(8), 0)]
    assert rows.results("s", "b", "sum") == [
        (-5, -1, 1, Decimal(1000)),
        (0, 4, 0, Decimal(0)),
        (3, 9, 1, Decimal(8)),
        (7, 11, 0, Decimal(0)),
        (10, 16, 1, Decimal(8)),
        (14, 18, 0, Decimal(0)),
    ]
    assert [row[2:] for row in rows.results("c", "sum", "late_rows")] == [(8, 0), (8, 0), (1003, 1)]


def test_in_processing_time_a_tick_at_the_end_of_a_session_does_not_end_it(new_rows: NewRows) -> None:
    """A slice that arrives in the instant of the tick joins it, and nothing that was out changes."""
    rows = new_rows(event_time={"enabled": False}, windows={"w": summed("session", gap="5s")})
    rows.feed((0, 1))
    rows.clock.advance(5 * SECOND)
    rows.tick()
    assert rows.results("w", "sum") == []
    rows.feed((0, 2))
    rows.clock.advance(5 * SECOND + 1)
    rows.tick()
    assert rows.results("w", "sum", "revision", "trigger") == [(86400, 86410, 3, 1, "watermark")]
    assert rows.verify() == []


def test_an_open_session_is_not_carried_by_its_rows(new_rows: NewRows) -> None:
    """What is kept of it does not grow with its rows, and late rows still find it."""
    late = {"policy": "reemit", "max_lateness": "1h"}
    reported = {
        "sum": "sum(a)",
        "mean": "avg(price)",
        "first": "first(a)",
        "last": "last(a)",
        "low": "min(price)",
    }
    window = {
        "kind": "session",
        "gap": "5s",
        "key": "b",
        "group_by": "who",
        "aggregates": reported,
        "late": late,
    }
    rows = new_rows(windows={"w": window})
    sizes = []
    for step in range(8):
        who = "even" if step % 2 == 0 else "odd"
        fields = [
            {"at": 4 * step + line / 10, "a": step, "b": 1, "who": who, "price": step / 4}
            for line in range(9)
        ]
        rows.feed(*fields)
        (carried,) = (rows.folder / "warehouse" / "windows" / "rows" / "w" / "_open").iterdir()
        sizes.append(read_arrow(carried).num_rows)
    assert sizes == [1, 2, 2, 2, 2, 2, 2, 2]
    rows.feed({"at": 3.5, "a": 100, "b": 1, "who": "odd"})
    rows.feed({"at": 60, "a": 0, "b": 2, "who": "odd"})
    assert rows.results("w", "who", "rows", "sum", "mean", "first", "last", "low", "late_rows", "slices") == [
        (0, 33.8, "even", 36, 108, 0.75, 0, 6, Decimal("0.00"), 0, 4),
        (0, 33.8, "odd", 37, 244, 1.0, 100, 7, Decimal("0.25"), 1, 5),
    ]
    assert rows.verify() == []
