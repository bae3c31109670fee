"""Readers that nobody here wrote see the rows that we see, whatever became of the tables, now and before.

`make interop` does the same with the Delta connector of Spark.
"""

from __future__ import annotations

import pytest
from tests.support.interop_story import differences, tell
from tests.support.stock_readers import READERS, has_files

pytestmark = pytest.mark.long


def test_deltalake_polars_and_duckdb_read_every_table_at_every_version(tmp_path):
    names, kept = set(), {}
    for step, story in tell(tmp_path / "shop"):
        assert not list(differences(story, READERS)), step
        names |= {name for name, _ in story.seen}
        versions = sorted(version for name, version in story.seen if name == "raw")
        kept[step] = [has_files(story.tables()["raw"], version) for version in versions]
    assert names == {"raw", "rollups", "quarantine", "results of ten"}
    raw = sorted((version, len(rows)) for (name, version), (_, rows) in story.seen.items() if name == "raw")
    accepted, packed, retracted, wider, expired = (held for _, held in raw)
    assert accepted == packed > retracted, "packing keeps the rows, a retraction takes some out"
    assert wider == retracted + 1 > expired == 1, "one came with the new column, and expiry left it alone"
    assert kept["expired"] == [True] * 5, "files of all versions are kept, and were read above"
    assert kept["old files gone"] == [False, False, False, True, True], "what expired just now can be read"
    assert kept["vacuumed"] == [False, False, False, False, True], "vacuum lets go of what was replaced"
