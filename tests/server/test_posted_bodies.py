"""Bodies over a real connection: every media type and encoding, and every limit, told by its name."""

from __future__ import annotations

import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

JSON = {"Content-Type": "application/json"}


def post(served, content, stream="requests", **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return served.http.post(f"/v1/streams/{stream}/events", content=content, headers=JSON | named)


def accepted(served, stream="requests") -> int:
    served.settle()
    return sum(entry.counts.accepted for entry in served.mill.ledger(stream))


@pytest.mark.parametrize("encoding", ["identity", "gzip", "zstd"])
def test_encodings(served, encoding):
    plain = json.dumps([served.request(f"e{n}") for n in range(100)]).encode()
    packed = {"identity": bytes, "gzip": gzip.compress, "zstd": zstandard.compress}[encoding](plain)
    answer = post(served, packed, Content_Encoding=encoding)
    assert (answer.status_code, answer.json()["events"]) == (202, 100)
    assert accepted(served) == 100


def test_columnar_bodies_are_slices_of_their_own(served):
    table = pa.Table.from_pylist([served.request(f"e{n}") for n in range(10)])
    file = io.BytesIO()
    pq.write_table(table, file)
    sent = post(served, file.getvalue(), Content_Type="application/vnd.apache.parquet")
    assert (sent.status_code, sent.json()["events"]) == (202, 10)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    sent = post(served, sink.getvalue(), Content_Type="application/vnd.apache.arrow.stream")
    assert (sent.status_code, sent.json()["events"]) == (202, 10)
    assert accepted(served) == 10  # the second ten are duplicates
    assert sorted(entry.slice.format for entry in served.mill.ledger("requests")) == ["arrow", "parquet"]


def test_a_large_body_is_taken_apart_beside_the_others(served):
    large = [served.request(f"e{n}", api="x" * 200) for n in range(5000)]
    answer = post(served, json.dumps(large).encode())
    assert (answer.status_code, answer.json()["events"]) == (202, 5000)
    assert served.gateway.memory.usage()["requests"][0] == 0
    assert accepted(served) == 5000


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b" " * 9000, "body"),
        (json.dumps([{"a": n} for n in range(11)]).encode(), "events"),
        (b'{"a":{"b":{"c":{"d":{"e":1}}}}}', "depth"),
        (json.dumps({"a": "x" * 101}).encode(), "field"),
    ],
)
def test_limits_are_413_and_say_which(still, body, what):
    answer = post(still, body)
    assert answer.status_code == 413
    document = answer.json()
    assert document["code"] == "too_large"
    assert f"gateway.requests.{what}" in document["hint"] + document["where"]
    assert still.gateway.status().acknowledged == 0


@pytest.mark.parametrize("packed", [gzip.compress, zstandard.compress])
def test_a_bomb_is_413_and_counted_nowhere(still, packed):
    encoding = "gzip" if packed is gzip.compress else "zstd"
    answer = post(still, packed(b"[" + b" " * 7_000_000 + b"]"), Content_Encoding=encoding)
    assert answer.status_code == 413
    assert still.gateway.memory.usage()["requests"][0] == 0


@pytest.mark.parametrize(
    ("headers", "where"),
    [
        ({"Content_Type": "text/plain"}, "Content-Type"),
        ({"Content_Type": "application/json; charset=latin-1"}, "Content-Type"),
        ({"Content_Encoding": "br"}, "Content-Encoding"),
        ({"Content_Encoding": "gzip, gzip"}, "Content-Encoding"),
    ],
)
def test_what_is_not_read_is_415_and_says_what_is(still, headers, where):
    answer = post(still, b"{}", **headers)
    assert answer.status_code == 415
    assert (answer.json()["code"], answer.json()["where"]) == ("media_type", where)
    assert answer.json()["hint"]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"", {}),
        (b"[]", {}),
        (b"{", {}),
        (b"nothing", {}),
        (b'{"a":1}{"b":2}', {}),
        (b"\n\n", {"Content_Type": "application/x-ndjson"}),
        (b"no gzip", {"Content_Encoding": "gzip"}),
        (b"no zstd", {"Content_Encoding": "zstd"}),
        (b"PAR1", {"Content_Type": "application/vnd.apache.parquet"}),
    ],
)
def test_what_cannot_be_used_is_400_and_nothing_of_it_is_taken(still, body, headers):
    answer = post(still, body, **headers)
    assert answer.status_code == 400
    document = answer.json()
    assert document["code"] == "input"
    assert document["hint"]
    assert document["instance"] == "/v1/streams/requests/events"
    assert still.gateway.status().acknowledged == 0


def test_lines_and_objects_are_kept_as_they_were_sent(served):
    odd = b'{ "event_id":"a","ts":"2026-01-05T10:00:00Z", "latency_ms":1.50, "x":"\\u00e9\xc3\xa9" }'
    assert post(served, odd).status_code == 202
    served.settle()
    entry = served.mill.ledger("requests")[0]
    assert (served.mill.project.warehouse / entry.slice.path).read_bytes() == odd + b"\n"


def test_when_memory_runs_out_in_the_middle_of_a_body_it_is_503_and_all_is_given_back(served):
    memory = served.gateway.memory
    others = int(memory.usage()["requests"][1] * 0.75)
    memory.allocate("requests", others)
    answer = post(served, b" " * (10 << 20))
    assert answer.status_code == 503
    assert (answer.json()["code"], answer.json()["retry"]) == ("overloaded", "later")
    assert answer.headers["retry-after"] == "1"
    assert memory.usage()["requests"][0] == others
    assert post(served, json.dumps(served.request("a")).encode()).status_code == 202
