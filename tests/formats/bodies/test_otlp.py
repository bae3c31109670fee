"""OTLP logs and traces as records: the same from JSON and protobuf, the same when they are sent again."""

from __future__ import annotations

import json
import re

import orjson
import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from tests.support.otlp_requests import (
    SPAN,
    START,
    TRACE,
    logs_request,
    read,
    records,
    stream_of,
    traces_request,
)

from tidemill.config.gateway import Requests
from tidemill.formats.bodies.otlp import otlp_answer, otlp_media, otlp_status, read_otlp
from tidemill.model.errors import ForbiddenError, InputError, MediaTypeError, TooLargeError

BOTH = pytest.mark.parametrize("media", ["json", "protobuf"])


@BOTH
def test_a_log_is_an_event_in_the_envelope(media):
    request = logs_request(
        {
            "time_unix_nano": START,
            "observed_time_unix_nano": START + 5,
            "severity_number": 17,
            "severity_text": "Error",
            "event_name": "payment.failed",
            "body": "no funds",
            "attributes": {"user.plan": "gold", "tries": 3},
            "trace_id": TRACE,
            "span_id": SPAN,
            "flags": 1,
        },
        resource={"service.name": "shop", "host.name": "a"},
    )
    [record] = records(read(request, media, tenant="acme"))
    event_id = record.pop("event_id")
    assert re.fullmatch("[0-9a-f]{64}", event_id)
    assert record == {
        "ts": "2024-01-15T14:00:00.000000123Z",
        "event_type": "payment.failed",
        "tenant": "acme",
        "severity": "ERROR",
        "body": "no funds",
        "severity_number": 17,
        "severity_text": "Error",
        "trace_id": "0102030405060708090a0b0c0d0e0f10",
        "span_id": "0102030405060708",
        "flags": 1,
        "observed_ns": START + 5,
        "attributes": {"user.plan": "gold", "tries": 3},
        "resource": {"service": "shop", "attributes": {"service.name": "shop", "host.name": "a"}},
        "scope": {"name": "lib"},
    }


@BOTH
def test_a_span_is_an_event_in_the_envelope(media):
    request = traces_request(
        {
            "parent_span_id": SPAN[::-1],
            "trace_state": "a=b",
            "name": "GET /",
            "kind": 2,
            "end_time_unix_nano": START + 1_500,
            "attributes": {"http.route": "/"},
            "status": {"code": 2, "message": "gone"},
            "events": [{"name": "retry", "time_unix_nano": START + 7}],
            "links": [{"trace_id": TRACE, "span_id": SPAN}],
            "dropped_links_count": 4,
        }
    )
    [record] = records(read(request, media))
    assert record == {
        "event_id": "0102030405060708090a0b0c0d0e0f10-0102030405060708",
        "ts": "2024-01-15T14:00:00.000000123Z",
        "event_type": "span",
        "tenant": "default",
        "name": "GET /",
        "kind": "server",
        "duration_ns": 1_500,
        "outcome": "error",
        "outcome_message": "gone",
        "trace_id": TRACE.hex(),
        "span_id": SPAN.hex(),
        "parent_span_id": "0807060504030201",
        "trace_state": "a=b",
        "attributes": {"http.route": "/"},
        "events": [{"name": "retry", "time_ns": START + 7}],
        "links": [{"trace_id": TRACE.hex(), "span_id": SPAN.hex()}],
        "dropped_links": 4,
        "resource": {"service": "shop", "attributes": {"service.name": "shop"}},
    }


VALUES = {
    "text": "é\n", "empty": "", "yes": True, "no": False, "zero": 0, "least": -(2**63), "most": 2**63 - 1,
    "half": 0.5, "whole": 5.0, "nan": float("nan"), "inf": float("inf"), "-inf": float("-inf"),
    "bytes": b"\xff\xfe\0", "list": [1, "a", None, [b"\1"]], "map": {"a.b": {"c": [True]}}, "none": None,
    "empty list": [], "empty map": {},
}  # fmt: skip
PLAIN = {
    **VALUES, "nan": "NaN", "inf": "Infinity", "-inf": "-Infinity", "bytes": "//4A",
    "list": [1, "a", None, ["AQ=="]],
}  # fmt: skip


