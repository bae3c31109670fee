"""Aggregated rows into the table people get: averages and rates, gaps, edges, order, rows or series.
Arrow and integers only; it never reads a file and never rounds except where `ratio` says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.model.time import SECOND
from tidemill.query.plan import BUCKET, Column, Plan
from tidemill.query.ratio import DIGITS, ratios
from tidemill.query.sql import group_columns, measures_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


def shaped(hits: pa.Table, gaps: pa.Table | None, plan: Plan) -> pa.Table:
    """The answer: bucket, groups, values under their names, in the order asked for.

    `hits` is what `sql.aggregate` gives, `gaps` the cells and groups that are missing in it.
    """
    table = _named(hits, plan)
    if gaps is not None:
        table = _with_gaps(table, gaps, plan)
    if plan.grid and plan.grid.hidden:
        table = _hidden(table, plan)
    table = _ordered(table, plan)
    if plan.format == "series":
        return _series(table, plan)
    return table if plan.limit is None else table.slice(0, plan.limit)


def _named(hits: pa.Table, plan: Plan) -> pa.Table:
    import pyarrow as pa

    columns, names = _keys(hits, plan)
    for column in plan.columns:
        columns.append(_value(hits, column, plan))
        names.append(column.name)
    return pa.Table.from_arrays(columns, names=names)


def _keys(table: pa.Table, plan: Plan) -> tuple[list[pa.ChunkedArray], list[str]]:
    import pyarrow as pa

    columns: list[pa.ChunkedArray] = []
    names: list[str] = []
    if plan.interval is not None:
        columns.append(table.column("cell").cast(pa.timestamp("us", tz="UTC")))
        names.append(BUCKET)
    for key, group in zip(group_columns(plan), plan.groups, strict=True):
        columns.append(table.column(key))
        names.append(group.name)
    return columns, names


def _value(hits: pa.Table, column: Column, plan: Plan) -> pa.ChunkedArray:
    import pyarrow as pa

    if column.measure is None:
        counts = hits.column("n")
        if column.function == "count":
            return counts
        exact = ratios(_flat(counts.cast(pa.decimal128(38, 0))), _seconds(hits, plan))
        return _with_scale(pa.chunked_array([exact]), DIGITS)
    i = measures_of(plan).index(column.measure)
    if column.function != "avg":
        return hits.column(f"{column.function}_{i}")
    sums = _flat(_with_scale(hits.column(f"sum_{i}"), 0))
    means = ratios(sums, _flat(hits.column(f"num_{i}")).to_numpy())
    return _with_scale(pa.chunked_array([means]), column.measure.scale + DIGITS)


def _seconds(hits: pa.Table, plan: Plan) -> NDArray[np.int64]:
    """For each hit, how long the part of its cell is that was read."""
    import numpy as np

    if plan.interval is None:
        assert plan.span
        return np.full(hits.num_rows, (plan.span.end - plan.span.start) // SECOND)
    if plan.read is None:
        return np.full(hits.num_rows, plan.interval // SECOND)
    cells = _flat(hits.column("cell")).to_numpy()
    ends = np.minimum(cells + plan.interval, plan.read.end)
    seconds: NDArray[np.int64] = (ends - np.maximum(cells, plan.read.start)) // SECOND
    return seconds


def _with_gaps(table: pa.Table, gaps: pa.Table, plan: Plan) -> pa.Table:
    """FILL zero says 0 where nothing was counted or summed; a least, greatest or mean of nothing is null."""
    import pyarrow as pa

    columns, _ = _keys(gaps, plan)
    for column in plan.columns:
        kind = table.schema.field(column.name).type
        zero = plan.fill == "zero" and column.function in ("count", "rate", "sum")
        value = pa.scalar(0, type=pa.int64()).cast(kind) if zero else pa.scalar(None, type=kind)
        columns.append(pa.chunked_array([pa.repeat(value, gaps.num_rows)]))
    return pa.concat_tables([table, pa.Table.from_arrays(columns, schema=table.schema)])


def _hidden(table: pa.Table, plan: Plan) -> pa.Table:
    """EDGES null: a cell that the span holds only a part of has a row and no number."""
    import pyarrow as pa
    import pyarrow.compute as pc

    assert plan.grid
    buckets = pa.array(plan.grid.hidden, type=pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    partial = pc.is_in(table.column(BUCKET), value_set=buckets)
    for column in plan.columns:
        at = table.column_names.index(column.name)
        values = table.column(at)
        table = table.set_column(
            at, column.name, pc.if_else(partial, pa.scalar(None, type=values.type), values)
        )
    return table


def _ordered(table: pa.Table, plan: Plan) -> pa.Table:
    """As asked, then by bucket and groups, so that the order is the same every time; nulls come last."""
    import pyarrow.compute as pc

    bucket = [BUCKET] if plan.interval is not None else []
    groups = [group.name for group in plan.groups]
    keys = {sort.name: "descending" if sort.descending else "ascending" for sort in reversed(plan.order)}
    keys = dict(reversed(keys.items()))  # of a column named twice the first mention counts
    for name in groups + bucket if plan.format == "series" else bucket + groups:
        keys.setdefault(name, "ascending")
    if not keys or table.num_rows < 2:
        return table
    at = {name: f"k{i}" for i, name in enumerate(table.column_names)}  # no name is read as a path
    plain = table.rename_columns(list(at.values()))
    order = [(at[name], direction) for name, direction in keys.items()]
    return table.take(pc.sort_indices(plain, sort_keys=order))  # nulls at the end by default


def _series(table: pa.Table, plan: Plan) -> pa.Table:
    """One row for each group; its buckets and values are lists of equal length."""
    import pyarrow as pa

    groups = {group.name for group in plan.groups}
    starts = _starts(table, [group.name for group in plan.groups])
    if plan.limit is not None:
        starts = starts[: plan.limit + 1]
    offsets = pa.array(starts, type=pa.int32())
    firsts = pa.array(starts[:-1], type=pa.int64())
    columns = [
        column.take(firsts) if name in groups else pa.ListArray.from_arrays(offsets, _flat(column))
        for name, column in zip(table.column_names, table.columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, names=table.column_names)


def _starts(table: pa.Table, groups: list[str]) -> list[int]:
    """Where each series starts in the sorted rows, then their number. Without groups there is one."""
    import numpy as np
    import pyarrow.compute as pc

    if not groups:
        return [0, table.num_rows]
    changes = np.zeros(max(table.num_rows - 1, 0), dtype=bool)
    for name in groups:
        codes = _flat(pc.dictionary_encode(table.column(name), null_encoding="encode")).indices.to_numpy()
        changes |= codes[1:] != codes[:-1]
    inner = [int(at) + 1 for at in np.flatnonzero(changes)]
    return [0, *inner, table.num_rows] if table.num_rows else [0]


def _with_scale(column: pa.ChunkedArray, scale: int) -> pa.ChunkedArray:
    """The same 128-bit integers with the point elsewhere; nothing is computed or copied."""
    import pyarrow as pa

    kind = pa.decimal128(38, scale)
    chunks = [
        pa.Array.from_buffers(kind, len(chunk), chunk.buffers(), offset=chunk.offset)
        for chunk in column.chunks
    ]
    return pa.chunked_array(chunks, type=kind)


def _flat(column: pa.ChunkedArray) -> pa.Array:
    """One array, also of a column without chunks."""
    import pyarrow as pa

    whole = column.combine_chunks()
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
