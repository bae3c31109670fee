"""The fields that the numbers of a plan depend on: one whose type was changed may not hold the values of all
events. Never touches a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.config.metrics import decisive_fields, fields_of, keeps_keys
from tidemill.model.names import column_name, unfit_rows
from tidemill.query.dimensions import DeclaredDimension
from tidemill.query.values import ValueColumn

if TYPE_CHECKING:
    from tidemill.config import Stream


@dataclass(frozen=True, slots=True)
class UnfitField:
    """A field of a metric on which numbers of a plan depend."""

    rows: str  # the name of the rows that count the events
    metric: str
    name: str
    column: str
    type: str  # as declared, for people
    is_decisive: bool  # whether all numbers of the metric depend on it, not only those of its values
    has_keys: bool  # whether the rows have the dimensions of the metric
    follows: bool  # whether all later numbers depend on it too: those of objects and their states

    def affects(self, column: ValueColumn) -> bool:
        of = {rows.metric for rows in (*column.rows, *column.under)}
        measured = {part.measure.column for part in column.parts if part.measure is not None}
        return self.metric in of and (self.is_decisive or self.column in measured)


def unfit_fields(
    stream: Stream, columns: Sequence[ValueColumn], named: Iterable[DeclaredDimension]
) -> tuple[UnfitField, ...]:
    """The fields that these values depend on; `named` are the dimensions of conditions and groups."""
    metrics = dict.fromkeys(rows.metric for column in columns for rows in (*column.rows, *column.under))
    keys = {dimension.column for dimension in named}
    found = []
    for name in metrics:
        metric = stream.kept_metrics[name]
        decisive = decisive_fields(metric)
        for path in fields_of(metric):
            declared, column = stream.fields[path], column_name(path)
            found.append(
                UnfitField(
                    rows=unfit_rows(name, path),
                    metric=name,
                    name=path,
                    column=column,
                    type=declared.described,
                    is_decisive=path in decisive or (path in metric.dimensions and column in keys),
                    has_keys=keeps_keys(metric),
                    follows=metric.kind == "state",
                )
            )
    return tuple(one for one in found if any(one.affects(column) for column in columns))
