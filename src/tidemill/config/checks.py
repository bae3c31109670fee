"""Rules between the sections of a stream: columns that exist, types that suit their use.

Pure: each rule yields findings, and none stops at the first. Sections that are invalid by themselves are
marked as such, so that nothing is reported twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tidemill.config.checks_columns import DeclaredColumns, listed, one_of, repeats
from tidemill.config.checks_metrics import check_metrics
from tidemill.config.checks_retention import check_indexed, check_retention, unused_retention
from tidemill.config.checks_vectors import check_vectors, unused_vectors
from tidemill.config.checks_windowing import check_windows
from tidemill.config.problems import Path
from tidemill.config.project import EngineSettings, Limits
from tidemill.config.schema import Field, FieldType
from tidemill.config.stream import Stream
from tidemill.config.validation import ConfigFinding
from tidemill.model.names import DATASET_COLUMNS
from tidemill.model.suggestions import choices
from tidemill.model.time import SECOND, format_duration

IDENTITY_TYPES: tuple[FieldType, ...] = ("string", "integer")
TIME_TYPES: tuple[FieldType, ...] = ("integer", "decimal", "string", "timestamp", "any")

_UNIX_TYPES = "unixtimestamp_"  # what the names of types that read numbers start with
LEAST_SPAN = SECOND  # of windows: the windows that a year of slices touches must stay countable
_OF_WINDOWS = (
    "subject_to_change_window",
    "allow_incomplete_windows",
    "gap_tolerance",
    "coverage",
    "late_slices",
)


def check_stream(
    stream: Stream, time_types: Collection[str], broken: Collection[Path] = ()
) -> Iterator[ConfigFinding]:
    """Everything wrong between the sections of `stream`; paths are relative to it."""
    columns = DeclaredColumns(stream, broken)
    yield from _schema(stream, broken)
    yield from _csv(stream)
    yield from _json(stream)
    yield from repeats(("manifests",), stream.manifests.files)
    yield from repeats(("manifests", "partition_by"), stream.manifests.partition_by)
    if ("event_time",) not in broken:
        yield from _event_time(stream, columns, time_types, broken)
    yield from _messages(stream, columns)
    yield from _gate(stream, broken)
    for path, column in listed(("identity",), stream.identity):
        yield from columns.check(path, column, IDENTITY_TYPES, f"an identity is {one_of(IDENTITY_TYPES)}")
    if stream.tenant.column is not None:
        yield from columns.check(
            ("tenant", "column"), stream.tenant.column, ("string",), "a tenant is a string"
        )
    if stream.event_type is not None:
        path = ("event_type", "column")
        yield from columns.check(path, stream.event_type.column, ("string",), "an event type is a string")
        yield from repeats(("event_type", "allowed"), stream.event_type.allowed)
    yield from check_metrics(stream, columns, broken)
    yield from check_indexed(stream)
    yield from repeats(("identity",), stream.identity)
    yield from _windows(stream, broken)
    yield from _dataset_columns(stream, broken)
    yield from check_windows(stream, columns, broken)
    yield from check_retention(stream, broken)
    yield from check_vectors(stream, columns, broken)


def unused(stream: Stream) -> Iterator[ConfigFinding]:
    """What is declared and has no effect: a warning, not an error. Paths are relative to the stream."""
    declared = stream.event_time
    why, instead = (
        ("mode is processing", "mode: event") if declared.enabled else ("enabled is false", "enabled: true")
    )
    set_keys = [key for key in ("column", "type") if getattr(declared, key) is not None]
    if set_keys and not declared.in_use:
        verb, names = "is" if len(set_keys) == 1 else "are", " and ".join(set_keys)
        message = f"{names} {verb} declared and not used, since {why}"
        yield ConfigFinding(
            ("event_time",), message, f"set {instead} to use the event time, or leave {names} out"
        )
    if stream.messages is not None and not declared.enabled:
        message = f"the times of messages are not used, since {why} for event_time"
        yield ConfigFinding(("messages",), message, f"set {instead} there to use them, or leave messages out")
    yield from unused_retention(stream)
    yield from unused_vectors(stream)


def check_sizes(engine: EngineSettings, limits: Limits) -> Iterator[ConfigFinding]:
    """Sizes that must fit into each other; paths are from the top of the file."""
    if engine.chunk_bytes < limits.record_bytes:
        yield ConfigFinding(
            ("limits", "record_bytes"),
            f"a record of {limits.record_bytes} bytes does not fit a chunk of {engine.chunk_bytes}",
            "make engine.chunk_bytes at least as large",
        )
    if engine.batch_bytes < engine.chunk_bytes:
        yield ConfigFinding(
            ("engine", "batch_bytes"),
            f"a batch of {engine.batch_bytes} bytes is smaller than a chunk of {engine.chunk_bytes}",
            "make engine.batch_bytes at least as large as engine.chunk_bytes",
        )


def _schema(stream: Stream, broken: Collection[Path]) -> Iterator[ConfigFinding]:
    if not stream.fields and not any(path[0] == "schema" for path in broken):
        yield ConfigFinding(
            ("schema",), "the schema has no columns", "declare at least one, such as ts: integer"
        )
    for column in stream.fields:
        parts = column.split(".")
        for length in range(1, len(parts)):
            parent = ".".join(parts[:length])
            outer: Field | None = stream.fields.get(parent)
            if outer is not None and outer.type not in ("object", "any"):
                yield ConfigFinding(
                    ("schema", column),
                    f"{parent!r} is of type {outer.type} and has nothing inside",
                    f"declare {parent} as object, or rename {column}",
                )


def _windows(stream: Stream, broken: Collection[Path]) -> Iterator[ConfigFinding]:
    span = stream.aggregation_span
    if span is None:
        if ("aggregation_span",) not in broken:
            for key in _OF_WINDOWS:
                if key in stream.model_fields_set:
                    message = "there are no windows that it could hold for"
                    yield ConfigFinding((key,), message, "add aggregation_span, such as 1h, or leave it out")
        return
    if span < LEAST_SPAN:
        message = f"a window of {format_duration(span)} is too short"
        yield ConfigFinding(("aggregation_span",), message, f"use {format_duration(LEAST_SPAN)} or longer")
    elif stream.hole >= span:
        message = (
            f"a gap of {format_duration(stream.gap_tolerance)} would be all of a window of "
            f"{format_duration(span)}"
        )
        path = ("gap_tolerance",) if "gap_tolerance" in stream.model_fields_set else ("aggregation_span",)
        yield ConfigFinding(path, message, "make gap_tolerance shorter than aggregation_span, such as 0s")


def _dataset_columns(stream: Stream, broken: Collection[Path]) -> Iterator[ConfigFinding]:
    """Check names: fields become columns of a dataset beside the fixed ones, and readers ignore case."""
    if stream.aggregation_span is None:
        return
    sources = {
        "event_time": (
            ("messages", None, "leave messages out")
            if stream.messages
            else ("event_time", stream.time_column, "set event_time: {column: event_time}")
        ),
        "tenant": ("tenant", stream.tenant.column, "set tenant: {column: tenant}"),
        "event_id": ("identity", _only_identity(stream), "set identity: event_id"),
    }
    assert tuple(sources) == DATASET_COLUMNS
    taken: dict[str, str] = {}
    for column in stream.fields:
        path = ("schema", column)
        other = taken.setdefault(column.lower(), column)
        if other != column:
            message = f"{column!r} and {other!r} would be one column of a dataset: readers ignore case"
            yield ConfigFinding(path, message, "rename one of the two fields in the feed")
        elif column.lower() in sources and column not in sources:
            message = f"a dataset has a column {column.lower()} of its own, and readers ignore case"
            yield ConfigFinding(path, message, "rename the field in the feed")
        elif column in sources:
            section, source, otherwise = sources[column]
            if column != source and not any(at[0] == section for at in broken):
                message = f"a dataset has a column {column} of its own, and this is not what it is made of"
                yield ConfigFinding(path, message, f"rename the field in the feed, or {otherwise}")


def _only_identity(stream: Stream) -> str | None:
    """The column that is the id of an event, if it is a single column."""
    return stream.identity[0] if stream.gate == "event_id" and len(stream.identity) == 1 else None


def _csv(stream: Stream) -> Iterator[ConfigFinding]:
    if "csv" not in stream.model_fields_set:
        return
    if stream.format not in ("auto", "csv"):
        message = f"slices of format {stream.format} are not CSV"
        yield ConfigFinding(("csv",), message, "remove csv, or set format: csv")
    yield from repeats(("csv", "columns"), stream.csv.columns)
    if stream.csv.columns:
        yield from _all_required(stream, ("csv", "columns"), stream.csv.columns, stream.fields)


def _json(stream: Stream) -> Iterator[ConfigFinding]:
    if "json_rows" not in stream.model_fields_set:
        return
    declared = stream.json_rows
    if stream.format not in ("auto", "json"):
        message = f"slices of format {stream.format} are not JSON"
        yield ConfigFinding(("json",), message, "remove json, or set format: json")
    elif declared.path is not None and stream.format != "json":
        message = "by its looks alone, an object on one line is a record of NDJSON"
        yield ConfigFinding(("json", "path"), message, "set format: json")
    for path, column in listed(("json", "columns"), declared.columns):
        if "." in column:
            message = f"{column!r} is a path, and a value of an array has a plain name"
            yield ConfigFinding(path, message, "name it without dots; what is inside it has its own names")
    yield from repeats(("json", "columns"), declared.columns)
    if declared.columns:
        outer = [column for column in stream.fields if column.partition(".")[0] == column]
        yield from _all_required(stream, ("json", "columns"), declared.columns, outer)


def _all_required(
    stream: Stream, path: Path, columns: Collection[str], names: Collection[str]
) -> Iterator[ConfigFinding]:
    for column in names:
        if stream.fields[column].required and column not in columns:
            message = f"the required column {column!r} is not among them"
            yield ConfigFinding(path, message, "add it, or make it optional in the schema")


def _event_time(
    stream: Stream, columns: DeclaredColumns, time_types: Collection[str], broken: Collection[Path]
) -> Iterator[ConfigFinding]:
    declared, path = stream.event_time, ("event_time",)
    of_messages = stream.messages is not None and declared.column is None and declared.type is None
    if declared.in_use and not of_messages:
        otherwise = "or set mode: processing to use the arrival"
        if declared.column is None and (*path, "column") not in broken:
            yield ConfigFinding(path, "column is missing", f"name a column of the schema, {otherwise}")
        if declared.type is None and (*path, "type") not in broken:
            yield ConfigFinding(
                path, "type is missing", f"types: {', '.join(sorted(time_types))}; {otherwise}"
            )
    if declared.column is not None:
        hint = f"an event time is {one_of(TIME_TYPES)}"
        yield from columns.check((*path, "column"), declared.column, TIME_TYPES, hint)
    if declared.type is not None and declared.type not in time_types:
        hint = choices(declared.type, sorted(time_types), "types")
        yield ConfigFinding((*path, "type"), f"there is no event-time type {declared.type!r}", hint)
    field = stream.fields.get(declared.column or "")
    if declared.type == "iso8601" and field is not None and field.type in ("integer", "decimal"):
        yield ConfigFinding(
            (*path, "type"),
            f"iso8601 reads text, and column {declared.column!r} is of type {field.type}",
            "declare the column as string, or use one of the unixtimestamp types",
        )
    if declared.type and declared.type.startswith(_UNIX_TYPES) and field and field.type == "timestamp":
        yield ConfigFinding(
            (*path, "type"),
            f"{declared.type} reads numbers, and column {declared.column!r} is of type timestamp",
            "use type: iso8601, which reads the timestamps of Parquet and Arrow, too",
        )
    if declared.timezone is not None and declared.type not in (None, "iso8601"):
        yield ConfigFinding(
            (*path, "timezone"),
            f"{declared.type} has no use for a time zone",
            "timezone is for iso8601 times that do not say their offset from UTC: leave it out",
        )


def _messages(stream: Stream, columns: DeclaredColumns) -> Iterator[ConfigFinding]:
    if stream.messages is None:
        return
    yield from columns.check(
        ("messages", "column"), stream.messages.column, ("array",), "messages must be in an array"
    )
    if stream.format == "csv":
        yield ConfigFinding(
            ("messages",), "a cell of a CSV file is never an array", "use another format: ndjson, …"
        )


def _gate(stream: Stream, broken: Collection[Path]) -> Iterator[ConfigFinding]:
    if ("gate",) in broken or ("identity",) in broken:
        return
    if stream.gate == "event_id" and not stream.identity:
        path: Path = ("gate",) if "gate" in stream.model_fields_set else ()
        yield ConfigFinding(
            path,
            "the gate needs to know what makes an event one event",
            "add identity: COLUMN or a list of columns, or gate: none to accept every record",
        )
