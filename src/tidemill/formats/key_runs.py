"""Sorted runs of 128-bit keys, for the ids of the gate and for observations: make, find and partition keys.

Pure functions over arrays; callers decide which files are runs and when runs are merged.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numba import njit

from tidemill.formats.arrays import Ints, Words
from tidemill.formats.arrow import one, string_buffers
from tidemill.formats.hashing import SEED_TENANT, hash_bytes, key_lanes


def hash_keys(
    tenant: pa.DictionaryArray, ids: pa.StringArray, *, seed: int = SEED_TENANT, within: str = ""
) -> tuple[Words, Words]:
    """The 128-bit keys of (tenant, id), or of (within, tenant, id)."""
    offsets, data = string_buffers(ids)
    names = [f"{within}\0{name}" if within else name for name in tenant.dictionary.to_pylist()]
    seeds = np.array([hash_bytes(name.encode(), seed) for name in names], np.uint64)
    return key_lanes(data, offsets, seeds, tenant.indices.to_numpy(zero_copy_only=False))


def within(run: pa.Table, low: int, high: int) -> pa.Table:
    """The entries of a run whose key is in a range, without a copy."""
    highs = one(run.column("high")).to_numpy()
    first = int(np.searchsorted(highs, np.uint64(low)))
    last = int(np.searchsorted(highs, np.uint64(high - 1), side="right"))
    return run.slice(first, last - first)


@njit(cache=True, nogil=True)
def positions(run: Words, keys: Words) -> Ints:
    """The position at which each of the sorted keys would be inserted in the sorted run.

    Steps grow while the run is behind and are halved when it is ahead, so the cost depends on the number of
    keys and only on the logarithm of their distance in the run.
    """
    out = np.empty(keys.size, np.int64)
    at = 0
    for i in range(keys.size):
        key = keys[i]
        step = 1
        while at + step < run.size and run[at + step] < key:
            at += step
            step *= 2
        low, high = at, min(at + step, run.size)
        while low < high:
            middle = (low + high) // 2
            if run[middle] < key:
                low = middle + 1
            else:
                high = middle
        at = low
        out[i] = at
    return out


def key_ranges(count: int) -> list[tuple[int, int]]:
    """`count` ranges of equal width that cover all keys."""
    edges = [(1 << 64) * i // count for i in range(count + 1)]
    return list(itertools.pairwise(edges))


def crowded_tier(sizes: Mapping[str, int], fan_in: int) -> list[str]:
    """What to merge now: the smallest tier with at least `fan_in` items of similar size."""
    tiers: dict[int, list[str]] = {}
    for name, size in sizes.items():
        tiers.setdefault(max(0, size.bit_length() // 3), []).append(name)
    return next((tiers[tier] for tier in sorted(tiers) if len(tiers[tier]) >= fan_in), [])


@njit(cache=True, nogil=True)
def sorted_order(high: Words, low: Words, time: Ints) -> Ints:
    """The order of rows by (high, low, time); stable.

    Keys are hashes and thus evenly distributed: they are sorted into buckets of a few rows each.
    """
    n = high.size
    least, most = high.min(), high.max()
    width, bits = most - least, 0
    while width >> np.uint64(bits):
        bits += 1
        if bits == 64:
            break
    buckets_bits = 1
    while (1 << buckets_bits) * 8 < n:
        buckets_bits += 1
    shift = np.uint64(max(0, bits - buckets_bits))
    starts = np.zeros((1 << buckets_bits) + 2, np.int64)
    for i in range(n):
        starts[np.int64((high[i] - least) >> shift) + 2] += 1
    for k in range(2, starts.size):
        starts[k] += starts[k - 1]
    order = np.empty(n, np.int64)
    for i in range(n):
        bucket = np.int64((high[i] - least) >> shift) + 1
        order[starts[bucket]] = i
        starts[bucket] += 1
    for k in range(starts.size - 2):
        _settle(order[starts[k] : starts[k + 1]], high, low, time)
    return order


@njit(cache=True, nogil=True)
def _settle(rows: Ints, high: Words, low: Words, time: Ints) -> None:
    """Sort the rows of a bucket in place: by insertion if they are few, else by sorts that scale."""
    moves = 0
    for i in range(1, rows.size):
        row = rows[i]
        at = i
        while at > 0 and _before(row, rows[at - 1], high, low, time):
            rows[at] = rows[at - 1]
            at -= 1
        rows[at] = row
        moves += i - at
        if moves > 64 * rows.size:
            break
    else:
        return
    rows[:] = np.sort(rows)  # in their original order
    rows[:] = rows[np.argsort(time[rows], kind="mergesort")]
    rows[:] = rows[np.argsort(low[rows], kind="mergesort")]
    rows[:] = rows[np.argsort(high[rows], kind="mergesort")]


@njit(cache=True, nogil=True, inline="always")
def _before(row: int, other: int, high: Words, low: Words, time: Ints) -> bool:
    if high[row] != high[other]:
        return bool(high[row] < high[other])
    if low[row] != low[other]:
        return bool(low[row] < low[other])
    return bool(time[row] < time[other])
