"""Vectors, their chains and compactions as plain data with stable snake_case keys.

Only formats. Components keep every bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidemill.model.time import format_duration, format_instant, from_datetime
from tidemill.pipeline.documents.shapes import Document, instant
from tidemill.pipeline.documents.windows import is_current

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.outputs.vectors.batches import BatchStats
    from tidemill.outputs.vectors.chain_view import ChainLink, ChainView
    from tidemill.outputs.vectors.chainer import Batched, Batches, ChainRound
    from tidemill.outputs.vectors.store import CompactionStep


def vector(stream: str, found: pa.Table, at: int | None) -> Document:
    """One vector, from an answer for one id."""
    (row,) = found.to_pylist()
    return {
        "stream": stream,
        "vector_id": row["vector_id"],
        "at": instant(at),
        "exists": row["exists"],
        "ts": None if row["ts"] is None else format_instant(from_datetime(row["ts"])),
        "values": row["values"],
        "overflow": row["overflow"],
        "pending": row["pending"],
    }


def chain(of: ChainView) -> Document:
    return {
        "stream": of.stream,
        "tenant": of.tenant,
        "vector_id": of.vector_id,
        "bucket": of.bucket,
        "dimension": of.dimension,
        "merged": of.merged,
        "bytes": of.bytes,
        "kept_from": instant(of.kept_from),
        "strategy": of.compaction.strategy,
        "reason": None if of.reason is None else of.reason.value,
        "checkpoints": [_link(link) for link in of.checkpoints],
        "pending": [_link(link) for link in of.deltas],
        "batch": _batch(of.pending),
    }


def _link(of: ChainLink) -> Document:
    return {
        "ts": format_instant(of.ts),
        "delta_id": of.delta_id,
        "op": of.op.value,
        "components": of.components,
        "bytes": of.bytes,
        "merged": of.merged,
        "first_ts": format_instant(of.first_ts),
        "left_out": of.left_out,
        "waiting": of.waiting,
    }


def _batch(of: BatchStats | None) -> Document:
    if of is None:
        return dict.fromkeys(("deltas", "vectors", "bytes", "average", "duration"))
    return {
        "deltas": of.deltas,
        "vectors": of.vectors,
        "bytes": of.bytes,
        "average": round(of.average, 1),
        "duration": format_duration(of.duration),
    }


def batches(stream: str, of: Batches) -> Document:
    return {"stream": stream, "windows": [batch(one) for one in of.found], "more": of.more}


def batch(of: Batched) -> Document:
    """What only a published batch has is null for one that was made on request."""
    window = None if of.published is None else of.published.window
    return {
        "window_id": None if window is None else window.key.id,
        "start": format_instant(of.start),
        "end": format_instant(of.end),
        "revision": None if window is None else window.revision,
        "hash": None if window is None else window.observed,
        "current": None if window is None else is_current(window),
        "trigger": None if window is None else window.trigger,
        "ignored": None if of.published is None else of.published.ignored,
        "built_at": None if window is None else instant(window.built_at),
        "received": None if of.stats is None else of.stats.received,
        **_batch(of.stats),
        "file": None if of.file is None else str(of.file),
        "damage": None if of.published is None else of.published.damage,
    }


def compacted(done: Mapping[str, ChainRound]) -> Document:
    return {"streams": [_round(stream, of) for stream, of in done.items()]}


def _round(stream: str, of: ChainRound) -> Document:
    assert of.compacted is not None, stream
    return {
        "stream": stream,
        "folded": of.folded.deltas,
        "chains": of.compacted.chains,
        "deltas_merged": of.compacted.deltas,
        "bytes_before": of.compacted.bytes_before,
        "bytes_after": of.compacted.bytes_after,
        "reasons": dict(of.compacted.reasons),
    }


def planned(plans: Mapping[str, Sequence[CompactionStep]]) -> Document:
    return {
        "streams": [
            {
                "stream": stream,
                "steps": [
                    {
                        "bucket": step.bucket,
                        "chains": step.chains,
                        "deltas": step.deltas,
                        "reasons": dict(step.reasons),
                        "bytes": step.bytes,
                    }
                    for step in steps
                ],
            }
            for stream, steps in plans.items()
        ]
    }
