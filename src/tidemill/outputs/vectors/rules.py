"""When a chain is compacted, and which of its rows then become one: pure rules over the rows of many chains.

They look at no value and at no clock. Which rows are merged never depends on what else is in the bucket.

A chain is the rows of one vector in order of (ts, delta_id): checkpoints, and deltas that are pending.
* `full_merge`: all of it becomes one checkpoint.
* `tiered_merge`: all but the `keep_recent` youngest pending deltas.
* `time_boundary`: what lies in the same `interval` (aligned to the epoch) becomes one checkpoint, the vector
  as of the end of that interval; only intervals that are over.
* `adaptive`: a chain is hot once reads had to apply `HOT` pending deltas (reads since it was last compacted
  times pending deltas, counted by the process that compacts): then full_merge, so that a read finds the
  vector ready; otherwise tiered_merge.
A chain that would still be longer than `max_chain_length` is merged in full, whatever the strategy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from tidemill.config.vectors import CompactionSettings
from tidemill.formats.arrays import Ints, Mask

HOT: Final = 1000  # deltas that reads had to apply
KEEPS_RECENT: Final = ("tiered_merge", "adaptive")


class Reason(StrEnum):
    """Why a chain is compacted; the first that applies."""

    LENGTH = "length"  # it is longer than max_chain_length
    COUNT = "count"  # delta_threshold deltas are pending
    AGE = "age"  # the oldest of them has been pending for time_threshold
    ASKED = "asked"  # it was requested


REASONS: Final = tuple(Reason)
NONE: Final = -1  # in place of a position in REASONS, or of a group


@dataclass(frozen=True, slots=True)
class Chains:
    """The rows of many chains, chain by chain, each in order; none is empty."""

    starts: Ints  # of each chain, and behind the last one
    ts: Ints
    pending: Mask  # rows that are deltas

    def __len__(self) -> int:
        return int(self.starts.size - 1)

    @property
    def chain(self) -> Ints:
        """The chain of each row."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    def count(self, rows: Mask) -> Ints:
        """How many of the rows each chain has."""
        sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(rows, dtype=np.int64)])
        return np.asarray(sums[self.starts[1:]] - sums[self.starts[:-1]])


@dataclass(frozen=True, slots=True)
class ChainFacts:
    """One chain."""

    ts: Sequence[int]
    checkpoints: Sequence[bool]  # which rows are checkpoints
    reads: int = 0  # since it was last compacted

    @property
    def as_chains(self) -> Chains:
        rows = len(self.ts)
        pending = ~np.array(self.checkpoints, np.bool_) if rows else np.zeros(0, np.bool_)
        return Chains(np.array([0, rows], np.int64), np.array(self.ts, np.int64), pending)


def needs(chain: ChainFacts, settings: CompactionSettings, now: int) -> Reason | None:
    """Why a chain should be compacted now; None if it should not."""
    if not chain.ts:
        return None
    found = needed(chain.as_chains, settings, now, np.array([chain.reads], np.int64))
    return None if found[0] == NONE else REASONS[found[0]]


def needed(chains: Chains, settings: CompactionSettings, now: int, reads: Ints) -> Ints:
    """For each chain the position of its reason in REASONS, or NONE. A chain that compaction would not change
    gets none, so that it is not tried again until something changes. Nor does one whose age or count is
    reached but of which only a few deltas would be merged while others stay: otherwise a chain that keeps
    recent deltas would be rewritten for every new one."""
    found = np.full(len(chains), NONE, np.int64)
    pending = chains.count(chains.pending)
    oldest = _oldest_pending(chains)
    merged = chains.count((merges(chains, settings, now, reads) != NONE) & chains.pending)
    worth = (merged == pending) | (merged >= worth_merging(settings))
    found[worth & (pending > 0) & (oldest <= now - settings.time_threshold)] = REASONS.index(Reason.AGE)
    found[worth & (pending >= settings.delta_threshold)] = REASONS.index(Reason.COUNT)
    found[np.diff(chains.starts) > settings.max_chain_length] = REASONS.index(Reason.LENGTH)
    found[merged == 0] = NONE
    return found


def worth_merging(settings: CompactionSettings) -> int:
    """How many deltas must be merged at least if others of the chain stay: half as many as those."""
    return max(1, -(-settings.keep_recent // 2)) if settings.strategy in KEEPS_RECENT else 1


def merges(
    chains: Chains, settings: CompactionSettings, now: int, reads: Ints, wanted: Mask | None = None
) -> Ints:
    """For each row the group of neighbours that become one checkpoint, ascending from 0; NONE: it stays.
    `wanted`: only for these chains."""
    chain = chains.chain
    key = _keys(chains, chain, settings, now, reads)
    groups = _useful(chains, chain, key)
    long = np.diff(chains.starts) - _saved(chains, groups) > settings.max_chain_length
    if long.any():
        groups = _useful(chains, chain, np.where(long[chain], 0, key))
    if wanted is not None:
        groups = np.where(wanted[chain], groups, NONE)
    return _numbered(groups)


def _keys(chains: Chains, chain: Ints, settings: CompactionSettings, now: int, reads: Ints) -> Ints:
    """Rows of a chain that the strategy merges have the same key; NONE: not merged."""
    merge = np.zeros(chain.size, np.int64)
    if settings.strategy == "full_merge":
        return merge
    if settings.strategy == "time_boundary":
        boundary = chains.ts // settings.interval
        return np.where((boundary + 1) * settings.interval <= now, boundary - boundary.min(initial=0), NONE)
    pending = chains.count(chains.pending)
    before: Ints = np.cumsum(chains.pending) - chains.pending  # pending rows before each row, in all chains …
    firsts = np.concatenate([before, [0]])[chains.starts[:-1]] if chain.size else np.zeros(0, np.int64)
    position = before - firsts[chain]  # … and in its own chain
    recent = chains.pending & (position >= (pending - settings.keep_recent)[chain])
    if settings.strategy == "adaptive":
        recent &= ~(reads * pending >= HOT)[chain]
    return np.where(recent, NONE, merge)


def _useful(chains: Chains, chain: Ints, key: Ints) -> Ints:
    """Runs of neighbours with the same key, numbered, without those that have nothing pending."""
    if not key.size:
        return key
    first = np.ones(key.size, np.bool_)
    first[1:] = (chain[1:] != chain[:-1]) | (key[1:] != key[:-1])
    run = np.cumsum(first) - 1
    pending = np.bincount(run, weights=chains.pending, minlength=int(run[-1]) + 1) > 0
    return np.where((key != NONE) & pending[run], run, NONE)


def _saved(chains: Chains, groups: Ints) -> Ints:
    """By how many rows each chain gets shorter."""
    merged = groups != NONE
    last = merged.copy()
    last[:-1] &= groups[:-1] != groups[1:]
    return chains.count(merged & ~last)


def _numbered(groups: Ints) -> Ints:
    merged = groups != NONE
    out = np.full(groups.size, NONE, np.int64)
    out[merged] = np.unique(groups[merged], return_inverse=True)[1]
    return out


def _oldest_pending(chains: Chains) -> Ints:
    """The time of the oldest pending delta of each chain; arbitrary for a chain without one."""
    if not len(chains):
        return np.zeros(0, np.int64)
    ts = np.where(chains.pending, chains.ts, np.iinfo(np.int64).max)
    return np.asarray(np.minimum.reduceat(ts, chains.starts[:-1]))
