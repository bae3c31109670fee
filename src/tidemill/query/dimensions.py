"""What a query needs to know of a declared stream: its dimensions and measures, and the columns of a metric
in the rollups table. Never reads a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from tidemill.model.names import HISTOGRAM_COLUMNS, PSEUDO_DIMENSIONS, STATE_COLUMNS, column_name

if TYPE_CHECKING:
    from tidemill.config import Metric, Stream

ColumnType = Literal["string", "integer", "boolean", "decimal"]
_COLUMN_TYPES: Final[Mapping[str, ColumnType]] = {
    "string": "string",
    "integer": "integer",
    "boolean": "boolean",
    "decimal": "decimal",
}
IN_STATE, FROM_STATE, TO_STATE = PSEUDO_DIMENSIONS  # how queries name the states of objects,
STATE, RULE, FROM, TO = STATE_COLUMNS  # and their columns
BINS, BIN_COUNTS = HISTOGRAM_COLUMNS


@dataclass(frozen=True, slots=True)
class DeclaredDimension:
    """A dimension by its name in queries and the column that holds it."""

    name: str
    column: str
    type: ColumnType

    @property
    def sql_type(self) -> str:
        return {"string": "VARCHAR", "integer": "BIGINT", "boolean": "BOOLEAN"}[self.type]


@dataclass(frozen=True, slots=True)
class DeclaredMeasure:
    """A measure, the prefix of its columns and its number of decimals; 0 for integers."""

    name: str
    column: str
    type: ColumnType
    scale: int

    @property
    def sql_type(self) -> str:
        return "BIGINT" if self.type == "integer" else f"DECIMAL(18, {self.scale})"


@dataclass(frozen=True, slots=True)
class MetricRows:
    """Which rows of the table a number is made from: those of a metric; for a state metric either the changes
    of the number of objects in a state, or the transitions of a rule."""

    metric: str
    in_state: bool = False
    rule: str | None = None
    from_states: tuple[str, ...] | None = None  # None: any
    to_states: tuple[str, ...] | None = None


TENANT: Final = DeclaredDimension("tenant", "tenant", "string")


def state_dimensions(names: Iterable[str]) -> dict[str, DeclaredDimension]:
    """The states of objects, as dimensions of the rows of state metrics."""
    columns = {IN_STATE: STATE, FROM_STATE: FROM, TO_STATE: TO}
    return {name: DeclaredDimension(name, columns[name], "string") for name in names}


def dimensions_of(stream: Stream, metrics: Iterable[str]) -> dict[str, DeclaredDimension]:
    """The dimensions that all of these metrics have."""
    shared: dict[str, None] | None = None
    for name in metrics:
        own = stream.kept_metrics[name].dimensions
        shared = dict.fromkeys(own if shared is None else (path for path in shared if path in own))
    return {
        path: DeclaredDimension(path, column_name(path), _COLUMN_TYPES[stream.fields[path].type])
        for path in shared or ()
    }


def measures_of(stream: Stream, metric: Metric) -> dict[str, DeclaredMeasure]:
    """The columns whose values the metric keeps."""
    found: dict[str, DeclaredMeasure] = {}
    if metric.kind == "ratio":
        return found
    for path in metric.numbers:
        field = stream.fields[path]
        kind = _COLUMN_TYPES[field.type]
        scale = (field.scale or 0) if kind == "decimal" else 0
        found[path] = DeclaredMeasure(path, column_name(path), kind, scale)
    return found
