"""A plan as SQL. Values are always bound as parameters; identifiers come from the configuration and are
quoted; nothing a user wrote becomes part of the text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from tidemill.model.conditions.ast import (
    COMPARISONS,
    Among,
    Compare,
    FieldTest,
    IsNull,
    Like,
    Literally,
    Within,
)
from tidemill.model.conditions.evaluation import evaluate
from tidemill.model.conditions.like import lowered, plain_pattern
from tidemill.model.names import STATE_COLUMNS, quoted
from tidemill.model.time import Interval
from tidemill.query.cover import ALL_TIME
from tidemill.query.dimensions import BIN_COUNTS, BINS, FROM, RULE, STATE, TO, DeclaredMeasure, MetricRows
from tidemill.query.plan import Plan
from tidemill.query.source import Scan, Scans
from tidemill.query.values import ValuePart

Parameter = str | int | bool | list[str] | list[int]
FIRST, UNTIL = "first", "until"  # the first and last time of rows
RAW_VIEW: Final = "raw_rows"  # the name under which rows made from raw are registered
WIDTH: Final = "bucket__width"  # how long the bucket of a row is
_START: Final = "epoch_us(bucket)"
_END: Final = f"epoch_us(bucket) + {WIDTH}"
FEW: Final = 8  # spans of a level that are written out


@dataclass(slots=True)
class PlanStatement:
    """SQL text under construction, with its parameters."""

    text: str = ""
    parameters: dict[str, Parameter] = field(default_factory=dict)

    def bind(self, value: Parameter, name: str | None = None) -> str:
        """A placeholder for `value`."""
        key = name or f"v{len(self.parameters)}"
        self.parameters[key] = value
        return f"${key}"

    def once(self, value: str) -> str:
        """A placeholder for `value`, shared by all that name it."""
        for key, known in self.parameters.items():
            if known == value and isinstance(known, str):
                return f"${key}"
        return self.bind(value)


def group_columns(plan: Plan) -> list[str]:
    return [f"g{index}" for index in range(len(plan.groups))]


def aggregate(plan: Plan, scans: Scans) -> PlanStatement:
    """One row for each cell and group with rows: `cell`, `g0`…, `n` (of all rows), for each part of the
    answer `p0`…, and the first and last time of rows: `first`, `until`."""
    made = PlanStatement()
    picked = [*_keys(plan, made), 'CAST(coalesce(sum("count"), 0) AS BIGINT) AS n']
    picked += [f"min({_START}) AS {FIRST}", f"max({_END}) AS {UNTIL}"]
    picked += [f"{_folded(part, plan, made)} AS p{i}" for i, part in enumerate(plan.parts)]
    keys = key_columns(plan)
    made.text = (
        f"SELECT {', '.join(picked)}\nFROM {_in_cells(plan, scans, made)}\nWHERE {_scope(plan, made)}"
        + _and_condition(plan, made)
        + (f"\nGROUP BY {', '.join(keys)}" if keys else "")
    )
    return made


def key_columns(plan: Plan) -> list[str]:
    return (["cell"] if plan.is_bucketed else []) + group_columns(plan)


def bins(plan: Plan, scans: Scans, *, merged: bool) -> PlanStatement:
    """`cell`, `g0`…, and the bins with their counts, as lists: for each row of the table, or merged, a row
    for each bin."""
    column = plan.percentile
    assert column
    made = PlanStatement()
    scope = " AND ".join([*(_is(rows, made) for rows in column.rows), *_tenant(plan, made)])
    which, held = quoted(BINS), quoted(BIN_COUNTS)
    picked = [f"unnest({which}) AS bin", f"unnest({held}) AS n"] if merged else [which, held]
    rows = (
        f"SELECT {', '.join([*_keys(plan, made), *picked])}\n"
        f"FROM {_in_cells(plan, scans, made)}\nWHERE {scope}{_and_condition(plan, made)}"
    )
    keys = ", ".join([*key_columns(plan), "bin"])
    lists = f"[bin] AS {which}, [CAST(sum(n) AS BIGINT)] AS {held}"
    grouped = f"SELECT {', '.join([*key_columns(plan), lists])}\nFROM ({rows})\nGROUP BY {keys}"
    made.text = grouped if merged else rows
    return made


def opening(plan: Plan, scans: Scans) -> PlanStatement:
    """`g0`… and `net`: the number of objects in the states of each group before what is read, if any."""
    assert plan.states
    made = PlanStatement()
    groups = [f"{quoted(group.column)} AS g{i}" for i, group in enumerate(plan.groups)]
    scope = " AND ".join([_is(plan.states, made), *_tenant(plan, made)])
    keys, net = group_columns(plan), 'CAST(sum("count") AS BIGINT) AS net'
    made.text = (
        f"SELECT {', '.join([*groups, net])}\nFROM {_rows(plan, scans, made)}\n"
        f"WHERE {scope}{_and_condition(plan, made)}"
        + (f"\nGROUP BY {', '.join(keys)}" if keys else "")
        + '\nHAVING sum("count") != 0'
    )
    return made


def data_span(plan: Plan, scans: Scans) -> PlanStatement:
    """The first and last time of data of the metric and tenant in the span, ignoring WHERE."""
    made = PlanStatement()
    made.text = (
        f"SELECT min({_START}), max({_END})\nFROM {_rows(plan, scans, made)}\nWHERE {_scope(plan, made)}"
    )
    return made


def missing(plan: Plan, hits: str, running_total: str | None, cells: Sequence[int] | None) -> PlanStatement:
    """`cell`, `g0`… of every cell in `cells` and group for which the view `hits` has no row. The groups are
    those of `hits`, and of the time before, if that is needed."""
    made = PlanStatement()
    keys = group_columns(plan)
    known = " UNION ".join(
        f"SELECT DISTINCT {', '.join(keys)} FROM {view}" for view in (hits, running_total) if view
    )
    groups = known if keys else "SELECT 1 AS alone"
    same = [f"hit.{key} IS NOT DISTINCT FROM want.{key}" for key in keys]
    if cells is not None:
        groups = f"SELECT * FROM ({_listed(cells, made)}), ({groups})"
        same.insert(0, "hit.cell = want.cell")
    picked = [f"want.{key}" for key in key_columns(plan)]
    made.text = (
        f"SELECT {', '.join(picked)}\nFROM ({groups}) AS want ANTI JOIN {hits} AS hit ON {' AND '.join(same)}"
    )
    return made


def _listed(cells: Sequence[int], made: PlanStatement) -> str:
    if isinstance(cells, range):
        start, stop, step = made.bind(cells.start), made.bind(cells.stop), made.bind(cells.step)
        return f"SELECT range AS cell FROM range({start}, {stop}, {step})"
    # DuckDB would use a shorter integer for no instants, or for some close to 1970.
    return f"SELECT unnest(CAST({made.bind(list(cells), 'cells')} AS BIGINT[])) AS cell"


def _keys(plan: Plan, made: PlanStatement) -> list[str]:
    groups = [f"{quoted(group.column)} AS g{i}" for i, group in enumerate(plan.groups)]
    return [_cell(plan, made), *groups] if plan.is_bucketed else groups


def column_of(part: ValuePart, measure: DeclaredMeasure) -> str:
    """The column of a part's number in the table."""
    return f"{measure.column}__{'count' if part.fold == 'num' else part.fold}"


