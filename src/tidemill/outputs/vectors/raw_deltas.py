"""Reads deltas from accepted rows and gives them as rows of chains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.config.vectors import Vector
from tidemill.formats.arrow import one
from tidemill.formats.delta_arrays import Deltas, rows_of
from tidemill.outputs.vectors.table import DELTA, ROWS
from tidemill.raw.footers import declared_in
from tidemill.raw.part_deltas import PartDeltas
from tidemill.storage.tables.parts import open_part

_COLUMNS: Final = ("tenant", "event_time", "event_id", "slice")
_BATCH_ROWS: Final = 32_768

Key = tuple[str, str]  # tenant and vector


def raw_rows(
    path: str, vector: Vector, slices: Iterable[str] | None, only: frozenset[Key] | None = None
) -> Iterator[pa.Table]:
    """The deltas of a part of raw from these slices (None: all), `only` those of some vectors, in bounded
    batches."""
    wanted = pa.array(sorted(slices), pa.string()) if slices is not None else None
    with open_part(path, ("tenant", "slice")) as file:
        if wanted is not None and not _has(file.read(columns=["slice"], use_threads=False), wanted):
            return
        deltas = PartDeltas(vector, declared_in(file, path), path)
        names = list(dict.fromkeys([*_COLUMNS, *deltas.names]))
        for batch in file.iter_batches(_BATCH_ROWS, columns=names, use_threads=False):
            if wanted is not None:
                batch = batch.filter(pc.is_in(batch.column("slice").dictionary_decode(), wanted))
            rows = delta_rows(batch, deltas.of(batch))
            yield rows if only is None else _only(rows, only)


def _has(slices: pa.Table, names: pa.Array) -> bool:
    found = pc.unique(slices.column("slice")).cast(pa.string())
    return bool(pc.any(pc.is_in(found, names)).as_py())


def _only(rows: pa.Table, only: frozenset[Key]) -> pa.Table:
    keys = zip(rows.column("tenant").to_pylist(), rows.column("vector_id").to_pylist(), strict=True)
    return rows.filter(pa.array([key in only for key in keys], pa.bool_()))


def delta_rows(batch: pa.RecordBatch, found: Deltas) -> pa.Table:
    """Rows of a chain, in the order of the batch, which has the columns of raw, and these deltas."""
    deltas = rows_of(found)
    size, time = batch.num_rows, batch.column("event_time")
    tenant = one(batch.column("tenant"))
    return pa.Table.from_arrays(
        [
            tenant.dictionary_decode() if pa.types.is_dictionary(tenant.type) else tenant,
            deltas.column("vector_id"),
            pa.repeat(pa.scalar(DELTA), size),
            time,
            batch.column("event_id"),
            *(deltas.column(name) for name in ("op", "indices", "values")),
            pa.array(np.ones(size, np.int64)),
            time,
            pa.array(np.zeros(size, np.int64)),
        ],
        schema=ROWS,
    )
