"""Exporting datasets: the same rows and types in Parquet and Arrow, readable CSV, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc

from tidemill.config import Stream
from tidemill.model.errors import InputError, StorageError
from tidemill.model.slices import set_hash
from tidemill.model.time import HOUR, parse_instant
from tidemill.model.windows import Build, Member, WindowKey
from tidemill.outputs.datasets.catalog import DatasetFile
from tidemill.outputs.datasets.dataset import Content, dataset_schema, make_folders, write_dataset
from tidemill.outputs.datasets.export import FORMATS, Exported
from tidemill.outputs.datasets.export import export_datasets as export_files

TEN = parse_instant("2024-01-15T10:00:00Z")
SLICE = "a" * 64


def stream(**fields: object) -> Stream:
    declared = {"event_id": "string", "price": {"type": "decimal", "scale": 2}, "note": "string", **fields}
    return Stream.model_validate({"name": "sales", "schema": declared, "identity": "event_id"})


def dataset(warehouse: Path, hour: int, rows: int, declared: Stream | None = None) -> Path:
    """A dataset of `rows` events in batches of two, each third note empty and each third missing."""
    declared = declared or stream()
    build = Build(
        WindowKey("sales", TEN + hour * HOUR, HOUR), "me", 0, 1, 1, None, set_hash([SLICE]),
        [Member(SLICE, 1, SLICE, 0, None)], "arrival",
    )  # fmt: skip
    schema = dataset_schema(declared)
    batches = []
    for start in range(0, rows, 2):
        numbers = range(start, min(rows, start + 2))
        columns = {
            "event_time": pa.array([build.key.start + n for n in numbers], pa.int64()).cast(schema.types[0]),
            "tenant": pa.array(["acme" for _ in numbers]),
            "event_id": pa.array([f"e{n}" for n in numbers]),
            "price": pa.array([Decimal(n).scaleb(-2) for n in numbers], pa.decimal128(18, 2)),
            "note": pa.array([["", None, 'a "b",\n'][n % 3] for n in numbers], pa.string()),
        }
        arrays = [
            columns.get(name, pa.nulls(len(numbers), kind))
            for name, kind in zip(schema.names, schema.types, strict=True)
        ]
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    warehouse.mkdir(exist_ok=True)
    make_folders(warehouse, "sales", [build.key])
    made, _ = write_dataset(warehouse, Content(declared, build, rows), 1, batches)
    return warehouse / made.file


def export_datasets(files: Sequence[Path], target: Path, to: str) -> Exported:
    return export_files([DatasetFile.at(file) for file in files], target, to)


@pytest.mark.parametrize("to", ["parquet", "arrow"])
def test_parquet_and_arrow_hold_the_rows_of_all_datasets_in_order_with_their_types(
    tmp_path: Path, to: str
) -> None:
    files = [dataset(tmp_path / "w", hour, rows) for hour, rows in enumerate((5, 0, 3))]
    done = export_datasets(files, tmp_path / f"out.{to}", to)
    table = pq.read_table(done.target) if to == "parquet" else ipc.open_file(done.target).read_all()
    wanted = pa.concat_tables([ipc.open_file(file).read_all() for file in files])
    assert table.equals(wanted)
    assert (done.rows, done.bytes) == (8, done.target.stat().st_size)
    about = json.loads(table.schema.metadata[b"tidemill"])
    assert [(one["window"][1:21], one["rows"]) for one in about["datasets"]] == [
        ("2024-01-15T10:00:00Z", 5),
        ("2024-01-15T11:00:00Z", 0),
        ("2024-01-15T12:00:00Z", 3),
    ]


def test_one_dataset_keeps_what_it_says_of_itself(tmp_path: Path) -> None:
    file = dataset(tmp_path / "w", 0, 3)
    done = export_datasets([file], tmp_path / "out.parquet", "parquet")
    metadata = pq.read_schema(done.target).metadata
    assert metadata[b"tidemill"] == ipc.open_file(file).schema.metadata[b"tidemill"]


def test_csv_tells_an_empty_text_from_none_and_spells_instants(tmp_path: Path) -> None:
    export_datasets([dataset(tmp_path / "w", 0, 3)], tmp_path / "out.csv", "csv")
    assert (tmp_path / "out.csv").read_text() == (
        '"event_time","tenant","event_id","price","note"\n'
        '"2024-01-15T10:00:00.000000Z","acme","e0",0.00,""\n'
        '"2024-01-15T10:00:00.000001Z","acme","e1",0.01,\n'
        '"2024-01-15T10:00:00.000002Z","acme","e2",0.02,"a ""b"",\n"\n'
    )
    count, last = duckdb.sql(
        f"SELECT count(*), max(event_time) = '2024-01-15T10:00:00.000002Z' FROM '{tmp_path / 'out.csv'}'"
    ).fetchone() or (0, False)
    assert (count, last) == (3, True)


@pytest.mark.parametrize("to", FORMATS)
def test_a_dataset_without_rows_is_exported_with_its_columns(tmp_path: Path, to: str) -> None:
    done = export_datasets([dataset(tmp_path / "w", 0, 0)], tmp_path / "out", to)
    assert done.rows == 0
    if to == "csv":
        assert done.target.read_text() == '"event_time","tenant","event_id","price","note"\n'
    else:
        table = pq.read_table(done.target) if to == "parquet" else ipc.open_file(done.target).read_all()
        assert (table.num_rows, table.schema.names) == (0, dataset_schema(stream()).names)


def test_datasets_whose_columns_differ_are_not_put_together(tmp_path: Path) -> None:
    files = [dataset(tmp_path / "w", 0, 1), dataset(tmp_path / "w", 1, 1, stream(extra="integer"))]
    with pytest.raises(InputError, match="extra int64") as error:
        export_datasets(files, tmp_path / "out.csv", "csv")
    assert "rebuild" in error.value.hint
    assert not (tmp_path / "out.csv").exists()


def test_a_target_that_exists_stays(tmp_path: Path) -> None:
    file, target = dataset(tmp_path / "w", 0, 1), tmp_path / "out.csv"
    target.write_text("mine")
    with pytest.raises(InputError, match="the target exists"):
        export_datasets([file], target, "csv")
    assert target.read_text() == "mine"
    assert sorted(child.name for child in tmp_path.iterdir()) == ["out.csv", "w"]


def test_mistakes_name_the_choices(tmp_path: Path) -> None:
    file = dataset(tmp_path / "w", 0, 1)
    with pytest.raises(InputError) as unknown:
        export_datasets([file], tmp_path / "out", "excel")
    assert unknown.value.hint == "formats: parquet, arrow, csv"
    with pytest.raises(InputError, match="no dataset"):
        export_datasets([], tmp_path / "out", "csv")
    with pytest.raises(InputError, match="is a folder"):
        export_datasets([file], tmp_path, "csv")
    (tmp_path / "other.arrow").write_bytes(b"something else")
    with pytest.raises(StorageError, match="not a dataset"):
        export_datasets([tmp_path / "other.arrow"], tmp_path / "out", "csv")
    with pytest.raises(InputError, match="no such folder"):
        export_datasets([file], tmp_path / "nowhere" / "out", "csv")
    assert sorted(child.name for child in tmp_path.iterdir()) == ["other.arrow", "w"]


def test_a_damaged_dataset_leaves_no_half_of_an_export(tmp_path: Path) -> None:
    file = dataset(tmp_path / "w", 0, 400)
    content = bytearray(file.read_bytes())
    middle = len(content) // 3
    content[middle : middle + 4000] = b"\xff" * 4000
    file.write_bytes(content)
    with pytest.raises(StorageError):
        export_datasets([file], tmp_path / "out.csv", "csv")
    assert sorted(child.name for child in tmp_path.iterdir()) == ["w"]
