"""Compressed bodies: the same bytes again, never more than the limit, and a clear word for damage."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from contextlib import suppress

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tidemill.formats.bodies import decompressed
from tidemill.model.errors import InputError, MediaTypeError, TidemillError, TooLargeError

MIB = 1 << 20
PACK = {"gzip": gzip.compress, "zstd": zstandard.ZstdCompressor().compress}


@given(st.lists(st.binary(max_size=3000), min_size=1, max_size=4), st.sampled_from(["gzip", "zstd"]))
def test_several_members_or_frames_are_one_body(parts: list[bytes], encoding: str) -> None:
    packed = b"".join(PACK[encoding](part) for part in parts)
    assert decompressed(packed, encoding, 12_000) == b"".join(parts)


@pytest.mark.parametrize("encoding", [None, "", "identity", " Identity "])
def test_a_plain_body_is_the_same_object(encoding: str | None) -> None:
    body = b"x" * 1000
    assert decompressed(body, encoding, 1000) is body


@pytest.mark.parametrize("encoding", ["x-gzip", "GZIP"])
def test_gzip_by_its_other_names(encoding: str) -> None:
    assert decompressed(gzip.compress(b"abc"), encoding, 10) == b"abc"


@pytest.mark.parametrize("encoding", ["deflate", "br", "gzip, zstd", "compress"])
def test_another_encoding_is_refused_with_those_that_are_read(encoding: str) -> None:
    with pytest.raises(MediaTypeError) as caught:
        decompressed(b"abc", encoding, 10)
    assert "gzip, zstd, identity" in caught.value.hint


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "identity"])
def test_the_limit_is_that_of_the_content(encoding: str) -> None:
    pack = PACK.get(encoding, bytes)
    assert decompressed(pack(b"x" * 5000), encoding, 5000) == b"x" * 5000
    with pytest.raises(TooLargeError) as caught:
        decompressed(pack(b"x" * 5001), encoding, 5000)
    assert "gateway.requests.body" in caught.value.hint


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_bomb_is_stopped_at_the_limit(encoding: str) -> None:
    bomb = PACK[encoding](bytes(64 * MIB))
    assert len(bomb) < MIB
    tracemalloc.start()
    with pytest.raises(TooLargeError):
        decompressed(bomb, encoding, 4 * MIB)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 6 * MIB


def test_many_empty_members_cost_no_more_than_their_bytes() -> None:
    assert decompressed(gzip.compress(b"") * 100_000, "gzip", 10) == b""


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_body_that_is_cut_off_or_damaged_is_an_input_error(encoding: str) -> None:
    whole = PACK[encoding](b"some content " * 100)
    for cut in (0, 1, 5, len(whole) // 2, len(whole) - 1):
        with pytest.raises(InputError, match=f"unpacked from {encoding}"):
            decompressed(whole[:cut], encoding, MIB)
    with pytest.raises(InputError):
        decompressed(whole + b"more", encoding, MIB)


def test_zlib_is_not_gzip() -> None:
    with pytest.raises(InputError):
        decompressed(zlib.compress(b"abc"), "gzip", 10)


@given(st.binary(max_size=200), st.sampled_from(["gzip", "zstd"]), st.booleans())
def test_any_bytes_are_content_or_an_error_of_ours(body: bytes, encoding: str, magic: bool) -> None:
    head = {"gzip": b"\x1f\x8b\x08\x00", "zstd": b"\x28\xb5\x2f\xfd"}[encoding]
    with suppress(TidemillError):
        assert len(decompressed(head + body if magic else body, encoding, 1000)) <= 1000
