"""The metrics of a stream, flat and picklable, and the table they are kept in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa

from tidemill.config import Counter, Histogram, Kept, StateMetric, Stream
from tidemill.config.metrics import decisive_fields, fields_of, filter_of, keeps_keys
from tidemill.model.conditions.ast import Condition
from tidemill.model.metrics import Bins, DeclaredMetric, MetricKind, TransitionRule, dimension_id, measure_id
from tidemill.model.names import HISTOGRAM_COLUMNS, column_name, unfit_rows
from tidemill.model.names import STATE_COLUMNS as STATE_COLUMNS
from tidemill.storage import layout
from tidemill.storage.tables.parts import open_part
from tidemill.storage.tables.schemas import stored_schema
from tidemill.storage.tables.snapshot import Snapshot
from tidemill.storage.tables.table import Table

STATS: Final = ("bucket", "tenant", "metric")
KEY_TYPES: Final = {"string": pa.string(), "integer": pa.int64(), "boolean": pa.bool_()}
INSTANT: Final = pa.timestamp("us", tz="UTC")

# Columns of the table that only some kinds use; `__` keeps them apart from dimensions. Rows of a state metric
# have the change in the number of objects in a state, or count transitions by their rule.
STATE, RULE, FROM, TO = STATE_COLUMNS
BINS, BIN_COUNTS = HISTOGRAM_COLUMNS  # ascending, and the number of samples in each


@dataclass(frozen=True, slots=True)
class Dimension:
    column: str  # in the table
    type: str  # string | integer | boolean
    at: int  # column d{at} of the events


@dataclass(frozen=True, slots=True)
class Measure:
    column: str  # stem of its columns in the table
    type: str  # integer | decimal
    scale: int
    at: int  # column m{at} of the events


@dataclass(frozen=True, slots=True)
class Filter:
    """Count only events for which `condition` is true."""

    condition: Condition
    columns: tuple[tuple[str, str, int], ...]  # field -> column of the events, and scale if it is a decimal


@dataclass(frozen=True, slots=True)
class Following:
    """For a state metric: the object, and which changes are counted."""

    object: int  # column d{object} of the events
    object_type: str  # not read: `MadeFor` hashes the text of a metric, and files name that hash
    state: int
    state_type: str
    rules: tuple[TransitionRule, ...]

    @property
    def is_local(self) -> bool:
        """Whether a change depends only on neighbouring observations of an object."""
        return all(rule.is_local for rule in self.rules)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: which of the stream's dimensions and measures it keeps, and how."""

    name: str
    kind: MetricKind
    dimensions: tuple[Dimension, ...] = ()
    measures: tuple[Measure, ...] = ()
    filter: Filter | None = None
    limit: int | None = None  # limit of keys (combinations of dimensions) per tenant
    bins: Bins | None = None  # for a histogram
    following: Following | None = None  # for a state metric
    # Set for the rows beside a metric, `of`, that count its events with a value of this field that its type
    # cannot hold: the schema has changed since they were accepted.
    unfit: str | None = field(default=None, repr=False)
    of: str = field(default="", repr=False)
    # A hash of the declaration alone; the positions of columns above depend on other metrics, too.
    core: str = field(default="", repr=False, compare=False)

    @property
    def keeps_ends(self) -> bool:
        """Whether the first and last value are kept."""
        return self.kind is MetricKind.GAUGE


@dataclass(frozen=True, slots=True)
class RollupSpec:
    stream: str
    metrics: tuple[Metric, ...]  # by name; after them the rows of what does not fit
    declared: str = ""  # a hash of their declarations: tiles with another one are made again

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The dimensions of all metrics, each once."""
        return tuple(dict.fromkeys(d for metric in self.metrics for d in metric.dimensions))

    @property
    def measures(self) -> tuple[Measure, ...]:
        return tuple(dict.fromkeys(m for metric in self.metrics for m in metric.measures))

    @property
    def declared_metrics(self) -> tuple[Metric, ...]:
        """Without the rows of what does not fit."""
        return tuple(metric for metric in self.metrics if metric.unfit is None)

    @property
    def follows(self) -> bool:
        """Whether there is a state metric."""
        return any(metric.following is not None for metric in self.metrics)

    @property
    def in_order(self) -> bool:
        """Whether the effect of an event depends on earlier ones: states are followed, or keys are
        limited."""
        return self.follows or any(metric.limit is not None for metric in self.metrics)

    def metric(self, name: str) -> Metric:
        return next(metric for metric in self.metrics if metric.name == name)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the table, the partition column `level` first."""
        fields = [
            pa.field("level", pa.string()),
            pa.field("metric", pa.string()),
            pa.field("tenant", pa.string()),
            *(pa.field(d.column, KEY_TYPES[d.type]) for d in self.dimensions),
            pa.field("bucket", INSTANT),
            pa.field("count", pa.int64()),
        ]
        ends = {m for metric in self.metrics if metric.keeps_ends for m in metric.measures}
        for m in self.measures:
            fields += measure_fields(m, m in ends)
        if self.follows:
            fields += [pa.field(name, pa.string()) for name in STATE_COLUMNS]
        if any(metric.bins is not None for metric in self.metrics):
            fields += [pa.field(BINS, pa.list_(pa.int32())), pa.field(BIN_COUNTS, pa.list_(pa.int64()))]
        return pa.schema(fields)


