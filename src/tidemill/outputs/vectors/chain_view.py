"""The chain of one vector, for display: its checkpoints, what is pending, its size. It never writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tidemill.config import Stream
from tidemill.config.vectors import CompactionSettings
from tidemill.model.deltas import Delta, Op
from tidemill.model.errors import NotFoundError
from tidemill.model.time import from_datetime
from tidemill.outputs.vectors.batches import BatchStats, batch_of
from tidemill.outputs.vectors.reader import VectorReader, folded, linked, vector_of
from tidemill.outputs.vectors.rules import ChainFacts, Reason, needs
from tidemill.outputs.vectors.table import CHECKPOINT, bucket_of

_NUMBER_BYTES: Final = 8
_INDEX_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class ChainLink:
    """A row of a chain: a checkpoint, or a delta."""

    checkpoint: bool
    ts: int
    delta_id: str  # for a checkpoint: of the last delta in it, as `ts` is
    op: Op
    components: int  # values it has
    bytes: int  # bytes of the values and their indices
    merged: int  # deltas that it contains
    first_ts: int  # of the first of them
    left_out: int  # deltas in it that were not applied, since a component would no longer be finite
    waiting: bool = False  # accepted, and not in the chain yet


@dataclass(frozen=True, slots=True)
class ChainView:
    """A chain as it is now."""

    stream: str
    tenant: str
    vector_id: str
    bucket: str
    dimension: int
    links: tuple[ChainLink, ...]  # in the order in which they apply
    pending: BatchStats  # what is in no checkpoint, as one batch
    compaction: CompactionSettings
    reason: Reason | None  # why it should be compacted

    @property
    def checkpoints(self) -> tuple[ChainLink, ...]:
        return tuple(link for link in self.links if link.checkpoint)

    @property
    def deltas(self) -> tuple[ChainLink, ...]:
        """The pending deltas, including those not added to the chain yet."""
        return tuple(link for link in self.links if not link.checkpoint)

    @property
    def merged(self) -> int:
        return sum(link.merged for link in self.checkpoints)

    @property
    def bytes(self) -> int:
        return sum(link.bytes for link in self.links)

    @property
    def kept_from(self) -> int | None:
        """From this instant on the chain gives the vector at every instant; before it, raw is needed where a
        checkpoint has deltas from both sides. None: always."""
        return max((link.ts for link in self.checkpoints), default=None)


def chain_of(
    vector_reader: VectorReader, stream: Stream, vector_id: str, now: int, tenant: str | None
) -> ChainView:
    vector = vector_of(stream)
    snapshot = vector_reader.snapshot(stream.name)
    owner = vector_reader.tenant_of(stream.name, snapshot, tenant)
    current = vector_reader.chain_rows(snapshot, owner, [vector_id])
    waiting = vector_reader.waiting_rows(snapshot, vector, owner, [vector_id], None)
    found = linked(current, waiting)
    rows = pa.concat_tables([current, waiting]).take(pa.array(found.rows)).to_pylist()
    if not rows:
        raise NotFoundError(
            f"there is no delta of a vector {vector_id!r} in {stream.name!r}",
            hint="ids are as the deltas spell them; `tidemill run --once` accepts what has landed",
        )
    left_out = found.left_out + folded(found, vector).left_out
    links = tuple(map(_link, rows, left_out.tolist(), found.waiting.tolist()))
    facts = ChainFacts([one.ts for one in links], [one.checkpoint for one in links])
    return ChainView(
        stream=stream.name,
        tenant=owner,
        vector_id=vector_id,
        bucket=bucket_of(vector_id),
        dimension=vector.dimension,
        links=links,
        pending=batch_of(_delta(row) for row in rows if row["kind"] != CHECKPOINT).stats,
        compaction=stream.compaction,
        reason=needs(facts, stream.compaction, now),
    )


def _link(row: dict[str, pa.Scalar], left_out: int, waiting: bool) -> ChainLink:
    values, indices = row["values"] or (), row["indices"] or ()
    return ChainLink(
        checkpoint=row["kind"] == CHECKPOINT,
        ts=from_datetime(row["ts"]),
        delta_id=row["delta_id"],
        op=Op(row["op"]),
        components=len(values),
        bytes=_NUMBER_BYTES * len(values) + _INDEX_BYTES * len(indices),
        merged=row["merged"],
        first_ts=from_datetime(row["first_ts"]),
        left_out=left_out,
        waiting=waiting,
    )


def _delta(row: dict[str, pa.Scalar]) -> Delta:
    indices = None if row["indices"] is None else tuple(row["indices"])
    ts, values = from_datetime(row["ts"]), tuple(row["values"] or ())
    return Delta(row["vector_id"], row["delta_id"], ts, Op(row["op"]), values, indices)
