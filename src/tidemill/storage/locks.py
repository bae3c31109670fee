"""A lock that dies with its holder, so that a crash never leaves a warehouse locked."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemill.model.errors import BusyError
from tidemill.storage.files import storage_errors


@contextmanager
def exclusive(path: Path, act: str) -> Iterator[None]:
    with storage_errors(f"lock for {act}", path), path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(
                f"another process is working on this warehouse; cannot {act} now",
                where=str(path.parent),
                hint="wait for it, or stop `tidemill run`",
            ) from None
        yield
