"""The whole pipeline against the oracle: whatever the feed, its slices and the ticks between them, raw,
quarantine, ledger, clocks, tiles and their hashes are what one record at a time in plain Python gives."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from decimal import Context, Decimal
from itertools import count
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import at_length, examples
from tests.support.oracles.oracle import Cell, CellKey, Landing, Measure, Oracle
from tests.support.oracles.project import project_text
from tests.support.oracles.stream import NESTED, REQUESTS, OracleField, OracleMetric, OracleStream
from tests.support.strategies.feeds import FIRST_ARRIVAL, feeds
from tests.support.warehouse_location import write_config

from tidemill.mill import Mill
from tidemill.model.levels import BASE, LEVELS, TileKey, below
from tidemill.model.names import column_name, measure_column
from tidemill.model.slices import RecordOutcome, SliceStatus, set_hash
from tidemill.model.time import DAY, HOUR, SECOND
from tidemill.storage.bucket_path import local_copy
from tidemill.storage.tables.table import Table
from tidemill.testing import FakeClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BOM = b"\xef\xbb\xbf"
WITHOUT_FLOATS = replace(
    NESTED,
    fields={name: field for name, field in NESTED.fields.items() if field.type != "float"},
    late_tolerance=SECOND,
    metrics={"sold": OracleMetric(("flag", "meta.source"), ("body.price", "meta.n")), "seen": OracleMetric()},
)
NUMBERED = OracleStream(
    name="numbered",
    fields={
        "n": OracleField("integer"),
        "at": OracleField("any"),
        "a.on": OracleField("boolean"),
        "size": OracleField("integer"),
        "tenant": OracleField("string"),
    },
    time_column="at",
    time_type="unixtimestamp_ns",
    identity=("n",),
    tenant_column="tenant",
    metrics={"sizes": OracleMetric(("a.on", "size"), ("size",)), "all": OracleMetric((), ("n", "size"))},
)
PROCESSING = replace(
    WITHOUT_FLOATS, name="processing", time_column=None, skew_past=None, skew_future=None, identity=("part",)
)
SHAPES = {
    shape.name: replace(shape, record_bytes=4096, depth=6)
    for shape in (REQUESTS, WITHOUT_FLOATS, NUMBERED, PROCESSING)
}
EXACT = Context(prec=60)
ON_SPARK = {"inline_bytes": 0}

few = examples(3)
many = at_length(200)


class Mills:
    """Hands out streams that nobody has used, from projects that are opened when they are needed."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self._folder = folder
        self._spark = spark
        self._open: dict[str, Iterator[tuple[Mill, str]]] = {}
        self._numbers = count()
        self.opened: list[Mill] = []

    def stream(self, shape: str, **engine: int | str) -> tuple[Mill, str]:
        kind = f"{shape} {engine}"
        found = next(self._open.get(kind, iter(())), None)
        if found is None:
            self._open[kind] = self._project(SHAPES[shape], **engine)
            found = next(self._open[kind])
        return found

    def _project(self, shape: OracleStream, **engine: int | str) -> Iterator[tuple[Mill, str]]:
        root = self._folder / f"p{next(self._numbers)}"
        root.mkdir()
        streams = [replace(shape, name="s")]  # one: feeds begin at one time, and arrivals never go back
        write_config(root, project_text(streams, cores=2, **engine))
        mill = Mill.open(root, spark=self._spark, clock=FakeClock(FIRST_ARRIVAL))
        self.opened.append(mill)
        return ((mill, stream.name) for stream in streams)


@pytest.fixture(scope="module")
def mills(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mills]:
    mills = Mills(tmp_path_factory.mktemp("mills"), spark)
    yield mills
    for mill in mills.opened:
        mill.close()


# --- feeding both


def as_slice(records: Sequence[bytes]) -> bytes:
    return b"".join(record + b"\n" for record in records)


def as_read(records: Sequence[bytes]) -> list[bytes]:
    """The records as lines of a file have them: no byte order mark at its start, no CR at a line's end."""
    lines = [record.removesuffix(b"\r") for record in records]
    return [line.removeprefix(BOM) if number == 0 else line for number, line in enumerate(lines)]


def fed(mill: Mill, stream: str, shape: str, feed: Sequence[Landing], tick_after: Sequence[bool]) -> Oracle:
    """Land and tick the feed; the oracle gets the same slices, by the ids that the engine gave them."""
    oracle = Oracle(SHAPES[shape])
    clock = mill.clock.wall
    assert isinstance(clock, FakeClock)
    for landing, tick in zip(feed, tick_after, strict=True):
        clock.set(landing.arrival)
        landed = mill.land(stream, as_slice(landing.records), source=landing.source, format="ndjson")
        arrival = landed.entry.slice.arrival  # it never goes back
        oracle.land(landed.entry.id, as_read(landing.records), arrival, landing.source)
        if tick:
            mill.tick()
            assert mill.state.pending(stream, 1) == []
    mill.tick()
    return oracle


