"""The values that a query can select, by the kind of metric: their names and what they are made from. A value
that a metric does not have is refused with those it has. Never touches a file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Final, Literal, cast

from tidemill.model.conditions.ast import Literally, Path
from tidemill.model.errors import QueryError
from tidemill.model.metrics import CHANGE, Bins
from tidemill.model.suggestions import choices as hint_of
from tidemill.model.suggestions import closest
from tidemill.query.dimensions import DeclaredMeasure, MetricRows, measures_of
from tidemill.query.language.ast import Expression, Value
from tidemill.query.language.unparse import expression_text

if TYPE_CHECKING:
    from tidemill.config import Gauge, Histogram, StateMetric, Stream
    from tidemill.config.metrics import Term

Fold = Literal["count", "sum", "num", "min", "max", "first", "last"]
Function = Literal[
    "count",
    "count_all",
    "rate",
    "sum",
    "avg",
    "min",
    "max",
    "first",
    "last",
    "percentile",
    "bins",
    "states",
    "transitions",
    "ratio",
]
RATIO_OF: Final = "ratio(a, b)"  # available for every metric
VALUES: Final[Mapping[str, tuple[str, ...]]] = {  # by kind, as users write them
    "counter": (
        *("count", "count(*)", "count_all", "rate"),
        *("sum(measure)", "min(measure)", "max(measure)", "avg(measure)", RATIO_OF),
    ),
    "gauge": (
        *("value", "avg", "min", "max", "first", "last", "sum"),
        *("count", "count(*)", "count_all", "rate", RATIO_OF),
    ),
    "histogram": (
        *("count", "count(*)", "count_all", "rate", "sum", "avg", "min", "max"),
        *("p50 (any p above 0 up to p100)", "percentile(0.5)", "bins", RATIO_OF),
    ),
    "state": ("states", "transitions", "transitions(rule)", RATIO_OF),
    "ratio": ("ratio", RATIO_OF),
}
COUNTED: Final = frozenset(
    {"count", "count_all", "rate", "sum", "transitions", "bins"}
)  # 0 where there is nothing
_PERCENTILE: Final = re.compile(r"p([0-9]{1,3}(?:\.[0-9]+)?)")
_MEANT: Final = {"median": "p50", "mean": "avg", "average": "avg", "total": "sum"}
_MAX_DIGITS: Final = 18  # of a quantile


@dataclass(frozen=True, slots=True)
class ValuePart:
    """A number that is folded over rows; of a measure unless it counts."""

    fold: Fold
    rows: tuple[MetricRows, ...]
    measure: DeclaredMeasure | None = None


@dataclass(frozen=True, slots=True)
class ValueColumn:
    """One value of the answer: its name and how it is made."""

    name: str
    function: Function
    rows: tuple[MetricRows, ...]  # for a ratio: those of the numerator,
    under: tuple[MetricRows, ...] = ()  # and of the denominator
    measure: DeclaredMeasure | None = None
    quantile: Fraction | None = None
    bins: Bins | None = None  # for a percentile, or for all bins

    @property
    def parts(self) -> tuple[ValuePart, ...]:
        """What has to be folded to make it."""
        match self.function:
            case "count" | "rate" if self.measure is not None:
                return (ValuePart("num", self.rows, self.measure),)
            case "count" | "count_all" | "rate" | "states" | "transitions":
                return (ValuePart("count", self.rows),)
            case "bins":
                return (ValuePart("num", self.rows, self.measure),)
            case "ratio":
                return ValuePart("count", self.rows), ValuePart("count", self.under)
            case "avg":
                return ValuePart("sum", self.rows, self.measure), ValuePart("num", self.rows, self.measure)
            case "percentile":
                return ValuePart("min", self.rows, self.measure), ValuePart("max", self.rows, self.measure)
            case fold:
                return (ValuePart(fold, self.rows, self.measure),)


def label(value: Expression) -> str:
    """The name of a value without an alias: `count`, `sum(latency_ms)`, `p99.9`, `sum(bytes) / 8`."""
    if not isinstance(value, Value):
        return expression_text(value)
    function = value.function.text.lower()
    if value.star:
        return f"{function}(*)"
    quantile = _quantile(value)
    if quantile is not None:
        function = f"p{_plain(quantile * 100)}"
        inside = [each.text for each in value.arguments if isinstance(each, Path)]
    else:
        inside = [each.text if isinstance(each, Path) else str(each.value) for each in value.arguments]
    return f"{function}({', '.join(inside)})" if inside else function


def needs_metric(value: Value) -> bool:
    """Whether it belongs to the metric that FROM names; a ratio of two names them itself."""
    return not (value.function.text.lower() == "ratio" and value.arguments)


def unknown(what: str, path: Path, choices: Iterable[str], plural: str) -> QueryError:
    """The error for a name that does not exist, with the one that was probably meant, and those that do."""
    return QueryError(
        f"there is no {what} {path.text!r}",
        hint=hint_of(path.text, sorted(choices), plural),
        position=path.position,
    )


def column_of(value: Value, name: str, stream: Stream, metric: str) -> ValueColumn:
    """A value of the metric (that FROM names), or a ratio of two metrics of the stream."""
    if not needs_metric(value):
        return _ratio_of(value, stream, name)
    declared = stream.metrics[metric]
    function = value.function.text.lower()
    match declared.kind:
        case "ratio":
            if function != "ratio":
                raise _no_value(value, metric, "ratio")
            over, under = (
                tuple(_rows_of_term(term, stream) for term in side)
                for side in (declared.numerator, declared.denominator)
            )
            return ValueColumn(name, "ratio", over, under)
        case "state":
            return _of_state(value, declared, metric, name)
        case "gauge" | "histogram":
            return _of_value(value, stream, declared, metric, name)
        case "counter":
            return _of_counter(value, measures_of(stream, declared), metric, name)


def _no_value(value: Value, metric: str, kind: str) -> QueryError:
    function, listed = value.function.text.lower(), f"values: {', '.join(VALUES[kind])}"
    if _PERCENTILE.fullmatch(function) or function in ("percentile", "bins"):
        what = "bins" if function == "bins" else "percentiles"
        guess = f"for {what}, declare a histogram of the column; "
    else:
        names = [re.split(r"[ (]", each)[0] for each in VALUES[kind]]
        near = _MEANT[function] if _MEANT.get(function) in names else closest(function, names)
        guess = f"did you mean {near}? " if near else ""
    return QueryError(
        f"there is no value {value.text!r} of {kind} {metric!r}",
        hint=guess + listed,
        position=value.position,
    )


def _of_counter(value: Value, measures: Mapping[str, DeclaredMeasure], metric: str, name: str) -> ValueColumn:
    function, rows = value.function.text.lower(), (MetricRows(metric),)
    if function in ("count", "count_all", "rate"):
        _refuse_arguments(value)
        return ValueColumn(name, cast(Function, function), rows)
    if function not in ("sum", "min", "max", "avg"):
        raise _no_value(value, metric, "counter")
    if value.argument is None:
        raise QueryError(
            f"{function} needs a measure",
            hint=f"write {function}(m) with m one of: {', '.join(sorted(measures)) or 'none declared'}",
            position=value.position,
        )
    if value.argument.text not in measures:
        raise unknown(f"measure of metric {metric!r} called", value.argument, measures, "measures")
    return ValueColumn(name, cast(Function, function), rows, measure=measures[value.argument.text])


def _of_value(
    value: Value, stream: Stream, declared: Gauge | Histogram, metric: str, name: str
) -> ValueColumn:
    """For a metric that keeps one value: naming it is optional."""
    function, rows = value.function.text.lower(), (MetricRows(metric),)
    (measure,) = measures_of(stream, declared).values()
    if function == "count_all" or value.star:
        _refuse_arguments(value)
        return ValueColumn(name, "count_all", rows)
    if function in ("count", "rate"):
        _refuse_arguments(value)
        return ValueColumn(name, cast(Function, function), rows, measure=measure)
    named = [each for each in value.arguments if isinstance(each, Path)]
    others = [each for each in named if each.text != measure.name]
    if others:
        raise unknown(f"value of metric {metric!r} called", others[0], [measure.name], "values")
    if declared.kind == "histogram":
        quantile = _quantile(value)
        if quantile is not None:
            bins = declared.bins(measure.scale)
            return ValueColumn(name, "percentile", rows, measure=measure, quantile=quantile, bins=bins)
        if function == "bins":
            _refuse_arguments(value)
            return ValueColumn(name, "bins", rows, measure=measure, bins=declared.bins(measure.scale))
        known: tuple[str, ...] = ("sum", "avg", "min", "max")
    else:
        known = ("sum", "avg", "min", "max", "first", "last", "value")
    if function not in known:
        raise _no_value(value, metric, declared.kind)
    if len(value.arguments) > len(named) or len(named) > 1:
        raise QueryError(
            f"{function} takes only a name",
            hint=f"write {function} or {function}({measure.name})",
            position=value.position,
        )
    if function == "value" and declared.kind == "gauge":
        function = declared.policy
    return ValueColumn(name, cast(Function, function), rows, measure=measure)


def _of_state(value: Value, declared: StateMetric, metric: str, name: str) -> ValueColumn:
    function = value.function.text.lower()
    if function == "states":
        _refuse_arguments(value)
        return ValueColumn(name, "states", (MetricRows(metric, in_state=True),))
    if function != "transitions":
        raise _no_value(value, metric, "state")
    rules = [rule.name for rule in declared.rules]
    if value.arguments and value.argument is None:
        raise QueryError(
            "transitions needs the name of one rule",
            hint=f"write transitions or transitions(rule) with rule one of: {', '.join(sorted(rules))}",
            position=value.position,
        )
    if value.argument is not None and value.argument.text not in rules:
        raise unknown(f"transition rule of metric {metric!r} called", value.argument, rules, "rules")
    rule = value.argument.text if value.argument else CHANGE
    return ValueColumn(name, "transitions", (MetricRows(metric, rule=rule),))


def _ratio_of(value: Value, stream: Stream, name: str) -> ValueColumn:
    countable = sorted(each for each, metric in stream.metrics.items() if metric.kind in ("counter", "state"))
    hint = f"write ratio(a, b) with a and b of: {', '.join(countable) or 'none declared'}"
    if len(value.arguments) != 2 or any(isinstance(each, Literally) for each in value.arguments):
        raise QueryError("a ratio needs two metrics", hint=hint, position=value.position)
    sides = []
    for each in value.arguments:
        assert isinstance(each, Path)
        metric = each.text.removeprefix(f"{stream.name}.") if each.text not in stream.metrics else each.text
        if metric not in stream.metrics:
            raise unknown(
                f"metric of stream {stream.name!r} called", each, countable, "counters and state metrics"
            )
        if metric not in countable:
            raise QueryError(
                f"{metric!r} is a {stream.metrics[metric].kind}: a ratio needs counts",
                hint=hint,
                position=each.position,
            )
        rule = CHANGE if stream.metrics[metric].kind == "state" else None
        sides.append((MetricRows(metric, rule=rule),))
    return ValueColumn(name, "ratio", sides[0], sides[1])


def _rows_of_term(term: Term, stream: Stream) -> MetricRows:
    if stream.metrics[term.metric].kind != "state":
        return MetricRows(term.metric)
    return MetricRows(term.metric, rule=term.transition or CHANGE, from_states=term.from_, to_states=term.to)


def _refuse_arguments(value: Value) -> None:
    if value.arguments:
        function = value.function.text.lower()
        raise QueryError(
            f"{function} counts {'objects' if function == 'states' else 'events'} and takes no argument",
            hint=f"write {function}",
            position=value.arguments[0].position,
        )


def _quantile(value: Value) -> Fraction | None:
    """The quantile of `p99.9` or `percentile(0.999)`; None if it is something else."""
    function = value.function.text.lower()
    text: str | None = None
    if found := _PERCENTILE.fullmatch(function):
        text, most = found[1], 100
        position = value.position
    elif function == "percentile":
        numbers = [each for each in value.arguments if isinstance(each, Literally)]
        number = numbers[0].value if len(numbers) == 1 else None
        if isinstance(number, bool) or not isinstance(number, int | Decimal):
            raise QueryError(
                "percentile needs a share of the samples",
                hint="write percentile(0.99), or p99",
                position=value.position,
            )
        text, most = str(number), 1
        position = numbers[0].position
    if text is None:
        return None
    share = Fraction(text) / most if len(text) <= _MAX_DIGITS else Fraction(0)
    if not 0 < share <= 1:
        raise QueryError(
            f"there is no percentile {text[:40]}",
            hint="write p above p0 up to p100, or percentile(q) with q above 0 up to 1; "
            f"{_MAX_DIGITS - 2} digits at most",
            position=position,
        )
    return share


def _plain(number: Fraction) -> str:
    """A decimal fraction without trailing zeros."""
    text = f"{Decimal(number.numerator) / Decimal(number.denominator):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
