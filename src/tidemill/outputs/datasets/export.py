"""Exports datasets as one Parquet, Arrow or CSV file, and streams one as the pieces of such a file.

A few record batches are in memory at a time, never a whole dataset. A target appears completely or not at
all; a stream for one tenant reveals nothing of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from tidemill.model.errors import InputError
from tidemill.model.windows import Dataset
from tidemill.outputs.datasets.catalog import DatasetFile
from tidemill.outputs.datasets.dataset import METADATA_KEY, metadata_text, read_batches
from tidemill.storage import layout
from tidemill.storage.files import storage_errors
from tidemill.storage.writers import WRITERS, whole_file, written_pieces

# An import inside a function keeps start-up short: only a file for one tenant is filtered.

FORMATS: Final = tuple(WRITERS)
PIECE: Final = 1 << 18  # bytes of a piece of a file that is sent unchanged
_OF_ALL: Final = ("stream", "window", "start", "span", "revision")


@dataclass(frozen=True, slots=True)
class Exported:
    target: Path
    rows: int
    bytes: int


def export_datasets(files: Sequence[DatasetFile], target: Path, to: str) -> Exported:
    """Write the rows of datasets, one after another, to `target` as `to`: parquet, arrow or csv."""
    writer = WRITERS.get(to)
    if writer is None:
        raise InputError(f"datasets cannot be exported as {to!r}", hint=f"formats: {', '.join(FORMATS)}")
    if not files:
        raise InputError("there is no dataset to export", hint="`tidemill datasets` lists what there is")
    if target.is_dir():
        raise InputError("the target is a folder", where=str(target), hint="name a file in it")
    if target.exists():
        raise InputError("the target exists", where=str(target), hint="name another file, or remove this one")
    schema = _schema_of(files)
    rows = 0
    with whole_file(target) as path:
        with writer(path, schema) as write:
            for file in files:
                for batch in read_batches(file.path):
                    write(batch)
                    rows += batch.num_rows
        size = path.stat().st_size
    return Exported(target, rows, size)


def export_name(dataset: Dataset) -> str:
    """The file name if only a folder was named: stream, window, revision."""
    return f"{dataset.key.stream}_{Path(layout.dataset_folder(dataset.key)).name}_r{dataset.revision}"


def _schema_of(files: Sequence[DatasetFile]) -> pa.Schema:
    """The columns that all datasets have; with the metadata of the file, or of each of several."""
    first = files[0]
    for file in files:
        if not file.schema.equals(first.schema):
            columns, expected = ({f"{f.name} {f.type}" for f in each.schema} for each in (file, first))
            differing = ", ".join(sorted(columns ^ expected)) or "their order"
            raise InputError(
                f"the columns differ from those of {first.path}: {differing}",
                where=str(file.path),
                hint="the schema changed in between: export them apart, or `tidemill rebuild` the older ones",
            )
    metadata = [file.metadata for file in files]
    if len(files) == 1:
        return first.schema
    kept = ("stream", "window", "start", "span", "revision", "hash", "rows")
    about = {"kind": "export", "datasets": [{name: one[name] for name in kept} for one in metadata]}
    return first.schema.with_metadata({METADATA_KEY: metadata_text(about)})


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
        import pyarrow.compute as pc

        for batch in read_batches(file):
            kept = batch if tenant is None else batch.filter(pc.equal(batch.column("tenant"), tenant))
            if kept.num_rows:
                yield kept.replace_schema_metadata(schema.metadata)

    return written_pieces(own_rows(), schema, to)
