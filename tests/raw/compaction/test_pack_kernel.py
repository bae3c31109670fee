"""The packing kernel on parts by hand: which rows it takes, and in which order it puts them down."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.model.time import DAY, parse_instant
from tidemill.raw.compaction.pack_kernel import RewriteUnit, rewrite
from tidemill.raw.footers import PackedFooter
from tidemill.raw.tables import INSTANT, RAW_STATS
from tidemill.storage.tables.parts import write_part

MIDNIGHT = parse_instant("2024-01-15T00:00:00Z")
Row = tuple[str, int, str, int]  # tenant, microseconds after midnight, slice, line


def part(folder: Path, name: str, rows: list[Row]) -> str:
    tenant, time, slices, line = zip(*rows, strict=True)
    times = pa.array([MIDNIGHT + at for at in time]).cast(INSTANT)
    table = pa.table(
        {
            "tenant": pa.array(tenant).dictionary_encode(),
            "event_time": times,
            "event_id": [f"{s}/{n}" for s, n in zip(slices, line, strict=True)],
            "event_type": pa.nulls(len(rows), pa.string()),
            "arrival": times,
            "watermark": pa.nulls(len(rows), INSTANT),
            "slice": pa.array(slices).dictionary_encode(),
            "line": pa.array(line, pa.int64()),
            "payload": ["{}"] * len(rows),
        }
    )
    footer = {"kind": "raw"}
    day = {"day": "2024-01-15"}
    done = write_part(folder, name, table, partition=day, footer=footer, stats_columns=RAW_STATS)
    return done.path


def packed(folder: Path, inputs: list[str], seqs: dict[str, int]) -> pa.Table:
    span = (MIDNIGHT, MIDNIGHT + DAY)
    unit = RewriteUnit(
        inputs, seqs, span, {}, str(folder), "out.parquet", PackedFooter.of("s", {}, 0, packed=True)
    )
    (done,) = rewrite(unit)
    assert done.part is not None
    return pq.read_table(done.part.path, partitioning=None, read_dictionary=["slice"])


def test_rows_go_by_tenant_time_place_in_the_ledger_and_line(tmp_path: Path) -> None:
    one = part(tmp_path, "one.parquet", [("a", 5, "late", 1), ("a", 5, "late", 2), ("é", 1, "late", 3)])
    two = part(tmp_path, "two.parquet", [("a", 5, "early", 2), ("b", 0, "early", 1), ("z", 9, "early", 3)])
    found = packed(tmp_path, [one, two], {"late": 7, "early": 3})
    assert found.column("event_id").to_pylist() == [
        "early/2",
        "late/1",
        "late/2",
        "early/1",
        "early/3",
        "late/3",
    ]


def test_rows_of_other_slices_stay_behind_and_their_names_too(tmp_path: Path) -> None:
    """Ties among them: rows of the same tenant and instant."""
    rows = [("a", 5, "mine", 1), ("a", 5, "other", 1), ("a", 5, "mine", 2), ("b", 6, "other", 2)]
    found = packed(tmp_path, [part(tmp_path, "one.parquet", rows)], {"mine": 1})
    assert found.column("event_id").to_pylist() == ["mine/1", "mine/2"]
    assert found.column("slice").combine_chunks().dictionary.to_pylist() == ["mine"]
