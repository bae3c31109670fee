"""Golden cases through the whole pipeline, the same events in every format, and a stream without a gate."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
import zstandard

from tidemill.mill import Mill
from tidemill.model.errors import QueryError
from tidemill.model.levels import NAMES
from tidemill.model.time import HOUR, MINUTE, SECOND, parse_instant
from tidemill.query import Answer
from tidemill.storage.tables.table import Table
from tidemill.testing import FakeClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEN = parse_instant("2024-01-01T10:00:00Z")
CALLS_STREAM = """
    schema:
      id: {type: string, required: true}
      ts: {type: string, required: true}
      tenant: {type: string, required: true}
      api: string
      region: string
      ok: boolean
      status: integer
      latency_ms: {type: decimal, scale: 3}
    event_time: {column: ts, type: iso8601, late_tolerance: 5s}
    identity: id
    tenant: tenant
    skew: {future: null}
    metrics:
      calls: {kind: counter, dimensions: [api, region, ok], measures: [latency_ms]}
      statuses: {kind: counter, dimensions: [api, region, ok], measures: [status]}
"""
ROWS_STREAM = """
    schema: {id: string, ts: {type: string, required: true}, api: string, status: integer}
    event_time: {column: ts, type: iso8601}
    tenant: {value: plant}
    gate: none
    metrics:
      rows: {kind: counter, dimensions: [api], measures: [status]}
