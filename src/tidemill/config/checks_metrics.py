"""Rules between the metrics of a stream and the rest of it: columns that exist, types that suit their use;
and between ratios and other metrics.

Pure: each rule yields findings, and none stops at the first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from tidemill.config.checks_columns import DeclaredColumns, check_condition, listed, one_of, repeats
from tidemill.config.metrics import Counter, Gauge, Histogram, Kept, Ratio, StateMetric, Term
from tidemill.config.problems import Path
from tidemill.config.schema import KEY_TYPES, FieldType
from tidemill.config.stream import Stream
from tidemill.config.validation import ConfigFinding
from tidemill.model.metrics import CHANGE, MOST, NONE_STATE
from tidemill.model.names import (
    END_COLUMNS,
    HISTOGRAM_COLUMNS,
    MEASURE_COLUMNS,
    PSEUDO_DIMENSIONS,
    ROLLUP_COLUMNS,
    STATE_COLUMNS,
    column_name,
    measure_column,
)
from tidemill.model.suggestions import choices

MEASURE_TYPES: Final[tuple[FieldType, ...]] = ("integer", "decimal")
OBJECT_TYPES: Final[tuple[FieldType, ...]] = ("string", "integer")
FILTER_TYPES: Final[tuple[FieldType, ...]] = (*KEY_TYPES, "decimal")

_DECIMAL = "declare a decimal with a scale, such as {type: decimal, scale: 3}"
_MEASURE_HINT = f"a float has no exact sum: {_DECIMAL}"
_FILTER_HINT = f"a filter is about {one_of(FILTER_TYPES)}; for a float, {_DECIMAL}"


def check_metrics(
    stream: Stream, columns: DeclaredColumns, broken: Collection[Path]
) -> Iterator[ConfigFinding]:
    """Everything wrong between the metrics and their stream; paths are relative to the stream."""
    for name, metric in stream.metrics.items():
        at: Path = ("metrics", name)
        match metric:
            case Ratio():
                yield from _ratio(at, stream, metric, broken)
                continue
            case Counter():
                for path, column in listed((*at, "measures"), metric.measures):
                    yield from _number(path, column, "a measure", columns)
                yield from repeats((*at, "measures"), metric.measures)
            case Gauge():
                yield from _number((*at, "value"), metric.value, "the value of a gauge", columns)
            case Histogram():
                yield from _number((*at, "value"), metric.value, "the value of a histogram", columns)
                yield from _bounds((*at, "bounds"), metric, columns)
            case StateMetric():
                yield from _state(at, metric, columns)
        yield from _dimensions(at, metric, columns)
        if metric.filter is not None:
            path = (*at, "filter")
            yield from check_condition(path, metric.filter, columns, FILTER_TYPES, _FILTER_HINT, FILTER_TYPES)
    yield from _rollup_columns(stream)


def _number(path: Path, column: str, what: str, columns: DeclaredColumns) -> Iterator[ConfigFinding]:
    hint = f"{what} is {one_of(MEASURE_TYPES)}; {_MEASURE_HINT}"
    yield from columns.check(path, column, MEASURE_TYPES, hint)


def _dimensions(at: Path, metric: Kept, columns: DeclaredColumns) -> Iterator[ConfigFinding]:
    path = (*at, "dimensions")
    for position, column in listed(path, metric.dimensions):
        yield from columns.check(position, column, KEY_TYPES, f"a dimension is {one_of(KEY_TYPES)}")
    yield from repeats(path, metric.dimensions)
    if metric.max_cardinality is not None:
        fields = [columns.field(column) for column in metric.dimensions]
        if all(field is not None and field.type != "string" for field in fields):
            yield ConfigFinding(
                (*at, "max_cardinality"),
                "there is no dimension that could say __other__ for what comes beyond it",
                "add a dimension of type string, or leave max_cardinality out",
            )


def _bounds(path: Path, metric: Histogram, columns: DeclaredColumns) -> Iterator[ConfigFinding]:
    field = columns.field(metric.value)
    if field is None or field.type not in MEASURE_TYPES:
        return
    for position, bound in enumerate(metric.bounds or ()):
        if abs(bound) * 10 ** (field.scale or 0) >= MOST:
            message = f"no value of {metric.value!r} is as far from 0 as {bound}"
            yield ConfigFinding(
                (*path, position), message, "leave it out: what is above the last bound has a bin"
            )


def _state(at: Path, metric: StateMetric, columns: DeclaredColumns) -> Iterator[ConfigFinding]:
    hint = f"an object is identified by {one_of(OBJECT_TYPES)}"
    yield from columns.check((*at, "object"), metric.object, OBJECT_TYPES, hint)
    yield from columns.check((*at, "state"), metric.state, KEY_TYPES, f"a state is {one_of(KEY_TYPES)}")
    if metric.object == metric.state:
        message = f"column {metric.state!r} cannot be both the object and its state"
        yield ConfigFinding((*at, "state"), message, "name the column that says what state the object is in")
    for position, column in listed((*at, "dimensions"), metric.dimensions):
        if column.lower() in PSEUDO_DIMENSIONS:
            message = f"{column!r} is what queries of a state metric call something else"
            hint = f"rename the field in the feed, or leave it out; queries know {one_of(PSEUDO_DIMENSIONS)}"
            yield ConfigFinding(position, message, hint)
    for name, declared in metric.transitions.items():
        path = (*at, "transitions", name)
        seen = declared.from_ if isinstance(declared.from_, tuple) else ()
        for key, states in (("from", seen), ("to", declared.to or ()), ("until", declared.until or ())):
            yield from repeats((*path, key), states)
            yield from _never_seen((*path, key), states)


def _never_seen(path: Path, states: Collection[str]) -> Iterator[ConfigFinding]:
    if NONE_STATE in states:
        message = f"no object is ever seen in {NONE_STATE}: it is the state before the first observation"
        yield ConfigFinding(
            path, message, "leave it out; with from: last, the first sight is a transition from it"
        )


def _ratio(at: Path, stream: Stream, metric: Ratio, broken: Collection[Path]) -> Iterator[ConfigFinding]:
    for key, terms in (("numerator", metric.numerator), ("denominator", metric.denominator)):
        for position, term in enumerate(terms):
            yield from _term((*at, key, position), stream, term, broken)


def _term(at: Path, stream: Stream, term: Term, broken: Collection[Path]) -> Iterator[ConfigFinding]:
    metric = stream.metrics.get(term.metric)
    if metric is None:
        if ("metrics", term.metric) not in broken and ("metrics",) not in broken:
            valid = [
                name for name, other in stream.metrics.items() if isinstance(other, Counter | StateMetric)
            ]
            hint = choices(term.metric, valid, "counters and state metrics")
            yield ConfigFinding(at, f"there is no metric {term.metric!r}", hint)
    elif isinstance(metric, StateMetric):
        yield from _transition(at, metric, term, broken)
    elif not isinstance(metric, Counter):
        message = f"{term.metric!r} is a {metric.kind}"
        yield ConfigFinding(at, message, "a ratio is made of counters and of transitions of state metrics")
    else:
        set_keys = {"transition": term.transition, "from": term.from_, "to": term.to}
        for key in (key for key, value in set_keys.items() if value is not None):
            message = f"{term.metric!r} is a counter and has no transitions"
            yield ConfigFinding((*at, key), message, f"leave {key} out, or name a state metric")


def _transition(
    at: Path, metric: StateMetric, term: Term, broken: Collection[Path]
) -> Iterator[ConfigFinding]:
    declared = ("metrics", term.metric, "transitions")
    unknown = term.transition is not None and term.transition not in (CHANGE, *metric.transitions)
    if unknown and declared not in broken and (*declared, term.transition) not in broken:
        assert term.transition is not None
        hint = choices(term.transition, (CHANGE, *metric.transitions), "transitions")
        message = f"{term.metric!r} has no transition {term.transition!r}"
        yield ConfigFinding((*at, "transition"), message, hint)
    yield from repeats((*at, "from"), term.from_ or ())
    yield from repeats((*at, "to"), term.to or ())
    yield from _never_seen((*at, "to"), term.to or ())


def _rollup_columns(stream: Stream) -> Iterator[ConfigFinding]:
    """Check names: dimensions and numbers become columns of one table, and readers ignore case."""
    kinds = {metric.kind for metric in stream.kept_metrics.values()}
    own = [*ROLLUP_COLUMNS]
    own += STATE_COLUMNS if "state" in kinds else ()
    own += HISTOGRAM_COLUMNS if "histogram" in kinds else ()
    taken = {name: f"the table's own column {name}" for name in own}
    for path, what, columns in _used_columns(stream):
        for column in columns:
            other = taken.setdefault(column.lower(), what)
            if other != what:
                message = f"{what} would be kept in column {column}, which is taken by {other}"
                yield ConfigFinding(path, message, "rename one of the two fields in the feed")


def _used_columns(stream: Stream) -> Iterator[tuple[Path, str, tuple[str, ...]]]:
    """Each dimension and number once: where it is first named, its role, and the columns it is kept in."""
    metrics = stream.kept_metrics
    for field in stream.dimension_columns:
        name = next(name for name, metric in metrics.items() if field in metric.dimensions)
        yield ("metrics", name, "dimensions"), f"dimension {field!r}", (column_name(field),)
    for field in stream.measure_columns:
        name, first = next((name, metric) for name, metric in metrics.items() if field in metric.numbers)
        ends = any(isinstance(metric, Gauge) and metric.value == field for metric in metrics.values())
        kept = (*MEASURE_COLUMNS, *END_COLUMNS) if ends else MEASURE_COLUMNS
        columns = tuple(measure_column(field, one) for one in kept)
        key = "measures" if isinstance(first, Counter) else "value"
        yield ("metrics", name, key), f"{key.removesuffix('s')} {field!r}", columns
