"""Exports datasets as one Parquet, Arrow or CSV file.

A few record batches are in memory at a time, never a whole dataset; the target appears completely or not at
all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from tidemill.model.errors import InputError
from tidemill.model.windows import Dataset
from tidemill.outputs.datasets.catalog import DatasetFile
from tidemill.outputs.datasets.dataset import METADATA_KEY, metadata_text, read_batches
from tidemill.storage import layout
from tidemill.storage.writers import WRITERS, whole_file

FORMATS: Final = tuple(WRITERS)


@dataclass(frozen=True, slots=True)
class Exported:
    target: Path
    rows: int
    bytes: int


def export_datasets(
    files: Sequence[DatasetFile], target: Path, to: str, *, overwrite: bool = False
) -> Exported:
    """Write the rows of datasets, one after another, to `target` as `to`: parquet, arrow or csv."""
    writer = WRITERS.get(to)
    if writer is None:
        raise InputError(f"datasets cannot be exported as {to!r}", hint=f"formats: {', '.join(FORMATS)}")
    if not files:
        raise InputError("there is no dataset to export", hint="`tidemill datasets` lists what there is")
    if target.is_dir():
        raise InputError("the target is a folder", where=str(target), hint="name a file in it")
    if target.exists() and not overwrite:
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