def value_type(m: Measure) -> pa.DataType:
    return pa.int64() if m.type == "integer" else pa.decimal128(18, m.scale)


def measure_fields(m: Measure, ends: bool) -> list[pa.Field]:
    """The columns of a measure: count, sum, minimum and maximum; for a gauge also the first and last with the
    time and id of their events."""
    fields = [
        pa.field(f"{m.column}__count", pa.int64()),
        pa.field(f"{m.column}__sum", pa.decimal128(38, m.scale)),
        pa.field(f"{m.column}__min", value_type(m)),
        pa.field(f"{m.column}__max", value_type(m)),
    ]
    for end in ("first", "last") if ends else ():
        fields += [
            pa.field(f"{m.column}__{end}", value_type(m)),
            pa.field(f"{m.column}__{end}_time", INSTANT),
            pa.field(f"{m.column}__{end}_id", pa.string()),
        ]
    return fields


def spec_for(stream: Stream) -> RollupSpec:
    metrics = sorted(stream.kept_metrics.items())
    found = [_metric(stream, name, metric) for name, metric in metrics]
    unfit = [each for one, (_, metric) in zip(found, metrics, strict=True) for each in _unfit(one, metric)]
    return RollupSpec(stream.name, (*found, *unfit), declared_as(stream))


def _unfit(made: Metric, metric: Kept) -> Iterator[Metric]:
    """The rows beside a metric that count its events with a value that its type cannot hold, for each field
    that the metric uses. Where keys are limited or objects followed, they have no dimensions."""
    decisive = decisive_fields(metric)
    for path in sorted(fields_of(metric)):
        yield Metric(
            name=unfit_rows(made.name, path),
            kind=MetricKind.COUNTER,
            dimensions=made.dimensions if keeps_keys(metric) else (),
            filter=None if path in decisive else made.filter,
            unfit=path,
            of=made.name,
        )


def declared_as(stream: Stream) -> str:
    """A hash of everything that the contents of tiles depend on besides their slices."""
    used = dict.fromkeys((*stream.key_columns, *stream.number_columns))
    declaration = {
        "metrics": {
            name: metric.model_dump(mode="json", by_alias=True, exclude={"policy"})  # used by queries only
            for name, metric in stream.kept_metrics.items()
        },
        "fields": {name: [stream.fields[name].type, stream.fields[name].scale] for name in used},
    }
    return hashlib.sha256(json.dumps(declaration, sort_keys=True).encode()).hexdigest()[:24]


def declared_metrics(stream: Stream) -> dict[str, DeclaredMetric]:
    """Each metric as declared, separately, so that a change of one does not affect the others."""
    return {name: _declared_metric(stream, metric) for name, metric in stream.kept_metrics.items()}


