"""Turns aggregated rows into the table of an answer: averages and rates, gaps, edges, order, rows or series.
Arrow and integers only; it never reads a file and rounds only where `ratio` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING

from tidemill.model.time import DAY, MAX_INSTANT, MIN_INSTANT, SECOND, Interval
from tidemill.query.arithmetic import computed, holds, scale_of
from tidemill.query.groups import BEFORE, carried, flat, group_numbers, running_total
from tidemill.query.heatmap import BIN, bounds_of, counted
from tidemill.query.language.ast import Value
from tidemill.query.percentiles import BinPosition, estimates, positions
from tidemill.query.plan import BUCKET, HEATMAP, Plan
from tidemill.query.plan_sql import group_columns, key_columns
from tidemill.query.ratio import DIGITS, ratios
from tidemill.query.unfit import NONE as NO_UNFIT
from tidemill.query.unfit import UnfitEvents
from tidemill.query.values import COUNTED, ValueColumn, ValuePart

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class AggregatedRows:
    """The rows that an engine read: `hits` as in `plan_sql.aggregate`, and what only some answers need."""

    hits: pa.Table
    gaps: pa.Table | None = None  # the cells and groups that are missing in `hits`
    opening: pa.Table | None = None  # the objects in states before the first cell
    bins: pa.Table | None = None  # of histograms, as lists; rows of the same cell and group are merged here
    before: pa.Table | None = None  # the last values of groups before the first cell, by column
    lost: tuple[Interval, ...] = ()  # a cell that overlaps one of these has no number,
    unknown: tuple[Interval, ...] = ()  # and one that overlaps one of these has no states
    unfit: UnfitEvents = NO_UNFIT  # events whose numbers are not known

    @property
    def cells(self) -> NDArray[np.int64]:
        """The start of the cell of each row: of `hits`, then of `gaps`."""
        import numpy as np

        tables = [self.hits] if self.gaps is None else [self.hits, self.gaps]
        return np.concatenate([flat(table.column("cell")).to_numpy() for table in tables])


def shaped(found: AggregatedRows, plan: Plan) -> pa.Table:
    """The answer: bucket, groups, values under their names, in the requested order."""
    if plan.heatmap is not None:
        return _heatmap(found, plan, plan.heatmap)
    table = values_of(found, plan)
    if found.gaps is not None:
        table = _with_gaps(table, found.gaps, plan)
    shown = None
    if plan.states:
        table = _running_totals(table, found, plan)
        shown = _has_objects(table, found, plan)
    if found.lost or found.unknown or found.unfit.fields:
        table = _without_lost(table, found, plan)
    if plan.grid and plan.grid.hidden:
        table = _hidden(table, found, plan)
    if plan.fill == "carry" and found.gaps is not None:
        table = _carried(table, found, plan)
    table = _computed(table if shown is None else table.filter(shown), plan)
    return _arranged(table, plan, [group.name for group in plan.groups])


def _arranged(table: pa.Table, plan: Plan, groups: list[str]) -> pa.Table:
    table = _ordered(table, plan, groups)
    if plan.format == "series":
        return _series(table, plan, groups)
    return table.slice(plan.offset, plan.limit)


def _heatmap(found: AggregatedRows, plan: Plan, column: ValueColumn) -> pa.Table:
    """A row for each cell, group and bin: its bounds, and its number of samples; for series, each bin is one.
    Cells without a number, and cells that are filled, have the bins that their group has elsewhere."""
    import numpy as np
    import pyarrow as pa

    assert found.bins is not None
    assert column.bins is not None
    assert column.measure is not None
    tables = [found.hits] if found.gaps is None else [found.hits, found.gaps]
    cells = pa.concat_tables([table.select(key_columns(plan) or ["n"]) for table in tables])
    unnumbered = _meeting(found, plan, found.lost) | _unfit(found, plan, column)
    if plan.grid and plan.grid.hidden:
        unnumbered = unnumbered | np.isin(found.cells, np.array(plan.grid.hidden))
    filled = unnumbered if plan.fill == "drop" else np.ones(cells.num_rows, np.bool_)
    at, bins, counts = counted(found.bins, cells, key_columns(plan), group_columns(plan), filled)
    numbers = counts.astype(object)
    numbers[counts < 0] = 0 if plan.fill == "zero" else None
    numbers[unnumbered[at]] = None
    columns, names = _keys(cells.take(pa.array(at)), plan)
    lower, upper = bounds_of(column.bins, bins, column.measure.scale)
    made = pa.Table.from_arrays(
        [*columns, pa.array(bins), lower, upper, pa.array(numbers, pa.int64())], names=[*names, BIN, *HEATMAP]
    )
    shown = _arranged(made, plan, [*(group.name for group in plan.groups), BIN])
    if plan.format == "series":  # the bounds are the same all along a series
        import pyarrow.compute as pc

        for name in HEATMAP[:2]:
            index = shown.column_names.index(name)
            shown = shown.set_column(index, name, pc.list_element(shown.column(name), 0))
    return shown.drop_columns([BIN])


def _computed(table: pa.Table, plan: Plan) -> pa.Table:
    """The columns that the answer shows: values and expressions; of the rows, those that HAVING keeps."""
    import pyarrow as pa

    values = {value: table.column(name) for value, name in plan.leaves.items()}
    scales = {
        value: column.type.scale if hasattr(column.type, "scale") else 0 for value, column in values.items()
    }
    keys = table.column_names[: table.num_columns - len(plan.columns)]
    columns = {name: table.column(name) for name in keys}
    for output in plan.outputs:
        if isinstance(output.expression, Value):
            columns[output.name] = values[output.expression]
        else:
            scale = scale_of(output.expression, scales)
            columns[output.name] = computed(output.expression, values, table.num_rows, scale)
    made = pa.Table.from_arrays(list(columns.values()), names=list(columns))
    return made if plan.having is None else made.filter(pa.array(holds(plan.having, values, table.num_rows)))


def values_of(found: AggregatedRows, plan: Plan) -> pa.Table:
    """The hits under the names of the answer: bucket, groups, and a column for each value."""
    import pyarrow as pa

    columns, names = _keys(found.hits, plan)
    quantiles = dict.fromkeys(column.quantile for column in plan.columns if column.quantile is not None)
    at = positions(found.hits, found.bins, key_columns(plan), quantiles) if found.bins is not None else {}
    for column in plan.columns:
        columns.append(_value(found.hits, column, plan, at))
        names.append(column.name)
    return pa.Table.from_arrays(columns, names=names)


def _keys(table: pa.Table, plan: Plan) -> tuple[list[pa.ChunkedArray], list[str]]:
    columns: list[pa.ChunkedArray] = []
    names: list[str] = []
    if plan.is_bucketed:
        import pyarrow as pa
        import pyarrow.compute as pc

        # A bucket of the first days may start before the first instant.
        starts = pc.max_element_wise(table.column("cell"), MIN_INSTANT)
        columns.append(starts.cast(pa.timestamp("us", tz=_zone_of(starts, plan))))
        names.append(BUCKET)
    for key, group in zip(group_columns(plan), plan.groups, strict=True):
        columns.append(table.column(key))
        names.append(group.name)
    return columns, names


def _zone_of(starts: pa.ChunkedArray, plan: Plan) -> str:
    """The time zone of the buckets; UTC where its clocks could show a year before 1 or after 9999."""
    import pyarrow.compute as pc

    zone = plan.step.zone if plan.step is not None else None
    least, greatest = pc.min_max(starts).as_py().values()
    if zone is None or least is None:
        return zone or "UTC"
    return zone if least >= MIN_INSTANT + DAY and greatest < MAX_INSTANT - DAY else "UTC"


def _value(
    hits: pa.Table, column: ValueColumn, plan: Plan, at: Mapping[Fraction, BinPosition]
) -> pa.ChunkedArray:
    import pyarrow as pa

    def folded(part: ValuePart) -> pa.ChunkedArray:
        return hits.column(f"p{plan.parts.index(part)}")

    first, *rest = column.parts
    if column.function == "rate":
        return _with_scale(pa.chunked_array([_rates(folded(first), hits, plan)]), DIGITS)
    if column.function == "ratio":
        counts = flat(folded(first).cast(pa.decimal128(38, 0)))
        return _with_scale(pa.chunked_array([ratios(counts, flat(folded(rest[0])).to_numpy())]), DIGITS)
    if column.measure is None or column.function not in ("avg", "percentile"):
        return folded(first)
    if column.function == "avg":
        sums = flat(_with_scale(folded(first), 0))
        exact = ratios(sums, flat(folded(rest[0])).to_numpy())
    else:
        assert column.bins is not None
        assert column.quantile is not None
        scale = column.measure.scale
        exact = estimates(column.bins, at[column.quantile], folded(first), folded(rest[0]), scale)
    return _with_scale(pa.chunked_array([exact]), column.measure.scale + DIGITS)


def _rates(counts: pa.ChunkedArray, hits: pa.Table, plan: Plan) -> pa.Array:
    """Events per second of the part of each cell inside the span."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = _lengths(hits, plan)
    exact = flat(counts.cast(pa.decimal128(38, 0)))
    if not (lengths % SECOND).any():
        return ratios(exact, lengths // SECOND)
    many = flat(counts.cast(pa.decimal128(19, 0)))
    scaled = pc.multiply(many, pa.scalar(Decimal(SECOND), pa.decimal128(7, 0)))
    return ratios(scaled.cast(pa.decimal128(38, 0)), lengths)


def _lengths(hits: pa.Table, plan: Plan) -> NDArray[np.int64]:
    """For each hit, the length of the part of its cell inside the span."""
    import numpy as np

    if not plan.is_bucketed:
        assert plan.span
        return np.full(hits.num_rows, plan.span.end - plan.span.start)
    cells = flat(hits.column("cell")).to_numpy()
    ends = _ends(cells, plan)
    if plan.read is None:
        lengths: NDArray[np.int64] = ends - cells
    else:
        lengths = np.minimum(ends, plan.read.end) - np.maximum(cells, plan.read.start)
    return lengths


def _ends(cells: NDArray[np.int64], plan: Plan) -> NDArray[np.int64]:
    """Where each of these cells ends."""
    import numpy as np

    if plan.interval is not None:
        return cells + plan.interval
    assert plan.grid is not None
    edges = np.array([*plan.grid.cells, plan.grid.end], np.int64)
    found: NDArray[np.int64] = edges[np.searchsorted(edges, cells) + 1]
    return found


def _meeting(found: AggregatedRows, plan: Plan, spans: Sequence[Interval]) -> NDArray[np.bool_]:
    """For each row whether its cell overlaps the sorted spans."""
    import numpy as np

    rows = found.hits.num_rows + (found.gaps.num_rows if found.gaps is not None else 0)
    if not plan.is_bucketed or not spans:
        return np.full(rows, bool(spans))
    cells = found.cells
    starts, ends = (np.array([getattr(span, side) for span in spans]) for side in ("start", "end"))
    at = np.searchsorted(ends, cells, side="right")
    meets: NDArray[np.bool_] = (at < len(spans)) & (
        starts[np.minimum(at, len(spans) - 1)] < _ends(cells, plan)
    )
    return meets


def _with_gaps(table: pa.Table, gaps: pa.Table, plan: Plan) -> pa.Table:
    """FILL zero gives 0 where nothing was counted or summed; the minimum, maximum or mean of nothing is null.
    The same for totals, where missing groups have just not changed."""
    import pyarrow as pa

    columns, _ = _keys(gaps, plan)
    zeros = COUNTED if plan.fill == "zero" or not plan.is_bucketed else frozenset[str]()
    for column in plan.columns:
        kind = table.schema.field(column.name).type
        zero = column.function in zeros
        value = pa.scalar(0, type=pa.int64()).cast(kind) if zero else pa.scalar(None, type=kind)
        columns.append(pa.chunked_array([pa.repeat(value, gaps.num_rows)]))
    return pa.concat_tables([table, pa.Table.from_arrays(columns, schema=table.schema)])


def _running_totals(table: pa.Table, found: AggregatedRows, plan: Plan) -> pa.Table:
    """The number of objects in a state at the end of each cell: those before the first one, plus all changes
    since. Always a number: objects stay in their state."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    pieces = [each for each in (found.opening, found.hits, found.gaps) if each is not None]
    groups = group_numbers(pieces, group_columns(plan))
    opened = np.zeros(0, np.int64) if found.opening is None else flat(found.opening.column("net")).to_numpy()
    cells = np.arange(len(groups))  # for totals each group has one row, after the one it opened with
    if plan.is_bucketed:
        cells = np.concatenate([np.full(len(opened), BEFORE), found.cells])
    for column in plan.columns:
        if column.function == "states":
            changes = flat(pc.fill_null(table.column(column.name), 0)).to_numpy()
            totals = running_total(groups, cells, np.concatenate([opened, changes]))[len(opened) :]
            table = table.set_column(
                table.column_names.index(column.name), column.name, pa.chunked_array([totals])
            )
    return table


def _has_objects(table: pa.Table, found: AggregatedRows, plan: Plan) -> pa.Array | None:
    """For each row whether its group has an object at the end of any cell. (A cell before the first row of a
    group has what the group opened with.) None: all rows stay."""
    import numpy as np
    import pyarrow as pa

    if not plan.groups or not plan.states_alone:
        return None
    groups = group_numbers([table], [group.name for group in plan.groups])
    totals = flat(table.column(plan.columns[0].name)).to_numpy()
    has = np.isin(groups, groups[totals != 0])
    if found.opening is not None and plan.grid and plan.grid.cells:
        has |= _opened_and_kept(found, plan, groups, plan.grid.cells[0])
    return pa.array(has)


def _opened_and_kept(
    found: AggregatedRows, plan: Plan, groups: NDArray[np.int64], first: int
) -> NDArray[np.bool_]:
    """For each row whether its group opened with objects and had no change in the first cell."""
    import numpy as np

    assert found.opening is not None
    pieces = [each for each in (found.opening, found.hits, found.gaps) if each is not None]
    numbers = group_numbers(pieces, group_columns(plan))
    opened = np.isin(numbers[found.opening.num_rows :], numbers[: found.opening.num_rows])
    return opened & ~np.isin(groups, groups[found.cells <= first])


def _carried(table: pa.Table, found: AggregatedRows, plan: Plan) -> pa.Table:
    """FILL carry: where a cell has no value, the last one that the group had before it, also before the span.
    A cell may have events and still no value, if none of them had one. A cell that is only partly in the span
    keeps its null where EDGES says so; nothing is carried over a lost cell."""
    import numpy as np

    names = [group.name for group in plan.groups]
    before = _before(found, plan, table)
    first = before.num_rows
    groups = group_numbers([before, table], names)
    cells = np.concatenate([np.full(first, BEFORE), found.cells])
    lost = np.concatenate([np.zeros(first, np.bool_), _meeting(found, plan, found.lost)])
    fillable = np.arange(len(cells)) >= first
    if plan.grid and plan.grid.hidden:
        fillable &= ~np.isin(cells, np.array(plan.grid.hidden))
    for column in plan.columns:
        if column.function != "states":
            at = table.column_names.index(column.name)
            values = _chained(before.column(column.name), table.column(at))
            barred = lost.copy()
            barred[first:] |= _unfit(found, plan, column)
            gap = fillable & ~barred & flat(values.is_null()).to_numpy(zero_copy_only=False)
            whole = carried(values, groups, cells, gap, barred)
            table = table.set_column(at, column.name, whole.slice(first))
    return table


def _before(found: AggregatedRows, plan: Plan, table: pa.Table) -> pa.Table:
    """The values before the first cell, with the names and types of the answer."""
    groups = [group.name for group in plan.groups]
    columns = [column.name for column in plan.columns if column.function != "states"]
    if found.before is None:
        return table.select([*groups, *columns]).slice(0, 0)
    earlier = found.before.select([*group_columns(plan), *columns]).rename_columns([*groups, *columns])
    return earlier.cast(table.select([*groups, *columns]).schema)


def _chained(first: pa.ChunkedArray, then: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow as pa

    return pa.chunked_array([*first.chunks, *then.chunks], type=then.type)


def _without_lost(table: pa.Table, found: AggregatedRows, plan: Plan) -> pa.Table:
    """No number for a cell, even if only a part of it is lost; nor for the total."""
    names = {column.name: column.function == "states" for column in plan.columns}
    table = _nulled(table, [n for n, state in names.items() if not state], _meeting(found, plan, found.lost))
    table = _nulled(table, [n for n, state in names.items() if state], _meeting(found, plan, found.unknown))
    for column in plan.columns if found.unfit.fields else ():
        table = _nulled(table, [column.name], _unfit(found, plan, column))
    return table


def _unfit(found: AggregatedRows, plan: Plan, column: ValueColumn) -> NDArray[np.bool_]:
    """For each row whether an event with a value that its type cannot hold belongs to the number."""
    tables = [found.hits] if found.gaps is None else [found.hits, found.gaps]
    return found.unfit.rows(tables, plan, column)


def _hidden(table: pa.Table, found: AggregatedRows, plan: Plan) -> pa.Table:
    """EDGES null: a cell that is only partly in the span has a row and no number."""
    import numpy as np

    assert plan.grid
    partial = np.isin(found.cells, np.array(plan.grid.hidden))
    return _nulled(table, [column.name for column in plan.columns], partial)


def _nulled(table: pa.Table, names: Sequence[str], rows: NDArray[np.bool_]) -> pa.Table:
    """The table with nulls in these columns and rows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for name in names if rows.any() else ():
        at = table.column_names.index(name)
        values = table.column(at)
        nothing = pa.scalar(None, type=values.type)
        table = table.set_column(at, name, pc.if_else(pa.array(rows), nothing, values))
    return table


def _ordered(table: pa.Table, plan: Plan, groups: list[str]) -> pa.Table:
    """As requested, then by bucket and groups, so that the order is deterministic; nulls come last."""
    import pyarrow.compute as pc

    bucket = [BUCKET] if plan.is_bucketed else []
    # The first and the last bin have only one bound.
    bounds = dict.fromkeys(HEATMAP[:2], BIN) if BIN in groups else {}
    keys = {
        bounds.get(sort.name, sort.name): "descending" if sort.descending else "ascending"
        for sort in reversed(plan.order)
    }
    keys = dict(reversed(keys.items()))  # of a column named twice the first mention counts
    for name in groups + bucket if plan.format == "series" else bucket + groups:
        keys.setdefault(name, "ascending")
    if not keys or table.num_rows < 2:
        return table
    at = {name: f"k{i}" for i, name in enumerate(table.column_names)}  # so that no name is read as a path
    plain = table.rename_columns(list(at.values()))
    order = [(at[name], direction) for name, direction in keys.items()]
    return table.take(pc.sort_indices(plain, sort_keys=order))  # nulls at the end by default


def _series(table: pa.Table, plan: Plan, groups: list[str]) -> pa.Table:
    """One row for each group; its buckets and values are lists of equal length."""
    import pyarrow as pa

    starts = _starts(table, groups)
    last = len(starts) - 1 if plan.limit is None else min(plan.offset + plan.limit, len(starts) - 1)
    starts = starts[min(plan.offset, last) : last + 1]
    offsets = pa.array(starts, type=pa.int32())
    firsts = pa.array(starts[:-1], type=pa.int64())
    columns = [
        column.take(firsts) if name in groups else pa.ListArray.from_arrays(offsets, flat(column))
        for name, column in zip(table.column_names, table.columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, names=table.column_names)


def _starts(table: pa.Table, groups: list[str]) -> list[int]:
    """Where each series starts in the sorted rows, then their number. Without groups there is one."""
    import numpy as np

    if not groups:
        return [0, table.num_rows]
    numbers = group_numbers([table], groups)
    inner = [int(at) + 1 for at in np.flatnonzero(numbers[1:] != numbers[:-1])]
    return [0, *inner, table.num_rows] if table.num_rows else [0]


def _with_scale(column: pa.ChunkedArray, scale: int) -> pa.ChunkedArray:
    """The same 128-bit integers with another scale; nothing is computed or copied."""
    import pyarrow as pa

    kind = pa.decimal128(38, scale)
    chunks = [
        pa.Array.from_buffers(kind, len(chunk), chunk.buffers(), offset=chunk.offset)
        for chunk in column.chunks
    ]
    return pa.chunked_array(chunks, type=kind)
