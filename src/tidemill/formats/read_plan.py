"""What kernels need to know about a stream, flat and picklable, so that tasks need no configuration."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tidemill.config import Limits, Stream
from tidemill.eventtime import Parser, resolve

MAX_ID_BYTES = 1024
MAX_TENANT_BYTES = 256

# Event-time types that the kernels read without a call per record.
UNIX_UNITS = {"unixtimestamp_s": 1_000_000, "unixtimestamp_ms": 1_000, "unixtimestamp_us": 1}
FAST_TIMES = {*UNIX_UNITS, "unixtimestamp_ns", "iso8601"}


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """A declared field: its JSON type, whether it must be there, and the scale of a decimal."""

    name: str
    type: str
    required: bool
    scale: int = 0
    zone: str | None = None  # zone of timestamps without an offset; None: those are refused


@dataclass(frozen=True, slots=True)
class TimeRule:
    """How the event time of a stream is read from its fields."""

    column: str
    type: str
    parser: Parser | None  # set for parsers that are not built in
    zone: str | None = None  # zone of iso8601 times without an offset; None: those are refused


@dataclass(frozen=True, slots=True)
class MessageRule:
    """Where the messages of a record are, and how to read the event times of their streams."""

    column: str
    stream: str
    body: str | None  # None: the message itself
    times: Mapping[str, TimeRule]


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """Where a record names its vector and what it does to it, and how many components that has."""

    dimension: int
    id: str
    op: str
    values: str
    indices: str


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """How records of one stream are read."""

    stream: str
    rules: tuple[ColumnRule, ...]
    identity: tuple[str, ...]  # empty: the stream is not gated
    tenant_column: str | None
    tenant_value: str
    type_column: str | None
    types: frozenset[str]
    time_column: str | None  # None, and no messages: processing time
    time_type: str
    time_parser: Parser | None  # set for parsers that are not built in
    skew_past: int | None
    skew_future: int | None
    dimensions: tuple[str, ...]  # read as they are, for metrics: d0, d1, … of a chunk
    measures: tuple[str, ...]  # read as exact numbers: m0, m1, …
    record_bytes: int
    depth: int
    sealed_before: int | None = None  # events before it are refused
    delta: DeltaRule | None = None  # its records change vectors
    time_zone: str | None = None  # see `TimeRule.zone`
    located: tuple[str, ...] = ()  # fields whose positions in the records are returned
    messages: MessageRule | None = None  # for records of messages: the first with a time gives the time

    @property
    def gated(self) -> bool:
        return bool(self.identity)

    def rule(self, name: str) -> ColumnRule:
        return next(rule for rule in self.rules if rule.name == name)

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that a kernel reads: the declared fields, each once."""
        return tuple(rule.name for rule in self.rules)

    @property
    def kept(self) -> tuple[str, ...]:
        """Columns whose values are read, not only their kind; always numbers, to check that they fit."""
        used = {
            *self.identity,
            *self.dimensions,
            *self.measures,
            self.tenant_column,
            self.type_column,
            self.time_column,
        }
        return tuple(
            rule.name
            for rule in self.rules
            if rule.name in used or rule.type in ("integer", "decimal", "timestamp")
        )


def _parser(type: str) -> Parser | None:
    return None if type in FAST_TIMES else resolve(type)


def _messages(stream: Stream) -> MessageRule | None:
    if (declared := stream.messages) is None or not stream.in_event_time:
        return None
    times = {
        name: TimeRule(time.column, time.type, _parser(time.type), time.timezone)
        for name, time in declared.times.items()
    }
    return MessageRule(declared.column, declared.stream, declared.body, times)


def _delta(stream: Stream) -> DeltaRule | None:
    if stream.kind != "delta" or (vector := stream.vector) is None:
        return None
    return DeltaRule(vector.dimension, vector.id, vector.op, vector.values, vector.indices)


def plan_for(stream: Stream, limits: Limits) -> ReadPlan:
    time_type = (stream.event_time.type or "") if stream.time_column is not None else ""
    return ReadPlan(
        stream=stream.name,
        rules=tuple(
            ColumnRule(
                name,
                field.type,
                field.required,
                field.scale or 0,
                stream.event_time.timezone if field.type == "timestamp" else None,
            )
            for name, field in stream.fields.items()
        ),
        identity=stream.identity if stream.gate == "event_id" else (),
        tenant_column=stream.tenant.column,
        tenant_value=stream.tenant.value or "",
        type_column=stream.event_type.column if stream.event_type else None,
        types=frozenset(stream.event_type.allowed) if stream.event_type else frozenset(),
        time_column=stream.time_column,
        time_type=time_type,
        time_parser=_parser(time_type) if time_type else None,
        skew_past=stream.skew.past,
        skew_future=stream.skew.future,
        dimensions=stream.key_columns,
        measures=stream.number_columns,
        record_bytes=limits.record_bytes,
        depth=limits.depth,
        delta=_delta(stream),
        time_zone=stream.event_time.timezone,
        messages=_messages(stream),
    )


def _declared(rule: MessageRule | None) -> list[object] | None:
    """A rule of messages with the event times of their streams, which are declared elsewhere."""
    if rule is None:
        return None
    times = {name: [time.column, time.type, time.zone] for name, time in rule.times.items()}
    return [rule.column, rule.stream, rule.body, times]


def reading_of(stream: Stream, limits: Limits) -> str:
    """Identifies how records of a stream are read: everything that their outcome and the columns of raw
    depend on."""
    plan = plan_for(stream, limits)
    declaration = [
        [{key: value for key, value in asdict(rule).items() if value is not None} for rule in plan.rules],
        [plan.identity, plan.tenant_column, plan.tenant_value, plan.type_column, sorted(plan.types)],
        [plan.time_column, plan.time_type, plan.time_zone, plan.skew_past, plan.skew_future],
        [plan.record_bytes, plan.depth],
        None if plan.delta is None else asdict(plan.delta),
        _declared(plan.messages),
        None if stream.csv is None else stream.csv.model_dump(mode="json"),
        None if stream.json_rows is None else stream.json_rows.model_dump(mode="json"),
    ]
    return hashlib.sha256(json.dumps(declaration, sort_keys=True).encode()).hexdigest()[:16]
