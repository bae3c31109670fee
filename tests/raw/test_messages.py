"""Records of several messages through the whole mill: each happens when the first of its messages does whose
stream has an event time; lateness, rejects and rollups follow from that, as the oracle says."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
import yaml
from tests.support.oracles.oracle import Oracle
from tests.support.oracles.project import section
from tests.support.oracles.stream import OracleField, OracleMessages, OracleMetric, OracleStream

from tidemill.mill import Mill
from tidemill.model.time import HOUR, SECOND, parse_instant
from tidemill.storage.tables.table import Table
from tidemill.testing import FakeClock

TEN = parse_instant("2024-01-01T10:00:00Z")
CLICKS = OracleStream(
    name="clicks",
    fields={"id": OracleField("string"), "ts": OracleField("integer")},
    time_column="ts",
    time_type="unixtimestamp_ms",
    identity=("id",),
    tenant_value="one",
)
ERRORS = OracleStream(
    name="errors",
    fields={"id": OracleField("string"), "meta.at": OracleField("string")},
    time_column="meta.at",
    time_type="iso8601",
    identity=("id",),
    tenant_value="one",
)
PINGS = OracleStream(name="pings", fields={"id": OracleField("string")}, identity=("id",), tenant_value="one")
BUNDLES = OracleStream(
    name="bundles",
    fields={
        "bundle": OracleField("string", required=True),
        "kind": OracleField("string"),
        "bytes": OracleField("integer"),
        "messages": OracleField("array"),
    },
    identity=("bundle",),
    tenant_value="one",
    late_tolerance=2 * SECOND,
    skew_future=HOUR,
    messages=OracleMessages(
        "messages",
        {"clicks": ("ts", "unixtimestamp_ms"), "errors": ("meta.at", "iso8601")},
        body="data",
    ),
    metrics={"bundles": OracleMetric(("kind",), ("bytes",))},
)


def click(at: int) -> dict[str, object]:
    return {"stream": "clicks", "data": {"id": "c", "ts": (TEN + at * SECOND) // 1000}}


def error(at: int) -> dict[str, object]:
    return {"stream": "errors", "data": {"id": "e", "meta": {"at": f"2024-01-01T10:00:{at:02d}Z"}}}


PING: Mapping[str, object] = {"stream": "pings", "data": {"id": "p"}}


def bundle(name: str, *messages: object, **fields: object) -> dict[str, object]:
    return {"bundle": name, "kind": "k", "bytes": len(name), "messages": list(messages), **fields}


FIRST = [
    bundle("click first", click(5), error(1)),
    bundle("error first", error(7), click(2)),
    bundle("behind a ping", PING, {"stream": "nobody's"}, click(9)),
    bundle("no time", PING),
    bundle("bad time", {"stream": "clicks", "data": {"ts": "soon"}}, error(3)),
    bundle("far ahead", click(7201)),
]
SECOND_SLICE = [
    bundle("late", error(7), click(30)),
    bundle("on time", click(8), kind="other"),
    bundle("click first", click(5), error(1)),  # once more: a duplicate
    bundle("error first", error(7), click(3)),  # the same time, another content: a conflict
    bundle("error alone", error(20)),
]


class MillAndOracle:
    """A mill and the oracle, fed alike."""

    def __init__(self, mill: Mill) -> None:
        self.mill = mill
        self.oracle = Oracle(BUNDLES)

    def send(self, records: Sequence[Mapping[str, object]]) -> None:
        lines = [json.dumps(record).encode() for record in records]
        landed = self.mill.land("bundles", b"".join(line + b"\n" for line in lines), format="ndjson")
        self.mill.tick()
        self.oracle.land(landed.entry.id, lines, TEN + HOUR)

    def rows(self, kind: str) -> list[dict[str, object]]:
        table = Table.existing(self.mill.project.warehouse / kind / "bundles")
        assert table is not None
        parts = [pq.read_table(path, partitioning=None) for path in table.snapshot().paths()]
        return [row for part in parts for row in instants(part).to_pylist()]


def instants(part: pa.Table) -> pa.Table:
    """Times as microseconds."""
    for index, field in enumerate(part.schema):
        if pa.types.is_timestamp(field.type):
            part = part.set_column(index, field.name, part.column(index).cast(pa.int64()))
    return part


def project(*streams: OracleStream) -> str:
    declared = {stream.name: section(stream) for stream in streams}
    return yaml.safe_dump({"version": 1, "streams": declared})


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[MillAndOracle]:
    (tmp_path / "tidemill.yaml").write_text(project(BUNDLES, CLICKS, ERRORS, PINGS))
    with Mill.open(tmp_path, clock=FakeClock(TEN + HOUR)) as mill:
        yield MillAndOracle(mill)


def test_each_record_happens_when_the_message_that_tells_it_does(desk: MillAndOracle) -> None:
    desk.send(FIRST)
    times = {row["event_id"]: (int(str(row["event_time"])) - TEN) // SECOND for row in desk.rows("raw")}
    assert times == {"click first": 5, "error first": 7, "behind a ping": 9}
    details = {json.loads(str(r["payload"]))["bundle"]: (r["reason"], r["detail"]) for r in refused(desk)}
    assert details["no time"] == (
        "bad_time",
        "no message of it has an event time; streams that have one: clicks, errors",
    )
    assert details["bad time"][0] == "bad_time"
    assert str(details["bad time"][1]).startswith("ts of message 1, of stream clicks, is no unixtimestamp_ms")
    assert details["far ahead"][0] == "skew"


def refused(desk: MillAndOracle) -> list[dict[str, object]]:
    rows = desk.rows("quarantine")
    for row in rows:
        payload = row["payload"]
        row["payload"] = payload.decode() if isinstance(payload, bytes) else payload
    return rows


def test_raw_quarantine_ledger_and_rollups_are_those_of_the_oracle(desk: MillAndOracle) -> None:
    desk.send(FIRST)
    desk.send(SECOND_SLICE)
    oracle = desk.oracle
    names = ("event_id", "event_time", "slice", "line", "watermark")
    raw = sorted(tuple(row[name] for name in names) for row in desk.rows("raw"))
    assert raw == sorted((r.event_id, r.ts, r.slice, r.line, r.watermark) for r in oracle.raw)
    assert {row.event_id for row in oracle.raw if row.late} == {"late"}
    assert {(str(row["slice"]), row["line"], row["reason"]) for row in desk.rows("quarantine")} == {
        (q.slice, q.line, (q.reason or q.outcome).value) for q in oracle.quarantine
    }
    for slice_id, counts in oracle.counts.items():
        assert desk.mill.slice(slice_id).counts == counts
    found = desk.mill.query(
        "SELECT count, sum(bytes) AS total FROM bundles "
        "BETWEEN 2024-01-01T10:00:00Z AND 2024-01-01T10:00:10Z GROUP BY kind"
    ).to_pylist()
    expected = {"k": [*FIRST[:3], SECOND_SLICE[0]], "other": [SECOND_SLICE[1]]}
    assert {row["kind"]: (row["count"], int(row["total"])) for row in found} == {
        kind: (len(held), sum(int(str(b["bytes"])) for b in held)) for kind, held in expected.items()
    }
    assert desk.mill.verify().ok


def columnar(kind: str, records: Sequence[Mapping[str, object]]) -> bytes:
    table = pa.Table.from_pylist([dict(record) for record in records])
    buffer = io.BytesIO()
    if kind == "parquet":
        pq.write_table(table, buffer)
    else:
        with ipc.new_file(buffer, table.schema) as writer:
            writer.write_table(table)
    return buffer.getvalue()


@pytest.mark.parametrize("format", ["json", "parquet", "arrow"])
def test_messages_are_read_from_every_format_that_has_arrays(desk: MillAndOracle, format: str) -> None:
    records = [
        bundle("a", click(5), error(1)),
        bundle("b", error(7), click(2)),
        bundle("c", PING, click(9)),
    ]
    content = json.dumps(records).encode() if format == "json" else columnar(format, records)
    desk.mill.land("bundles", content, format=format)
    desk.mill.tick()
    times = {row["event_id"]: (int(str(row["event_time"])) - TEN) // SECOND for row in desk.rows("raw")}
    assert times == {"a": 5, "b": 7, "c": 9}


def test_json_text_in_a_csv_cell_is_no_array(desk: MillAndOracle) -> None:
    cell = json.dumps([click(5)]).replace('"', '""')
    landed = desk.mill.land("bundles", f'bundle,messages\na,"{cell}"\n'.encode(), format="csv")
    desk.mill.tick()
    assert desk.mill.slice(landed.entry.id).counts.rejects == {"bad_time": 1}


MOVED = """
version: 1
streams:
  clicks:
    schema: {{id: string, ts: integer, sent: integer}}
    event_time: {{column: {column}, type: unixtimestamp_s}}
    identity: id
  bundles:
    schema: {{bundle: string, messages: array}}
    messages: {{column: messages}}
    identity: bundle
    skew: {{past: null}}
"""


def test_rows_stay_right_when_the_stream_of_a_message_declares_another_time(tmp_path: Path) -> None:
    message = {"stream": "clicks", "id": "c", "ts": TEN // SECOND, "sent": TEN // SECOND + 5}
    clock = FakeClock(TEN + HOUR)
    for column in ("ts", "sent"):
        (tmp_path / "tidemill.yaml").write_text(MOVED.format(column=column))
        with Mill.open(tmp_path, clock=clock) as mill:
            mill.land(
                "bundles", json.dumps({"bundle": column, "messages": [message]}).encode(), format="ndjson"
            )
            mill.tick()
            audit = mill.verify()
            assert audit.ok, audit.findings
            rows = mill.search("bundles").rows
            times = rows.column("event_time").cast(pa.int64()).to_pylist()
            found = dict(zip(rows.column("event_id").to_pylist(), times, strict=True))
    assert found == {"ts": TEN, "sent": TEN + 5 * SECOND}
