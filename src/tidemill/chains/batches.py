"""Deltas of one window as one batch: each once, in order of time, merged where no bit changes, compressed.

Pure. It never computes with a component: what would need an addition stays two deltas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from tidemill.model.deltas import Delta, Op
from tidemill.model.errors import InputError

SCHEMA: Final = pa.schema(
    [
        pa.field("vector_id", pa.string(), nullable=False),
        pa.field("delta_id", pa.string(), nullable=False),
        pa.field("ts", pa.int64(), nullable=False),  # microseconds
        pa.field("op", pa.string(), nullable=False),
        pa.field("indices", pa.list_(pa.int32())),
        pa.field("values", pa.list_(pa.float64()), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class BatchStats:
    """What came in a window, and what a batch of it takes."""

    received: int  # deltas, with those that came twice
    duplicates: int
    deltas: int  # left after merging
    vectors: int
    bytes: int  # of the compressed batch
    start: int | None  # the first and the last instant of a delta; None: there was none
    end: int | None

    @property
    def average(self) -> float:
        """Bytes of a delta in the batch."""
        return self.bytes / self.deltas if self.deltas else 0.0

    @property
    def duration(self) -> int:
        return 0 if self.start is None or self.end is None else self.end - self.start


@dataclass(frozen=True, slots=True)
class Batch:
    """Applied to any vectors, the deltas give what all that came in would have given."""

    deltas: tuple[Delta, ...]  # by (ts, delta_id)
    content: bytes  # the same as Arrow, zstd
    stats: BatchStats


def batch_of(deltas: Iterable[Delta]) -> Batch:
    """Of deltas in any order. One that says what came before does not matter drops it; of several `set` in a
    row, what came last counts."""
    received = list(deltas)
    once = {delta.delta_id: delta for delta in reversed(received)}  # of equal ids the first that came
    ordered = sorted(once.values(), key=_place)
    chains: dict[str, list[Delta]] = {}
    for delta in ordered:
        _join(chains.setdefault(delta.vector_id, []), delta)
    merged = tuple(sorted((delta for chain in chains.values() for delta in chain), key=_place))
    content = _packed(merged)
    stats = BatchStats(
        received=len(received),
        duplicates=len(received) - len(once),
        deltas=len(merged),
        vectors=len(chains),
        bytes=len(content),
        start=ordered[0].ts if ordered else None,
        end=ordered[-1].ts if ordered else None,
    )
    return Batch(merged, content, stats)


def deltas_in(content: bytes) -> tuple[Delta, ...]:
    """What a batch holds."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(content)) as reader:
            rows = reader.read_all().to_pylist()
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(
            f"this is not a batch of deltas: {error}", hint="give the content of a batch, whole"
        ) from error
    return tuple(
        Delta(
            row["vector_id"],
            row["delta_id"],
            row["ts"],
            Op(row["op"]),
            tuple(row["values"]),
            None if row["indices"] is None else tuple(row["indices"]),
        )
        for row in rows
    )


def _place(delta: Delta) -> tuple[int, str]:
    return delta.ts, delta.delta_id


def _join(chain: list[Delta], delta: Delta) -> None:
    """Put `delta` at the end of a vector's chain."""
    if delta.op in (Op.REPLACE, Op.DELETE) or (delta.op is Op.SET and delta.indices is None):
        chain[:] = [delta]
    elif delta.op is Op.SET and chain and chain[-1].op in (Op.SET, Op.REPLACE):
        chain[-1] = _set_over(chain[-1], delta)
    else:
        chain.append(delta)


def _set_over(before: Delta, delta: Delta) -> Delta:
    """Both in one, in the place of the later."""
    assert delta.indices is not None, delta
    news = dict(zip(delta.indices, delta.values, strict=True))
    if before.indices is None:
        values = tuple(news.get(place, value) for place, value in enumerate(before.values))
        return replace(delta, op=before.op, indices=None, values=values)
    both = dict(zip(before.indices, before.values, strict=True)) | news
    indices = tuple(sorted(both))
    return replace(delta, indices=indices, values=tuple(both[place] for place in indices))


def _packed(deltas: Sequence[Delta]) -> bytes:
    table = pa.Table.from_pydict(
        {
            "vector_id": [delta.vector_id for delta in deltas],
            "delta_id": [delta.delta_id for delta in deltas],
            "ts": [delta.ts for delta in deltas],
            "op": [delta.op.value for delta in deltas],
            "indices": [delta.indices for delta in deltas],
            "values": [delta.values for delta in deltas],
        },
        schema=SCHEMA,
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content
