"""Making bytes durable, and turning what the disk says into errors that people can act on.

Nothing here knows about tables. No file is ever left half-written under its final name.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tidemill.model.errors import StorageError
from tidemill.storage import layout

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
    """`error` as one that says what was being done, where, and what to do about it."""
    # deltalake passes on what the system said only as (coloured) text
    match = re.search(r"os error (\d+)", str(error))
    code = getattr(error, "errno", None) or (int(match.group(1)) if match else 0)
    reason = os.strerror(code) if code else " ".join(str(error).split())
    return StorageError(f"cannot {act}: {reason}", hint=_HINTS.get(code, _HINT), where=str(where))


@contextmanager
def storage_errors(act: str, where: Path | str) -> Iterator[None]:
    """Inside it an OSError becomes a StorageError."""
    try:
        yield
    except OSError as error:
        raise disk_error(act, where, error) from error


def _sync(path: Path, flags: int) -> None:
    with storage_errors("make durable", path):
        fd = os.open(path, flags)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def sync_file(path: Path) -> None:
    """Return once the bytes of `path` are on disk, whoever wrote them."""
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    """Return once the names in `path` are on disk."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def make_folder(path: Path, *, top: Path) -> None:
    """Create `path` under the existing `top`, with every new name on the way down durable."""
    if path.is_dir():
        return
    assert top in path.parents, (path, top)
    make_folder(path.parent, top=top)
    with storage_errors("create the folder", path):
        path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def atomic_write(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Put `content` at `path` durably; at every instant the old or the new content is there, whole."""
    with storage_errors("write", path):
        clean_attempts(path)
        with attempt(path, mode=mode) as temporary:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
    sync_folder(path.parent)


# -- temporary files


@contextmanager
def attempt(path: Path, *, mode: int = 0o666) -> Iterator[Path]:
    """An empty file beside `path` to write what it is to hold. Each attempt has a name of its own, so two at
    once never write into one file; whoever is done gives its file the final name. It is locked meanwhile, and
    what still has the temporary name at the end is removed. OSErrors go through."""
    temporary, lock = locked_file(
        lambda: path.with_name(f".{path.name}.{secrets.token_hex(8)}{layout.TEMPORARY_SUFFIX}"), mode
    )
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
        os.close(lock)


def locked_file(name: Callable[[], Path], mode: int = 0o666) -> tuple[Path, int]:
    """A new file, and the descriptor that keeps it locked: the lock, not a name or a clock, says whether its
    writer lives."""
    while True:
        path = name()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        if lock_now(descriptor) is not False and path.exists():
            return path, descriptor
        os.close(descriptor)  # whoever cleans up came between: it is gone


def lock_now(descriptor: int) -> bool | None:
    """Whether we have the lock now; None where the file system knows no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def remove_dead(paths: Iterable[Path]) -> int:
    """Remove those of the files whose writers are dead; how many. Those being written are locked and stay, so
    this may run at any time."""
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
    """What dead processes left of attempts at this file."""
    if path.parent.is_dir():
        begins, ends = f".{path.name}.", layout.TEMPORARY_SUFFIX
        others = list(path.parent.iterdir())
        remove_dead(one for one in others if one.name.startswith(begins) and one.name.endswith(ends))


def within_warehouse(path: Path | str) -> str:
    """A path relative to the warehouse it is in, as people read it; as it is when it is in none."""
    found = Path(path).absolute()
    for folder in found.parents:
        if layout.tick_lock(folder).exists():  # no stream and no window has such a name
            return found.relative_to(folder).as_posix()
    return str(path)
