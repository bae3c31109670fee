"""Delta tables of a warehouse as readers see them that nobody here wrote, to hold them against our own.

Each reader takes the folder of a table and a version (None: the newest) and gives an Arrow table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from tidemill.storage import layout
from tidemill.storage.tables.parts import read_part
from tidemill.storage.tables.table import Table

StockReader = Callable[[Path, int | None], pa.Table]
Rows = list[tuple[str, ...]]


def by_deltalake(root: Path, version: int | None) -> pa.Table:
    return pa.table(DeltaTable(root, version=version).to_pyarrow_table())


def by_polars(root: Path, version: int | None) -> pa.Table:
    return pl.scan_delta(str(root), version=version).collect().to_arrow()


def by_duckdb(root: Path, version: int | None) -> pa.Table:
    """Its extension for Delta has to be downloaded: here deltalake reads the log, and DuckDB the files."""
    table = DeltaTable(root, version=version)
    columns = ", ".join(f'"{field.name}"' for field in table.schema().fields)
    with duckdb.connect() as engine:
        engine.execute("SET TimeZone = 'UTC'")
        options = "hive_partitioning = true, hive_types_autocast = false, union_by_name = true"
        empty = pa.schema(table.schema().to_arrow()).empty_table()
        engine.register("declared", empty)
        files = sorted(table.file_uris())
        if not files:
            return empty
        scan = f"SELECT * FROM read_parquet($files, {options})"
        text = f"SELECT {columns} FROM (FROM declared UNION ALL BY NAME {scan})"
        return engine.execute(text, {"files": files}).to_arrow_table()


READERS: Mapping[str, StockReader] = {"deltalake": by_deltalake, "polars": by_polars, "duckdb": by_duckdb}


def by_us(root: Path) -> pa.Table:
    """The newest version, by our own log and parts."""
    table = Table.existing(root)
    assert table is not None, root
    schema, snapshot = table.schema, table.snapshot()
    found = [schema.empty_table()]
    for part in snapshot.parts:
        read = read_part(f"{root}/{part.path}")
        arrays = [
            pa.array([part.partition[field.name]] * read.num_rows, field.type)
            if field.name in part.partition
            else read.column(field.name).cast(field.type)
            if field.name in read.column_names
            else pa.nulls(read.num_rows, field.type)
            for field in schema
        ]
        found.append(pa.table(arrays, schema=schema))
    return pa.concat_tables(found)


def rows_of(found: pa.Table, schema: pa.Schema) -> Rows:
    """Rows in an order of their own, each value as text: readers have other types for the same."""
    table = found.select(schema.names).cast(pa.schema([(field.name, field.type) for field in schema]))
    return sorted(tuple(map(repr, row.values())) for row in table.to_pylist())


def version_of(root: Path) -> int:
    return DeltaTable(root).version()


def has_files(root: Path, version: int) -> bool:
    """Whether all files of a version are kept."""
    return all(
        Path(uri.removeprefix("file://")).exists() for uri in DeltaTable(root, version=version).file_uris()
    )


def tables_of(warehouse: Path, stream: str, windows: tuple[str, ...]) -> dict[str, Path]:
    """By name, those that there are."""
    found = {
        "raw": layout.raw(warehouse, stream),
        "rollups": layout.rollups(warehouse, stream),
        "quarantine": layout.quarantine(warehouse, stream),
        **{f"results of {window}": layout.results(warehouse, stream, window) for window in windows},
    }
    return {name: root for name, root in found.items() if layout.table_log(root).is_dir()}
