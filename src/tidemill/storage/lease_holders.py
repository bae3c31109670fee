"""Shows other processes on the same machine which processes are alive: each holder of a lease keeps a file
locked.

The lock ends with its process, so nobody waits for the lease of a killed process. For processes of other
machines only the end of their lease shows that they are gone.
"""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

from tidemill.storage import layout
from tidemill.storage.bucket_path import BucketPath
from tidemill.storage.files import attempt, lock_now, locked_file, make_folder, remove_dead, storage_errors

_NUMBER: Final = "+"  # separates the name of a holder from the number of one of its workers
_MACHINE: Final = ":"  # separates the machine from the rest, where machines share no disk


def new_holder(warehouse: Path) -> str:
    """A name that no other holder has."""
    name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    machine = machine_name(warehouse)
    return name if machine is None else f"{machine}{_MACHINE}{name}"


def is_of_this_host(owner: str) -> bool:
    """Whether the system that runs this process also ran that holder."""
    return owner.rpartition(_MACHINE)[2].startswith(f"{socket.gethostname()}-")


def owner_of(holder: str, number: int) -> str:
    """The name of one worker of a holder that keeps a file."""
    return f"{holder}{_NUMBER}{number}"


def machine_name(warehouse: Path) -> str | None:
    """The name of this machine among those that share a bucket, given once; None: they share a disk."""
    if not isinstance(warehouse, BucketPath):
        return None
    path = layout.machine(warehouse)
    with storage_errors("name the machine", path):
        if not path.exists():
            with attempt(path) as draft:
                draft.write_text(secrets.token_hex(8))
                with suppress(FileExistsError):  # another process was first
                    path.hardlink_to(draft)
        return path.read_text()


class HolderFile:
    """The locked file that shows that a holder lives; from `open` to `close`."""

    def __init__(self, warehouse: Path, name: str) -> None:
        self._folder: Final = layout.holders(warehouse)
        self._warehouse = warehouse
        self._name = name
        self._held: tuple[Path, int] | None = None

    def open(self) -> None:
        if self._held is None:
            make_folder(self._folder, top=self._warehouse)
            with storage_errors("show that this process lives", self._folder):
                remove_dead(list(self._folder.iterdir()))
                self._held = locked_file(lambda: self._folder / self._name)

    def close(self) -> None:
        if self._held is not None:
            path, lock = self._held
            path.unlink(missing_ok=True)
            os.close(lock)
            self._held = None


def is_alive(warehouse: Path, owner: str) -> bool | None:
    """Whether a holder, or one of its workers, lives as far as can be seen from here; None if it keeps no
    file or the file system has no locks."""
    holder, separator, _ = owner.rpartition(_NUMBER)
    if not separator:
        return None
    machine, known, _ = holder.rpartition(_MACHINE)
    if known and machine != machine_name(warehouse):
        return True
    try:
        descriptor = os.open(layout.holders(warehouse) / holder, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        found = lock_now(descriptor)
    finally:
        os.close(descriptor)
    return None if found is None else not found
