"""The same plan on Spark: the rows that `tidemill.query.plan_sql` folds in process, folded by DataFrames.
Gives the same tables to the last bit; never sends SQL text, and leaves the rest of the answer to others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from itertools import pairwise
from operator import and_, or_
from typing import TYPE_CHECKING, Final

from tidemill.model.conditions.ast import Among, Compare, FieldTest, IsNull, Like, Within
from tidemill.model.conditions.evaluation import evaluate
from tidemill.model.conditions.like import lowered, plain_pattern
from tidemill.model.errors import QueryError, StorageError
from tidemill.model.levels import BASE
from tidemill.model.names import STATE_COLUMNS
from tidemill.model.time import Interval
from tidemill.query.cover import ALL_TIME
from tidemill.query.dimensions import (
    BIN_COUNTS,
    BINS,
    FROM,
    RULE,
    STATE,
    TO,
    DeclaredDimension,
    DeclaredMeasure,
    MetricRows,
)
from tidemill.query.plan import Plan
from tidemill.query.plan_sql import FEW, WIDTH, column_of, group_columns, key_columns
from tidemill.query.source import Scan, Scans
from tidemill.query.values import ValuePart
from tidemill.storage.tables.part_checksums import checked

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

_COMPARED: Final[Mapping[str, Callable[[Column, Column], Column]]] = {
    "=": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


class SparkReader:
    """Folds rows on a session."""

    engine: Final = "spark"

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def hits(self, plan: Plan, scans: Scans) -> pa.Table:
        from pyspark.sql import functions as f

        parts = [_folded(part, plan).alias(f"p{i}") for i, part in enumerate(plan.parts)]
        rows = self._keyed(plan, self._rows(plan, scans).where(_scope(plan)))
        total = f.coalesce(f.sum("count"), f.lit(0)).cast("bigint").alias("n")
        ends = [f.min(_start()).alias("first"), f.max(_end()).alias("until")]
        return _collected(rows.groupBy(*key_columns(plan)).agg(total, *ends, *parts))

    def bins(self, plan: Plan, scans: Scans) -> pa.Table:
        from pyspark.sql import functions as f

        column = plan.percentile
        assert column
        scope = reduce(and_, [*map(_is, column.rows), *_tenant(plan)])
        held = f.explode(f.arrays_zip(f.col(BINS).alias("bin"), f.col(BIN_COUNTS).alias("held")))
        keys = key_columns(plan)
        rows = self._keyed(plan, self._rows(plan, scans).where(scope)).select(*keys, held.alias("of"))
        flat = rows.select(*keys, f.col("of.bin").alias("bin"), f.col("of.held").alias("held"))
        merged = flat.groupBy(*keys, "bin").agg(f.sum("held").alias("n"))
        lists = f.array("bin").alias(BINS), f.array("n").alias(BIN_COUNTS)
        return _collected(merged.select(*keys, *lists))

    def opening(self, plan: Plan, scans: Scans) -> pa.Table:
        from pyspark.sql import functions as f

        assert plan.states
        scope = reduce(and_, [_is(plan.states), *_tenant(plan)])
        rows = _grouped(plan, self._rows(plan, scans).where(scope))
        net = rows.groupBy(*group_columns(plan)).agg(f.sum("count").alias("net"))
        return _collected(net.where(f.col("net") != 0))

    def extent(self, plan: Plan, scans: Scans) -> tuple[int | None, int | None]:
        from pyspark.sql import functions as f

        rows = self._rows(plan, scans).where(_scope(plan))
        ends = rows.agg(f.min(_start()).alias("first"), f.max(_end()).alias("until"))
        (found,) = _collected(ends).to_pylist()
        return found["first"], found["until"]

    def _rows(self, plan: Plan, scans: Scans) -> DataFrame:
        """What is read, with only the columns that are needed; what a file lacks is null."""
        pieces = [self._scanned(plan, scan) for scan in scans.levels]
        if scans.raw is not None:
            pieces.append(self._made_of_raw(plan, scans.raw))
        if not pieces:
            pieces.append(_wide(self._session.createDataFrame([], _schema(plan)), BASE.width))
        return reduce(lambda one, other: one.unionByName(other), pieces)

    def _scanned(self, plan: Plan, scan: Scan) -> DataFrame:
        from pyspark.sql import functions as f

        with _errors():
            read = self._session.read.schema(_schema(plan)).option("recursiveFileLookup", "true")
            rows = _wide(read.parquet(*map(_literal, checked(scan.files.paths))), scan.level.width)
        if len(scan.spans) <= FEW:
            return rows.where(reduce(or_, map(_within, scan.spans)))
        spans = self._session.createDataFrame([(s.start, s.end) for s in scan.spans], "s bigint, e bigint")
        inside = (_start() >= f.col("s")) & (_start() < f.col("e"))
        return rows.join(f.broadcast(spans), inside).drop("s", "e")

    def _made_of_raw(self, plan: Plan, raw: pa.Table) -> DataFrame:
        import pyarrow as pa

        schema = _schema(plan)
        there = [name for name in schema.names if name in raw.column_names]
        plain = [raw.schema.field(name) for name in there]
        texts = [
            field.with_type(pa.string()) if pa.types.is_dictionary(field.type) else field for field in plain
        ]
        rows = raw.select(there).cast(pa.schema(texts))
        for field in schema:
            if field.name not in there:
                rows = rows.append_column(field.name, pa.nulls(rows.num_rows, pa.string()))
        rows = rows.append_column(WIDTH, raw.column(WIDTH))
        with _errors():
            made = self._session.createDataFrame(rows)
            return made.select(
                *(made[_quoted(f.name)].cast(f.dataType).alias(f.name) for f in schema), made[WIDTH]
            )

    def _keyed(self, plan: Plan, rows: DataFrame) -> DataFrame:
        """The rows that WHERE keeps, with `cell` and `g0`… added."""
        from pyspark.sql import functions as f

        rows = _grouped(plan, rows)
        if plan.interval is not None:
            return rows.withColumn("cell", _start() - f.pmod(_start(), f.lit(plan.interval).cast("bigint")))
        if plan.grid is None:
            return rows
        edges = [*plan.grid.cells, plan.grid.end]
        cells = self._session.createDataFrame(list(pairwise(edges)), "cell bigint, cell_end bigint")
        inside = (_start() >= f.col("cell")) & (_start() < f.col("cell_end"))
        return rows.join(f.broadcast(cells), inside)


def _grouped(plan: Plan, rows: DataFrame) -> DataFrame:
    """The rows that WHERE keeps, with `g0`… added."""
    from pyspark.sql import functions as f

    if plan.where is not None:
        rows = rows.where(evaluate(plan.where, lambda test: _test(test, plan.dimensions), _SparkColumns()))
    named = {f"g{i}": f.col(_quoted(group.column)) for i, group in enumerate(plan.groups)}
    return rows.withColumns(named) if named else rows


def _wide(rows: DataFrame, width: int) -> DataFrame:
    from pyspark.sql import functions as f

    return rows.withColumn(WIDTH, f.lit(width).cast("bigint"))


def _start() -> Column:
    from pyspark.sql import functions as f

    return f.unix_micros("bucket")


def _end() -> Column:
    from pyspark.sql import functions as f

    return _start() + f.col(WIDTH)


def _collected(rows: DataFrame) -> pa.Table:
    """As Arrow, with the column types that DuckDB gives: all of them may be null."""
    import pyarrow as pa

    with _errors():
        found = rows.toArrow()
    return pa.Table.from_arrays(found.columns, names=found.column_names)


@contextmanager
def _errors() -> Iterator[None]:
    """Errors of the engine become ours."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = str(error)
        if "ARITHMETIC_OVERFLOW" in text or "NUMERIC_VALUE_OUT_OF_RANGE" in text:
            raise QueryError(
                "a count of the answer does not fit 64 bits",
                hint="ask for a shorter span or fewer groups at once",
            ) from error
        raise StorageError(
            f"the rollups cannot be read: {text.splitlines()[0][:300]}",
            hint="try again; if it stays, `tidemill repair --explain` says what is damaged",
        ) from error