"""


def config(streams: Mapping[str, str], engine: str) -> str:
    listed = "".join(f"  {name}:{body}" for name, body in streams.items())
    return f"version: 1\nengine: {engine}\nstreams:\n{listed}"


def call(id: str, at: int, **fields: object) -> dict[str, object]:
    seconds, us = divmod(at, SECOND)
    minute, second = divmod(seconds - TEN // SECOND, 60)
    ts = f"2024-01-01T{10 + minute // 60:02d}:{minute % 60:02d}:{second:02d}" + (f".{us:06d}Z" if us else "Z")
    return {"id": id, "ts": ts, "tenant": "acme"} | fields


def ndjson(*events: Mapping[str, object]) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


class OpenProject:
    """One project, open for all tests of this file; each has a stream of its own."""

    def __init__(self, mill: Mill, clock: FakeClock) -> None:
        self.mill = mill
        self.clock = clock

    def send(self, stream: str, content: bytes, **how: str) -> dict[str, int]:
        """Land, tick, and say how many records of the slice had which outcome."""
        landed = self.mill.land(stream, content, **how)
        self.mill.tick()
        counts = self.mill.slice(landed.entry.id).counts
        return {name: getattr(counts, name) for name in ("accepted", "duplicate", "conflict", "rejected")}

    def ask(self, text: str) -> list[tuple[object, ...]]:
        return [tuple(row.values()) for row in self.mill.query(text).to_pylist()]

    def answer(self, text: str) -> Answer:
        found = self.mill.ask(text)
        assert isinstance(found, Answer)
        return found

    def files(self, kind: str, stream: str) -> list[tuple[str, int]]:
        """Parts with rows, and how many: what a reader of the table reads."""
        table = Table.existing(self.mill.project.warehouse / kind / stream)
        return sorted((part.path, part.rows) for part in table.snapshot().parts if part.rows) if table else []

    def rows(self, kind: str, stream: str) -> list[dict[str, object]]:
        table = Table.existing(self.mill.project.warehouse / kind / stream)
        assert table is not None
        paths = table.snapshot().paths()
        return [row for path in paths for row in pq.read_table(path, partitioning=None).to_pylist()]


@pytest.fixture(scope="module")
def desk(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenProject]:
    root = tmp_path_factory.mktemp("golden")
    streams = {"calls": CALLS_STREAM, "minutes": CALLS_STREAM, "rows": ROWS_STREAM}
    (root / "tidemill.yaml").write_text(config(streams, "{cores: 2, inline_bytes: 0}"))  # all of it on Spark
    clock = FakeClock(TEN + HOUR)
    with Mill.open(root, spark=spark, clock=clock) as mill:
        yield OpenProject(mill, clock)


CALLS = [
    call("a", TEN, api="/a", region="eu", ok=True, status=200, latency_ms=1.5),
    call("b", TEN + 3 * SECOND, api="/a", region="us", ok=True, status=200, latency_ms=0.25),
    call("c", TEN + 7 * SECOND, api="/b", region="eu", ok=False, status=500, latency_ms=10),
    call("d", TEN + 11 * MINUTE, api="/a", region="eu", ok=False, status=404),
    call("e", TEN + 59 * MINUTE + 59 * SECOND, api=None, region="eu", ok=True, status=None, latency_ms=2),
]


@pytest.fixture(scope="module")
def calls(desk: OpenProject) -> OpenProject:
    assert desk.send("calls", ndjson(*CALLS)) == {"accepted": 5, "duplicate": 0, "conflict": 0, "rejected": 0}
    return desk


def test_m1_an_identical_event_again_is_a_duplicate_and_changes_nothing(calls: OpenProject) -> None:
    before = {kind: calls.files(kind, "calls") for kind in ("raw", "quarantine", "rollups")}
    again = json.dumps(dict(reversed(CALLS[0].items()))).replace("1.5", "15e-1")
    content = ndjson(CALLS[1]) + f" {again} \n".encode()
    assert calls.send("calls", content) == {"accepted": 0, "duplicate": 2, "conflict": 0, "rejected": 0}
    assert {kind: calls.files(kind, "calls") for kind in before} == before


def test_m2_another_payload_under_the_same_id_is_a_conflict_with_both_hashes(calls: OpenProject) -> None:
    before = {kind: calls.files(kind, "calls") for kind in ("raw", "quarantine", "rollups")}
    other_time = CALLS[0] | {"ts": "2024-01-01T10:00:01Z"}
    content = ndjson(CALLS[0] | {"api": "/z"}, other_time, other_time)
    assert calls.send("calls", content) == {"accepted": 0, "duplicate": 0, "conflict": 3, "rejected": 0}
    after = {kind: calls.files(kind, "calls") for kind in before}
    assert (after["raw"], after["rollups"]) == (before["raw"], before["rollups"])
    assert [rows for _, rows in after["quarantine"]] == [3]
    first, second, third = sorted(calls.rows("quarantine", "calls"), key=lambda row: int(str(row["line"])))
    accepted = {str(row["accepted_hash"]) for row in (first, second, third)}
    assert len(accepted) == 1
    assert accepted.isdisjoint({first["content_hash"], second["content_hash"]})
    assert first["content_hash"] != second["content_hash"] == third["content_hash"]
    assert [row["payload"] for row in (first, second)] == content.split(b"\n")[:2]
    assert {(row["tenant"], row["event_id"], row["reason"]) for row in (first, second)} == {
        ("acme", "a", "conflict")
    }
    assert "line 1" in str(first["detail"])


def test_m3_two_counters_with_equal_dimensions_have_separate_totals(calls: OpenProject) -> None:
    assert calls.ask("SELECT count, sum(latency_ms) FROM calls.calls") == [(5, Decimal("13.750"))]
    assert calls.ask("SELECT count, sum(status) FROM calls.statuses") == [(5, Decimal(1304))]
    assert calls.ask("SELECT count, min(status), max(status) FROM calls.statuses WHERE api = '/a'") == [
        (3, 200, 404)
    ]


def test_m4_an_hourly_query_reads_hourly_rows_and_equals_the_sum_of_the_5s_rows(calls: OpenProject) -> None:
    values = "count, sum(latency_ms), min(latency_ms), max(latency_ms)"
    text = f"SELECT {values} FROM calls GROUP BY region INTERVAL {{}}"
    hourly, fine = calls.answer(text.format("1h")), calls.answer(text.format("5s"))
    assert (hourly.level, fine.level) == ("1h", "5s")
    expected = {
        "eu": (4, Decimal("13.500"), Decimal("1.500"), Decimal("10.000")),
        "us": (1, Decimal("0.250"), Decimal("0.250"), Decimal("0.250")),
    }
    names = ("count", "sum(latency_ms)", "min(latency_ms)", "max(latency_ms)")
    assert {row["region"]: tuple(row[n] for n in names) for row in hourly.table.to_pylist()} == expected
    sums: dict[str, list[dict[str, object]]] = {}
    for row in fine.table.to_pylist():
        sums.setdefault(row["region"], []).append(row)
    for region, rows in sums.items():
        least = [row[names[2]] for row in rows if row[names[2]] is not None]
        most = [row[names[3]] for row in rows if row[names[3]] is not None]
        total = (sum(int(str(r["count"])) for r in rows), sum(Decimal(str(r[names[1]])) for r in rows))
        assert (*total, min(least), max(most)) == expected[region]  # type: ignore[type-var]


def test_m8_a_query_that_names_some_dimensions_sums_over_the_others(calls: OpenProject) -> None:
    assert calls.ask("SELECT count FROM calls GROUP BY api ORDER BY api") == [("/a", 3), ("/b", 1), (None, 1)]
    assert calls.ask("SELECT count FROM calls WHERE ok = true") == [(3,)]
    assert calls.ask("SELECT count FROM calls WHERE region = 'eu' GROUP BY ok ORDER BY ok") == [
        (False, 2),
        (True, 2),
    ]


@pytest.mark.parametrize(
    ("interval", "level"), [("30s", "5s"), ("3h", "1h"), ("15m", "1m"), ("9d", "1d"), ("14d", "7d")]
)
def test_m10_an_interval_is_read_from_the_largest_level_that_divides_it(
    calls: OpenProject, interval: str, level: str
) -> None:
    answer = calls.answer(f"SELECT count FROM calls INTERVAL {interval}")
    assert answer.level == level
    assert sum(answer.table.column("count").to_pylist()) == 5


def test_m11_an_interval_that_no_level_divides_is_refused_with_the_levels(calls: OpenProject) -> None:
    with pytest.raises(QueryError) as refused:
        calls.mill.query("SELECT count FROM calls INTERVAL 7s")
    assert all(level in refused.value.hint for level in NAMES)


def test_m9_a_late_success_changes_its_own_minute_and_no_other_tile(desk: OpenProject) -> None:
    minute = TEN + MINUTE
    failure = call("f", minute + 38 * SECOND, api="/a", ok=False)
    first = call("s1", minute + MINUTE + 8 * SECOND, api="/a", ok=True)
    late = call("s2", minute + MINUTE + 55 * SECOND, api="/a", ok=True)
    elsewhere = call("x", TEN - 2 * HOUR, api="/a", ok=True)
    desk.clock.set(TEN + 3 * MINUTE)
    desk.send("minutes", ndjson(failure, first, elsewhere))
    span = "BETWEEN 2024-01-01T10:01:00Z AND 2024-01-01T10:04:00Z USING ROLLUP 1m FILL zero"

    def by_minute(ok: str) -> list[int]:
        return [
            int(str(row[-1])) for row in desk.ask(f"SELECT count FROM minutes.calls WHERE ok = {ok} {span}")
        ]

    assert (by_minute("true"), by_minute("false")) == ([0, 1, 0], [1, 0, 0])
    desk.clock.set(TEN + 3 * MINUTE + 15 * SECOND)
    desk.mill.land("minutes", ndjson(late))
    report = next(done for done in desk.mill.tick().streams if done.stream == "minutes")
    assert (by_minute("true"), by_minute("false")) == ([0, 2, 0], [1, 0, 0])
    shares = [
        good / (good + bad) if good + bad else None
        for good, bad in zip(by_minute("true"), by_minute("false"), strict=True)
    ]
    assert shares == [0, 1, None]
    assert [(tile.key.level, tile.revision) for tile in report.tiles] == [(level, 2) for level in NAMES]
    assert "late" in report.tiles[0].reason
    audit = desk.mill.verify("minutes")
    assert audit.ok, audit.findings


# --- formats

EVENTS = [
    call(
        f"e{number}\n\"é,;", TEN + number * 1_234_567, api=["/a", "/b,c", 'say "x"', "日本"][number % 4],
        region=["eu", "us"][number % 2], ok=number % 3 == 0, status=200 + number, latency_ms=number / 8,
    )
    for number in range(24)
]  # fmt: skip
# What is null is left out by columnar formats, and an empty cell of CSV is nothing.
SPARSE = [{k: v for k, v in event.items() if k != "api" or i % 5} for i, event in enumerate(EVENTS)]


def as_table(events: Sequence[Mapping[str, object]]) -> pa.Table:
    names = list(EVENTS[0])
    columns = {name: [event.get(name) for event in events] for name in names}
    columns["latency_ms"] = [Decimal(str(value)) for value in columns["latency_ms"]]
    return pa.table(columns)


def as_csv(events: Sequence[Mapping[str, object]]) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(EVENTS[0]), quoting=csv.QUOTE_MINIMAL)
    writer.writeheader()
    for event in events:
        writer.writerow({k: str(v).lower() if isinstance(v, bool) else v for k, v in event.items()})
    return out.getvalue().encode()


def as_parquet(events: Sequence[Mapping[str, object]]) -> bytes:
    out = io.BytesIO()
    pq.write_table(as_table(events), out, row_group_size=7)
    return out.getvalue()


def as_arrow(events: Sequence[Mapping[str, object]]) -> bytes:
    out = io.BytesIO()
    with ipc.new_file(out, as_table(events).schema) as writer:
        writer.write_table(as_table(events), max_chunksize=5)
    return out.getvalue()


FORMATS: dict[str, Callable[[Sequence[Mapping[str, object]]], bytes]] = {
    "x.ndjson": lambda events: ndjson(*events),
    "x.json": lambda events: json.dumps(events, indent=2).encode(),
    "x.csv": as_csv,
    "x.parquet": as_parquet,
    "x.arrow": as_arrow,
    "x.ndjson.gz": lambda events: gzip.compress(ndjson(*events), mtime=0),
    "x.ndjson.zst": lambda events: zstandard.compress(ndjson(*events)),
    "x.json.zst": lambda events: zstandard.compress(json.dumps(events).encode()),
    "x.csv.gz": lambda events: gzip.compress(as_csv(events), mtime=0),
}


def test_the_same_events_in_every_format_are_the_same_events(spark: SparkSession, tmp_path: Path) -> None:
    """Each format fills a stream of its own with the same rows; and what then comes in another format is
    known already, to the last digit."""
    streams = {f"s{number}": name for number, name in enumerate(FORMATS)}
    (tmp_path / "tidemill.yaml").write_text(config(dict.fromkeys(streams, CALLS_STREAM), "{cores: 2}"))
    held: dict[str, tuple[object, ...]] = {}
    with Mill.open(tmp_path, spark=spark, clock=FakeClock(TEN + HOUR)) as mill:
        desk = OpenProject(mill, FakeClock(TEN + HOUR))
        for stream, name in streams.items():
            mill.land(stream, FORMATS[name](SPARSE), name=name)
        mill.tick()
        for stream, name in streams.items():
            rows = desk.rows("raw", stream)
            assert len(rows) == len(SPARSE), (name, mill.quarantine(stream).to_pylist())
            keys = sorted((row["tenant"], row["event_id"], row["event_time"], row["line"]) for row in rows)
            texts = sorted(json.dumps(json.loads(str(row["payload"])), sort_keys=True) for row in rows)
            rollups = sorted(json.dumps(row, default=str) for row in desk.rows("rollups", stream))
            held[name] = (keys, texts, rollups)
            assert sorted(int(str(row["line"])) for row in rows) == list(range(1, 25))
        for name, found in held.items():
            assert found == held["x.ndjson"], name
        for name, made in FORMATS.items():
            if name != "x.ndjson":
                mill.land("s0", made(SPARSE), name=name)
        mill.tick()
        counts = [entry.counts for entry in mill.ledger("s0")]
        assert [c.duplicate for c in counts] == [24] * (len(FORMATS) - 1) + [0]
        assert sum(c.conflict + c.rejected for c in counts) == 0


# --- no gate


def test_a_stream_without_a_gate_keeps_every_valid_row(desk: OpenProject) -> None:
    """Nothing is deduplicated and nothing can contradict: rows are kept as they come."""
    event = call("same", TEN, api="/a", status=1)
    content = ndjson(
        event, event, event | {"status": 2}, {"id": "no time"}, call("", TEN, api="/a", status=4)
    )
    assert desk.send("rows", content) == {"accepted": 4, "duplicate": 0, "conflict": 0, "rejected": 1}
    # the same records in other bytes are another slice, and count again
    assert desk.send("rows", b"\n" + content) == {"accepted": 4, "duplicate": 0, "conflict": 0, "rejected": 1}
    assert desk.ask("SELECT count, sum(status) FROM rows GROUP BY api") == [("/a", 8, Decimal(16))]
    raw = desk.rows("raw", "rows")
    assert sorted(str(row["payload"]).encode() for row in raw) == sorted(
        line for index, line in enumerate(content.split(b"\n")[:-1]) if index != 3 for _ in range(2)
    )
    assert {row["tenant"] for row in raw} == {"plant"}
    assert not (desk.mill.project.warehouse / "gate" / "rows").exists() or not desk.mill.state.runs("rows")
    audit = desk.mill.verify("rows")
    assert audit.ok, audit.findings