@BOTH
@pytest.mark.parametrize("name", VALUES)
def test_a_value_of_any_kind_is_kept(media, name):
    request = logs_request(
        {"time_unix_nano": START, "attributes": {"x.y": VALUES[name]}, "body": VALUES[name]},
        resource={"deep": VALUES[name]},
    )
    [record] = records(read(request, media))
    assert record["attributes"] == {"x.y": PLAIN[name]}
    assert record["resource"]["attributes"] == {"deep": PLAIN[name]}
    assert record.get("body") == PLAIN[name]
    assert ("body" in record) == (PLAIN[name] is not None)
    assert type(record["attributes"]["x.y"]) is type(PLAIN[name])


def json_log(**fields: object) -> bytes:
    log = {"timeUnixNano": str(START), **fields}
    return json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [log]}]}]}).encode()


def read_json(content: bytes, **said):
    given = {"stream": stream_of(), "limits": Requests(), "tenant": None, "source": "otlp", **said}
    return read_otlp(content, "json", "logs", **given)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({"intValue": "7"}, 7),
        ({"intValue": 7}, 7),
        ({"intValue": 7.0}, 7),
        ({"intValue": "-7"}, -7),
        ({"doubleValue": 7}, 7.0),
        ({"doubleValue": "0.5"}, 0.5),
        ({"bytesValue": "//4A"}, "//4A"),
        ({"bytesValue": "__4A"}, "//4A"),
        ({"bytesValue": "AQ"}, "AQ=="),
        ({"newValue": 1}, None),
        ({"newValue": 1, "stringValue": "a"}, "a"),
        ({"stringValue": None}, None),
        ({"arrayValue": {}}, []),
        ({"kvlistValue": {"values": None}}, {}),
        ({}, None),
        (None, None),
    ],
)
def test_json_is_read_in_all_its_spellings(value, kept):
    [record] = records(read_json(json_log(attributes=[{"key": "x", "value": value}])))
    assert record["attributes"] == {"x": kept}
    assert type(record["attributes"]["x"]) is type(kept)


def test_unknown_members_and_nulls_are_ignored():
    content = orjson.dumps(
        {
            "resourceLogs": [
                {
                    "resource": None,
                    "new": 1,
                    "scopeLogs": [
                        {"scope": None, "logRecords": [{"timeUnixNano": START, "new": {}, "traceId": None}]}
                    ],
                }
            ],
            "new": [],
        }
    )
    [record] = records(read_json(content))
    assert set(record) == {"event_id", "ts", "event_type", "tenant", "severity"}


def test_hex_ids_are_read_in_any_case():
    [record] = records(read_json(json_log(traceId="AB" * 16, spanId="cD" * 8)))
    assert (record["trace_id"], record["span_id"]) == ("ab" * 16, "cd" * 8)


@BOTH
def test_the_time_of_a_log_is_that_of_its_event_or_else_when_it_was_seen(media):
    request = logs_request(
        {"time_unix_nano": START, "observed_time_unix_nano": START + 1_000},
        {"observed_time_unix_nano": START + 2_000},
    )
    assert [record["ts"] for record in records(read(request, media))] == [
        "2024-01-15T14:00:00.000000123Z",
        "2024-01-15T14:00:00.000002123Z",
    ]


@pytest.mark.parametrize(
    ("number", "text", "severity"),
    [(1, "", "TRACE"), (8, "x", "DEBUG"), (9, "Information", "INFO"), (16, "", "WARN"), (24, "", "FATAL"),
     (0, "notice", "NOTICE"), (0, "", "UNSPECIFIED"), (25, "odd", "ODD")],
)  # fmt: skip
def test_severity_is_one_word_for_each_range(number, text, severity):
    record = {"time_unix_nano": START, "severity_number": number, "severity_text": text}
    assert records(read(logs_request(record)))[0]["severity"] == severity


@pytest.mark.parametrize(("kind", "word"), [(0, "unspecified"), (1, "internal"), (5, "consumer"), (9, "9")])
def test_kinds_are_words_and_new_ones_stay_numbers(kind, word):
    assert records(read(traces_request({"kind": kind})))[0]["kind"] == word


