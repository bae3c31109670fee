"""Progress bars on stderr: only on a terminal, never with --quiet or JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from tidemill.ingest.warehouse import Progress as Report


@contextmanager
def counted(console: Console | None, label: str, total: int | None) -> Iterator[Callable[[], None] | None]:
    """A bar that moves by one at each call; None when there is no bar."""
    if console is None:
        yield None
        return
    with _bars(console) as bars:
        task = bars.add_task(label, total=total)
        yield lambda: bars.advance(task)


@contextmanager
def by_stream(console: Console | None) -> Iterator[Report | None]:
    """A bar for each stream that has work, as `Mill` reports it; gone once its work is done."""
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
