"""The ordering operator: its golden cases by hand, its contract over any feed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from tidemill.eventtime import Ordering, Timed, Watermark
from tidemill.model.time import SECOND

Out = Sequence[Timed[str] | Watermark]


def rows(*seconds: int, size: int = 0) -> list[Timed[str]]:
    return [Timed(s * SECOND, f"row {s}", size) for s in seconds]


def described(out: Out) -> list[str]:
    """`3` for a row of second 3, `w3` for the watermark."""
    return [
        f"w{each.at // SECOND}" if isinstance(each, Watermark) else f"{each.time // SECOND}" for each in out
    ]


def test_v1_v2_rows_up_to_the_watermark_in_order_and_the_rest_waits() -> None:
    ordering = Ordering[str](1 * SECOND)
    out, late = ordering.push(rows(3, 1, 2))
    assert (described(out), late) == (["1", "2", "w2"], [])
    assert (ordering.buffer_size, ordering.max_timestamp_seen) == (1, 3 * SECOND)
    out, late = ordering.push(rows(4))
    assert (described(out), late) == (["3", "w3"], [])
    assert (ordering.watermarks_emitted, ordering.late_dropped) == (2, 0)


def test_v3_at_tolerance_zero_what_is_not_newer_is_late() -> None:
    ordering = Ordering[str](0)
    assert described(ordering.push(rows(2))[0]) == ["2", "w2"]
    out, late = ordering.push(rows(2, 1))
    assert out == []
    assert [(row.time // SECOND, row.met) for row in late] == [(2, 2 * SECOND), (1, 2 * SECOND)]
    assert (ordering.late_dropped, ordering.watermarks_emitted, ordering.buffer_size) == (2, 1, 0)


def test_v4_to_v8_the_tumbling_example_moves_by_its_watermarks() -> None:
    ordering = Ordering[str](7 * SECOND)
    assert described(ordering.push(rows(7, 1, 4))[0]) == ["w0"]
    assert [row.time // SECOND for row in ordering.stop()] == [1, 4, 7]  # V8: and no watermark
    ordering = Ordering[str](7 * SECOND)
    ordering.push(rows(7, 1, 4))
    assert described(ordering.push(rows(17))[0]) == ["1", "4", "7", "w10"]
    out, late = ordering.push(rows(2))
    assert (out, described(late)) == ([], ["2"])
    assert described(ordering.push(rows(27))[0]) == ["17", "w20"]


def test_ties_keep_their_order_of_arrival() -> None:
    ordering = Ordering[str](1 * SECOND)
    ordering.push([Timed(5 * SECOND, "first"), Timed(5 * SECOND, "second")])
    ordering.push([Timed(5 * SECOND, "third")])
    out, _ = ordering.push(rows(9))
    assert [each.row for each in out if isinstance(each, Timed)] == ["first", "second", "third"]


def test_an_idle_source_leaves_before_the_rows_of_a_slice_are_judged() -> None:
    ordering = Ordering[str](0, idle_timeout=10)
    ordering.push(rows(1), source="a", arrival=0)
    assert described(ordering.push(rows(5, 7), source="b", arrival=1)[0]) == []
    out, late = ordering.push(rows(6, 9), source="b", arrival=10)
    assert described(out) == ["5", "7", "w7", "9", "w9"]
    assert described(late) == ["6"]
    assert [row.met for row in late] == [7 * SECOND]


def test_a_tick_lets_idle_sources_leave() -> None:
    ordering = Ordering[str](0, idle_timeout=10)
    ordering.push(rows(1), source="a", arrival=0)
    ordering.push(rows(5), source="b", arrival=1)
    assert ordering.tick(9) == []
    assert described(ordering.tick(10)) == ["5", "w5"]
    assert ordering.tick(10**12) == []


def test_above_its_bound_the_buffer_lets_go_of_the_oldest_early() -> None:
    ordering = Ordering[str](100 * SECOND, max_bytes=25)
    assert described(ordering.push(rows(5, 3, size=10))[0]) == ["w-95"]
    out, late = ordering.push(rows(3, 4, size=10))
    assert described(out) == ["3", "3", "w3"]  # those of one instant go together
    assert (ordering.buffered_bytes, ordering.buffer_size, ordering.released_early) == (20, 2, 2)
    assert late == []
    out, late = ordering.push(rows(3, size=10))
    assert (described(out), described(late)) == ([], ["3"])
    out, _ = ordering.push(rows(1000, size=26))  # larger than the bound: not even it stays
    assert described(out) == ["4", "5", "w900", "1000", "w1000"]
    assert (ordering.buffer_size, ordering.buffered_bytes, ordering.released_early) == (0, 0, 3)


# --- the contract


@dataclass(frozen=True)
class Push:
    source: str
    pause: int
    times: list[int]


pushes = st.lists(
    st.builds(
        Push,
        st.sampled_from("abc"),
        st.integers(0, 15),
        st.lists(st.integers(0, 60), max_size=6),
    ),
    max_size=15,
)
bounds = st.none() | st.integers(0, 40)


@given(pushes, st.integers(0, 40), st.none() | st.integers(1, 20), bounds, st.booleans())
def test_the_contract_holds_for_any_feed(
    fed: list[Push], tolerance: int, timeout: int | None, max_bytes: int | None, ticks: bool
) -> None:
    ordering = Ordering[int](tolerance, timeout, max_bytes)
    out: list[Timed[int] | Watermark] = []
    late: list[Timed[int]] = []
    now = number = 0
    for push in fed:
        now += push.pause
        if ticks:
            out += ordering.tick(now - push.pause // 2)
        batch = [Timed(time, number + i, size=1 + time % 7) for i, time in enumerate(push.times)]
        number += len(batch)
        met = ordering.clock.at(now).watermark
        released, dropped = ordering.push(batch, source=push.source, arrival=now)
        assert all(row.met == met and met is not None and row.time <= met for row in dropped)
        assert max_bytes is None or ordering.buffered_bytes <= max_bytes
        out += released
        late += dropped
    out += ordering.stop()
    assert (ordering.buffer_size, ordering.buffered_bytes) == (0, 0)
    marks = [each.at for each in out if isinstance(each, Watermark)]
    assert marks == sorted(set(marks))  # they never go back, and each one moves
    assert len(marks) == ordering.watermarks_emitted
    assert ordering.late_dropped == len(late)
    watermark = None
    for each in out:
        if isinstance(each, Watermark):
            watermark = each.at
        else:
            assert watermark is None or each.time > watermark
    rows_out = [(each.time, each.row) for each in out if isinstance(each, Timed)]
    assert rows_out == sorted(rows_out)  # non-decreasing in time, ties by arrival
    assert sorted(row for _, row in rows_out) == sorted(set(range(number)) - {row.row for row in late})


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 29)), max_size=40), st.integers(1, 30), st.data()
)
def test_disorder_within_the_tolerance_delivers_everything(
    steps: list[tuple[int, int]], tolerance: int, data: st.DataObject
) -> None:
    """Each row comes less than the tolerance behind the newest one, however they are cut into slices."""
    times, newest = [], 0
    for ahead, behind in steps:
        newest += ahead
        times.append(newest)
        times.append(newest - behind % tolerance)
    ordering = Ordering[int](tolerance)
    delivered, rest = 0, times
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        cut, rest = rest[:size], rest[size:]
        released, late = ordering.push([Timed(time, 0) for time in cut])
        assert late == []
        delivered += sum(isinstance(each, Timed) for each in released)
    assert delivered + len(ordering.stop()) == 2 * len(steps)
