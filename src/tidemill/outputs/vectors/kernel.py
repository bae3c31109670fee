"""The kernels that make parts of a chain table: read deltas from raw, distribute them to buckets, compact.

Everything is written to staging; the driver commits. Equal inputs give equal bytes, and no bit of a vector
depends on which rows were merged before.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemill.config.vectors import CompactionSettings, Vector
from tidemill.formats.arrays import Ints, Mask
from tidemill.formats.arrow import one
from tidemill.formats.delta_arrays import Deltas, Floats, deltas_from_rows, order_of, taken
from tidemill.model.deltas import Op
from tidemill.outputs.vectors.fold import fold
from tidemill.outputs.vectors.parts import statistics_of
from tidemill.outputs.vectors.raw_deltas import Key, raw_rows
from tidemill.outputs.vectors.rules import NONE, REASONS, Chains, Reason, merges, needed
from tidemill.outputs.vectors.table import CHECKPOINT, INSTANT, ROWS, STATS, ChainFooter, Made, bucket_of
from tidemill.storage.bucket_path import warehouse_path
from tidemill.storage.ipc import read_ipc, write_ipc
from tidemill.storage.tables.parts import StagedPart, open_part, write_part

_GROUP_BYTES: Final = 4 << 20  # bytes of a row group, about: what a look-up of one vector reads
COPIES: Final = 5  # copies of its rows, about, that a compaction holds: read, sorted, as arrays, merged

Span = tuple[Key | None, Key | None]  # from a vector up to another one
EVERYTHING: Final[Span] = (None, None)


# -- rows, and what they are as arrays


@dataclass(frozen=True, slots=True)
class Arranged:
    """Rows of chains in order, also as arrays: chain c is one vector."""

    rows: pa.Table
    deltas: Deltas
    chains: Chains

    @property
    def keys(self) -> list[Key]:
        """The key of each chain."""
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


def collapsed(found: Arranged, groups: Ints, vector: Vector) -> pa.Table:
    """The rows, with each group of neighbours (see `rules.merges`) replaced by one checkpoint."""
    merged = groups != NONE
    if not merged.any():
        return found.rows
    last = merged.copy()
    last[:-1] &= groups[:-1] != groups[1:]
    ends = np.flatnonzero(last)
    folded = _folded(found, ends, vector)
    stay = np.flatnonzero(~merged)
    checkpoints = _checkpoints(found.rows, groups, ends, folded)
    position = np.argsort(np.concatenate([stay, ends]), kind="stable")
    both = pa.concat_tables([found.rows.take(pa.array(stay)), checkpoints]).combine_chunks()
    return both.take(pa.array(position))


@dataclass(frozen=True, slots=True)
class _Folded:
    """Vectors after some rows, and the rows that were left out."""

    matrix: Floats
    exists: Mask
    left_out: Mask


def _folded(found: Arranged, ends: Ints, vector: Vector) -> _Folded:
    chain, dimension = found.deltas.vectors, vector.dimension
    matrix, exists = np.zeros((ends.size, dimension)), np.zeros(ends.size, np.bool_)
    left_out = np.zeros(chain.size, np.bool_)
    owner = np.searchsorted(ends, np.arange(chain.size))  # the first end at or after each row
    reached = owner < ends.size
    reached[reached] = chain[ends[owner[reached]]] == chain[reached]
    follows = np.zeros(ends.size, np.bool_)  # ends that continue from the one before
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
        base, was_there = (matrix[now - 1], exists[now - 1]) if number else (None, None)
        done = fold(base, was_there, some, dimension, finite=vector.stays_finite)
        matrix[now], exists[now], left_out[rows] = done.matrix, done.exists, done.left_out
    return _Folded(matrix, exists, left_out)


def _checkpoints(rows: pa.Table, groups: Ints, ends: Ints, folded: _Folded) -> pa.Table:
    matrix, exists = folded.matrix, folded.exists
    size, dimension = matrix.shape
    merged = groups != NONE
    at = groups[merged]
    deltas = np.bincount(at, weights=one(rows.column("merged")).to_numpy()[merged]).astype(np.int64)
    before = one(rows.column("left_out")).to_numpy()[merged]
    left_out = np.bincount(at, weights=before + folded.left_out[merged]).astype(np.int64)
    first = np.full(size, np.iinfo(np.int64).max)
    np.minimum.at(first, at, instants(rows, "first_ts")[merged])
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
            pa.array(left_out),
        ],
        schema=ROWS,
    )


def instants(rows: pa.Table, column: str) -> Ints:
    return one(rows.column(column)).cast(pa.int64()).to_numpy()


def read_rows(paths: Sequence[str], span: Span = EVERYTHING) -> pa.Table:
    """The rows of parts of one bucket, part by part; only of the vectors in a span."""
    pieces = [ROWS.empty_table()]
    for path in paths:
        with open_part(path) as file:
            groups = [number for number in range(file.num_row_groups) if _may_hold(file, number, span)]
            for number in groups if span != EVERYTHING else ():
                rows = file.read_row_group(number, columns=ROWS.names, use_threads=False)
                pieces.append(rows.select(ROWS.names).cast(ROWS).filter(_inside(rows, span)))
            if span == EVERYTHING:
                rows = file.read(columns=ROWS.names, use_threads=False)
                pieces.append(rows.select(ROWS.names).cast(ROWS))
    return pa.concat_tables(pieces)


def _may_hold(file: pq.ParquetFile, number: int, span: Span) -> bool:
    """Whether a row group can hold a vector of the span; its rows are sorted by (tenant, vector)."""
    group = file.metadata.row_group(number)
    tenant, vector = statistics_of(group, "tenant"), statistics_of(group, "vector_id")
    if tenant is None or vector is None or not (tenant.has_min_max and vector.has_min_max):
        return True
    least, most = (tenant.min, vector.min), (tenant.max, vector.max)  # the widest possible range
    first, end = span
    return (first is None or most >= first) and (end is None or least < end)


def _inside(rows: pa.Table, span: Span) -> pa.ChunkedArray:
    tenant, vector = rows.column("tenant"), rows.column("vector_id")
    held = pa.repeat(pa.scalar(True), rows.num_rows)
    for key, is_end in zip(span, (False, True), strict=True):
        if key is not None:
            beyond = pc.or_(
                pc.greater(tenant, key[0]),
                pc.and_(pc.equal(tenant, key[0]), pc.greater_equal(vector, key[1])),
            )
            held = pc.and_(held, pc.invert(beyond) if is_end else beyond)
    return held


def spans_within(paths: Sequence[str], memory: int) -> list[Span]:
    """The vectors of parts of one bucket, in as many spans as needed to merge the rows of each in so much
    memory; a single vector needs all its rows."""
    size, pieces = 0, []
    for path in paths:
        with open_part(path) as file:
            metadata = file.metadata
            size += sum(metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups))
            pieces.append(file.read(columns=["tenant", "vector_id"], use_threads=False))
    count = -(-size * COPIES // memory)
    if count <= 1:
        return [EVERYTHING]
    keys = pa.concat_tables(pieces).sort_by([("tenant", "ascending"), ("vector_id", "ascending")])
    positions = np.unique(np.arange(1, count) * keys.num_rows // count)
    cuts = keys.take(pa.array(positions)).to_pylist()
    edges = [None, *dict.fromkeys((cut["tenant"], cut["vector_id"]) for cut in cuts), None]
    return list(pairwise(edges))


# -- out of raw


@dataclass(frozen=True, slots=True)
class GatherUnit:
    """Parts of raw to read."""

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
                of_bucket = rows.filter(pa.array(bucket == number))
                found.setdefault(f"{number:02d}", []).append(of_bucket)
    for name, pieces in sorted(found.items()):
        table = pa.concat_tables(pieces)
        target = warehouse_path(unit.folder) / f"{unit.name}-{name}.arrow"
        write_ipc(target, table.combine_chunks())
        yield Gathered(name, str(target), table.num_rows, int(instants(table.combine_chunks(), "ts").min()))


def without(found: Gathered, again: frozenset[Key]) -> Gathered:
    """The same without the deltas of some vectors, in another file."""
    rows = _less(read_ipc(found.path), again)
    path = f"{found.path}.rest"
    write_ipc(warehouse_path(path), rows.combine_chunks())
    return Gathered(found.bucket, path, rows.num_rows, found.first)


def _less(rows: pa.Table, again: frozenset[Key]) -> pa.Table:
    keys = zip(*(rows.column(name).to_pylist() for name in ("tenant", "vector_id")), strict=True)
    return rows.filter(pa.array([key not in again for key in keys], pa.bool_()))


# -- into a bucket


@dataclass(frozen=True, slots=True)
class ChainUnit:
    """Deltas to add to a bucket; with `current`, in one part together with the existing rows."""

    bucket: str
    fresh: Sequence[str]  # staged by `gather`
    current: Sequence[str]
    again: frozenset[Key]  # vectors of which `fresh` has all deltas: their existing rows are dropped
    made: Made
    declared: str
    folder: str
    seed: str


def build(unit: ChainUnit) -> Iterator[StagedPart]:
    rows = pa.concat_tables([ROWS.empty_table(), *map(read_ipc, unit.fresh)])
    if unit.current:
        current = read_rows(unit.current)
        if unit.again:
            current = _less(current, unit.again)
        rows = pa.concat_tables([current, rows])
    if rows.num_rows:
        yield _write(unit, arranged(rows).rows)


@dataclass(frozen=True, slots=True)
class LateUnit:
    """Deltas for a bucket, to compare with its checkpoints."""

    fresh: Sequence[str]
    current: Sequence[str]


def late(unit: LateUnit) -> Iterator[Key]:
    """Vectors with a delta that comes before one of their checkpoints."""
    heads: dict[Key, tuple[int, str]] = {}
    for path in unit.current:
        with open_part(path) as file:
            rows = file.read(columns=["tenant", "vector_id", "kind", "ts", "delta_id"], use_threads=False)
        for key, position in _positions(rows.filter(pc.equal(rows.column("kind"), CHECKPOINT))):
            heads[key] = max(position, heads.get(key, position))
    found = {
        key
        for path in unit.fresh
        for key, position in _positions(read_ipc(path))
        if key in heads and position < heads[key]
    }
    yield from sorted(found)


def _positions(rows: pa.Table) -> Iterator[tuple[Key, tuple[int, str]]]:
    names = (rows.column(name).to_pylist() for name in ("tenant", "vector_id", "delta_id"))
    for tenant, vector, delta, ts in zip(*names, rows.column("ts").cast(pa.int64()).to_pylist(), strict=True):
        yield (tenant, vector), (ts, delta)


# -- compaction


@dataclass(frozen=True, slots=True)
class CompactUnit:
    """A bucket to compact as of `now`; with `force` everything that can be merged is."""

    bucket: str
    current: Sequence[str]
    settings: CompactionSettings
    vector: Vector
    now: int
    force: bool
    reads: Mapping[Key, int]
    memory: int  # bytes that it may take
    made: Made
    declared: str
    folder: str
    seed: str


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result for a bucket."""

    bucket: str
    part: StagedPart
    chains: int  # that were compacted
    deltas: int  # that are now in checkpoints
    reasons: Mapping[str, int]  # chains by reason
    overflowed: int  # vectors with a component that is not finite, or was prevented from that
    pieces: int  # pieces in which it was done


