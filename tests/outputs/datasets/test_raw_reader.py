"""Row groups that builders of one process share: read once for neighbours, never more than the limit, and the
same rows as without."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.patience import PATIENCE

from tidemill.model.errors import StorageError
from tidemill.model.time import HOUR, Interval, parse_instant
from tidemill.outputs.datasets import raw_reader
from tidemill.outputs.datasets.raw_reader import RawParts, Recent, RowPiece

TEN = parse_instant("2024-01-15T10:00:00Z")
NAMES = ["event_time", "slice", "line"]
ROWS = 1_000


@pytest.fixture
def pieces(tmp_path: Path) -> list[RowPiece]:
    """Three row groups of one part, an hour each."""
    rows = range(3 * ROWS)
    table = pa.table(
        {
            "tenant": pa.array(["acme"] * len(rows)),
            "event_time": pa.array([TEN + n * HOUR // ROWS for n in rows]).cast(pa.timestamp("us", tz="UTC")),
            "event_id": pa.array([f"e{n:06d}" for n in rows]),
            "slice": pa.array(["a" * 64] * len(rows)),
            "line": pa.array(rows, pa.int64()),
            "payload": pa.array(["{}"] * len(rows)),
        }
    )
    path = tmp_path / "part.parquet"
    pq.write_table(table, path, row_group_size=ROWS)
    return RawParts().pieces([str(path)], Interval(TEN, TEN + 3 * HOUR))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Parts in the order in which they were opened."""
    paths: list[str] = []
    real = raw_reader.open_part

    def counted(path: str, *coded: Sequence[str]) -> object:
        paths.append(path)
        return real(path, *coded)

    monkeypatch.setattr(raw_reader, "open_part", counted)
    return paths


def test_neighbours_read_a_row_group_once(pieces: list[RowPiece], opened: list[str]) -> None:
    recent = Recent(1 << 20)
    tables = [recent.table(pieces[1], NAMES) for _ in range(3)]
    assert len(opened) == 1
    assert tables[0] is not None
    assert tables[0].column("line").to_pylist() == list(range(ROWS, 2 * ROWS))
    assert all(table is tables[0] for table in tables)


def test_who_comes_while_it_is_read_waits_for_it(
    pieces: list[RowPiece], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, go_on = threading.Event(), threading.Event()
    real = raw_reader.open_part
    opened = []

    def slow(path: str, *coded: Sequence[str]) -> object:
        opened.append(path)
        reading.set()
        assert go_on.wait(PATIENCE)
        return real(path, *coded)

    monkeypatch.setattr(raw_reader, "open_part", slow)
    recent = Recent(1 << 20)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(recent.table, pieces[0], NAMES)
        assert reading.wait(PATIENCE)
        second = pool.submit(recent.table, pieces[0], NAMES)
        go_on.set()
        assert first.result() is second.result()
    assert len(opened) == 1


def test_the_oldest_goes_when_there_is_no_room(pieces: list[RowPiece], opened: list[str]) -> None:
    recent = Recent(pieces[0].size + pieces[1].size)
    for piece in (pieces[0], pieces[1], pieces[2], pieces[2], pieces[0]):
        assert recent.table(piece, NAMES) is not None
    assert len(opened) == 4, "the first was read again, the third was not"


def test_one_that_is_too_large_is_left_to_be_streamed(pieces: list[RowPiece], opened: list[str]) -> None:
    assert Recent(pieces[0].size - 1).table(pieces[0], NAMES) is None
    assert opened == []


def test_it_does_not_go_to_another_process(pieces: list[RowPiece]) -> None:
    recent = Recent(1 << 20)
    recent.table(pieces[0], NAMES)
    other = pickle.loads(pickle.dumps(recent))  # noqa: S301 - ours
    assert other.table(pieces[0], NAMES) is None


def test_a_part_that_cannot_be_read_is_tried_again(pieces: list[RowPiece]) -> None:
    recent = Recent(1 << 20)
    part = Path(pieces[0].path)
    kept = part.rename(part.with_suffix(".away"))
    with pytest.raises(StorageError, match="the part is missing"):
        recent.table(pieces[0], NAMES)
    kept.rename(part)
    assert recent.table(pieces[0], NAMES) is not None
