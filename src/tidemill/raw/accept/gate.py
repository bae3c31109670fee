"""The gate kernel: for a range of keys, which records are first, which are repeats, which conflict.

It reads the keys of the batch and all earlier runs, and writes the run of the batch and the records that do
not pass. Payloads are not read: content is compared by hash. Memory depends on `STEP`, not on the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.formats.arrays import Ints, Mask, Words
from tidemill.formats.arrow import one
from tidemill.formats.key_runs import Lookup, order_of_keys
from tidemill.raw.accept.run_files import IdRun, RunWriter, read_run
from tidemill.storage.bucket_path import warehouse_path
from tidemill.storage.ipc import read_ipc, write_ipc

DUPLICATE: Final = 1
CONFLICT: Final = 2
STEP: Final = 1 << 16  # keys that are decided at once, about: they and what is made of them stay in the cache


@dataclass(frozen=True, slots=True)
class KeyedChunk:
    """The keys of a staged chunk, with its position in the order of arrival."""

    seq: int  # of its slice in the ledger
    first_line: int  # line of its first record
    keys: str


@dataclass(frozen=True, slots=True)
class GateUnit:
    low: int  # the keys of this unit: low <= high lane < high
    high: int
    chunks: Sequence[KeyedChunk]  # the whole batch, in order of arrival
    runs: Sequence[str]  # all earlier runs
    run: str  # file for the batch's own run
    drops: str  # file for records that do not pass


@dataclass(frozen=True, slots=True)
class Gated:
    """How many records of each chunk did not pass; and the run, if it is not empty."""

    run: str | None
    keys: int
    drops: str | None
    duplicates: dict[int, int]  # chunk -> count
    conflicts: dict[int, int]


@dataclass(slots=True)
class _Keys:
    """Keys in ascending order; equal keys in order of arrival."""

    high: Words
    low: Words
    content: Words
    seq: Ints
    line: Ints
    chunk: Ints
    at: Ints  # row in the chunk's columns
    unordered: pa.BinaryArray  # `tenant NUL event_id` of row i is at order[i]
    order: Ints
    begins: Mask = field(init=False)  # whether a key differs from the one before it

    def __post_init__(self) -> None:
        self.begins = np.ones(self.high.size, np.bool_)
        self.begins[1:] = (self.high[1:] != self.high[:-1]) | (self.low[1:] != self.low[:-1])

    def texts(self, rows: Ints) -> pa.BinaryArray:
        """`tenant NUL event_id` of the rows."""
        return self.unordered.take(pa.array(self.order[rows]))


@dataclass(slots=True)
class _Rivals:
    """For every key: the entry that already has it, and whether that is this row itself."""

    passes: Mask
    content: Words
    seq: Ints
    line: Ints


def gate(unit: GateUnit) -> Iterator[Gated]:
    chunks = [read_ipc(chunk.keys) for chunk in unit.chunks]
    runs = [read_run(path).within(unit.low, unit.high) for path in unit.runs]
    kept, dropped = RunWriter(), []
    for low, high in _steps(unit, chunks):
        keys = _gather(unit, chunks, low, high)
        if not keys.high.size:
            continue
        rivals = _resolve(keys, [run.within(low, high) for run in runs])
        kept.add(_run_table(keys, np.flatnonzero(rivals.passes)))
        dropped.append(_dropped(keys, rivals))
    drops = pa.concat_tables(dropped).combine_chunks() if dropped else None
    if drops is not None and drops.num_rows:
        write_ipc(warehouse_path(unit.drops), drops)
    if kept.rows:
        kept.finish(warehouse_path(unit.run), [Path(unit.run).stem])
    yield Gated(
        run=unit.run if kept.rows else None,
        keys=kept.rows,
        drops=unit.drops if drops is not None and drops.num_rows else None,
        duplicates=_count(drops, DUPLICATE),
        conflicts=_count(drops, CONFLICT),
    )


def _steps(unit: GateUnit, chunks: Sequence[pa.Table]) -> list[tuple[int, int]]:
    """Ranges of equal width that cover the keys of the unit, with about STEP keys of the batch in each."""
    keys = sum(len(_within(chunk, unit.low, unit.high)) for chunk in chunks)
    count = max(1, round(keys / STEP))
    edges = [unit.low + (unit.high - unit.low) * i // count for i in range(count + 1)]
    return list(pairwise(edges))


def _within(chunk: pa.Table, low: int, high: int) -> range:
    """The rows of a chunk whose keys are in a range."""
    keys = one(chunk.column("high")).to_numpy()
    first, last = np.searchsorted(keys, np.uint64(low)), np.searchsorted(keys, np.uint64(high - 1), "right")
    return range(int(first), int(last))


def _gather(unit: GateUnit, chunks: Sequence[pa.Table], low: int, high: int) -> _Keys:
    """The keys of a range, of all chunks."""
    rows = [_within(chunk, low, high) for chunk in chunks]
    table = pa.concat_tables(
        chunk.slice(found.start, len(found)) for chunk, found in zip(chunks, rows, strict=True)
    ).combine_chunks()
    sizes = [len(found) for found in rows]
    highs, lows, contents, ats, records = (
        one(table.column(name)).to_numpy() for name in ("high", "low", "content", "at", "record")
    )
    order = order_of_keys(highs)
    if _lanes_disagree(highs[order], lows[order]):
        order = np.lexsort((np.arange(highs.size), lows, highs))
    first_lines = np.repeat(np.array([chunk.first_line for chunk in unit.chunks], np.int64), sizes)
    return _Keys(
        high=highs[order],
        low=lows[order],
        content=contents[order],
        seq=np.repeat(np.array([chunk.seq for chunk in unit.chunks], np.int64), sizes)[order],
        line=(first_lines + records)[order],
        chunk=np.repeat(np.arange(len(chunks)), sizes)[order],
        at=ats[order].astype(np.int64),
        unordered=one(table.column("text")),
        order=order,
    )


def _lanes_disagree(high: Words, low: Words) -> bool:
    """Whether two keys share one lane but not the other; very rare."""
    return bool(np.any((high[1:] == high[:-1]) & (low[1:] != low[:-1])))


def _run_table(keys: _Keys, rows: Ints) -> pa.Table:
    """Rows as a run keeps them."""
    return pa.table(
        {
            "high": keys.high[rows],
            "content": keys.content[rows],
            "seq": keys.seq[rows],
            "line": keys.line[rows],
            "key": keys.texts(rows),
        }
    )


def _dropped(keys: _Keys, rivals: _Rivals) -> pa.Table:
    """What does not pass, and what it met."""
    rows = np.flatnonzero(~rivals.passes)
    kind = np.where(rivals.content[rows] == keys.content[rows], DUPLICATE, CONFLICT).astype(np.int8)
    return pa.table(
        {
            "chunk": keys.chunk[rows],
            "at": keys.at[rows],
            "kind": kind,
            "content": keys.content[rows],
            "rival": rivals.content[rows],
            "seq": rivals.seq[rows],
            "line": rivals.line[rows],
        }
    )


def _count(drops: pa.Table | None, kind: int) -> dict[int, int]:
    """How many records of each chunk are of this kind."""
    if drops is None:
        return {}
    chunks = drops.filter(pc.equal(drops.column("kind"), kind)).column("chunk")
    values, counts = np.unique(chunks.to_numpy(), return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


# -- decisions


def _resolve(keys: _Keys, runs: Sequence[IdRun]) -> _Rivals:
    group = np.cumsum(keys.begins) - 1
    first = np.flatnonzero(keys.begins)
    leader = first[group]
    rivals = _Rivals(
        passes=keys.begins.copy(),
        content=keys.content[leader],
        seq=keys.seq[leader],
        line=keys.line[leader],
    )
    repeated = np.flatnonzero(~keys.begins)
    suspects = _differing(keys, group, repeated, leader[repeated])
    firsts = Lookup(keys.high[first])
    for run in runs:
        suspects |= _against(run, keys, first, firsts, group, rivals)
    for number in sorted(suspects):
        _resolve_exactly(runs, keys, np.flatnonzero(group == number), rivals)
    return rivals


def _differing(keys: _Keys, group: Ints, rows: Ints, leaders: Ints) -> set[int]:
    """Groups in which a row has another id than the first one, although their keys are equal."""
    if not rows.size:
        return set()
    differ = np.asarray(pc.not_equal(keys.texts(rows), keys.texts(leaders)))
    return set(group[rows[differ]].tolist())


def _against(run: IdRun, keys: _Keys, first: Ints, firsts: Lookup, group: Ints, rivals: _Rivals) -> set[int]:
    """Match the first row of each group with an earlier run; returns the groups whose ids turn out to
    differ."""
    hits, at = firsts.matches(run.high, run.sieve)
    if not hits.size:
        return set()
    origins = run.origins(at)
    differ = np.asarray(pc.not_equal(origins.key, keys.texts(first[hits])))
    # Half a key that two events share: the rare case is decided by the ids themselves.
    suspects = set(hits[differ].tolist())
    known = np.flatnonzero(~differ)
    source, rows = _members(known, first[hits[known]], np.append(first, group.size)[hits[known] + 1])
    rivals.passes[rows] = False
    rivals.content[rows] = run.content[at][source]
    rivals.seq[rows], rivals.line[rows] = origins.seq[source], origins.line[source]
    return suspects


def _members(groups: Ints, begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """The rows of some groups, which begin and end at these rows, each with its group."""
    sizes = ends - begins
    skipped = begins - (np.cumsum(sizes) - sizes)
    return np.repeat(groups, sizes), np.repeat(skipped, sizes) + np.arange(int(sizes.sum()))


def _resolve_exactly(runs: Sequence[IdRun], keys: _Keys, rows: Ints, rivals: _Rivals) -> None:
    """The same decision by the ids themselves, for a group whose 128-bit keys collide."""
    half = int(keys.high[rows[0]])
    holders: dict[bytes, tuple[int, int, int]] = {}
    for run in runs:
        for row in run.within(half, half + 1).table().to_pylist():
            holders.setdefault(row["key"], (row["content"], row["seq"], row["line"]))
    for row, text in zip(rows.tolist(), keys.texts(rows).to_pylist(), strict=True):
        holder = holders.get(text)
        rivals.passes[row] = holder is None
        if holder is None:
            holders[text] = (int(keys.content[row]), int(keys.seq[row]), int(keys.line[row]))
        else:
            rivals.content[row] = np.uint64(holder[0])
            rivals.seq[row], rivals.line[row] = holder[1], holder[2]
