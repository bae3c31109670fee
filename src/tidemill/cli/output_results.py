"""What commands say of the results of streaming windows: the part of both outputs that knows these words.

It prints only through what it is handed, so that one place decides where results and advice go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tidemill.cli.shown import shown
from tidemill.cli.voice import Voice
from tidemill.pipeline.documents import results as plain

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.model.streaming import WindowSpec
    from tidemill.outputs.windows.reader import Standing


class ResultsOutput(Protocol):
    """One method for each thing that a command can say of results."""

    def results(self, spec: WindowSpec, rows: pa.Table, *, revisions: bool, more: bool) -> None: ...
    def standings(self, stream: str, windows: Sequence[Standing], warehouse: Path) -> None: ...
    def flushed(self, done: plain.Flushed) -> None: ...


class JsonResults:
    """One document a command."""

    def __init__(self, document: Callable[[object], None]) -> None:
        self._print = document

    def results(self, spec: WindowSpec, rows: pa.Table, *, revisions: bool, more: bool) -> None:
        self._print(plain.results(spec, rows, more=more))

    def standings(self, stream: str, windows: Sequence[Standing], warehouse: Path) -> None:
        self._print(plain.standings(stream, windows, warehouse))

    def flushed(self, done: plain.Flushed) -> None:
        self._print(plain.flushed(done))


class TextResults:
    """Tables and lines."""

    def __init__(self, voice: Voice) -> None:
        self._say = voice

    def results(self, spec: WindowSpec, rows: pa.Table, *, revisions: bool, more: bool) -> None:
        from tidemill.cli.tables_results import results_table

        if not rows.num_rows:
            self._say.line(f"no results of {shown(spec.name)}")
            return
        self._say.table(results_table(spec, rows, revisions=revisions))
        if more:
            self._say.note(f"the newest {rows.num_rows:,}; --limit 0 shows all")

    def standings(self, stream: str, windows: Sequence[Standing], warehouse: Path) -> None:
        from tidemill.cli.tables_results import standings_table

        if not windows:
            self._say.line(f"{shown(stream)} declares no streaming windows")
            return
        self._say.table(standings_table(windows, warehouse))
        for one in windows:
            if not one.current:
                self._say.note(
                    f"{one.spec.name} was declared otherwise; `tidemill run` makes its results anew"
                )

    def flushed(self, done: plain.Flushed) -> None:
        from tidemill.cli.tables_results import flushed_lines

        lines = list(flushed_lines(done))
        for line in lines or [["nothing to flush: no window was open"]]:
            self._say.line(*line)
