"""What `tidemill init` writes loads, and its comments tell the truth."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

from tidemill.config import (
    Counter,
    EventTime,
    Gauge,
    Histogram,
    LateSlices,
    Project,
    Ratio,
    RetentionSettings,
    StateMetric,
    Stream,
    Term,
    Transition,
    WindowDeclaration,
    parse_project,
    read_template,
)
from tidemill.config.events import FileSink
from tidemill.config.gateway import AdaptiveWindow, GatewaySettings, StreamGateway
from tidemill.config.project import BuilderSettings, EngineSettings, Limits, Settings
from tidemill.config.stream import Csv
from tidemill.config.stream_sections import Pack, QueryDefaults
from tidemill.config.vectors import CompactionSettings, Vector
from tidemill.eventtime import registered
from tidemill.model.time import DAY, HOUR, MINUTE, SECOND

FILE = Path("/srv/mill/tidemill.yaml")


def load(text: str) -> Project:
    return parse_project(text, FILE, registered(), {})


def test_template_loads() -> None:
    project = load(read_template("requests"))
    assert (project.path, project.root, project.warehouse) == (
        FILE, Path("/srv/mill"), Path("/srv/mill/warehouse"),
    )  # fmt: skip
    assert (project.engine, project.limits) == (EngineSettings(), Limits())
    assert (project.builder, project.events.sinks) == (BuilderSettings(), {})
    assert project.gateway == GatewaySettings()
    assert list(project.streams) == ["requests"]
    assert project.stream("requests").aggregation_span is None


def test_template_declares_the_requests_stream() -> None:
    stream = load(read_template("requests")).stream("requests")
    assert stream.name == "requests"
    assert all(tenant in stream.description for tenant in ("acme", "globex", "initech"))
    assert stream.source_links[0].href == "https://example.com/gateway"
    latency = stream.fields["latency_ms"]
    assert (latency.type, latency.required, latency.scale) == ("decimal", False, 3)
    assert stream.fields["ts"].required
    assert (stream.time_column, stream.event_time.type) == ("ts", "unixtimestamp_ms")
    assert stream.event_time.late_tolerance == 2 * SECOND
    assert (stream.skew.past, stream.skew.future) == (400 * DAY, 5 * MINUTE)
    assert (stream.identity, stream.gate, stream.tenant.column) == (("event_id",), "event_id", "tenant")
    assert stream.dimension_columns == ("api", "region", "status")
    assert stream.measure_columns == ("latency_ms",)


def test_settings_that_are_commented_out_are_the_defaults_or_valid_examples() -> None:
    text = read_template("requests")
    uncommented = re.sub(r"^( *)# (?=\s*[a-z_]+:(?: |$))", r"\1", text, flags=re.MULTILINE)
    assert uncommented.count("#") < text.count("#")
    project = load(uncommented)
    assert (project.engine, project.limits) == (EngineSettings(), Limits())
    assert project.engine.model_fields_set == set(EngineSettings.model_fields)
    assert project.limits.model_fields_set == set(Limits.model_fields)
    assert project.builder == BuilderSettings()
    assert project.builder.model_fields_set == set(BuilderSettings.model_fields)
    assert project.events.sinks == {"log": FileSink(kind="file", path="events.ndjson")}
    gateway = project.gateway
    assert gateway == GatewaySettings()
    assert gateway.model_fields_set == set(GatewaySettings.model_fields)
    assert gateway.window.model_fields_set == set(AdaptiveWindow.model_fields)
    for part in (gateway.triggers, gateway.memory, gateway.wal, gateway.requests, gateway.otlp):
        assert part.model_fields_set == set(type(part).model_fields), type(part)
    stream = project.stream("requests")
    assert stream.csv == Csv()
    assert stream.retention.rollups == {"5s": 7 * DAY, "1m": 90 * DAY}
    assert stream.retention.sealed == RetentionSettings().sealed
    assert stream.retention.model_fields_set == set(RetentionSettings.model_fields)
    assert stream.pack == Pack()
    assert stream.pack.model_fields_set == set(Pack.model_fields)
    for kind in (Counter, Gauge, Histogram, StateMetric, Ratio):
        shown = [metric for metric in stream.metrics.values() if isinstance(metric, kind)]
        found = set[str]().union(*(metric.model_fields_set for metric in shown))
        assert found >= set(kind.model_fields) - {"filter", "max_cardinality"}, kind
    checkouts, ratio = stream.metrics["checkouts"], stream.metrics["paid_after_cart"]
    assert isinstance(checkouts, StateMetric)
    assert isinstance(ratio, Ratio)
    assert checkouts.transitions["paid"].model_fields_set == set(Transition.model_fields)
    assert ratio.numerator[0].model_fields_set == set(Term.model_fields)
    metrics = stream.kept_metrics.values()
    assert any(metric.filter for metric in metrics)
    assert any(metric.max_cardinality for metric in metrics)
    assert project.warnings == ()
    assert (stream.aggregation_span, stream.subject_to_change_window) == (HOUR, 6 * HOUR)
    assert (stream.gap_tolerance, stream.late_slices) == (SECOND, LateSlices())
    assert stream.allow_incomplete_windows is False
    of_iso8601 = {"timezone"}  # the template has another type
    assert stream.event_time.model_fields_set == set(EventTime.model_fields) - of_iso8601
    assert stream.event_time.max_buffer_bytes == EventTime().max_buffer_bytes
    windows = stream.windows.values()
    said = set[str]().union(*(window.model_fields_set for window in windows))
    assert said == set(WindowDeclaration.model_fields) - {"n"}
    assert [spec.kind for spec in stream.window_specs] == ["sliding", "per_row", "session", "state"]
    assert stream.query.model_fields_set == set(QueryDefaults.model_fields)
    own = stream.gateway
    assert own.model_fields_set == set(StreamGateway.model_fields)
    for section in (own.triggers, own.memory):
        assert section.model_fields_set == set(type(section).model_fields), type(section)
    deltas = project.stream("embeddings")
    assert deltas.vector == Vector(dimension=384)
    assert deltas.vector.model_fields_set == set(Vector.model_fields)
    assert deltas.compaction == CompactionSettings()
    assert deltas.compaction.model_fields_set == set(CompactionSettings.model_fields) - {"interval"}
    assert stream.model_fields_set == set(Stream.model_fields) - {"kind", "vector", "compaction"}


def test_every_section_of_the_file_is_in_the_template() -> None:
    for key in Settings.model_fields:
        assert re.search(rf"^(# )?{key}:", read_template("requests"), flags=re.MULTILINE), key


def test_stream_travels_to_other_processes() -> None:
    stream = load(read_template("requests")).stream("requests")
    assert pickle.loads(pickle.dumps(stream)) == stream  # noqa: S301
