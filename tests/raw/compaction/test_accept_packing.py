"""Which slices are packed together: oldest first, so many of them or so many bytes, each once, none twice."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from tidemill.config.stream_sections import Pack
from tidemill.model.time import DAY, HOUR, Interval, parse_instant
from tidemill.raw.compaction.selection import Group, UnpackedSlice, groups

MIB = 1 << 20
DAY_15 = parse_instant("2024-01-15T00:00:00Z")


def waiting(number: int, start: int | None = None, size: int = 100) -> UnpackedSlice:
    """Slice `number`, the same as its place in the ledger, of five rows."""
    begins = start if start is not None else number * 10
    first = DAY_15 + number % 3 * DAY
    return UnpackedSlice(
        f"s{number}", number, begins, 5, size, (f"p{number}",), Interval(first, first + HOUR)
    )


def chosen(found: list[Group]) -> list[tuple[str, ...]]:
    return [group.slices for group in found]


def test_p1_seven_slices_by_three_are_two_groups_and_the_last_waits() -> None:
    found = groups([waiting(n) for n in range(7)], Pack(slices=3))
    assert chosen(found) == [("s0", "s1", "s2"), ("s3", "s4", "s5")]
    assert [(group.rows, group.bytes) for group in found] == [(15, 300), (15, 300)]


def test_the_oldest_go_first_in_whatever_order_they_arrived() -> None:
    arrived = [waiting(0, 50), waiting(1, 10), waiting(2, 30), waiting(3, 10), waiting(4, 0)]
    assert chosen(groups(arrived, Pack(slices=2))) == [("s4", "s1"), ("s3", "s2")]


def test_slices_that_begin_at_the_same_instant_go_by_their_place_in_the_ledger() -> None:
    same = [waiting(n, 7) for n in (3, 1, 2, 0)]
    assert chosen(groups(same, Pack(slices=4))) == [("s0", "s1", "s2", "s3")]


def test_a_group_is_full_by_bytes_when_those_come_first() -> None:
    sizes = [60, 30, 20, 200, 10, 99]
    found = groups([waiting(n, size=size * MIB) for n, size in enumerate(sizes)], Pack(slices=4))
    assert chosen(found) == [("s0", "s1", "s2", "s3")]
    found = groups(
        [waiting(n, size=size * MIB) for n, size in enumerate(sizes)], Pack(slices=4, bytes=100 * MIB)
    )
    assert chosen(found) == [("s0", "s1", "s2"), ("s3",), ("s4", "s5")]


def test_fewer_than_a_group_wait() -> None:
    assert groups([], Pack(slices=1)) == []
    assert groups([waiting(n) for n in range(63)], Pack()) == []
    assert len(groups([waiting(n) for n in range(64)], Pack())) == 1


def test_a_group_names_the_parts_and_days_of_its_slices() -> None:
    (group,) = groups([waiting(n) for n in range(4)], Pack(slices=4))
    assert group.parts == ("p0", "p1", "p2", "p3")
    assert group.days == ("2024-01-15", "2024-01-16", "2024-01-17")


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 50)), max_size=60),
    st.integers(1, 9),
    st.integers(1, 200),
    st.randoms(use_true_random=False),
)
def test_groups_are_the_sorted_slices_cut_where_they_are_full(
    drawn: list[tuple[int, int]], slices: int, size: int, chance: random.Random
) -> None:
    there = [waiting(n, start, many) for n, (start, many) in enumerate(drawn)]
    pack = Pack(slices=slices, bytes=size)
    found = groups(there, pack)
    shuffled = list(there)
    chance.shuffle(shuffled)
    assert groups(shuffled, pack) == found
    flat = [name for group in found for name in group.slices]
    ordered = [one.id for one in sorted(there, key=lambda one: (one.start, one.seq))]
    assert flat == ordered[: len(flat)]  # oldest first, each once
    bytes_of = {one.id: one.bytes for one in there}
    for group in found:
        assert len(group.slices) == slices or group.bytes >= size
        assert len(group.slices) <= slices
        assert sum(bytes_of[name] for name in group.slices[:-1]) < size  # it was not full before the last
    left = ordered[len(flat) :]
    assert len(left) < slices
    assert sum(bytes_of[name] for name in left) < size