def compact(unit: CompactUnit) -> Iterator[Compacted]:
    """Compact a bucket. The result does not depend on the number of pieces."""
    spans = spans_within(unit.current, unit.memory)
    reasons: Counter[str] = Counter()
    deltas = 0
    pieces = []
    for number, span in enumerate(spans):
        done = _merged(unit, arranged(read_rows(unit.current, span)))
        reasons.update(done.reasons)
        deltas += done.deltas
        if len(spans) == 1:
            pieces.append(done.rows)
        else:  # it waits on disk for the others
            path = warehouse_path(unit.folder) / f"compact-{unit.bucket}-{number:05d}.arrow"
            write_ipc(path, done.rows)
            pieces.append(read_ipc(str(path)))
    if deltas:
        rows = pa.concat_tables(pieces)
        part, chains = _write(unit, rows), sum(reasons.values())
        yield Compacted(unit.bucket, part, chains, deltas, dict(reasons), overflowed(rows), len(spans))


@dataclass(frozen=True, slots=True)
class _Merged:
    """Some chains of a bucket, after compaction of those that need it."""

    rows: pa.Table
    deltas: int
    reasons: Mapping[str, int]


def _merged(unit: CompactUnit, found: Arranged) -> _Merged:
    reads = reads_of(found.keys if unit.reads else [], len(found.chains), unit.reads)
    reasons = needed(found.chains, unit.settings, unit.now, reads)
    if unit.force:
        reasons[reasons == NONE] = REASONS.index(Reason.ASKED)
    groups = merges(found.chains, unit.settings, unit.now, reads, reasons != NONE)
    touched = np.unique(found.deltas.vectors[groups != NONE])
    answers = Counter(REASONS[number].value for number in reasons[touched].tolist())
    deltas = int(np.count_nonzero((groups != NONE) & found.chains.pending))
    return _Merged(collapsed(found, groups, unit.vector), deltas, answers)