def _stored_type(part: ValuePart, measure: DeclaredMeasure) -> str:
    return {"sum": f"DECIMAL(38, {measure.scale})", "num": "BIGINT"}.get(part.fold, measure.sql_type)


def _folded(part: ValuePart, plan: Plan, made: PlanStatement) -> str:
    """Buckets merged into a cell. The sum of no values is 0; their minimum, maximum, first, last are null.

    DuckDB does not detect a decimal sum that overflows 128 bits, but a value has 63 bits and the count is
    checked to have no more: 2^126 is below 10^38, so the count is refused before a sum could be wrong.
    """
    several = len(plan.rows) > 1  # else all rows that are read belong to the part
    if part.measure is None:
        sums = (
            f'coalesce(sum("count") FILTER (WHERE {_is(rows, made)}), 0)'
            if several
            else 'coalesce(sum("count"), 0)'
            for rows in part.rows
        )
        return f"CAST({' + '.join(sums)} AS BIGINT)"
    (rows,) = part.rows
    only = [_is(rows, made)] if several else []
    column = quoted(column_of(part, part.measure))
    if part.fold in ("first", "last"):
        stem = f"{part.measure.column}__{part.fold}"
        time, id_ = quoted(f"{stem}_time"), quoted(f"{stem}_id")
        fold = "min" if part.fold == "first" else "max"
        triple = f"struct_pack(t := {time}, i := {id_}, v := {column})"
        filtered = " AND ".join([f"{time} IS NOT NULL", *only])
        return f"struct_extract({fold}({triple}) FILTER (WHERE {filtered}), 'v')"
    filtered = f" FILTER (WHERE {only[0]})" if only else ""
    if part.fold in ("min", "max"):
        return f"{part.fold}({column}){filtered}"
    return f"CAST(coalesce(sum({column}){filtered}, 0) AS {_stored_type(part, part.measure)})"


