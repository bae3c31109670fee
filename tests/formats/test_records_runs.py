"""Sorted runs of keys: the order they are brought into, and how things of one size are found."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tidemill.formats.key_runs import (
    FAR,
    NEAR,
    Lookup,
    Sieve,
    crowded_tier,
    key_ranges,
    order_of_keys,
    sorted_order,
)


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


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 1000, 20_000])
@pytest.mark.parametrize("span", [1, 3, 1 << 14, 1 << 64])
def test_equal_keys_stay_in_the_order_of_their_rows(rows: int, span: int) -> None:
    keys = np.random.default_rng(rows).integers(0, span - 1, rows, np.uint64, endpoint=True)
    wanted = [row for _, row in sorted(zip(keys.tolist(), range(rows), strict=True))]
    assert order_of_keys(keys).tolist() == wanted


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


@pytest.mark.parametrize("ratio", [0, 1, NEAR, NEAR + 1, FAR, FAR + 1])
@pytest.mark.parametrize("span", [40, 1 << 64])
def test_keys_are_found_in_a_run_however_long_it_is(ratio: int, span: int) -> None:
    """Crowded or far apart, the least and the greatest key, and keys that a run or the batch has twice."""
    random = np.random.default_rng(ratio)
    keys = np.sort(np.append(random.integers(0, span, 30, np.uint64), np.uint64([0, span - 1])))
    run = np.sort(np.append(random.integers(0, span, 30 * ratio, np.uint64), keys[: 2 * ratio : 3]))
    first = {key: at for at, key in reversed(list(enumerate(run.tolist())))}
    wanted = [(i, first[key]) for i, key in enumerate(keys.tolist()) if key in first]
    for sieve in (None, Sieve.of(run, 8)) if run.size else (None,):
        which, where = Lookup(keys).matches(run, sieve)
        assert list(zip(which.tolist(), where.tolist(), strict=True)) == wanted


@pytest.mark.parametrize("span", [1, 40, 5_000, 1 << 64])
@pytest.mark.parametrize("bits", [1, 8, 32])
def test_a_sieve_lets_its_own_keys_through_and_few_others(span: int, bits: int) -> None:
    random = np.random.default_rng(span % 97)
    keys = np.sort(random.integers(span // 4, max(1, span // 2), 1_000, np.uint64))
    sieve = Sieve.of(keys, bits)
    assert sieve.candidates(keys).tolist() == list(range(keys.size))
    others = np.sort(random.integers(0, span, 10_000, np.uint64))
    passed = set(sieve.candidates(others).tolist())
    assert passed >= set(np.flatnonzero(np.isin(others, keys)).tolist())
    assert not any(others[i] < keys[0] or others[i] > keys[-1] + (1 << sieve.shift) for i in passed)
    if span == 1 << 64 and bits == 32:
        assert len(passed) < 0.02 * others.size


def test_one_key_is_found() -> None:
    for run in ([], [6], [7], [8], [6, 7, 7, 8]):
        which, where = Lookup(np.array([7], np.uint64)).matches(np.array(run, np.uint64))
        assert (which.tolist(), where.tolist()) == (([0], [run.index(7)]) if 7 in run else ([], []))
