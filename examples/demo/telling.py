"""Tells the story: colours and progress bars on a terminal, plain lines anywhere else.

It decides how things are said, never what happened. Nothing it prints is read as markup.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text


class Teller:
    """One voice on one console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._before = 0.0

    def title(self, text: str) -> None:
        self._print(Text(text, style="bold"))

    def chapter(self, number: int, text: str) -> None:
        self._print(Text(""))
        self._print(Text(f"{number}  {text}", style="bold cyan"))

    def say(self, text: str) -> None:
        """A sentence or two that teach."""
        width = min(self._console.width, 100) - 4
        for line in Text(text).wrap(self._console, width):
            self._print(Text(f"   {line.plain.rstrip()}"))

    def fact(self, text: str, *, good: bool | None = None) -> None:
        """A line of what was found; good or bad shows in words and in colour."""
        style = {None: "", True: "green", False: "bold red"}[good]
        self._print(Text(f"   {text}", style=style))

    def code(self, text: str) -> None:
        self._print(Text(f"   {text}", style="bold"))

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> None:
        """The first `left` columns are text, the others numbers."""
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
        for place, name in enumerate(head):
            table.add_column(Text(name), justify="left" if place < left else "right", no_wrap=True)
        for row in rows:
            table.add_row(*(Text(cell, style="bold red" if cell == "differs" else "") for cell in row))
        self._print(Text(""))
        self._console.print(Padding(table, (0, 0, 0, 3), expand=False))
        self._print(Text(""))

    @contextmanager
    def work(self, doing: str, done: str, total: float = 1.0) -> Iterator[None]:
        """Shows that something is going on; afterwards one line says that it is done, and in what time."""
        began = time.perf_counter()
        self._before = 0.0
        if self._console.is_terminal:
            columns = (
                TextColumn("  "),
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=36),
                TimeElapsedColumn(),
            )
            with Progress(*columns, console=self._console, transient=True) as bar:
                self._bar, self._task = bar, bar.add_task(doing, total=total)
                try:
                    yield
                finally:
                    self._bar = self._task = None
        else:
            yield
        self.fact(f"{done} ({time.perf_counter() - began:.1f} s)")

    def advance(self, share: float = 1.0, doing: str | None = None) -> None:
        """One piece of the work under way is done."""
        self._before += share
        self.reach(0.0, doing)

    def reach(self, share: float, doing: str | None = None) -> None:
        """The piece under way is done to this share."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._before + share)
            if doing is not None:
                self._bar.update(self._task, description=doing)

    @property
    def owns_stderr(self) -> bool:
        return self._console.stderr

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True, highlight=False)


@contextmanager
def errors_to(path: Path, *, keep: bool) -> Iterator[None]:
    """What processes started in here write to standard error goes to a file, now and for as long as they run.

    Spark's JVM greets with a page of warnings that no stranger needs. When it does not start, they are shown.
    """
    if keep:
        yield
        return
    sys.stderr.flush()
    saved = os.dup(2)
    with path.open("wb", buffering=0) as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    except Exception:
        os.dup2(saved, 2)
        sys.stderr.write(path.read_text(encoding="utf-8", errors="replace"))
        raise
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)
