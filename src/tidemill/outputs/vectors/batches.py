"""The deltas of a window as one batch: each once, in order of time, merged where that changes no bit,
compressed.

Pure. It never computes with components: what would need an addition stays two deltas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from tidemill.formats.delta_arrays import ROWS, Deltas, deltas_from_rows, order_of, rows_of, taken
from tidemill.formats.delta_merging import merged
from tidemill.model.deltas import Delta, Op
from tidemill.model.errors import InputError
from tidemill.model.time import from_datetime

COLUMNS: Final = pa.schema(  # as a dataset of the stream has them
    [
        pa.field("event_time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("tenant", pa.string(), nullable=False),
        pa.field("event_id", pa.string(), nullable=False),
        *(ROWS.field(name) for name in ("vector_id", "op", "indices", "values")),
    ]
)
_COMPRESSION: Final = "zstd"


@dataclass(frozen=True, slots=True)
class BatchStats:
    """What arrived in a window, and the size of its batch."""

    received: int  # deltas, including repeats
    duplicates: int
    deltas: int  # left after merging
    vectors: int
    bytes: int  # of the compressed batch
    start: int | None  # the first and the last instant of a delta; None if there is none
    end: int | None

    @property
    def average(self) -> float:
        """Bytes for each delta in the batch."""
        return self.bytes / self.deltas if self.deltas else 0.0

    @property
    def duration(self) -> int:
        return 0 if self.start is None or self.end is None else self.end - self.start


@dataclass(frozen=True, slots=True)
class DeltaBatch:
    """A batch: applied to any vectors, it gives what all deltas that arrived would have given."""

    content: bytes  # an Arrow file of `COLUMNS`, by (event_time, event_id)
    stats: BatchStats

    @property
    def deltas(self) -> tuple[Delta, ...]:
        return deltas_in(self.content)


@dataclass(frozen=True, slots=True)
class WindowBatch:
    """The batch of a window [start, end)."""

    start: int
    end: int
    batch: DeltaBatch


def batch_of(deltas: Iterable[Delta], tenant: str = "") -> DeltaBatch:
    """The batch of deltas in any order. A delta that makes earlier ones irrelevant drops them; of several
    `set` in a row, the last counts."""
    received = list(deltas)
    once = {delta.delta_id: delta for delta in reversed(received)}  # of equal ids the first that arrived
    batch = _batch(deltas_from_rows(_table(once.values())), tenant)
    repeated = len(received) - len(once)
    return replace(batch, stats=replace(batch.stats, received=len(received), duplicates=repeated))


def window_batches(deltas: Deltas, every: int, tenant: str) -> Iterator[WindowBatch]:
    """The batches of the windows of a width that have deltas of a tenant, oldest first. Each delta occurs
    once."""
    order = np.argsort(deltas.ts, kind="stable")
    number = deltas.ts[order] // every
    for window in np.unique(number).tolist():
        low, high = np.searchsorted(number, [window, window + 1]).tolist()
        batch = _batch(taken(deltas, order[low:high]), tenant)
        yield WindowBatch(window * every, (window + 1) * every, batch)


def deltas_in(content: bytes) -> tuple[Delta, ...]:
    """The deltas of a batch."""
    try:
        with pa.ipc.open_file(pa.py_buffer(content)) as reader:
            rows = reader.read_all().to_pylist()
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(
            f"this is not a batch of deltas: {error}", hint="give the content of a batch, whole"
        ) from error
    return tuple(
        Delta(
            row["vector_id"],
            row["event_id"],
            from_datetime(row["event_time"]),
            Op(row["op"]),
            tuple(row["values"] or ()),
            None if row["indices"] is None else tuple(row["indices"]),
        )
        for row in rows
    )


def _table(deltas: Iterable[Delta]) -> pa.Table:
    rows = [(d.vector_id, d.ts, d.delta_id, d.op.value, d.indices, d.values) for d in deltas]
    columns = zip(*rows, strict=True) if rows else [()] * len(ROWS)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, ROWS, strict=True)]
    return pa.Table.from_arrays(arrays, schema=ROWS)


def _batch(deltas: Deltas, tenant: str) -> DeltaBatch:
    left = merged(taken(deltas, order_of(deltas)))
    in_time = order_of(replace(left, vectors=np.zeros_like(left.vectors)))
    content = _packed(rows_of(taken(left, in_time)), tenant)
    stats = BatchStats(
        received=len(deltas),
        duplicates=0,
        deltas=len(left),
        vectors=int(np.unique(deltas.vectors).size),
        bytes=len(content),
        start=int(deltas.ts.min()) if len(deltas) else None,
        end=int(deltas.ts.max()) if len(deltas) else None,
    )
    return DeltaBatch(content, stats)


def _packed(rows: pa.Table, tenant: str) -> bytes:
    columns = [
        rows.column("ts").cast(COLUMNS.field("event_time").type),
        pa.repeat(pa.scalar(tenant), rows.num_rows),
        rows.column("delta_id"),
        *(rows.column(name) for name in COLUMNS.names[3:]),
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, COLUMNS, options=pa.ipc.IpcWriteOptions(compression=_COMPRESSION)) as writer:
        writer.write_table(pa.Table.from_arrays(columns, schema=COLUMNS))
    content: bytes = sink.getvalue().to_pybytes()
    return content
