"""What Spark's JVM and its workers write to stderr becomes records of the log: errors, the rest as debug.

They inherit descriptor 2, so only a redirection of it reaches what they say before they can be configured.
"""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

log = logging.getLogger("tidemill.spark")

_WORSE: Final = re.compile(rb"^\S+ \S+ (?:ERROR|FATAL) |OutOfMemoryError")


@contextmanager
def jvm_to_log() -> Iterator[None]:
    """Processes that are started inside write their stderr to the log; our own stderr stays what it is."""
    kept = os.dup(2)
    reader, writer = os.pipe()
    ours = sys.stderr
    if _is_descriptor_2(ours):
        ours.flush()
        sys.stderr = os.fdopen(kept, "w", 1, ours.encoding, "backslashreplace", closefd=False)
    os.dup2(writer, 2)
    os.close(writer)
    # A daemon: the JVM lives as long as this process and keeps its end of the pipe.
    threading.Thread(target=_read, args=(reader,), name="tidemill-jvmlog", daemon=True).start()
    try:
        yield
    finally:
        sys.stderr.flush()
        sys.stderr = ours
        os.dup2(kept, 2)
        os.close(kept)


def _is_descriptor_2(stream: io.TextIOBase | object) -> bool:
    try:
        return isinstance(stream, io.TextIOBase) and stream.fileno() == 2
    except (OSError, ValueError):  # one that was replaced by something without a descriptor
        return False


def _read(reader: int) -> None:
    with os.fdopen(reader, "rb") as lines:
        for line in lines:
            level = logging.ERROR if _WORSE.search(line) else logging.DEBUG
            log.log(level, "%s", line.decode("utf-8", "backslashreplace").rstrip())
