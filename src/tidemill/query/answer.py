"""What a query gives back: the table, and the facts that say how far it can be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tidemill.model.time import Interval, format_duration, format_instant
from tidemill.query.coverage import Completeness

if TYPE_CHECKING:
    import pyarrow as pa

Engine = Literal["duckdb", "spark"]


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
    completeness: Completeness
    opening: Mapping[str, Interval] = field(default_factory=dict)  # levels that tell the states at the start
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
            "complete": str(self.completeness),
            "engine": self.engine,
            "parameters": ", ".join(f"${name} = {value!r}" for name, value in self.parameters.items()),
        }
        width = max(map(len, lines))
        facts = "\n".join(f"{name.ljust(width)}  {text}" for name, text in lines.items())
        return f"{facts}\n\n{self.sql}"

    def _opening(self) -> str:
        """Each level up to where the next finer one goes on."""
        return ", ".join(f"{level} up to {format_instant(span.end)}" for level, span in self.opening.items())
