"""The metrics of a stream, flat and picklable, and the table they are kept in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from tidemill.config import Stream
from tidemill.lake.table import Table
from tidemill.model.names import column_name

STATS: Final = ("bucket", "tenant", "metric")
_DIMENSION_TYPES: Final = {"string": pa.string(), "integer": pa.int64(), "boolean": pa.bool_()}


@dataclass(frozen=True, slots=True)
class Dimension:
    column: str  # in the table
    type: str  # string | integer | boolean


@dataclass(frozen=True, slots=True)
class Measure:
    column: str
    type: str  # integer | decimal
    scale: int


@dataclass(frozen=True, slots=True)
class Metric:
    """One counter: which of the stream's dimensions and measures it keeps, by their numbers."""

    name: str
    dimensions: tuple[int, ...]
    measures: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RollupSpec:
    stream: str
    dimensions: tuple[Dimension, ...]
    measures: tuple[Measure, ...]
    metrics: tuple[Metric, ...]

    @property
    def schema(self) -> pa.Schema:
        """Of the table, the partition column `level` first."""
        fields = [
            pa.field("level", pa.string()),
            pa.field("metric", pa.string()),
            pa.field("tenant", pa.string()),
            *(pa.field(d.column, _DIMENSION_TYPES[d.type]) for d in self.dimensions),
            pa.field("bucket", pa.timestamp("us", tz="UTC")),
            pa.field("count", pa.int64()),
        ]
        for m in self.measures:
            value = pa.int64() if m.type == "integer" else pa.decimal128(18, m.scale)
            fields += [
                pa.field(f"{m.column}__count", pa.int64()),
                pa.field(f"{m.column}__sum", pa.decimal128(38, m.scale)),
                pa.field(f"{m.column}__min", value),
                pa.field(f"{m.column}__max", value),
            ]
        return pa.schema(fields)


def spec_for(stream: Stream) -> RollupSpec:
    dimensions, measures = stream.dimension_columns, stream.measure_columns
    return RollupSpec(
        stream=stream.name,
        dimensions=tuple(Dimension(column_name(d), stream.fields[d].type) for d in dimensions),
        measures=tuple(
            Measure(column_name(m), stream.fields[m].type, stream.fields[m].scale or 0) for m in measures
        ),
        metrics=tuple(
            Metric(
                name,
                tuple(dimensions.index(d) for d in metric.dimensions),
                tuple(measures.index(m) for m in metric.measures),
            )
            for name, metric in sorted(stream.metrics.items())
        ),
    )


def rollups_table(warehouse: Path, spec: RollupSpec) -> Table:
    return Table.open(
        warehouse / "rollups" / spec.stream,
        schema=spec.schema,
        partition_by=("level",),
        name=f"{spec.stream}_rollups",
        description=f"metrics of {spec.stream} at 5s, 1m, 1h, 1d, 7d",
    )
