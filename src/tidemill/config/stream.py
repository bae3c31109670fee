"""A stream as declared: its schema, event time, identity, tenant, gate, metrics and retention.

Each section is validated by itself here; `checks` has the rules between sections.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Final, Literal

import pydantic
from pydantic import AfterValidator, StrictBool, model_validator

from tidemill.config.gateway import StreamGateway
from tidemill.config.metrics import Kept, Metric, Ratio, StateMetric, filter_of
from tidemill.config.schema import ABSENT, KEY_TYPES, SECTION, ColumnList, ColumnName, Field, FieldType
from tidemill.config.stream_sections import LateSlices, Manifests, Messages, Pack, QueryDefaults
from tidemill.config.values import ByteSize, Duration, PositiveDuration, SafeName, TimeZone, wrong
from tidemill.config.vectors import CompactionSettings, Vector, with_implied
from tidemill.config.windowing import WindowDeclaration, spec_of
from tidemill.model.levels import NAMES as LEVEL_NAMES
from tidemill.model.streaming import WindowSpec
from tidemill.model.time import DAY, SECOND

FormatName = Literal["auto", "ndjson", "json", "csv", "parquet", "arrow"]
TimeMode = Literal["event", "processing"]
GateMode = Literal["event_id", "none"]
CoverageName = Literal["declared", "observed", "watermark"]
MAX_INDEXED: Final = 64  # paths of a stream: each is looked up in every event
MAX_VALUES: Final = 1024  # values of a record that is an array


def _window_name(name: str) -> str:
    if name == "aggregation":
        raise wrong("'aggregation' is the name of the windows that become datasets", "use another name")
    return name


def _level(name: str) -> str:
    if name not in LEVEL_NAMES:
        raise wrong(f"there is no rollup level {name!r}", f"levels: {', '.join(LEVEL_NAMES)}")
    return name


def _text(value: str) -> str:
    if not value.strip():
        raise wrong("is empty", "write some text, or leave it out")
    return value


def _delimiter(value: str) -> str:
    if len(value) != 1 or not value.isascii() or value in '"\r\n\0':
        raise wrong(f"{value!r} cannot separate columns", 'use one character such as ",", ";" or "\\t"')
    return value


WindowName = Annotated[SafeName, AfterValidator(_window_name)]
LevelName = Annotated[str, AfterValidator(_level)]
Text = Annotated[str, AfterValidator(_text)]
Indexed = Annotated[tuple[ColumnName, ...], pydantic.Field(max_length=MAX_INDEXED)]


def _once(names: Iterable[str]) -> tuple[str, ...]:
    """The names without repeats, in order."""
    return tuple(dict.fromkeys(names))


class Link(pydantic.BaseModel):
    """Where the feed comes from, as documentation: an address, or `{href, title}`."""

    model_config = SECTION

    href: str
    title: str = ""

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: object) -> object:
        return {"href": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _is_a_web_address(self) -> Link:
        if not self.href.startswith(("https://", "http://")):
            raise wrong(f"{self.href!r} is not a web address", "use https://… or http://…")
        return self


class Csv(pydantic.BaseModel):
    """How CSV slices are read. `columns` names the cells if there is no header."""

    model_config = SECTION

    delimiter: Annotated[str, AfterValidator(_delimiter)] = ","
    header: StrictBool = True
    columns: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _columns_have_names(self) -> Csv:
        if not self.header and not self.columns:
            raise wrong("without a header the columns have no names", "list them: columns: [a, b, c]")
        return self


class Json(pydantic.BaseModel):
    """How JSON slices are read. `columns` names the values of records that are arrays; `path` leads to the
    array of records inside an object."""

    model_config = SECTION

    columns: Annotated[tuple[ColumnName, ...], pydantic.Field(max_length=MAX_VALUES)] = ()
    path: ColumnName | None = None


class EventType(pydantic.BaseModel):
    """Only events whose `column` holds one of `allowed` are accepted."""

    model_config = SECTION

    column: str
    allowed: Annotated[tuple[Text, ...], pydantic.Field(min_length=1)]


class EventTime(pydantic.BaseModel):
    """The column with the event time. In mode `processing`, or if not enabled, it is the time of arrival."""

    model_config = SECTION

    column: str | None = None
    type: str | None = None
    timezone: TimeZone | None = None  # zone of iso8601 times without an offset; None: those are refused
    late_tolerance: Duration = 0
    mode: TimeMode = "event"
    enabled: StrictBool = True
    # After it a silent source no longer holds back the watermark; None: never.
    idle_timeout: PositiveDuration | None = None
    max_buffer_bytes: Annotated[ByteSize, pydantic.Field(ge=1)] = 256 << 20  # of rows that wait to be ordered

    @property
    def in_use(self) -> bool:
        return self.enabled and self.mode == "event"


class Tenant(pydantic.BaseModel):
    """The tenant of an event: the value of a column, or one tenant for all events."""

    model_config = SECTION

    column: str | None = None
    value: Text | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: object) -> object:
        return {"column": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _one_of_both(self) -> Tenant:
        if (self.column is None) == (self.value is None):
            raise wrong("needs a column or a value", "write {column: NAME} or {value: NAME}, not both")
        return self


class Skew(pydantic.BaseModel):
    """How far event time may be from the arrival; a record beyond it is rejected. None: no limit.

    The future is limited by default, since one far-future time would make all later events late. The past is,
    since the zero time of a program (0001-01-01, 1900-01-01) is never a real event time.
    """

    model_config = SECTION

    past: Duration | None = 36_525 * DAY  # a hundred years
    future: Duration | None = DAY


class RetentionSettings(pydantic.BaseModel):
    """How long data is kept. None or absent: forever."""

    model_config = SECTION

    raw: PositiveDuration | None = None
    index: PositiveDuration | None = None
    quarantine: PositiveDuration | None = None
    datasets: PositiveDuration | None = None
    rollups: Mapping[LevelName, PositiveDuration] = {}
    sealed: Literal["merge", "refuse"] = "merge"  # what is done with events of a time whose raw has expired


class Stream(pydantic.BaseModel):
    """A declared stream. Frozen and picklable, so that Spark tasks can get it."""

    model_config = SECTION

    name: SafeName
    description: str = ""
    keywords: tuple[Text, ...] = ()
    source_links: tuple[Link, ...] = ()
    kind: Literal["events", "delta"] = "events"  # delta: its records change vectors
    vector: Vector | None = None  # for a delta stream
    compaction: CompactionSettings = ABSENT  # for the chains of a delta stream
    format: FormatName = "auto"
    csv: Csv = ABSENT
    json_rows: Annotated[Json, pydantic.Field(alias="json")] = ABSENT
    manifests: Manifests = ABSENT  # files that are watched
    fields: Annotated[Mapping[ColumnName, Field], pydantic.Field(alias="schema")]
    event_type: EventType | None = None
    event_time: EventTime = pydantic.Field(default={"mode": "processing"}, validate_default=True)
    messages: Messages | None = None  # None: a record is one event
    identity: ColumnList = ()
    tenant: Tenant = pydantic.Field(default={"value": "default"}, validate_default=True)
    skew: Skew = ABSENT
    gate: GateMode = "event_id"
    metrics: Mapping[SafeName, Metric] = {}
    keep_payload: StrictBool = True  # in raw beside its columns; False: only what no column gives back
    indexed: Indexed = ()  # paths into the payload that a search can name in WHERE
    retention: RetentionSettings = ABSENT
    gateway: StreamGateway = ABSENT  # how its events are gathered, where that differs from `gateway`
    query: QueryDefaults = ABSENT  # defaults for queries
    pack: Pack = ABSENT  # packing of small parts of raw into large ones
    # Width of the windows that become datasets; None: no datasets.
    aggregation_span: PositiveDuration | None = None
    subject_to_change_window: Duration = 0  # how long after its end a window waits for slices
    allow_incomplete_windows: StrictBool = False  # build without waiting, and again with every change
    # Holes between the bounds of slices, and at the edges of a window, that count as covered.
    gap_tolerance: Duration = SECOND
    coverage: CoverageName = "observed"  # what marks a time as complete, besides declared bounds
    late_slices: LateSlices = ABSENT
    # That declared bounds may touch without confirmation.
    max_slice_windows: Annotated[int, pydantic.Field(strict=True, ge=1)] = 10_000
    windows: Mapping[WindowName, WindowDeclaration] = {}  # streaming windows; each has a table of results

    @model_validator(mode="before")
    @classmethod
    def _empty_section_is_absent(cls, data: object) -> object:
        """`csv:` with all its keys commented out is the default, not an error."""
        if isinstance(data, dict):
            data = {key: value for key, value in data.items() if value is not None}
            return with_implied(data) if data.get("kind") == "delta" else data
        return data

    @property
    def time_column(self) -> str | None:
        """The column that event time is read from; None if the arrival is used."""
        return self.event_time.column if self.event_time.in_use else None

    @property
    def window_specs(self) -> tuple[WindowSpec, ...]:
        """Its streaming windows in order of declaration."""
        return tuple(spec_of(self, name, declared) for name, declared in self.windows.items())

    @property
    def hole(self) -> int:
        """The longest stretch that need not be covered; always shorter than a window."""
        if "gap_tolerance" in self.model_fields_set or self.aggregation_span is None:
            return self.gap_tolerance
        return min(self.gap_tolerance, self.aggregation_span - 1)

    @property
    def in_event_time(self) -> bool:
        """Whether records have an event time, their own or the time of a message in them."""
        return self.event_time.enabled and (self.time_column is not None or self.messages is not None)

    @property
    def kept_metrics(self) -> Mapping[str, Kept]:
        """The metrics that have rows in the rollups: all but ratios."""
        return {name: metric for name, metric in self.metrics.items() if not isinstance(metric, Ratio)}

    @property
    def in_order(self) -> bool:
        """Whether the effect of an event depends on earlier ones: states are followed, or keys are
        limited."""
        kept = self.kept_metrics.values()
        return any(isinstance(m, StateMetric) or m.max_cardinality is not None for m in kept)

    @property
    def dimension_columns(self) -> tuple[str, ...]:
        return _once(column for metric in self.kept_metrics.values() for column in metric.dimensions)

    @property
    def measure_columns(self) -> tuple[str, ...]:
        return _once(column for metric in self.kept_metrics.values() for column in metric.numbers)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Columns that metrics read as they are: dimensions, objects, states, and operands of filters."""
        states = [m for m in self.kept_metrics.values() if isinstance(m, StateMetric)]
        followed = (column for metric in states for column in (metric.object, metric.state))
        return _once((*self.dimension_columns, *followed, *self._filtered(KEY_TYPES)))

    @property
    def number_columns(self) -> tuple[str, ...]:
        """Columns that metrics read as exact numbers: measures, values, samples, decimals in filters."""
        return _once((*self.measure_columns, *self._filtered(("decimal",))))

    def _filtered(self, types: Sequence[FieldType]) -> Iterator[str]:
        for metric in self.kept_metrics.values():
            condition = filter_of(metric)
            for column in condition.columns if condition is not None else ():
                if column in self.fields and self.fields[column].type in types:
                    yield column
