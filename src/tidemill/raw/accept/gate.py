"""The gate kernel: for a range of keys, which records are first, which are repeats, which conflict.

It reads the keys of the batch and all earlier runs, and writes the run of the batch and the records that do
not pass. Payloads are not read: content is compared by hash.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from tidemill.formats.arrays import Ints, Mask, Words
from tidemill.formats.arrow import one, string_buffers
from tidemill.formats.columns import join_at
from tidemill.formats.key_runs import Lookup, order_of_keys
from tidemill.raw.accept.run_files import IdRun, read_run, write_run
from tidemill.storage.bucket_path import warehouse_path
from tidemill.storage.ipc import read_ipc, write_ipc

DUPLICATE: Final = 1
CONFLICT: Final = 2


@dataclass(frozen=True, slots=True)
class KeyedChunk:
    """A staged chunk with its position in the order of arrival."""

    seq: int  # of its slice in the ledger
    first_line: int  # line of its first record
    columns: str
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
class _GateKeys:
    """Keys of the unit in ascending order; equal keys in order of arrival."""

    high: Words
    low: Words
    content: Words
    chunk: Ints
    at: Ints  # row in the chunk's columns


@dataclass(slots=True)
class _Rivals:
    """For every key: the entry that already has it, and whether that is this row itself."""

    passes: Mask
    content: Words
    seq: Ints
    line: Ints


def gate(unit: GateUnit) -> Iterator[Gated]:
    keys = _gather(unit)
    if keys.high.size == 0:
        yield Gated(None, 0, None, {}, {})
        return
    tables = {index: read_ipc(unit.chunks[index].columns) for index in np.unique(keys.chunk).tolist()}
    rivals = _resolve(unit, keys, tables)
    dropped = np.flatnonzero(~rivals.passes)
    kind = np.where(rivals.content[dropped] == keys.content[dropped], DUPLICATE, CONFLICT).astype(np.int8)
    drops = None
    if dropped.size:
        drops = unit.drops
        write_ipc(
            warehouse_path(drops),
            pa.table(
                {
                    "chunk": keys.chunk[dropped],
                    "at": keys.at[dropped],
                    "kind": kind,
                    "content": keys.content[dropped],
                    "rival": rivals.content[dropped],
                    "seq": rivals.seq[dropped],
                    "line": rivals.line[dropped],
                }
            ),
        )
    kept = np.flatnonzero(rivals.passes)
    if kept.size:
        write_run(warehouse_path(unit.run), _run_table(unit, keys, kept, tables), [Path(unit.run).stem])
    chunks = keys.chunk[dropped]
    yield Gated(
        run=unit.run if kept.size else None,
        keys=int(kept.size),
        drops=drops,
        duplicates=_count(chunks[kind == DUPLICATE]),
        conflicts=_count(chunks[kind == CONFLICT]),
    )


def _count(chunks: Ints) -> dict[int, int]:
    values, counts = np.unique(chunks, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def _gather(unit: GateUnit) -> _GateKeys:
    columns: dict[str, list[np.ndarray]] = {name: [] for name in ("high", "low", "content", "at")}
    chunk: list[np.ndarray] = []
    for index, item in enumerate(unit.chunks):
        table = read_ipc(item.keys)
        high = one(table.column("high")).to_numpy()
        first = np.searchsorted(high, np.uint64(unit.low))
        last = np.searchsorted(high, np.uint64(unit.high - 1), side="right")
        for name, pieces in columns.items():
            pieces.append(one(table.column(name)).to_numpy()[first:last])
        chunk.append(np.full(last - first, index, np.int64))
    high, low, content, at = (np.concatenate(columns[name]) for name in ("high", "low", "content", "at"))
    where = np.concatenate(chunk)
    order = order_of_keys(high)
    if _lanes_disagree(high[order], low[order]):
        order = np.lexsort((np.arange(high.size), low, high))
    return _GateKeys(high[order], low[order], content[order], where[order], at[order].astype(np.int64))


def _lanes_disagree(high: Words, low: Words) -> bool:
    """Whether two keys share one lane but not the other; very rare."""
    return bool(np.any((high[1:] == high[:-1]) & (low[1:] != low[:-1])))


def _resolve(unit: GateUnit, keys: _GateKeys, tables: dict[int, pa.Table]) -> _Rivals:
    n = keys.high.size
    begins = np.ones(n, np.bool_)
    begins[1:] = (keys.high[1:] != keys.high[:-1]) | (keys.low[1:] != keys.low[:-1])
    group = np.cumsum(begins) - 1
    first = np.flatnonzero(begins)
    lines = np.array([c.first_line for c in unit.chunks], np.int64)
    seqs = np.array([c.seq for c in unit.chunks], np.int64)
    leader = first[group]
    rivals = _Rivals(
        passes=begins.copy(),
        content=keys.content[leader],
        seq=seqs[keys.chunk[leader]],
        line=np.zeros(n, np.int64),
    )
    repeated = np.flatnonzero(~begins)
    suspects = _differing(unit, keys, tables, repeated, leader[repeated])
    if repeated.size:
        rivals.line[repeated] = _lines(keys, tables, lines, leader[repeated])
    firsts = Lookup(keys.high[first])
    for path in unit.runs:
        run = read_run(path).within(unit.low, unit.high)
        suspects |= _against(run, unit, keys, tables, first, firsts, group, rivals)
    for number in sorted(suspects):
        _resolve_exactly(unit, keys, tables, np.flatnonzero(group == number), lines, rivals)
    return rivals


def _lines(keys: _GateKeys, tables: dict[int, pa.Table], lines: Ints, rows: Ints) -> Ints:
    out = np.empty(rows.size, np.int64)
    for index, here in _by_chunk(keys, rows):
        record = one(tables[index].column("row")).to_numpy()[keys.at[rows[here]]]
        out[here] = lines[index] + record
    return out


def _by_chunk(keys: _GateKeys, rows: Ints) -> Iterator[tuple[int, Ints]]:
    """The chunks of the rows, each with the positions of its own in `rows`."""
    chunk = keys.chunk[rows]
    if not chunk.size:
        return
    # numpy sorts 16 bits in one pass over them
    small = chunk.astype(np.int16) if int(chunk.max()) < 1 << 15 else chunk
    order = np.argsort(small, kind="stable")
    ordered = chunk[order]
    cuts = np.flatnonzero(np.diff(ordered)) + 1
    for here in np.split(order, cuts):
        yield int(chunk[here[0]]), here


def _against(
    run: IdRun,
    unit: GateUnit,
    keys: _GateKeys,
    tables: dict[int, pa.Table],
    first: Ints,
    firsts: Lookup,
    group: Ints,
    rivals: _Rivals,
) -> set[int]:
    """Match the first row of each group with an earlier run; returns the groups whose ids turn out to
    differ."""
    hits, at = firsts.matches(run.high)
    if not hits.size:
        return set()
    origins = run.origins(at)
    differ = np.asarray(pa.compute.not_equal(origins.key, _texts(unit, keys, tables, first[hits])))
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


def _texts(unit: GateUnit, keys: _GateKeys, tables: dict[int, pa.Table], rows: Ints) -> pa.BinaryArray:
    """`tenant NUL event_id` of the rows, in their order."""
    lengths = np.zeros(rows.size, np.int64)
    parts = []
    for index, here in _by_chunk(keys, rows):
        table = tables[index]
        tenant, ids = one(table.column("tenant")), one(table.column("event_id"))
        codes = tenant.indices.to_numpy()
        name_offsets, names = string_buffers(tenant.dictionary)
        id_offsets, id_data = string_buffers(ids)
        at = keys.at[rows[here]]
        lengths[here] = np.diff(name_offsets)[codes[at]] + 1 + (id_offsets[at + 1] - id_offsets[at])
        parts.append((here, names, name_offsets, codes, id_data, id_offsets, at))
    offsets = np.zeros(rows.size + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    for here, names, name_offsets, codes, id_data, id_offsets, at in parts:
        join_at(names, name_offsets, codes, id_data, id_offsets, at, offsets[here], out)
    return pa.Array.from_buffers(
        pa.binary(), rows.size, [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(out)]
    )


def _differing(
    unit: GateUnit, keys: _GateKeys, tables: dict[int, pa.Table], rows: Ints, leaders: Ints
) -> set[int]:
    """Groups in which a row has another id than the first one, although their keys are equal."""
    if not rows.size:
        return set()
    differ = pa.compute.not_equal(_texts(unit, keys, tables, rows), _texts(unit, keys, tables, leaders))
    bad = rows[np.asarray(differ)]
    if not bad.size:
        return set()
    begins = np.ones(keys.high.size, np.bool_)
    begins[1:] = (keys.high[1:] != keys.high[:-1]) | (keys.low[1:] != keys.low[:-1])
    return set((np.cumsum(begins) - 1)[bad].tolist())


def _resolve_exactly(
    unit: GateUnit, keys: _GateKeys, tables: dict[int, pa.Table], rows: Ints, lines: Ints, rivals: _Rivals
) -> None:
    """The same decision by the ids themselves, for a group whose 128-bit keys collide."""
    holders: dict[bytes, tuple[int, int, int]] = {}
    for path in unit.runs:
        half = int(keys.high[rows[0]])
        run = read_run(path).within(half, half + 1).table()
        for row in run.to_pylist():
            holders.setdefault(row["key"], (row["content"], row["seq"], row["line"]))
    texts = _texts(unit, keys, tables, rows).to_pylist()
    own_lines = _lines(keys, tables, lines, rows)
    for position, row in enumerate(rows.tolist()):
        holder = holders.get(texts[position])
        rivals.passes[row] = holder is None
        if holder is None:
            seq = unit.chunks[int(keys.chunk[row])].seq
            holders[texts[position]] = (int(keys.content[row]), seq, int(own_lines[position]))
        else:
            rivals.content[row] = np.uint64(holder[0])
            rivals.seq[row], rivals.line[row] = holder[1], holder[2]


def _run_table(unit: GateUnit, keys: _GateKeys, kept: Ints, tables: dict[int, pa.Table]) -> pa.Table:
    lines = np.array([c.first_line for c in unit.chunks], np.int64)
    seqs = np.array([c.seq for c in unit.chunks], np.int64)
    return pa.table(
        {
            "high": keys.high[kept],
            "content": keys.content[kept],
            "seq": seqs[keys.chunk[kept]],
            "line": _lines(keys, tables, lines, kept),
            "key": _texts(unit, keys, tables, kept),
        }
    )
