"""Checksums of files that are not Parquet: a trailer after the content, with a CRC-32 of each block.

Reading a file that does not match raises DamageError, which names the file relative to the warehouse. Files
that earlier versions wrote without checksums are read as before, and get some when they are next written.
Logs have chains instead (`storage.log_chain`).
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa
from pyarrow import ipc

from tidemill.model.errors import DamageError
from tidemill.storage.bucket_path import warehouse_path
from tidemill.storage.files import attempt, disk_error, storage_errors
from tidemill.storage.layout import relative_name

MAGIC: Final = b"TIDECRC1"  # the last bytes of a file that carries checksums
ARROW_END: Final = b"ARROW1"  # the last bytes of an Arrow file that an earlier version wrote
BLOCK: Final = 1 << 16  # bytes of content that share a checksum
KNOWN_FILES: Final = 1 << 16  # files that a process remembers as checked
_END: Final = struct.Struct("<IQ8s")  # the checksum of the trailer, the length of the content, the magic
_LENGTH: Final = struct.Struct("<Q")


# -- files


@contextmanager
def opening(path: Path) -> Iterator[None]:
    """Turns OSErrors into StorageErrors, except for FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise disk_error("read", path, error) from error


def write_checked(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Write a file with a trailer, sync it, then give it its name. The folder is not synced."""
    with storage_errors("write", path), attempt(path) as temporary:
        with temporary.open("wb") as file:
            sink = _Summing(file)
            write(sink)  # type: ignore[arg-type]
            file.write(sink.trailer())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


def write_arrow(path: Path, table: pa.Table) -> None:
    """`write_checked` a table as an Arrow file; `read_arrow` reads it."""

    def write(file: BinaryIO) -> None:
        with pa.PythonFile(file, "w") as sink, ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)

    write_checked(path, write)


def read_arrow(path: Path | str) -> pa.Table:
    """A table that `write_arrow` wrote, memory-mapped: columns that are not used are not read. Checksums are
    checked once in each process; FileNotFoundError if the file does not exist."""
    path = warehouse_path(path)
    found = _content(path)
    try:
        table = ipc.open_file(pa.BufferReader(found.buffer)).read_all()
        if not found.checked:  # by an earlier version: nothing else shows that its offsets lie inside it
            table.validate(full=True)
            _remember(path, found.stamp, found.buffer.size)
    except (pa.ArrowInvalid, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DamageError(f"not a valid Arrow file: {reason}", where=relative_name(path)) from error
    return table


def is_whole(path: Path) -> bool:
    """Whether the file exists and can be read; a positive result is cached."""
    try:
        read_arrow(path)
    except (DamageError, FileNotFoundError):
        return False
    return True


def check_file(path: Path) -> bool:
    """Read a file and compare it with its checksums, ignoring the cache; False: it has none. DamageError if
    it does not match, FileNotFoundError if it does not exist."""
    _checked.pop(path, None)  # the next reader checks again
    with opening(path), path.open("rb") as file:
        mapped = _mapped(file, path)
    trailer = _trailer(mapped, path)
    if trailer is None:
        return False
    _compare(mapped, trailer, path)
    return True


_Stamp = tuple[int, int, int]  # inode, size and change time: they show whether the content changed
_checked: Final[dict[Path, tuple[_Stamp, int]]] = {}  # files that matched, and the length of their content


@dataclass(frozen=True, slots=True)
class _Trailer:
    length: int
    sums: tuple[int, ...]  # of each block


@dataclass(frozen=True, slots=True)
class _Content:
    buffer: pa.Buffer
    stamp: _Stamp
    checked: bool  # False: it has no checksums


class _Summing:
    """A file being written, and the checksums of what was written so far."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sums: list[int] = []
        self._sum = 0  # of the block that is not full yet …
        self._filled = 0  # … and how much of it there is
        self.length = 0

    def write(self, content: bytes) -> int:
        view = memoryview(content).cast("B")
        self._file.write(view)
        self.length += len(view)
        size = len(view)
        while view:
            piece = view[: BLOCK - self._filled]
            self._sum = zlib.crc32(piece, self._sum)
            self._filled += len(piece)
            view = view[len(piece) :]
            if self._filled == BLOCK:
                self._sums.append(self._sum)
                self._sum = self._filled = 0
        return size

    def writelines(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            self.write(piece)

    def tell(self) -> int:
        return self.length

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """Ends the content; the trailer follows."""

    def trailer(self) -> bytes:
        sums = [*self._sums, self._sum] if self._filled else self._sums
        return _trailer_bytes(self.length, sums)


def _trailer_bytes(length: int, sums: Iterable[int]) -> bytes:
    table = b"".join(struct.pack("<I", one) for one in sums)
    return table + _END.pack(zlib.crc32(table + _LENGTH.pack(length)), length, MAGIC)


def _content(path: Path) -> _Content:
    """The content of a file, memory-mapped, after it matched its checksums."""
    with opening(path), path.open("rb") as file:
        found = os.fstat(file.fileno())
        mapped = _mapped(file, path)
    stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
    known = _checked.get(path)
    if known is None or known[0] != stamp:
        trailer = _trailer(mapped, path)
        if trailer is None:
            return _Content(pa.py_buffer(mapped), stamp, checked=False)
        _compare(mapped, trailer, path)
        known = _remember(path, stamp, trailer.length)
    return _Content(pa.py_buffer(mapped)[: known[1]], stamp, checked=True)


def _remember(path: Path, stamp: _Stamp, length: int) -> tuple[_Stamp, int]:
    if len(_checked) >= KNOWN_FILES:
        _checked.clear()
    _checked[path] = (stamp, length)
    return stamp, length


def _mapped(file: BinaryIO, path: Path) -> mmap.mmap:
    try:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise DamageError("the file is empty", where=relative_name(path)) from None


def _trailer(content: mmap.mmap, path: Path) -> _Trailer | None:
    """The trailer of a file; None: an earlier version wrote it."""
    size = len(content)
    name = relative_name(path)
    if size < _END.size or content[-len(MAGIC) :] != MAGIC:
        if content[-len(ARROW_END) :] == ARROW_END:
            return None
        raise DamageError("the end of the file is missing or changed", where=name)
    expected, length, _ = _END.unpack(content[-_END.size :])
    blocks = -(-length // BLOCK)
    if size != length + 4 * blocks + _END.size:
        raise DamageError(f"the file has {size} bytes, which is not what was written", where=name)
    table = content[length : length + 4 * blocks]
    if zlib.crc32(table + _LENGTH.pack(length)) != expected:
        raise DamageError("the checksums of the file were changed", where=name)
    return _Trailer(length, struct.unpack(f"<{blocks}I", table))


def _compare(content: mmap.mmap, trailer: _Trailer, path: Path) -> None:
    with memoryview(content) as whole:
        for number, expected in enumerate(trailer.sums):
            start = number * BLOCK
            if zlib.crc32(whole[start : min(start + BLOCK, trailer.length)]) != expected:
                raise DamageError(
                    f"bytes {start:,} to {min(start + BLOCK, trailer.length):,} are not what was written",
                    where=relative_name(path),
                )
