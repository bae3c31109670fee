"""What a stream's slices meet and leave behind, and the buffer that is counted meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tidemill.model.slices import Codec, Format, NewSlice, SliceEntry, SliceStatus
from tidemill.model.time import Interval
from tidemill.raw.accept.slice_clocks import Passing, SliceClocks, recorded, settled
from tidemill.raw.stream_buffer import PIECES, Piece, StreamBuffer
from tidemill.raw.watermark import TimeRules
from tidemill.storage.state.protocol import ClockState, Progress


def piece(*rows: tuple[int, int]) -> Piece:
    return np.array([t for t, _ in rows], np.int64), np.array([s for _, s in rows], np.int64)


def held(buffer: StreamBuffer) -> tuple[int, int]:
    return buffer.rows, buffer.bytes


def test_a_buffer_counts_what_is_after_the_watermark() -> None:
    buffer = StreamBuffer()
    buffer.add(piece((5, 10), (7, 20)))
    buffer.add(piece())
    buffer.add(piece((6, 1)))
    assert held(buffer) == (3, 31)
    assert buffer.release(4) == 0
    assert buffer.release(6) == 2
    assert held(buffer) == (1, 20)
    assert buffer.release(7) == 1
    assert held(buffer) == (0, 0)


def test_the_bound_is_the_least_instant_after_which_the_rest_fits() -> None:
    buffer = StreamBuffer()
    buffer.add(piece((1, 10), (3, 10), (3, 10), (9, 10)))
    assert [buffer.bound(n) for n in (40, 39, 30, 29, 10, 9, 0)] == [None, 1, 1, 3, 3, 9, 9]


rows = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), max_size=30)


@given(rows, st.integers(0, 60))
def test_the_bound_as_its_definition_has_it(found: list[tuple[int, int]], most: int) -> None:
    buffer = StreamBuffer()
    for row in found:
        buffer.add(piece(row))
    fits = [at for at in range(-1, 21) if sum(size for time, size in found if time > at) <= most]
    assert buffer.bound(most) == (None if fits[0] == -1 else fits[0])


def test_many_small_pieces_are_put_together() -> None:
    buffer = StreamBuffer()
    for number in range(3 * PIECES):
        buffer.add(piece((number, 2)))
    assert held(buffer) == (3 * PIECES, 6 * PIECES)
    assert buffer.release(PIECES - 1) == PIECES
    assert held(buffer) == (2 * PIECES, 4 * PIECES)


def passing(source: str, arrival: int, *found: tuple[int, int]) -> Passing:
    def after(instant: int) -> Iterator[Piece]:
        yield piece(*(row for row in found if row[0] > instant))

    newest = max((time for time, _ in found), default=None)
    return Passing(f"{source}{arrival}", source, arrival, newest, after)


def test_what_slices_meet_and_leave() -> None:
    clocks = SliceClocks(TimeRules(in_event_time=True, tolerance=10, max_bytes=100))
    assert clocks.pass_by(passing("a", 1, (50, 30), (45, 30))) is None
    assert clocks.progress == Progress(40, 1, 2, 60, 0)
    assert clocks.pass_by(passing("a", 2, (47, 30), (30, 30), (52, 30))) == 40
    assert clocks.progress == Progress(45, 3, 3, 90, 1)  # 42, and then 45 by the bound
    assert clocks.pass_by(passing("b", 3)) == 45  # without a row it moves nothing
    assert clocks.states({"a", "b"}) == [ClockState("a", 52, 42, 2)]
    again = SliceClocks(clocks.rules, clocks.states({"a"}), clocks.progress, clocks.buffer)
    assert again.pass_by(passing("a", 4, (60, 10))) == 45
    assert again.progress == Progress(50, 4, 2, 40, 1)


def test_by_processing_time_nothing_is_met_and_nothing_waits() -> None:
    clocks = SliceClocks(TimeRules(in_event_time=False, tolerance=10), progress=Progress(7, 2, 0, 0, 1))
    assert clocks.pass_by(passing("a", 100, (100, 30))) is None
    assert clocks.pass_by(passing("a", 90, (90, 30))) is None
    assert clocks.progress == Progress(7, 2, 0, 0, 1)
    assert clocks.states({"a"}) == [ClockState("a", 100, 90, 100)]


def entry(seq: int, status: SliceStatus, last: int | None = None, met: int | None = None) -> SliceEntry:
    new = NewSlice(f"s{seq}", "r", "a", "", Format.NDJSON, Codec.NONE, "", 1, 100 + seq)
    return SliceEntry(seq, new, status, observed=Interval(0, last + 1) if last else None, watermark=met)


def test_what_was_judged_before_comes_by_as_it_did_until_one_waits() -> None:
    ledger = [
        entry(1, SliceStatus.ACCEPTED, 50),
        entry(2, SliceStatus.ACCEPTED),
        entry(3, SliceStatus.FAILED),
        entry(4, SliceStatus.ACCEPTED, 60, met=48),
        entry(5, SliceStatus.PENDING),
        entry(6, SliceStatus.ACCEPTED, 70, met=58),
    ]
    assert [(p.slice, p.newest, p.met) for p in recorded(ledger)] == [
        ("s1", 50, None), ("s4", 60, 48), ("s6", 70, 58),
    ]  # fmt: skip
    assert [e.seq for e in settled(ledger)] == [1, 2, 3, 4]
    clocks = SliceClocks(TimeRules(in_event_time=True, tolerance=20))  # 2, when they were judged
    assert [clocks.pass_by(p) for p in recorded(settled(ledger))] == [None, 48]
    assert (clocks.clock.watermark, clocks.clock.emitted) == (48, 2)
