"""The folder of a log: which process holds it, whether that is alive, and how it is removed.

A folder is locked by the process that writes or reads its log, and the lock ends with that process. A log is
removed by one rename: at no moment can a part of it be mistaken for the whole.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from tidemill.storage import layout
from tidemill.storage.files import make_folder, storage_errors, sync_folder


class Hold:
    """A folder that this process has locked until it releases it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def remove(self) -> None:
        """Rename the folder, after which the log no longer counts; then delete the files."""
        gone = layout.removed_gateway_log(self.path)
        with storage_errors("remove the log", self.path):
            self.path.rename(gone)
        sync_folder(gone.parent)
        _clear(gone)


def new_folder(warehouse: Path) -> Hold:
    """A folder with a new name, locked before others could take it for a dead one."""
    top = layout.gateway_logs(warehouse)
    make_folder(top, top=warehouse)
    while True:
        path = top / secrets.token_hex(6)
        with storage_errors("create the folder", path):
            path.mkdir()
        if hold := _hold(path):  # otherwise another process looks for dead logs now, and will remove it
            sync_folder(top)
            return hold


def dead_folders(warehouse: Path) -> Iterator[Hold]:
    """Folders of dead processes, each locked; release it before the next. Deletes leftovers."""
    top = layout.gateway_logs(warehouse)
    if not top.is_dir():
        return
    for path in sorted(top.iterdir()):
        if layout.is_gateway_log(path) and (hold := _hold(path)):
            yield hold
        elif layout.is_removed_gateway_log(path) and (hold := _hold(path)):
            try:
                _clear(path)
            finally:
                hold.release()


def live_folders(warehouse: Path) -> list[Path]:
    """Folders that are locked, by name: of running gateways, or of dead ones that are being read."""
    top = layout.gateway_logs(warehouse)
    found: list[Path] = []
    for path in sorted(top.iterdir()) if top.is_dir() else ():
        if layout.is_gateway_log(path):
            if hold := _hold(path):
                hold.release()
            elif path.is_dir():
                found.append(path)
    return found


def _hold(path: Path) -> Hold | None:
    """Lock a folder; None if another process has locked it, or it is gone."""
    with storage_errors("lock", path):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return Hold(path, descriptor)
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # alive, or removed between the look at its name and the lock
        return None


def _clear(folder: Path) -> None:
    with storage_errors("remove the log", folder):
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
