"""A second copy of every file of a table's log, in `_log_copies/` beside it. Only the entries of the log
record which parts were added and removed: one that is lost or changed is restored from its copy.

The copies of a hundred versions are in one file, one after the other, each after a line with its name and
size. Earlier versions kept a file for each, which is still read. Not synced: a copy that a power cut tears is
detected by its checksum, and is made again by the next commit after the table was opened.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidemill.storage import layout
from tidemill.storage.files import atomic_write, storage_errors
from tidemill.storage.tables import log_checksums

_SUFFIX: Final = ".copies"  # readers do not take it for a part
_ALONE: Final = ".copy"  # of one file, as earlier versions wrote it
_HEAD: Final = re.compile(rb"\n(\d{20}\.(?:json|checkpoint\.parquet)) (\d+)\n")
_LONGEST: Final = 100  # bytes of such a line


def keep(root: Path, names: Iterable[str]) -> None:
    """Copy files of the log that are durable, unless they are copied."""
    by_file: dict[Path, list[str]] = {}
    for name in names:
        by_file.setdefault(_file(root, name), []).append(name)
    for file, names_of_file in by_file.items():
        with storage_errors("copy", file):
            known = {copy.name for copy in _copies(file)}
            new = [name for name in names_of_file if name not in known and not _alone(root, name).exists()]
            if new:
                file.parent.mkdir(exist_ok=True)
                with file.open("ab", buffering=0) as out:  # written at once: another process may write too
                    for name in new:
                        content = (layout.table_log(root) / name).read_bytes()
                        out.write(b"\n%b %d\n%b" % (name.encode(), len(content), content))


def is_kept(root: Path, name: str) -> bool:
    """Whether there is an intact copy of a file of the log."""
    return _content(root, name) is not None


def put_back(root: Path, name: str) -> bool:
    """Restore a file of the log from its copy; False if there is no intact one."""
    content = _content(root, name)
    if content is not None:
        atomic_write(layout.table_log(root) / name, content)
    return content is not None


def trim(root: Path, floor: int) -> None:
    """Forget the files of versions before `floor`, which are about to be deleted; copies that share a file
    with later ones are deleted with those."""
    folder, last = layout.log_copies(root), _file(root, f"{max(0, floor):020d}.json").name
    with storage_errors("trim", folder):
        for path in list(folder.iterdir()) if folder.is_dir() else ():
            if path.name < (last if path.suffix == _SUFFIX else f"{floor:020d}"):
                path.unlink(missing_ok=True)


def _file(root: Path, name: str) -> Path:
    """Where the copy of a file of the log is kept."""
    return layout.log_copies(root) / f"{int(name[:20]) // log_checksums.SPAN:018d}{_SUFFIX}"


def _alone(root: Path, name: str) -> Path:
    return layout.log_copies(root) / f"{name}{_ALONE}"


def _content(root: Path, name: str) -> bytes | None:
    """The intact copy; None: there is none."""
    known = log_checksums.recorded(root).get(name)
    if known is None:
        return None
    with storage_errors("read", layout.log_copies(root)):
        for content in _stored_copies(root, name):
            if (len(content), zlib.crc32(content)) == (known.size, known.checksum):
                return content
    return None


def _stored_copies(root: Path, name: str) -> Iterator[bytes]:
    """The stored copy of a file, intact or not."""
    if _alone(root, name).exists():
        yield _alone(root, name).read_bytes()
    file = _file(root, name)
    for copy in _copies(file):
        if copy.name == name:
            with file.open("rb") as copies:
                copies.seek(copy.start)
                yield copies.read(copy.size)


@dataclass(frozen=True, slots=True)
class _Copy:
    """The position of a copy in a file of copies."""

    name: str
    start: int
    size: int


def _copies(file: Path) -> list[_Copy]:
    """Copies that have the right number of bytes."""
    found: list[_Copy] = []
    if not file.exists():
        return found
    with file.open("rb") as copies:
        end, at = copies.seek(0, os.SEEK_END), 0
        while at < end:
            copies.seek(at)
            head = _HEAD.match(copies.read(_LONGEST))
            if head is None:
                copies.seek(0)
                return _around_damage(copies.read())
            copy = _Copy(head[1].decode(), at + head.end(), int(head[2]))
            at = copy.start + copy.size
            if at <= end:
                found.append(copy)
    return found


def _around_damage(content: bytes) -> list[_Copy]:
    """A torn copy with others after it: each is found by its line."""
    heads = list(_HEAD.finditer(content))
    ends = [*(head.start() for head in heads[1:]), len(content)]
    return [
        _Copy(head[1].decode(), head.end(), int(head[2]))
        for head, end in zip(heads, ends, strict=True)
        if head.end() + int(head[2]) <= end
    ]
