"""What commands say of event time: the part of both outputs that knows its words.

It prints only through what it is handed, so that one place decides where results and advice go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from tidemill.cli.shown import shown
from tidemill.cli.voice import Voice
from tidemill.pipeline.documents import event_time as plain

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.eventtime import Origin
    from tidemill.pipeline.explain import Explained
    from tidemill.raw.tail import LateTotals


class TimeOutput(Protocol):
    """One method for each thing that a command can say of event time."""

    def types(self, origins: Mapping[str, Origin]) -> None: ...
    def rows(self, batch: pa.RecordBatch) -> None: ...
    def watermark(self, at: int) -> None: ...
    def late(self, stream: str, rows: pa.Table, totals: LateTotals, *, more: bool) -> None: ...
    def explained(self, explained: Explained, now: int) -> None: ...


class JsonTime:
    """One document a command; `tail` prints one a line for each row and watermark."""

    def __init__(self, document: Callable[[object], None]) -> None:
        self._print = document

    def types(self, origins: Mapping[str, Origin]) -> None:
        self._print(plain.types(origins))

    def rows(self, batch: pa.RecordBatch) -> None:
        for row in plain.rows(batch):
            self._print(row)

    def watermark(self, at: int) -> None:
        self._print(plain.watermark(at))

    def late(self, stream: str, rows: pa.Table, totals: LateTotals, *, more: bool) -> None:
        self._print(plain.late(stream, rows, totals, more=more))

    def explained(self, explained: Explained, now: int) -> None:
        self._print(plain.explained(explained, now))


class TextTime:
    """Tables and lines."""

    def __init__(self, voice: Voice) -> None:
        self._say = voice

    def types(self, origins: Mapping[str, Origin]) -> None:
        from tidemill.cli.tables_time import type_table

        self._say.table(type_table(origins))

    def rows(self, batch: pa.RecordBatch) -> None:
        from tidemill.cli.tables_time import row_pieces

        self._say.line(*row_pieces(batch))

    def watermark(self, at: int) -> None:
        from tidemill.cli.tables_time import watermark_pieces

        self._say.line(*watermark_pieces(at))

    def late(self, stream: str, rows: pa.Table, totals: LateTotals, *, more: bool) -> None:
        from tidemill.cli.tables_time import late_table, late_words

        if not rows.num_rows:
            self._say.line(f"no late rows in {shown(stream)}")
            return
        self._say.table(late_table(rows))
        self._say.line((late_words(totals), "dim"))
        if more:
            self._say.note(f"the newest {rows.num_rows}; --limit 0 shows all")

    def explained(self, explained: Explained, now: int) -> None:
        from tidemill.cli.tables_time import explained_tables

        for table in explained_tables(explained, now):
            self._say.table(table)
        for warning in explained.warnings:
            self._say.line(("warning: ", "yellow"), shown(warning))
