"""Which processes have a Spark session, and where its web UI is: for `status`, which starts no JVM.

A process keeps a small file locked while its session is open. The lock, not the file, shows whether it lives.
Nothing depends on these files.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tidemill.storage import layout
from tidemill.storage.bucket_path import on_disk
from tidemill.storage.files import lock_now, locked_file, remove_dead

_MOST: Final = 1 << 16  # bytes of a file


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A Spark session of a process on this machine, or on one that shares the file system."""

    pid: int
    master: str
    ui: str | None  # the address of its web UI; None: it has none


class SessionFile:
    """The locked file about the session of this process; from `open` to `close`."""

    def __init__(self, warehouse: Path) -> None:
        self._folder: Final = on_disk(layout.sessions(warehouse))
        self._held: tuple[Path, int] | None = None

    def open(self, session: OpenSession) -> None:
        self.close()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            remove_dead(list(self._folder.iterdir()))
            self._held = locked_file(lambda: self._folder / f"{session.pid}-{os.urandom(4).hex()}")
            os.write(self._held[1], json.dumps(asdict(session)).encode())
        except OSError:
            return  # a full disk is reported where it loses data; here it does not

    def close(self) -> None:
        if self._held is not None:
            path, lock = self._held
            path.unlink(missing_ok=True)
            os.close(lock)
            self._held = None


def open_sessions(warehouse: Path) -> list[OpenSession]:
    """The sessions of processes that live, by process."""
    try:
        paths = sorted(on_disk(layout.sessions(warehouse)).iterdir())
    except FileNotFoundError:
        return []
    return sorted(filter(None, map(_read, paths)), key=lambda one: one.pid)


def _read(path: Path) -> OpenSession | None:
    """The session in a file; None if its process is gone, or is just starting or ending."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if lock_now(descriptor):
            return None
        session = json.loads(os.read(descriptor, _MOST))
        return OpenSession(int(session["pid"]), str(session["master"]), session["ui"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    finally:
        os.close(descriptor)
