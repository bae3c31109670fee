"""The log on stderr: readable and coloured on a terminal, one JSON object a line otherwise.

Results never go through it, and it never goes to stdout.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Final

from tidemill.cli.terminal import escaped
from tidemill.model.time import format_instant

if TYPE_CHECKING:
    from rich.console import Console

# Imports inside functions keep start-up short: a command loads only what it runs.

FACTS: Final = ("stream", "slice", "batch", "tile", "window", "table", "sink")
# They log every call, every compiled function, each missing native library.
NOISY: Final = ("py4j", "pyspark", "numba", "py.warnings")
_NAME: Final = "tidemill-cli"
_STYLES: Final = {
    "DEBUG": "dim",
    "INFO": "cyan",
    "WARNING": "yellow",
    "ERROR": "bold red",
    "CRITICAL": "bold red",
}


def level_for(verbose: int, *, quiet: bool) -> int:
    if quiet:
        return logging.ERROR
    return (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]


def start_logging(verbose: int, *, quiet: bool, console: Callable[[], Console]) -> None:
    """Log to the console if it is a terminal, else to stderr as JSON; replaces what an earlier call set up.

    The console is created with the first record.
    """
    level = level_for(verbose, quiet=quiet)
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if handler.name == _NAME]:
        root.removeHandler(old)
    handler = CommandHandler(console)
    handler.set_name(_NAME)
    handler.setLevel(level)
    root.addHandler(handler)
    logging.getLogger("tidemill").setLevel(level)
    logging.captureWarnings(capture=True)
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.ERROR if verbose < 2 else logging.WARNING)


def facts_of(record: logging.LogRecord) -> dict[str, str]:
    """Return the extra attributes of a record, such as stream and slice."""
    return {name: str(getattr(record, name)) for name in FACTS if getattr(record, name, None) is not None}


def as_line(record: logging.LogRecord) -> str:
    """One record as JSON."""
    from tidemill.pipeline.documents.shapes import dumps  # most commands log nothing

    line: dict[str, object] = {
        "time": format_instant(round(record.created * 1_000) * 1_000),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage(),
        **facts_of(record),
    }
    if trace := _trace(record):
        line["trace"] = trace
    return dumps(line)


class CommandHandler(logging.Handler):
    """Writes records for people or as JSON, decided with the first record: most commands log nothing."""

    def __init__(self, console: Callable[[], Console]) -> None:
        super().__init__()
        self._console = console

    @cached_property
    def _chosen(self) -> logging.Handler:
        console = self._console()
        return TerminalHandler(console) if console.is_terminal else JsonHandler()

    def emit(self, record: logging.LogRecord) -> None:
        self._chosen.emit(record)


class JsonHandler(logging.Handler):
    """Writes JSON lines to the current stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(as_line(record) + "\n")
        sys.stderr.flush()


class TerminalHandler(logging.Handler):
    """One line for people: time, level, message, then the facts."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        from rich.text import Text

        when = format_instant(round(record.created) * 1_000_000)[11:19]
        facts = "".join(f" {name}={escaped(value[:16])}" for name, value in facts_of(record).items())
        line = Text.assemble(
            (when, "dim"),
            " ",
            (record.levelname.lower().ljust(7), _STYLES.get(record.levelname, "")),
            " ",
            escaped(record.getMessage(), lines=True),
            (facts, "dim"),
        )
        self._console.print(line, soft_wrap=True)
        if trace := _trace(record):
            self._console.print(Text(escaped(trace, lines=True), style="dim"), soft_wrap=True)


def _trace(record: logging.LogRecord) -> str:
    return logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
