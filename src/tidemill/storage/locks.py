"""Locks that die with their holder, so that a crash never leaves a warehouse locked.

On one machine, what works on the whole warehouse holds its lock alone, and rounds share it: that orders them
without waiting for a lease. Who may commit is decided by leases only.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tidemill.model.errors import BusyError
from tidemill.storage.files import storage_errors


@contextmanager
def exclusive(path: Path, act: str, patience: float = 0.0) -> Iterator[None]:
    """Hold the lock while the body runs; wait at most `patience` seconds for another holder. Errors of the
    body pass through as they are."""
    with _held(path, act, fcntl.LOCK_EX, patience):
        yield


@contextmanager
def shared(path: Path, act: str) -> Iterator[None]:
    """Hold the lock, beside others that share it, while the body runs."""
    with _held(path, act, fcntl.LOCK_SH, 0.0):
        yield


@contextmanager
def _held(path: Path, act: str, kind: int, patience: float) -> Iterator[None]:
    with storage_errors(f"lock for {act}", path):
        file = path.open("a")
    with file:
        with storage_errors(f"lock for {act}", path):
            taken = _take(file, kind) or (patience > 0 and _Waiting(file, kind).wait(patience))
        if not taken:
            raise BusyError(
                f"another process is working on this warehouse; cannot {act} now",
                where=str(path.parent),
                hint="wait for it, or stop `tidemill run`",
            )
        yield


def _take(file: TextIO, kind: int) -> bool:
    """Whether the lock is ours now."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class _Waiting:
    """Waits for a lock that another process holds. The blocking call cannot be interrupted, so a thread makes
    it. If nobody waits any more when it gets the lock, closing the file releases it."""

    def __init__(self, file: TextIO, kind: int) -> None:
        self._handle = os.dup(file.fileno())
        self._kind = kind
        self._ended = threading.Event()
        self._is_taken = False

    def wait(self, seconds: float) -> bool:
        """Whether the lock was taken within that time."""
        threading.Thread(target=self._run, name="lock", daemon=True).start()
        self._ended.wait(seconds)
        return self._is_taken

    def _run(self) -> None:
        try:
            fcntl.flock(self._handle, self._kind)
            self._is_taken = True
        finally:
            os.close(self._handle)  # first: closing the file of the waiter must release the lock
            self._ended.set()
