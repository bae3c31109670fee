"""Compares the files of a warehouse with their checksums, one after the other. Nothing is decoded or changed.

It may run beside writers, and takes no lock: a file that they replace meanwhile is not damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tidemill.model.damage import Damage, FileKind
from tidemill.model.errors import StorageError
from tidemill.storage.bucket_path import forget_copy


@dataclass(slots=True)
class ScrubTally:
    """What was read so far."""

    files: int = 0
    bytes: int = 0
    unchecked: int = 0  # files that have no checksum: earlier versions wrote them


@dataclass(frozen=True, slots=True)
class FileCheck:
    """A file that was read; `damage` is None when nothing is wrong with it."""

    file: str  # relative to the warehouse
    damage: Damage | None = None


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that should exist, and how it is compared with its checksum."""

    warehouse: Path
    path: Path
    kind: FileKind
    stream: str
    check: Callable[[Path], bool]  # False: it has no checksum; DamageError: it does not match
    is_current: Callable[[], bool]  # called when it does not match: a file that was replaced is not damaged

    @property
    def file(self) -> str:
        return self.path.relative_to(self.warehouse).as_posix()


def check_files(files: Iterable[StoredFile], tally: ScrubTally, after: str = "") -> Iterator[FileCheck]:
    """Check the files whose names come after one, in the order of their names."""
    for file in sorted(files, key=lambda one: one.file):
        if file.file > after:
            yield FileCheck(file.file, _damage(file, tally))


def _damage(file: StoredFile, tally: ScrubTally) -> Damage | None:
    tally.files += 1
    try:
        forget_copy(file.path)
        tally.bytes += file.path.stat().st_size
        tally.unchecked += not file.check(file.path)
    except FileNotFoundError:
        reason = "the file is missing"
    except OSError as error:
        reason = f"the file cannot be read: {error.strerror or error}"
    except StorageError as error:
        reason = error.message
    else:
        return None
    return Damage(file.file, file.kind, file.stream, reason) if _is_current(file) else None


def _is_current(file: StoredFile) -> bool:
    try:
        return file.is_current()
    except StorageError:  # the file that lists it is damaged itself
        return True
