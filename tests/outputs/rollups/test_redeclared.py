"""Dimensions, measures and metrics can be removed and declared with another type at any time."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from tidemill import Mill
from tidemill.storage import layout

PROJECT = """
version: 1
streams:
  s:
    schema: {{id: string, at: string, api: string, code: integer, n: {n}}}
    identity: id
    event_time: {{column: at, type: iso8601}}
    metrics: {metrics}
"""
EVENTS = [("a", "x", 1, 5), ("b", "x", 2, 7), ("c", "y", 2, 0)]  # id, api, code, n


def declared(
    root: Path, metrics: str, query: str, n: str = "integer"
) -> tuple[list[dict[str, object]], list[str]]:
    """What the query says after a round with this declaration, and the columns of the table."""
    (root / "tidemill.yaml").write_text(PROJECT.format(metrics=metrics, n=n))
    lines = [
        json.dumps({"id": id_, "at": "2024-01-01T00:00:00Z", "api": api, "code": code_, "n": n_})
        for id_, api, code_, n_ in EVENTS
    ]
    with Mill.open(root) as mill:
        mill.land("s", "\n".join(lines).encode())
        assert mill.tick().faults == []
        answer = mill.ask(query)
        assert answer.completeness.missing == ()
        assert mill.verify().ok
        shown = DeltaTable(str(layout.rollups(mill.project.warehouse, "s"))).to_pyarrow_table()
    return answer.table.to_pylist(), shown.column_names


def test_a_dimension_and_a_measure_are_removed_and_come_back(tmp_path: Path) -> None:
    by_api = "{c: {kind: counter, dimensions: [api], measures: [n]}, h: {kind: histogram, value: n}}"
    first, before = declared(tmp_path, by_api, "SELECT count, sum(n) FROM s.c GROUP BY api")
    assert first == [
        {"api": "x", "count": 2, "sum(n)": Decimal(12)},
        {"api": "y", "count": 1, "sum(n)": Decimal(0)},
    ]
    by_code = "{c: {kind: counter, dimensions: [code]}}"
    second, after = declared(tmp_path, by_code, "SELECT count FROM s.c GROUP BY code")
    assert second == [{"code": 1, "count": 1}, {"code": 2, "count": 2}]
    assert {"api", "n__sum", "histogram__bins"} <= set(before)
    assert sorted(after) == ["bucket", "code", "count", "level", "metric", "tenant"]
    assert declared(tmp_path, by_api, "SELECT count, sum(n) FROM s.c GROUP BY api") == (first, before)


def test_a_measure_is_declared_with_another_type(tmp_path: Path) -> None:
    metrics = "{c: {kind: counter, dimensions: [code], measures: [n]}}"
    declared(tmp_path, metrics, "SELECT count FROM s GROUP BY code")
    rows, shown = declared(
        tmp_path, metrics, "SELECT count, sum(n), min(n) FROM s", n="{type: decimal, scale: 2}"
    )
    assert rows == [{"count": 3, "sum(n)": Decimal("12.00"), "min(n)": Decimal("0.00")}]
    assert {"code", "n__count", "n__sum", "n__min", "n__max"} <= set(shown)
    with Mill.open(tmp_path) as mill:
        table = DeltaTable(str(layout.rollups(mill.project.warehouse, "s"))).to_pyarrow_table()
    assert table.schema.field("n__sum").type == pa.decimal128(38, 2)
    assert set(table.column("n__min").to_pylist()) == {Decimal("0.00"), Decimal("5.00")}