def _declared_metric(stream: Stream, metric: Kept) -> DeclaredMetric:
    """Rows are added up over dimensions that a query does not name, so dimensions can be added and removed;
    but where keys are limited or states followed, each dimension affects all rows."""
    whole = metric.max_cardinality is not None or isinstance(metric, StateMetric)
    dimensions = () if whole else metric.dimensions
    measures = metric.numbers if isinstance(metric, Counter) and not whole else ()
    condition = filter_of(metric)
    decisive = dict.fromkeys(condition.columns if condition is not None else ())
    decisive |= dict.fromkeys({*metric.dimensions, *metric.numbers} - {*dimensions, *measures})
    if isinstance(metric, StateMetric):
        decisive |= dict.fromkeys((metric.object, metric.state))
    apart = set() if whole else {"dimensions", "measures"}
    declaration = {
        "metric": metric.model_dump(mode="json", by_alias=True, exclude={"policy", *apart}),
        "fields": {path: [stream.fields[path].type, stream.fields[path].scale] for path in decisive},
    }
    core = hashlib.sha256(json.dumps(declaration, sort_keys=True).encode()).hexdigest()[:24]
    columns = [dimension_id(column_name(path), stream.fields[path].type) for path in dimensions]
    columns += [
        measure_id(column_name(path), stream.fields[path].type, stream.fields[path].scale or 0)
        for path in measures
    ]
    return DeclaredMetric(core, frozenset(columns))


def _metric(stream: Stream, name: str, metric: Kept) -> Metric:
    keys, numbers = stream.key_columns, stream.number_columns

    def dimension(path: str) -> Dimension:
        return Dimension(column_name(path), stream.fields[path].type, keys.index(path))

    def measure(path: str) -> Measure:
        field = stream.fields[path]
        return Measure(column_name(path), field.type, field.scale or 0, numbers.index(path))

    measures = tuple(measure(path) for path in metric.numbers)
    return Metric(
        name=name,
        kind=MetricKind(metric.kind),
        dimensions=tuple(dimension(path) for path in metric.dimensions),
        measures=measures,
        filter=_filter(stream, metric),
        limit=metric.max_cardinality,
        bins=metric.bins(measures[0].scale) if isinstance(metric, Histogram) else None,
        following=_following(stream, metric) if isinstance(metric, StateMetric) else None,
        core=_declared_metric(stream, metric).core,
    )


def _filter(stream: Stream, metric: Kept) -> Filter | None:
    declared = filter_of(metric)
    if declared is None:
        return None
    keys, numbers = stream.key_columns, stream.number_columns
    columns = []
    for path in declared.columns:
        field = stream.fields[path]
        at = f"m{numbers.index(path)}" if field.type == "decimal" else f"d{keys.index(path)}"
        columns.append((path, at, field.scale or 0))
    return Filter(declared.condition, tuple(columns))


def _following(stream: Stream, metric: StateMetric) -> Following:
    keys = stream.key_columns
    return Following(
        object=keys.index(metric.object),
        object_type=stream.fields[metric.object].type,
        state=keys.index(metric.state),
        state_type=stream.fields[metric.state].type,
        rules=metric.rules,
    )


def rollups_table(warehouse: Path, spec: RollupSpec) -> Table:
    root = layout.rollups(warehouse, spec.stream)
    if (known := Table.existing(root)) is not None:
        show_columns(known, spec)
        return known
    return Table.open(
        root,
        schema=spec.schema,
        partition_by=("level",),
        name=f"{spec.stream}_rollups",
        description=f"metrics of {spec.stream} at 5s, 1m, 1h, 1d, 7d",
    )


def show_columns(table: Table, spec: RollupSpec, now: int = 0) -> None:
    """Give the table the declared columns, except those that a part has in another type: in Delta a column
    has one type. They are added once no such part is left. Parts keep columns that are no longer declared;
    they are not read."""
    declared = stored_schema(spec.schema, table.partition_by)
    if _types(table.schema) != _types(declared):
        hidden = _retyped(table.snapshot(), spec)
        table.reshape(pa.schema([field for field in declared if field.name not in hidden]), now)


def _retyped(snapshot: Snapshot, spec: RollupSpec) -> set[str]:
    """Columns that some part has in another type."""
    found: set[str] = set()
    for path in snapshot.paths([part for part in snapshot.parts if part.rows]):
        with open_part(path) as file:
            found |= retyped_columns(spec, file.schema_arrow)
    return found


def retyped_columns(spec: RollupSpec, there: pa.Schema) -> set[str]:
    """Columns of dimensions and measures that were declared with another type when a part was written; of a
    measure all that it has: its count says nothing without its sum."""
    before, now = _types(there), _types(spec.schema)
    changed = {name for name, kind in now.items() if before.get(name, kind) != kind}
    for measure in spec.measures if changed else ():
        names = {field.name for field in measure_fields(measure, ends=True)}
        changed |= names if names & changed else set()
    return changed


def _types(schema: pa.Schema) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in schema}
