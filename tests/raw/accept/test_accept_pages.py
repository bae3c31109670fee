"""Quarantine a page at a time: in order, each row once, however it lies in parts."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tidemill.model.errors import StorageError
from tidemill.model.time import SECOND
from tidemill.raw.quarantine import read_quarantine
from tidemill.raw.tables import QUARANTINE, QUARANTINE_STATS, quarantine_table
from tidemill.storage.tables.parts import write_part
from tidemill.storage.tables.readers import TableReaders
from tidemill.storage.tables.snapshot import Snapshot

S = SECOND
Row = tuple[int, str, int]  # arrival, slice, line


def keep(warehouse: Path, *parts: list[Row]) -> None:
    """A commit with these parts."""
    table = quarantine_table(warehouse, "visits")
    first = len(table.snapshot().parts)
    staged = []
    for number, rows in enumerate(parts, first):
        named = [
            {"arrival": arrival, "slice": slice_id, "line": line, "reason": "malformed", "payload": b"?"}
            for arrival, slice_id, line in rows
        ]
        content = pa.Table.from_pylist(named, schema=QUARANTINE)
        staged.append(
            write_part(
                table.staging("b"), f"p{number}.parquet", content,
                partition={}, footer={}, stats_columns=QUARANTINE_STATS,
            )
        )  # fmt: skip
    table.commit(table.publish(staged), info={})


def places(rows: pa.Table) -> list[Row]:
    arrivals = rows.column("arrival").cast(pa.int64()).to_pylist()
    return list(zip(arrivals, rows.column("slice").to_pylist(), rows.column("line").to_pylist(), strict=True))


ROWS = [(at, name, line) for at in (S, 2 * S, 3 * S) for name in ("a", "b") for line in (1, 2, 3)]
ORDER = sorted(ROWS, key=lambda row: (-row[0], row[1], row[2]))


@pytest.fixture
def looks(tmp_path: Path) -> TableReaders:
    keep(tmp_path, ROWS[::3], ROWS[1::3], ROWS[2::3])  # every part has some of everything
    return TableReaders(tmp_path, lambda _stream: {})


@pytest.mark.parametrize("limit", [1, 4, 5, 18, 100])
def test_pages_hold_every_row_once_and_in_order(looks: TableReaders, limit: int) -> None:
    seen: list[Row] = []
    while True:
        after = seen[-1] if seen else None
        page = places(read_quarantine(looks.snapshot("quarantine", "visits"), limit=limit, after=after))
        if not page:
            break
        assert len(page) <= limit
        seen += page
    assert seen == ORDER


def test_rows_that_come_meanwhile_do_not_move_a_page(tmp_path: Path, looks: TableReaders) -> None:
    first = places(read_quarantine(looks.snapshot("quarantine", "visits"), limit=6))
    keep(tmp_path, [(4 * S, "c", 1), (3 * S, "0", 1)])
    second = places(read_quarantine(looks.snapshot("quarantine", "visits"), limit=6, after=first[-1]))
    assert first + second == ORDER[:12]


def test_older_parts_are_not_read_once_a_page_is_full(tmp_path: Path) -> None:
    keep(tmp_path, [(3 * S, "c", 1), (3 * S, "c", 2)], [(2 * S, "b", 1)], [(S, "a", 1)])
    snapshot = TableReaders(tmp_path, lambda _stream: {}).snapshot("quarantine", "visits")
    assert snapshot is not None
    for part in snapshot.parts:
        if part.maxs["arrival"] != 3 * S:
            (snapshot.root / part.path).unlink()
    assert places(read_quarantine(snapshot, limit=2)) == [(3 * S, "c", 1), (3 * S, "c", 2)]
    with pytest.raises(StorageError):
        read_quarantine(snapshot, limit=3)


def test_looks_see_what_was_committed_and_nothing_before_it_is_there(tmp_path: Path) -> None:
    looks = TableReaders(tmp_path, lambda _stream: {})
    assert looks.snapshot("quarantine", "visits") is None
    keep(tmp_path, [(1, "a", 1)])
    first = looks.snapshot("quarantine", "visits")
    keep(tmp_path, [(2, "a", 2)])
    second = looks.snapshot("quarantine", "visits")
    assert isinstance(first, Snapshot)
    assert isinstance(second, Snapshot)
    assert (first.rows, second.rows) == (1, 2)
