"""Streams a dataset as the pieces of a Parquet or Arrow file, which never exists as a whole.

A few record batches are in memory at a time. A file for one tenant reveals nothing of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.outputs.datasets.catalog import DatasetFile
from tidemill.outputs.datasets.dataset import METADATA_KEY, metadata_text, read_batches
from tidemill.storage.files import storage_errors
from tidemill.storage.writers import written_pieces

FORMATS: Final = ("arrow", "parquet")
PIECE: Final = 1 << 18  # bytes of a piece of a file that is sent unchanged
_OF_ALL: Final = ("stream", "window", "start", "span", "revision")


def pieces(file: DatasetFile, to: str, tenant: str | None = None) -> Iterator[bytes]:
    """The rows of a dataset, or those of one tenant, in the format `to`."""
    metadata = file.metadata
    if tenant is None:
        as_it_is = to == "arrow" and not file.shared
        return _as_it_is(file.path) if as_it_is else _written(file.path, to, file.schema, None)
    about = {"kind": "export", "tenant": tenant} | {name: metadata[name] for name in _OF_ALL}
    schema = file.schema.with_metadata({METADATA_KEY: metadata_text(about)})
    return _written(file.path, to, schema, tenant)


def _as_it_is(file: Path) -> Iterator[bytes]:
    with storage_errors("read the dataset", file), file.open("rb", buffering=0) as source:
        while piece := source.read(PIECE):
            yield piece


def _written(file: Path, to: str, schema: pa.Schema, tenant: str | None) -> Iterator[bytes]:
    def own_rows() -> Iterator[pa.RecordBatch]:
        for batch in read_batches(file):
            kept = batch if tenant is None else batch.filter(pc.equal(batch.column("tenant"), tenant))
            if kept.num_rows:
                yield kept.replace_schema_metadata(schema.metadata)

    return written_pieces(own_rows(), schema, to)
