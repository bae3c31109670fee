"""The case about the size of raw: with payloads and without, beside the same rows that have payloads alone.

Gives results and prints nothing; no size counts before all rows were found.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from bench import work
from bench.ours import Warehouse
from bench.running import OUT, Bench, Result, within
from tidemill.raw.tables import RAW, RAW_STATS, ROW_GROUP
from tidemill.storage.tables.parts import read_part, write_part
from tidemill.storage.tables.snapshot import Snapshot
from tidemill.storage.tables.table import Table

KEPT, LEFT_OUT = 1.3, 0.8  # times the size without declared columns, at most
MB = 1e6


def raw_size(bench: Bench) -> list[Result]:
    """Bytes of raw of the whole job."""
    kept, rows = _written(bench, "raw-kept", "")
    left_out, same = _written(bench, "raw-left-out", "    keep_payload: false\n")
    assert sum(part.rows for part in kept.parts) == sum(part.rows for part in left_out.parts) == rows == same
    plain = _without_columns(kept, OUT / "raw-plain") / MB
    sizes = [sum(part.size for part in each.parts) / MB for each in (kept, left_out)]
    note = f"{rows:,} rows with 11 declared fields, beside payloads without columns"
    return [
        within("raw_size", sizes[0], plain, KEPT, "MB", note),
        within("raw_size_without_payload", sizes[1], plain, LEFT_OUT, "MB", "keep_payload: false"),
    ]


def _written(bench: Bench, name: str, settings: str) -> tuple[Snapshot, int]:
    """Raw after the whole job, and how many rows were accepted."""
    assert bench.ours is not None
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    whole = work.batch(bench.plan.events)
    store = Warehouse(folder, bench.ours.session(), settings)
    store.load(whole.slices)
    store.close()
    table = Table.existing(folder / "warehouse" / "raw" / "requests")
    assert table is not None
    return table.snapshot(), sum(each.get("accepted", 0) for each in whole.truth)


def _without_columns(raw: Snapshot, folder: Path) -> int:
    """Bytes of the same parts without declared columns."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    coded = ("tenant", "event_type", "slice")
    total = 0
    for number, path in enumerate(raw.paths([part for part in raw.parts if part.rows])):
        rows = read_part(path, RAW.names, dictionary=coded)
        total += write_part(
            folder, f"{number}.parquet", rows, partition={}, footer={}, stats_columns=RAW_STATS,
            row_group_rows=ROW_GROUP,
        ).size  # fmt: skip
    return total