def overflowed(rows: pa.Table) -> int:
    """Checkpoint rows with a component that is not finite, or was prevented from that."""
    count = 0
    for batch in rows.select(["values", "left_out"]).to_batches():
        values = batch.column("values")
        finite = np.isfinite(values.flatten().to_numpy(zero_copy_only=False))
        bad = np.flatnonzero(batch.column("left_out").to_numpy() > 0)
        if not finite.all():
            bad = np.union1d(bad, pc.list_parent_indices(values).to_numpy()[~finite])
        count += bad.size
    return count


def reads_of(keys: Sequence[Key], chains: int, reads: Mapping[Key, int]) -> Ints:
    if not reads:
        return np.zeros(chains, np.int64)
    return np.array([reads.get(key, 0) for key in keys], np.int64)


# -- facts about a bucket, for the plan of a compaction


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


def _write(unit: ChainUnit | CompactUnit, rows: pa.Table) -> StagedPart:
    ts = instants(rows, "ts")[np.asarray(pc.equal(rows.column("kind"), CHECKPOINT))]
    newest = int(ts.max()) if ts.size else None
    digest = hashlib.blake2b(f"{unit.bucket} {unit.seed}".encode(), digest_size=8).hexdigest()
    return write_part(
        warehouse_path(unit.folder),
        f"chain-{unit.made.through:010d}-{digest}.parquet",
        rows,
        partition={"bucket": unit.bucket},
        footer=ChainFooter(
            bucket=unit.bucket,
            made=unit.made,
            checkpoints=ts.size,
            pending=rows.num_rows - ts.size,
            checkpoints_until=newest,
            overflowed=overflowed(rows),
            declared=unit.declared,
        ).to_footer(),
        stats_columns=STATS,
        row_group_rows=max(256, _GROUP_BYTES * rows.num_rows // max(1, rows.nbytes)),
        dictionary=("tenant", "kind", "op"),
    )
