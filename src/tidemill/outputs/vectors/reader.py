"""Reads vectors, now or at an instant: from their chains, and from raw where chains are not enough.

Bit for bit the result of applying all their deltas, however much was compacted. It never writes: deltas that
are in no chain yet are read from raw, and so are instants before what a chain keeps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.config import Stream
from tidemill.config.vectors import Vector
from tidemill.formats.arrays import Ints, Mask
from tidemill.formats.arrow import one
from tidemill.formats.delta_arrays import Deltas, Floats, deltas_from_rows, order_of, taken
from tidemill.model.errors import InputError, NotFoundError
from tidemill.model.slices import SliceEntry, SliceStatus, set_hash
from tidemill.model.time import format_instant
from tidemill.outputs.vectors.fold import FoldedVectors, fold
from tidemill.outputs.vectors.parts import ChainParts
from tidemill.outputs.vectors.raw_deltas import raw_rows
from tidemill.outputs.vectors.store import declared_as
from tidemill.outputs.vectors.table import CHECKPOINT, INSTANT, ROWS, Made
from tidemill.storage.state.protocol import State
from tidemill.storage.tables.readers import TableReaders
from tidemill.storage.tables.snapshot import Range, Snapshot

MOST_COMPONENTS: Final = 1 << 26  # of one answer: half a gibibyte
_EVER: Final = np.iinfo(np.int64).max

Count = Callable[[str, str, Collection[str]], None]  # stream, tenant, vectors that were read


@dataclass(frozen=True, slots=True)
class ChainSnapshot:
    """The tables and the ledger at one moment."""

    chains: Snapshot | None
    raw: Snapshot | None
    accepted: Sequence[SliceEntry]
    made: Made  # nothing if the chains were made from other slices

    @property
    def waiting(self) -> list[SliceEntry]:
        """Slices that are accepted and not in the chains yet."""
        return [entry for entry in self.accepted if entry.seq > self.made.through]


class VectorReader:
    """Answers about vectors; thread-safe. `seal` gives the instant before which raw of a stream has expired;
    `count` is called for every read; `is_pending` tells whether slices of a stream are being decided again
    after a retraction, so that their contents are not known yet."""

    def __init__(
        self,
        streams: Mapping[str, Stream],
        state: State,
        readers: TableReaders,
        seal: Callable[[str], int | None],
        count: Count = lambda _stream, _tenant, _ids: None,
        is_pending: Callable[[str], bool] = lambda _stream: False,
    ) -> None:
        self._streams = streams
        self._state = state
        self._readers = readers
        self._seal = seal
        self._count = count
        self._is_pending = is_pending
        self.parts = ChainParts()
        self._guard = threading.Lock()
        self._accepted: dict[str, tuple[object, Sequence[SliceEntry]]] = {}

    def vectors(
        self, stream: str, ids: Sequence[str | int], at: int | None = None, tenant: str | None = None
    ) -> pa.Table:
        """A row for each id, in the order given: whether the vector exists, when it last changed, its
        components, and whether one of them is no longer finite (`overflow`); at an instant, or now.
        `pending`: slices are being decided again and it may change; `exists` is null if it depends on
        that."""
        vector = vector_of(self._streams[stream])
        if len(ids) * vector.dimension > MOST_COMPONENTS:
            raise InputError(
                f"{len(ids)} vectors of {vector.dimension} dimensions do not fit an answer",
                hint=f"ask for at most {MOST_COMPONENTS // vector.dimension} at a time",
            )
        requested = [str(name) for name in ids]
        pending = self._is_pending(stream)  # before the snapshot: what is decided meanwhile may not be in it
        snapshot = self.snapshot(stream)
        owner = self.tenant_of(stream, snapshot, tenant)
        names = list(dict.fromkeys(requested))
        self._count(stream, owner, names)
        found = self._answered(stream, vector, snapshot, owner, names, at)
        return found.table(pa.array(requested, pa.string()), vector.dimension, pending=pending)

    def _answered(
        self,
        stream: str,
        vector: Vector,
        snapshot: ChainSnapshot,
        tenant: str,
        names: Sequence[str],
        at: int | None,
    ) -> _Answers:
        fresh = self.waiting_rows(snapshot, vector, tenant, names, at)
        rows = self.chain_rows(snapshot, tenant, names)
        links = linked(rows, fresh)
        answers = _Answers(names, vector)
        torn = links.torn(_EVER if at is None else at)
        answers.take(links, at)
        if torn:
            self._check_seal(stream, rows, torn)
            answers.forget(torn)
            again = self._from_raw(snapshot, snapshot.accepted, vector, tenant, torn, (None, at))
            answers.take(linked(ROWS.empty_table(), again), at)
        return answers

    # -- what there is

    def snapshot(self, stream: str) -> ChainSnapshot:
        """Reads chains first, then the ledger, then raw: each has at least what the one before refers to."""
        chains = self._readers.snapshot("chains", stream)
        accepted = self._ledger(stream)
        raw = self._readers.snapshot("raw", stream)
        made = self.parts.made(chains, declared_as(self._streams[stream]))
        names = (entry.name for entry in accepted if entry.seq <= made.through)
        if chains is None or set_hash(names) != made.hash:
            return ChainSnapshot(None, raw, accepted, Made())
        return ChainSnapshot(chains, raw, accepted, made)

    def _ledger(self, stream: str) -> Sequence[SliceEntry]:
        """Accepted slices; read again only if something was accepted or retracted."""
        key = (dict(self._state.totals(stream)), dict(self._state.table_versions(stream)))
        with self._guard:
            kept = self._accepted.get(stream)
        if kept is not None and kept[0] == key:
            return kept[1]
        found = self._state.slices(stream, SliceStatus.ACCEPTED)
        with self._guard:
            self._accepted[stream] = (key, found)
        return found

    def tenant_of(self, stream: str, snapshot: ChainSnapshot, tenant: str | None) -> str:
        """The tenant; without a name, the only one of the stream."""
        if tenant is not None:
            return tenant
        declared = self._streams[stream].tenant.value
        if declared is not None:
            return declared
        parts = [part for part in snapshot.raw.parts if part.rows] if snapshot.raw is not None else []
        found = {side.get("tenant") for part in parts for side in (part.mins, part.maxs)}
        if len(found) > 1 or None in found:
            raise InputError(
                f"stream {stream!r} has vectors of several tenants", hint="name one of them: --tenant NAME"
            )
        return str(found.pop()) if found else ""

    # -- rows

    def chain_rows(self, snapshot: ChainSnapshot, tenant: str, names: Sequence[str]) -> pa.Table:
        return self.parts.rows(snapshot.chains, tenant, names)

    def waiting_rows(
        self, snapshot: ChainSnapshot, vector: Vector, tenant: str, names: Sequence[str], at: int | None
    ) -> pa.Table:
        """Deltas that are accepted and in no chain yet."""
        return self._from_raw(snapshot, snapshot.waiting, vector, tenant, names, (None, at))

    def deltas(
        self, stream: str, start: int | None, end: int | None, tenant: str | None = None
    ) -> tuple[str, Deltas]:
        """A tenant, and all its accepted deltas with a time in [start, end)."""
        vector = vector_of(self._streams[stream])
        snapshot = self.snapshot(stream)
        owner = self.tenant_of(stream, snapshot, tenant)
        span = (start, None if end is None else end - 1)
        rows = self._from_raw(snapshot, snapshot.accepted, vector, owner, None, span)
        return owner, deltas_from_rows(rows.combine_chunks())

    def _from_raw(
        self,
        snapshot: ChainSnapshot,
        entries: Sequence[SliceEntry],
        vector: Vector,
        tenant: str,
        names: Collection[str] | None,  # None: all vectors
        span: Range,  # of their times, both ends included
    ) -> pa.Table:
        slices = {entry.id for entry in entries}
        if snapshot.raw is None or not slices or (names is not None and not names):
            return ROWS.empty_table()
        ranges: dict[str, Range] = {
            "tenant": (tenant, tenant),
            "event_time": span,
            "slice": (min(slices), max(slices)),
        }
        only = None if names is None else frozenset((tenant, name) for name in names)
        found = [ROWS.empty_table()]
        for path in snapshot.raw.paths(snapshot.raw.select(ranges=ranges)):
            found += [_within(rows, tenant, span) for rows in raw_rows(path, vector, slices, only)]
        return pa.concat_tables(found)

    def _check_seal(self, stream: str, rows: pa.Table, torn: Collection[str]) -> None:
        seal = self._seal(stream)
        if seal is None:
            return
        of_torn = rows.filter(pc.is_in(rows.column("vector_id"), pa.array(list(torn), pa.string())))
        first = pc.min(of_torn.column("first_ts").cast(pa.int64())).as_py()
        if first is not None and first < seal:
            raise NotFoundError(
                f"the value of {min(torn)!r} at that instant is no longer in its chain, and raw before "
                f"{format_instant(seal)} has expired",
                hint="ask for a later instant; `tidemill chain` says what is kept",
            )


def _within(rows: pa.Table, tenant: str, span: Range) -> pa.Table:
    """Rows of a tenant with a time in the span, both ends included."""
    chosen = pc.equal(rows.column("tenant"), tenant)
    for end, holds in zip(span, (pc.greater_equal, pc.less_equal), strict=True):
        if end is not None:
            chosen = pc.and_(chosen, holds(rows.column("ts"), pa.scalar(end, pa.int64()).cast(INSTANT)))
    return rows.filter(chosen)


def vector_of(stream: Stream) -> Vector:
    if stream.kind != "delta" or stream.vector is None:
        raise InputError(
            f"stream {stream.name!r} has no vectors", hint="vectors are in streams of `kind: delta`"
        )
    return stream.vector


@dataclass(frozen=True, slots=True)
class Linked:
    """Rows of chains in the order in which they apply, with facts about each."""

    deltas: Deltas
    checkpoint: Mask
    waiting: Mask
    first: Ints  # instant of the first delta in the row
    left_out: Ints  # deltas in the row that were not applied
    rows: Ints  # its position in the linked tables, concatenated

    def torn(self, at: int) -> list[str]:
        """Vectors whose rows do not show their value at an instant: a checkpoint has deltas from before and
        after it, or a waiting delta comes before a checkpoint."""
        ts, of = self.deltas.ts, self.deltas.vectors
        torn = np.zeros(len(self.deltas.names), np.bool_)
        torn[of[self.checkpoint & (self.first <= at) & (ts > at)]] = True
        position, last = np.arange(ts.size), np.full(torn.size, -1, np.int64)
        base = self.checkpoint & (ts <= at)
        np.maximum.at(last, of[base], position[base])
        torn[of[self.waiting & (position < last[of])]] = True
        found: list[str] = self.deltas.names.filter(pa.array(torn)).to_pylist()
        return found


def linked(rows: pa.Table, waiting: pa.Table) -> Linked:
    both = pa.concat_tables([rows, waiting]).combine_chunks()
    late = np.arange(both.num_rows) >= rows.num_rows
    deltas = deltas_from_rows(both)
    order = order_of(deltas)
    checkpoint = np.asarray(pc.equal(one(both.column("kind")), CHECKPOINT), np.bool_)
    first = one(both.column("first_ts")).cast(pa.int64()).to_numpy(zero_copy_only=False)
    left_out = one(both.column("left_out")).to_numpy(zero_copy_only=False)
    return Linked(taken(deltas, order), checkpoint[order], late[order], first[order], left_out[order], order)


def folded(links: Linked, vector: Vector, at: int | None = None) -> FoldedVectors:
    """The vectors that result from the rows, at an instant or now."""
    return fold(None, None, links.deltas, vector.dimension, at, finite=vector.stays_finite)


class _Answers:
    """The vectors as far as they are known."""

    def __init__(self, names: Sequence[str], vector: Vector) -> None:
        self._names = pa.array(names, pa.string())
        self._vector = vector
        self._matrix: Floats = np.zeros((len(names), vector.dimension))
        self._left_out: Ints = np.zeros(len(names), np.int64)  # deltas that were not applied
        self._exists: Mask = np.zeros(len(names), np.bool_)
        self._ts: Ints = np.zeros(len(names), np.int64)
        self._known: Mask = np.zeros(len(names), np.bool_)  # vectors that ever had a delta

    def take(self, links: Linked, at: int | None) -> None:
        """Compute the vectors that these deltas are about; replaces what was known of them."""
        deltas = links.deltas
        done = folded(links, self._vector, at)
        left_out = np.where(deltas.ts <= (_EVER if at is None else at), links.left_out, 0) + done.left_out
        position = pc.index_in(deltas.names, self._names).to_numpy(zero_copy_only=False)
        self._matrix[position], self._exists[position] = done.matrix, done.exists
        self._known[position] = done.last >= 0
        self._ts[position] = deltas.ts[done.last] if len(deltas) else 0
        self._left_out[position] = np.bincount(deltas.vectors, left_out, len(deltas.names))

    def forget(self, names: Collection[str]) -> None:
        position = pc.index_in(pa.array(list(names), pa.string()), self._names).to_numpy(zero_copy_only=False)
        self._exists[position] = self._known[position] = False

    def table(self, names: pa.Array, dimension: int, *, pending: bool) -> pa.Table:
        position = pc.index_in(names, self._names).to_numpy(zero_copy_only=False)
        if not np.array_equal(position, np.arange(len(self._names))):
            matrix, exists = self._matrix[position], self._exists[position]
        else:
            matrix, exists = self._matrix, self._exists
        flat = pa.array(matrix.reshape(-1))
        values = pa.FixedSizeListArray.from_arrays(flat, dimension, mask=pa.array(~exists))
        ts = pa.array(self._ts[position], mask=~self._known[position]).cast(INSTANT)
        overflow = exists & ~np.isfinite(matrix).all(axis=1) | (self._left_out[position] > 0)
        return pa.table(
            {
                "vector_id": names,
                "exists": pa.array(exists, mask=~exists if pending else None),
                "ts": ts,
                "values": values,
                "overflow": pa.array(overflow),
                "pending": pa.array(np.full(len(names), pending)),
            }
        )
