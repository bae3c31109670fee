"""What a query gives back: the table, and the facts that say how far it can be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tidemill.model.time import Interval, format_duration, format_instant

if TYPE_CHECKING:
    import pyarrow as pa

Engine = Literal["duckdb", "spark"]


@dataclass(frozen=True, slots=True)
class Completeness:
    """How much of the span there is.

    `data` runs from the first to the end of the last bucket that the level has for this metric and
    tenant inside the span, whatever WHERE says. `complete` is true when the whole span (or, without a
    time clause, the data) ends at or before the watermark.
    """

    data: Interval | None
    watermark: int | None
    complete: bool
    up_to: int | None  # complete up to here: the watermark, or the end of the span if that comes first

    def __str__(self) -> str:
        if self.up_to is None:
            return "no watermark yet: more may arrive for the whole span"
        return f"{'' if self.complete else 'open, '}complete up to {format_instant(self.up_to)}"


def completeness(span: Interval | None, data: Interval | None, watermark: int | None) -> Completeness:
    asked = span or data
    if watermark is None:
        return Completeness(data, None, complete=False, up_to=None)
    end = asked.end if asked else watermark
    return Completeness(data, watermark, complete=end <= watermark, up_to=min(end, watermark))


@dataclass(frozen=True, slots=True)
class Freshness:
    """How new what was read is: the newest arrival that it includes, and how many 5s tiles of the span wait
    to be made again because something came for them."""

    as_of: int | None  # None: nothing is included yet
    stale: int

    def __str__(self) -> str:
        newest = format_instant(self.as_of) if self.as_of is not None else "nothing yet"
        behind = f", {self.stale} tile{'s' * (self.stale != 1)} behind" if self.stale else ""
        return f"includes what arrived up to {newest}{behind}" if self.as_of is not None else newest + behind


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows (or series) of a query and where they come from."""

    table: pa.Table
    stream: str
    metric: str
    level: str
    interval: int | None  # None: totals, no buckets
    span: Interval | None  # as asked (SINCE rounded outward to whole buckets); None: all data
    rows_read: int  # rows in the files that were read
    files_read: int
    completeness: Completeness
    version: int  # of the rollups table
    freshness: Freshness | None = None  # None: nobody told
    engine: Engine = "duckdb"


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a query would read and run, without running it."""

    stream: str
    metric: str
    tenant: str | None
    level: str
    interval: int | None
    span: Interval | None
    read: Interval | None  # the whole buckets of the level inside the span
    cells: int | None  # rows for each group when every gap is filled; None: only the data can tell
    edges: str
    fill: str
    format: str
    files: int
    rows: int
    version: int
    sql: str  # the aggregation that runs over the files; of Spark: what its plan is equal to
    parameters: Mapping[str, object]
    opening: Mapping[str, Interval] = field(default_factory=dict)  # levels that tell the states at the start
    freshness: Freshness | None = None
    engine: Engine = "duckdb"

    def __str__(self) -> str:
        every = format_duration(self.interval) if self.interval else "none: one total"
        cells = "by the data" if self.cells is None else str(self.cells)
        lines = {
            "metric": f"{self.stream}.{self.metric}",
            "tenant": self.tenant if self.tenant is not None else "all",
            "level": self.level,
            "interval": every,
            "span": str(self.span) if self.span else "all data",
            "reads": str(self.read) if self.read else "all buckets",
            **({"opens with": self._opening()} if self.opening else {}),
            "cells": cells,
            "edges, fill": f"{self.edges}, {self.fill}",
            "format": self.format,
            "files": f"{self.files} with {self.rows} rows at version {self.version}",
            **({"freshness": str(self.freshness)} if self.freshness else {}),
            "engine": self.engine,
            "parameters": ", ".join(f"${name} = {value!r}" for name, value in self.parameters.items()),
        }
        width = max(map(len, lines))
        facts = "\n".join(f"{name.ljust(width)}  {text}" for name, text in lines.items())
        return f"{facts}\n\n{self.sql}"

    def _opening(self) -> str:
        """Each level up to where the next finer one goes on."""
        return ", ".join(f"{level} up to {format_instant(span.end)}" for level, span in self.opening.items())
