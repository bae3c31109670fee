"""Rollups tables written by hand from plain events, and a door to ask them."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemill.config.stream import Stream
from tidemill.model.completeness import Arrivals, Available
from tidemill.model.levels import BASE, LEVELS
from tidemill.model.time import Interval, align, parse_instant
from tidemill.outputs.rollups.spec import BIN_COUNTS, BINS, FROM, RULE, STATE, TO, spec_for
from tidemill.query import Answer, Files, Querier
from tidemill.query.plan_sql import WIDTH
from tidemill.query.run import Runner
from tidemill.query.source import RawRequest, RawRows

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
PLANT = Stream.model_validate(
    {
        "name": "plant",
        "schema": {
            "region": "string",
            "line": "integer",
            "ok": "boolean",
            "latency": "integer",
            "temp": {"type": "decimal", "scale": 2},
            "order": "string",
            "status": "string",
        },
        "metrics": {
            "made": {"kind": "counter", "dimensions": ["region", "line", "ok"], "measures": ["latency"]},
            "successes": {"kind": "counter", "dimensions": ["region", "line"], "filter": "ok = true"},
            "failures": {"kind": "counter", "dimensions": ["region"], "filter": "ok = false"},
            "heat": {"kind": "gauge", "value": "temp", "dimensions": ["region"]},
            "load": {"kind": "gauge", "value": "latency", "policy": "avg", "dimensions": ["region", "line"]},
            "delay": {"kind": "histogram", "value": "latency", "dimensions": ["region", "line"]},
            "warmth": {
                "kind": "histogram",
                "value": "temp",
                "bounds": [-10, 0, 0.5, 20],
                "dimensions": ["region"],
            },
            "orders": {
                "kind": "state",
                "object": "order",
                "state": "status",
                "dimensions": ["region"],
                "transitions": {"finished": {"to": ["DONE", "LOST"]}},
            },
            "success_rate": {
                "kind": "ratio",
                "numerator": "successes",
                "denominator": ["successes", "failures"],
            },
            "direct": {
                "kind": "ratio",
                "numerator": {"metric": "orders", "from": "NEW", "to": "DONE"},
                "denominator": {"metric": "orders", "transition": "finished"},
            },
        },
    }
)
PLANT_ROLLUPS = spec_for(PLANT)
STREAMS = {stream.name: stream for stream in (SHOP, MANY, BARE, ONE, PLANT)}

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
class Sight:
    """An event of the plant."""

    at: int
    id: str
    region: str | None = "eu"
    line: int | None = 1
    ok: bool | None = True
    latency: int | None = None
    temp: Decimal | None = None
    order: str | None = None
    status: str | None = None
    tenant: str = "acme"


def counted_in(metric: str, e: Sight) -> bool:
    return {"successes": e.ok is True, "failures": e.ok is False}.get(metric, True)


def changes(events: Iterable[Sight]) -> list[tuple[str, Sight, str | None, str | None, str | None, int]]:
    """What state metric `orders` counts, one by one: region, the event, state, from, to, count. With a state
    it is by how many the objects in it changed; else a transition."""
    found = []
    trails: dict[tuple[str, str], list[Sight]] = defaultdict(list)
    for e in events:
        if e.order is not None and e.status is not None:
            trails[e.tenant, e.order].append(e)
    for trail in trails.values():
        last = None
        for e in sorted(trail, key=lambda e: (e.at, e.id)):
            if last is None or last.status != e.status:
                found.append((e.region, e, None, last.status if last else "(none)", e.status, 1))
            if last is None or (last.status, last.region) != (e.status, e.region):
                if last is not None:
                    found.append((last.region, e, last.status, None, None, -1))
                found.append((e.region, e, e.status, None, None, 1))
            last = e
    return found


def kept(events: Iterable[Sight], width: int, span: Interval | None = None) -> list[dict[str, object]]:
    """The rows of one level of the plant's metrics (of what lies in `span`, if said), in plain Python."""
    events = list(events)
    rows: list[dict[str, object]] = []
    for metric in PLANT_ROLLUPS.metrics:
        if metric.following is not None:
            rows += state_rows(events, width, span)
            continue
        groups: dict[tuple[object, ...], list[Sight]] = defaultdict(list)
        inside = [e for e in events if span is None or span.holds(e.at)]
        for e in (e for e in inside if counted_in(metric.name, e)):
            key = tuple(getattr(e, d.column) for d in metric.dimensions)
            groups[(e.tenant, align(e.at, width), *key)].append(e)
        for (tenant, bucket, *key), members in groups.items():
            row: dict[str, object] = {"metric": metric.name, "tenant": tenant, "bucket": bucket}
            row |= dict(zip((d.column for d in metric.dimensions), key, strict=True)) | {
                "count": len(members)
            }
            for m in metric.measures:
                valued = [e for e in members if getattr(e, m.column) is not None]
                ordered = sorted(valued, key=lambda e: (e.at, e.id))
                values = [getattr(e, m.column) for e in ordered]
                row |= {f"{m.column}__count": len(values), f"{m.column}__sum": Decimal(sum(values))}
                row |= {f"{m.column}__min": min(values, default=None)}
                row |= {f"{m.column}__max": max(values, default=None)}
                for end, at in (("first", 0), ("last", -1)) if metric.keeps_ends and values else ():
                    row[f"{m.column}__{end}"] = values[at]
                    row[f"{m.column}__{end}_time"] = ordered[at].at
                    row[f"{m.column}__{end}_id"] = ordered[at].id
                if metric.bins is not None:
                    held = Counter(metric.bins.of(int(value * 10**m.scale)) for value in values)
                    row[BINS], row[BIN_COUNTS] = sorted(held), [held[bin] for bin in sorted(held)]
            rows.append(row)
    return rows


