"""Payloads are made from the files of a batch as they would be from one text after another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemill.raw.accept import record_texts as under_test
from tidemill.raw.accept.record_texts import ChunkTexts, payloads, record_texts
from tidemill.storage.tables.parts import write_part

RECORDS = [
    b"{}", b'{"i":1}', b'{"i": 12345}', b'{"s":"","i":0}', b'{"i":1.5,"s":"caf\xc3\xa9"}', b'{"s":"\\n"}',
]  # fmt: skip


def chunk(file: Path, numbers: list[int]) -> ChunkTexts:
    """A file of records, one after another with a byte between."""
    texts = [RECORDS[number % len(RECORDS)] for number in numbers]
    file.write_bytes(b"".join(text + b"\n" for text in texts))
    sizes = np.array([len(text) for text in texts], np.int64)
    starts = np.cumsum(sizes + 1) - sizes - 1
    return ChunkTexts(str(file), pa.table({"start": pa.array(starts), "end": pa.array(starts + sizes)}))


@pytest.mark.parametrize("gathered", [0, 40, 1 << 20])
def test_records_of_several_files_are_written_in_another_order(
    tmp_path: Path, gathered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test, "GATHERED", gathered)
    picks = [list(range(at, at + size)) for at, size in enumerate([6, 0, 1, 9, 2, 12, 3])]
    texts = [RECORDS[pick % len(RECORDS)].decode() for numbers in picks for pick in numbers]

    made = payloads(record_texts([chunk(tmp_path / f"{n}", numbers) for n, numbers in enumerate(picks)]))
    made.validate(full=True)
    assert made.to_pylist() == texts

    order = [row for row in np.random.default_rng(7).permutation(len(texts)).tolist() if row % 4 != 3]
    part = write_part(
        tmp_path, "part.parquet", pa.table({"payload": made}), partition={}, footer={}, stats_columns=(),
        order=pa.array(order),
    )  # fmt: skip
    assert pq.read_table(part.path).column("payload").to_pylist() == [texts[row] for row in order]


def test_a_unit_without_records_has_no_payloads() -> None:
    assert len(payloads(record_texts([]))) == 0
