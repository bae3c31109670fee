"""Deltas of a window as one batch: each once, in order of time, merged where no bit changes, compressed.

Pure. It never computes with a component: what would need an addition stays two deltas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from tidemill.chains.fold import CODES, ROWS, Deltas, Floats, deltas_from_rows, order_of, rows_of, taken
from tidemill.model.deltas import Delta, Op
from tidemill.model.errors import InputError
from tidemill.records.arrays import Ints, Mask

_COMPRESSION: Final = "zstd"


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

    content: bytes  # an Arrow stream, by (ts, delta_id)
    stats: BatchStats

    @property
    def deltas(self) -> tuple[Delta, ...]:
        return deltas_in(self.content)


@dataclass(frozen=True, slots=True)
class WindowBatch:
    """The batch of a window [start, end)."""

    start: int
    end: int
    batch: Batch


def batch_of(deltas: Iterable[Delta]) -> Batch:
    """Of deltas in any order. One that says what came before does not matter drops it; of several `set` in a
    row, what came last counts."""
    received = list(deltas)
    once = {delta.delta_id: delta for delta in reversed(received)}  # of equal ids the first that came
    batch = _batch(deltas_from_rows(_table(once.values())))
    repeated = len(received) - len(once)
    return replace(batch, stats=replace(batch.stats, received=len(received), duplicates=repeated))


def window_batches(deltas: Deltas, every: int) -> Iterator[WindowBatch]:
    """The batches of the windows of a width that have deltas, from the first on. Each delta is there once."""
    order = np.argsort(deltas.ts, kind="stable")
    number = deltas.ts[order] // every
    for window in np.unique(number).tolist():
        low, high = np.searchsorted(number, [window, window + 1]).tolist()
        yield WindowBatch(window * every, (window + 1) * every, _batch(taken(deltas, order[low:high])))


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


def _table(deltas: Iterable[Delta]) -> pa.Table:
    rows = [(d.vector_id, d.ts, d.delta_id, d.op.value, d.indices, d.values) for d in deltas]
    columns = zip(*rows, strict=True) if rows else [()] * len(ROWS)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, ROWS, strict=True)]
    return pa.Table.from_arrays(arrays, schema=ROWS)


def _batch(deltas: Deltas) -> Batch:
    left = _merged(taken(deltas, order_of(deltas)))
    in_time = order_of(replace(left, vectors=np.zeros_like(left.vectors)))
    content = _packed(rows_of(taken(left, in_time)))
    stats = BatchStats(
        received=len(deltas),
        duplicates=0,
        deltas=len(left),
        vectors=int(np.unique(deltas.vectors).size),
        bytes=len(content),
        start=int(deltas.ts.min()) if len(deltas) else None,
        end=int(deltas.ts.max()) if len(deltas) else None,
    )
    return Batch(content, stats)


def _packed(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ROWS, options=pa.ipc.IpcWriteOptions(compression=_COMPRESSION)) as writer:
        writer.write_table(rows)
    content: bytes = sink.getvalue().to_pybytes()
    return content


# -- merging: rows are by (vector, ts, delta_id)


def _merged(deltas: Deltas) -> Deltas:
    deltas = _without_void(deltas)
    says = np.isin(deltas.ops, (CODES[Op.SET], CODES[Op.REPLACE]))  # what components are, whatever they were
    joins = (deltas.ops == CODES[Op.SET]) & ~deltas.dense  # a row that goes on where the one before it says
    joins[:1] = False
    joins[1:] &= says[:-1] & (deltas.vectors[1:] == deltas.vectors[:-1])
    return _joined(deltas, joins) if joins.any() else deltas


def _without_void(deltas: Deltas) -> Deltas:
    """Without what comes before a whole vector, or before its end."""
    whole = deltas.dense & np.isin(deltas.ops, (CODES[Op.SET], CODES[Op.REPLACE], CODES[Op.DELETE]))
    place = np.arange(len(deltas))
    last = np.zeros(len(deltas.names), np.int64)
    np.maximum.at(last, deltas.vectors[whole], place[whole])
    return taken(deltas, place >= last[deltas.vectors])


def _joined(deltas: Deltas, joins: Mask) -> Deltas:
    """Each run of rows that say what components are as one, in the place of its last; in any order."""
    starts = np.flatnonzero(~joins)
    ends = np.append(starts[1:], len(deltas)) - 1
    long = ends > starts
    single, starts, ends = taken(deltas, starts[~long]), starts[long], ends[long]
    run, component, value = _said(deltas, starts, ends)
    dense = deltas.dense[starts]
    components = np.bincount(run, minlength=starts.size)
    return Deltas(
        names=deltas.names,
        vectors=np.append(single.vectors, deltas.vectors[ends]),
        ts=np.append(single.ts, deltas.ts[ends]),
        ids=pa.concat_arrays([single.ids, deltas.ids.take(pa.array(ends))]),
        ops=np.append(single.ops, deltas.ops[starts]),
        dense=np.append(single.dense, dense),
        index_at=_behind(single.index_at, np.where(dense, 0, components)),
        indices=np.append(single.indices, component[~dense[run]].astype(np.int32)),
        value_at=_behind(single.value_at, components),
        values=np.append(single.values, value),
    )


def _behind(at: Ints, sizes: Ints) -> Ints:
    return np.append(at, at[-1] + np.cumsum(sizes))


def _said(deltas: Deltas, starts: Ints, ends: Ints) -> tuple[Ints, Ints, Floats]:
    """Run, component and value of all that runs of rows say in the end, in this order."""
    sizes = ends - starts + 1
    rows = _counted(starts, sizes)
    counts = np.diff(deltas.value_at)[rows]
    value = deltas.values[_counted(deltas.value_at[rows], counts)]
    component = _counted(np.zeros_like(rows), counts)  # of a dense row; a sparse one names them
    sparse = ~np.repeat(deltas.dense[rows], counts)
    component[sparse] += np.repeat(deltas.index_at[rows], counts)[sparse]
    component[sparse] = deltas.indices[component[sparse]]
    run = np.repeat(np.repeat(np.arange(starts.size), sizes), counts)
    order = np.lexsort((component, run))  # what was said later stays behind
    run, component, value = run[order], component[order], value[order]
    last = np.ones(run.size, np.bool_)
    last[:-1] = (run[1:] != run[:-1]) | (component[1:] != component[:-1])
    return run[last], component[last], value[last]


def _counted(firsts: Ints, counts: Ints) -> Ints:
    """So many numbers from each of the firsts on, one after the other."""
    starts = np.cumsum(counts) - counts
    return np.arange(int(counts.sum())) + np.repeat(firsts - starts, counts)
