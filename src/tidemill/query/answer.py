"""The answer to a query: the table, and facts about its completeness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from tidemill.model.completeness import Completeness
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, Interval, format_duration, format_instant
from tidemill.query.as_of import Past
from tidemill.query.cover import ALL_TIME, CoverPiece

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.query.plan import Plan

Engine = Literal["duckdb", "spark"]
_SHOWN: Final = 24  # pieces that are listed one by one


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows (or series) of a query and where they come from."""

    table: pa.Table
    stream: str
    metric: str
    level: str
    interval: int | None  # None: totals, no buckets, or buckets of different lengths
    span: Interval | None  # as given; None: all data
    rows_read: int  # rows in the files that were read
    files_read: int
    completeness: Completeness
    version: int  # of the rollups table
    engine: Engine = "duckdb"
    step: str | None = None  # INTERVAL as given, with its time zone
    pieces: tuple[CoverPiece, ...] = ()  # the pieces it is made from, by time
    past: Past | None = None  # AS OF: the stream as it was then
    plan: Plan | None = field(default=None, compare=False, repr=False)  # the plan that made it


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a query would read and run, without running it."""

    stream: str
    metric: str
    tenant: str | None
    level: str
    interval: int | None
    span: Interval | None
    pieces: tuple[CoverPiece, ...]  # that make up the span, by time
    cells: int | None  # rows for each group if every gap is filled; None: it depends on the data
    edges: str
    fill: str
    format: str
    files: int
    rows: int
    version: int
    sql: str  # the aggregation that runs over the files; for Spark an equivalent of its plan
    parameters: Mapping[str, object]
    completeness: Completeness
    opening: tuple[CoverPiece, ...] = ()  # that give the states at the start
    engine: Engine = "duckdb"
    step: str | None = None

    def __str__(self) -> str:
        every = self.step or (format_duration(self.interval) if self.interval else "none: one total")
        cells = "by the data" if self.cells is None else str(self.cells)
        lines = {
            "metric": f"{self.stream}.{self.metric}",
            "tenant": self.tenant if self.tenant is not None else "all",
            "level": self.level,
            "interval": every,
            "span": str(self.span) if self.span else "all data",
            "reads": pieces_text(self.pieces),
            **({"opens with": pieces_text(self.opening)} if self.opening else {}),
            "cells": cells,
            "edges, fill": f"{self.edges}, {self.fill}",
            "format": self.format,
            "files": f"{self.files} with {self.rows} rows at version {self.version}",
            "complete": str(self.completeness),
            "engine": self.engine,
            "parameters": ", ".join(f"${name} = {value!r}" for name, value in self.parameters.items()),
        }
        width = max(map(len, lines))
        facts = "\n".join(f"{name.ljust(width)}  {text}" for name, text in lines.items())
        return f"{facts}\n\n{self.sql}"


def pieces_text(pieces: Sequence[CoverPiece]) -> str:
    """Pieces in short: each source from where it is read up to the next one."""
    if not pieces:
        return "nothing"
    if pieces[0].span == ALL_TIME:
        return f"all of {pieces[0].source}"
    parts = [
        f"{piece.source} from "
        + (format_instant(piece.span.start) if piece.span.start >= MIN_INSTANT else "the beginning")
        for piece in pieces[:_SHOWN]
    ]
    end = pieces[-1].span.end
    more = [f"{len(pieces) - _SHOWN} more"] if len(pieces) > _SHOWN else []
    return ", ".join([*parts, *more]) + f" to {format_instant(end) if end < MAX_INSTANT else 'the end'}"
