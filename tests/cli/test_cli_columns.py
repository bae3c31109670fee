"""`tidemill rebuild STREAM --columns` after a field was declared, and what `status` says meanwhile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.cli.conftest import Cli
from tests.raw.test_part_columns import config, land, opened, record

pytestmark = pytest.mark.long

ALL_STALE = {"parts": 1, "rows": 5}


def test_columns_are_made_again_when_a_field_is_declared(cli: Cli, tmp_path: Path) -> None:
    def said(*words: str) -> dict[str, object]:
        done = cli(*words, "--project", tmp_path, "--output", "json")
        assert done.code == 0, done.err
        found: dict[str, object] = json.loads(done.out)
        return found

    (tmp_path / "tidemill.yaml").write_text(config({}))
    with opened(tmp_path) as mill:
        land(mill, [record(n, {"n": str(n)}) for n in range(5)])
    (tmp_path / "tidemill.yaml").write_text(config({"n": "integer"}))
    assert "5 rows in 1 part not made again yet" in cli("status", "--project", tmp_path).out
    assert said("rebuild", "feed", "--columns", "--explain") == {
        "stream": "feed", "parts": 0, "rows": 0, "left": ALL_STALE,
    }  # fmt: skip
    assert said("rebuild", "feed", "--columns") == {
        "stream": "feed", **ALL_STALE, "left": {"parts": 0, "rows": 0},
    }  # fmt: skip
    assert "not made again yet" not in cli("status", "--project", tmp_path).out
    table = DeltaTable(tmp_path / "warehouse" / "raw" / "feed").to_pyarrow_table()
    assert sorted(table.column("n").to_pylist()) == [0, 1, 2, 3, 4]
    refused = cli("rebuild", "feed", "--columns", "--rollups", "--project", tmp_path)
    assert (refused.code, "--columns takes no other option" in refused.err) == (2, True)
