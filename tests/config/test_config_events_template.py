"""What `tidemill up` writes where there is no project loads, and takes the event envelope and OTLP."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.otlp_requests import SPAN, START, TRACE, logs_request, read, traces_request

from tidemill.config import Counter, Histogram, Project, parse_project
from tidemill.config.gateway import GatewaySettings
from tidemill.config.loading import read_template
from tidemill.eventtime import registered
from tidemill.formats.decide import DecidedRecord, decide
from tidemill.formats.read_plan import plan_for
from tidemill.mill import Mill
from tidemill.query.search.search import SearchPage
from tidemill.testing import FakeClock

NOW = START // 1000 + 60_000_000
EVENT = (
    b'{"event_id":"o-1","ts":"2024-01-15T14:00:01.5Z","event_type":"order.placed","tenant":"acme",'
    b'"resource":{"service":"shop","host":"a"},"attributes":{"items":3},"outcome":{"ok":true}}\n'
)


@pytest.fixture(scope="module")
def project() -> Project:
    return parse_project(read_template("events"), Path("/srv/mill/tidemill.yaml"), registered(), {})


def test_it_loads_without_a_warning(project: Project) -> None:
    assert list(project.streams) == ["events", "logs", "traces"]
    assert project.warnings == ()
    assert project.warehouse == Path("/srv/mill/warehouse")


def test_what_it_says_of_the_gateway_are_the_defaults(project: Project) -> None:
    assert project.gateway == GatewaySettings()
    assert {project.gateway.otlp.logs, project.gateway.otlp.traces} <= set(project.streams)


def test_it_counts_by_what_one_asks_for(project: Project) -> None:
    said = {
        (stream.name, name): (type(metric), metric.dimensions)
        for stream in project.streams.values()
        for name, metric in stream.kept_metrics.items()
    }
    assert said == {
        ("events", "events"): (Counter, ("event_type", "resource.service")),
        ("logs", "logs"): (Counter, ("resource.service", "severity")),
        ("traces", "traces"): (Counter, ("resource.service", "kind", "outcome")),
        ("traces", "duration"): (Histogram, ("resource.service",)),
    }
    assert all("resource.service" in stream.indexed for stream in project.streams.values())


def decided(project: Project, stream: str, line: bytes) -> DecidedRecord:
    found = decide(line.rstrip(b"\n"), plan_for(project.stream(stream), project.limits), NOW)
    assert isinstance(found, DecidedRecord), found
    return found


def test_the_envelope_of_an_event_is_accepted(project: Project) -> None:
    found = decided(project, "events", EVENT)
    assert (found.tenant, found.event_id, found.time) == ("acme", "o-1", START // 1000 + 1_500_000)
    assert found.dimensions == ("order.placed", "shop")


@pytest.mark.parametrize("body", ["text", 5, None, {"a": [1]}, [1.5]])
def test_logs_by_otlp_are_accepted_whatever_they_say(project: Project, body: object) -> None:
    request = logs_request({"time_unix_nano": START, "severity_number": 9, "body": body, "trace_id": TRACE})
    found = read(request, stream=project.stream("logs"))
    assert found.submission is not None
    row = decided(project, "logs", found.submission.content)
    assert (row.tenant, row.time, row.dimensions) == ("default", START // 1000, ("shop", "INFO"))


def test_logs_of_nobody_in_particular_are_accepted(project: Project) -> None:
    found = read(logs_request({"time_unix_nano": START}, resource={}), stream=project.stream("logs"))
    assert found.submission is not None
    assert decided(project, "logs", found.submission.content).dimensions == (None, "UNSPECIFIED")


def test_spans_by_otlp_are_accepted(project: Project) -> None:
    span = {"name": "GET /", "kind": 2, "end_time_unix_nano": START + 2_500_000, "status": {"code": 1}}
    found = read(traces_request(span), stream=project.stream("traces"), tenant="acme")
    assert found.submission is not None
    row = decided(project, "traces", found.submission.content)
    assert (row.tenant, row.event_id) == ("acme", f"{TRACE.hex()}-{SPAN.hex()}")
    assert (row.dimensions, row.measures) == (("shop", "server", "ok"), (2_500_000,))


def test_what_was_sent_can_be_asked_for(tmp_path: Path) -> None:
    """Through the whole mill: a retried request changes nothing, and the metrics are those of its spans."""
    (tmp_path / "tidemill.yaml").write_text(read_template("events"), encoding="utf-8")
    spans = [
        {
            "span_id": bytes([n] * 8),
            "kind": 2,
            "end_time_unix_nano": START + n * 1_000_000,
            "status": {"code": n % 3},
        }
        for n in range(1, 7)
    ]
    with Mill.open(tmp_path, clock=FakeClock(NOW)) as mill:
        for request in (traces_request(*spans), traces_request(*spans[:3])):
            found = read(request, stream=mill.project.stream("traces"), tenant="acme")
            assert found.submission is not None
            mill.land("traces", found.submission.content, format="ndjson")
        mill.tick(NOW)
        counts = [entry.counts for entry in mill.ledger("traces")]
        assert {(one.accepted, one.duplicate) for one in counts if one is not None} == {(6, 0), (0, 3)}
        counted = mill.query(
            "SELECT count, sum(duration_ns) FROM traces GROUP BY resource.service, outcome", tenant="acme"
        )
        assert [tuple(row.values()) for row in counted.to_pylist()] == [
            ("shop", "error", 2, 7_000_000),
            ("shop", "ok", 2, 5_000_000),
            ("shop", "unset", 2, 9_000_000),
        ]
        slowest = mill.query("SELECT count, max FROM traces.duration", tenant="acme").to_pylist()
        assert [tuple(row.values()) for row in slowest] == [(6, 6_000_000)]
        failed = mill.search("traces", "WHERE outcome = 'error' AND resource.service = 'shop'", tenant="acme")
        assert isinstance(failed, SearchPage)
        assert {row["event_id"][-2:] for row in failed.rows.to_pylist()} == {"02", "05"}
