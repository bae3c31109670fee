"""Vectors, chains, deltas and results over HTTP and by the client, as the CLI says them; and a flush."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.commands import run_command

from tidemill.client import Client

PROJECT = """
version: 1
engine: {cores: 2, memory: 1g}
gateway:
  window: {kind: fixed, size: 36500d}
  triggers: {rate_change: null}
  %(gateway)s
streams:
  embeddings:
    kind: delta
    vector: {dimension: 2}
    schema: {ts: {type: string, required: true}}
    event_time: {column: ts, type: iso8601}
    tenant: {value: acme}
    aggregation_span: 1m
    coverage: watermark
  visits:
    schema:
      event_id: {type: string, required: true}
      ts: {type: string, required: true}
      user: string
    event_time: {column: ts, type: iso8601}
    identity: event_id
    tenant: {value: acme}
    windows:
      minutes: {kind: tumbling, size: 1m, group_by: user, aggregates: {n: count}}
"""


def delta(number: int, op: str, values: list[float], minute: int) -> dict[str, object]:
    ts = f"2026-01-05T10:{minute:02}:00Z"
    return {"delta_id": f"d{number}", "vector_id": "a/1", "op": op, "values": values, "ts": ts}


@pytest.fixture
def full(serving):
    served = serving(text=PROJECT)
    deltas = [delta(1, "replace", [1.0, 2.0], 0), delta(2, "add", [0.5, 0.25], 5)]
    visits = [{"event_id": str(n), "ts": f"2026-01-05T10:0{n}:30Z", "user": "u"} for n in range(3)]
    assert served.send("embeddings", deltas).status_code == 202
    assert served.send("visits", visits).status_code == 202
    document = served.http.post("/v1/flush").json()
    assert [(one["stream"], one["trigger"], one["events"]) for one in document["windows"]] == [
        ("embeddings", "explicit", 2),
        ("visits", "explicit", 3),
    ]
    assert document["pending"] == 0
    served.settle()
    return served


def said_by_cli(served, *arguments: object) -> dict:
    root = served.mill.project.root
    done = run_command([*arguments, "-p", root, "--output", "json"])
    assert done.code == 0, done.err
    return done.json


def test_what_the_command_line_says_http_and_the_client_say_too(full) -> None:
    with Client(full.url) as client:
        for output, asked, command in (
            (client.vector("embeddings", "a/1"), "vectors/a%2F1", ("vector", "embeddings", "a/1")),
            (
                client.vector("embeddings", "a/1", "2026-01-05T10:04:00Z"),
                "vectors/a%2F1?at=2026-01-05T10:04:00Z",
                ("vector", "embeddings", "a/1", "--at", "2026-01-05T10:04:00Z"),
            ),
            (client.chain("embeddings", "a/1"), "chains/a%2F1", ("chain", "embeddings", "a/1")),
            (
                client.deltas("embeddings", "1h"),
                "deltas?window=1h",
                ("deltas", "embeddings", "--window", "1h"),
            ),
            (
                client.deltas("embeddings", limit=7),
                "deltas?limit=7",
                ("deltas", "embeddings", "--limit", "7"),
            ),
        ):
            assert full.http.get(f"/v1/streams/embeddings/{asked}").json() == output
            assert said_by_cli(full, *command) == output
        for output, asked, command in (
            (client.results("visits"), "results", ("results", "visits")),
            (
                client.results("visits", "minutes", limit=1),
                "results/minutes?limit=1",
                ("results", "visits", "minutes", "--limit", "1"),
            ),
        ):
            assert full.http.get(f"/v1/streams/visits/{asked}").json() == output
            assert said_by_cli(full, *command) == output
        (batch,) = client.deltas("embeddings")["windows"]
        assert (batch["start"], batch["revision"], batch["received"]) == ("2026-01-05T10:00:00Z", 1, 1)
        assert client.vector("embeddings", "a/1")["values"] == [1.5, 2.25]
        assert client.vector("embeddings", "a/1", "2026-01-05T10:04:00Z")["values"] == [1.0, 2.0]
        (result,) = client.results("visits", "minutes", limit=1)["results"]
        assert (result["start"], result["values"]) == ("2026-01-05T10:01:00Z", {"n": 1})
        assert client.flush("visits") == {"windows": [], "pending": 0}


def test_a_token_reads_the_vectors_and_results_of_its_own_tenant(full) -> None:
    theirs = full.token("read", tenant="globex")
    for path in ("embeddings/vectors/a%2F1", "embeddings/chains/a%2F1", "visits/results/minutes"):
        assert full.http.get(f"/v1/streams/{path}", headers=theirs).status_code == 404
    mine = full.token("read", tenant="acme")
    assert full.http.get("/v1/streams/visits/results/minutes", headers=mine).json()["results"]
    assert full.http.get("/v1/streams/visits/results/none", headers=mine).status_code == 404


def test_the_command_line_flushes_a_gateway_that_runs(full, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidemill.ingest.gateway.status import write_status

    full.gateway.address = full.url
    full.send("visits", {"event_id": "later", "ts": "2026-01-05T10:09:00Z", "user": "u"})
    write_status(Path(full.mill.project.warehouse), full.gateway.status())
    (output,) = said_by_cli(full, "flush", "visits", "--gateway")["gateways"]
    assert [(one["stream"], one["events"]) for one in output["windows"]] == [("visits", 1)]
