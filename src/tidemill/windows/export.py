"""Datasets as one file of a format that others ask for: Parquet, Arrow or CSV.

A few record batches are in memory at a time, never a whole dataset; the target appears whole or not at all.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from pyarrow import ipc

from tidemill.lake.sync import storage_errors, sync_folder
from tidemill.model.errors import InputError
from tidemill.windows.dataset import COMPRESSION, METADATA_KEY, read_batches, read_schema, said_of_itself

_GROUP_ROWS: Final = 131_072  # of a Parquet row group
_GROUP_BYTES: Final = 32 << 20
_INSTANT: Final = "%Y-%m-%dT%H:%M:%SZ"  # of microseconds: six digits after the point

Write = Callable[[pa.RecordBatch], None]


@dataclass(frozen=True, slots=True)
class Exported:
    target: Path
    rows: int
    bytes: int


def export_datasets(files: Sequence[Path], target: Path, to: str, *, overwrite: bool = False) -> Exported:
    """Write the rows of datasets, one after another, to `target` as `to`: parquet, arrow or csv."""
    writer = _WRITERS.get(to)
    if writer is None:
        raise InputError(f"datasets can not be exported as {to!r}", hint=f"formats: {', '.join(FORMATS)}")
    if not files:
        raise InputError("there is no dataset to export", hint="`tidemill datasets` lists what there is")
    if target.is_dir():
        raise InputError("the target is a folder", where=str(target), hint="name a file in it")
    if target.exists() and not overwrite:
        raise InputError("the target exists", where=str(target), hint="name another file, or remove this one")
    schema = _schema_of(files)
    rows = 0
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    with storage_errors("export to", target):
        try:
            with writer(temporary, schema) as write:
                for file in files:
                    for batch in read_batches(file):
                        write(batch)
                        rows += batch.num_rows
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            size = temporary.stat().st_size
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    sync_folder(target.absolute().parent)
    return Exported(target, rows, size)


def _schema_of(files: Sequence[Path]) -> pa.Schema:
    """The columns that all of them have; what is said of one file, or of each of several."""
    schemas = [read_schema(file) for file in files]
    for file, schema in zip(files, schemas, strict=True):
        if not schema.equals(schemas[0]):
            ours, theirs = ({f"{f.name} {f.type}" for f in each} for each in (schema, schemas[0]))
            differing = ", ".join(sorted(ours ^ theirs)) or "their order"
            raise InputError(
                f"the columns differ from those of {files[0]}: {differing}",
                where=str(file),
                hint="the schema changed in between: export them apart, or `tidemill rebuild` the older ones",
            )
    if len(files) == 1:
        said_of_itself(files[0], schemas[0])
        return schemas[0]
    said = [said_of_itself(file, schema) for file, schema in zip(files, schemas, strict=True)]
    kept = ("stream", "window", "start", "span", "revision", "hash", "rows")
    about = {"kind": "export", "datasets": [{name: one[name] for name in kept} for one in said]}
    text = json.dumps(about, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return schemas[0].with_metadata({METADATA_KEY: text.encode()})


@contextmanager
def parquet_file(target: Path | RawIOBase, schema: pa.Schema) -> Iterator[Write]:
    held: list[pa.RecordBatch] = []

    with pq.ParquetWriter(target, schema, compression="zstd") as writer:

        def flush() -> None:
            if held:
                writer.write_table(pa.Table.from_batches(held, schema), _GROUP_ROWS)
                held.clear()

        def write(batch: pa.RecordBatch) -> None:
            held.append(batch)
            if sum(b.num_rows for b in held) >= _GROUP_ROWS or sum(b.nbytes for b in held) >= _GROUP_BYTES:
                flush()

        yield write
        flush()


@contextmanager
def arrow_file(target: Path | RawIOBase, schema: pa.Schema) -> Iterator[Write]:
    options = ipc.IpcWriteOptions(compression=COMPRESSION)
    where = str(target) if isinstance(target, Path) else target
    with ipc.new_file(where, schema, options=options) as writer:
        yield writer.write_batch


@contextmanager
def _csv(path: Path, schema: pa.Schema) -> Iterator[Write]:
    """Instants as RFC 3339. Text stands in quotes, so that an empty one is told from none."""
    shown = pa.schema(
        [pa.field(f.name, pa.string() if pa.types.is_timestamp(f.type) else f.type) for f in schema]
    )
    with pa.OSFile(str(path), "wb") as sink, pacsv.CSVWriter(sink, shown) as writer:

        def write(batch: pa.RecordBatch) -> None:
            columns = [
                pc.strftime(column, _INSTANT) if pa.types.is_timestamp(column.type) else column
                for column in batch.columns
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=shown))

        yield write


_WRITERS: Final = {"parquet": parquet_file, "arrow": arrow_file, "csv": _csv}
FORMATS: Final = tuple(_WRITERS)