# --- what the engine holds, read from the tables alone


def table(mill: Mill, kind: str, stream: str) -> pa.Table | None:
    found = Table.existing(mill.project.warehouse / kind / stream)
    if found is None:
        return None
    parts = [pq.read_table(path, partitioning=None) for path in map(local_copy, found.snapshot().paths())]
    levels = [part.partition for part in found.snapshot().parts]
    tables = [
        part.append_column("level", pa.array([level.get("level")] * part.num_rows, pa.string()))
        for part, level in zip(parts, levels, strict=True)
    ]
    return pa.concat_tables(tables, promote_options="permissive") if tables else None


def rows_of(mill: Mill, kind: str, stream: str) -> list[dict[str, object]]:
    found = table(mill, kind, stream)
    if found is None:
        return []
    for name in ("event_time", "watermark", "bucket", "arrival"):
        if name in found.column_names:
            index = found.column_names.index(name)
            found = found.set_column(index, name, found.column(name).cast(pa.int64()))
    rows: list[dict[str, object]] = found.to_pylist()
    return rows


def cells_of(mill: Mill, stream: str, shape: OracleStream) -> dict[str, dict[CellKey, Cell]]:
    """The rows of the rollups table by level, as the oracle has them; each key once."""
    found: dict[str, dict[CellKey, Cell]] = {level.name: {} for level in LEVELS}
    for row in rows_of(mill, "rollups", stream):
        metric = shape.metrics[str(row["metric"])]
        used = {column_name(column) for column in metric.dimensions}
        for other in shape.metrics.values():
            assert all(row[column_name(c)] is None for c in other.dimensions if column_name(c) not in used)
        key = CellKey(
            str(row["metric"]),
            str(row["tenant"]),
            tuple(row[column_name(column)] for column in metric.dimensions),  # type: ignore[misc]
            int(str(row["bucket"])),
        )
        level = found[str(row["level"])]
        assert key not in level, key
        level[key] = Cell(int(str(row["count"])), {c: measure_of(row, c, shape) for c in metric.measures})
    return found


def measure_of(row: dict[str, object], column: str, shape: OracleStream) -> Measure:
    scale = shape.fields[column].scale or 0
    kept = [row[measure_column(column, name)] for name in ("count", "sum", "min", "max")]
    count, *rest = (None if value is None else Decimal(str(value)) for value in kept)
    total, low, high = (None if value is None else int(EXACT.scaleb(value, scale)) for value in rest)
    assert count is not None
    assert total is not None
    return Measure(int(count), total, low, high)


def agree(mill: Mill, stream: str, oracle: Oracle) -> None:
    shape = oracle.stream
    raw = rows_of(mill, "raw", stream)
    names = ("tenant", "event_id", "event_time", "slice", "line", "payload", "watermark")
    assert sorted(tuple(map(str, (row[n] for n in names))) for row in raw) == sorted(
        tuple(map(str, (*row[:5], row.payload.decode(), row.watermark))) for row in oracle.raw
    )
    assert {(row["slice"], row["arrival"]) for row in raw} == {
        (entry.id, entry.slice.arrival)
        for entry in mill.ledger(stream)
        if entry.counts.accepted
    }  # fmt: skip
    agree_on_quarantine(mill, stream, oracle)
    entries = {entry.id: entry for entry in mill.ledger(stream)}
    assert {name: entry.counts for name, entry in entries.items()} == oracle.counts
    assert {name: entry.observed for name, entry in entries.items()} == oracle.observed
    assert {entry.status for entry in entries.values()} <= {SliceStatus.ACCEPTED}
    clocks = {clock.source: (clock.max_seen, clock.watermark) for clock in mill.state.clocks(stream)}
    assert clocks == {name: (clock.max_seen, clock.watermark) for name, clock in oracle.clocks.items()}
    cells = cells_of(mill, stream, shape)
    for level in LEVELS:
        assert cells[level.name] == oracle.rollup(level.name)
    agree_on_hashes(mill, stream, oracle)
    totals = mill.state.totals(stream)
    reported = oracle.total()
    for outcome in ("records", "accepted", "duplicate", "conflict", "rejected", "late"):
        assert totals[outcome] == getattr(reported, outcome)


