"""How a stream is read: short forms, defaults, quantities, derived columns."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from tidemill.config import Project, Stream, parse_project, parse_size
from tidemill.model.errors import ConfigError, InputError, NotFoundError
from tidemill.model.time import DAY, HOUR, SECOND

FILE = Path("/srv/mill/tidemill.yaml")
TYPES = ("iso8601", "unixtimestamp_ms")


def load(text: str, **environ: str) -> Project:
    return parse_project(text, FILE, TYPES, environ)


def stream(body: str) -> Stream:
    """A stream `s` of the given keys."""
    indented = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
    return load(f"version: 1\nstreams:\n  s:\n{indented}\n").stream("s")


def test_smallest_stream_has_documented_defaults() -> None:
    small = stream("schema: {id: string}\nidentity: id")
    assert small.name == "s"
    assert (small.format, small.gate, small.tenant.value) == ("auto", "event_id", "default")
    assert (small.event_time.mode, small.time_column) == ("processing", None)
    assert (small.skew.past, small.skew.future) == (36_525 * DAY, DAY)
    assert (small.retention.raw, small.retention.quarantine, small.retention.rollups) == (None, None, {})
    assert (small.metrics, small.event_type, small.keywords) == ({}, None, ())


def test_short_forms_mean_the_same_as_the_long_ones() -> None:
    short = stream(
        """
schema: {id: string, who: string}
identity: id
tenant: who
source_links: ["https://example.com/"]
"""
    )
    long = stream(
        """
schema: {id: {type: string}, who: {type: string, required: false}}
identity: [id]
tenant: {column: who}
source_links: [{href: "https://example.com/", title: ""}]
"""
    )
    assert short.model_dump() == long.model_dump()


def test_gate_none_needs_no_identity() -> None:
    assert stream("schema: {a: any}\ngate: none").identity == ()


def test_section_with_everything_commented_out_is_the_default() -> None:
    quiet = stream("schema: {id: string}\nidentity: id\nretention:\n  # raw: 400d\ncsv:\nmetrics:\n")
    assert (quiet.retention.raw, quiet.csv.delimiter, quiet.metrics) == (None, ",", {})
    assert load("version: 1\nengine:\nstreams: {s: {schema: {a: any}, gate: none}}").engine.cores == "auto"


def test_null_takes_a_default_limit_away() -> None:
    assert stream("schema: {a: any}\ngate: none\nskew: {future: null}").skew.future is None


def test_processing_mode_reads_no_time_column() -> None:
    arrival = stream(
        "schema: {id: string, ts: integer}\nidentity: id\n"
        "event_time: {mode: processing, column: ts, type: unixtimestamp_ms, late_tolerance: 0}"
    )
    assert arrival.time_column is None
    assert stream("schema: {a: any}\ngate: none\nevent_time: {mode: processing}").time_column is None


def test_columns_of_metrics_are_in_order_and_named_once() -> None:
    wide = stream(
        """
schema:
  id: string
  part: integer
  at: string
  kind: string
  resource: object
  resource.service: string
  resource.zone: string
  ok: boolean
  bytes: integer
  cost: {type: decimal, scale: 15}
identity: [id, part]
tenant: {column: resource.service}
event_type: {column: kind, allowed: [a, b]}
event_time: {column: at, type: iso8601}
metrics:
  calls: {kind: counter, dimensions: [resource.zone, ok, kind], measures: [bytes]}
  costs: {kind: counter, dimensions: [part, ok], measures: [cost, bytes]}
