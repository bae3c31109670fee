"""The checksum of a dataset: a CRC-32 that is stored in the metadata of its file.

The metadata of an Arrow file is in the schema that it begins with and in the footer that it ends with. The
digits of the checksum are in both; they count as zeros in it, so anyone can check a file by itself. Files
that earlier versions wrote have none: their checksum is that of all their bytes.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

FIELD: Final = "tidemill_crc32"  # of the metadata
UNSET: Final = "00000000"  # while the file is written
_STATED: Final = re.compile(rf'"{FIELD}":"([0-9a-f]{{8}})"'.encode())
_HEAD: Final = struct.Struct("<8s4si")  # magic, the start of a message, the length of the schema
_TAIL: Final = struct.Struct("<i6s")  # the length of the footer, magic
_PIECE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FileChecksum:
    """The checksum computed from the bytes of a file, and the one stored in it: twice, or not at all if an
    earlier version wrote it."""

    computed: str
    stored: tuple[str, ...]

    @property
    def written(self) -> str:
        """The checksum of what was written, as far as the file knows."""
        return self.stored[-1] if self.stored else self.computed

    def is_whole(self, expected: str | None = None) -> bool:
        """Whether the file is what was written; `expected` is the checksum recorded elsewhere."""
        agrees = not self.stored or self.stored == (self.computed, self.computed)
        return agrees and expected in (None, self.computed)


def checksum(content: bytes) -> str:
    """The checksum of the content of a file that stores none."""
    return _text(zlib.crc32(content))


def checksum_of(path: Path) -> FileChecksum:
    """The checksum of a file, which is read piece by piece."""
    with path.open("rb") as file:
        digits = _digits(file)
        return FileChecksum(_text(_summed_without(file, digits)), tuple(digits.values()))


def stored_checksum(path: Path) -> str | None:
    """The checksum stored in a file; nothing else of it is read."""
    with path.open("rb") as file:
        return next(reversed(_digits(file).values()), None)


def enter_checksum(path: Path) -> str:
    """Enter the checksum in a file that was just written, and return it."""
    with path.open("r+b") as file:
        digits = _digits(file)
        found = _text(_summed_without(file, digits))
        for at in digits:
            file.seek(at)
            file.write(found.encode())
    return found


def _text(summed: int) -> str:
    return f"{summed:08x}"


def _summed_without(file: BinaryIO, digits: Iterable[int]) -> int:
    """The CRC-32 of a file, from where it begins; the digits at these offsets count as zeros."""
    found = 0
    for at in digits:
        found = zlib.crc32(UNSET.encode(), _summed(file, at - file.tell(), found))
        file.seek(at + len(UNSET))
    return _summed(file, None, found)


def _summed(file: BinaryIO, length: int | None, before: int) -> int:
    """The CRC-32 that goes on with the next bytes of a file, or with all that are left."""
    left = length
    while piece := file.read(_PIECE if left is None else min(left, _PIECE)):
        before = zlib.crc32(piece, before)
        left = None if left is None else left - len(piece)
    return before


def _digits(file: BinaryIO) -> dict[int, str]:
    """The digits of the checksum by their offsets, ascending. None if the text does not occur exactly once in
    each: then it is also in the description of a column."""
    size = file.seek(0, os.SEEK_END)
    if size < _HEAD.size + _TAIL.size:
        file.seek(0)
        return {}
    file.seek(0)
    _, _, schema = _HEAD.unpack(file.read(_HEAD.size))
    file.seek(size - _TAIL.size)
    footer, _ = _TAIL.unpack(file.read(_TAIL.size))
    found: dict[int, str] = {}
    for at, length in ((_HEAD.size, schema), (size - _TAIL.size - footer, footer)):
        start = min(max(at, 0), size)
        file.seek(start)
        stated = list(_STATED.finditer(file.read(max(0, min(length, size - start)))))
        if len(stated) == 1:
            found[start + stated[0].start(1)] = stated[0][1].decode()
    file.seek(0)
    return dict(sorted(found.items()))
