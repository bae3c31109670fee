"""Sorted runs of keys: the order they are brought into, and how things of one size are found."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tidemill.formats.key_runs import crowded_tier, key_ranges, sorted_order


@pytest.mark.parametrize("rows", [1, 2, 7, 1000, 20_000])
@pytest.mark.parametrize("objects", [1, 3, 500])
@pytest.mark.parametrize("span", [1, 1 << 20, 1 << 64])
def test_rows_are_ordered_by_key_and_time_and_equal_ones_stay(rows: int, objects: int, span: int) -> None:
    dice = np.random.default_rng(rows + objects)
    keys = dice.integers(0, span - 1, objects, np.uint64, endpoint=True)
    high = keys[dice.integers(0, objects, rows)]
    low = dice.integers(0, 2, rows).astype(np.uint64)
    time = dice.integers(0, 50, rows)
    assert sorted_order(high, low, time).tolist() == np.lexsort((time, low, high)).tolist()


def test_many_rows_of_one_key_in_the_wrong_order_do_not_take_long() -> None:
    high = np.zeros(300_000, np.uint64)
    time = np.arange(high.size)[::-1].copy()
    assert sorted_order(high, high, time).tolist() == time.tolist()


def test_ranges_hold_every_key_once() -> None:
    for count in (1, 2, 7):
        ranges = key_ranges(count)
        assert (ranges[0][0], ranges[-1][1]) == (0, 1 << 64)
        assert all(a[1] == b[0] for a, b in itertools.pairwise(ranges))


def test_the_smallest_crowd_of_one_size_is_merged_first() -> None:
    assert crowded_tier({"a": 9, "b": 10, "c": 1000}, 3) == []
    assert crowded_tier({"a": 9, "b": 10, "c": 1000, "d": 1001, "e": 11, "f": 1002}, 3) == ["a", "b", "e"]
    assert crowded_tier({"c": 1000, "d": 1001, "f": 1002, "a": 9}, 3) == ["c", "d", "f"]
