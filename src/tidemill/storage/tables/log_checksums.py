"""Checksums of the files of a table's log: its entries and its checkpoints.

Delta has none. There is a line for each file in `_log_sums/`, beside the log, written once the file is
durable: opening the table finds an entry that was changed or lost, also the last one. An incomplete line is
ignored, and a file without a line is not checked: a power cut may leave both, and so did earlier versions.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidemill.model.errors import DamageError
from tidemill.storage import layout
from tidemill.storage.bucket_path import BucketPath
from tidemill.storage.files import atomic_write, storage_errors, within_warehouse
from tidemill.storage.tables.part_checksums import CHANGED, MISSING

SPAN: Final = 100  # versions whose lines are in one file
_VERSION: Final = re.compile(r"(\d{20})\.(?:json|checkpoint\.parquet)")
_LINE: Final = re.compile(rb"(\S+) (\d+) ([0-9a-f]{8}) ([0-9a-f]{8})")
_CHECKPOINT: Final = ".checkpoint.parquet"


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of the log as it was written."""

    name: str
    size: int
    checksum: int

    @property
    def version(self) -> int:
        return int(self.name[:20])

    @property
    def is_checkpoint(self) -> bool:
        return self.name.endswith(_CHECKPOINT)

    def line(self) -> bytes:
        """Starts with a line end: a power cut may have torn the line before."""
        text = f"{self.name} {self.size} {self.checksum:08x}".encode()
        return b"\n%b %08x\n" % (text, zlib.crc32(text))

    def damage(self, folder: Path) -> str | None:
        """What is wrong with it now, as text."""
        path = folder / self.name
        with storage_errors("read the log", path):
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                return MISSING
        if len(content) != self.size:
            return f"has {len(content)} bytes, and {self.size} were written"
        return None if zlib.crc32(content) == self.checksum else CHANGED


def record(root: Path, names: Iterable[str]) -> None:
    """Record durable files of the log, unless they are recorded.

    Not synced: a line that a power cut loses only leaves its file unchecked, until the next commit.
    """
    by_file: dict[Path, list[str]] = {}
    for name in names:
        by_file.setdefault(_file(root, int(name[:20])), []).append(name)
    for file, names_of_file in by_file.items():
        known = _read(file)
        lines = [_found(layout.table_log(root) / name).line() for name in names_of_file if name not in known]
        if lines:
            with storage_errors("write", file):
                file.parent.mkdir(exist_ok=True)
                with file.open("ab") as out:
                    out.write(b"".join(lines))


def _found(path: Path) -> LogFile:
    with storage_errors("read the log", path):
        content = path.read_bytes()
    return LogFile(path.name, len(content), zlib.crc32(content))


def recorded(root: Path, first: int = 0) -> Mapping[str, LogFile]:
    """Recorded files by name, of version `first` or later."""
    if isinstance(root, BucketPath):
        return {}  # a bucket has checksums of its own
    folder = layout.log_sums(root)
    with storage_errors("read", folder):
        files = sorted(folder.iterdir()) if folder.is_dir() else []
    later = [file for file in files if file.name >= _file(root, first).name]
    found = (each for file in later for each in _read(file).values())
    return {each.name: each for each in found if each.version >= first}


def _read(file: Path) -> dict[str, LogFile]:
    """The first line for a name counts: it was written when the file was."""
    found: dict[str, LogFile] = {}
    with storage_errors("read", file):
        try:
            lines = file.read_bytes().split(b"\n")
        except FileNotFoundError:
            return found
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None or zlib.crc32(line.rpartition(b" ")[0]) != int(match[4], 16):
            continue
        name = match[1].decode(errors="replace")
        if _VERSION.fullmatch(name):
            found.setdefault(name, LogFile(name, int(match[2]), int(match[3], 16)))
    return found


def _file(root: Path, version: int) -> Path:
    return layout.log_sums(root) / f"{version // SPAN:018d}.sums"


# -- checking


def check(root: Path, after: int, upto: int) -> None:
    """DamageError when one of the entries in (after, upto] is not what was written."""
    known = recorded(root, after + 1)
    for version in range(after + 1, upto + 1):
        file = known.get(f"{version:020d}.json")
        reason = None if file is None else file.damage(layout.table_log(root))
        if reason is not None:
            raise damaged_log(root, f"{version:020d}.json", reason)


def check_newest(root: Path, checkpoint: int) -> None:
    """DamageError if a file that readers of the newest version need is not what was written: the last
    checkpoint (-1: none) and all entries after it, also missing ones."""
    for file, reason in damaged_files(root, recorded(root, max(0, checkpoint)).values()):
        if file.version > checkpoint or file.is_checkpoint:
            raise damaged_log(root, file.name, reason)


def damaged_files(root: Path, files: Iterable[LogFile]) -> Iterator[tuple[LogFile, str]]:
    folder = layout.table_log(root)
    for file in files:
        reason = file.damage(folder)
        if reason is not None:
            yield file, reason


def damaged_log(root: Path, name: str, reason: str) -> DamageError:
    what = "checkpoint" if name.endswith(_CHECKPOINT) else "entry"
    return DamageError(
        f"the {what} of the table's log {reason}", where=within_warehouse(layout.table_log(root) / name)
    )


def trim(root: Path, floor: int) -> None:
    """Forget the files of versions before `floor`, which are about to be deleted."""
    folder, last = layout.log_sums(root), _file(root, max(0, floor))
    with storage_errors("trim", folder):
        for file in list(folder.iterdir()) if folder.is_dir() else ():
            if file.name < last.name:
                file.unlink(missing_ok=True)
        known = _read(last)
    kept = [file for file in known.values() if file.version >= floor]
    # A line that another process adds meanwhile may be lost: one file stays unchecked.
    if len(kept) < len(known):
        atomic_write(last, b"".join(file.line() for file in kept))
