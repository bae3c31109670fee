"""The bytes of the log: what goes in comes out, and nothing that was changed passes for a frame."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidemill.ingest.gateway.frames import (
    FRAME_BYTES,
    HEAD_BYTES,
    Carried,
    Head,
    Kind,
    carried_close,
    carried_entry,
    close_of,
    entry_of,
    feed_of,
    framed,
    head_of,
    opening_of,
    runs_of,
)
from tidemill.model.gateway import Entry, Submission, WindowOutput, WindowStats
from tidemill.model.slices import Format
from tidemill.model.time import Interval

MARK = b"\x01marked\xff"
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.integers(0, (1 << 63) - 1)
SUBMISSIONS = st.builds(
    Submission,
    stream=WORDS,
    source=WORDS,
    content=st.binary(max_size=300),
    records=st.integers(0, 1 << 31),
    format=st.sampled_from(Format),
    tenant=st.none() | WORDS,
    unnamed=st.lists(st.integers(0, (1 << 32) - 1), max_size=5).map(tuple),
    declared=st.none() | st.tuples(NUMBERS, NUMBERS).map(lambda pair: Interval(*sorted(pair))),
)
ENTRIES = st.builds(Entry, st.just("0123456789ab"), NUMBERS, NUMBERS, SUBMISSIONS)
WINDOWS = st.builds(
    WindowOutput,
    *[WORDS] * 3,
    *[NUMBERS] * 2,
    trigger=WORDS,
    stats=st.builds(WindowStats, *[NUMBERS] * 4),
)


def whole(carried: Carried, lsn: int = 1, arrival: int = 2) -> bytes:
    return framed(carried, MARK, 77, lsn, arrival) + b"".join(carried.parts)


@given(ENTRIES)
def test_an_entry_comes_back_as_it_was(entry: Entry) -> None:
    frame = whole(carried_entry(entry.submission), entry.lsn, entry.arrival)
    opening = opening_of(frame[:FRAME_BYTES], MARK)
    assert opening is not None
    kind = Kind.ENTRY if entry.submission.declared is None else Kind.BOUNDED
    assert (opening.kind, opening.group, opening.size) == (kind, 77, len(frame) - FRAME_BYTES)
    assert opening.holds(frame[FRAME_BYTES:])
    assert entry_of(entry.gateway, opening, frame[FRAME_BYTES:]) == entry
    assert feed_of(opening, frame[FRAME_BYTES:]) == (entry.submission.stream, entry.submission.source)


@given(WINDOWS, st.sets(st.integers(1, 60)).map(sorted))
def test_a_close_comes_back_with_its_lsns(output: WindowOutput, lsns: list[int]) -> None:
    frame = whole(carried_close(output, lsns))
    opening = opening_of(frame[:FRAME_BYTES], MARK)
    assert opening is not None
    assert opening.kind == Kind.CLOSE
    assert opening.holds(frame[FRAME_BYTES:])
    reported, runs = close_of(frame[FRAME_BYTES:])
    assert reported == output
    assert [lsn for first, count in runs for lsn in range(first, first + count)] == lsns


def test_a_window_of_one_stream_is_one_run() -> None:
    assert list(runs_of(range(5, 90_005))) == [(5, 90_000)]
    assert list(runs_of([1, 2, 5, 7, 8, 9])) == [(1, 2), (5, 1), (7, 3)]
    assert list(runs_of([])) == []


@given(SUBMISSIONS, st.data())
def test_a_changed_byte_is_seen(wanted: Submission, data: st.DataObject) -> None:
    frame = bytearray(whole(carried_entry(wanted)))
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    opening = opening_of(bytes(frame[:FRAME_BYTES]), MARK)
    assert opening is None or not opening.holds(bytes(frame[FRAME_BYTES:]))


def test_a_frame_of_another_segment_or_none_is_no_frame() -> None:
    frame = whole(carried_entry(Submission("s", "http", b"{}\n", 1)))
    assert opening_of(frame[:FRAME_BYTES], MARK) is not None
    assert opening_of(frame[:FRAME_BYTES], MARK[::-1]) is None
    assert opening_of(frame[: FRAME_BYTES - 1], MARK) is None
    assert opening_of(bytes(FRAME_BYTES), bytes(8)) is None  # zeros, as some file systems leave


@given(NUMBERS, NUMBERS, NUMBERS, st.data())
def test_the_head_of_a_segment_comes_back_whole_or_not_at_all(
    number: int, first: int, before: int, data: st.DataObject
) -> None:
    head = Head(number, first, before, MARK)
    packed = bytearray(head.packed())
    assert len(packed) == HEAD_BYTES
    assert head_of(bytes(packed)) == head
    assert head_of(bytes(packed[:-1])) is None
    packed[data.draw(st.integers(0, HEAD_BYTES - 1))] ^= data.draw(st.integers(1, 255))
    assert head_of(bytes(packed)) is None
