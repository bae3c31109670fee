"""Parts with other rows and right checksums: what only a recomputation can find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.storage.tables.parts import read_footer, write_part
from tidemill.storage.tables.snapshot import Part
from tidemill.storage.tables.table import Table

Change = Callable[[pa.Table, dict[str, object]], pa.Table]  # of rows and footer


def replace_part(
    table: Table, part: Part, change: Change, *, name: str = "changed", stats: Sequence[str] = ()
) -> None:
    """Commit another part in its place, through the same door as everybody; `stats`: the columns whose
    bounds the log says."""
    path = table.root / part.path
    footer = read_footer(path)
    rows = change(pq.read_table(path, partitioning=None), footer)
    staged = write_part(
        table.staging("test"),
        f"{name}.parquet",
        rows,
        partition=part.partition,
        footer=footer,
        stats_columns=stats,
    )
    table.commit(table.publish([staged]), [part], info={"test": "replaced"})
    table.clean_staging()


def first_part(table: Table, **partition: str) -> Part:
    parts = [p for p in table.snapshot().parts if p.rows and partition.items() <= dict(p.partition).items()]
    return min(parts, key=lambda part: part.path)


def forge(root: Path, column: str, value: Callable[[object], object]) -> str:
    """Another value in a column of the first part of a table, in all its rows; the name of the part."""
    table = Table.existing(root)
    assert table is not None, root
    part = first_part(table)
    forged = Path(part.path).name.partition(".")[0]

    def change(rows: pa.Table, footer: dict[str, object]) -> pa.Table:
        place = rows.schema.get_field_index(column)
        values = [value(old) for old in rows.column(column).to_pylist()]
        return rows.set_column(place, column, pa.array(values, rows.schema.field(place).type))

    replace_part(table, part, change, name=forged)
    return forged
