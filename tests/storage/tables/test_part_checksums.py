"""Parts carry checksums: no reader takes a part that is not what was written."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemill.model.errors import DamageError
from tidemill.storage import layout
from tidemill.storage.tables.part_checksums import check_part, checked, named_checksums, without_checksums
from tidemill.storage.tables.parts import is_ours, open_part, read_footer, read_part, write_part

ROWS = pa.table(
    {
        "name": pa.array([f"u{number % 7}" for number in range(400)]).dictionary_encode(),
        "value": pa.array(range(400), pa.int64()),
        "text": [f"payload {number * 7919}" for number in range(400)],
    }
)


@pytest.fixture
def part(tmp_path: Path) -> Path:
    staged = write_part(
        tmp_path, "p.parquet", ROWS, partition={}, footer={"batch": "b"}, stats_columns=["value"],
        row_group_rows=150,
    )  # fmt: skip
    return Path(staged.path)


def whole(path: Path) -> None:
    with open_part(str(path)) as file:
        file.read()


READERS: dict[str, Callable[[Path], object]] = {
    "open_part": whole,
    "read_part": read_part,
    "one column": lambda path: read_part(path, ["value"]),
    "an engine of its own": lambda path: checked([str(path)]),
}


def test_the_name_of_a_part_has_the_checksums_of_the_file_and_of_its_footer(part: Path) -> None:
    content = part.read_bytes()
    length = int.from_bytes(content[-8:-4], "little") + 8
    found = named_checksums(part)
    assert found is not None
    assert (found.file, found.footer) == (zlib.crc32(content), zlib.crc32(content[-length:]))
    assert without_checksums(part.name) == "p.parquet"
    assert part.name == f"p.{found.file:08x}{found.footer:08x}.parquet"


def test_a_whole_part_is_read_as_it_was_written(part: Path) -> None:
    assert read_part(part).cast(ROWS.cast(read_part(part).schema).schema).to_pydict() == ROWS.to_pydict()
    assert read_footer(part) == {"batch": "b"}
    assert read_part(part, ["value"], where=pa.compute.field("value") > 397).to_pydict() == {
        "value": [398, 399]
    }


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_flipped_bit_anywhere_is_damage(part: Path, reader: Callable[[Path], object]) -> None:
    content = part.read_bytes()
    for place in range(0, len(content), max(1, len(content) // 100)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        part.write_bytes(changed)
        with pytest.raises(DamageError, match="is not what was written: its checksum differs") as caught:
            reader(part)
        assert caught.value.where == str(part)
    part.write_bytes(content)
    reader(part)


def test_a_flipped_bit_of_the_footer_is_damage_for_those_who_read_nothing_else(part: Path) -> None:
    content = part.read_bytes()
    footer = int.from_bytes(content[-8:-4], "little") + 8
    for place in range(len(content) - footer, len(content), 5):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        part.write_bytes(changed)
        with pytest.raises(DamageError):
            read_footer(part)


@pytest.mark.parametrize("reader", [*READERS.values(), read_footer], ids=[*READERS, "footer"])
@pytest.mark.parametrize(
    ("harm", "reported"),
    [
        (Path.unlink, "the part is missing"),
        (lambda path: path.write_bytes(b""), "the part is not what was written"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "the part is not what was written"),
        (
            lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
            "is not what was written",
        ),
    ],
    ids=["deleted", "emptied", "cut at its end", "cut in half"],
)
def test_a_part_that_is_gone_or_cut_is_damage(
    part: Path, harm: Callable[[Path], object], reported: str, reader: Callable[[Path], object]
) -> None:
    reader(part)
    harm(part)
    with pytest.raises(DamageError, match=reported) as caught:
        reader(part)
    assert (caught.value.code, caught.value.where) == ("damaged", str(part))


def test_a_file_is_named_relative_to_its_warehouse(part: Path, tmp_path: Path) -> None:
    home = tmp_path / "warehouse"
    there = layout.raw(home, "raw") / part.name
    there.parent.mkdir(parents=True)
    layout.tick_lock(home).touch()
    part.rename(there)
    check_part(there)
    there.write_bytes(b"other")
    with pytest.raises(DamageError) as caught:
        check_part(there)
    assert caught.value.where == f"raw/raw/{part.name}"


def test_pages_have_checksums_of_their_own(part: Path, tmp_path: Path) -> None:
    """Whatever happened to the name: what Arrow reads, it holds against them."""
    other = tmp_path / "other.parquet"
    column = pq.read_metadata(part).row_group(1).column(2)
    content = bytearray(part.read_bytes())
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 4
    other.write_bytes(content)
    check_part(other)
    for reader in (whole, read_part):
        with pytest.raises(DamageError, match=r"cannot be read: .*CRC") as caught:
            reader(other)
        assert caught.value.where == str(other)


def test_parts_of_earlier_versions_are_read_as_they_are(tmp_path: Path) -> None:
    old = tmp_path / "old.parquet"
    pq.write_table(ROWS, old)
    assert named_checksums(old) is None
    whole(old)
    assert read_part(old, ["value"]).equals(ROWS.select(["value"]))
    assert not is_ours(old)
    old.write_bytes(old.read_bytes()[:200])
    for reader in READERS.values():
        with pytest.raises(DamageError, match="cannot be read") as caught:
            reader(old)
        assert caught.value.where == str(old)


def test_what_is_damaged_is_known_by_whoever_started_a_worker(part: Path) -> None:
    part.unlink()
    with pytest.raises(DamageError) as caught:
        check_part(part)
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - written just now
    assert isinstance(again, DamageError)
    assert again.as_dict() == caught.value.as_dict()
