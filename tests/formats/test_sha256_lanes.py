"""Hashes files side by side, and compares with `hashlib`."""

from __future__ import annotations

import hashlib
import io
import random

import pytest

from tidemill.formats import sha256_lanes
from tidemill.formats.sha256_lanes import BLOCK, LANES, PIECE, is_faster, sha256_of

AVX512 = {"avx512f": True, "avx2": True}


def _digests(contents: list[bytes], cores: int) -> list[str]:
    return sha256_of([io.BytesIO(each) for each in contents], [len(each) for each in contents], cores)


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_digests_are_those_of_hashlib(cores: int) -> None:
    chosen = random.Random(7)
    sizes = [0, 1, 3, 55, 56, 63, 64, 65, 119, 120, 128]
    sizes += [PIECE - 9, PIECE - 8, PIECE, PIECE + 1, 3 * PIECE + 70]
    sizes += [chosen.randrange(4 * PIECE) for _ in range(LANES)]
    contents = [chosen.randbytes(size) for size in sizes]
    assert _digests(contents, cores) == [hashlib.sha256(each).hexdigest() for each in contents]


def test_every_length_around_a_block() -> None:
    contents = [bytes([65 + size % 26]) * size for size in range(3 * BLOCK + 2)]
    assert _digests(contents, 2) == [hashlib.sha256(each).hexdigest() for each in contents]


def test_one_file_alone() -> None:
    content = b"a" * 1_000_000
    assert _digests([content], 2) == ["cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"]


def test_no_files() -> None:
    assert not is_faster([], 2, AVX512)


class _Trickle(io.RawIOBase):
    """A file of which each read gives a few bytes."""

    def __init__(self, content: bytes) -> None:
        self._left = content

    def readinto(self, room: memoryview) -> int:  # type: ignore[override]
        size = min(1000, len(room))
        piece, self._left = self._left[:size], self._left[size:]
        memoryview(room).cast("B")[: len(piece)] = piece
        return len(piece)


def test_reads_may_give_less_than_was_asked_for() -> None:
    contents = [bytes(range(250)) * 40, b"x" * 12_345]
    files = [_Trickle(each) for each in contents]
    assert sha256_of(files, [0, 0], 1) == [hashlib.sha256(each).hexdigest() for each in contents]


def test_hashlib_is_faster_with_instructions_for_it() -> None:
    assert not is_faster([1 << 20] * 64, 2, {"sha": True, **AVX512})
    assert not is_faster([1 << 20] * 64, 2, {})


def test_files_side_by_side_must_be_many_and_alike() -> None:
    assert is_faster([26 << 20] * 20, 2, AVX512)
    assert not is_faster([26 << 20] * 4, 2, AVX512)
    assert not is_faster([1 << 30] + [1 << 20] * 19, 2, AVX512)


def test_constants_are_those_of_the_standard() -> None:
    assert hex(int(sha256_lanes._START[0])) == "0x6a09e667"
    assert hex(int(sha256_lanes._CONSTANTS[63])) == "0xc67178f2"
