"""A shop whose slices come late, twice and with contradictions, and the plainest account of what it makes.

The account is a loop over what was sent: the first record with an id counts, the same again is a duplicate,
another is a conflict. Tests hold traces, cells and answers of the past against it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from tidemill.mill import Mill
from tidemill.model.time import HOUR, MINUTE, SECOND, parse_instant
from tidemill.testing import FakeClock

START = parse_instant("2024-01-15T10:00:00Z")
PROJECT = """
version: 1
engine: {cores: 2, memory: 512m}
streams:
  shop:
    schema:
      id: {type: string, required: true}
      ts: {type: integer, required: true}
      tenant: {type: string, required: true}
      region: string
      item: string
      state: string
      ms: {type: decimal, scale: 1}
    identity: id
    event_time: {column: ts, type: unixtimestamp_s}
    tenant: {column: tenant}
    skew: {future: 400d}
    aggregation_span: 1h
    allow_incomplete_windows: true
    late_slices: {policy: reemit, max_lateness: 30d}
    indexed: [region]
    metrics:
      hits: {kind: counter, dimensions: [region], measures: [ms]}
      slow: {kind: counter, filter: ms >= 5, dimensions: [region]}
      level: {kind: gauge, value: ms, dimensions: [region]}
      took: {kind: histogram, value: ms, dimensions: [region], bounds: [0, 2, 5, 10]}
      life: {kind: state, object: item, state: state, transitions: {sold: {from: any, to: sold}}}
      slowness: {kind: ratio, numerator: slow, denominator: hits}
    windows:
      hours:
        kind: tumbling
        size: 1h
        group_by: region
        late: {policy: reemit, max_lateness: 30d}
        aggregates: {n: count}
"""
REGIONS = ("eu", "us", None)
STATES = ("new", "paid", "sold")


@dataclass(frozen=True)
class Sent:
    """One record of one slice."""

    slice: int  # which slice it was in, from 0
    line: int
    arrival: int
    event: dict[str, object] | None  # None: it is no JSON
    outcome: str

    @property
    def time(self) -> int:
        return self.event["ts"] * SECOND

    @property
    def ms(self) -> Decimal:
        return Decimal(str(self.event["ms"]))


def event(number: int, minute: int, **more: object) -> dict[str, object]:
    """An event that is told apart by its number."""
    return {
        "id": f"e{number}",
        "ts": START // SECOND + minute * 60 + number % 60,
        "tenant": ("acme", "globex")[number % 4 == 3],
        "region": REGIONS[number % 3],
        "item": f"i{number % 5}",
        "state": STATES[number % 7 % 3],
        "ms": number * 7 % 100 / 10,
    } | more


def slices() -> list[list[dict[str, object] | None]]:
    """As they arrive, an hour apart: the third is late, the fourth repeats and contradicts, the fifth too."""
    return [
        [event(n, n) for n in range(30)],
        [event(n, n) for n in range(30, 90)],
        [event(n, n % 50) for n in range(90, 110)],  # for the first hour
        [event(3, 3), event(40, 40), event(5, 5, ms=99.9), None, event(110, 100)],
        [event(3, 3), {"id": "bad", "ts": "never", "tenant": "acme"}, event(111, 10), event(91, 41)],
    ]


class ShopStory:
    """The project with those slices, and the account of them."""

    def __init__(self, root: Path, project: str = PROJECT) -> None:
        root.mkdir(parents=True, exist_ok=True)
        (root / "tidemill.yaml").write_text(project)
        self.root = root
        self.clock = FakeClock(START + 3 * HOUR)
        self.mill = Mill.open(root, clock=self.clock)
        self.sent: list[Sent] = []
        self.ids: list[str] = []

    def land(self, records: Sequence[dict[str, object] | None], *, settle: bool = True) -> str:
        """Land a slice, an hour after the one before, and run rounds; its id."""
        lines = ["no JSON" if one is None else json.dumps(one) for one in records]
        landed = self.mill.land(
            "shop", "\n".join(lines).encode(), name=f"slice-{len(self.ids)}", source="test"
        )
        arrival = landed.entry.slice.arrival
        for line, one in enumerate(records, 1):
            self.sent.append(Sent(len(self.ids), line, arrival, one, self._decided(one)))
        self.ids.append(landed.entry.id)
        if settle:
            self.mill.run_until_idle()
        self.clock.advance(HOUR)
        return landed.entry.id

    def _decided(self, one: dict[str, object] | None) -> str:
        if one is None or not isinstance(one.get("ts"), int):
            return "rejected"
        key = (one["tenant"], one["id"])
        first = next(
            (each for each in self.accepted() if (each.event["tenant"], each.event["id"]) == key), None
        )
        if first is None:
            return "accepted"
        return "duplicate" if first.event == one else "conflict"

    def accepted(self, *, by: int | None = None, tenant: str | None = None) -> list[Sent]:
        """Events that count: of what had arrived by an instant, of one tenant."""
        return [
            one
            for one in self.sent
            if one.outcome == "accepted"
            and (by is None or one.arrival <= by)
            and (tenant is None or one.event["tenant"] == tenant)
        ]


def shop_at(root: Path, project: str = PROJECT) -> ShopStory:
    """All slices landed and worked through."""
    shop = ShopStory(root, project)
    for records in slices():
        shop.land(records)
    return shop


__all__ = ["HOUR", "MINUTE", "PROJECT", "SECOND", "START", "Sent", "ShopStory", "event", "shop_at", "slices"]