def agree_on_quarantine(mill: Mill, stream: str, oracle: Oracle) -> None:
    rows = rows_of(mill, "quarantine", stream)
    found = sorted(tuple(row[n] for n in ("slice", "line", "outcome", "reason", "payload")) for row in rows)
    assert found == sorted(
        (q.slice, q.line, str(q.outcome), str(q.reason or q.outcome), q.payload) for q in oracle.quarantine
    )
    # hashes of other functions, so they are held against each other: equal exactly when the oracle's are
    expected = {(q.slice, q.line): (q.hash, q.rival) for q in oracle.quarantine}
    pairs = set()
    for row in rows:
        hashes = (row["content_hash"], row["accepted_hash"])
        assert (row["outcome"] == RecordOutcome.CONFLICT) == (None not in hashes)
        assert row["detail"]
        wanted = expected[str(row["slice"]), int(str(row["line"]))]
        pairs |= set(zip(wanted, hashes, strict=True))
    assert len(pairs) == len({ours for ours, _ in pairs}) == len({theirs for _, theirs in pairs})


def agree_on_hashes(mill: Mill, stream: str, oracle: Oracle) -> None:
    """A 5s tile's hash is that of its slices, a higher one's that of the tiles below it."""
    expected = {TileKey(BASE.name, start): set_hash(slices) for start, slices in oracle.tile_slices().items()}
    for level in LEVELS[1:]:
        under = below(level)
        assert under is not None
        made_of: dict[int, list[str]] = {}
        for key, digest in expected.items():
            if key.level == under.name:
                made_of.setdefault(level.tile_of(key.start), []).append(f"{key.start}:{digest}")
        expected |= {TileKey(level.name, start): set_hash(parts) for start, parts in made_of.items()}
    found = {t.key: t for level in LEVELS for t in mill.state.tiles(stream, level.name)}
    assert {key: tile.hash for key, tile in found.items()} == expected
    cells = oracle.tiles()
    assert {key: tile.rows for key, tile in found.items()} == {key: len(cells[key]) for key in expected}
    assert mill.state.stale_tiles(stream) == []


def content(mill: Mill, stream: str) -> list[str]:
    """Everything that the tiles of a stream hold, in the order in which they hold it, tile after tile."""
    rows = rows_of(mill, "rollups", stream)
    tiles: dict[tuple[str, int], list[str]] = {}
    for row in rows:
        level = next(level for level in LEVELS if level.name == row["level"])
        key = (level.name, level.tile_of(int(str(row["bucket"]))))
        tiles.setdefault(key, []).append(json.dumps(row, default=str))
    return [line for key in sorted(tiles) for line in (str(key), *tiles[key])]


# --- the tests


def not_trivial(feed: Sequence[Landing]) -> bool:
    return sum(len(landing.records) for landing in feed) > 10


FEEDS = {name: feeds(shape).filter(not_trivial) for name, shape in SHAPES.items()}


@st.composite
def cuts(draw: st.DrawFn, feed: list[Landing]) -> list[bool]:
    return draw(st.lists(st.booleans(), min_size=len(feed), max_size=len(feed)))


def same_as_the_oracle(mills: Mills, shape: str, data: st.DataObject, **engine: int) -> None:
    feed = data.draw(FEEDS[shape])
    mill, stream = mills.stream(shape, **engine)
    oracle = fed(mill, stream, shape, feed, data.draw(cuts(feed)))
    agree(mill, stream, oracle)
    if oracle.raw:
        report = mill.verify(stream)
        assert report.ok, report.findings
    # landed again, nothing changes but the number of landings
    before = content(mill, stream), rows_of(mill, "raw", stream), rows_of(mill, "quarantine", stream)
    for landing in feed:
        mill.land(stream, as_slice(landing.records), source="again", format="ndjson")
    assert mill.tick().idle
    assert (
        content(mill, stream),
        rows_of(mill, "raw", stream),
        rows_of(mill, "quarantine", stream),
    ) == before


@pytest.mark.parametrize("shape", SHAPES)
@few
@given(data=st.data())
def test_generated_feeds_end_as_the_oracle_says(shape: str, mills: Mills, data: st.DataObject) -> None:
    same_as_the_oracle(mills, shape, data)


@pytest.mark.parametrize("shape", ["requests", "nested"])
@examples(2)
@given(data=st.data())
def test_generated_feeds_end_as_the_oracle_says_with_every_kernel_on_spark(
    shape: str, mills: Mills, data: st.DataObject
) -> None:
    same_as_the_oracle(mills, shape, data, **ON_SPARK)


@pytest.mark.soak
@pytest.mark.parametrize("shape", SHAPES)
@many
@given(data=st.data())
def test_generated_feeds_end_as_the_oracle_says_at_length(
    shape: str, mills: Mills, data: st.DataObject
) -> None:
    same_as_the_oracle(mills, shape, data)


