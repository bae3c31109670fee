"""The last value that each group had before a span, from which FILL carry starts. It decides which spans of
time are read: the newest week with data of a group comes first, so that a group that was silent for a year
costs no more than one that was active a minute ago.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidemill.model.completeness import Missing
from tidemill.model.time import MIN_INSTANT, WEEK, Interval, align
from tidemill.query.cell_grid import cells_between, cells_over
from tidemill.query.cell_grid import edges as edges_of
from tidemill.query.cover import BEGINNING
from tidemill.query.plan import Plan
from tidemill.query.plan_sql import group_columns

if TYPE_CHECKING:
    import pyarrow as pa

Group = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class LastValues:
    """What a plan read: `hits` as in `plan_sql.aggregate`, its values by column, and what has expired."""

    hits: pa.Table
    values: pa.Table
    lost: Sequence[Interval]
    missing: Sequence[Missing]


@dataclass(frozen=True, slots=True)
class Before:
    """`g0`… and the last value of each column, a row for each group; and why some are unknown."""

    values: pa.Table | None = None
    missing: tuple[Missing, ...] = ()


def values_before(plan: Plan, hits: pa.Table, fold: Callable[[Plan], LastValues]) -> Before:
    """The last values of each group before the span; `hits` are the groups with data in it."""
    carrying = _carrying(plan)
    if carrying is None or plan.read is None:
        return Before()
    known = _KnownGroups(group_columns(plan), [column.name for column in carrying.columns])
    upto, barrier = plan.read.start, BEGINNING  # nothing is carried across what is lost before the barrier
    missing: Sequence[Missing] = ()
    while upto > barrier:
        total = fold(_total(carrying, upto))
        barrier = max([barrier, *(span.end for span in total.lost)])
        newest = known.newest_unresolved(total.hits)
        if newest is None:
            missing = total.missing if total.lost else missing
            break
        since = _start_of_cell(carrying, min(newest, upto) - WEEK)
        cells = fold(_cells(carrying, Interval(since, upto)))
        barrier = max([barrier, *(span.end for span in cells.lost)])
        known.take(cells, barrier)
        missing = _together(total.missing, cells.missing)
        upto = since
    # What is lost may have had groups that are nowhere else.
    return Before(known.table(), tuple(missing) if plan.groups or known.lacks(hits) else ())


def _together(whole: Sequence[Missing], parts: Sequence[Missing]) -> Sequence[Missing]:
    """What is missing from a total, and from its cells: those also lack what only coarser levels have."""

    def is_said(part: Missing) -> bool:
        return any(each.span.start <= part.span.start and part.span.end <= each.span.end for each in whole)

    return [*whole, *(part for part in parts if not is_said(part))]


def _carrying(plan: Plan) -> Plan | None:
    """The plan of the values that are carried, without counts of objects in a state, which are computed from
    the beginning anyway."""
    columns = tuple(column for column in plan.columns if column.function != "states")
    if plan.fill != "carry" or not plan.is_bucketed or plan.heatmap is not None or not columns:
        return None
    return replace(
        plan,
        columns=columns,
        parts=tuple(dict.fromkeys(part for column in columns for part in column.parts)),
        rows=tuple(dict.fromkeys(rows for column in columns for rows in (*column.rows, *column.under))),
    )


def _total(plan: Plan, upto: int) -> Plan:
    return replace(plan, span=Interval(BEGINNING, upto), grid=None, interval=None, level=None, step=None)


def _start_of_cell(plan: Plan, at: int) -> int:
    if plan.interval is not None:
        return align(at, plan.interval)
    assert plan.step is not None
    first = max(at, MIN_INSTANT)
    return edges_of(plan.step, Interval(first, first + 1))[0]


def _cells(plan: Plan, span: Interval) -> Plan:
    if plan.interval is not None:
        return replace(plan, span=span, grid=cells_over(span, plan.interval, "include"))
    assert plan.step is not None
    found = edges_of(plan.step, span)
    return replace(plan, span=span, grid=cells_between(span, found[:-1], found[-1], "include"))


class _KnownGroups:
    """The last values of groups, collected from the newest on."""

    def __init__(self, keys: list[str], names: list[str]) -> None:
        self._keys = keys
        self._names = names
        self._values: dict[Group, list[object]] = {}
        self._schema: pa.Schema | None = None

    def newest_unresolved(self, totals: pa.Table) -> int | None:
        """The end of the newest data of a group that still lacks a value."""
        ends = totals.column("until").to_pylist()
        groups = _groups(totals, self._keys)
        found = [end for end, group in zip(ends, groups, strict=True) if self._is_open(group)]
        return max((end for end in found if end is not None), default=None)

    def take(self, folded: LastValues, barrier: int) -> None:
        """Add the values of cells that start at the barrier or later."""
        import pyarrow as pa
        import pyarrow.compute as pc

        cells = folded.hits.column("cell")
        order = pc.sort_indices(cells)
        order = order.filter(pc.greater_equal(cells.take(order), barrier))
        keys = folded.hits.select(self._keys).take(order) if self._keys else None
        values = folded.values.select(self._names).take(order)
        rows = pa.array(range(values.num_rows), pa.int64())
        there = [
            pc.if_else(column.is_valid(), rows, pa.scalar(None, pa.int64())) for column in values.columns
        ]
        positions = pa.Table.from_arrays(
            [*(keys.columns if keys is not None else []), *there],
            names=[*self._keys, *(f"v{i}" for i in range(len(there)))],
        )
        last = positions.group_by(self._keys).aggregate([(f"v{i}", "max") for i in range(len(there))])
        columns = [
            column.take(last.column(f"v{i}_max")).to_pylist() for i, column in enumerate(values.columns)
        ]
        self._schema = self._schema or pa.schema(
            [*(folded.hits.schema.field(key) for key in self._keys), *values.schema]
        )
        for at, group in enumerate(_groups(last, self._keys)):
            kept = self._values.setdefault(group, [None] * len(self._names))
            for i, found in enumerate(columns):
                kept[i] = found[at] if kept[i] is None else kept[i]

    def lacks(self, hits: pa.Table) -> bool:
        """Whether a group of the answer lacks a value."""
        return any(map(self._is_open, {*_groups(hits, self._keys), *self._values}))

    def table(self) -> pa.Table | None:
        import pyarrow as pa

        if self._schema is None:
            return None
        rows = [[*group, *values] for group, values in self._values.items()]
        arrays = [pa.array([row[i] for row in rows], type=field.type) for i, field in enumerate(self._schema)]
        return pa.Table.from_arrays(arrays, names=[*self._keys, *self._names])

    def _is_open(self, group: Group) -> bool:
        values = self._values.get(group)
        return values is None or None in values


def _groups(table: pa.Table, keys: list[str]) -> list[Group]:
    columns = [table.column(key).to_pylist() for key in keys]
    return list(zip(*columns, strict=True)) if keys else [()] * table.num_rows
