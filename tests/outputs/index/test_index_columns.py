"""Values of declared fields come from columns of raw: the entries are those that payloads would give."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemill.formats.declared_columns import Column, RawColumn, RawColumns
from tidemill.formats.payload_columns import columns_in, typed
from tidemill.outputs.index.extract import Extraction, columns_at

CASES = {
    "string": ['"b"', '"a"', '""', '"\\u00e9\\n"', "null", '"b"'],
    "integer": ["3", "-7", "7.0", "12345678901234567", "1000000000000000000", "0", "-0", "null", "1e2"],
    "decimal": ["1.5", "2", "-0.125", "0", "123456789012345.125", "99999999999999.999", "0.001", "null"],
    "boolean": ["true", "false", "null", "true"],
}


@pytest.mark.parametrize("kind", CASES)
def test_entries_of_a_column_are_those_of_its_payloads(kind: str) -> None:
    column = Column("x", kind, 3 if kind == "decimal" else 0)
    payload = pa.array([f'{{"x":{text}}}' for text in CASES[kind]] + ["{}"])
    read = typed(columns_in([column]), payload)
    assert not read.misfits
    assert not read.rounded
    by_payload, by_column = Extraction(["x"]), Extraction(["x"], frozenset("x"))
    by_payload.add(payload, 100)
    by_column.add_column("x", column, read.arrays[0], 100)
    wanted, found = list(by_payload.pieces()), list(by_column.pieces())
    assert [each[:2] for each in found] == [each[:2] for each in wanted]
    assert [each[2].to_pylist() for each in found] == [each[2].to_pylist() for each in wanted]


def test_columns_stand_for_paths_only_where_they_say_all(tmp_path: Path) -> None:
    """Not what did not fit or was rounded, and inside of objects not where a column has a null."""
    names = ["s", "misfit", "rounded", "a.full", "a.some", "f"]
    types = {"f": "float", "rounded": "decimal"}
    columns = tuple(RawColumn(Column(n, types.get(n, "string")), tuple(n.split("."))) for n in names)
    declared = RawColumns(columns, frozenset(["misfit"]), frozenset(["rounded"]))
    inner = pa.array([{"full": "x", "some": None}, {"full": "y", "some": "z"}])
    pq.write_table(pa.table({"s": ["x", None], "a": inner}), tmp_path / "part.parquet")
    with pq.ParquetFile(tmp_path / "part.parquet") as file:
        assert set(columns_at([*names, "other"], declared, file)) == {"s", "a.full"}
        assert columns_at(names, None, file) == {}
