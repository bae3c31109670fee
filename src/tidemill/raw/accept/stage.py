"""The staging kernel: a piece of a slice in, its valid records as columns and its rejects out.

Runs in a Spark task and writes only to the batch's staging folder. Nothing depends on other records, so it
can run anywhere, any number of times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.config.stream import Csv, Json
from tidemill.formats.arrays import RecordChunk
from tidemill.formats.arrow import one
from tidemill.formats.columns import joined_texts
from tidemill.formats.decode import decode
from tidemill.formats.key_runs import hash_keys, order_of_keys
from tidemill.formats.read import read_chunk
from tidemill.formats.read_plan import ReadPlan
from tidemill.formats.stored_slice import content_size
from tidemill.model.errors import InputError
from tidemill.model.slices import Codec, Format
from tidemill.raw.accept.staged_fields import StagedFields
from tidemill.raw.failed_slices import is_of_storage, wrong_size
from tidemill.storage.bucket_path import local_copy, warehouse_path
from tidemill.storage.files import replacing
from tidemill.storage.ipc import write_ipc


@dataclass(frozen=True, slots=True)
class SlicePiece:
    """What one task reads: a slice, or a byte range of one."""

    order: int  # position in the batch: pieces of earlier slices come first
    slice: str
    path: str
    format: Format
    codec: Codec
    arrival: int
    size: int
    landed: int  # bytes of the whole slice when it landed
    byte_range: tuple[int, int] | None = None
    csv: Csv | None = None
    json: Json | None = None


@dataclass(frozen=True, slots=True)
class StageUnit:
    plan: ReadPlan
    pieces: Sequence[SlicePiece]
    folder: str  # the batch's staging folder
    chunk_bytes: int
    fields: StagedFields


@dataclass(frozen=True, slots=True)
class StagedChunk:
    """A chunk of parsed records; its files are in the staging folder."""

    order: tuple[int, int]  # of the piece, and within it
    slice: str
    arrival: int
    records: int
    valid: int
    rejects: dict[str, int]
    max_time: int | None
    bytes: int
    data: str  # the file whose bytes `start` and `end` refer to
    columns: str
    keys: str
    refused: str | None
    error: str | None = None  # the slice cannot be read from here on
    by_storage: bool = False  # … as the system reported


def stage(unit: StageUnit) -> Iterator[StagedChunk]:
    """Parse every piece of the unit. A piece that cannot be read gives its error; the others continue."""
    folder = warehouse_path(unit.folder)
    for piece in unit.pieces:
        part = 0
        try:
            file = _file(piece)
            if not piece.landed:  # declared empty, whatever its format
                continue
            for chunk in decode(
                file,
                piece.format,
                piece.codec,
                piece.csv,
                piece.json,
                chunk_bytes=unit.chunk_bytes,
                byte_range=piece.byte_range,
                types={rule.name: rule.type for rule in unit.plan.rules},
            ):
                yield _stage_chunk(unit, piece, part, chunk, folder)
                part += 1
        except InputError as error:
            yield _unreadable(piece, part, error.message, by_storage=is_of_storage(error))


def _file(piece: SlicePiece) -> Path:
    """The file of a slice. Raises if it was cut: missing lines leave no trace in the others. `verify` finds
    changed bytes."""
    try:
        file = local_copy(piece.path)
        found = content_size(file)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=piece.path) from error
    if found != piece.landed:
        raise InputError(wrong_size(found, piece.landed), where=piece.path)
    return file


def _unreadable(piece: SlicePiece, part: int, error: str, *, by_storage: bool) -> StagedChunk:
    return StagedChunk(
        order=(piece.order, part),
        slice=piece.slice,
        arrival=piece.arrival,
        records=0,
        valid=0,
        rejects={},
        max_time=None,
        bytes=0,
        data="",
        columns="",
        keys="",
        refused=None,
        error=error,
        by_storage=by_storage,
    )


def _stage_chunk(
    unit: StageUnit, piece: SlicePiece, part: int, chunk: RecordChunk, folder: Path
) -> StagedChunk:
    plan = unit.plan
    name = f"{piece.order:06d}-{part:04d}"
    data_path = piece.path
    if not chunk.in_place:
        data_path = str(folder / f"{name}.data")
        with replacing(warehouse_path(data_path)) as temporary, temporary.open("wb") as out:
            out.write(chunk.data.data)
    read = read_chunk(plan, chunk, piece.arrival)
    columns = folder / f"{name}.columns"
    fields = unit.fields.staged(chunk, read)
    write_ipc(columns, pa.table({**_without_content(read.columns), **fields}))
    keys = folder / f"{name}.keys"
    if plan.gated:
        write_ipc(keys, _sorted_keys(read.columns))
    refused = None
    if read.refused.num_rows:
        refused = str(folder / f"{name}.refused")
        write_ipc(warehouse_path(refused), read.refused)
    times = read.columns.column("event_time")
    return StagedChunk(
        order=(piece.order, part),
        slice=piece.slice,
        arrival=piece.arrival,
        records=int(chunk.starts.size),
        valid=read.columns.num_rows,
        rejects=dict(Counter(read.refused.column("reason").to_pylist())),
        max_time=pc.max(times).as_py() if len(times) else None,
        bytes=int((chunk.ends - chunk.starts).sum()),
        data=data_path,
        columns=str(columns),
        keys=str(keys),
        refused=refused,
    )


def _without_content(columns: pa.Table) -> dict[str, pa.ChunkedArray]:
    """The columns that are staged: the hashes of the contents are with the keys."""
    return {name: columns.column(name) for name in columns.column_names if name != "content"}


def _sorted_keys(columns: pa.Table) -> pa.Table:
    """The 128-bit keys of the chunk in ascending order, ties in order of arrival, with all that the gate
    needs to know of their records."""
    tenant, ids = one(columns.column("tenant")), one(columns.column("event_id"))
    high, low = hash_keys(tenant, ids)
    order = order_of_keys(high)
    return pa.table(
        {
            "high": high[order],
            "low": low[order],
            "content": one(columns.column("content")).to_numpy()[order],
            "at": order.astype(np.int32),  # row of the columns file
            "record": one(columns.column("row")).to_numpy()[order],
            "text": joined_texts(tenant, ids, order),
        }
    )
