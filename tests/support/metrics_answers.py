"""What queries must answer about metrics of all kinds, by the oracle: bucket by bucket, for one tenant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa
from tests.support.oracles.kinds import (
    OracleCounter,
    OracleGauge,
    OracleHistogram,
    OracleKept,
    OracleRatio,
    OracleState,
)
from tests.support.oracles.metrics import MetricOracle

from tidemill.model.levels import Level
from tidemill.model.time import Interval, format_instant

NEAR = Decimal("0.000001")  # where an answer is rounded
QUANTILES = {"p50": Fraction(1, 2), "p99.9": Fraction(999, 1000)}
Ask = Callable[[str, str], pa.Table]  # a text, for a tenant
Rows = dict[tuple[object, ...], tuple[object, ...]]


def agree_on_answers(ask: Ask, expected: MetricOracle, level: Level, span: Interval) -> None:
    """Every metric, for each tenant, over whole buckets of a level."""
    for tenant in ("acme", "globex"):
        for name, metric in expected.kept.items():
            Asking(ask, expected, level, span, tenant, name, metric).agree()
        for name, kind in expected.stream.kinds.items():
            if isinstance(kind, OracleRatio):
                agree_on_ratio(ask, expected, level, span, tenant, name)


class Asking:
    """One metric for one tenant."""

    def __init__(
        self,
        ask: Ask,
        oracle: MetricOracle,
        level: Level,
        span: Interval,
        tenant: str,
        name: str,
        metric: OracleKept,
    ) -> None:
        self._ask, self.oracle, self.level, self.span = ask, oracle, level, span
        self.tenant, self.name, self.metric = tenant, name, metric

    def agree(self) -> None:
        match self.metric:
            case OracleCounter():
                values = [
                    "count",
                    *(f"{f}({m})" for m in self.metric.measures for f in ("sum", "min", "max")),
                ]
                self._additive(values)
            case OracleGauge():
                self._additive(["count", "count_all", "sum", "min", "max", "first", "last"])
            case OracleHistogram():
                self._additive(["count", "count_all", "sum", "min", "max"])
                self._percentiles()
            case OracleState():
                self._states()
                self._transitions()

    def ask(self, values: Sequence[str], groups: Sequence[str]) -> Rows:
        """Bucket and groups -> values."""
        grouped = f"GROUP BY {', '.join(groups)}" if groups else ""
        source = f"{self.oracle.stream.name}.{self.name}"
        text = f"SELECT {', '.join(values)} FROM {source} {grouped} {between(self.span)}"
        table = self._ask(f"{text} USING ROLLUP {self.level.name}", self.tenant)
        assert table.column_names == ["bucket", *groups, *values], table.column_names
        rows = [tuple(row.values()) for row in rows_of(table)]
        found = {row[: 1 + len(groups)]: row[1 + len(groups) :] for row in rows}
        assert len(found) == len(rows)
        return found

    def _additive(self, values: Sequence[str]) -> None:
        """What a row of the level says as it is."""
        found = self.ask(values, self.metric.dimensions)
        columns = [self._column(value) for value in values]
        wanted = {}
        for row in self.oracle.rows(self.level.name):
            bucket = row["bucket"]
            assert isinstance(bucket, int)
            if (row["metric"], row["tenant"]) == (self.name, self.tenant) and self.span.holds(bucket):
                key = (bucket, *(row.get(d.replace(".", "__")) for d in self.metric.dimensions))
                wanted[key] = tuple(row.get(column) for column in columns)
        assert found == wanted, (self.name, self.tenant)

    def _column(self, value: str) -> str:
        function, _, measure = value.rstrip(")").partition("(")
        if function == "count_all" or (function == "count" and isinstance(self.metric, OracleCounter)):
            return "count"
        if not measure:
            assert isinstance(self.metric, OracleGauge | OracleHistogram)
            measure = self.metric.value
        return f"{measure}__{function}"

    def _percentiles(self) -> None:
        found = self.ask(list(QUANTILES), ())
        for start in range(self.span.start, self.span.end, self.level.width):
            bucket = Interval(start, start + self.level.width)
            samples = self.oracle.samples_in(self.name, bucket, self.tenant)
            row = found.get((start,), (None, None))
            for value, quantile in zip(row, QUANTILES.values(), strict=True):
                if not samples:
                    assert value is None
                else:
                    true = self.oracle.percentile(self.name, quantile, bucket, self.tenant)
                    assert abs(Decimal(str(value)) - true) <= NEAR, (self.name, start, quantile)

    def _states(self) -> None:
        found = self.ask(["states"], [*self.metric.dimensions, "state"])
        wanted: Counter[tuple[object, ...]] = Counter()
        for start in range(self.span.start, self.span.end, self.level.width):
            for standing, many in self.oracle.states_at(self.name, start + self.level.width).items():
                if standing.tenant == self.tenant:
                    wanted[(start, *standing.key, standing.state)] += many
        assert {key: row[0] for key, row in found.items() if row[0]} == dict(wanted), (self.name, self.tenant)

    def _transitions(self) -> None:
        assert isinstance(self.metric, OracleState)
        groups = [*self.metric.dimensions, "from_state", "to_state"]
        for rule in self.metric.rules:
            wanted: Counter[tuple[object, ...]] = Counter()
            for change in self.oracle.changes(self.name):
                ours = (change.rule, change.tenant) == (rule.name, self.tenant)
                if ours and self.span.holds(change.time):
                    start = change.time - change.time % self.level.width
                    wanted[(start, *change.key, change.from_, change.to)] += change.by
            found = self.ask([f"transitions({rule.name})"], groups)
            assert {key: row[0] for key, row in found.items() if row[0]} == dict(wanted), (self.name, rule)


def agree_on_ratio(
    ask: Ask, oracle: MetricOracle, level: Level, span: Interval, tenant: str, name: str
) -> None:
    text = (
        f"SELECT ratio FROM {oracle.stream.name}.{name} {between(span)} USING ROLLUP {level.name} FILL null"
    )
    found = {row["bucket"]: row["ratio"] for row in rows_of(ask(text, tenant))}
    for start in range(span.start, span.end, level.width):
        true = oracle.ratio(name, Interval(start, start + level.width), tenant)
        value = found.get(start)
        if true is None:
            assert value is None
        else:
            exact = Decimal(true.numerator) / Decimal(true.denominator)
            assert abs(Decimal(str(value)) - exact) <= NEAR


def between(span: Interval) -> str:
    return f"BETWEEN {format_instant(span.start)} AND {format_instant(span.end)}"


def rows_of(table: pa.Table) -> list[dict[str, object]]:
    at = table.column_names.index("bucket")
    rows: list[dict[str, object]] = table.set_column(
        at, "bucket", table.column("bucket").cast(pa.int64())
    ).to_pylist()
    return rows