def test_a_span_without_an_end_has_no_duration():
    assert "duration_ns" not in records(read(traces_request({})))[0]
    assert records(read(traces_request({"end_time_unix_nano": START})))[0]["duration_ns"] == 0


# -- ids


@BOTH
def test_a_request_that_is_sent_again_gives_the_same_bytes(media):
    log = {"time_unix_nano": START, "body": {"b": 1, "a": [2.5]}}
    request = logs_request(log, log, {**log, "body": "x"})
    first, second = read(request, media), read(request, media)
    assert first.submission == second.submission


@BOTH
def test_identical_logs_of_a_request_are_numbered(media):
    log = {"time_unix_nano": START, "body": "again"}
    ids = [
        record["event_id"]
        for record in records(read(logs_request(log, {**log, "flags": 1}, log, log), media))
    ]
    assert ids[2:] == [f"{ids[0]}#2", f"{ids[0]}#3"]
    assert len(set(ids)) == 4


def test_logs_that_differ_by_less_than_the_declared_type_keeps_have_ids_of_their_own():
    stream = stream_of("""
version: 1
streams:
  logs:
    schema: {event_id: string, ts: integer}
    event_time: {column: ts, type: unixtimestamp_s}
    identity: event_id
""")
    request = logs_request({"time_unix_nano": START}, {"time_unix_nano": START + 1})
    first, second = records(read(request, stream=stream))
    assert first["ts"] == second["ts"] == START // 10**9
    assert first["event_id"].partition("#")[0] != second["event_id"].partition("#")[0]


def test_the_order_of_attributes_is_no_part_of_an_id():
    one = records(
        read(logs_request({"time_unix_nano": START, "attributes": {"a": 1, "b": {"c": 1, "d": 2}}}))
    )
    other = records(
        read(logs_request({"time_unix_nano": START, "attributes": {"b": {"d": 2, "c": 1}, "a": 1}}))
    )
    assert one[0]["event_id"] == other[0]["event_id"]


# -- what the stream declares

DECLARED = """
version: 1
streams:
  logs:
    schema: {"meta.id": string, "meta.at": integer, what: string, "resource.owner": string}
    event_time: {column: meta.at, type: unixtimestamp_ns}
    event_type: {column: what, allowed: [log, span]}
    identity: meta.id
    tenant: {column: resource.owner}
"""


@BOTH
def test_columns_are_where_the_stream_declares_them(media):
    first, second = records(
        read(traces_request({}, {"span_id": SPAN[::-1]}), media, stream=stream_of(DECLARED), tenant="acme")
    )
    assert first["meta"] == {"id": f"{TRACE.hex()}-{SPAN.hex()}", "at": START}
    assert second["meta"]["id"] == f"{TRACE.hex()}-{SPAN[::-1].hex()}"
    assert first["what"] == "span"
    assert first["resource"] == {"service": "shop", "attributes": {"service.name": "shop"}, "owner": "acme"}


def test_an_id_does_not_depend_on_where_columns_are():
    request = logs_request({"time_unix_nano": START, "body": "x"})
    [here], [there] = records(read(request)), records(read(request, stream=stream_of(DECLARED)))
    assert here["event_id"] == there["meta"]["id"]


def test_what_a_record_has_is_not_written_over():
    """`resource.service` may be the tenant, the name of a span its type, and its ids its identity."""
    stream = stream_of("""
version: 1
streams:
  logs:
    schema: {trace_id: string, span_id: string, name: string, "resource.service": string}
    event_type: {column: name, allowed: [checkout]}
    identity: [trace_id, span_id]
    tenant: {column: resource.service}
""")
    [record] = records(read(traces_request({"name": "checkout"}), stream=stream))
    assert (record["name"], record["trace_id"]) == ("checkout", TRACE.hex())
    assert record["resource"]["service"] == "shop"
    with pytest.raises(ForbiddenError, match="names tenant 'shop'"):
        read(traces_request({"name": "checkout"}), stream=stream, tenant="acme")
    assert read(traces_request({"name": "checkout"}), stream=stream, tenant="shop").submission is not None