def state_rows(events: list[Sight], width: int, span: Interval | None = None) -> list[dict[str, object]]:
    tally: Counter[tuple[object, ...]] = Counter()
    for region, e, state, left, reached, count in changes(events):
        if span is not None and not span.holds(e.at):
            continue
        rules = [None] if state else ["change", *(["finished"] if reached in ("DONE", "LOST") else [])]
        for rule in rules:
            tally[e.tenant, region, state, rule, left, reached, align(e.at, width)] += count
    names = ("tenant", "region", STATE, RULE, FROM, TO, "bucket")
    return [
        {"metric": "orders", "count": count} | dict(zip(names, key, strict=True))
        for key, count in tally.items()
        if count
    ]


@dataclass
class Shelf:
    """A source of hand-written files, two for each level, and of the events themselves."""

    root: Path
    version: int = 7
    available: Available = field(default_factory=Available)
    events: list[Event | Sight] = field(default_factory=list)

    @property
    def raw(self) -> Shelf:
        return self

    def put(self, events: Iterable[Event | Sight]) -> Shelf:
        self.events = list(events)
        for level in LEVELS:
            rows = self._made(level.width)
            folder = self.root / f"level={level.name}"
            folder.mkdir(parents=True, exist_ok=True)
            for part in (0, 1) if len(rows) > 1 else (0,):
                table = pa.Table.from_pylist(rows[part::2], schema=self._schema)
                pq.write_table(table, folder / f"part-{part}.parquet")
        return self

    def files_for(self, level: str, spans: Sequence[Interval]) -> Files:
        paths = sorted((self.root / f"level={level}").glob("*.parquet"))
        return Files([str(path) for path in paths], sum(pq.read_metadata(path).num_rows for path in paths))

    def rows(self, asked: RawRequest) -> RawRows:
        made: list[dict[str, object]] = []
        for span in asked.spans:
            for row in self._made(BASE.width, span):
                if row["metric"] in asked.metrics:
                    made.append(row | {"bucket": max(int(str(row["bucket"])), span.start)})
        table = pa.Table.from_pylist(made, schema=self._schema)
        return RawRows(table.append_column(WIDTH, pa.array([BASE.width] * len(made), pa.int64())))

    @property
    def _schema(self) -> pa.Schema:
        if any(isinstance(e, Sight) for e in self.events):
            return pa.schema([field for field in PLANT_ROLLUPS.schema if field.name != "level"])
        return SCHEMA

    def _made(self, width: int, span: Interval | None = None) -> list[dict[str, object]]:
        sights = [e for e in self.events if isinstance(e, Sight)]
        if sights:
            return kept(sights, width, span)
        plain = [e for e in self.events if isinstance(e, Event)]
        return rolled([e for e in plain if span is None or span.holds(e.at)], width)


class Questions:
    """Asks for one set of events. All of a run ask one engine: to start one costs more than most answers."""

    RUNNER: ClassVar = Runner()

    def __init__(self, shelf: Shelf) -> None:
        self.querier = Querier(STREAMS, lambda name: shelf, self.RUNNER)

    def ask(self, text: str, tenant: str | None = None, watermark: int | None = None) -> Answer:
        answer = self.querier.ask(text, tenant=tenant, now=NOW, arrivals=Arrivals(watermark))
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
def desk(tmp_path: Path) -> Callable[[Iterable[Event]], Questions]:
    numbers = itertools.count()  # an engine remembers files by their names

    def make(events: Iterable[Event]) -> Questions:
        return Questions(Shelf(tmp_path / f"rollups{next(numbers)}").put(events))

    return make


@pytest.fixture
def event() -> Callable[..., Event]:
    """`event("10:02:08", api="/b")`."""

    def make(at: str, **fields: object) -> Event:
        return Event(instant(at), **fields)  # type: ignore[arg-type]

    return make


@pytest.fixture
def sight() -> Callable[..., Sight]:
    """`sight("10:02:08", latency=7)`; ids ascend."""
    ids = itertools.count()

    def make(at: str, **fields: object) -> Sight:
        return Sight(instant(at), **{"id": f"e{next(ids):04}", **fields})  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def kit() -> SimpleNamespace:
    """For tests that generate their own events."""
    made = {"Sight": Sight, "PLANT": PLANT, "changes": changes, "counted_in": counted_in}
    return SimpleNamespace(
        **made, Event=Event, Shelf=Shelf, Questions=Questions, SCHEMA=SCHEMA, SHOP=SHOP, rolled=rolled
    )
