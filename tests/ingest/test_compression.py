"""Accepted slices are compressed under their names: every reader has the bytes that landed, whenever a
process dies, and what is damaged is noticed."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.pipeline import NOON, NewPlant, Plant, ndjson, request

from tidemill.formats.arrays import RecordChunk
from tidemill.formats.decode import decode
from tidemill.formats.stored_slice import (
    content_bytes,
    content_digest,
    content_size,
    is_compressed,
    write_compressed,
)
from tidemill.ingest.compression import LEAST_BYTES
from tidemill.mill import Mill, recover
from tidemill.model.errors import InputError
from tidemill.model.failpoints import observed
from tidemill.model.slices import Codec, Format, SliceEntry
from tidemill.model.time import DAY
from tidemill.storage import layout

LINES = ndjson(*(request(number) for number in range(200)))
MORE = ndjson(*(request(number) for number in range(150, 400)))  # 50 of them again
SMALL = ndjson(request(900))
NOISE = random.Random(5).randbytes(1 << 20)
COLUMNS = ("event_id", "line", "payload")


# -- a file


def compressed(folder: Path, content: bytes, name: str = "s.ndjson") -> tuple[Path, Path]:
    """A file as it landed, and the same compressed."""
    plain, packed = folder / f"plain-{name}", folder / name
    plain.write_bytes(content)
    assert write_compressed(plain, packed) == hashlib.sha256(content).hexdigest()
    return plain, packed


def records(chunks: list[RecordChunk]) -> list[bytes]:
    return [
        bytes(chunk.data[start:end])
        for chunk in chunks
        for start, end in zip(chunk.starts.tolist(), chunk.ends.tolist(), strict=True)
    ]


@pytest.mark.parametrize("content", [b"", b"x", LINES, NOISE * 3], ids=["none", "one", "text", "noise"])
def test_what_landed_is_unpacked_again(tmp_path: Path, content: bytes) -> None:
    plain, packed = compressed(tmp_path, content)
    assert is_compressed(packed)
    assert not is_compressed(plain)
    for path in (plain, packed):
        assert content_bytes(path) == content
        assert content_size(path) == len(content)
        assert content_digest(path) == hashlib.sha256(content).hexdigest()
    with pa.OSFile(str(packed)) as file, pa.CompressedInputStream(file, "zstd") as stream:
        assert stream.read() == content, "any zstd reader skips the header"


@pytest.mark.parametrize(
    ("format", "content"),
    [
        (Format.NDJSON, LINES),
        (Format.JSON, b"[" + LINES.strip().replace(b"\n", b",") + b"]"),
        (Format.CSV, b"a,b\n" + b"".join(b"%d,x\n" % number for number in range(5000))),
    ],
)
def test_records_are_the_same(tmp_path: Path, format: Format, content: bytes) -> None:
    found = [
        records(list(decode(path, format, Codec.NONE, chunk_bytes=4096)))
        for path in compressed(tmp_path, content)
    ]
    assert found[0] == found[1]
    assert len(found[0]) >= 200


def test_a_file_that_came_compressed_is_what_it_is(tmp_path: Path) -> None:
    _, packed = compressed(tmp_path, LINES, "s.ndjson.zst")
    assert not is_compressed(packed)
    assert content_bytes(packed) == packed.read_bytes()


@pytest.mark.parametrize("left", [40, -1, -1000])
def test_a_file_that_is_cut_off_is_noticed(tmp_path: Path, left: int) -> None:
    _, packed = compressed(tmp_path, LINES)
    packed.write_bytes(packed.read_bytes()[:left])
    assert content_digest(packed) == ""
    with pytest.raises(InputError):
        list(decode(packed, Format.NDJSON, Codec.NONE, chunk_bytes=1 << 20))


def test_a_file_that_ends_after_a_frame_is_noticed(tmp_path: Path) -> None:
    content = NOISE
    plain, packed = compressed(tmp_path, content)
    _, twice = compressed(tmp_path, content * 2, "twice.ndjson")
    twice.write_bytes(twice.read_bytes()[: len(packed.read_bytes())])
    with pytest.raises(OSError, match="is not the size that landed"):
        content_bytes(twice)
    assert content_digest(twice) == ""
    assert content_digest(plain) == content_digest(packed)


# -- a warehouse


def land(mill: Mill, content: bytes, name: str) -> SliceEntry:
    return mill.land("requests", content, name=name, source="file").entry


def rest(mill: Mill) -> None:
    """Rounds until nothing is left, and the one that has time to compress."""
    mill.run_until_idle()
    mill.tick()


@pytest.fixture(scope="module")
def filled(new_plant: NewPlant) -> Plant:
    """Three slices that were accepted; two of them are compressed."""
    plant = new_plant()
    with plant.open() as mill:
        for number, content in enumerate((LINES, MORE, SMALL)):
            land(mill, content, f"{number}")
        rest(mill)
    return plant


def entries(mill: Mill) -> list[SliceEntry]:
    return sorted(mill.ledger("requests"), key=lambda entry: entry.seq)


def files(plant: Plant, mill: Mill) -> list[Path]:
    return [plant.warehouse / entry.slice.path for entry in entries(mill)]


def told(plant: Plant) -> list[tuple[object, ...]]:
    return [tuple(row[name] for name in COLUMNS) for row in plant.raw()]


def test_accepted_slices_are_compressed_and_verified(filled: Plant) -> None:
    assert len(LINES) > LEAST_BYTES > len(SMALL)
    with filled.open() as mill:
        found = files(filled, mill)
        assert [is_compressed(path) for path in found] == [True, True, False]
        assert [content_bytes(path) for path in found] == [LINES, MORE, SMALL]
        assert sum(path.stat().st_size for path in found) * 4 < len(LINES) + len(MORE)
        assert [entry.slice.size for entry in entries(mill)] == [len(LINES), len(MORE), len(SMALL)]
        assert mill.verify().findings == []
        assert mill.tick().rest != 0
    assert filled.leftovers() == []


def test_the_same_bytes_are_still_the_same_slice(filled: Plant, tmp_path: Path) -> None:
    plant = filled.copy(tmp_path / "p")
    with plant.open() as mill:
        again = mill.land("requests", LINES, name="again", source="file")
        assert not again.new
        assert again.entry.landings == 2
        assert is_compressed(plant.warehouse / again.entry.slice.path)


def test_a_compressed_slice_is_decided_again(filled: Plant, tmp_path: Path) -> None:
    """Without the first slice its repeats in the second are accepted from there."""
    plant = filled.copy(tmp_path / "p")
    with plant.open() as mill:
        first = entries(mill)[0].id
        mill.retract(mill.plan_retraction(first, "a test"))
        rest(mill)
        assert mill.verify().findings == []
    ids = sorted(str(row["event_id"]) for row in plant.raw())
    assert ids == [*(f"e-{number:06d}" for number in range(150, 400)), "e-000900"]


def test_all_is_recovered_from_compressed_slices(filled: Plant, tmp_path: Path) -> None:
    plant = filled.copy(tmp_path / "p")
    for name in ("state.db", "state.db-wal", "state.db-shm", "slices/compressed.json"):
        (plant.warehouse / name).unlink(missing_ok=True)
    recover(plant.root)
    with plant.open() as mill:
        rest(mill)
        assert mill.verify().findings == []
    assert told(plant) == told(filled)
    assert layout.compressed_slices(plant.warehouse).exists()


def test_damage_in_a_compressed_slice_is_found(filled: Plant, tmp_path: Path) -> None:
    plant = filled.copy(tmp_path / "p")
    with plant.open() as mill:
        entry, path = entries(mill)[0], files(plant, mill)[0]
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        found = [one.where for one in mill.verify().findings]
    assert entry.id in found


def test_damage_is_not_compressed(new_plant: NewPlant) -> None:
    """A slice whose bytes changed since stays as it is, for those who look for damage."""
    plant = new_plant()
    with plant.open() as mill:
        entry = land(mill, LINES, "1")
        mill.tick()
        path = plant.warehouse / entry.slice.path
        changed = LINES.replace(b"e-000007", b"e-999999")
        path.write_bytes(changed)
        rest(mill)
        assert path.read_bytes() == changed


@pytest.mark.parametrize("point", ["compression.before_rename", "compression.after_rename"])
def test_death_while_compressing_leaves_the_slice(new_plant: NewPlant, tmp_path: Path, point: str) -> None:
    plant = new_plant()
    copies: list[Plant] = []

    def keep(passed: str) -> None:
        if passed == point:
            copies.append(plant.copy(tmp_path / "corpse"))

    with plant.open() as mill:
        land(mill, LINES, "1")
        with observed(keep):
            rest(mill)
    (corpse,) = copies
    corpse.clock.set(NOON + DAY)
    with corpse.open() as mill:
        (path,) = files(corpse, mill)
        assert content_bytes(path) == LINES
        rest(mill)
        assert is_compressed(path)
        assert content_bytes(path) == LINES
        assert mill.verify().findings == []
    assert corpse.leftovers() == []
    assert told(corpse) == told(plant)