def test_an_identity_that_a_record_has_not_is_a_reason_to_reject_it():
    stream = stream_of("""
version: 1
streams:
  logs: {schema: {trace_id: string, span_id: string}, identity: [trace_id, span_id]}
""")
    found = read(logs_request({"time_unix_nano": START}), stream=stream)
    assert (found.submission, found.rejected) == (None, 1)
    assert "it has no trace_id, which is part of the identity" in found.message


# -- tenants


@pytest.mark.parametrize(
    ("resource", "tenant"),
    [({"tenant.id": "acme"}, "acme"), ({"tenant": "globex"}, "globex"), ({"tenant.id": 5}, "default"),
     ({}, "default")],
)  # fmt: skip
def test_without_a_tenant_of_a_token_the_resource_may_name_one(resource, tenant):
    request = logs_request({"time_unix_nano": START}, resource=resource)
    assert records(read(request))[0]["tenant"] == tenant


@pytest.mark.parametrize("resource", [{}, {"tenant.id": "acme"}, {"tenant": "acme"}, {"tenant.id": 5}])
def test_the_tenant_of_a_token_is_the_tenant_of_all_that_it_brings(resource):
    found = read(logs_request({"time_unix_nano": START}, resource=resource), tenant="acme")
    assert records(found)[0]["tenant"] == "acme"
    assert (found.submission.tenant, found.submission.unnamed) == ("acme", ())


@pytest.mark.parametrize("attribute", ["tenant.id", "tenant"])
@pytest.mark.parametrize("tenant", ["{column: tenant}", "{value: acme}"])
def test_a_resource_that_names_another_tenant_than_the_token_is_forbidden(attribute, tenant):
    stream = stream_of(
        f"version: 1\nstreams: {{logs: {{schema: {{tenant: string}}, gate: none, tenant: {tenant}}}}}"
    )
    request = logs_request({"time_unix_nano": START}, resource={attribute: "globex"})
    with pytest.raises(ForbiddenError, match=f"resource attribute {attribute} names tenant 'globex'"):
        read(request, stream=stream, tenant="acme")
    assert read(request, stream=stream, tenant=None).submission is not None


def test_a_stream_of_another_tenant_is_forbidden():
    stream = stream_of("version: 1\nstreams: {logs: {schema: {a: any}, gate: none, tenant: {value: globex}}}")
    with pytest.raises(ForbiddenError):
        read(logs_request({"time_unix_nano": START}), stream=stream, tenant="acme")
    [record] = records(read(logs_request({"time_unix_nano": START}), stream=stream, tenant="globex"))
    assert "tenant" not in record


# -- partial success

GOOD = {"time_unix_nano": START}


@BOTH
@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (logs_request(GOOD, {}, GOOD), "it has neither a time nor an observed time"),
        (logs_request(GOOD, {**GOOD, "trace_id": b"\1" * 15}, GOOD), "traceId is not 16 bytes long"),
        (logs_request(GOOD, {**GOOD, "span_id": b"\1" * 16}, GOOD), "spanId is not 8 bytes long"),
        (traces_request({}, {"trace_id": b""}, {}), "a span needs a trace id and a span id"),
        (traces_request({}, {"trace_id": b"\0" * 16}, {}), "a span needs a trace id and a span id"),
        (traces_request({}, {"span_id": b"\1"}, {}), "spanId is not 8 bytes long"),
        (traces_request({}, {"parent_span_id": b"\1"}, {}), "parentSpanId is not 8 bytes long"),
        (traces_request({}, {"start_time_unix_nano": 0}, {}), "it has no start time"),
        (traces_request({}, {"links": [{"trace_id": b"x"}]}, {}), "traceId is not 16 bytes long"),
        (traces_request({}, {"start_time_unix_nano": 2**64 - 1, "end_time_unix_nano": 1}, {}), "64-bit"),
    ],
    ids=range(10),
)
def test_a_record_that_can_be_no_event_is_rejected_and_the_rest_goes_on(media, request_, reason):
    found = read(request_, media)
    assert found.rejected == 1
    assert found.submission.records == 2
    kind = "log record" if "log_records" in str(request_) else "span"
    assert found.message.startswith(f"rejected 1 of 3 {kind}s; {kind} 2: ")
    assert reason in found.message