"""
    )
    assert wide.dimension_columns == ("resource.zone", "ok", "kind", "part")
    assert wide.measure_columns == ("bytes", "cost")


def test_yes_no_and_dates_are_text_and_numbers_as_keys_are_names() -> None:
    plain = stream("schema: {on: string}\ngate: none\nkeywords: [no, on, 2024-01-01, 1:30]")
    assert plain.keywords == ("no", "on", "2024-01-01", "1:30")
    assert list(plain.fields) == ["on"]


def test_anchors_can_be_used() -> None:
    both = load("version: 1\nstreams:\n  a: &one {schema: {x: any}, gate: none}\n  b: *one\n").streams
    assert both["a"].fields == both["b"].fields
    assert [s.name for s in both.values()] == ["a", "b"]


def test_streams_do_not_change_after_loading() -> None:
    fixed = stream("schema: {a: any}\ngate: none")
    with pytest.raises(ValidationError):
        fixed.gate = "event_id"  # type: ignore[misc]


def test_unknown_stream_lists_the_streams() -> None:
    project = load("version: 1\nstreams: {requests: {schema: {a: any}, gate: none}}")
    with pytest.raises(NotFoundError, match="'request'") as caught:
        project.stream("request")
    assert caught.value.hint == "did you mean requests? streams: requests"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (0, 0), (1048576, 1 << 20), ("1024", 1024), ("10B", 10), ("64KiB", 64 << 10), ("48MiB", 48 << 20),
        ("48 MiB", 48 << 20), ("1GiB", 1 << 30), ("1GB", 10**9), ("1kB", 1000), ("1mb", 10**6),
        ("1.5KiB", 1536), ("2TiB", 2 << 40),
    ],
)  # fmt: skip
def test_sizes_are_bytes(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "B", "-1", -1, "1g", "1.0000000001GB", "0.3B", "lots", True, "٣KiB",
                                  1 << 63, "9" * 30, "9" * 9000, "99999999TiB"])  # fmt: skip
def test_what_is_not_a_size_is_refused_with_examples(text: str | int) -> None:
    with pytest.raises(InputError) as caught:
        parse_size(text)
    assert "64KiB" in caught.value.hint


def test_settings_of_the_engine_and_the_limits() -> None:
    project = load(
        "version: 1\nwarehouse: ../lake\n"
        "engine: {master: 'local[2]', cores: 2, memory: 4G, conf: {spark.executor.cores: 4}, "
        "batch_bytes: 256MiB, chunk_bytes: 8MiB, inline_bytes: 0, "
        "compaction_memory: 32MiB, "
        "keep_replaced: 1d, lease: 10s, flush_on_stop: false}\n"
        "limits: {record_bytes: 64KiB, depth: 8}\n"
        "streams: {s: {schema: {a: any}, gate: none}}"
    )
    assert project.warehouse == Path("/srv/lake")
    assert project.engine.model_dump() == {
        "master": "local[2]",
        "cores": 2,
        "memory": "4g",
        "conf": {"spark.executor.cores": "4"},
        "batch_bytes": 256 << 20,
        "chunk_bytes": 8 << 20,
        "inline_bytes": 0,
        "compaction_memory": 32 << 20,
        "keep_replaced": DAY,
        "lease": 10_000_000,
        "flush_on_stop": False,
    }
    assert project.limits.model_dump() == {"record_bytes": 64 << 10, "depth": 8}


MINIMAL = "version: 1\nstreams: {requests: {schema: {Api: string}, gate: none}}"


def test_environment_replaces_what_the_file_says() -> None:
    project = load(
        MINIMAL,
        TIDEMILL__ENGINE__CORES="2",
        TIDEMILL__STREAMS__requests__SKEW__FUTURE="1h",
        TIDEMILL__STREAMS__REQUESTS__KEYWORDS="[a, b]",
        TIDEMILL__STREAMS__REQUESTS__SCHEMA__API="{type: string, required: true}",
        TIDEMILL__LIMITS="{depth: 9}",
        TIDEMILL__WAREHOUSE="ignored",
        TIDEMILL_WAREHOUSE="/data/lake",
        TIDEMILL_FAILPOINT="not a setting",
        TIDEMILL__ENGINE__MEMORY="",
        HOME="/root",
    )
    requests = project.stream("requests")
    assert project.engine.cores == 2
    assert project.engine.memory == "1g"
    assert project.limits.depth == 9
    assert project.warehouse == Path("/data/lake")
    assert requests.skew.future == HOUR
    assert requests.keywords == ("a", "b")
    assert requests.fields["Api"].required


def test_warehouse_is_relative_to_the_file_whoever_names_it() -> None:
    assert load(MINIMAL, TIDEMILL_WAREHOUSE="lake").warehouse == Path("/srv/mill/lake")


def test_durations_are_microseconds() -> None:
    assert stream("schema: {a: any}\ngate: none\nskew: {past: PT2S, future: 0}").skew.model_dump() == {
        "past": 2 * SECOND, "future": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "metric", "said"),
    [
        (
            "{id: string, bucket: string}",
            "{kind: counter, dimensions: [bucket]}",
            "the table's own column bucket",
        ),
        (
            "{id: string, a.b: string, a__b: string}",
            "{kind: counter, dimensions: [a.b, a__b]}",
            "dimension 'a.b'",
        ),
        (
            "{id: string, Api: string, api: string}",
            "{kind: counter, dimensions: [Api, api]}",
            "dimension 'Api'",
        ),
        (
            "{id: string, ms: integer, ms__sum: integer}",
            "{kind: counter, dimensions: [ms__sum], measures: [ms]}",
            "dimension 'ms__sum'",
        ),
    ],
)
def test_fields_that_would_share_a_rollup_column_are_refused(schema: str, metric: str, said: str) -> None:
    with pytest.raises(ConfigError, match="is taken by") as refused:
        stream(f"schema: {schema}\nidentity: id\nmetrics: {{m: {metric}}}")
    assert said in str(refused.value)
