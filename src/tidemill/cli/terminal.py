"""What reaches a terminal: progress bars, text from outside with escapes, and the JVM's stderr as log
records.

Bars are shown on a terminal only, never with --quiet or JSON.
"""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from tidemill.ingest.warehouse import Progress as Report


@contextmanager
def counted(console: Console | None, label: str, total: int | None) -> Iterator[Callable[[], None] | None]:
    """Yield a function that moves a bar by one; None if there is no bar."""
    if console is None:
        yield None
        return
    with _bars(console) as bars:
        task = bars.add_task(label, total=total)
        yield lambda: bars.advance(task)


@contextmanager
def by_stream(console: Console | None) -> Iterator[Report | None]:
    """Yield a function that shows a bar for each stream with work, as `Mill` reports it."""
    if console is None:
        yield None
        return
    with _bars(console) as bars:
        tasks: dict[str, TaskID] = {}

        def report(stream: str, step: str, share: float) -> None:
            if stream not in tasks:
                tasks[stream] = bars.add_task("", total=1.0)
            bars.update(tasks[stream], description=f"{stream}: {step}", completed=share)
            if share >= 1.0:
                bars.remove_task(tasks.pop(stream))

        yield report


def _bars(console: Console) -> Progress:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        # Lines for a terminal go above the bars; those for a file must reach the file.
        redirect_stdout=sys.stdout.isatty(),
    )


def escaped(text: str, *, lines: bool = False) -> str:
    """Return `text` with escapes for what is not printable; with `lines`, line feeds are kept."""
    if text.isprintable():
        return text
    kept = "\n" if lines else ""
    return "".join(
        char
        if char.isprintable() or char in kept
        else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text
    )


log = logging.getLogger("tidemill.spark")

# The last two: a JVM that cannot start.
_WORSE: Final = re.compile(
    rb"^\S+ \S+ (?:ERROR|FATAL) |OutOfMemoryError|^Error[: ]|^java\.lang\.module\.\w+Exception"
)


@contextmanager
def jvm_to_log() -> Iterator[None]:
    """Inside the block, the stderr of started processes becomes records of the log: errors, the rest as
    debug.

    Spark's JVM and its workers inherit descriptor 2, so only a redirection of it reaches what they write
    before they can be configured. Our own stderr stays what it is.
    """
    kept = os.dup(2)
    reader, writer = os.pipe()
    stderr = sys.stderr
    if _is_descriptor_2(stderr):
        stderr.flush()
        sys.stderr = os.fdopen(kept, "w", 1, stderr.encoding, "backslashreplace", closefd=False)
    os.dup2(writer, 2)
    os.close(writer)
    # A daemon: the JVM lives as long as this process and keeps its end of the pipe.
    threading.Thread(target=_read, args=(reader,), name="tidemill-jvmlog", daemon=True).start()
    try:
        yield
    finally:
        sys.stderr.flush()
        sys.stderr = stderr
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
