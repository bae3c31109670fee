"""What a query needs to know of a declared stream: its fields and metrics, and where a metric's numbers
stand in the rollups table. Never reads a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from tidemill.model.names import column_name

ColumnType = Literal["string", "integer", "boolean", "decimal"]
_COLUMN_TYPES: Final[Mapping[str, ColumnType]] = {
    "string": "string",
    "integer": "integer",
    "boolean": "boolean",
    "decimal": "decimal",
}


class DeclaredField(Protocol):
    @property
    def type(self) -> str: ...
    @property
    def scale(self) -> int | None: ...


class DeclaredMetric(Protocol):
    @property
    def kind(self) -> str: ...
    @property
    def dimensions(self) -> Sequence[str]: ...
    @property
    def measures(self) -> Sequence[str]: ...


class DeclaredStream(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def fields(self) -> Mapping[str, DeclaredField]: ...
    @property
    def metrics(self) -> Mapping[str, DeclaredMetric]: ...


@dataclass(frozen=True, slots=True)
class Dimension:
    """A dimension by the name people use and the column that holds it."""

    name: str
    column: str
    type: ColumnType

    @property
    def sql_type(self) -> str:
        return {"string": "VARCHAR", "integer": "BIGINT", "boolean": "BOOLEAN"}[self.type]


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure, the stem of its columns and its digits after the point; integers have none."""

    name: str
    column: str
    type: ColumnType
    scale: int

    @property
    def sql_type(self) -> str:
        return "BIGINT" if self.type == "integer" else f"DECIMAL(18, {self.scale})"


TENANT: Final = Dimension("tenant", "tenant", "string")


def dimensions_of(stream: DeclaredStream, metric: str) -> dict[str, Dimension]:
    return {
        path: Dimension(path, column_name(path), _COLUMN_TYPES[stream.fields[path].type])
        for path in stream.metrics[metric].dimensions
    }


def measures_of(stream: DeclaredStream, metric: str) -> dict[str, Measure]:
    found = {}
    for path in stream.metrics[metric].measures:
        field = stream.fields[path]
        kind = _COLUMN_TYPES[field.type]
        scale = (field.scale or 0) if kind == "decimal" else 0
        found[path] = Measure(path, column_name(path), kind, scale)
    return found
