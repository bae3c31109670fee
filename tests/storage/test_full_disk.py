"""A full disk is told with what to do about it; nothing is half-written, and the same again then works."""

from __future__ import annotations

import contextlib
import random
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.pipeline import ALL_ON_SPARK, CONFIG, Plant, ndjson, request

from tidemill.model.errors import StorageError
from tidemill.model.slices import SliceStatus

EVENTS = [request(n) for n in range(6)]


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("a small disk needs the right to mount one")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def grow(folder: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)


@pytest.mark.parametrize("config", [CONFIG, ALL_ON_SPARK], ids=["driver", "spark"])
def test_a_full_disk_while_working_is_told_and_the_next_tick_does_it(
    plant: Plant, tmp_path: Path, config: str
) -> None:
    disk = tmp_path / "disk"
    content = ndjson(*(request(n, trace=random.Random(n).randbytes(200).hex()) for n in range(2000)))
    with small_disk(disk, f"{len(content) + 700_000}"):
        plant.configure(config.replace("version: 1", f"version: 1\nwarehouse: {disk}"))
        with plant.open() as mill:
            landed = mill.land("requests", content)
            errors = mill.tick().errors  # of raw, and of what the state could not record
            assert "No space left on device" in errors[0].message
            for error in errors:
                assert isinstance(error, StorageError)
                assert "no space left" in error.message.lower()
                assert error.hint
            assert mill.slice(landed.entry.id).status is SliceStatus.PENDING
        grow(disk, "64m")
        with plant.open() as mill:
            mill.run_until_idle()
            assert mill.slice(landed.entry.id).counts.accepted == 2000
            assert mill.verify().findings == []


def test_a_full_disk_while_landing_acknowledges_nothing(plant: Plant, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, "1m"):
        plant.configure(CONFIG.replace("version: 1", f"version: 1\nwarehouse: {disk}"))
        with plant.open() as mill:
            first = mill.land("requests", ndjson(*EVENTS)).entry
            with pytest.raises(StorageError, match="No space left on device") as caught:
                mill.land("requests", ndjson(request(1, trace="x" * (2 << 20))))
            assert "free some space" in caught.value.hint
            assert [entry.id for entry in mill.ledger()] == [first.id]
            assert not list(disk.rglob("*.tmp"))
            grow(disk, "16m")
            mill.land("requests", ndjson(request(1, trace="x" * (2 << 20))))
            assert len(mill.ledger()) == 2


def test_a_file_that_may_not_grow_is_told_and_leaves_nothing(plant: Plant) -> None:
    with plant.open() as mill:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
        try:
            with pytest.raises(StorageError, match="File too large"):
                mill.land("requests", ndjson(request(1, trace="x" * (2 << 20))))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert mill.ledger() == []
    assert plant.leftovers() == []