def _cell(plan: Plan, made: PlanStatement) -> str:
    if plan.interval is None:
        return "cell"
    width = made.bind(plan.interval, "interval")
    # DuckDB's % keeps the sign of the left side: before 1970 it must be lifted.
    return f"{_START} - (({_START} % {width}) + {width}) % {width} AS cell"


def _in_cells(plan: Plan, scans: Scans, made: PlanStatement) -> str:
    """The rows; if cells have no common width, each with its `cell`."""
    rows = _rows(plan, scans, made)
    if plan.interval is not None or plan.grid is None:
        return rows
    return f"{rows} AS r\n  ASOF JOIN ({_listed(plan.grid.cells, made)}) AS c ON epoch_us(r.bucket) >= c.cell"


def _rows(plan: Plan, scans: Scans, made: PlanStatement) -> str:
    """What is read, as one relation with every column: a file written before a dimension was declared lacks
    it, and then it is null."""
    typed = ", ".join(f"CAST(NULL AS {kind}) AS {quoted(name)}" for name, kind in columns_of(plan).items())
    pieces = [f"SELECT {typed} WHERE false", *(_scanned(scan, made) for scan in scans.levels)]
    if scans.raw is not None:
        pieces.append(f"SELECT * FROM {RAW_VIEW}")
    return "(" + "\n  UNION ALL BY NAME ".join(pieces) + ")"


def _scanned(scan: Scan, made: PlanStatement) -> str:
    """The buckets of a level that are read. Many spans are joined, few are written out."""
    name = scan.level.name
    files = made.bind(list(scan.files.paths), f"files_{name}")
    picked = f"SELECT *, {scan.level.width} AS {WIDTH}"
    table = f"read_parquet({files}, hive_partitioning = false, union_by_name = true)"
    if len(scan.spans) <= FEW:
        bounds = [_bounds(span, made, f"{name}_{i}") for i, span in enumerate(scan.spans)]
        where = " OR ".join(f"({each})" for each in bounds) if all(bounds) else ""
        return f"{picked} FROM {table}" + (f" WHERE {where}" if where else "")
    whole = _bounds(Interval(scan.spans[0].start, scan.spans[-1].end), made, name)
    starts = made.bind([span.start for span in scan.spans], f"starts_{name}")
    ends = made.bind([span.end for span in scan.spans], f"ends_{name}")
    return (
        f"SELECT r.* FROM ({picked} FROM {table} WHERE {whole}) AS r\n"
        f"  ASOF JOIN (SELECT unnest({starts}) AS s, unnest({ends}) AS e) ON epoch_us(r.bucket) >= s\n"
        f"  WHERE epoch_us(r.bucket) < e"
    )


