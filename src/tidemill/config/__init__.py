"""The configuration: `tidemill.yaml` as frozen models, read and checked in one place."""

from tidemill.config.events import Events, FileSink, RedisSink, Sink, WebhookSink
from tidemill.config.loading import Plugins, load_project, parse_project, read_template
from tidemill.config.metrics import (
    Counter,
    Gauge,
    Histogram,
    Kept,
    Metric,
    Ratio,
    StateMetric,
    Term,
    Transition,
)
from tidemill.config.project import FILE_NAME, BuilderSettings, EngineSettings, Limits, Project, StateStore
from tidemill.config.schema import FIELD_TYPES, Field, FieldType
from tidemill.config.stream import EventTime, EventType, RetentionSettings, Skew, Stream, Tenant
from tidemill.config.stream_sections import LateRows, LateSlices
from tidemill.config.values import parse_size
from tidemill.config.windowing import WindowDeclaration, parse_aggregate

__all__ = [
    "FIELD_TYPES",
    "FILE_NAME",
    "BuilderSettings",
    "Counter",
    "EngineSettings",
    "EventTime",
    "EventType",
    "Events",
    "Field",
    "FieldType",
    "FileSink",
    "Gauge",
    "Histogram",
    "Kept",
    "LateRows",
    "LateSlices",
    "Limits",
    "Metric",
    "Plugins",
    "Project",
    "Ratio",
    "RedisSink",
    "RetentionSettings",
    "Sink",
    "Skew",
    "StateMetric",
    "StateStore",
    "Stream",
    "Tenant",
    "Term",
    "Transition",
    "WebhookSink",
    "WindowDeclaration",
    "load_project",
    "parse_aggregate",
    "parse_project",
    "parse_size",
    "read_template",
]
