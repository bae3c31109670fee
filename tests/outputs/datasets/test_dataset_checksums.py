"""The file of a dataset states its checksum: whatever is changed of it is found by the file alone."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import ipc

from tidemill.outputs.datasets.checksums import FIELD, UNSET, checksum_of, enter_checksum, stored_checksum

SCHEMA = pa.schema([pa.field("id", pa.string()), pa.field("n", pa.int64())])
ROWS = pa.table({"id": ["a", "b"], "n": [1, 2]}, SCHEMA)


def written(path: Path, schema: pa.Schema, **said: object) -> bytes:
    """As a builder writes it, before it is summed."""
    text = json.dumps({"kind": "dataset", **said}, separators=(",", ":"))
    table = ROWS.cast(schema).replace_schema_metadata({b"tidemill": text.encode()})
    with pa.OSFile(str(path), "wb") as sink, ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return path.read_bytes()


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    path = tmp_path / "r1.arrow"
    written(path, SCHEMA, **{FIELD: UNSET, "rows": 2})
    enter_checksum(path)
    return path


def test_a_file_states_the_sum_of_its_bytes_with_zeros_for_the_digits(tmp_path: Path) -> None:
    path = tmp_path / "r1.arrow"
    before = written(path, SCHEMA, **{FIELD: UNSET, "rows": 2})
    expected = f"{zlib.crc32(before):08x}"
    assert enter_checksum(path) == expected
    assert path.read_bytes() == before.replace(f'"{UNSET}"'.encode(), f'"{expected}"'.encode())
    assert (stored_checksum(path), checksum_of(path).computed) == (expected, expected)
    assert checksum_of(path).is_whole()
    assert checksum_of(path).is_whole(expected)
    assert not checksum_of(path).is_whole("12345678")


def test_any_arrow_reader_opens_it(dataset: Path) -> None:
    with pa.OSFile(str(dataset)) as source, ipc.open_file(source) as reader:
        found = reader.read_all()
    assert found.to_pylist() == ROWS.to_pylist()
    assert json.loads(found.schema.metadata[b"tidemill"])[FIELD] == stored_checksum(dataset)


def test_each_flipped_bit_is_found(dataset: Path) -> None:
    content = dataset.read_bytes()
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        dataset.write_bytes(changed)
        assert not checksum_of(dataset).is_whole(), place


def test_each_cut_is_found(dataset: Path) -> None:
    content, whole = dataset.read_bytes(), checksum_of(dataset).computed
    for end in range(len(content)):
        dataset.write_bytes(content[:end])
        assert not checksum_of(dataset).is_whole(whole), end


def test_a_file_of_an_earlier_version_states_none(tmp_path: Path) -> None:
    path = tmp_path / "r1.arrow"
    content = written(path, SCHEMA, rows=2)
    found = checksum_of(path)
    assert (found.computed, found.stored, stored_checksum(path)) == (f"{zlib.crc32(content):08x}", (), None)
    assert found.is_whole()


def test_a_description_that_looks_like_a_checksum_is_left_as_it_is(tmp_path: Path) -> None:
    """The file states none then, and what the state knows of it is the sum of all its bytes."""
    path = tmp_path / "r1.arrow"
    comment = {"comment": f'see "{FIELD}":"{UNSET}" of the file'}
    described = pa.schema([SCHEMA.field("id").with_metadata(comment), SCHEMA.field("n")])
    content = written(path, described, **{FIELD: UNSET, "rows": 2})
    assert enter_checksum(path) == f"{zlib.crc32(content):08x}"
    assert path.read_bytes() == content
    assert stored_checksum(path) is None
