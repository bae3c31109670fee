"""The configuration: `tidemill.yaml` as frozen models, read and checked in one place."""

from tidemill.config.loading import load_project, parse_project
from tidemill.config.project import FILE_NAME, Engine, Limits, Project
from tidemill.config.quantities import parse_size
from tidemill.config.schema import FIELD_TYPES, Field, FieldType
from tidemill.config.stream import Counter, EventTime, EventType, Metric, Retention, Skew, Stream, Tenant
from tidemill.config.template import TEMPLATE

__all__ = [
    "FIELD_TYPES",
    "FILE_NAME",
    "TEMPLATE",
    "Counter",
    "Engine",
    "EventTime",
    "EventType",
    "Field",
    "FieldType",
    "Limits",
    "Metric",
    "Project",
    "Retention",
    "Skew",
    "Stream",
    "Tenant",
    "load_project",
    "parse_project",
    "parse_size",
]