def test_a_message_tells_of_the_first_few():
    found = read(logs_request(*[{}] * 20))
    assert found.submission is None
    assert found.message.count("log record ") == 3
    assert found.message.endswith("; …")
    assert found.message.startswith("rejected 20 of 20 log records; log record 1: ")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"timeUnixNano": "soon"}, "timeUnixNano is not an integer in range"),
        ({"timeUnixNano": -1}, "timeUnixNano is not an integer in range"),
        ({"timeUnixNano": 1.5}, "timeUnixNano is not an integer in range"),
        ({"timeUnixNano": str(2**64)}, "timeUnixNano is not an integer in range"),
        ({"timeUnixNano": True}, "timeUnixNano is not an integer in range"),
        ({"severityNumber": "SEVERITY_NUMBER_INFO"}, "severityNumber is not an integer in range"),
        ({"traceId": "xyz"}, "traceId is not 16 bytes long"),
        ({"traceId": "é" * 32}, "traceId is not 16 bytes long"),
        ({"traceId": " ".join(["ab"] * 16)}, "traceId is not 16 bytes long"),
        ({"traceId": 5}, "traceId is not a string"),
        ({"attributes": {}}, "attributes is not an array"),
        ({"attributes": [5]}, "an element of attributes is not an object"),
        ({"body": "text"}, "a value is not an object"),
        ({"body": {"intValue": str(2**63)}}, "intValue is not an integer in range"),
        ({"body": {"doubleValue": "x"}}, "'x' is not a double"),
        ({"body": {"doubleValue": True}}, "doubleValue is not a number"),
        ({"body": {"boolValue": 1}}, "boolValue is neither true nor false"),
        ({"body": {"stringValue": 1}}, "stringValue is not a string"),
        ({"body": {"bytesValue": "é"}}, "bytesValue is not in base64"),
    ],
)
def test_a_record_in_json_that_is_not_as_specified_is_rejected_alone(fields, reason):
    found = read_json(json_log(**fields))
    assert (found.submission, found.rejected) == (None, 1)
    assert reason in found.message


@BOTH
@pytest.mark.parametrize("request_", [logs_request(), traces_request()])
def test_an_empty_request_is_fine_and_lands_nothing(media, request_):
    found = read(request_, media)
    assert (found.submission, found.rejected, found.message) == (None, 0, "")


@pytest.mark.parametrize(
    ("content", "media"), [(b"", "protobuf"), (b"{}", "json"), (b'{"resourceLogs":[]}', "json")]
)
def test_nothing_at_all_is_an_empty_request(content, media):
    found = read_otlp(content, media, "logs", stream_of(), Requests(), None, "otlp")
    assert (found.submission, found.rejected, found.message) == (None, 0, "")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the body is not JSON"),
        (b"[]", "the body is not an object"),
        (b'{"resourceLogs":[', "line 1 column"),
        (b'{"resourceLogs":5}', "resourceLogs is not an array"),
        (b'{"resourceLogs":[5]}', "an element of resourceLogs is not an object"),
        (b'{"resourceLogs":[{"resource":5}]}', "resource is not an object"),
        (b'{"resourceLogs":[{"scopeLogs":[{"logRecords":{}}]}]}', "logRecords is not an array"),
        (b'{"a":"\xff"}', "the body is not JSON"),
    ],
)
def test_a_request_that_is_not_one_is_refused_whole(content, message):
    with pytest.raises(InputError, match=message) as raised:
        read_json(content)
    assert raised.value.hint


def test_protobuf_that_is_none_is_refused_whole():
    content = logs_request(GOOD).SerializeToString()
    for damaged in (content[:-1], b"\xff" * 10, b'{"resourceLogs":[]}'):
        with pytest.raises(InputError, match="not the expected protobuf message"):
            read_otlp(damaged, "protobuf", "logs", stream_of(), Requests(), None, "otlp")


# -- limits


@BOTH
def test_more_events_than_allowed_are_too_many(media):
    request = logs_request(GOOD, {}, GOOD)
    assert read(request, media, limits=Requests(events=3)).rejected == 1
    with pytest.raises(TooLargeError) as raised:
        read(request, media, limits=Requests(events=2))
    assert "gateway.requests.events" in raised.value.hint


