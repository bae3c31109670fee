"""A stream as the oracle needs it, said in plain values rather than in `tidemill.yaml`.

It is deliberately not the configuration of the engine: a test writes both and compares the results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, get_args

from tests.support.oracles.kinds import Columns, OracleKind, OracleRatio, OracleState, measures_of

from tidemill.model.errors import ConfigError
from tidemill.model.time import DAY, HOUR
from tidemill.testing.feed import LATE_TOLERANCE

FieldType = Literal["string", "integer", "decimal", "float", "boolean", "object", "array", "any"]
TimeType = Literal["unixtimestamp_s", "unixtimestamp_ms", "unixtimestamp_us", "unixtimestamp_ns", "iso8601"]


DEEPEST: Final = 512  # the oracle reads JSON recursively


class OracleField(NamedTuple):
    type: FieldType
    required: bool = False
    scale: int | None = None  # of a decimal: digits kept after the point


class OracleMetric(NamedTuple):
    """A counter: a count and the exact sums of its measures, per combination of dimensions."""

    dimensions: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()


class OracleMessages(NamedTuple):
    """Records hold messages of other streams: an array of objects in `column`."""

    column: str
    times: Mapping[str, tuple[str, TimeType]]  # of the streams that have an event time in use: column, type
    stream: str = "stream"  # of a message: its stream
    body: str | None = None  # of a message: what holds its fields; None: the message itself


@dataclass(frozen=True, slots=True)
class OracleStream:
    """Columns are top-level keys, or dotted paths into nested objects."""

    name: str
    fields: Mapping[str, OracleField] = field(default_factory=dict)
    time_column: str | None = None  # None: processing time, the event happens when it arrives
    time_type: TimeType = "unixtimestamp_ms"
    messages: OracleMessages | None = None  # the first that has a time tells it, before the stream's own
    identity: tuple[str, ...] = ("event_id",)
    tenant_column: str | None = None
    tenant_value: str | None = None
    type_column: str | None = None
    allowed_types: frozenset[str] = frozenset()
    skew_past: int | None = None
    skew_future: int | None = None
    late_tolerance: int = 0
    idle_timeout: int | None = None  # None: every source is waited for
    max_buffer_bytes: int | None = None  # None: as many as there are
    metrics: Mapping[str, OracleMetric] = field(default_factory=dict)
    kinds: Mapping[str, OracleKind] = field(
        default_factory=dict
    )  # more metrics, of all kinds: `MetricOracle`
    record_bytes: int = 1 << 20
    depth: int = 64

    def __post_init__(self) -> None:
        if (self.tenant_column is None) == (self.tenant_value is None):
            raise self._wrong("tenant", "give either tenant_column or tenant_value")
        if not self.identity:
            raise self._wrong("identity", "name at least one column")
        if self.time_type not in get_args(TimeType):
            raise self._wrong(f"time_type {self.time_type!r}", f"types: {', '.join(get_args(TimeType))}")
        if not 1 <= self.depth <= DEEPEST:
            raise self._wrong(f"depth {self.depth}", f"1 to {DEEPEST}")
        for name, declared in self.fields.items():
            if declared.type not in get_args(FieldType):
                raise self._wrong(f"type of {name}", f"types: {', '.join(get_args(FieldType))}")
            if (declared.type == "decimal") != (declared.scale is not None):
                raise self._wrong(f"scale of {name}", "a decimal has a scale, other types have none")
        for name, metric in self.metrics.items():
            self._need(f"dimension of metric {name}", metric.dimensions, ("string", "integer", "boolean"))
            self._need(f"measure of metric {name}", metric.measures, ("integer", "decimal"))
        for name, kind in self.kinds.items():
            self._check_kind(name, kind)

    def _check_kind(self, name: str, kind: OracleKind) -> None:
        if isinstance(kind, OracleRatio):
            known = {*self.metrics, *(n for n, k in self.kinds.items() if not isinstance(k, OracleRatio))}
            for term in (*kind.numerator, *kind.denominator):
                if term.metric not in known:
                    raise self._wrong(f"term {term.metric!r} of ratio {name}", f"metrics: {sorted(known)}")
            return
        keys: Columns = kind.dimensions
        if isinstance(kind, OracleState):
            keys = (*keys, kind.object, kind.state)
        self._need(f"key of metric {name}", keys, ("string", "integer", "boolean"))
        self._need(f"value of metric {name}", measures_of(kind), ("integer", "decimal"))

    @property
    def in_event_time(self) -> bool:
        return self.time_column is not None or self.messages is not None

    def _need(self, what: str, columns: tuple[str, ...], types: tuple[str, ...]) -> None:
        """Only declared columns of exact types, so that a rollup has one value for each spelling."""
        usable = [name for name, declared in self.fields.items() if declared.type in types]
        for column in columns:
            if column not in usable:
                raise self._wrong(f"{what}, {column!r}", f"declared {'/'.join(types)} fields: {usable}")

    def _wrong(self, what: str, hint: str) -> ConfigError:
        return ConfigError(f"stream {self.name}: {what} is not usable", hint=hint)


REQUESTS: Final = OracleStream(
    name="requests",
    fields={
        "event_id": OracleField("string", required=True),
        "ts": OracleField("integer", required=True),
        "event_type": OracleField("string"),
        "tenant": OracleField("string", required=True),
        "api": OracleField("string"),
        "region": OracleField("string"),
        "status": OracleField("integer"),
        "latency_ms": OracleField("decimal", scale=3),
        "bytes": OracleField("integer"),
        "user_agent": OracleField("string"),
        "trace": OracleField("string"),
    },
    time_column="ts",
    time_type="unixtimestamp_ms",
    tenant_column="tenant",
    type_column="event_type",
    allowed_types=frozenset({"request"}),
    skew_future=DAY,
    late_tolerance=LATE_TOLERANCE,
    metrics={"requests": OracleMetric(("api", "region", "status"), ("latency_ms",))},
)

READINGS: Final = OracleStream(
    name="readings",
    fields={
        "reading": OracleField("string", required=True),
        "at": OracleField("integer", required=True),
        "station": OracleField("string", required=True),
        "celsius": OracleField("decimal", scale=2),
        "samples": OracleField("integer"),
        "humidity": OracleField("float"),
        "calm": OracleField("boolean"),
        "note": OracleField("string"),
        "place": OracleField("object"),
        "gusts": OracleField("array"),
        "extra": OracleField("any"),
    },
    time_column="at",
    time_type="unixtimestamp_us",
    identity=("reading",),
    tenant_column="station",
)
"""To the microsecond, and with a field of every type: for windows and the datasets made of them."""

NESTED: Final = OracleStream(
    name="nested",
    fields={
        "meta.source": OracleField("string", required=True),
        "meta.n": OracleField("integer", required=True),
        "meta.at": OracleField("string"),
        "part": OracleField("string"),
        "body": OracleField("object"),
        "body.price": OracleField("decimal", scale=2),
        "tags": OracleField("array"),
        "flag": OracleField("boolean"),
        "ratio": OracleField("float"),
        "free": OracleField("any", required=True),
    },
    time_column="meta.at",
    time_type="iso8601",
    identity=("meta.source", "meta.n", "part"),
    tenant_value="one",
    skew_past=2 * DAY,
    skew_future=HOUR,
    metrics={"sold": OracleMetric(("flag",), ("body.price", "meta.n")), "seen": OracleMetric()},
    record_bytes=4096,
    depth=6,
)
