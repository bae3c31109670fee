"""A shop that SQL is run over: events in plain Python, and a mill that took them, the last ones late."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from tidemill.mill import Mill
from tidemill.model.time import HOUR, MINUTE, SECOND, parse_instant
from tidemill.testing import FakeClock

NOON = parse_instant("2024-01-15T12:00:00Z")
CONFIG = """
version: 1
streams:
  orders:
    schema:
      id: {type: string, required: true}
      at: {type: integer, required: true}
      tenant: {type: string, required: true}
      region: string
      site.name: string
      amount: {type: decimal, scale: 2}
      waited: integer
      stage: string
    event_time: {column: at, type: unixtimestamp_s, late_tolerance: 1s}
    identity: id
    tenant: {column: tenant}
    metrics:
      sold: {kind: counter, dimensions: [region, site.name], measures: [amount]}
      price: {kind: gauge, value: amount, dimensions: [region]}
      waiting: {kind: histogram, value: waited, bounds: [0, 10, 20]}
      queue: {kind: histogram, value: waited, accuracy: 0.1}
      stages: {kind: state, object: region, state: stage}
    aggregation_span: 1h
    subject_to_change_window: 1d
    allow_incomplete_windows: true
    windows:
      ten:
        kind: tumbling
        size: 10m
        group_by: region
        aggregates: {n: count, total: sum(amount)}
        late: {policy: reemit, max_lateness: 1d}
  select:
    schema:
      id: {type: string, required: true}
      at: {type: integer, required: true}
      size: integer
      window_start: integer
    event_time: {column: at, type: unixtimestamp_s}
    identity: id
    tenant: {value: shop}
    aggregation_span: 1d
    allow_incomplete_windows: true
  empty:
    schema: {id: {type: string, required: true}, at: {type: integer, required: true}, n: integer}
    event_time: {column: at, type: unixtimestamp_s}
    identity: id
    aggregation_span: 1h
    metrics: {seen: {kind: counter, measures: [n]}}
    windows: {all: {kind: tumbling, size: 1h, aggregates: {n: count}}}
"""


@dataclass(frozen=True)
class Order:
    id: str
    at: int  # seconds
    tenant: str
    region: str | None
    site: str | None
    amount: Decimal | None
    waited: int | None
    stage: str

    @property
    def time(self) -> int:
        return self.at * SECOND

    def line(self) -> str:
        said = {"id": self.id, "at": self.at, "tenant": self.tenant, "stage": self.stage}
        said |= {"region": self.region} if self.region is not None else {}
        said |= {"site": {"name": self.site}} if self.site is not None else {}
        said |= {"waited": self.waited} if self.waited is not None else {}
        text = json.dumps(said)
        return text if self.amount is None else f'{text[:-1]}, "amount": {self.amount}}}'


def order(number: int, at: int) -> Order:
    """Order after order, with whatever an order can have."""
    return Order(
        id=f"o{number:04}",
        at=at // SECOND,
        tenant=("acme", "globex")[number % 2],
        region=("eu", "us", None)[number % 3],
        site=f"site {number % 4}" if number % 5 else None,
        amount=Decimal(number * 37 % 1000 - 100) / 100 if number % 7 else None,
        waited=number * 13 % 41 - 5 if number % 11 else None,
        stage=("new", "paid", "sent")[number // 5 % 3],
    )


EARLY = [order(number, NOON - 3 * HOUR + number * 47 * SECOND) for number in range(160)]
LATER = [order(number, NOON - 40 * MINUTE + number * SECOND) for number in range(160, 200)]
LATE = [order(number, NOON - 3 * HOUR + number * 11 * SECOND) for number in range(200, 230)]
ORDERS = [*EARLY, *LATER, *LATE]
BROKEN = (
    '{"id": "x1", "at": "soon", "tenant": "acme"}',
    '{"id": "x2"',
    '{"id": "x3", "at": 1, "tenant": "globex"',
)
SIZES = {"a": 3, "b": 5}


def lines(records: Iterable[str]) -> bytes:
    return ("\n".join(records) + "\n").encode()


def build_shop(folder: Path, *, config: str = CONFIG) -> FakeClock:
    """The warehouse in `folder`, and the clock it was made by."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tidemill.yaml").write_text(config, encoding="utf-8")
    clock = FakeClock(NOON)
    with Mill.open(folder, clock=clock) as mill:
        for records in (
            [*(one.line() for one in EARLY), *BROKEN],
            *([one.line() for one in some] for some in (LATER, LATE)),
        ):
            mill.land("orders", lines(records))
            mill.run_until_idle()
            clock.advance(MINUTE)
        at = {"at": NOON // SECOND, "window_start": 1}
        sizes = (json.dumps({"id": name, "size": size, **at}) for name, size in SIZES.items())
        mill.land("select", lines(sizes))
        mill.run_until_idle()
    return clock


def only(tenant: str | None, orders: Iterable[Order] = ORDERS) -> list[Order]:
    return [one for one in orders if tenant is None or one.tenant == tenant]
