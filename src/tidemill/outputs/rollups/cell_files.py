"""Files in which kernels pass cells on: a stream of Arrow batches for each metric, one after another.

They exist only in staging and are read memory-mapped, so that only what is used is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from tidemill.formats.arrow import one
from tidemill.model.time import Interval
from tidemill.outputs.rollups.cells import Cells
from tidemill.storage.bucket_path import local_copy
from tidemill.storage.files import replacing

PARTIAL: Final = ".cells"
_METRIC: Final = b"metric"


def write_cells(path: Path, cells: Cells) -> None:
    with replacing(path) as temporary, pa.OSFile(str(temporary), "wb") as sink:
        for name, table in cells.items():
            packed = table.unify_dictionaries().combine_chunks()
            packed = packed.replace_schema_metadata({_METRIC: name.encode()})
            with ipc.new_stream(sink, packed.schema) as writer:
                writer.write_table(packed)


def read_cells(path: str) -> Cells:
    source = pa.memory_map(str(local_copy(path)))
    size = source.size()
    found: dict[str, pa.Table] = {}
    while source.tell() < size:
        table = ipc.open_stream(source).read_all()
        found[table.schema.metadata[_METRIC].decode()] = table.replace_schema_metadata(None)
    return found


def write_partial(path: Path, cells: Cells) -> None:
    """Write cells sorted by bucket, so that a span of time is contiguous."""
    write_cells(path, {name: _by_time(table) for name, table in cells.items()})


def read_partial(path: str, span: Interval) -> Cells:
    """The cells of `span`, of a file that is sorted by bucket."""
    return {name: _between(table, span) for name, table in read_cells(path).items()}


def _by_time(table: pa.Table) -> pa.Table:
    return table.take(pa.array(np.argsort(one(table.column("bucket")).to_numpy(), kind="stable")))


def _between(table: pa.Table, span: Interval) -> pa.Table:
    buckets = one(table.column("bucket")).to_numpy()
    first, last = np.searchsorted(buckets, [span.start, span.end])
    return table.slice(int(first), int(last - first))
