"""Datasets of a delta stream: the deltas of a window as one batch, merged where that changes no bit.

Which rows are merged depends only on the deltas of the window, not on where they were read. All deltas of a
vector in one window are in memory together.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tidemill.formats.arrays import Ints
from tidemill.formats.arrow import one
from tidemill.formats.delta_arrays import Deltas, changes_of, coded, deltas_from_rows, order_of, taken
from tidemill.formats.delta_merging import merged
from tidemill.model.windows import DeltaStats
from tidemill.outputs.datasets.row_order import times


def delta_columns(deltas: Deltas) -> list[pa.Array]:
    """The columns of a dataset that deltas are: the vector, and the operation on it."""
    return [deltas.names.take(pa.array(deltas.vectors)), *changes_of(deltas).values()]


def vector_parts(rows: pa.Table, parts: Ints) -> Ints:
    """The part of each row, of so many parts: the same for all deltas of a vector."""
    names, vectors = coded(one(rows.column("vector_id")))
    digests = np.array([zlib.crc32(name.encode()) for name in names.to_pylist()], np.int64)
    found: Ints = digests[vectors] % parts
    return found


def as_batch(rows: pa.Table) -> tuple[pa.Table, DeltaStats]:
    """Rows of one window with all deltas of their vectors, merged, in any order; and statistics of what was
    merged. A merged row has the time, the id and the position of its last delta."""
    renamed = {"event_time": "ts", "event_id": "delta_id"}
    names = [renamed.get(name, name) for name in rows.column_names]
    deltas = deltas_from_rows(rows.rename_columns(names))
    keys, vectors = np.unique(_keys(rows), return_inverse=True)
    deltas = replace(deltas, names=pa.array(np.arange(keys.size)), vectors=vectors.astype(np.int64))
    order = order_of(deltas)
    left = merged(replace(taken(deltas, order), ids=pa.array(order)))
    out = rows.take(left.ids)
    for name, column in changes_of(left).items():
        out = out.set_column(out.column_names.index(name), out.schema.field(name), column)
    time = times(rows)
    ends = (int(time.min()), int(time.max())) if time.size else (None, None)
    return out.combine_chunks(), DeltaStats(rows.num_rows, int(keys.size), *ends)


def _keys(rows: pa.Table) -> Ints:
    """A number for each tenant and vector."""
    tenants, of_tenant = coded(one(rows.column("tenant")))
    _, of_vector = coded(one(rows.column("vector_id")))
    found: Ints = of_vector * max(1, len(tenants)) + of_tenant
    return found


def together(stats: Iterable[DeltaStats]) -> DeltaStats:
    """The statistics of parts of a window that have no vector in common."""
    all_of_them: Sequence[DeltaStats] = list(stats)
    return DeltaStats(
        sum(one.received for one in all_of_them),
        sum(one.vectors for one in all_of_them),
        min((one.first for one in all_of_them if one.first is not None), default=None),
        max((one.last for one in all_of_them if one.last is not None), default=None),
    )