@BOTH
def test_a_text_beyond_the_limit_is_too_long(media):
    request = logs_request(GOOD, {**GOOD, "body": "x" * 65})
    assert read(request, media, limits=Requests(field=65)).submission.records == 2
    with pytest.raises(TooLargeError) as raised:
        read(request, media, limits=Requests(field=64))
    assert (raised.value.where, "gateway.requests.field" in raised.value.hint) == ("event 2", True)


def nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


@BOTH
def test_an_event_beyond_the_limit_is_too_deep(media):
    limits = Requests(depth=10)
    fits = logs_request(GOOD, {**GOOD, "body": nested(9)})
    assert read(fits, media, limits=limits).submission.records == 2
    for levels in (10, 15, 30):
        with pytest.raises(TooLargeError) as raised:
            read(logs_request(GOOD, {**GOOD, "body": nested(levels)}), media, limits=limits)
        assert (raised.value.where, "gateway.requests.depth" in raised.value.hint) == ("event 2", True)


def test_what_is_nested_without_end_is_refused_however_deep_is_allowed():
    limits = Requests(depth=512)
    value: object = {"intValue": 1}
    for _ in range(200):
        value = {"arrayValue": {"values": [value]}}
    assert "nested too deep" in read_json(json_log(body=value), limits=limits).message
    for deep in (b'{"resourceLogs":' + b"[" * 5000, b'{"a":' * 5000):
        with pytest.raises(InputError):
            read_json(deep, limits=limits)


@BOTH
def test_a_resource_that_would_be_written_a_thousand_times_is_too_much(media):
    request = logs_request(*[GOOD] * 1000, resource={"x": "y" * 2000})
    assert read(request, media).submission.records == 1000
    with pytest.raises(TooLargeError, match="each with its resource") as raised:
        read(request, media, limits=Requests(body=1 << 20))
    assert "gateway.requests.body" in raised.value.hint


def test_a_body_beyond_the_limit_is_not_even_read():
    with pytest.raises(TooLargeError):
        read_json(b" " * 2000, limits=Requests(body=1024))


# -- answers


@pytest.mark.parametrize(
    ("said", "media"),
    [("application/json", "json"), ("application/x-protobuf", "protobuf"),
     ("Application/JSON; charset=utf-8", "json")],
)  # fmt: skip
def test_the_media_type_says_what_it_is_in(said, media):
    assert otlp_media(said) == media


@pytest.mark.parametrize("said", [None, "", "text/plain", "application/protobuf+x", "application/x-ndjson"])
def test_other_media_types_are_refused_by_name(said):
    with pytest.raises(MediaTypeError) as raised:
        otlp_media(said)
    assert raised.value.hint == "send application/json or application/x-protobuf"


def test_success_is_an_answer_without_a_partial_success():
    assert otlp_answer("logs", "json", 0, "") == b"{}"
    answer = ExportLogsServiceResponse.FromString(otlp_answer("logs", "protobuf", 0, ""))
    assert not answer.HasField("partial_success")


def test_partial_success_tells_how_many_were_rejected_and_why():
    assert orjson.loads(otlp_answer("logs", "json", 2, "why")) == {
        "partialSuccess": {"rejectedLogRecords": "2", "errorMessage": "why"}
    }
    assert orjson.loads(otlp_answer("traces", "json", 2, "why")) == {
        "partialSuccess": {"rejectedSpans": "2", "errorMessage": "why"}
    }
    logs = ExportLogsServiceResponse.FromString(otlp_answer("logs", "protobuf", 2, "why"))
    assert (logs.partial_success.rejected_log_records, logs.partial_success.error_message) == (2, "why")
    traces = ExportTraceServiceResponse.FromString(otlp_answer("traces", "protobuf", 2, "why"))
    assert (traces.partial_success.rejected_spans, traces.partial_success.error_message) == (2, "why")


@pytest.mark.parametrize("message", ["", "é", "x" * 300, "y" * 20_000])
@pytest.mark.parametrize("code", [0, 3, 14, 300])
def test_a_refusal_is_a_status(code, message):
    document = Status.FromString(otlp_status("protobuf", code, message))
    assert (document.code, document.message) == (code, message)
    assert orjson.loads(otlp_status("json", code, message)) == {"code": code, "message": message}
