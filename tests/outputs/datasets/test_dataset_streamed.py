"""Datasets as the pieces of a file: whole together; for one tenant without a trace of others."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc

from tidemill.config import Stream
from tidemill.model.errors import StorageError
from tidemill.model.slices import set_hash
from tidemill.model.time import HOUR, parse_instant
from tidemill.model.windows import Build, Member, WindowKey
from tidemill.outputs.datasets.catalog import DatasetFile
from tidemill.outputs.datasets.dataset import (
    METADATA_KEY,
    Content,
    dataset_schema,
    make_folders,
    write_dataset,
)
from tidemill.outputs.datasets.export import PIECE, pieces

TEN = parse_instant("2024-01-15T10:00:00Z")
SLICE = "a" * 64
SALES = Stream.model_validate(
    {"name": "sales", "schema": {"event_id": "string", "note": "string"}, "identity": "event_id"}
)
TENANTS = ("acme", "globex", "acme")


def dataset(warehouse: Path, batches: int, rows: int = 3, note: int = 1) -> Path:
    """Batches of so many rows; of three, one is globex'."""
    key = WindowKey("sales", TEN, HOUR)
    members = [Member(SLICE, 1, SLICE, 0, None)]
    build = Build(key, "me", 0, 1, 1, None, set_hash([SLICE]), members, "arrival")
    schema = dataset_schema(SALES)

    def made() -> Iterator[pa.RecordBatch]:
        for batch in range(batches):
            numbers = range(batch * rows, (batch + 1) * rows)
            owners = [TENANTS[n % 3] for n in numbers]
            columns = [
                pa.array([TEN + n for n in numbers], pa.int64()).cast(schema.types[0]),
                pa.array(owners),
                pa.array([f"{owner}-{n}" for owner, n in zip(owners, numbers, strict=True)]),
                pa.array([f"{owner} {n}" * note for owner, n in zip(owners, numbers, strict=True)]),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    warehouse.mkdir(exist_ok=True)
    make_folders(warehouse, "sales", [key])
    found, _ = write_dataset(warehouse, Content(SALES, build, batches * rows), 1, made())
    return warehouse / found.file


def read(content: bytes, to: str) -> pa.Table:
    if to == "parquet":
        return pq.read_table(io.BytesIO(content))
    return ipc.open_file(pa.BufferReader(content)).read_all()


@pytest.mark.parametrize("to", ["arrow", "parquet"])
@pytest.mark.parametrize("batches", [0, 1, 7])
def test_the_pieces_are_the_dataset(tmp_path: Path, to: str, batches: int) -> None:
    file = dataset(tmp_path / "w", batches)
    content = b"".join(pieces(DatasetFile.at(file), to))
    assert read(content, to).equals(ipc.open_file(file).read_all())
    if to == "arrow":
        assert content == file.read_bytes()


@pytest.mark.parametrize("to", ["arrow", "parquet"])
def test_a_tenant_gets_its_rows_and_nothing_that_tells_of_others(tmp_path: Path, to: str) -> None:
    file = dataset(tmp_path / "w", 5)
    table = read(b"".join(pieces(DatasetFile.at(file), to, "globex")), to)
    assert table.column("event_id").to_pylist() == [f"globex-{n}" for n in range(1, 15, 3)]
    assert table.column("tenant").unique().to_pylist() == ["globex"]
    said = json.loads(table.schema.metadata[METADATA_KEY])
    assert said == {
        "kind": "export", "tenant": "globex", "stream": "sales",
        "window": "[2024-01-15T10:00:00Z, 2024-01-15T11:00:00Z)", "start": TEN, "span": HOUR, "revision": 1,
    }  # fmt: skip
    nobody = read(b"".join(pieces(DatasetFile.at(file), to, "initech")), to)
    assert nobody.num_rows == 0
    assert nobody.schema.names == table.schema.names


@pytest.mark.parametrize("to", ["arrow", "parquet"])
def test_a_large_dataset_is_never_in_memory_as_a_whole(tmp_path: Path, to: str) -> None:
    file = dataset(tmp_path / "w", 60, rows=3000, note=20)
    sizes = [len(piece) for piece in pieces(DatasetFile.at(file), to, None if to == "parquet" else "acme")]
    assert len(sizes) > 1
    whole = [len(piece) for piece in pieces(DatasetFile.at(file), "arrow")]
    assert sum(whole) == file.stat().st_size
    assert max(whole) <= PIECE
    before = pa.total_allocated_bytes()
    first = pieces(DatasetFile.at(file), "arrow", "acme")
    next(first)
    assert pa.total_allocated_bytes() - before < 4 << 20


def test_what_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        pieces(DatasetFile.at(tmp_path / "nothing.arrow"), "arrow")
