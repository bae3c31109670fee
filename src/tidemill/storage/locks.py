"""A lock that dies with its holder, so that a crash never leaves a warehouse locked."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tidemill.model.errors import BusyError
from tidemill.storage.files import storage_errors


@contextmanager
def exclusive(path: Path, act: str) -> Iterator[None]:
    """Hold the lock while the body runs. Errors of the body pass through as they are."""
    with storage_errors(f"lock for {act}", path):
        file = path.open("a")
    with file:
        _take(file, path, act)
        yield


def _take(file: TextIO, path: Path, act: str) -> None:
    with storage_errors(f"lock for {act}", path):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(
                f"another process is working on this warehouse; cannot {act} now",
                where=str(path.parent),
                hint="wait for it, or stop `tidemill run`",
            ) from None
