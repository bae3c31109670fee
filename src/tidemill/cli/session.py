"""One call of a command: its settings, its output, its log, and how whatever goes wrong becomes an exit code.

This is the only place that turns errors into exit codes.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Final

from tidemill.cli.logs import start_logging
from tidemill.cli.settings import OutputKind, Settings
from tidemill.model.errors import as_tidemill_error

if TYPE_CHECKING:
    from rich.console import Console

    from tidemill.cli.output import Output
    from tidemill.ingest.warehouse import Progress
    from tidemill.mill import Mill
    from tidemill.pipeline.metrics import Meter

log = logging.getLogger(__name__)

OK: Final = 0
DIFFERENCES: Final = 1  # verify found some, some files were refused, or a window could not be built
USAGE: Final = 2
INTERRUPTED: Final = 130
READER_GONE: Final = 141  # as a shell reports SIGPIPE
UNBOUNDED: Final = 10_000  # columns, where there is no terminal to fit


class Session:
    """What a command works with."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @cached_property
    def out(self) -> Output:
        if self.settings.output is OutputKind.JSON:
            from tidemill.cli.output_json import JsonOutput

            return JsonOutput(verbose=self.settings.verbose)
        from tidemill.cli.output import TextOutput

        quiet, verbose = self.settings.quiet, self.settings.verbose
        return TextOutput(lambda: self._results, lambda: self.errors, verbose=verbose, quiet=quiet)

    @cached_property
    def _results(self) -> Console:
        return _console(stderr=False)

    @cached_property
    def errors(self) -> Console:
        """Shared by errors, the log and the progress bars, so that they do not write over each other. It is
        made when there is something to write: Rich takes a while to load."""
        return _console(stderr=True)

    @property
    def bars(self) -> Console | None:
        """Where progress is shown, if anywhere."""
        wanted = self.settings.output is OutputKind.TEXT and not self.settings.quiet
        return self.errors if wanted and sys.stderr.isatty() else None

    @contextmanager
    def mill(self, progress: Progress | None = None) -> Iterator[Mill]:
        """The project, open."""
        _hide_pandas()
        from tidemill.mill import Mill

        with Mill.open(self.settings.project, progress=progress) as mill:
            yield mill

    @contextmanager
    def working(self) -> Iterator[Progress | None]:
        """Around work on Spark: its noise goes to the log, its progress to bars."""
        from tidemill.cli.jvmlog import jvm_to_log
        from tidemill.cli.progress import by_stream

        with jvm_to_log(), by_stream(self.bars) as progress:
            yield progress

    @contextmanager
    def measured(self, mill: Mill, port: int | None) -> Iterator[Meter | None]:
        """Inside it, what the mill's meter is told is served on that port; None when nobody asked for it."""
        if port is None:
            yield None
            return
        with mill.meter.served(port) as bound:
            self.out.note(f"metrics at http://127.0.0.1:{bound}/metrics")
            yield mill.meter

    def call(self, work: Callable[[Session], int]) -> int:
        """The exit code of `work`; errors are told, never raised."""
        start_logging(self.settings.verbose, quiet=self.settings.quiet, console=lambda: self.errors)
        try:
            code = work(self)
            sys.stdout.flush()
        except KeyboardInterrupt:
            self.out.note("interrupted")
            return INTERRUPTED
        except BrokenPipeError:
            # Python would complain again when it flushes at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return READER_GONE
        except Exception as error:
            told = as_tidemill_error(error)
            self.out.error(told)
            log.debug("where it came from", exc_info=error)
            return told.exit_code
        return code


class _NoPandas:
    """A finder of modules. pyarrow and DuckDB import pandas before they make their first value, only to know
    a data frame when they see one, and that takes longer than most commands: to them there is no pandas.
    Others find it, and once Spark is imported, all do."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> None:
        if name == "pyspark":
            sys.meta_path.remove(cls)
        elif name == "pandas" and _importer().partition(".")[0] in ("tidemill", "pyarrow", "duckdb"):
            raise ModuleNotFoundError(name=name)


def _importer() -> str:
    """The module whose import is being made; for one that was compiled, the one that called it."""
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
