"""One call of a command: its settings, how it prints, its log, and how an error becomes an exit code.

This is the only place that prints results and that turns errors into exit codes. Results go to stdout, errors
and notes to stderr. Data is never read as markup.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Final

from tidemill.cli.logs import start_logging
from tidemill.cli.settings import CommandSettings, OutputKind
from tidemill.cli.terminal import by_stream, escaped, jvm_to_log
from tidemill.model.errors import TidemillError, as_tidemill_error

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from tidemill.cli.views.layout import View
    from tidemill.ingest.warehouse import Progress
    from tidemill.mill import Mill
    from tidemill.pipeline.documents.shapes import Document
    from tidemill.pipeline.metrics import Meter

# Imports inside functions keep start-up short: a command loads only what it runs.

log = logging.getLogger(__name__)

OK: Final = 0
DIFFERENCES: Final = 1  # verify found some, some files were refused, or a window could not be built
INTERRUPTED: Final = 130
READER_GONE: Final = 141  # as a shell reports SIGPIPE
UNBOUNDED: Final = 10_000  # columns, where there is no terminal to fit


class Session:
    """What a command works with."""

    def __init__(self, settings: CommandSettings) -> None:
        self.settings = settings

    def emit(self, document: Callable[[], Document], view: Callable[[], View]) -> None:
        """Print a result: as its document with --output json, else as its view. Only one of them is made."""
        self.emit_each(lambda: [document()], view)

    def emit_each(self, documents: Callable[[], Iterable[Document]], view: Callable[[], View]) -> None:
        """Print several results: each as a document on a line of its own, or all in one view."""
        if not self._for_programs:
            self.show(view)
            return
        from tidemill.pipeline.documents.shapes import dumps

        for document in documents():
            sys.stdout.write(dumps(document) + "\n")
            sys.stdout.flush()

    def show(self, view: Callable[[], View]) -> None:
        """Print text that is for people only; with --output json nothing."""
        if self._for_programs:
            return
        from tidemill.cli.views.layout import Note

        for block in view():
            if isinstance(block, Note):
                self.note(block.text)
            elif isinstance(block, TidemillError):
                self.error(block)
            else:
                self._print(block)

    def note(self, text: str) -> None:
        """Print advice for a person to stderr; it is not part of the result."""
        if self._for_programs or self.settings.quiet:
            return
        from rich.text import Text

        self.errors.print(Text(escaped(text, lines=True), style="dim"), soft_wrap=True)

    def error(self, problem: TidemillError) -> None:
        if self._for_programs:
            from tidemill.pipeline.documents.shapes import dumps
            from tidemill.pipeline.documents.shapes import error as document

            sys.stderr.write(dumps({"error": document(problem)}) + "\n")
            return
        from rich.text import Text

        code = (f"error[{problem.code}]", "bold red")
        self.errors.print(Text.assemble(code, f": {escaped(str(problem), lines=True)}"), soft_wrap=True)
        if problem.hint:
            hint = escaped(problem.hint, lines=True).replace("\n", "\n        ")
            self.errors.print(Text.assemble(("  hint", "cyan"), f": {hint}"), soft_wrap=True)

    @property
    def _for_programs(self) -> bool:
        return self.settings.output is OutputKind.JSON

    def _print(self, what: RenderableType) -> None:
        """Print a piece of a view. A table fits the terminal; a line is never cut or wrapped."""
        from rich.text import Text

        # By way of sys.stdout, which progress bars replace to put lines above themselves; a console
        # would write past them.
        with self._results.capture() as text:
            self._results.print(what, soft_wrap=isinstance(what, Text))
        sys.stdout.write(text.get())
        sys.stdout.flush()

    @cached_property
    def _results(self) -> Console:
        return _console(stderr=False)

    @cached_property
    def errors(self) -> Console:
        """The console of errors, the log and the progress bars, so that they do not overwrite each other.

        It is created when there is something to write, because Rich takes a while to load.
        """
        return _console(stderr=True)

    @property
    def bars(self) -> Console | None:
        """The console for progress bars; None if there are none."""
        shown = self.settings.output is OutputKind.TEXT and not self.settings.quiet
        return self.errors if shown and sys.stderr.isatty() else None

    @contextmanager
    def mill(self, progress: Progress | None = None) -> Iterator[Mill]:
        """Open the project."""
        _hide_pandas()
        from tidemill.mill import Mill

        with Mill.open(self.settings.project, progress=progress) as mill:
            yield mill

    @contextmanager
    def working(self) -> Iterator[Progress | None]:
        """Around work on Spark: its output goes to the log, its progress to bars."""
        with jvm_to_log(), by_stream(self.bars) as progress:
            yield progress

    @contextmanager
    def measured(self, mill: Mill, port: int | None) -> Iterator[Meter | None]:
        """Serve the metrics of the mill on `port` inside the block; yields None without a port."""
        if port is None:
            yield None
            return
        with mill.meter.served(port) as bound:
            self.note(f"metrics at http://127.0.0.1:{bound}/metrics")
            yield mill.meter

    def call(self, work: Callable[[Session], int]) -> int:
        """Run `work` and return its exit code. Errors are printed, never raised."""
        start_logging(self.settings.verbose, quiet=self.settings.quiet, console=lambda: self.errors)
        try:
            code = work(self)
            sys.stdout.flush()
        except KeyboardInterrupt:
            self.note("interrupted")
            return INTERRUPTED
        except BrokenPipeError:
            # Python would complain again when it flushes at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return READER_GONE
        except Exception as error:
            failure = as_tidemill_error(error)
            self.error(failure)
            log.debug("where it came from", exc_info=error)
            return failure.exit_code
        return code


class _NoPandas:
    """An import hook that hides pandas. pyarrow and DuckDB import pandas before they create their first
    value, only to recognise data frames, and that takes longer than most commands.

    Other modules still find it, and once Spark is imported, all do.
    """

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> None:
        if name == "pyspark":
            sys.meta_path.remove(cls)
        elif name == "pandas" and _importer().partition(".")[0] in ("tidemill", "pyarrow", "duckdb"):
            raise ModuleNotFoundError(name=name)


def _importer() -> str:
    """Return the name of the module that makes the import; for a compiled module, the name of its caller."""
    frame = sys._getframe(1)
    while frame.f_back and (
        frame.f_globals is globals() or frame.f_globals["__name__"].startswith("importlib")
    ):
        frame = frame.f_back
    return str(frame.f_globals["__name__"])


def _hide_pandas() -> None:
    if "pandas" not in sys.modules and _NoPandas not in sys.meta_path:
        sys.meta_path.insert(0, _NoPandas)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    # Where there is no terminal, nothing is wrapped or cut to fit one.
    width = None if terminal or "COLUMNS" in os.environ else UNBOUNDED
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False, width=width)
