"""The files of tables for a scrub: the parts of the newest version, the entries and checkpoints of the log.

A scrub may run beside writers: a part that they replace meanwhile and delete is not damaged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from tidemill.model.damage import Damage, FileKind
from tidemill.model.errors import DamageError
from tidemill.storage import layout
from tidemill.storage.file_scrub import FileCheck, ScrubTally, StoredFile, check_files
from tidemill.storage.tables import log, log_checksums
from tidemill.storage.tables.log_checksums import LogFile, damaged_log
from tidemill.storage.tables.part_checksums import (
    CHANGED,
    MISSING,
    checksum_of,
    damage_without_checksum,
    damaged_part,
    named_checksums,
)
from tidemill.storage.tables.snapshot import Part
from tidemill.storage.tables.table import Table, expect_version

RESULTS: Final = "results of "  # prefix of the name of a window, among versions of tables
_KINDS: Final[Mapping[layout.TableKind, FileKind]] = {  # in the order of their folders
    "chains": FileKind.CHAIN,
    "index": FileKind.INDEX,
    "quarantine": FileKind.QUARANTINE,
    "raw": FileKind.RAW,
    "rollups": FileKind.ROLLUP,
}


def scrub_tables(
    warehouse: Path,
    stream: str,
    windows: Collection[str],
    committed: Mapping[str, int],
    tally: ScrubTally,
    after: str = "",
) -> Iterator[FileCheck]:
    """All files of the tables of a stream whose names come after one, in the order of their names; results of
    its `windows` only. `committed`: versions of the tables that are known to have been committed, by
    kind."""
    for name, kind in _KINDS.items():
        root = layout.table(warehouse, name, stream)
        yield from scrub_table(warehouse, root, kind, stream, tally, after, committed=committed.get(name, 0))
    for window in sorted(windows):
        root, version = layout.results(warehouse, stream, window), committed.get(f"{RESULTS}{window}", 0)
        yield from scrub_table(warehouse, root, FileKind.RESULT, stream, tally, after, committed=version)


def scrub_table(
    warehouse: Path,
    root: Path,
    kind: FileKind,
    stream: str,
    tally: ScrubTally,
    after: str = "",
    *,
    committed: int = 0,
) -> Iterator[FileCheck]:
    """The same for one table. If its log cannot be read, its parts are unknown and not checked."""
    files = list(_log_files(warehouse, root, stream))
    folder = root.relative_to(warehouse).as_posix()
    try:
        table = Table.existing(root)
        if table is None and committed:
            if folder > after:
                reason = f"the table is gone, and version {committed} of it was committed"
                yield FileCheck(folder, Damage(folder, kind, stream, reason))
            return
        expect_version(root, table, committed)
        files += [_part_file(warehouse, root, kind, stream, part) for part in _parts(table)]
    except DamageError as error:
        if error.where > after and error.where not in {one.file for one in files}:
            yield FileCheck(error.where, Damage(error.where, FileKind.TABLE_LOG, stream, error.message))
    yield from check_files(files, tally, after)


def _parts(table: Table | None) -> list[Part]:
    return [] if table is None else list(table.snapshot().parts)


def _part_file(warehouse: Path, root: Path, kind: FileKind, stream: str, part: Part) -> StoredFile:
    check, is_current = partial(_check_part, part.size), partial(_is_current, root, part)
    return StoredFile(warehouse, root / part.path, kind, stream, check, is_current)


def _check_part(size: int, path: Path) -> bool:
    sums = named_checksums(path)
    found = path.stat().st_size
    if found != size:
        reason: str | None = f"has {found} bytes, and {size} were written"
    elif sums is None:
        reason = damage_without_checksum(path)
    else:
        reason = None if checksum_of(path) == sums.file else CHANGED
    if reason is not None:
        raise damaged_part(path, reason)
    return sums is not None


def _is_current(root: Path, part: Part) -> bool:
    """Whether the part is still in the table; if not, a writer replaced it and its file may be gone."""
    table = Table.existing(root)
    return table is not None and part.path in table.snapshot().by_path


def _log_files(warehouse: Path, root: Path, stream: str) -> Iterator[StoredFile]:
    folder = layout.table_log(root)
    known = log_checksums.recorded(root)
    there = {path.name for path in log.files(root)}
    missing = {path.name for path in log.missing_entries(root)}
    for name in sorted({*known, *there, *missing}):
        check = partial(_check_log_file, root, known.get(name))
        is_current = partial(_is_on_record, root, name) if name in known else lambda: True
        yield StoredFile(warehouse, folder / name, FileKind.TABLE_LOG, stream, check, is_current)


def _check_log_file(root: Path, known: LogFile | None, path: Path) -> bool:
    reason = known.damage(path.parent) if known is not None else None if path.exists() else MISSING
    if reason is not None:
        raise damaged_log(root, path.name, reason)
    return known is not None


def _is_on_record(root: Path, name: str) -> bool:
    """Whether the file is still recorded; if not, it was trimmed just now."""
    return name in log_checksums.recorded(root)
