"""The entries of a Delta log as files: reads them, makes them durable, removes old ones.

Entries are made only by `Table.commit`, `Table.reshape` and `take_version`.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidemill.model.errors import ConflictError, StorageError
from tidemill.storage import layout
from tidemill.storage.bucket_path import BucketPath, on_disk
from tidemill.storage.files import storage_errors, sync_file, sync_folder
from tidemill.storage.tables import log_checksums, log_copies
from tidemill.storage.tables.part_checksums import MISSING
from tidemill.storage.tables.snapshot import plain_path

INFO_KEY: Final = "tidemill"  # key of our metadata in Delta's commitInfo
TAKEN_OVER: Final = "taken_over"  # in the info of an entry that changes no part: see `take_version`
# Each lost try is a commit that another writer won, so there is no need to wait between them.
TRIES: Final = 64
_ENTRY: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.parquet")


@dataclass(frozen=True, slots=True)
class Commit:
    """One entry of the log: the metadata of its writer, and the parts it added and removed."""

    version: int
    info: dict[str, str]
    added: list[str] = field(default_factory=list)
    removed_at: dict[str, int | None] = field(default_factory=dict)  # None: its writer did not record when

    @property
    def removed(self) -> list[str]:
        return list(self.removed_at)


def entry_path(root: Path, version: int) -> Path:
    return layout.table_log(root) / f"{version:020d}.json"


def _numbered(root: Path, pattern: re.Pattern[str]) -> dict[int, Path]:
    with storage_errors("list the log", layout.table_log(root)):
        matches = ((pattern.fullmatch(path.name), path) for path in layout.table_log(root).iterdir())
        return {int(match.group(1)): path for match, path in matches if match}


def entries(root: Path) -> dict[int, Path]:
    return _numbered(root, _ENTRY)


def files(root: Path) -> list[Path]:
    """The entries and checkpoints."""
    return [*entries(root).values(), *checkpoints(root).values()] if layout.table_log(root).is_dir() else []


def missing_entries(root: Path) -> list[Path]:
    """Entries that are missing although an older and a newer one exist: entries are trimmed oldest first."""
    there = entries(root) if layout.table_log(root).is_dir() else {}
    between = range(min(there, default=0), max(there, default=0))
    return [entry_path(root, version) for version in between if version not in there]


def is_newest(root: Path, version: int) -> bool:
    """Whether the log ends with `version`; False also if two names are not enough to tell.

    Entries are trimmed oldest first, so as long as the entry of `version` exists, a later one does too.
    """
    if isinstance(root, BucketPath):
        last = f"{root.key}/{layout.table_log(root).name}/{entry_path(root, version).name}"
        return not root.bucket.has_any(last.rpartition("/")[0], after=last)
    folder = str(layout.table_log(root))
    newer, own = (os.path.exists(f"{folder}/{number:020d}.json") for number in (version + 1, version))  # noqa: PTH110
    return own and not newer


def checkpoints(root: Path) -> dict[int, Path]:
    return _numbered(root, _CHECKPOINT)


def _actions(path: Path) -> Iterator[dict[str, dict[str, object]]]:
    for line in path.read_bytes().splitlines():
        if line.strip():
            yield json.loads(line)


def read_commit(root: Path, version: int) -> Commit:
    path = entry_path(root, version)
    commit = Commit(version, {})
    try:
        with storage_errors("read the log entry", path):
            for action in _actions(path):
                if "commitInfo" in action:
                    info = action["commitInfo"].get(INFO_KEY, {})
                    assert isinstance(info, dict), path
                    commit.info.update(info)
                elif "add" in action:
                    commit.added.append(plain_path(str(action["add"]["path"])))
                elif "remove" in action:
                    at = action["remove"].get("deletionTimestamp")  # milliseconds
                    name = plain_path(str(action["remove"]["path"]))
                    commit.removed_at[name] = at * 1000 if isinstance(at, int) else None
    except StorageError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        if any(older < version for older in entries(root)):  # entries are trimmed oldest first: it was lost
            raise log_checksums.damaged_log(root, path.name, MISSING) from None
        raise StorageError(
            f"version {version} of the table is no longer in its log",
            hint="run `tidemill recover`: it rebuilds the state from the parts themselves",
            where=str(path),
        ) from None
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise log_checksums.damaged_log(root, path.name, f"cannot be read: {error}") from error
    return commit


def write_entry(root: Path, version: int, actions: Sequence[Mapping[str, object]]) -> bool:
    """Write an entry that deltalake has no call for; False if another writer took its version."""
    target = entry_path(root, version)
    content = "".join(f"{json.dumps(action, separators=(',', ':'))}\n" for action in actions).encode()
    temporary = target.with_name(f"_commit_{uuid.uuid4().hex}.json.tmp")
    on_disk(target.parent).mkdir(parents=True, exist_ok=True)
    with storage_errors("write the log entry", target):
        try:
            temporary.write_bytes(content)
            sync_file(temporary)
            target.hardlink_to(temporary)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
    return True


def take_version(root: Path, number: int) -> None:
    """Write an entry that changes nothing: a writer that was about to write that version finds it taken and
    must check its lease again. `number` is the number of the lease. A table that is still being created has
    no version to take.
    """
    info = {"timestamp": number // 1000, "operation": "TAKE OVER", INFO_KEY: {TAKEN_OVER: str(number)}}
    for _ in range(TRIES):
        there = entries(root)
        if not there:
            return
        version = max(there) + 1
        if write_entry(root, version, [{"commitInfo": info}]):
            sync_entries(root, version - 1, version)
            return
    raise contended(root)


def contended(root: Path) -> ConflictError:
    return ConflictError(
        f"other writers committed first {TRIES} times in a row",
        hint="run fewer writers on this table, then try again",
        where=str(root),
    )


def is_whole(path: Path) -> bool:
    """Whether the entry has lines and every one of them parses."""
    with storage_errors("read the log entry", path):
        try:
            return len(list(_actions(path))) > 0
        except ValueError:
            return False


def set_torn_entries_aside(root: Path, aside: Path) -> list[int]:
    """Move away the newest entries if a power loss left them empty or cut.

    deltalake renames an entry into place without syncing its bytes first. We acknowledge a commit only after
    syncing them, so an entry that is not whole was never acknowledged.
    """
    if isinstance(root, BucketPath) or not layout.table_log(root).is_dir():
        return []
    found = entries(root)
    torn: list[int] = []
    for version in sorted(found, reverse=True):
        if is_whole(found[version]):
            break
        torn.append(version)
    for version in torn:
        with storage_errors("set the torn log entry aside", found[version]):
            aside.mkdir(parents=True, exist_ok=True)
            found[version].replace(aside / found[version].name)
    if torn:
        sync_folder(layout.table_log(root))
    return torn


def last_checkpoint(root: Path) -> int:
    """The version of the newest checkpoint, -1 if there is none."""
    folder = layout.table_log(root)
    path = folder / "_last_checkpoint"
    with storage_errors("read", path):
        try:
            return int(json.loads(path.read_bytes())["version"])
        except (ValueError, KeyError, TypeError, FileNotFoundError):
            # only a pointer: the checkpoint itself is found by its name
            return max(checkpoints(root), default=-1) if folder.is_dir() else -1


def sync_entries(root: Path, after: int, upto: int) -> None:
    """Make the entries in (after, upto] and their names durable.

    Not only the last one: another writer may have committed in between and not synced yet, and a durable
    entry after a torn one would be worthless. Then their checksums are recorded.
    """
    if isinstance(root, BucketPath):
        return  # a bucket keeps its objects more than once, and none is torn
    paths = [entry_path(root, version) for version in range(after + 1, upto + 1)]
    there = [path for path in paths if path.exists() or path == paths[-1]]
    for path in there:
        sync_file(path)
    sync_folder(layout.table_log(root))
    log_checksums.record(root, [path.name for path in there])
    log_copies.keep(root, [path.name for path in there])


def sync_checkpoint(root: Path, version: int) -> None:
    if isinstance(root, BucketPath):
        return
    folder = layout.table_log(root)
    name = f"{version:020d}.checkpoint.parquet"
    for path in (folder / name, folder / "_last_checkpoint"):
        sync_file(path)
    sync_folder(folder)
    log_checksums.record(root, [name])
    log_copies.keep(root, [name])


def removed_at(root: Path, written: Mapping[str, int]) -> dict[str, int]:
    """When parts were removed, by the clock of the remover. `written`: when the file of each was written. A
    part that no entry removed is left out.

    Searches from the newest entry back. An entry older than a file did not remove it: it removed an earlier
    part of the same name.
    """
    found: dict[str, int] = {}
    sought = dict(written)
    for version, path in sorted(entries(root).items(), reverse=True):
        if not sought:
            break
        with storage_errors("look at the log entry", path):
            at = path.stat().st_mtime_ns // 1000
        if at < min(sought.values()):
            break
        for name, instant in read_commit(root, version).removed_at.items():
            if sought.get(name, at + 1) <= at:
                found[name] = at if instant is None else instant
                del sought[name]
    return found


def trim(root: Path, before: int) -> int:
    """Delete entries and checkpoints below the newest checkpoint that is older than `before`.

    Every version from that checkpoint on can still be read; returns how many entries were deleted.
    """
    versions = checkpoints(root)
    with storage_errors("look at the log", layout.table_log(root)):
        old = [version for version, path in versions.items() if path.stat().st_mtime_ns // 1000 < before]
        floor = max(old, default=-1)
        log_checksums.trim(root, floor)  # first: a recorded file that is missing counts as lost
        log_copies.trim(root, floor)
        # oldest first: a reader that sees an entry knows that no later one was deleted
        gone = [path for version, path in sorted(entries(root).items()) if version < floor]
        for path in [*gone, *(path for version, path in versions.items() if version < floor)]:
            path.unlink(missing_ok=True)
    if gone:
        sync_folder(layout.table_log(root))
    return len(gone)
