"""What commands say of searches and of what there is to ask for: the part of both outputs that knows it.

It prints only through what it is handed, so that one place decides where results and advice go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from tidemill.cli.voice import Voice
from tidemill.pipeline.documents import search as plain

if TYPE_CHECKING:
    from tidemill.query.catalog import StreamFacts
    from tidemill.query.search.searching import Found, SearchPlan


class AskOutput(Protocol):
    """One method for each thing that a command can say of them."""

    def found(self, stream: str, found: Found) -> None: ...
    def plan(self, stream: str, plan: SearchPlan) -> None: ...
    def catalog(self, streams: Sequence[StreamFacts]) -> None: ...


class JsonAsk:
    """One document a command."""

    def __init__(self, document: Callable[[object], None]) -> None:
        self._print = document

    def found(self, stream: str, found: Found) -> None:
        self._print(plain.found(stream, found))

    def plan(self, stream: str, plan: SearchPlan) -> None:
        self._print(plain.plan(stream, plan))

    def catalog(self, streams: Sequence[StreamFacts]) -> None:
        self._print(plain.catalog(streams))


class TextAsk:
    """Tables and lines."""

    def __init__(self, voice: Voice) -> None:
        self._say = voice

    def found(self, stream: str, found: Found) -> None:
        from tidemill.cli.tables_ask import completeness_lines, found_facts, found_table

        if found.rows.num_rows:
            self._say.table(found_table(found.rows))
        else:
            self._say.line("no events")
        self._say.line((found_facts(found), "dim"))
        for line in completeness_lines(found.completeness):
            self._say.line(line)
        if found.cursor is not None:
            self._say.line("next page: ", (f"--cursor {found.cursor}", "bold"))

    def plan(self, stream: str, plan: SearchPlan) -> None:
        from tidemill.cli.tables_ask import plan_table

        self._say.table(plan_table(stream, plan))

    def catalog(self, streams: Sequence[StreamFacts]) -> None:
        from tidemill.cli.tables_ask import catalog_tables

        for stream in streams:
            for table in catalog_tables(stream):
                self._say.table(table)
        if any(stream.attributes is None for stream in streams):
            self._say.note(
                "`indexed: [PATH, …]` of a stream makes attributes that a search can name in WHERE"
            )