def _literal(path: str) -> str:
    """The path with its glob characters escaped: Hadoop would expand them."""
    return "".join(f"\\{char}" if char in "*?[]{}\\" else char for char in path)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _schema(plan: Plan) -> StructType:
    from pyspark.sql import types as t

    columns: dict[str, DataType] = {
        "metric": t.StringType(),
        "tenant": t.StringType(),
        "bucket": t.TimestampType(),
        "count": t.LongType(),
    }
    kinds = {"string": t.StringType(), "integer": t.LongType(), "boolean": t.BooleanType()}
    columns |= {each.column: kinds[each.type] for each in plan.dimensions.values()}
    for part in plan.parts:
        if part.measure is not None:
            columns[column_of(part, part.measure)] = _stored_type(part, part.measure)
            if part.fold in ("first", "last"):
                stem = f"{part.measure.column}__{part.fold}"
                columns |= {f"{stem}_time": t.TimestampType(), f"{stem}_id": t.StringType()}
    if any(rows.in_state or rows.rule is not None for rows in plan.rows):
        columns |= dict.fromkeys(STATE_COLUMNS, t.StringType())
    if plan.percentile:
        columns |= {BINS: t.ArrayType(t.IntegerType()), BIN_COUNTS: t.ArrayType(t.LongType())}
    return t.StructType([t.StructField(name, kind) for name, kind in columns.items()])


