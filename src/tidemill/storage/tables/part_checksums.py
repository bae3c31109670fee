"""The checksums of a part, which are in its name, and how the file is compared with them.

A part is called `<name>.<checksums>.parquet`: sixteen hexadecimal digits, the CRC-32 of the file and the
CRC-32 of its footer. With the path alone the file can be checked, without the log or the state; and nothing
else that we could add to an entry of the log survives a checkpoint. Parts of earlier versions have no
checksums and are not checked.

Parquet's own page checksums cover neither footers nor page headers, and DuckDB and Spark ignore them. So each
process reads a file once before it is used, and again when it was changed.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from tidemill.model.errors import DamageError
from tidemill.model.names import BUCKET_FOLDER
from tidemill.storage.bucket_path import local_copy
from tidemill.storage.files import storage_errors, within_warehouse

_SUFFIX: Final = ".parquet"
_NAMED: Final = re.compile(r"\.([0-9a-f]{8})([0-9a-f]{8})\.parquet\Z")
_PIECE: Final = 1 << 20
_TAIL: Final = 8  # of a Parquet file: the length of its footer, and a magic number
_KNOWN: Final = 65_536  # files that a process remembers as intact
MISSING: Final = "is missing"
CHANGED: Final = "is not what was written: its checksum differs"


@dataclass(frozen=True, slots=True)
class Checksums:
    """Of a file as it was written."""

    file: int
    footer: int


def checksum_of(path: Path | str) -> int:
    """The CRC-32 of the bytes of a file, which is read piece by piece."""
    found = 0
    buffer = bytearray(_PIECE)
    view = memoryview(buffer)
    with local_copy(path).open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            found = zlib.crc32(view[:count], found)
    return found


def _footer_checksum(path: Path | str) -> int | None:
    """The CRC-32 of the footer; None: the file has none."""
    with local_copy(path).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size < _TAIL:
            return None
        file.seek(size - _TAIL)
        length = int.from_bytes(file.read(4), "little") + _TAIL
        if length > size:
            return None
        file.seek(size - length)
        return zlib.crc32(file.read(length))


def checksums_of(path: Path) -> Checksums:
    """The checksums of a Parquet file that was just written."""
    footer = _footer_checksum(path)
    assert footer is not None, path
    return Checksums(checksum_of(path), footer)


def with_checksums(name: str, sums: Checksums) -> str:
    """The name of a part, with its checksums."""
    return f"{without_checksums(name).removesuffix(_SUFFIX)}.{sums.file:08x}{sums.footer:08x}{_SUFFIX}"


def without_checksums(path: str) -> str:
    """The path of a part without its checksums: known before it is written."""
    return _NAMED.sub(_SUFFIX, path)


def named_checksums(path: Path | str) -> Checksums | None:
    """The checksums in the name of a file; None: it has none."""
    found = _NAMED.search(Path(path).name)
    return None if found is None else Checksums(int(found[1], 16), int(found[2], 16))


def check_part(path: Path | str) -> None:
    """DamageError unless the file is what was written. Each process reads a file once, and again when it was
    changed."""
    with _damage(path):
        _check_file(str(path), *_touched(path))


def check_footer(path: Path | str) -> None:
    """The same for the footer alone, for readers that need nothing else."""
    with _damage(path):
        _check_footer(str(path), *_touched(path))


def is_whole(path: Path | str) -> bool:
    try:
        check_part(path)
    except DamageError:
        return False
    return True


def checked(paths: Iterable[str]) -> list[str]:
    """These parts, each compared with its checksum: for engines that do not check themselves."""
    found = list(paths)
    for path in found:
        check_part(path)
    return found


def damaged_part(path: Path | str, reason: str) -> DamageError:
    return DamageError(f"the part {reason}", where=within_warehouse(path))


@contextmanager
def _damage(path: Path | str) -> Iterator[None]:
    with storage_errors("read the part", path):
        try:
            yield
        except FileNotFoundError:
            raise damaged_part(path, MISSING) from None


def _touched(path: Path | str) -> tuple[int, int, int]:
    """What shows that a file was written to. (Its change time cannot be set back, unlike its modification
    time.)"""
    if BUCKET_FOLDER in str(path):
        path = local_copy(path)
    found = os.stat(path)  # noqa: PTH116 (a Path takes longer to make than a file to look at)
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


# An error is not cached: a file that was put back is read again.


@lru_cache(maxsize=_KNOWN)
def _check_file(path: str, _size: int, _written: int, _changed: int) -> None:
    sums = named_checksums(path)
    if sums is None:
        reason = damage_without_checksum(path)
    else:
        reason = None if checksum_of(path) == sums.file else CHANGED
    if reason is not None:
        raise damaged_part(path, reason)


def damage_without_checksum(path: Path | str) -> str | None:
    """What is wrong with a part without checksums, as far as can be found: whether it has a footer."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        pq.read_metadata(local_copy(path))
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        return f"cannot be read: {str(error).splitlines()[0]}"
    except OSError as error:
        if error.errno is not None or isinstance(error, FileNotFoundError):
            raise
        return f"cannot be read: {str(error).splitlines()[0]}"  # Arrow's error for a bad footer
    return None


@lru_cache(maxsize=_KNOWN)
def _check_footer(path: str, _size: int, _written: int, _changed: int) -> None:
    sums = named_checksums(path)
    if sums is not None and _footer_checksum(path) != sums.footer:
        raise damaged_part(path, CHANGED)
