"""The kernels that make parts of a chain table: read deltas out of raw, put them into buckets, compact.

Everything goes to staging; the driver commits. The same inputs give the same bytes, and no bit of a vector
ever depends on which rows were merged before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.chains.fold import Deltas, Floats, deltas_from_rows, fold, order_of, taken
from tidemill.chains.payloads import Key, raw_rows
from tidemill.chains.rules import NONE, REASONS, Chains, Reason, merges, needed
from tidemill.chains.table import CHECKPOINT, INSTANT, ROWS, STATS, Made, bucket_of, footer_of
from tidemill.config.vectors import Compaction, Vector
from tidemill.lake.parts import StagedPart, open_part, write_part
from tidemill.model.deltas import Op
from tidemill.records.arrays import Ints, Mask
from tidemill.records.arrow import one, read_ipc, write_ipc

_GROUP_BYTES: Final = 4 << 20  # of a row group, about: what a look-up of one vector reads


# -- rows, and what they are as arrays


@dataclass(frozen=True, slots=True)
class Arranged:
    """Rows of chains in order, and the same as arrays: chain c is a vector of its own."""

    rows: pa.Table
    deltas: Deltas
    chains: Chains

    @property
    def keys(self) -> list[Key]:
        """Of each chain."""
        firsts = self.rows.select(["tenant", "vector_id"]).take(pa.array(self.chains.starts[:-1]))
        return list(zip(*(firsts.column(name).to_pylist() for name in ("tenant", "vector_id")), strict=True))


def arranged(rows: pa.Table) -> Arranged:
    """Sorted by (tenant, vector, ts, delta)."""
    rows = rows.combine_chunks()
    tenants, vectors = _ranks(rows.column("tenant")), _ranks(rows.column("vector_id"))
    key = tenants * (int(vectors.max(initial=0)) + 1) + vectors
    deltas = replace(deltas_from_rows(rows), vectors=key)
    order = order_of(deltas)
    if not np.array_equal(order, np.arange(order.size)):
        rows, deltas, key = rows.take(pa.array(order)).combine_chunks(), taken(deltas, order), key[order]
    first = np.ones(key.size, np.bool_)
    first[1:] = key[1:] != key[:-1]
    starts = np.append(np.flatnonzero(first), key.size)
    numbers = np.cumsum(first) - 1
    names = pa.array(np.arange(starts.size - 1))
    pending = ~np.asarray(pc.equal(rows.column("kind"), CHECKPOINT))
    return Arranged(rows, replace(deltas, names=names, vectors=numbers), Chains(starts, deltas.ts, pending))


def _ranks(column: pa.ChunkedArray) -> Ints:
    coded = one(column)
    coded = coded if pa.types.is_dictionary(coded.type) else coded.dictionary_encode()
    order = pc.sort_indices(coded.dictionary).to_numpy()
    rank = np.empty(order.size, np.int64)
    rank[order] = np.arange(order.size)
    return rank[coded.indices.to_numpy(zero_copy_only=False)]


def collapsed(found: Arranged, groups: Ints, dimension: int) -> pa.Table:
    """The rows, with each group of neighbours (see `rules.merges`) as one checkpoint."""
    merged = groups != NONE
    if not merged.any():
        return found.rows
    last = merged.copy()
    last[:-1] &= groups[:-1] != groups[1:]
    ends = np.flatnonzero(last)
    matrix, exists = _folded(found, ends, dimension)
    stay = np.flatnonzero(~merged)
    checkpoints = _checkpoints(found.rows, groups, ends, matrix, exists)
    place = np.argsort(np.concatenate([stay, ends]), kind="stable")
    both = pa.concat_tables([found.rows.take(pa.array(stay)), checkpoints]).combine_chunks()
    return both.take(pa.array(place))


def _folded(found: Arranged, ends: Ints, dimension: int) -> tuple[Floats, Mask]:
    """The vectors as they are behind the rows `ends`."""
    chain = found.deltas.vectors
    matrix, exists = np.zeros((ends.size, dimension)), np.zeros(ends.size, np.bool_)
    owner = np.searchsorted(ends, np.arange(chain.size))  # the end that a row comes into first
    reached = owner < ends.size
    reached[reached] = chain[ends[owner[reached]]] == chain[reached]
    follows = np.zeros(ends.size, np.bool_)  # ends that go on from the one before
    follows[1:] = chain[ends[1:]] == chain[ends[:-1]]
    firsts = np.flatnonzero(~follows)
    turn = np.arange(ends.size) - np.repeat(firsts, np.diff(np.append(firsts, ends.size)))
    for number in range(int(turn.max(initial=-1)) + 1):
        now = np.flatnonzero(turn == number)
        slot = np.full(ends.size, -1, np.int64)
        slot[now] = np.arange(now.size)
        rows = np.flatnonzero(reached & (slot[np.minimum(owner, ends.size - 1)] >= 0))
        some = taken(found.deltas, rows)
        some = replace(some, vectors=slot[owner[rows]], names=pa.array(now))
        done = (
            fold(matrix[now - 1], exists[now - 1], some, dimension)
            if number
            else fold(None, None, some, dimension)
        )
        matrix[now], exists[now] = done.matrix, done.exists
    return matrix, exists


def _checkpoints(rows: pa.Table, groups: Ints, ends: Ints, matrix: Floats, exists: Mask) -> pa.Table:
    size, dimension = matrix.shape
    at = groups[groups != NONE]
    deltas = np.bincount(at, weights=one(rows.column("merged")).to_numpy()[groups != NONE]).astype(np.int64)
    first = np.full(size, np.iinfo(np.int64).max)
    np.minimum.at(first, at, instants(rows, "first_ts")[groups != NONE])
    offsets = np.zeros(size + 1, np.int32)
    np.cumsum(exists * dimension, out=offsets[1:])
    kept = rows.select(["tenant", "vector_id", "ts", "delta_id"]).take(pa.array(ends))
    ops = pa.array([Op.DELETE.value, Op.REPLACE.value])
    return pa.Table.from_arrays(
        [
            kept.column("tenant"),
            kept.column("vector_id"),
            pa.repeat(pa.scalar(CHECKPOINT), size),
            kept.column("ts"),
            kept.column("delta_id"),
            ops.take(pa.array(exists.astype(np.int8))),
            pa.nulls(size, pa.list_(pa.int32())),
            pa.ListArray.from_arrays(pa.array(offsets), pa.array(matrix[exists].reshape(-1))),
            pa.array(deltas),
            pa.array(first).cast(INSTANT),
        ],
        schema=ROWS,
    )


def instants(rows: pa.Table, column: str) -> Ints:
    return one(rows.column(column)).cast(pa.int64()).to_numpy()


def read_rows(paths: Sequence[str]) -> pa.Table:
    """The rows of parts of one bucket, part after part."""
    pieces = [ROWS.empty_table()]
    for path in paths:
        with open_part(path) as file:
            pieces.append(file.read(columns=ROWS.names, use_threads=False).select(ROWS.names).cast(ROWS))
    return pa.concat_tables(pieces)


# -- out of raw


@dataclass(frozen=True, slots=True)
class GatherUnit:
    """Parts of raw to look into."""

    paths: Sequence[str]
    slices: frozenset[str]
    only: frozenset[Key] | None  # None: deltas of all vectors
    vector: Vector
    folder: str
    name: str


@dataclass(frozen=True, slots=True)
class Gathered:
    """Deltas of one bucket, in staging."""

    bucket: str
    path: str
    rows: int
    first: int  # the oldest


def gather(unit: GatherUnit) -> Iterator[Gathered]:
    found: dict[str, list[pa.Table]] = {}
    buckets: dict[str, int] = {}
    for path in unit.paths:
        for rows in raw_rows(path, unit.vector, unit.slices, unit.only):
            coded = one(rows.column("vector_id")).dictionary_encode()
            names = coded.dictionary.to_pylist()
            numbers = np.array([buckets.setdefault(n, int(bucket_of(n))) for n in names], np.int64)
            bucket = numbers[coded.indices.to_numpy()] if names else np.empty(0, np.int64)
            for number in np.unique(bucket).tolist():
                mine = rows.filter(pa.array(bucket == number))
                found.setdefault(f"{number:02d}", []).append(mine)
    for name, pieces in sorted(found.items()):
        table = pa.concat_tables(pieces)
        target = Path(unit.folder) / f"{unit.name}-{name}.arrow"
        write_ipc(target, table.combine_chunks())
        yield Gathered(name, str(target), table.num_rows, int(instants(table.combine_chunks(), "ts").min()))


def without(found: Gathered, again: frozenset[Key]) -> Gathered:
    """The same less what is about some vectors, in a file of its own."""
    rows = _less(read_ipc(found.path), again)
    path = f"{found.path}.rest"
    write_ipc(Path(path), rows.combine_chunks())
    return Gathered(found.bucket, path, rows.num_rows, found.first)


def _less(rows: pa.Table, again: frozenset[Key]) -> pa.Table:
    keys = zip(*(rows.column(name).to_pylist() for name in ("tenant", "vector_id")), strict=True)
    return rows.filter(pa.array([key not in again for key in keys], pa.bool_()))


# -- into a bucket


@dataclass(frozen=True, slots=True)
class BuildUnit:
    """Deltas to be put into a bucket; with `standing`, into one part together with what is there."""

    bucket: str
    fresh: Sequence[str]  # staged by `gather`
    standing: Sequence[str]
    again: frozenset[Key]  # vectors that `fresh` has all deltas of: what stands of them goes
    made: Made
    declared: str
    folder: str
    seed: str


def build(unit: BuildUnit) -> Iterator[StagedPart]:
    rows = pa.concat_tables([ROWS.empty_table(), *map(read_ipc, unit.fresh)])
    if unit.standing:
        standing = read_rows(unit.standing)
        if unit.again:
            standing = _less(standing, unit.again)
        rows = pa.concat_tables([standing, rows])
    if rows.num_rows:
        yield _write(unit, arranged(rows).rows)


@dataclass(frozen=True, slots=True)
class LateUnit:
    """Deltas for a bucket, held against its checkpoints."""

    fresh: Sequence[str]
    standing: Sequence[str]


def late(unit: LateUnit) -> Iterator[Key]:
    """Vectors that have a delta which comes before a checkpoint of theirs."""
    heads: dict[Key, tuple[int, str]] = {}
    for path in unit.standing:
        with open_part(path) as file:
            rows = file.read(columns=["tenant", "vector_id", "kind", "ts", "delta_id"], use_threads=False)
        for key, place in _places(rows.filter(pc.equal(rows.column("kind"), CHECKPOINT))):
            heads[key] = max(place, heads.get(key, place))
    found = {
        key
        for path in unit.fresh
        for key, place in _places(read_ipc(path))
        if key in heads and place < heads[key]
    }
    yield from sorted(found)


def _places(rows: pa.Table) -> Iterator[tuple[Key, tuple[int, str]]]:
    names = (rows.column(name).to_pylist() for name in ("tenant", "vector_id", "delta_id"))
    for tenant, vector, delta, ts in zip(*names, rows.column("ts").cast(pa.int64()).to_pylist(), strict=True):
        yield (tenant, vector), (ts, delta)


# -- compaction


@dataclass(frozen=True, slots=True)
class CompactUnit:
    """A bucket to be compacted as of `now`; with `force` whatever can be merged is."""

    bucket: str
    standing: Sequence[str]
    settings: Compaction
    dimension: int
    now: int
    force: bool
    reads: Mapping[Key, int]
    made: Made
    declared: str
    folder: str
    seed: str


@dataclass(frozen=True, slots=True)
class Compacted:
    """What came of a bucket."""

    bucket: str
    part: StagedPart
    chains: int  # that were compacted
    deltas: int  # that are now in checkpoints
    reasons: Mapping[str, int]  # chains by why


def compact(unit: CompactUnit) -> Iterator[Compacted]:
    found = arranged(read_rows(unit.standing))
    reads = reads_of(found.keys if unit.reads else [], len(found.chains), unit.reads)
    reasons = needed(found.chains, unit.settings, unit.now, reads)
    if unit.force:
        reasons[reasons == NONE] = REASONS.index(Reason.ASKED)
    groups = merges(found.chains, unit.settings, unit.now, reads, reasons != NONE)
    touched = np.unique(found.deltas.vectors[groups != NONE])
    if not touched.size:
        return
    rows = collapsed(found, groups, unit.dimension)
    told = {reason.value: int(np.count_nonzero(reasons[touched] == n)) for n, reason in enumerate(REASONS)}
    yield Compacted(
        unit.bucket,
        _write(unit, rows),
        int(touched.size),
        int(np.count_nonzero((groups != NONE) & found.chains.pending)),
        {reason: count for reason, count in told.items() if count},
    )


def reads_of(keys: Sequence[Key], chains: int, reads: Mapping[Key, int]) -> Ints:
    if not reads:
        return np.zeros(chains, np.int64)
    return np.array([reads.get(key, 0) for key in keys], np.int64)


# -- what the driver asks of a bucket before it has it compacted


@dataclass(frozen=True, slots=True)
class Facts:
    """The chains of a bucket, without their values."""

    chains: Chains
    keys: Sequence[Key]


def facts(paths: Sequence[str]) -> Iterator[Facts]:
    names = ["tenant", "vector_id", "kind", "ts", "delta_id"]
    pieces = []
    for path in paths:
        with open_part(path) as file:
            pieces.append(file.read(columns=names, use_threads=False).select(names))
    rows = pa.concat_tables(pieces)
    rows = pa.Table.from_pydict(
        {name: rows.column(name) if name in names else pa.nulls(rows.num_rows, ROWS.field(name).type)
         for name in ROWS.names},
        schema=ROWS,
    )  # fmt: skip
    found = arranged(rows.set_column(5, "op", pa.repeat(pa.scalar(Op.DELETE.value), rows.num_rows)))
    yield Facts(found.chains, found.keys)


def _write(unit: BuildUnit | CompactUnit, rows: pa.Table) -> StagedPart:
    ts = instants(rows.combine_chunks(), "ts")[np.asarray(pc.equal(rows.column("kind"), CHECKPOINT))]
    newest = int(ts.max()) if ts.size else None
    digest = hashlib.blake2b(f"{unit.bucket} {unit.seed}".encode(), digest_size=8).hexdigest()
    return write_part(
        Path(unit.folder),
        f"chain-{unit.made.through:010d}-{digest}.parquet",
        rows,
        partition={"bucket": unit.bucket},
        footer=footer_of(unit.bucket, unit.made, ts.size, rows.num_rows - ts.size, newest, unit.declared),
        stats_columns=STATS,
        row_group_rows=max(256, _GROUP_BYTES * rows.num_rows // max(1, rows.nbytes)),
        dictionary=("tenant", "kind", "op"),
    )
