"""Files with checksums: whatever is changed in one is noticed before anybody reads it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tidemill.model.errors import DamageError
from tidemill.storage import checksums
from tidemill.storage.checksums import (
    check_file,
    is_whole,
    read_arrow,
    write_arrow,
    write_checked,
)
from tidemill.storage.ipc import write_ipc

TABLE = pa.table({"number": range(20_000), "text": [f"text {number}" for number in range(20_000)]})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A file of several blocks, where a warehouse has the ids that were accepted."""
    path = tmp_path / "gate" / "requests" / "a.run"
    path.parent.mkdir(parents=True)
    write_arrow(path, TABLE)
    assert path.stat().st_size > 3 * checksums.BLOCK
    return path


def test_a_table_is_read_as_it_was_written(run: Path) -> None:
    assert read_arrow(run).equals(TABLE)
    assert check_file(run)
    assert [path.name for path in run.parent.iterdir()] == ["a.run"]


@pytest.mark.parametrize("size", [0, 1, checksums.BLOCK - 1, checksums.BLOCK, checksums.BLOCK + 1, 200_000])
def test_bytes_of_any_length_are_read_as_they_were_written(tmp_path: Path, size: int) -> None:
    content = bytes(number % 251 for number in range(size))
    write_checked(tmp_path / "file", lambda file: file.writelines([content[:7], content[7:]]))
    assert bytes(checksums._content(tmp_path / "file").buffer) == content
    assert check_file(tmp_path / "file")


@pytest.mark.parametrize("place", [*(step / 40 for step in range(41))])
def test_a_bit_that_flipped_is_found_wherever_it_is(run: Path, place: float) -> None:
    content = bytearray(run.read_bytes())
    content[round(place * (len(content) - 1))] ^= 0x10
    run.write_bytes(content)
    for read in (read_arrow, check_file):
        with pytest.raises(DamageError) as found:
            read(run)
        assert found.value.where == "gate/requests/a.run"
    assert not is_whole(run)


@pytest.mark.parametrize("left", [0, 1, 7, 8, 20, 1000, checksums.BLOCK, -1, -7, -8, -20, -21])
def test_a_file_that_was_cut_short_is_found(run: Path, left: int) -> None:
    run.write_bytes(run.read_bytes()[:left])
    for read in (read_arrow, check_file):
        with pytest.raises(DamageError):
            read(run)


def test_a_file_that_is_gone_is_no_damage_by_itself(run: Path) -> None:
    run.unlink()
    for read in (read_arrow, check_file):
        with pytest.raises(FileNotFoundError):
            read(run)
    assert not is_whole(run)


def test_a_file_of_an_earlier_version_is_read_and_gets_a_checksum_when_it_is_written(
    run: Path,
) -> None:
    write_ipc(run, TABLE)
    assert read_arrow(run).equals(TABLE)
    assert not check_file(run)
    write_arrow(run, TABLE)
    assert check_file(run)


def test_damage_that_shows_in_a_file_without_a_checksum_is_an_error(run: Path) -> None:
    """Offsets of texts that lead outside the file, which would end the process."""
    write_ipc(run, TABLE)
    content = run.read_bytes()
    at = content.index((6).to_bytes(4, "little") + (12).to_bytes(4, "little"))
    run.write_bytes(content[:at] + b"\xff\xff\xff\x7f" * 2 + content[at + 8 :])
    with pytest.raises(DamageError):
        read_arrow(run)


def test_a_file_is_checked_once_in_a_process_until_it_changes(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[Path] = []
    compare = checksums._compare
    monkeypatch.setattr(checksums, "_compare", lambda *given: (compared.append(given[2]), compare(*given)))
    read_arrow(run)
    read_arrow(run)
    assert len(compared) == 1
    write_arrow(run, TABLE.slice(5))
    assert read_arrow(run).num_rows == 19_995
    assert len(compared) == 2
    check_file(run)  # a scrub looks whatever is known
    assert len(compared) == 3


def test_nothing_is_left_of_a_file_that_could_not_be_written(tmp_path: Path) -> None:
    def fail(_file: object) -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_checked(tmp_path / "file", fail)
    assert list(tmp_path.iterdir()) == []
