"""A plan as SQL. Values are always bound as parameters; identifiers come from the configuration and are
quoted; nothing a user wrote is ever spliced into the text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tidemill.language.ast import All, Among, AnyOf, Compare, Condition, IsNull, Like, Not, Path
from tidemill.query.declared import Measure
from tidemill.query.plan import Plan

Part = Literal["sum", "num", "min", "max"]
Parameter = str | int | bool | list[str]


@dataclass(slots=True)
class Statement:
    """SQL text as it is put together, with the values that belong to it."""

    text: str = ""
    parameters: dict[str, Parameter] = field(default_factory=dict)

    def bind(self, value: Parameter, name: str | None = None) -> str:
        """A placeholder for `value`."""
        key = name or f"v{len(self.parameters)}"
        self.parameters[key] = value
        return f"${key}"


def quoted(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


def measures_of(plan: Plan) -> list[Measure]:
    """The measures that the answer is made of, each once."""
    return list(dict.fromkeys(column.measure for column in plan.columns if column.measure))


def parts_of(plan: Plan, measure: Measure) -> list[Part]:
    """What the answer needs of a measure."""
    wanted = {column.function for column in plan.columns if column.measure == measure}
    needs: dict[Part, bool] = {
        "sum": bool(wanted & {"sum", "avg"}),
        "num": "avg" in wanted,
        "min": "min" in wanted,
        "max": "max" in wanted,
    }
    return [part for part, needed in needs.items() if needed]


def group_columns(plan: Plan) -> list[str]:
    return [f"g{index}" for index in range(len(plan.groups))]


def aggregate(plan: Plan, paths: list[str]) -> Statement:
    """One row for each cell and group that the level has rows for: `cell`, `g0`…, `n`, and for measure i
    what the answer needs of `sum_i`, `num_i`, `min_i`, `max_i`."""
    made = Statement()
    picked = [_cell(plan, made)] if plan.interval else []
    picked += [f"{quoted(group.column)} AS g{i}" for i, group in enumerate(plan.groups)]
    picked.append('CAST(coalesce(sum("count"), 0) AS BIGINT) AS n')
    for i, measure in enumerate(measures_of(plan)):
        picked += [f"{_folded(part, measure)} AS {part}_{i}" for part in parts_of(plan, measure)]
    keys = (["cell"] if plan.interval else []) + group_columns(plan)
    made.text = (
        f"SELECT {', '.join(picked)}\nFROM {_rows(plan, paths, made)}\nWHERE {_scope(plan, made)}"
        + (f"\n  AND {_condition(plan.where, plan, made)}" if plan.where else "")
        + (f"\nGROUP BY {', '.join(keys)}" if keys else "")
    )
    return made


def data_span(plan: Plan, paths: list[str]) -> Statement:
    """The first and last bucket that the metric and tenant have in the span, whatever WHERE says."""
    made = Statement()
    made.text = (
        "SELECT epoch_us(min(bucket)), epoch_us(max(bucket))\n"
        f"FROM {_rows(plan, paths, made)}\nWHERE {_scope(plan, made)}"
    )
    return made


def missing(plan: Plan, hits: str, cells: range) -> Statement:
    """`cell`, `g0`… of every cell in `cells` and group that the view `hits` has no row for."""
    made = Statement()
    keys = group_columns(plan)
    groups = f"SELECT DISTINCT {', '.join(keys)} FROM {hits}" if keys else "SELECT 1 AS alone"
    start, stop, step = made.bind(cells.start), made.bind(cells.stop), made.bind(cells.step)
    wanted = f"SELECT range AS cell, * EXCLUDE (range) FROM range({start}, {stop}, {step}), ({groups})"
    same = ["hit.cell = want.cell", *(f"hit.{key} IS NOT DISTINCT FROM want.{key}" for key in keys)]
    made.text = (
        f"SELECT {', '.join(['want.cell', *(f'want.{key}' for key in keys)])}\n"
        f"FROM ({wanted}) AS want ANTI JOIN {hits} AS hit ON {' AND '.join(same)}"
    )
    return made


def _column(part: Part, measure: Measure) -> str:
    return f"{measure.column}__{'count' if part == 'num' else part}"


def _stored_type(part: Part, measure: Measure) -> str:
    return {"sum": f"DECIMAL(38, {measure.scale})", "num": "BIGINT"}.get(part, measure.sql_type)


def _folded(part: Part, measure: Measure) -> str:
    """Buckets merged into a cell. The sum of no values is 0; their least and greatest are null.

    DuckDB does not notice a decimal sum that leaves 128 bits, but a value has 63 bits and the count is
    checked to have no more: 2^126 is below 10^38, so the count is refused before a sum could be wrong.
    """
    column = quoted(_column(part, measure))
    if part in ("min", "max"):
        return f"{part}({column})"
    return f"CAST(coalesce(sum({column}), 0) AS {_stored_type(part, measure)})"


def _cell(plan: Plan, made: Statement) -> str:
    if plan.interval == plan.level.width:
        return "epoch_us(bucket) AS cell"
    width = made.bind(plan.interval or 0, "interval")
    # DuckDB's % keeps the sign of the left side: before 1970 it has to be lifted.
    return f"epoch_us(bucket) - ((epoch_us(bucket) % {width}) + {width}) % {width} AS cell"


def _rows(plan: Plan, paths: list[str], made: Statement) -> str:
    """The files as one relation that surely has every column: a file written before a dimension was
    declared has none for it, and then it is null."""
    columns = {"metric": "VARCHAR", "tenant": "VARCHAR", "bucket": "TIMESTAMPTZ", "count": "BIGINT"}
    columns |= {dimension.column: dimension.sql_type for dimension in plan.dimensions.values()}
    for measure in measures_of(plan):
        columns |= {_column(part, measure): _stored_type(part, measure) for part in parts_of(plan, measure)}
    typed = ", ".join(f"CAST(NULL AS {kind}) AS {quoted(name)}" for name, kind in columns.items())
    empty = f"SELECT {typed} WHERE false"
    if not paths:
        return f"({empty})"
    files = made.bind(paths, "files")
    scan = f"SELECT * FROM read_parquet({files}, hive_partitioning = false, union_by_name = true)"
    return f"({empty}\n  UNION ALL BY NAME {scan})"


def _scope(plan: Plan, made: Statement) -> str:
    terms = [f"metric = {made.bind(plan.metric, 'metric')}"]
    if plan.tenant is not None:
        terms.append(f"tenant = {made.bind(plan.tenant, 'tenant')}")
    if plan.read:
        terms.append(f"bucket >= make_timestamptz({made.bind(plan.read.start, 'start')})")
        terms.append(f"bucket < make_timestamptz({made.bind(plan.read.end, 'end')})")
    return " AND ".join(terms)


def _condition(condition: Condition, plan: Plan, made: Statement) -> str:
    def column(path: Path) -> str:
        return quoted(plan.dimensions[path.text].column)

    match condition:
        case Not(term):
            return f"(NOT {_condition(term, plan, made)})"
        case All(terms):
            return "(" + " AND ".join(_condition(term, plan, made) for term in terms) + ")"
        case AnyOf(terms):
            return "(" + " OR ".join(_condition(term, plan, made) for term in terms) + ")"
        case Compare(path, operator, literal):
            assert operator in ("=", "!=", "<", "<=", ">", ">=")
            return f"{column(path)} {operator} {made.bind(literal.value)}"
        case Among(path, literals, negated):
            values = ", ".join(made.bind(literal.value) for literal in literals)
            return f"{column(path)} {'NOT IN' if negated else 'IN'} ({values})"
        case Like(path, pattern, negated):
            word = "NOT LIKE" if negated else "LIKE"
            return f"({column(path)} {word} {made.bind(pattern.value)} ESCAPE '\\')"
        case IsNull(path, negated):
            return f"{column(path)} IS {'NOT NULL' if negated else 'NULL'}"
