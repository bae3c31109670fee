"""Folders in which parts of raw are prepared, each locked by the process that uses it.

The lock ends with its process, which distinguishes leftovers from live work. Nothing here is part of a table:
a folder may be removed when no process uses it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from pathlib import Path
from typing import Final

from tidemill.storage import layout
from tidemill.storage.files import storage_errors

_OWNER: Final = ".owner"  # file in a folder that its process keeps locked


class PackingFolder:
    """A folder of this process; no other process empties it until it is closed."""

    def __init__(self, root: Path, tag: str) -> None:
        self._descriptor: int | None
        with storage_errors("prepare parts", root):
            self.folder, self._descriptor = _new_folder(layout.packing(root), tag)

    def close(self) -> None:
        """Remove the folder and what is in it."""
        if self._descriptor is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            os.close(self._descriptor)
            self._descriptor = None


def sweep(root: Path) -> list[str]:
    """Remove the folders of dead processes; their names. The caller must hold the tick lock."""
    removed: list[str] = []
    with storage_errors("clean up after a crash", root):
        for folder in sorted(layout.packing(root).glob("*")):
            try:
                descriptor = os.open(folder / _OWNER, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
            except FileNotFoundError:  # its process has just removed it
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
                removed.append(folder.name)
            except BlockingIOError:  # in use
                continue
            finally:
                os.close(descriptor)
    return removed


def _new_folder(top: Path, tag: str) -> tuple[Path, int]:
    while True:
        folder = top / f"{tag}-{os.getpid()}-{secrets.token_hex(4)}"
        folder.mkdir(parents=True)
        try:
            descriptor = os.open(folder / _OWNER, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            continue  # a sweep removed it before it was locked
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if (folder / _OWNER).exists():
            return folder, descriptor
        os.close(descriptor)
