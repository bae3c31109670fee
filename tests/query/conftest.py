"""Rollups tables written by hand from plain events, and a door to ask them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemill.config.stream import Stream
from tidemill.model.levels import LEVELS
from tidemill.model.time import Interval, align, parse_instant
from tidemill.query import Answer, Files, Querier

NOW = parse_instant("2024-01-02T00:00:07Z")

SHOP = Stream.model_validate(
    {
        "name": "requests",
        "schema": {
            "api": "string",
            "http.status": "integer",
            "ok": "boolean",
            "region": "string",
            "latency_ms": "integer",
            "price": {"type": "decimal", "scale": 2},
        },
        "metrics": {
            "requests": {
                "kind": "counter",
                "dimensions": ["api", "http.status", "ok", "region"],
                "measures": ["latency_ms", "price"],
            },
            "failures": {"kind": "counter", "dimensions": ["api"]},
        },
    }
)
MANY = Stream.model_validate(
    {
        "name": "many",
        "schema": {"api": "string"},
        "metrics": {
            "first": {"kind": "counter", "dimensions": ["api"]},
            "second": {"kind": "counter", "dimensions": ["api"]},
        },
    }
)
BARE = Stream.model_validate({"name": "bare", "schema": {"api": "string"}})
ONE = Stream.model_validate(
    {
        "name": "one",
        "schema": {"api": "string"},
        "metrics": {"only": {"kind": "counter", "dimensions": ["api"]}},
    }
)
STREAMS = {stream.name: stream for stream in (SHOP, MANY, BARE, ONE)}

SCHEMA = pa.schema(
    [
        ("metric", pa.string()),
        ("tenant", pa.string()),
        ("bucket", pa.timestamp("us", tz="UTC")),
        ("api", pa.string()),
        ("http__status", pa.int64()),
        ("ok", pa.bool_()),
        ("region", pa.string()),
        ("count", pa.int64()),
        ("latency_ms__sum", pa.decimal128(38, 0)),
        ("latency_ms__min", pa.int64()),
        ("latency_ms__max", pa.int64()),
        ("latency_ms__count", pa.int64()),
        ("price__sum", pa.decimal128(38, 2)),
        ("price__min", pa.decimal128(18, 2)),
        ("price__max", pa.decimal128(18, 2)),
        ("price__count", pa.int64()),
    ]
)


@dataclass(frozen=True)
class Event:
    at: int
    api: str | None = "/a"
    status: int | None = 200
    ok: bool | None = True
    region: str | None = "eu"
    latency: int | None = None
    price: Decimal | None = None
    tenant: str = "acme"
    metric: str = "requests"


def instant(text: str) -> int:
    """`10:02:08` is that time of 2024-01-01."""
    return parse_instant(f"2024-01-01T{text}Z" if text[2] == ":" else text)


def rolled(events: Iterable[Event], width: int) -> list[dict[str, object]]:
    """The rows of one level: one for each metric, tenant, dimensions and bucket."""
    groups: dict[tuple[object, ...], list[Event]] = defaultdict(list)
    for e in events:
        key = (e.metric, e.tenant, e.api, e.status, e.ok, e.region, align(e.at, width))
        groups[key].append(e)
    rows = []
    for (metric, tenant, api, status, ok, region, bucket), members in groups.items():
        row: dict[str, object] = {
            "metric": metric,
            "tenant": tenant,
            "bucket": bucket,
            "api": api,
            "http__status": status,
            "ok": ok,
            "region": region,
            "count": len(members),
        }
        for name, values in (
            ("latency_ms", [e.latency for e in members if e.latency is not None]),
            ("price", [e.price for e in members if e.price is not None]),
        ):
            row[f"{name}__sum"] = Decimal(sum(values)) if values else Decimal(0)  # type: ignore[arg-type]
            row[f"{name}__min"] = min(values, default=None)  # type: ignore[type-var]
            row[f"{name}__max"] = max(values, default=None)  # type: ignore[type-var]
            row[f"{name}__count"] = len(values)
        rows.append(row)
    return rows


@dataclass(frozen=True)
class Shelf:
    """A source of hand-written files, two for each level."""

    root: Path
    version: int = 7

    def put(self, events: Iterable[Event]) -> Shelf:
        events = list(events)
        for level in LEVELS:
            rows = rolled(events, level.width)
            folder = self.root / f"level={level.name}"
            folder.mkdir(parents=True, exist_ok=True)
            for part in (0, 1):
                table = pa.Table.from_pylist(rows[part::2], schema=SCHEMA)
                pq.write_table(table, folder / f"part-{part}.parquet")
        return self

    def files_for(self, level: str, span: Interval | None) -> Files:
        paths = sorted((self.root / f"level={level}").glob("*.parquet"))
        return Files([str(path) for path in paths], sum(pq.read_metadata(path).num_rows for path in paths))


class Desk:
    """Asks for one set of events."""

    def __init__(self, shelf: Shelf) -> None:
        self.querier = Querier(STREAMS, lambda name: shelf)

    def ask(self, text: str, tenant: str | None = None, watermark: int | None = None) -> Answer:
        answer = self.querier.ask(text, tenant=tenant, now=NOW, watermark=watermark)
        assert isinstance(answer, Answer)
        return answer

    def rows(self, text: str, tenant: str | None = None) -> list[tuple[object, ...]]:
        """The rows of the answer, each bucket as its time of day (or in full on another day)."""
        table = self.ask(text, tenant).table
        return [tuple(_short(value) for value in row.values()) for row in table.to_pylist()]


def _short(value: object) -> object:
    if isinstance(value, list):
        return [_short(each) for each in value]
    stamp = getattr(value, "strftime", None)
    if stamp is None:
        return value
    text = stamp("%Y-%m-%dT%H:%M:%S")
    return text.removeprefix("2024-01-01T")


@pytest.fixture
def desk(tmp_path: Path) -> Callable[[Iterable[Event]], Desk]:
    def make(events: Iterable[Event]) -> Desk:
        return Desk(Shelf(tmp_path / "rollups").put(events))

    return make


@pytest.fixture
def event() -> Callable[..., Event]:
    """`event("10:02:08", api="/b")`."""

    def make(at: str, **fields: object) -> Event:
        return Event(instant(at), **fields)  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def kit() -> SimpleNamespace:
    """For tests that generate their own events."""
    return SimpleNamespace(Event=Event, Shelf=Shelf, Desk=Desk, SCHEMA=SCHEMA, SHOP=SHOP, rolled=rolled)
