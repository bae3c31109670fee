"""The orders example by its values: metrics of every kind, whatever comes late, twice or changed, and whoever
makes them again."""

from __future__ import annotations

import itertools
import json
import runpy
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from tidemill.mill import Mill
from tidemill.model.errors import QueryError
from tidemill.model.time import parse_instant
from tidemill.testing import FakeClock

pytestmark = pytest.mark.long

EXAMPLE = Path(__file__).parents[2] / "examples" / "orders"
DAY = date(2024, 1, 15)
KNOWN = ("orders-1", "orders-2", "orders-3")
STATES = "SELECT states FROM orders.progress USING ROLLUP 1h GROUP BY state"
CHANGES = "SELECT transitions FROM orders.progress GROUP BY from_state, to_state"
QUESTIONS = (
    "SELECT count, sum(amount), avg(amount), max(amount) FROM orders USING ROLLUP 5s GROUP BY channel",
    "SELECT count, sum(amount) FROM orders USING ROLLUP 7d GROUP BY channel",
    "SELECT count FROM orders.countries USING ROLLUP 1m GROUP BY customer.country",
    "SELECT value, min, first FROM orders.stock USING ROLLUP 1h GROUP BY sku FILL carry",
    "SELECT count, p50, p99.9 FROM orders.took USING ROLLUP 1d GROUP BY channel",
    "SELECT ratio FROM orders.failure_rate USING ROLLUP 1h GROUP BY channel FILL null",
    "SELECT transitions, transitions(lost) FROM orders.progress USING ROLLUP 5s GROUP BY from_state",
    STATES,
)


@dataclass
class Shop:
    """The example on a clock that is set by hand; every act opens it anew, as another process would."""

    root: Path
    lines: Callable[[str, date], bytes]
    clock: FakeClock = field(default_factory=lambda: FakeClock(parse_instant("2024-01-15T14:00:00Z")))

    def open(self) -> Mill:
        return Mill.open(self.root, clock=self.clock)

    def land(self, *names: str) -> list[dict[str, int]]:
        """What became of the records of each."""
        with self.open() as mill:
            ids = []
            for name in names:
                self.clock.advance("1s")
                landed = mill.land("orders", self.lines(name, DAY), name=f"{name}.ndjson")
                ids.append(landed.entry.id)
            mill.run_until_idle()
            counts = [mill.slice(slice_id).counts for slice_id in ids]
        return [{"accepted": c.accepted, "duplicate": c.duplicate, "conflict": c.conflict} for c in counts]

    def ask(self, query: str) -> list[tuple[object, ...]]:
        """Rows; a bucket by its time of day."""
        with self.open() as mill:
            found = mill.query(query).to_pylist()
        return [
            tuple(f"{value:%H:%M}" if name == "bucket" else value for name, value in row.items())
            for row in found
        ]

    def answers(self) -> list[list[tuple[object, ...]]]:
        return [self.ask(question) for question in QUESTIONS]

    def found(self, text: str) -> list[str]:
        with self.open() as mill:
            return mill.search("orders", text).rows.column("event_id").to_pylist()


@pytest.fixture
def new_shop(tmp_path: Path) -> Callable[[], Shop]:
    numbers = itertools.count()

    def make() -> Shop:
        root = tmp_path / f"shop {next(numbers)}"
        shutil.copytree(EXAMPLE, root, ignore=shutil.ignore_patterns("data", "warehouse"))
        return Shop(root, runpy.run_path(str(root / "make.py"))["lines"])

    return make


@pytest.fixture
def shop(new_shop: Callable[[], Shop]) -> Shop:
    return new_shop()


def test_metrics_of_every_kind_have_the_values_that_the_orders_say(shop: Shop) -> None:
    assert shop.land(*KNOWN) == [
        {"accepted": 13, "duplicate": 0, "conflict": 0},
        {"accepted": 8, "duplicate": 0, "conflict": 0},
        {"accepted": 7, "duplicate": 2, "conflict": 1},
    ]
    assert shop.ask("SELECT count, sum(amount) FROM orders GROUP BY channel") == [
        ("app", 3, Decimal("65.00")),
        ("phone", 1, Decimal("7.50")),
        ("web", 5, Decimal("244.70")),
    ]
    assert shop.ask("SELECT count FROM orders.countries GROUP BY customer.country") == [
        ("__other__", 2), ("de", 5), ("fr", 2),
    ]  # fmt: skip
    [(p50, p99, most)] = shop.ask("SELECT p50, p99, max FROM orders.took")
    assert float(str(p50)) == pytest.approx(230, rel=0.01)
    assert float(str(p99)) == pytest.approx(2400, rel=0.01)
    assert most == 2400
    assert shop.ask("SELECT ratio FROM orders.failure_rate INTERVAL 30m FILL null") == [
        ("10:00", Decimal("0.25")),
        ("10:30", None),
        ("11:00", 0),
        ("11:30", 1),
        ("12:00", 0),
    ]


def test_lost_orders_are_told_with_how_far_they_came(shop: Shop) -> None:
    shop.land(*KNOWN)
    assert shop.ask("SELECT transitions(lost) FROM orders.progress GROUP BY from_state") == [
        ("PAID", 1), ("PLACED", 3), ("REFUSED", 1),
    ]  # fmt: skip