def columns_of(plan: Plan) -> dict[str, str]:
    """The columns that the plan reads, with their types."""
    columns = {"metric": "VARCHAR", "tenant": "VARCHAR", "bucket": "TIMESTAMPTZ", "count": "BIGINT"}
    columns[WIDTH] = "BIGINT"
    columns |= {dimension.column: dimension.sql_type for dimension in plan.dimensions.values()}
    for part in plan.parts:
        if part.measure is None:
            continue
        stem = f"{part.measure.column}__{part.fold}"
        columns[column_of(part, part.measure)] = _stored_type(part, part.measure)
        if part.fold in ("first", "last"):
            columns |= {f"{stem}_time": "TIMESTAMPTZ", f"{stem}_id": "VARCHAR"}
    if any(rows.in_state or rows.rule is not None for rows in plan.rows):
        columns |= dict.fromkeys(STATE_COLUMNS, "VARCHAR")
    if plan.percentile:
        columns |= {BINS: "INTEGER[]", BIN_COUNTS: "BIGINT[]"}
    return columns


def _scope(plan: Plan, made: PlanStatement) -> str:
    """The rows of the plan, ignoring WHERE."""
    kinds = [_is(rows, made) for rows in plan.rows]
    which = kinds[0] if len(kinds) == 1 else "(" + " OR ".join(f"({kind})" for kind in kinds) + ")"
    return " AND ".join([which, *_tenant(plan, made)])


def _is(rows: MetricRows, made: PlanStatement) -> str:
    terms = [f"metric = {made.once(rows.metric)}"]
    if rows.in_state:
        terms.append(f"{quoted(STATE)} IS NOT NULL")
    if rows.rule is not None:
        terms.append(f"{quoted(RULE)} = {made.once(rows.rule)}")
    for column, states in ((FROM, rows.from_states), (TO, rows.to_states)):
        if states is not None:
            terms.append(f"{quoted(column)} IN ({', '.join(made.once(state) for state in states)})")
    return " AND ".join(terms)


def _tenant(plan: Plan, made: PlanStatement) -> list[str]:
    return [f"tenant = {made.bind(plan.tenant, 'tenant')}"] if plan.tenant is not None else []


def _bounds(span: Interval, made: PlanStatement, of: str) -> str:
    """Empty if the span is all of time."""
    if span == ALL_TIME:
        return ""
    start, end = made.bind(span.start, f"start_{of}"), made.bind(span.end, f"end_{of}")
    return f"bucket >= make_timestamptz({start}) AND bucket < make_timestamptz({end})"


def _and_condition(plan: Plan, made: PlanStatement) -> str:
    if plan.where is None:
        return ""
    return f"\n  AND {evaluate(plan.where, lambda test: _test(test, plan, made), _Sql())}"


class _Sql:
    """SQL has the same NOT, AND and OR."""

    def negated(self, term: str) -> str:
        return f"(NOT {term})"

    def every(self, terms: Iterable[str]) -> str:
        return f"({' AND '.join(terms)})"

    def some(self, terms: Iterable[str]) -> str:
        return f"({' OR '.join(terms)})"


def _test(test: FieldTest, plan: Plan, made: PlanStatement) -> str:
    column = quoted(plan.dimensions[test.operand.text].column)
    match test:
        case Compare(_, operator, literal):
            assert operator in COMPARISONS
            return f"{column} {operator} {made.bind(_scalar(literal))}"
        case Among(_, literals):
            return f"{column} IN ({', '.join(made.bind(_scalar(literal)) for literal in literals)})"
        case Like(_, pattern, _, any_case):
            text = plain_pattern(str(pattern.value))
            side = f"lower({column})" if any_case else column
            return f"({side} LIKE {made.bind(lowered(text) if any_case else text)} ESCAPE '\\')"
        case Within(_, low, high):
            return f"({column} BETWEEN {made.bind(_scalar(low))} AND {made.bind(_scalar(high))})"
        case IsNull():
            return f"{column} IS NULL"


def _scalar(literal: Literally) -> str | int | bool:
    assert not isinstance(literal.value, Decimal), "no dimension is compared with one"
    return literal.value
