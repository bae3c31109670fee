"""Clients that others made: curl, the OpenTelemetry SDK, the cloudevents package."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
from datetime import UTC, datetime

import httpx
import pytest
from cloudevents.core.bindings.http import to_binary, to_structured
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from tests.support.patience import PATIENCE

RESOURCE = Resource.create({"service.name": "shop"})
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def curl(*arguments: str) -> tuple[int, str]:
    """Status and body."""
    done = subprocess.run(
        ["curl", "-sS", "-w", "\n%{http_code}", *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    body, _, status = done.stdout.rpartition("\n")
    return int(status), body


def payloads(served, stream: str) -> list[dict[str, object]]:
    """What is accepted, as it was sent."""
    served.settle()
    rows = [batch for batch in served.mill.tail(stream, ordered=False) if hasattr(batch, "schema")]
    return [json.loads(text) for batch in rows for text in batch.column("payload").to_pylist()]


@needs_curl
def test_curl_sends_one_event_and_waits(served):
    with served.ticking():
        status, body = curl(
            f"{served.url}/v1/streams/requests/events?wait=1", "--json", json.dumps(served.request("a"))
        )
    assert status == 200
    assert json.loads(body)["counts"] == {"accepted": 1}


@needs_curl
def test_curl_sends_a_gzipped_file_of_lines(served, tmp_path):
    file = tmp_path / "events.ndjson"
    file.write_text("".join(json.dumps(served.request(f"e{n}")) + "\n" for n in range(3000)))
    subprocess.run(["gzip", str(file)], check=True)
    status, body = curl(
        f"{served.url}/v1/streams/requests/events",
        *("-H", "Content-Type: application/x-ndjson", "-H", "Content-Encoding: gzip"),
        *("--data-binary", f"@{file}.gz"),
    )
    assert (status, json.loads(body)["events"]) == (202, 3000)
    served.settle()
    assert served.mill.ledger("requests")[0].counts.accepted == 3000


@needs_curl
def test_curl_shows_a_problem_document(served):
    status, body = curl(f"{served.url}/v1/streams/requests/events", "-d", "a=b")
    assert status == 415
    assert json.loads(body)["hint"].startswith("set Content-Type to one of application/json, ")


@pytest.mark.filterwarnings("ignore:.LoggingHandler")
@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_the_opentelemetry_sdk_exports_logs(served, compression):
    exporter = OTLPLogExporter(endpoint=f"{served.url}/v1/otlp/v1/logs", compression=compression)
    provider = LoggerProvider(resource=RESOURCE)
    provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
    logger = logging.getLogger("shop.checkout")
    handler = LoggingHandler(logger_provider=provider)
    logger.addHandler(handler)
    try:
        logger.warning("sold out", extra={"article": 7})
        logger.error("payment failed")
    finally:
        logger.removeHandler(handler)
        provider.shutdown()
    found = payloads(served, "logs")
    assert sorted(record["body"] for record in found) == ["payment failed", "sold out"]
    (sold,) = [record for record in found if record["body"] == "sold out"]
    assert sold["resource"]["service"] == "shop"
    assert sold["attributes"]["article"] == 7
    assert len({record["event_id"] for record in found}) == 2


def test_the_opentelemetry_sdk_exports_traces(served):
    exporter = OTLPSpanExporter(endpoint=f"{served.url}/v1/otlp/v1/traces")
    provider = TracerProvider(resource=RESOURCE)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer = provider.get_tracer("shop")
    with tracer.start_as_current_span("checkout") as outer, tracer.start_as_current_span("pay") as inner:
        inner.set_attribute("amount", 12)
    assert provider.force_flush()
    assert exporter.export([outer, inner]) is SpanExportResult.SUCCESS  # again: they are duplicates
    provider.shutdown()
    ids = {
        f"{span.get_span_context().trace_id:032x}-{span.get_span_context().span_id:016x}"
        for span in (outer, inner)
    }
    found = payloads(served, "traces")
    assert {record["event_id"] for record in found} == ids
    assert {record["name"] for record in found} == {"checkout", "pay"}
    assert len(found) == 2


def test_an_exporter_is_told_of_a_wrong_token_in_its_own_encoding(served):
    wrong = served.token("read")
    request = ExportLogsServiceRequest().SerializeToString()
    headers = {"Content-Type": "application/x-protobuf"}
    for given, status in ((headers, 401), (headers | wrong, 403)):
        answer = served.http.post("/v1/otlp/v1/logs", content=request, headers=given)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/x-protobuf"
    exporter = OTLPSpanExporter(endpoint=f"{served.url}/v1/otlp/v1/traces", headers=wrong)
    tracer = TracerProvider().get_tracer("shop")
    with tracer.start_as_current_span("checkout") as span:
        pass
    assert exporter.export([span]) is SpanExportResult.FAILURE


def test_records_that_can_be_no_events_are_a_partial_success(served):
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    records.add(time_unix_nano=1_767_607_200_000_000_000).body.string_value = "fine"
    records.add().body.string_value = "no time"
    headers = {"Content-Type": "application/x-protobuf"}
    answer = served.http.post("/v1/otlp/v1/logs", content=request.SerializeToString(), headers=headers)
    assert answer.status_code == 200
    document = ExportLogsServiceResponse.FromString(answer.content)
    assert document.partial_success.rejected_log_records == 1
    assert document.partial_success.error_message
    assert [record["body"] for record in payloads(served, "logs")] == ["fine"]


def test_otlp_in_json_and_what_is_wrong_with_it(served):
    log = {"timeUnixNano": "1767607200000000000", "body": {"stringValue": "fine"}}
    body = {"resourceLogs": [{"scopeLogs": [{"logRecords": [log]}]}]}
    answer = served.http.post("/v1/otlp/v1/logs", json=body)
    assert (answer.status_code, answer.json()) == (200, {})
    wrong = served.http.post("/v1/otlp/v1/logs", content=b"{", headers={"Content-Type": "application/json"})
    assert wrong.status_code == 400
    assert wrong.headers["content-type"] == "application/json"
    assert wrong.json()["code"] == 3  # INVALID_ARGUMENT
    other = served.http.post("/v1/otlp/v1/logs", content=b"x", headers={"Content-Type": "text/plain"})
    assert (other.status_code, other.json()["code"]) == (415, "media_type")
    assert [record["body"] for record in payloads(served, "logs")] == ["fine"]


def test_otlp_without_a_stream_for_it_names_the_setting(serving):
    served = serving(gateway="otlp: {logs: nowhere}")
    answer = served.http.post("/v1/otlp/v1/logs", json={})
    assert answer.status_code == 404
    assert "gateway.otlp.logs" in answer.json()["message"]


def cloud_event(name: str, **data: object) -> CloudEvent:
    when = datetime(2026, 1, 5, 10, tzinfo=UTC)
    attributes = {"id": name, "source": "/shop", "type": "checkout", "time": when}
    return CloudEvent({**attributes, "specversion": "1.0", "datacontenttype": "application/json"}, data)


def test_the_cloudevents_package_sends_a_structured_event(served):
    message = to_structured(cloud_event("a", tenant="acme"), JSONFormat())
    with served.ticking():
        answer = served.http.post(
            "/v1/streams/events/events?wait=1", content=message.body, headers=message.headers
        )
    assert answer.status_code == 200, answer.text
    assert answer.json()["outcomes"][0]["event_id"] == "/shop#a"
    (found,) = payloads(served, "events")
    assert found["event_type"] == "checkout"
    assert found["ts"].startswith("2026-01-05T10:00:00")


def test_a_batch_of_events_of_the_cloudevents_package(served):
    events = [json.loads(JSONFormat().write(cloud_event(name, tenant="acme"))) for name in "abc"]
    headers = {"Content-Type": "application/cloudevents-batch+json"}
    with served.ticking():
        answer = served.http.post(
            "/v1/streams/events/events?wait=1", content=json.dumps(events), headers=headers
        )
    assert (answer.status_code, answer.json()["counts"]) == (200, {"accepted": 3})


def test_cloudevents_in_binary_mode_are_refused_rather_than_taken_without_their_id(served):
    message = to_binary(cloud_event("a", tenant="acme"), JSONFormat())
    answer = served.http.post("/v1/streams/events/events", content=message.body, headers=message.headers)
    assert answer.status_code == 415
    assert "structured mode" in answer.json()["hint"]


def test_an_asynchronous_client(served):
    import asyncio

    async def send() -> list[int]:
        async with httpx.AsyncClient(base_url=served.url) as http:
            posts = [
                http.post("/v1/streams/requests/events", json=served.request(f"e{n}")) for n in range(50)
            ]
            return [answer.status_code for answer in await asyncio.gather(*posts)]

    assert asyncio.run(send()) == [202] * 50
    served.settle()
    assert sum(entry.counts.accepted for entry in served.mill.ledger("requests")) == 50
