"""What metrics say about the rest of their stream: columns that exist, types that suit their use.

Pure: each rule yields findings, and none stops at the first.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.config.columns import Columns, listed, one_of, repeats
from tidemill.config.schema import KEY_TYPES, FieldType
from tidemill.config.stream import Stream
from tidemill.config.validation import Finding
from tidemill.model.names import MEASURE_COLUMNS, ROLLUP_COLUMNS, column_name, measure_column

MEASURE_TYPES: tuple[FieldType, ...] = ("integer", "decimal")
_MEASURE_HINT = "a float has no exact sum: declare a decimal with a scale, such as {type: decimal, scale: 3}"


def check_metrics(stream: Stream, columns: Columns) -> Iterator[Finding]:
    """Everything wrong between its metrics and the stream; paths are relative to the stream."""
    for name, metric in stream.kept_metrics.items():
        at = ("metrics", name)
        for path, column in listed((*at, "dimensions"), metric.dimensions):
            hint = f"a dimension is {one_of(KEY_TYPES)}"
            yield from columns.check(path, column, KEY_TYPES, hint)
        if metric.kind == "counter":
            for path, column in listed((*at, "measures"), metric.measures):
                hint = f"a measure is {one_of(MEASURE_TYPES)}; {_MEASURE_HINT}"
                yield from columns.check(path, column, MEASURE_TYPES, hint)
            yield from repeats((*at, "measures"), metric.measures)
        yield from repeats((*at, "dimensions"), metric.dimensions)
    yield from _rollup_columns(stream)


def _rollup_columns(stream: Stream) -> Iterator[Finding]:
    """Dimensions and measures become columns of one table; readers do not tell upper from lower case."""
    taken = {name: f"the table's own column {name}" for name in ROLLUP_COLUMNS}
    used: list[tuple[str, tuple[str, ...], str]] = [
        (name, (column_name(name),), "dimensions") for name in stream.dimension_columns
    ]
    used += [
        (name, tuple(measure_column(name, kept) for kept in MEASURE_COLUMNS), "measures")
        for name in stream.measure_columns
    ]
    for name, columns, kind in used:
        metric = next(m for m, declared in stream.metrics.items() if name in getattr(declared, kind))
        for column in columns:
            other = taken.setdefault(column.lower(), f"{kind[:-1]} {name!r}")
            if other != f"{kind[:-1]} {name!r}":
                message = f"{name!r} would be kept in column {column}, which is taken by {other}"
                yield Finding(("metrics", metric, kind), message, "rename one of the two fields in the feed")