def cut_in_any_way(mills: Mills, shape: str, data: st.DataObject) -> None:
    feed = data.draw(FEEDS[shape])
    found = []
    for ticks in ([False] * len(feed), [True] * len(feed), data.draw(cuts(feed))):
        mill, stream = mills.stream(shape)
        agree(mill, stream, fed(mill, stream, shape, feed, ticks))
        found.append(content(mill, stream))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("shape", ["requests", "processing"])
@few
@given(data=st.data())
def test_ticks_cut_in_any_way_leave_tiles_with_the_same_rows(
    shape: str, mills: Mills, data: st.DataObject
) -> None:
    cut_in_any_way(mills, shape, data)


@pytest.mark.soak
@pytest.mark.parametrize("shape", SHAPES)
@many
@given(data=st.data())
def test_ticks_cut_in_any_way_leave_tiles_with_the_same_rows_at_length(
    shape: str, mills: Mills, data: st.DataObject
) -> None:
    cut_in_any_way(mills, shape, data)


def in_any_order(mills: Mills, shape: str, data: st.DataObject) -> None:
    feed = data.draw(feeds(SHAPES[shape], conflicts=False).filter(not_trivial))
    shuffled = data.draw(st.permutations(feed))
    arrivals = sorted(landing.arrival for landing in feed)
    again = [landing._replace(arrival=at) for landing, at in zip(shuffled, arrivals, strict=True)]
    found = []
    for order in (feed, again):
        mill, stream = mills.stream(shape)
        agree(mill, stream, fed(mill, stream, shape, order, data.draw(cuts(order))))
        found.append(content(mill, stream))
    assert found[0] == found[1]


@few
@given(data=st.data())
def test_without_conflicts_the_order_of_arrival_leaves_no_trace_in_the_tiles(
    mills: Mills, data: st.DataObject
) -> None:
    in_any_order(mills, "requests", data)


@pytest.mark.soak
@pytest.mark.parametrize("shape", ["requests", "nested", "numbered"])
@many
@given(data=st.data())
def test_without_conflicts_the_order_of_arrival_leaves_no_trace_in_the_tiles_at_length(
    shape: str, mills: Mills, data: st.DataObject
) -> None:
    in_any_order(mills, shape, data)


def big_feed(seed: int, slices: int, size: int) -> list[Landing]:
    """Slices of several chunks: mostly new events, some of them late, replays, conflicts and bad lines."""
    random = Random(seed)
    ways: list[Callable[[dict[str, object]], bytes]] = [
        lambda e: json.dumps(e).encode(),
        lambda e: json.dumps(dict(reversed(e.items())), indent=None, separators=(" , ", " : ")).encode(),
        lambda e: json.dumps({**e, "api": "/other"}).encode(),
        lambda e: json.dumps({**e, "ts": "never"}).encode(),
        lambda e: json.dumps(e).encode()[:-9],
    ]
    sent: list[dict[str, object]] = []
    found = []
    for number in range(slices):
        records = []
        for _ in range(size):
            if sent and random.random() < 0.1:
                records.append(random.choice(ways)(random.choice(sent)))
                continue
            event: dict[str, object] = {
                "event_id": f"event-{len(sent):08d}",
                "ts": (FIRST_ARRIVAL - random.choice([0, 0, 0, HOUR, DAY]) - random.randrange(HOUR)) // 1000,
                "event_type": "request",
                "tenant": random.choice(["acme", "globex", "initech"]),
                "api": random.choice(["/a", "/b", "/é", None]),
                "region": random.choice(["eu", "us"]),
                "status": random.choice([200, 404, 500]),
                "latency_ms": random.randrange(10**6) / 1000,
                "user_agent": "x" * random.randrange(120),
            }
            sent.append(event)
            records.append(ways[0](event))
        found.append(Landing("", tuple(records), FIRST_ARRIVAL + number * HOUR, random.choice(["a", "b"])))
    return found


@pytest.mark.parametrize(
    "ticks", [[False, False, False], [True, True, True]], ids=["one batch", "three batches"]
)
def test_slices_of_many_chunks_on_spark(mills: Mills, ticks: list[bool]) -> None:
    """Slices are cut at byte ranges in the middle of lines, staged by several tasks, put together again."""
    feed = big_feed(7, slices=3, size=1500)
    assert all(len(as_slice(landing.records)) > 4 * 65_536 for landing in feed)
    mill, stream = mills.stream("requests", chunk_bytes=65_536, **ON_SPARK)
    oracle = fed(mill, stream, "requests", feed, ticks)
    agree(mill, stream, oracle)
    reported = oracle.total()
    assert (
        min(reported.accepted, reported.duplicate, reported.conflict, reported.rejected, reported.late) > 30
    )
    assert mill.verify(stream).ok
