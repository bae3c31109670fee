"""Folds rows of rollups with Arrow alone, like `plan_sql.aggregate`: for a few parts whose columns are
cached, planning SQL takes longer than this.

Counts, sums, minima and maxima of one metric; everything else is left to DuckDB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.formats.arrow import one
from tidemill.query import plan_sql
from tidemill.query.column_cache import KeptColumns
from tidemill.query.dimensions import MetricRows
from tidemill.query.plan import Plan
from tidemill.query.plan_sql import FIRST, UNTIL
from tidemill.query.source import Scans

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tidemill.model.time import Interval
    from tidemill.query.values import ValuePart

MAX_ROWS: Final = 400_000  # of the parts that are read
_FOLDS: Final = frozenset({"count", "sum", "num", "min", "max"})
_SAFE: Final = float(1 << 62)  # no sum of counts below it overflows 64 bits
_ZERO: Final = pc.ScalarAggregateOptions(min_count=0)
_TYPES: Final = {
    "VARCHAR": pa.string(),
    "BIGINT": pa.int64(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
}


def can_fold(plan: Plan, scans: Scans) -> bool:
    """Whether a plan can be folded here."""
    return (
        plan.where is None
        and len(plan.rows) == 1
        and plan.rows[0] == MetricRows(plan.rows[0].metric)
        and all(part.fold in _FOLDS and len(part.rows) == 1 for part in plan.parts)
        and scans.rows <= MAX_ROWS
    )


def folded(plan: Plan, scans: Scans, kept: KeptColumns) -> pa.Table | None:
    """The table of `plan_sql.aggregate`; None if the engine must do it: a column has another type than
    declared now, or a count could overflow 64 bits."""
    types = _types(plan)
    pieces = [piece for piece in _pieces(plan, scans, kept, types) if len(piece.bucket)]
    if not all(_fits(column, types[name]) for piece in pieces for name, column in piece.columns.items()):
        return None
    rows = _joined(pieces, types)
    counts = {"count", *(_column(part) for part in plan.parts if part.fold == "num")}
    if any(_may_overflow(rows.column(name)) for name in counts):
        return None
    if plan.is_bucketed:
        rows = _in_cells(plan, rows)
    return _aggregated(plan, rows)


@dataclass(frozen=True, slots=True)
class _Piece:
    """The rows of one part that the plan needs."""

    columns: Mapping[str, pa.Array]
    bucket: NDArray[np.int64]
    until: NDArray[np.int64]


def _types(plan: Plan) -> dict[str, pa.DataType]:
    """The columns that are grouped by or folded."""
    found = {"count": pa.int64()}
    declared = plan_sql.columns_of(plan)
    for name in (*(group.column for group in plan.groups), *(_column(part) for part in plan.parts)):
        found[name] = _arrow_type(declared[name])
    return found


def _arrow_type(declared: str) -> pa.DataType:
    if declared in _TYPES:
        return _TYPES[declared]
    precision, scale = declared.removeprefix("DECIMAL(").removesuffix(")").split(",")
    return pa.decimal128(int(precision), int(scale))


def _column(part: ValuePart) -> str:
    return "count" if part.measure is None else plan_sql.column_of(part, part.measure)


def _pieces(
    plan: Plan, scans: Scans, kept: KeptColumns, types: Mapping[str, pa.DataType]
) -> Iterator[_Piece]:
    metric = plan.rows[0].metric
    names = list(dict.fromkeys(["bucket", *types, *(["tenant"] if plan.tenant is not None else [])]))
    texts = {"tenant", *(name for name, kind in types.items() if kind == pa.string())}
    for scan in scans.levels:
        for path in scan.files.paths:
            columns = kept.read(path, names, texts, metric)
            bucket: NDArray[np.int64] = columns["bucket"].view(pa.int64()).to_numpy()
            at = np.flatnonzero(_inside(bucket, scan.spans))
            yield _picked(plan, types, columns, at, scan.level.width)
    if scans.raw is not None:
        columns = {name: one(scans.raw.column(name)) for name in scans.raw.column_names}
        at = np.flatnonzero(_is(columns["metric"], metric))
        yield _picked(plan, types, columns, at, None)


def _picked(
    plan: Plan,
    names: Iterable[str],
    columns: Mapping[str, pa.Array],
    at: NDArray[np.int64],
    width: int | None,
) -> _Piece:
    """Columns `names` of the rows `at` that belong to the plan's tenant. No `width`: each row has its own."""
    if plan.tenant is not None:
        at = at[_is(columns["tenant"], plan.tenant)[at]]
    positions = pa.array(at)
    picked = {name: columns[name].take(positions) for name in names if name in columns}
    bucket = columns["bucket"].view(pa.int64()).to_numpy()[at]
    until = bucket + (columns[plan_sql.WIDTH].to_numpy()[at] if width is None else width)
    return _Piece(picked, bucket, until)