def test_a_late_slice_changes_what_it_touches_and_nothing_else(shop: Shop) -> None:
    shop.land(*KNOWN)
    states, changes = set(shop.ask(STATES)), set(shop.ask(CHANGES))
    stock = "SELECT value FROM orders.stock WHERE sku = 'shoes' INTERVAL 1h FILL carry"
    assert shop.ask(stock) == [("10:00", 18), ("11:00", 18), ("12:00", 17)]
    sums = shop.ask(QUESTIONS[0])
    shop.land("late")
    assert states - set(shop.ask(STATES)) == {("11:00", "PAID", 1), ("11:00", "PLACED", 1)}
    assert set(shop.ask(STATES)) - states == {("11:00", "PAID", 2), ("11:00", "PLACED", 0)}
    assert changes - set(shop.ask(CHANGES)) == {
        ("PLACED", "SENT", 1), ("PLACED", "PAID", 4), ("PAID", "SENT", 3),
    }  # fmt: skip
    assert set(shop.ask(CHANGES)) - changes == {("PLACED", "PAID", 5), ("PAID", "SENT", 4)}
    assert shop.ask(stock) == [("10:00", 18), ("11:00", 16), ("12:00", 17)]
    assert shop.ask(QUESTIONS[0]) == sums


def test_the_order_of_arrival_decides_nothing_but_who_has_a_row(new_shop: Callable[[], Shop]) -> None:
    one, other = new_shop(), new_shop()
    one.land(*KNOWN, "late")
    for name in ("orders-1", "late", "orders-2", "orders-3"):
        other.land(name)
    assert other.answers() == one.answers()


def test_rollups_and_index_made_again_by_another_process_are_the_same(shop: Shop) -> None:
    """With the keys that were admitted: a process that accepts nothing has to read who they are."""
    shop.land(*KNOWN, "late")
    before, gifts = shop.answers(), shop.found('WHERE tags = "gift"')
    with shop.open() as mill:
        assert len(mill.remake.rollups("orders").tiles) == 17
    with shop.open() as mill:
        mill.remake.index("orders")
    assert shop.answers() == before
    assert shop.found('WHERE tags = "gift"') == gifts
    with shop.open() as mill:
        assert mill.verify().findings == []


def test_search_goes_into_arrays_and_pages_do_not_see_what_lands_meanwhile(shop: Shop) -> None:
    shop.land(*KNOWN)
    assert shop.found('WHERE status = "REFUSED" FILTER note LIKE "%bank%"') == ["o-7-REFUSED-11:52:33"]
    text = 'WHERE items.sku = "socks" ORDER BY ts LIMIT 6'
    with shop.open() as mill:
        first = mill.search("orders", text, total=True)
    shop.land("late")  # a payment of socks
    with shop.open() as mill:
        after = mill.search("orders", text, cursor=first.cursor)
    assert (first.total, after.cursor) == (10, None)
    assert after.rows.column("event_id").to_pylist() == [
        "o-8-PLACED-12:12:00", "o-8-PAID-12:12:21", "o-6-SENT-12:20:00", "o-9-PLACED-12:25:00",
    ]  # fmt: skip
    with pytest.raises(QueryError) as refused:
        shop.found('WHERE note = "card expired"')
    assert "customer.country, items.sku, order, status, tags" in str(refused.value.hint)


def test_the_catalogue_tells_what_there_is_to_ask_for(shop: Shop) -> None:
    shop.land(*KNOWN)
    with shop.open() as mill:
        [orders] = mill.catalog()
    assert {metric.name: metric.kind for metric in orders.metrics} == {
        "orders": "counter", "successes": "counter", "failures": "counter", "failure_rate": "ratio",
        "countries": "counter", "stock": "gauge", "took": "histogram", "progress": "state",
    }  # fmt: skip
    ratio = next(metric for metric in orders.metrics if metric.kind == "ratio")
    assert (ratio.of, ratio.detail) == (["failures", "successes"], "failures / (successes + failures)")
    assert orders.attributes is not None
    tags = next(one for one in orders.attributes.attributes if one.path == "tags")
    assert dict(tags.top) == {"gift": 6, "express": 3}


def test_what_is_old_goes_and_what_was_made_of_it_stays(shop: Shop) -> None:
    shop.land(*KNOWN, "late")
    hours = shop.ask(STATES)
    shop.clock.advance("10d")
    with shop.open() as mill:
        gone = mill.retention.expire(mill.retention.plan("orders"))
        assert [step.what for step in gone if step.files] == ["rollups:5s"]
        assert mill.verify().findings == []
    assert shop.ask(STATES) == hours


def test_the_generator_gives_the_same_bytes_again(shop: Shop) -> None:
    stock, *_, sent = (json.loads(line) for line in shop.lines("orders-1", DAY).splitlines())
    assert stock == {
        "id": "stock-shoes-10:00:00", "at": "2024-01-15T10:00:00Z",
        "kind": "stock", "sku": "shoes", "stock": 20,
    }  # fmt: skip
    assert sent == {
        "id": "o-1-SENT-10:48:20", "at": "2024-01-15T10:48:20Z", "kind": "order", "order": "o-1",
        "status": "SENT", "channel": "web", "amount": 67.4, "took_ms": 310, "customer": {"country": "de"},
        "items": [{"sku": "shoes", "price": 59.9}, {"sku": "socks", "price": 7.5}], "tags": [],
    }  # fmt: skip
