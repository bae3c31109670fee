"""Plans a query: names resolved, level and grid chosen, types checked. A name that does not exist is refused
with those that do. Never touches a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Final, TypeVar, cast

from tidemill.model.conditions.ast import Condition, Path, literals_in, mapped, paths_in
from tidemill.model.conditions.types import check_types
from tidemill.model.errors import InputError, QueryError
from tidemill.model.levels import LEVELS, Level, level_for, level_named
from tidemill.model.metrics import dimension_id, measure_id
from tidemill.model.names import PSEUDO_DIMENSIONS
from tidemill.model.time import DAY, MAX_INSTANT, MIN_INSTANT, Interval, format_duration
from tidemill.model.zones import zone_named
from tidemill.query.as_of import Past
from tidemill.query.cell_grid import CalendarStep, CellGrid, cells_between, cells_over
from tidemill.query.cell_grid import edges as edges_of
from tidemill.query.dimensions import (
    FROM_STATE,
    IN_STATE,
    TENANT,
    TO_STATE,
    DeclaredDimension,
    MetricRows,
    dimensions_of,
    state_dimensions,
)
from tidemill.query.language.ast import (
    WEEKDAYS,
    Binary,
    Edges,
    Every,
    Expression,
    Fill,
    Format,
    Having,
    Item,
    OrderKey,
    Query,
    Since,
    Unary,
    Value,
    values_in,
    values_in_having,
)
from tidemill.query.language.time_clauses import instant_of, span_of
from tidemill.query.unfit_fields import UnfitField, unfit_fields
from tidemill.query.values import ValueColumn, ValuePart, column_of, label, needs_metric, unknown

if TYPE_CHECKING:
    from tidemill.config import Stream

MAX_INTERVAL: Final = 36_500 * DAY
BUCKET: Final = "bucket"
HEATMAP: Final = ("lower", "upper", "count")  # the columns of bins
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sort:
    """A column of the answer (`bucket`, a dimension or a value) to order by."""

    name: str
    descending: bool


@dataclass(frozen=True, slots=True)
class PlannedValue:
    """A column of the answer after bucket and groups; an expression refers to values with columns of their
    own."""

    name: str
    expression: Expression


@dataclass(frozen=True, slots=True)
class Plan:
    stream: str
    metric: str  # that FROM names; without one, those of the ratios
    level: Level | None  # the largest that divides the interval; None: no interval of one width
    interval: int | None  # None: one total for each group, no buckets
    span: Interval | None  # as requested; None: all data
    step: CalendarStep | None  # of INTERVAL
    grid: CellGrid | None  # None: no buckets, or cells that depend on the data
    columns: tuple[ValueColumn, ...]  # one for each value that occurs anywhere
    leaves: Mapping[Value, str]  # the column of each of these values
    outputs: tuple[PlannedValue, ...]  # the values that the answer shows
    having: Having | None
    groups: tuple[DeclaredDimension, ...]
    where: Condition | None
    filter: Condition | None  # on the payload: answered from raw
    dimensions: Mapping[str, DeclaredDimension]  # those that the condition may name
    edges: Edges
    fill: Fill
    order: tuple[Sort, ...]
    limit: int | None
    offset: int
    format: Format
    tenant: str | None
    parts: tuple[ValuePart, ...]  # what is folded for the columns, each once
    rows: tuple[MetricRows, ...]  # that they are folded over, each once
    past: Past | None = None  # the stream as it was then, read from raw; None: as it is now
    unfit: tuple[UnfitField, ...] = ()  # fields with a type that may not hold all values of events
    admits_keys: bool = False  # whether the answer depends on which keys `max_cardinality` admitted

    @property
    def read(self) -> Interval | None:
        """The part of the span that is counted; None: all of time."""
        return self.grid.read if self.grid else self.span

    @property
    def is_bucketed(self) -> bool:
        """Whether there is a row for each cell instead of one total."""
        return self.interval is not None or self.grid is not None

    @property
    def states(self) -> MetricRows | None:
        """The rows that change the number of objects in a state, if that is selected."""
        return next((rows for rows in self.rows if rows.in_state), None)

    @property
    def percentile(self) -> ValueColumn | None:
        """One of the values that bins are read for: all use the same bins."""
        return next((column for column in self.columns if column.bins is not None), None)

    @property
    def heatmap(self) -> ValueColumn | None:
        """Set when the answer has a row for each bin."""
        return next((column for column in self.columns if column.function == "bins"), None)

    @property
    def states_alone(self) -> bool:
        """Whether only the number of objects in a state is selected."""
        return {column.function for column in self.columns} == {"states"}

    @property
    def uses(self) -> dict[str, frozenset[str]]:
        """The declared dimensions and measures that the answer depends on, by metric."""
        named = _named(self.where, self.groups, self.dimensions)
        measures = [part.measure for part in self.parts if part.measure is not None]
        columns = frozenset(
            [
                *(dimension_id(each.column, each.type) for each in named),
                *(measure_id(each.column, each.type, each.scale) for each in measures),
            ]
        )
        return {rows.metric: columns for rows in self.rows}

    @property
    def follows_objects(self) -> bool:
        """Whether states or transitions are selected: what happened to an object before decides them."""
        return any(rows.in_state or rows.rule is not None for rows in self.rows)

    @property
    def touched(self) -> Interval | None:
        """All of time that can change the answer; None: any."""
        carries = self.is_bucketed and self.fill == "carry"
        if self.span is None or not (carries or self.follows_objects):
            return self.span
        return Interval(min(MIN_INSTANT, self.span.start), self.span.end)


def make_plan(query: Query, streams: Mapping[str, Stream], *, tenant: str | None, now: int) -> Plan:
    stream, metric = _source(query, streams)
    outputs = tuple(_output(item) for item in query.items)
    having = _having(query, outputs)
    leaves = _leaves(outputs, having)
    columns = tuple(column_of(value, name, stream, metric or "") for value, name in leaves.items())
    _check_heatmap(query, columns)
    rows = tuple(dict.fromkeys(rows for column in columns for rows in (*column.rows, *column.under)))
    metrics = list(dict.fromkeys(each.metric for each in rows))
    metric = metric or ", ".join(metrics)
    dimensions = dimensions_of(stream, metrics) | state_dimensions(_state_words(columns))
    if tenant is None:
        dimensions[TENANT.name] = TENANT
    groups = tuple(_dimension(path, dimensions, metric) for path in query.groups)
    _check_names(query, outputs, groups)
    if query.where is not None:
        _check_condition(query.where, dimensions, metric)
    layout = cast(Format, query.format.word if query.format else "rows")
    edges = cast(Edges, query.edges.word if query.edges else stream.query.edges)
    # Objects stay in their state: without changes there is still a number of them.
    running_total = any(column.function == "states" for column in columns)
    gapless = layout == "series" or running_total
    heatmap = any(column.function == "bins" for column in columns)
    fill = cast(
        Fill, query.fill.word if query.fill else ("zero" if heatmap else "null") if gapless else "drop"
    )
    zone = zone_of(query, stream)
    span = _span(query, now, zone)
    step, level, interval = _buckets(query, stream, zone, span)
    return Plan(
        stream=stream.name,
        metric=metric,
        level=level,
        interval=interval,
        span=span,
        step=step,
        grid=_grid(query, step, interval, span, edges),
        columns=columns,
        leaves=leaves,
        outputs=outputs,
        having=having,
        groups=groups,
        where=query.where,
        filter=_filter(query, rows, stream),
        dimensions=dimensions,
        edges=edges,
        fill=fill,
        order=tuple(_sort(key, query, outputs, groups) for key in query.order),
        limit=query.limit,
        offset=query.offset,
        format=layout,
        tenant=tenant,
        parts=tuple(dict.fromkeys(part for column in columns for part in column.parts)),
        rows=rows,
        unfit=unfit_fields(stream, columns, _named(query.where, groups, dimensions)),
        admits_keys=_admits_keys(query, stream, metrics),
    )


def _named(
    where: Condition | None,
    groups: Sequence[DeclaredDimension],
    dimensions: Mapping[str, DeclaredDimension],
) -> list[DeclaredDimension]:
    """The dimensions that an answer depends on."""
    return [*groups, *(dimensions[path.text] for path in paths_in(where))]


def _admits_keys(query: Query, stream: Stream, metrics: Sequence[str]) -> bool:
    """Whether the answer depends on which keys a metric admitted, and so on slices of all times."""
    limited = any(stream.kept_metrics[name].max_cardinality is not None for name in metrics)
    return limited and (query.where is not None or bool(query.groups))


def _buckets(
    query: Query, stream: Stream, zone: str | None, span: Interval | None
) -> tuple[CalendarStep | None, Level | None, int | None]:
    """The step, the level and the width of the buckets, each where there is one."""
    if query.bucket is None:
        _refuse_bucket_words(query)
        _check_rate(query, span)
        return None, None, None
    step = _step(query, stream, zone)
    return step, *_level(query, step)


def _grid(
    query: Query, step: CalendarStep | None, interval: int | None, span: Interval | None, edges: Edges
) -> CellGrid | None:
    """The cells of the answer; None without buckets, or if they depend on the data."""
    if span is None:
        return None
    if interval:
        return cells_over(span, interval, edges)
    return _calendar_grid(query, step, span, edges) if step is not None else None


def declared_stream(query: Query, streams: Mapping[str, Stream]) -> Stream:
    name = query.source.text.partition(".")[0]
    if name not in streams:
        raise unknown("stream", Path(name, query.source.position), streams, "streams")
    return streams[name]


def _source(query: Query, streams: Mapping[str, Stream]) -> tuple[Stream, str | None]:
    """The stream, and the metric that FROM names; None if the values name theirs."""
    path = query.source
    stream = declared_stream(query, streams)
    name, _, metric = path.text.partition(".")
    if metric:
        if metric not in stream.metrics:
            order_key = Path(metric, path.position)
            raise unknown(f"metric of stream {name!r} called", order_key, stream.metrics, "metrics")
        return stream, metric
    if not any(needs_metric(value) for item in query.items for value in values_in(item.value)):
        return stream, None
    if name in stream.metrics:
        return stream, name
    if len(stream.metrics) == 1:
        return stream, next(iter(stream.metrics))
    listed = ", ".join(f"{name}.{each}" for each in sorted(stream.metrics))
    raise QueryError(
        f"stream {name!r} has {len(stream.metrics) or 'no'} metrics: say which one"
        if stream.metrics
        else f"stream {name!r} has no metrics",
        hint=f"FROM one of {listed}" if listed else "declare a metric for it in the configuration",
        position=path.position,
    )


def _state_words(columns: tuple[ValueColumn, ...]) -> tuple[str, ...]:
    """The states that the condition and the groups may name: those that all values have."""
    functions = {column.function for column in columns}
    if functions == {"states"}:
        return (IN_STATE,)
    return (FROM_STATE, TO_STATE) if functions == {"transitions"} else ()


def _dimension(path: Path, dimensions: Mapping[str, DeclaredDimension], metric: str) -> DeclaredDimension:
    if path.text in dimensions:
        return dimensions[path.text]
    if path.text == TENANT.name:
        raise QueryError(
            "this query runs for one tenant: 'tenant' cannot be named in it",
            hint=f"dimensions: {', '.join(sorted(dimensions))}",
            position=path.position,
        )
    if path.text in PSEUDO_DIMENSIONS:
        of = "states" if path.text == IN_STATE else "transitions"
        raise QueryError(
            f"{path.text!r} is a dimension of {of}, and not every value of this query is of {of}",
            hint="ask for states alone to name state, for transitions alone to name from_state and to_state"
            f"; dimensions here: {', '.join(sorted(dimensions)) or 'none'}",
            position=path.position,
        )
    raise unknown(f"dimension of metric {metric!r} called", path, dimensions, "dimensions")


def _output(item: Item) -> PlannedValue:
    if not values_in(item.value):
        raise QueryError(
            "a column of the answer must name a value",
            hint="write count, for example",
            position=item.value.position,
        )
    return PlannedValue(item.alias.text if item.alias else label(item.value), item.value)


def _having(query: Query, outputs: tuple[PlannedValue, ...]) -> Having | None:
    if query.having is None:
        return None

    def resolved(expression: Expression) -> Expression:
        return _with_aliases(expression, outputs, query.groups)

    return mapped(query.having, resolved, resolved)


def _with_aliases(
    expression: Expression, outputs: tuple[PlannedValue, ...], groups: tuple[Path, ...]
) -> Expression:
    """The same, with aliases of the answer replaced by their expressions."""
    match expression:
        case Value(path, ()):
            if path.text in {group.text for group in groups}:
                raise QueryError(
                    f"{path.text!r} is a dimension: HAVING is about values",
                    hint="conditions on dimensions go after WHERE",
                    position=path.position,
                )
            named = next((each for each in outputs if each.name == path.text), None)
            return named.expression if named is not None and not expression.star else expression
        case Binary(operator, left, right):
            sides = (_with_aliases(side, outputs, groups) for side in (left, right))
            return Binary(operator, *sides)
        case Unary(operator, term, position):
            return Unary(operator, _with_aliases(term, outputs, groups), position)
        case _:
            return expression


def _leaves(outputs: tuple[PlannedValue, ...], having: Having | None) -> dict[Value, str]:
    """A column for each value: under its name in the answer, or one that cannot be written in a query."""
    names = {each.expression: each.name for each in outputs if isinstance(each.expression, Value)}
    of_outputs = [value for each in outputs for value in values_in(each.expression)]
    found = dict.fromkeys([*of_outputs, *values_in_having(having)])
    return {value: names.get(value, f"\0{index}") for index, value in enumerate(found)}


def _check_heatmap(query: Query, columns: tuple[ValueColumn, ...]) -> None:
    """Bins make rows of their own, so no other value can be selected with them."""
    if not any(column.function == "bins" for column in columns):
        return
    alone = len(query.items) == 1 and isinstance(query.items[0].value, Value) and len(columns) == 1
    filled = query.fill if query.fill and query.fill.word == "carry" else None
    if not alone or query.items[0].alias is not None or query.having is not None:
        raise QueryError(
            "bins cannot be combined with other values: each bin is a row with lower, upper and count",
            hint="write SELECT bins, without AS and HAVING, and ask for other values in a query of their own",
            position=query.items[0].value.position,
        )
    if filled is not None:
        raise QueryError(
            "the counts of bins are not carried over gaps",
            hint="use FILL zero, null or drop",
            position=filled.position,
        )


def _check_names(
    query: Query, outputs: tuple[PlannedValue, ...], groups: tuple[DeclaredDimension, ...]
) -> None:
    """Every column of the answer has its own name."""
    positions = [(group.name, path.position) for group, path in zip(groups, query.groups, strict=True)]
    for output, item in zip(outputs, query.items, strict=True):
        positions.append((output.name, (item.alias or item.value).position))
    seen = {BUCKET} if query.bucket else set[str]()
    for name, position in positions:
        if name in seen:
            raise QueryError(
                f"two columns of the answer would be called {name!r}",
                hint="give one another name with AS, or leave it out",
                position=position,
            )
        seen.add(name)


def _filter(query: Query, rows: tuple[MetricRows, ...], stream: Stream) -> Condition | None:
    if query.filter is not None and any(each.in_state or each.rule is not None for each in rows):
        raise QueryError(
            "FILTER applies to events, but states and transitions are about objects",
            hint="choose by dimensions with WHERE, or declare a state metric with a filter",
        )
    check_types(query.filter, {path: field.type for path, field in stream.fields.items()})
    return query.filter


def _check_condition(condition: Condition, dimensions: Mapping[str, DeclaredDimension], metric: str) -> None:
    types = {path.text: _dimension(path, dimensions, metric).type for path in paths_in(condition)}
    check_types(condition, types)
    for literal in literals_in(condition):
        if isinstance(literal.value, Decimal):
            raise QueryError(
                f"{literal.value} is not an integer, and no dimension is of another type of number",
                hint="compare it with a whole number; FILTER takes any number",
                position=literal.position,
            )


def _refuse_bucket_words(query: Query) -> None:
    """Without buckets there are no edges, no gaps and no series."""
    series = query.format if query.format and query.format.word == "series" else None
    for word, choice in (("EDGES", query.edges), ("FILL", query.fill), ("FORMAT series", series)):
        if choice:
            raise QueryError(
                f"{word} is about buckets, but this query asks for one total",
                hint=f"add USING ROLLUP {'|'.join(each.name for each in LEVELS)} or INTERVAL duration",
                position=choice.position,
            )


def zone_of(query: Query, stream: Stream) -> str | None:
    """The time zone of a query; None: UTC, with intervals aligned to the epoch."""
    if query.timezone is None:
        return stream.query.timezone
    _at(query, lambda: zone_named(query.timezone.word if query.timezone else ""), query.timezone.position)
    return query.timezone.word


def _step(query: Query, stream: Stream, zone: str | None) -> CalendarStep | None:
    """The length of the cells and where they start; None: those of a level."""
    clauses = (("TIMEZONE", query.timezone), ("WEEK START", query.week_start), ("ORIGIN", query.origin))
    if not isinstance(query.bucket, Every):
        for word, clause in clauses:
            if clause is not None:
                raise QueryError(
                    f"{word} needs INTERVAL: the buckets of a level are aligned to 1970 in UTC",
                    hint="use INTERVAL 1h, 1d, 1w, 1mo, 1q, 1y …",
                    position=clause.position,
                )
        return None
    if query.week_start is not None and (query.bucket.unit != "week" or query.origin is not None):
        raise QueryError(
            "WEEK START needs an interval of weeks without an ORIGIN",
            hint="use INTERVAL 1w, or leave it out",
            position=query.week_start.position,
        )
    day = query.week_start.word if query.week_start else stream.query.week_start
    origin = query.origin.moment if query.origin else None
    return CalendarStep(
        query.bucket.count,
        query.bucket.unit,
        zone,
        None if origin is None else instant_of(origin, 0, zone),
        WEEKDAYS.index(day),
    )


def with_cells_of(plan: Plan, data: Interval | None) -> Plan:
    """The plan of a calendar step without a span, once the first and last time of the data are known.

    The buckets of the first and the last week of all time extend beyond the years 1 to 9999; no cell does.
    """
    assert plan.step is not None
    valid = Interval(max(data.start, MIN_INSTANT), min(data.end, MAX_INSTANT)) if data is not None else None
    found = edges_of(plan.step, valid) if valid is not None else ()
    if not found:
        return replace(plan, grid=CellGrid((), MIN_INSTANT, Interval(MIN_INSTANT, MIN_INSTANT)))
    whole = Interval(found[0], found[-1])
    return replace(plan, grid=cells_between(whole, found[:-1], found[-1], plan.edges))


def _calendar_grid(query: Query, step: CalendarStep, span: Interval, edges: Edges) -> CellGrid:
    """The cells of a step that has no width, or does not start at the epoch."""
    found = _at(query, lambda: edges_of(step, span))
    return cells_between(span, found[:-1], found[-1] if found else span.end, edges)


def _level(query: Query, step: CalendarStep | None) -> tuple[Level | None, int | None]:
    bucket = query.bucket
    assert bucket is not None
    if not isinstance(bucket, Every):
        level = _at(query, lambda: level_named(bucket.level.lower()), bucket.position)
        return level, level.width
    if bucket.unit == "us" and bucket.count > MAX_INTERVAL:
        raise QueryError(
            "the interval is too long",
            hint=f"{format_duration(MAX_INTERVAL)} at most",
            position=bucket.position,
        )
    assert step is not None
    if bucket.count > 0 and (step.width is None or step.phase != 0):
        return None, None
    width = step.width or 0
    return _at(query, lambda: level_for(width), bucket.position), width


def _check_rate(query: Query, span: Interval | None) -> None:
    """The rate of a total needs a span to divide by."""
    values = [value for item in query.items for value in values_in(item.value)]
    values += values_in_having(query.having)
    rate = next((value for value in values if value.function.text.lower() == "rate"), None)
    if rate and span is None:
        raise QueryError(
            "rate needs to know how long the span is",
            hint="add BETWEEN, SINCE, USING ROLLUP or INTERVAL",
            position=rate.position,
        )
    if rate and span and span.start == span.end:
        raise QueryError(
            "rate over an empty span", hint="use a span with start < end", position=rate.position
        )


def _span(query: Query, now: int, zone: str | None) -> Interval | None:
    match query.time:
        case Since(duration, position):
            if now - duration < MIN_INSTANT or now > MAX_INSTANT:
                raise QueryError(
                    "SINCE reaches outside the years 1 to 9999",
                    hint="use a shorter duration",
                    position=position,
                )
            return Interval(now - duration, now)
        case time:
            return span_of(time, now, zone)


def _sort(
    key: OrderKey, query: Query, outputs: tuple[PlannedValue, ...], groups: tuple[DeclaredDimension, ...]
) -> Sort:
    names = {group.name: group.name for group in groups}
    if outputs[0].name == "bins":
        names |= dict(zip(HEATMAP, HEATMAP, strict=True))
    if not (query.format and query.format.word == "series"):
        names |= {BUCKET: BUCKET} if query.bucket else {}
        names |= {output.name: output.name for output in outputs}
        for output in outputs:
            names.setdefault(label(output.expression), output.name)
    plain = key.value.text if isinstance(key.value, Value) else label(key.value)
    column = plain if plain in names else label(key.value)
    if column not in names:
        what = "column to order series by called" if query.format else "column of the answer called"
        raise unknown(what, Path(plain, key.value.position), names, "columns")
    return Sort(names[column], key.descending)


def _at(query: Query, call: Callable[[], T], position: int | None = None) -> T:
    """`call()`, with the position in the text added to its QueryError."""
    try:
        return call()
    except (QueryError, InputError) as error:
        order_key = position if position is not None else query.time.position if query.time else None
        raise QueryError(error.message, hint=error.hint, position=order_key) from None
