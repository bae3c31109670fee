"""A small warehouse for the console: feeds with gaps, late, repeated and broken records, hostile names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from tidemill.mill import Mill
from tidemill.model.time import HOUR, parse_instant

PROJECT: Final = """
version: 1
engine: {cores: 2, memory: 1g}
gateway:
  window: {kind: adaptive, min: 1ms, max: 20ms, target: 100}
  %(gateway)s
streams:
  requests:
    description: Web requests of a shop
    schema:
      event_id: {type: string, required: true}
      ts: {type: string, required: true}
      api: string
      region: string
      latency_ms: {type: decimal, scale: 3}
    event_time: {column: ts, type: iso8601}
    identity: [event_id]
    tenant: {value: acme}
    aggregation_span: 1h
    subject_to_change_window: 30m
    late_slices: {policy: reemit, max_lateness: 7d}
    metrics:
      requests: {kind: counter, dimensions: [api, region], measures: [latency_ms]}
      latency: {kind: histogram, value: latency_ms, dimensions: [api]}
    indexed: [api, region]
  orders:
    description: What becomes of orders
    schema:
      id: {type: string, required: true}
      at: {type: string, required: true}
      order: string
      status: string
    event_time: {column: at, type: iso8601}
    identity: [id]
    tenant: {value: acme}
    metrics:
      progress: {kind: state, object: order, state: status}
  shared:
    description: "Several tenants, one with a <b>name</b> that is markup"
    schema:
      event_id: {type: string, required: true}
      ts: {type: string, required: true}
      tenant: {type: string, required: true}
      api: string
    event_time: {column: ts, type: iso8601}
    identity: [event_id]
    tenant: {column: tenant}
    aggregation_span: 1h
    metrics:
      hits: {kind: counter, dimensions: [api]}
    indexed: [api]
  embeddings:
    description: Embeddings of documents
    kind: delta
    vector: {dimension: 3}
    schema:
      delta_id: {type: string, required: true}
      vector_id: {type: string, required: true}
      at: {type: string, required: true}
      op: {type: string, required: true}
      values: array
      indices: array
    identity: delta_id
    event_time: {column: at, type: iso8601}
    tenant: {value: acme}
"""
DAY: Final = "2026-01-05"
NOW: Final = parse_instant(f"{DAY}T13:20:00Z")
LATE: Final = f"{DAY}T09:00:00Z"  # the window that a late slice touches
APIS: Final = ("/cart", "/login", "/search")
REGIONS: Final = ("eu", "us")
HOSTILE: Final = '<img src=x onerror="window.broken=1">'
SCRIPT: Final = "</script><script>window.broken=1</script>"


@dataclass(frozen=True, slots=True)
class Request:
    """An event of the stream `requests`."""

    event_id: str
    hour: int
    minute: int
    api: str
    region: str
    latency_ms: Decimal

    @property
    def line(self) -> str:
        ts = f"{DAY}T{self.hour:02}:{self.minute:02}:07Z"
        known = {"event_id": self.event_id, "ts": ts, "api": self.api, "region": self.region}
        return json.dumps(known)[:-1] + f', "latency_ms": {self.latency_ms}}}'


def hour_of(hour: int, start: int = 0, count: int = 40) -> list[Request]:
    """The events of an hour, the same each time."""
    return [
        Request(
            f"r-{hour:02}-{number:03}",
            hour,
            number * 7 % 60,
            APIS[number % 3],
            REGIONS[number // 3 % 2],
            Decimal(10 + (number * 37 + hour * 11) % 400) + Decimal("0.125"),
        )
        for number in range(start, start + count + hour)
    ]


def land_hour(mill: Mill, hour: int, requests: list[Request], *broken: str, name: str = "") -> None:
    start = parse_instant(f"{DAY}T{hour:02}:00:00Z")
    content = "\n".join([*(one.line for one in requests), *broken]).encode()
    name = name or f"hour-{hour:02}.ndjson"
    mill.land("requests", content, name=name, source="file", start=start, end=start + HOUR)


def tell(mill: Mill) -> None:
    """All but the late slice. The hour from 11:00 never arrives."""
    for hour in (7, 8, 9, 10):
        land_hour(mill, hour, hour_of(hour))
    again, other = hour_of(10)[0], '{"event_id": "r-10-001", "ts": "2026-01-05T10:30:00Z", "api": "/other"}'
    broken = ("not JSON " + HOSTILE, '{"event_id": "r-bad", "ts": "soon", "api": "/cart"}')
    land_hour(mill, 12, hour_of(12), again.line, other, *broken)
    _orders(mill)
    _shared(mill)
    _vectors(mill)
    mill.run_until_idle()


def _orders(mill: Mill) -> None:
    lines = []
    for number in range(12):
        for step, status in enumerate(("PLACED", "PAID", "SENT")[: 1 + number % 3]):
            at = f"{DAY}T{8 + step + number % 3:02}:{number * 4:02}:00Z"
            lines.append({"id": f"o{number}-{step}", "at": at, "order": f"o{number}", "status": status})
    mill.land("orders", "\n".join(map(json.dumps, lines)).encode(), name="orders.ndjson", source="file")


def _shared(mill: Mill) -> None:
    events = [("acme", "/cart"), ("acme", HOSTILE), ("globex", "/login"), (HOSTILE, SCRIPT)]
    lines = [
        {"event_id": f"s{number}{HOSTILE}", "ts": f"{DAY}T10:{number:02}:00Z", "tenant": tenant, "api": api}
        for number, (tenant, api) in enumerate(events)
    ]
    mill.land("shared", "\n".join(map(json.dumps, lines)).encode(), name=HOSTILE, source="file")


def _vectors(mill: Mill) -> None:
    lines = [
        {
            "delta_id": "d0",
            "vector_id": "doc-1",
            "at": f"{DAY}T08:00:00Z",
            "op": "replace",
            "values": [3, 4, 0],
        },
        {"delta_id": "d1", "vector_id": "doc-1", "at": f"{DAY}T09:00:00Z", "op": "add", "values": [0, 0, 12]},
        {"delta_id": "d2", "vector_id": "doc-1", "at": f"{DAY}T10:00:00Z", "op": "scale", "values": [0.5]},
    ]
    mill.land("embeddings", "\n".join(map(json.dumps, lines)).encode(), name="deltas.ndjson", source="file")