def _inside(bucket: NDArray[np.int64], spans: Sequence[Interval]) -> NDArray[np.bool_]:
    if len(spans) <= plan_sql.FEW:
        found = np.zeros(len(bucket), bool)
        for span in spans:
            found |= (bucket >= span.start) & (bucket < span.end)
        return found
    starts = np.array([span.start for span in spans], np.int64)
    ends = np.array([span.end for span in spans], np.int64)
    at = np.searchsorted(starts, bucket, side="right") - 1
    return (at >= 0) & (bucket < ends[at])


def _is(column: pa.Array, value: str) -> NDArray[np.bool_]:
    """Which rows have that string."""
    if not pa.types.is_dictionary(column.type):
        return np.asarray(pc.fill_null(pc.equal(column, value), fill_value=False))
    code = column.dictionary.index(value).as_py()
    codes = column.indices.fill_null(-1) if column.null_count else column.indices
    found: NDArray[np.bool_] = codes.to_numpy() == (code if code >= 0 else -2)
    return found


def _fits(column: pa.Array, kind: pa.DataType) -> bool:
    found = column.type
    return bool((found.value_type if pa.types.is_dictionary(found) else found) == kind)


def _joined(pieces: Sequence[_Piece], types: Mapping[str, pa.DataType]) -> pa.Table:
    """One table of all; a part that was written before a column was declared has nulls there."""
    columns = {
        name: pa.chunked_array(
            [
                piece.columns[name].cast(kind) if name in piece.columns else pa.nulls(len(piece.bucket), kind)
                for piece in pieces
            ],
            kind,
        )
        for name, kind in types.items()
    }
    first = [piece.bucket for piece in pieces]
    until = [piece.until for piece in pieces]
    none = [np.empty(0, np.int64)]
    return pa.table(columns | {FIRST: np.concatenate(first or none), UNTIL: np.concatenate(until or none)})


def _may_overflow(column: pa.ChunkedArray) -> bool:
    most = pc.sum(pc.abs(column.cast(pa.float64(), safe=False)), options=_ZERO).as_py()
    return bool(most >= _SAFE)


def _in_cells(plan: Plan, rows: pa.Table) -> pa.Table:
    """With the `cell` of each row; rows before the first cell are left out."""
    bucket: NDArray[np.int64] = one(rows.column(FIRST)).to_numpy()
    if plan.interval is not None:
        return rows.append_column("cell", pa.array(bucket // plan.interval * plan.interval))
    assert plan.grid is not None
    cells = np.array(plan.grid.cells, np.int64)
    at = np.searchsorted(cells, bucket, side="right") - 1
    known = at >= 0
    return rows.filter(pa.array(known)).append_column("cell", pa.array(cells[at[known]]))


def _aggregated(plan: Plan, rows: pa.Table) -> pa.Table:
    values = {
        "n": ("count", "sum"),
        FIRST: (FIRST, "min"),
        UNTIL: (UNTIL, "max"),
    }
    for i, part in enumerate(plan.parts):
        values[f"p{i}"] = (_column(part), part.fold if part.fold in ("min", "max") else "sum")
    keys = plan_sql.key_columns(plan)
    if not keys:
        return pa.table({name: _total(rows.column(column), fold) for name, (column, fold) in values.items()})
    grouped = {key: rows.column("cell") for key in keys if key == "cell"}
    grouped |= {f"g{i}": rows.column(group.column) for i, group in enumerate(plan.groups)}
    grouped |= {name: rows.column(column) for name, (column, _) in values.items()}
    found = (
        pa.table(grouped)
        .group_by(keys, use_threads=False)
        .aggregate([(name, fold, _ZERO if fold == "sum" else None) for name, (_, fold) in values.items()])
    )
    picked = {key: found.column(key) for key in keys}
    return pa.table(picked | {name: found.column(f"{name}_{fold}") for name, (_, fold) in values.items()})


def _total(column: pa.ChunkedArray, fold: str) -> pa.Array:
    match fold:
        case "sum":
            found = pc.sum(column, options=_ZERO)
        case "min":
            found = pc.min(column)
        case _:
            found = pc.max(column)
    return pa.array([found.as_py()], column.type)
