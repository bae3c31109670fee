"""Makes bytes durable, and turns errors of the disk into errors that users can act on.

Nothing here knows about tables. No file is ever left half-written under its final name.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Final

from tidemill.model.errors import ConflictError, StorageError
from tidemill.storage import layout
from tidemill.storage.bucket import BucketError
from tidemill.storage.bucket_path import BucketPath, append_to_log, warehouse_path

UPLOADS: Final = 8  # files that are sent to a bucket at once
_HINTS: Final = {
    errno.ENOSPC: "the disk is full: free some space, then run the same again; nothing is half-written",
    errno.EDQUOT: "the disk quota is used up: free some space, then run the same again",
    errno.EFBIG: "the file is larger than the system allows: raise the file size limit (ulimit -f)",
    errno.EACCES: "check that the user running tidemill may read and write the warehouse folder",
    errno.EPERM: "check that the user running tidemill may read and write the warehouse folder",
    errno.EROFS: "the warehouse is on a read-only file system: remount it or move the warehouse",
    errno.ENOENT: "something removed files of the warehouse: restore them, or run `tidemill repair`",
    errno.EIO: "the disk reports an I/O error: check the disk before anything else",
    errno.EMFILE: "too many open files: raise the limit (ulimit -n)",
}
_HINT: Final = "check the disk and the permissions of the warehouse folder, then run the same again"


def disk_error(act: str, where: Path | str, error: Exception) -> StorageError:
    """`error` with what was being done, where, and what to do about it."""
    if isinstance(error, BucketError):
        return StorageError(str(error), hint=error.hint, where=within_warehouse(where))
    # deltalake gives the system's message only as (coloured) text
    match = re.search(r"os error (\d+)", str(error))
    code = getattr(error, "errno", None) or (int(match.group(1)) if match else 0)
    reason = os.strerror(code) if code else " ".join(str(error).split())
    return StorageError(f"cannot {act}: {reason}", hint=_HINTS.get(code, _HINT), where=str(where))


@contextmanager
def storage_errors(act: str, where: Path | str) -> Iterator[None]:
    """Turns OSErrors into StorageErrors."""
    try:
        yield
    except OSError as error:
        raise disk_error(act, where, error) from error


def _sync(path: Path, flags: int) -> None:
    if isinstance(path, BucketPath) and not path.is_local:
        return  # an object is durable when it is written, and has no folder
    with storage_errors("make durable", path):
        fd = os.open(path, flags)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def sync_file(path: Path) -> None:
    """Return once the bytes of `path` are on disk, whichever process wrote them."""
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    """Return once the names in `path` are on disk."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def make_folder(path: Path, *, top: Path) -> None:
    """Create `path` under the existing `top`, with every new name on the way down durable."""
    if isinstance(path, BucketPath):
        with storage_errors("create the folder", path):
            path.plain.mkdir(parents=True, exist_ok=True)
        return
    if path.is_dir():
        return
    assert top in path.parents, (path, top)
    make_folder(path.parent, top=top)
    with storage_errors("create the folder", path):
        path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def atomic_write(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write `content` to `path` durably; at every instant the old or the new content is there, complete."""
    with storage_errors("write", path):
        clean_attempts(path)
        with attempt(path, mode=mode) as temporary:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
    sync_folder(path.parent)


def place(files: Sequence[tuple[Path, Path]]) -> None:
    """Give files that were written their names. In a bucket they are sent side by side: that waits for the
    network, not for a core."""
    if len(files) > 1 and isinstance(files[0][1], BucketPath):
        with ThreadPoolExecutor(min(len(files), UPLOADS)) as pool:
            for sent in [pool.submit(written.replace, name) for written, name in files]:
                sent.result()
    else:
        for written, name in files:
            written.replace(name)


def append(path: Path, content: bytes, at: int, act: str = "append to the log") -> None:
    """Append to a log that has `at` bytes, durably; what a crash left after them is cut off first. When it
    raises, nothing was appended. In a bucket ConflictError if another writer has appended since."""
    with storage_errors(act, path):
        if isinstance(path, BucketPath):
            if not append_to_log(path, content, at):
                raise ConflictError(
                    "another writer has appended to the log",
                    where=within_warehouse(path),
                    hint="nothing was written; the same can be tried again",
                )
            return
        is_new = not path.exists()
        with path.open("ab") as file:
            os.ftruncate(file.fileno(), at)
            try:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                os.ftruncate(file.fileno(), at)
                raise
    if is_new:
        sync_folder(path.parent)


def remove_tree(folder: Path) -> None:
    """Delete a folder with everything in it, as far as it exists."""
    if isinstance(folder, BucketPath):
        folder.remove_tree()
    else:
        shutil.rmtree(folder, ignore_errors=True)


class Removal:
    """Removes files in a thread, while others go on: to give back what large ones hold takes its time."""

    def __init__(self) -> None:
        self._threads: list[Thread] = []

    def start(self, files: Iterable[Path]) -> None:
        """Remove these files, as far as they exist. Nothing may write to their names before `wait`."""
        thread = Thread(target=_remove_each, args=(list(files),), name="tidemill-removal")
        self._threads.append(thread)
        thread.start()

    def wait(self) -> None:
        while self._threads:
            self._threads.pop().join()


def _remove_each(files: Sequence[Path]) -> None:
    for file in files:
        with suppress(OSError):  # what is left goes with its folder
            file.unlink(missing_ok=True)


# -- temporary files


@contextmanager
def attempt(path: Path, *, mode: int = 0o666) -> Iterator[Path]:
    """An empty temporary file beside `path`, to be renamed to `path` by the caller once it is written. Each
    attempt has a name of its own, so two at once never write to one file. The file is locked meanwhile, and
    is removed at the end if it was not renamed. OSErrors go through."""
    if isinstance(path, BucketPath):  # the folder may not be on this machine yet
        path.plain.parent.mkdir(parents=True, exist_ok=True)
    temporary, lock = locked_file(
        lambda: path.with_name(f".{path.name}.{secrets.token_hex(8)}{layout.TEMPORARY_SUFFIX}"), mode
    )
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
        os.close(lock)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write to, that gets the name `path` when the block ends without an error. Nothing is synced,
    so what is written must not have to survive a crash. OSErrors go through."""
    with attempt(path) as temporary:
        yield temporary
        temporary.replace(path)


def locked_file(name: Callable[[], Path], mode: int = 0o666) -> tuple[Path, int]:
    """A new file, and the descriptor that keeps it locked: the lock, not a name or a clock, shows whether its
    writer lives."""
    while True:
        path = name()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        if lock_now(descriptor) is not False and path.exists():
            return path, descriptor
        os.close(descriptor)  # a clean-up removed it in between


def lock_now(descriptor: int) -> bool | None:
    """Whether we have the lock now; None if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def remove_dead(paths: Iterable[Path]) -> int:
    """Remove the files whose writers are dead; how many. Files being written are locked and stay, so this may
    run at any time."""
    removed = 0
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # its writer is done
        try:
            if lock_now(descriptor):
                path.unlink(missing_ok=True)
                removed += 1
        finally:
            os.close(descriptor)
    return removed


def clean_attempts(path: Path) -> None:
    """Remove what dead processes left of attempts at this file."""
    folder = path.plain.parent if isinstance(path, BucketPath) else path.parent
    if folder.is_dir():
        begins, ends = f".{path.name}.", layout.TEMPORARY_SUFFIX
        others = list(folder.iterdir())
        remove_dead(one for one in others if one.name.startswith(begins) and one.name.endswith(ends))


def within_warehouse(path: Path | str) -> str:
    """A path relative to its warehouse, for messages; unchanged if it is in none."""
    found = warehouse_path(path)
    if isinstance(found, BucketPath):
        return found.key
    found = found.absolute()
    for folder in found.parents:
        if layout.tick_lock(folder).exists():  # no stream or window can have such a name
            return found.relative_to(folder).as_posix()
    return str(path)
