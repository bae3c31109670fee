"""Makes cells of a state metric from observations: objects that enter and leave states, and transitions.

Every row follows from the history of one object up to one observation; other objects and the order of arrival
do not matter. `TransitionRule` defines the rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
from numba import njit

from tidemill.formats.arrays import Ints, Mask
from tidemill.formats.arrow import one
from tidemill.model.levels import BASE
from tidemill.model.metrics import NONE_STATE, TransitionRule
from tidemill.outputs.rollups.admitted_keys import key_columns
from tidemill.outputs.rollups.cells import cell_schema
from tidemill.outputs.rollups.grouping import GroupCodes, Groups, coded, grouped
from tidemill.outputs.rollups.observations import joined, order_of
from tidemill.outputs.rollups.spec import Metric

_NO: Final = -1


@dataclass(frozen=True, slots=True)
class Histories:
    """Sorted observations as arrays."""

    texts: Sequence[str]  # the states
    begins: Mask  # the first observation of its object
    state: Ints
    key: Ints  # tenant and dimensions
    bucket: Ints
    keys: Ints  # of each key a row that has it

    def where(self, rows: Mask) -> Histories:
        """Only these rows, as if there had been no others."""
        number = (np.cumsum(self.begins) - 1)[rows]
        begins = np.ones(number.size, np.bool_)
        begins[1:] = number[1:] != number[:-1]
        return replace(
            self, begins=begins, state=self.state[rows], key=self.key[rows], bucket=self.bucket[rows]
        )


@dataclass(frozen=True, slots=True)
class _Changes:
    """Rows before they are summed: net rows, or transitions of one rule."""

    sign: int
    key: Ints
    bucket: Ints
    state: Ints  # for a transition, the state it leads to
    rule: int = _NO
    left: Ints | None = None  # the state that a transition leaves; the number of states means none


def state_cells(metric: Metric, observations: pa.Table, wanted: Mask | None = None) -> pa.Table:
    """The 5s cells of observations (of those `wanted`), which are sorted and contain each object's history
    from the beginning; if all rules are local, from the one before the first wanted."""
    if not observations.num_rows:
        return cell_schema(metric).empty_table()
    known = histories(metric, observations)
    every = np.ones(observations.num_rows, np.bool_) if wanted is None else wanted
    return _summed(metric, observations, known, list(_rows(metric, known, every, 1)))


def union_of(before: pa.Table, added: pa.Table) -> tuple[pa.Table, Mask]:
    """Both together, sorted, and which rows are new."""
    new = np.zeros(before.num_rows + added.num_rows, np.bool_)
    new[before.num_rows :] = True
    if not before.num_rows:
        return added, new
    union = joined([before, added.select(before.column_names)])
    order = order_of(union)
    return (union, new) if order is None else (union.take(pa.array(order)).combine_chunks(), new[order])


def signed_cells(metric: Metric, union: pa.Table, new: Mask) -> pa.Table:
    """What the rows `new` change: the cells of the union minus those of the other rows; may be negative.

    The other rows are the whole histories of the objects of the new ones. If all rules are local, the
    observations between the new ones, the last before and the first after them are enough.
    """
    assert metric.following is not None
    if not new.any():
        return cell_schema(metric).empty_table()
    known = histories(metric, union)
    after_new = np.zeros(new.size, np.bool_)
    after_new[1:] = new[:-1] & ~known.begins[1:]
    affected = new | after_new if metric.following.is_local else np.ones(new.size, np.bool_)
    rows = list(_rows(metric, known, affected, 1))
    if not new.all():
        rows += _rows(metric, known.where(~new), affected[~new], -1)
    return _summed(metric, union, known, rows)


def histories(metric: Metric, observations: pa.Table) -> Histories:
    high, low = (one(observations.column(name)).to_numpy() for name in ("high", "low"))
    begins = np.ones(high.size, np.bool_)
    begins[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    key, keys = grouped([coded(observations.column(name)) for name in key_columns(metric)])
    time = one(observations.column("time")).to_numpy()
    states = one(observations.column("state"))
    codes = states.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return Histories(states.dictionary.to_pylist(), begins, codes, key, time - time % BASE.width, keys)


# -- rows


def _rows(metric: Metric, known: Histories, wanted: Mask, sign: int) -> Iterator[_Changes]:
    assert metric.following is not None
    begins, state, key, bucket = known.begins, known.state, known.key, known.bucket
    entered = np.flatnonzero(_moved(known) & wanted)
    left = entered[~begins[entered]]
    yield _Changes(sign, key[entered], bucket[entered], state[entered])
    yield _Changes(-sign, key[left - 1], bucket[left], state[left - 1])
    for number, rule in enumerate(metric.following.rules):
        at, before = transitions_at(known, rule, wanted)
        yield _Changes(sign, key[at], bucket[at], state[at], number, before)


def transitions_at(known: Histories, rule: TransitionRule, wanted: Mask) -> tuple[Ints, Ints]:
    """The observations (of those `wanted`) that a rule counts, once for each transition, and the state that
    each is from; as many as there are states: none."""
    begins, state = known.begins, known.state
    counted = _changed(known) & wanted
    if rule.to is not None:
        counted &= _among(known.texts, rule.to)[state]
    if rule.until:
        counted &= _looked_at(known, rule.until)
    at = np.flatnonzero(counted)
    if rule.from_last:
        return at, np.where(begins[at], len(known.texts), state[at - 1])
    at, before = _seen_before(known, at)
    kept = before != state[at]
    if rule.from_states is not None:
        kept &= _among(known.texts, rule.from_states)[before]
    return at[kept], before[kept]


def entered_last(known: Histories) -> Ints:
    """Of each object the observation with which it came into the state and the key that it has last."""
    entered = np.flatnonzero(_moved(known))
    number = (np.cumsum(known.begins) - 1)[entered]
    return entered[np.append(number[1:] != number[:-1], True)] if entered.size else entered


def _changed(known: Histories) -> Mask:
    """Observations of another state than the one before."""
    changed = known.begins.copy()
    changed[1:] |= known.state[1:] != known.state[:-1]
    return changed


def _moved(known: Histories) -> Mask:
    """Observations of another state or key than the one before."""
    moved = _changed(known)
    moved[1:] |= known.key[1:] != known.key[:-1]
    return moved


def _among(texts: Sequence[str], names: Collection[str]) -> Mask:
    """For each state whether it is among the named ones."""
    return np.array([text in names for text in texts], np.bool_)


def _looked_at(known: Histories, until: Collection[str]) -> Mask:
    """The observations of each object up to and including the first of a state in `until`."""
    number = np.cumsum(known.begins) - 1
    ends = np.flatnonzero(_among(known.texts, until)[known.state])
    objects, first = np.unique(number[ends], return_index=True)
    last = np.full(int(number[-1]) + 1, number.size)
    last[objects] = ends[first]
    return np.arange(number.size) <= last[number]


def _seen_before(known: Histories, at: Ints) -> tuple[Ints, Ints]:
    """For each of the given observations each state that its object was in before: where, and which."""
    number = np.cumsum(known.begins) - 1
    _, first = np.unique(number * len(known.texts) + known.state, return_index=True)
    firsts = np.sort(first)  # where an object is first seen in a state
    upto = np.searchsorted(firsts, at)
    since = np.searchsorted(firsts, np.flatnonzero(known.begins)[number[at]])
    many = upto - since
    starts = np.repeat(since - (np.cumsum(many) - many), many)
    return np.repeat(at, many), known.state[firsts[starts + np.arange(starts.size)]]


# -- cells


def _summed(metric: Metric, observations: pa.Table, known: Histories, rows: Sequence[_Changes]) -> pa.Table:
    """Cells of the rows: one for each key, state or transition, and bucket; none if they cancel out."""
    assert metric.following is not None
    rows = [each for each in rows if each.key.size]
    if not rows:
        return cell_schema(metric).empty_table()
    states, rules = len(known.texts), len(metric.following.rules)
    least = min(int(each.bucket.min()) for each in rows)
    most = max(int(each.bucket.max()) for each in rows)
    sizes = (known.keys.size, states + rules * (states + 1) * states, (most - least) // BASE.width + 1)
    parts = [(r.key, _count_codes(r, states), (r.bucket - least) // BASE.width, r.sign) for r in rows]
    key, what, bucket, counts = _tallied(parts, sizes)
    net = what < states
    rule, rest = np.divmod(np.where(net, 0, what - states), (states + 1) * states)
    left, to = np.divmod(rest, max(1, states))
    texts = pa.array([*known.texts, NONE_STATE], pa.string())
    names = pa.array([each.name for each in metric.following.rules], pa.string())
    where = pa.array(known.keys[key])
    columns: dict[str, pa.Array] = {
        name: one(observations.column(name)).take(where) for name in key_columns(metric)
    }
    columns["state"] = _text(np.where(net, what, 0), texts, ~net)
    columns["rule"] = _text(rule, names, net)
    columns["from"] = _text(left, texts, net)
    columns["to"] = _text(to, texts, net)
    columns["bucket"] = pa.array(bucket * BASE.width + least)
    columns["count"] = pa.array(counts)
    return pa.table(columns, schema=cell_schema(metric))


def _count_codes(rows: _Changes, states: int) -> Ints:
    """What is counted, as one number: a state; or, beyond those, rule, state left and state reached."""
    if rows.left is None:
        return rows.state
    return states + (rows.rule * (states + 1) + rows.left) * states + rows.state


_Part = tuple[Ints, Ints, Ints, int]  # key, what, bucket from 0, and what each adds


def _tallied(parts: Sequence[_Part], sizes: tuple[int, int, int]) -> tuple[Ints, Ints, Ints, Ints]:
    """The distinct keys, states and buckets, and their sums if not 0."""
    keys, whats, buckets = sizes
    total, many = keys * whats * buckets, sum(part[0].size for part in parts)
    if total <= 4 * many + 4096:  # few enough to count in an array
        positions = np.zeros(total, np.int64)
        for key, what, bucket, sign in parts:
            _tally(positions, (key * whats + what) * buckets + bucket, sign)
        at = np.flatnonzero(positions)
        pair, bucket = np.divmod(at, buckets)
        key, what = np.divmod(pair, whats)
        return key, what, bucket, positions[at]
    key, what, bucket = (np.concatenate([part[i] for part in parts]) for i in range(3))
    of, first = grouped([GroupCodes(key, keys), GroupCodes(what, whats), GroupCodes(bucket, buckets)])
    signs = np.concatenate([np.full(part[0].size, part[3]) for part in parts])
    counts = Groups(of, first).sums(signs)
    kept = np.flatnonzero(counts)
    first = first[kept]
    return key[first], what[first], bucket[first], counts[kept]


@njit(cache=True, nogil=True)
def _tally(positions: Ints, at: Ints, sign: int) -> None:
    for i in range(at.size):
        positions[at[i]] += sign


def _text(codes: Ints, texts: pa.StringArray, absent: Mask) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32), mask=absent), texts)


# -- which slices changed what was there


def touched_by(metric: Metric, union: pa.Table, new: Mask) -> tuple[Ints, Ints]:
    """5s tiles, and the ledger offsets of slices whose observations changed rows of the tile that come from
    earlier slices; each pair once. A function of the observations and their offsets alone: of what a slice
    finds when it arrives, not of batches."""
    assert metric.following is not None
    high, low, seq, time = (one(union.column(name)).to_numpy() for name in ("high", "low", "seq", "time"))
    begins = np.ones(high.size, np.bool_)
    begins[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    tile = time // BASE.tile
    find = _next_to if metric.following.is_local else _ahead
    tiles, positions = find(begins, seq, new, tile)
    if not tiles.size:
        return tiles, positions
    _, first = grouped(
        [
            GroupCodes(tiles - tiles.min(), int(np.ptp(tiles)) + 1),
            GroupCodes(positions, int(positions.max()) + 1),
        ]
    )
    return tiles[first] * BASE.tile, positions[first]


@njit(cache=True, nogil=True)
def _next_to(begins: Mask, seq: Ints, new: Mask, tile: Ints) -> tuple[Ints, Ints]:
    """An observation is changed by a later slice that was, on arrival, the last before it.

    Going back from it, these are the new ones that arrived before everything between.
    """
    least = np.empty(seq.size, np.int64)  # minimum of the object up to here
    for i in range(seq.size):
        least[i] = seq[i] if begins[i] else min(seq[i], least[i - 1])
    tiles, positions = np.empty(16, np.int64), np.empty(16, np.int64)
    size = 0
    for i in range(seq.size):
        if begins[i]:
            continue
        p, nearest = i - 1, np.int64(1) << 62
        while new[p] and seq[p] > seq[i]:
            if seq[p] < nearest:
                nearest = seq[p]
                tiles, positions = _room(tiles, size), _room(positions, size)
                tiles[size], positions[size] = tile[i], nearest
                size += 1
            if begins[p] or least[p] >= nearest:
                break
            p -= 1
    return tiles[:size], positions[:size]


@njit(cache=True, nogil=True)
def _ahead(begins: Mask, seq: Ints, new: Mask, tile: Ints) -> tuple[Ints, Ints]:
    """An observation is changed by any later slice that has one before it."""
    tiles, positions = np.empty(16, np.int64), np.empty(16, np.int64)
    size = 0
    start = 0
    for p in range(seq.size):
        if begins[p]:
            start = p
        if not new[p]:
            continue
        repeated = False
        for q in range(p - 1, start - 1, -1):
            if new[q] and seq[q] == seq[p]:
                repeated = True
                break
        if repeated:
            continue
        last = tile[p] - 1
        i = p + 1
        while i < seq.size and not begins[i]:
            if seq[i] < seq[p] and tile[i] != last:
                last = tile[i]
                tiles, positions = _room(tiles, size), _room(positions, size)
                tiles[size], positions[size] = last, seq[p]
                size += 1
            i += 1
    return tiles[:size], positions[:size]


@njit(cache=True, nogil=True)
def _room(array: Ints, size: int) -> Ints:
    if size < array.size:
        return array
    wider = np.empty(2 * size, np.int64)
    wider[:size] = array
    return wider
