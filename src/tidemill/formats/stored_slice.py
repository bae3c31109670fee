"""The file of a slice as the warehouse keeps it: its bytes as they landed, or the same bytes compressed.

A compressed file begins with a header that zstd skips, so `zstd -dc` unpacks it; the header has the number of
bytes that landed. The hash of a slice is always the hash of the bytes that landed. Slices that came
compressed have another ending (`.gz`, `.zst`) and are kept as they came, whatever they begin with.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidemill.model.slices import Codec

if TYPE_CHECKING:
    import pyarrow as pa

_TAG: Final = b"tidemill slice 1"
_HEADER: Final = struct.Struct("<II16sQ")  # a frame that zstd skips: magic number, length, tag, size
_SKIPPED: Final = 0x184D2A5E
_RECEIVED: Final = tuple(f".{codec.value}" for codec in Codec if codec is not Codec.NONE)
_LEVEL: Final = 1
_PIECE: Final = 1 << 20


def is_compressed(path: Path) -> bool:
    """Whether the warehouse compressed the file of this slice. OSError when it cannot be read."""
    return _landed_size(path) is not None


def content_size(path: Path) -> int:
    """How many bytes landed, as the file says. OSError when it cannot be read."""
    found = _landed_size(path) if path.is_file() else None
    return path.stat().st_size if found is None else found


def content_digest(path: Path) -> str:
    """The sha256 of the bytes that landed, which the id of a slice is made of; empty when the file is
    compressed and cannot be unpacked. OSError when it cannot be read."""
    if not is_compressed(path):
        return file_digest(path)
    digest = hashlib.sha256()
    try:
        for piece in content_pieces(path):
            digest.update(piece)
    except OSError as error:
        if error.errno is None:  # reported by the decoder, not by the system
            return ""
        raise
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """The sha256 of the bytes of a file as they are. OSError when it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_pieces(path: Path, size: int = _PIECE) -> Iterator[bytes]:
    """The bytes that landed, in pieces of at most `size`. OSError when they cannot be read or unpacked."""
    import pyarrow as pa

    landed = _landed_size(path)
    with pa.OSFile(str(path)) as file:
        if landed is None:
            yield from _read(file, size)
            return
        with pa.CompressedInputStream(file, "zstd") as stream:
            for piece in _read(stream, size):
                landed -= len(piece)
                yield piece
    if landed:
        raise OSError("its unpacked size is not the size that landed")


def content_bytes(path: Path) -> bytes:
    """All bytes that landed."""
    return b"".join(content_pieces(path))


def write_compressed(path: Path, target: Path) -> str:
    """Write the bytes of a slice, compressed, to `target`; the sha256 of what was read."""
    import pyarrow as pa

    digest = hashlib.sha256()
    with path.open("rb") as source, target.open("wb") as raw:
        raw.write(_HEADER.pack(_SKIPPED, _HEADER.size - 8, _TAG, path.stat().st_size))
        codec = pa.Codec("zstd", _LEVEL)
        while piece := source.read(_PIECE):  # a frame for each piece: memory stays small, and they add up
            digest.update(piece)
            raw.write(codec.compress(piece, asbytes=True))
    return digest.hexdigest()


def _landed_size(path: Path) -> int | None:
    """How many bytes landed, for a file that the warehouse compressed; None: the file is as it landed."""
    if path.suffix in _RECEIVED:
        return None
    with path.open("rb", buffering=0) as file:
        head = file.read(_HEADER.size)
    if len(head) < _HEADER.size:
        return None
    magic, length, tag, size = _HEADER.unpack(head)
    known = magic == _SKIPPED and length == _HEADER.size - 8 and tag == _TAG
    return int(size) if known else None


def _read(source: pa.NativeFile, size: int) -> Iterator[bytes]:
    while piece := source.read(size):
        yield piece
