"""OTLP requests of any content: JSON and protobuf agree to the byte, and damage is an error that is told."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples
from tests.support.otlp_requests import as_json, logs_request, read, records, stream_of, traces_request

from tidemill.config.gateway import Requests
from tidemill.formats.bodies.otlp import read_otlp
from tidemill.model.errors import TidemillError

LIMITS = Requests()
STREAM = stream_of()

texts = st.text(max_size=6)
keys = st.sampled_from(["a", "a.b", "service.name", "tenant.id", "é"]) | texts
plain = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(width=64)
    | texts
    | st.binary(max_size=5)
)
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=6
)
attributes = st.dictionaries(keys, values, max_size=3)
nanos = st.sampled_from([0, 1, 10**9 + 1, 1_705_327_200_000_000_123, 2**63, 2**64 - 1]) | st.integers(
    0, 2**64 - 1
)
counts = st.integers(0, 2**32 - 1)


def ids(length: int) -> st.SearchStrategy[bytes]:
    return st.sampled_from([b"", bytes(length), b"\1" * length, b"\1" * (length - 1)]) | st.binary(
        min_size=length, max_size=length
    )


def fields(**members: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    return st.fixed_dictionaries({}, optional=members)


logs = st.builds(
    lambda found, resource: logs_request(*found, resource=resource),
    st.lists(
        fields(
            time_unix_nano=nanos,
            observed_time_unix_nano=nanos,
            severity_number=st.integers(-1, 30),
            severity_text=texts,
            event_name=texts,
            body=values,
            attributes=attributes,
            dropped_attributes_count=counts,
            flags=counts,
            trace_id=ids(16),
            span_id=ids(8),
        ),
        max_size=4,
    ),
    attributes,
)
spans = st.builds(
    lambda found, resource: traces_request(*found, resource=resource),
    st.lists(
        fields(
            trace_id=ids(16),
            span_id=ids(8),
            parent_span_id=ids(8),
            trace_state=texts,
            flags=counts,
            name=texts,
            kind=st.integers(-1, 9),
            start_time_unix_nano=nanos,
            end_time_unix_nano=nanos,
            attributes=attributes,
            events=st.lists(fields(time_unix_nano=nanos, name=texts), max_size=2),
            links=st.lists(fields(trace_id=ids(16), span_id=ids(8), trace_state=texts), max_size=2),
            status=fields(code=st.integers(0, 4), message=texts),
        ),
        max_size=4,
    ),
    attributes,
)


@given(request=logs | spans)
@examples(60)
def test_the_same_request_in_json_and_protobuf_gives_the_same_records(request):
    assert read(request, "json") == read(request, "protobuf")


@given(request=logs | spans)
@examples(30)
def test_every_record_is_either_taken_or_rejected_and_ids_are_its_own(request):
    found = read(request)
    wanted = str(request).count("log_records {") + str(request).count("  spans {")
    taken = records(found) if found.submission is not None else []
    assert len(taken) + found.rejected == wanted
    assert all(record["event_id"] and record["ts"] and record["tenant"] for record in taken)
    if "log_records" in str(request):
        assert len({record["event_id"] for record in taken}) == len(taken)


def nothing_but_errors_that_are_told(content: bytes, media: str, signal: str) -> None:
    with contextlib.suppress(TidemillError):
        read_otlp(content, media, signal, STREAM, LIMITS, "acme", "otlp")


anything = st.sampled_from(["logs", "traces"])


@given(content=st.binary(max_size=200), media=st.sampled_from(["json", "protobuf"]), signal=anything)
@examples(100)
def test_random_bytes_raise_nothing_but_errors_that_are_told(content, media, signal):
    nothing_but_errors_that_are_told(content, media, signal)


@given(request=logs | spans, data=st.data(), media=st.sampled_from(["json", "protobuf"]), signal=anything)
@examples(100)
def test_damaged_requests_raise_nothing_but_errors_that_are_told(request, data, media, signal):
    content = bytearray(as_json(request) if media == "json" else request.SerializeToString())
    for _ in range(data.draw(st.integers(0, 3))):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    nothing_but_errors_that_are_told(bytes(content[:cut]), media, signal)


def misspelled(value: object, data: st.DataObject) -> object:
    """The same JSON with some members of another kind."""
    odd = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | texts
        | st.just([])
        | st.just({})
        | st.just([5])
    )
    if data.draw(st.integers(0, 9)) == 0:
        return data.draw(odd)
    if isinstance(value, dict):
        return {key: misspelled(one, data) for key, one in value.items()}
    if isinstance(value, list):
        return [misspelled(one, data) for one in value]
    return value


@given(request=logs | spans, data=st.data())
@examples(60)
def test_json_of_a_wrong_shape_raises_nothing_but_errors_that_are_told(request, data):

    content = json.dumps(misspelled(json.loads(as_json(request)), data)).encode()
    nothing_but_errors_that_are_told(content, "json", "logs" if b"Logs" in content else "traces")


@pytest.mark.parametrize("depth", [50, 99, 150, 5000])
def test_protobuf_nested_without_end_is_refused(depth):
    content = b"\x0a\x01x"
    for _ in range(depth):  # an AnyValue in an ArrayValue in an AnyValue …
        inner = b"\x0a" + _varint(len(content)) + content
        content = b"\x2a" + _varint(len(inner)) + inner
    for tag in (b"\x2a", b"\x12", b"\x12", b"\x0a"):  # body, log_records, scope_logs, resource_logs
        content = tag + _varint(len(content)) + content
    with pytest.raises(TidemillError):
        read_otlp(content, "protobuf", "logs", STREAM, Requests(depth=40), None, "otlp")


def _varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])