def _stored_type(part: ValuePart, measure: DeclaredMeasure) -> DataType:
    from pyspark.sql import types as t

    if part.fold == "num":
        return t.LongType()
    if part.fold == "sum":
        return t.DecimalType(38, measure.scale)
    return t.LongType() if measure.type == "integer" else t.DecimalType(18, measure.scale)


def _folded(part: ValuePart, plan: Plan) -> Column:
    from pyspark.sql import functions as f

    several = len(plan.rows) > 1
    if part.measure is None:
        counts = [f.when(_is(rows), f.col("count")) if several else f.col("count") for rows in part.rows]
        return reduce(lambda a, b: a + b, [f.coalesce(f.sum(each), f.lit(0)) for each in counts]).cast(
            "bigint"
        )
    (rows,) = part.rows

    def of_part(value: Column) -> Column:
        return f.when(_is(rows), value) if several else value

    column = f.col(_quoted(column_of(part, part.measure)))
    match part.fold:
        case "min":
            return f.min(of_part(column))
        case "max":
            return f.max(of_part(column))
        case "first" | "last":
            stem = f"{part.measure.column}__{part.fold}"
            time, id_ = f.col(_quoted(f"{stem}_time")), f.col(_quoted(f"{stem}_id"))
            triple = f.struct(time.alias("t"), id_.alias("i"), column.alias("v"))
            ends = f.min if part.fold == "first" else f.max
            return ends(of_part(f.when(time.isNotNull(), triple)))["v"]
        case _:
            kind = _stored_type(part, part.measure)
            return f.coalesce(f.sum(of_part(column)), f.lit(0)).cast(kind)


def _scope(plan: Plan) -> Column:
    return reduce(and_, [reduce(or_, map(_is, plan.rows)), *_tenant(plan)])


def _is(rows: MetricRows) -> Column:
    from pyspark.sql import functions as f

    terms = [f.col("metric") == f.lit(rows.metric)]
    if rows.in_state:
        terms.append(f.col(STATE).isNotNull())
    if rows.rule is not None:
        terms.append(f.col(RULE) == f.lit(rows.rule))
    for column, states in ((FROM, rows.from_states), (TO, rows.to_states)):
        if states is not None:
            terms.append(f.col(column).isin(list(states)))
    return reduce(and_, terms)


def _tenant(plan: Plan) -> list[Column]:
    from pyspark.sql import functions as f

    return [f.col("tenant") == f.lit(plan.tenant)] if plan.tenant is not None else []


def _within(span: Interval) -> Column:
    from pyspark.sql import functions as f

    if span == ALL_TIME:
        return f.lit(True)
    start, end = (f.timestamp_micros(f.lit(side).cast("bigint")) for side in (span.start, span.end))
    return (f.col("bucket") >= start) & (f.col("bucket") < end)


class _SparkColumns:
    """Spark has the same NOT, AND and OR."""

    def negated(self, term: Column) -> Column:
        return ~term

    def every(self, terms: Iterable[Column]) -> Column:
        return reduce(and_, terms)

    def some(self, terms: Iterable[Column]) -> Column:
        return reduce(or_, terms)


def _test(test: FieldTest, dimensions: Mapping[str, DeclaredDimension]) -> Column:
    from pyspark.sql import functions as f

    column = f.col(_quoted(dimensions[test.operand.text].column))
    match test:
        case Compare(_, operator, literal):
            return _COMPARED[operator](column, f.lit(literal.value))
        case Among(_, literals):
            return column.isin([literal.value for literal in literals])
        case Like(_, pattern, _, any_case):
            text = plain_pattern(str(pattern.value))
            # Java lowers these two by their context, or to two characters; other engines do not.
            plain = f.lower(f.translate(column, "İΣ", "iσ")) if any_case else column
            return plain.like(lowered(text) if any_case else text)
        case Within(_, low, high):
            return column.between(f.lit(low.value), f.lit(high.value))
        case IsNull():
            return column.isNull()
