"""Sorted runs of 128-bit keys, for the ids of the gate and for observations: make, find and partition keys.

Pure functions over arrays; callers decide which files are runs and when runs are merged.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numba import njit, uint64

from tidemill.formats.arrays import Ints, Words
from tidemill.formats.arrow import one, string_buffers
from tidemill.formats.compiled import step, walk
from tidemill.formats.hashing import SEED_TENANT, hash_bytes, key_lanes

NEAR: Final = 4  # keys of a run for each that is looked up, at most, to try each of them
FAR: Final = 64  # the same, to walk along them
SIEVE: Final = 32  # bits for each key that is looked up


def hash_keys(
    tenant: pa.DictionaryArray, ids: pa.StringArray, *, seed: int = SEED_TENANT, within: str = ""
) -> tuple[Words, Words]:
    """The 128-bit keys of (tenant, id), or of (within, tenant, id)."""
    offsets, data = string_buffers(ids)
    names = [f"{within}\0{name}" if within else name for name in tenant.dictionary.to_pylist()]
    seeds = np.array([hash_bytes(name.encode(), seed) for name in names], np.uint64)
    return key_lanes(data, offsets, seeds, tenant.indices.to_numpy(zero_copy_only=False))


def order_of_keys(keys: Words) -> Ints:
    """The rows in ascending order of their keys, equal keys in the order of the rows. NumPy sorts random
    keys several times as fast if it need not keep that order, and few keys are equal."""
    order = np.argsort(keys)
    ordered = keys[order]
    same = ordered[1:] == ordered[:-1]
    if same.any():
        tied = np.flatnonzero(np.append(False, same) | np.append(same, False))
        order[tied] = order[tied][np.lexsort((order[tied], ordered[tied]))]
    return order


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


@dataclass(frozen=True, slots=True)
class Sieve:
    """Says of a key that it is not among some keys, or that it may be: a Bloom filter whose words are in the
    order of the keys, so that keys in ascending order are looked up by walking along it once."""

    words: Words
    origin: int  # the least of the keys
    shift: int  # how far a key above the origin is shifted to find its word

    @classmethod
    def of(cls, keys: Words, bits: int) -> Sieve:
        """Of keys in ascending order, of which there is at least one; about so many bits for each."""
        span, count = int(keys[-1] - keys[0]), -(-bits * keys.size // 64)
        shift = min(63, max(0, span.bit_length() - (count - 1).bit_length()))  # no word is shifted by 64
        words = np.zeros((span >> shift) + 1, np.uint64)
        _enter(keys, words, keys[0], np.uint64(shift))
        return cls(words, int(keys[0]), shift)

    def candidates(self, keys: Words) -> Ints:
        """The positions of those of the ascending keys that may be among the keys."""
        room = np.empty(keys.size, np.int64)
        return room[: _sift(keys, self.words, np.uint64(self.origin), np.uint64(self.shift), room)]


class Lookup:
    """Sorted keys that are looked for in one run after another."""

    def __init__(self, keys: Words) -> None:
        self.keys = keys
        self._sieve = Sieve.of(keys, SIEVE) if keys.size else None

    def matches(self, run: Words, sieve: Sieve | None = None) -> tuple[Ints, Ints]:
        """The keys that a run has: their positions among the keys, and the first position of each in the run;
        both ascend. `sieve` is that of the run, if it has one. Otherwise, how far apart the keys lie in the
        run decides which way is quickest."""
        if not run.size or self._sieve is None:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        if sieve is not None:
            which = sieve.candidates(self.keys)
        elif run.size <= NEAR * self.keys.size:
            return _sifted(run, self.keys, self._sieve.candidates(run))
        elif run.size <= FAR * self.keys.size:
            return _walked(run, self.keys)
        else:
            which = np.arange(self.keys.size)
        at = positions(run, self.keys[which])
        found = np.flatnonzero(run[np.minimum(at, run.size - 1)] == self.keys[which])
        return which[found], at[found]


@walk
def _enter(keys: Words, words: Words, origin: uint64, shift: uint64) -> None:
    for i in range(keys.size):
        words[(keys[i] - origin) >> shift] |= _marks(keys[i])


@walk
def _sift(keys: Words, words: Words, origin: uint64, shift: uint64, found: Ints) -> int:
    """Where the keys are that may be among others, and how many; without a branch, whose outcome nothing
    predicts."""
    n = np.uint64(0)
    size = np.uint64(words.size)
    for i in range(np.uint64(keys.size)):
        at, marks = (keys[i] - origin) >> shift, _marks(keys[i])
        found[n] = i
        if at < size:  # a key below the origin wraps around, and lies beyond all words
            n += np.uint64(words[at] & marks == marks)
    return int(n)


@step
def _marks(key: uint64) -> uint64:
    """Three bits of a word, by those bits of a key that do not choose the word."""
    one, mask = np.uint64(1), np.uint64(63)
    return one << (key & mask) | one << (key >> np.uint64(6) & mask) | one << (key >> np.uint64(12) & mask)


@njit(cache=True, nogil=True)
def _sifted(run: Words, keys: Words, candidates: Ints) -> tuple[Ints, Ints]:
    """Those entries of the run that are among the keys."""
    which, where = np.empty(keys.size, np.int64), np.empty(keys.size, np.int64)
    at = found = 0
    for j in candidates:
        while at < keys.size and keys[at] < run[j]:
            at += 1
        while at < keys.size and keys[at] == run[j]:
            which[found], where[found] = at, j
            found += 1
            at += 1
    return which[:found].copy(), where[:found].copy()


@njit(cache=True, nogil=True)
def _walked(run: Words, keys: Words) -> tuple[Ints, Ints]:
    """By walking along both."""
    which, where = np.empty(keys.size, np.int64), np.empty(keys.size, np.int64)
    at = found = 0
    for i in range(keys.size):
        key = keys[i]
        while at < run.size and run[at] < key:
            at += 1
        if at == run.size:
            break
        if run[at] == key:
            which[found], where[found] = i, at
            found += 1
    return which[:found].copy(), where[:found].copy()


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
