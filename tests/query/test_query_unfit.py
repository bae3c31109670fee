"""A field is declared again with a type that cannot hold the values of accepted events: no number leaves them
out without saying so.

Twelve payments, one every ten minutes from 09:00; that of 10:10, in shop b, has an amount of fourteen digits,
which fits a scale of 2 and not one of 6. That of 10:30 has none at all, and is no loss."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pytest

from tidemill.mill import Mill
from tidemill.model.errors import IncompleteError
from tidemill.model.time import DAY, HOUR, MINUTE, parse_instant
from tidemill.query import Answer
from tidemill.testing import FakeClock

NINE = parse_instant("2024-03-15T09:00:00Z")
LARGE = "99999999999999.25"
CENTS, MICROS = "{type: decimal, scale: 2}", "{type: decimal, scale: 6}"
STREAM = """version: 1
streams:
  payments:
    schema:
      id: {type: string, required: true}
      at: {type: integer, required: true}
      shop: string
      amount: %(amount)s
      order: string
      status: %(status)s
    event_time: {column: at, type: unixtimestamp_s}
    identity: id
    keep_payload: %(keep)s
    retention: {%(retention)s}
    metrics:
      payments: {kind: counter, dimensions: [shop], measures: [amount]}
      limited: {kind: counter, dimensions: [shop], measures: [amount], max_cardinality: 5}
      last: {kind: gauge, value: amount, dimensions: [shop]}
      large: {kind: counter, dimensions: [shop], filter: amount > 5}
      sizes: {kind: histogram, value: amount, dimensions: [shop]}
      orders: {kind: state, object: order, state: status}
      by_status: {kind: counter, dimensions: [status]}
    windows:
      hours: {kind: tumbling, size: 1h, aggregates: {total: sum(amount), n: count}}
"""
HOURS = "BETWEEN 2024-03-15T09:00:00Z AND 2024-03-15T11:00:00Z INTERVAL 1h"


@dataclass
class Payments:
    folder: Path
    clock: FakeClock
    keep: str = "true"

    def declare(self, amount: str = CENTS, status: str = "string", retention: str = "") -> None:
        text = STREAM % {"amount": amount, "status": status, "keep": self.keep, "retention": retention}
        (self.folder / "tidemill.yaml").write_text(text)
        self.round()

    def round(self, *records: dict[str, object]) -> None:
        text = "".join(json.dumps(each) + "\n" for each in records).replace(f'"{LARGE}"', LARGE)
        with self.open() as mill:
            if records:
                mill.land("payments", text.encode())
            mill.tick()

    def open(self) -> Mill:
        return Mill.open(self.folder, clock=self.clock)

    def ask(self, text: str, **how: object) -> Answer:
        with self.open() as mill:
            found = mill.ask(text, **how)
        assert isinstance(found, Answer)
        return found


def payment(number: int) -> dict[str, object]:
    amount = {7: LARGE, 9: None}.get(number, number)
    return {
        "id": f"p{number}",
        "at": (NINE + number * 10 * MINUTE) // 10**6,
        "shop": "ab"[number % 2],
        "amount": amount,
        "order": "o1",
        "status": ["NEW", "PAID"][number % 2],
    }


@pytest.fixture(params=["true", "false"])
def payments(request, tmp_path) -> Payments:
    found = Payments(tmp_path, FakeClock(NINE + 3 * HOUR), request.param)
    found.declare()
    found.round(*map(payment, range(12)))
    return found


def missing(answer: Answer) -> list[tuple[str, str]]:
    return [(one.why, one.detail) for one in answer.completeness.missing]


DETAIL = (
    "1 event has a value of 'amount' that does not fit its type (decimal of scale 6): numbers that depend on "
    "it are not known"
)
WHAT = ("unfit", DETAIL)


def test_a_sum_that_lacks_a_value_is_null_and_says_why(payments):
    payments.declare(MICROS)
    answer = payments.ask("SELECT count, sum(amount), avg(amount), min(amount), max(amount) FROM payments")
    assert answer.table.to_pylist() == [
        {"count": 12, "sum(amount)": None, "avg(amount)": None, "min(amount)": None, "max(amount)": None}
    ]
    assert missing(answer) == [WHAT]
    assert "18 digits" in answer.completeness.missing[0].remedy
    assert not answer.completeness.complete
    with pytest.raises(IncompleteError, match="'amount' that does not fit"):
        payments.ask("SELECT sum(amount) FROM payments", strict=True)
    assert missing(payments.ask("SELECT count FROM payments", strict=True)) == []


def test_the_remedy_gives_all_numbers_back(payments):
    payments.declare(MICROS)
    payments.declare(CENTS)
    answer = payments.ask("SELECT sum(amount) AS s, max(amount) AS m FROM payments")
    whole = sum(n for n in range(12) if n not in (7, 9)) + Decimal(LARGE)
    assert answer.table.to_pylist() == [{"s": whole, "m": Decimal(LARGE)}]
    assert missing(answer) == []


def test_only_the_cell_and_group_of_the_event_lack_their_numbers(payments):
    payments.declare(MICROS)
    answer = payments.ask(f"SELECT count AS n, sum(amount) AS s FROM payments {HOURS} GROUP BY shop")
    found = [(row["bucket"].hour, row["shop"], row["n"], row["s"]) for row in answer.table.to_pylist()]
    assert found == [(9, "a", 3, 6), (9, "b", 3, 9), (10, "a", 3, 24), (10, "b", 3, None)]
    assert missing(answer) == [WHAT]
    other = payments.ask("SELECT sum(amount) AS s FROM payments WHERE shop = 'a'")
    assert (other.table.to_pylist(), missing(other)) == ([{"s": 30}], [])


@pytest.mark.parametrize(
    "text",
    [
        "SELECT sum(amount) AS v FROM payments FILTER shop = 'b'",
        "SELECT sum(amount) AS v FROM payments BETWEEN 2024-03-15T10:09:59Z AND 2024-03-15T10:10:02Z",
        "SELECT value AS v FROM payments.last BETWEEN 2024-03-15T10:00:00Z AND 2024-03-15T10:20:00Z",
        "SELECT count AS v FROM payments.last",
        "SELECT p50 AS v FROM payments.sizes",
        "SELECT sum(amount) AS v FROM payments.limited",
        "SELECT count AS v FROM payments.large",
        "SELECT sum(amount) / count AS v FROM payments",
        "SELECT ratio(large, payments) AS v FROM payments",
    ],
)
def test_every_value_that_depends_on_it_is_null(payments, text):
    payments.declare(MICROS)
    answer = payments.ask(text)
    assert answer.table.column("v").to_pylist() == [None]
    assert missing(answer) == [WHAT]


def test_what_does_not_depend_on_it_is_whole(payments):
    payments.declare(MICROS)
    for text, expected in (
        ("SELECT sum(amount) AS v FROM payments FILTER shop = 'a'", 30),
        ("SELECT sum(amount) AS v FROM payments BETWEEN 2024-03-15T10:20:00Z AND 2024-03-16", 8 + 10 + 11),
        ("SELECT count(*) AS v FROM payments.last", 12),
        ("SELECT states AS v FROM payments.orders", 1),
    ):
        answer = payments.ask(text)
        assert (answer.table.column("v").to_pylist(), missing(answer)) == ([expected], []), text


def test_nothing_is_carried_over_it(payments):
    payments.declare(MICROS)
    answer = payments.ask(f"SELECT value AS v FROM payments.last {HOURS.replace('1h', '10m')} FILL carry")
    # 10:30 has no value, and the last one before it is that of 10:20
    assert answer.table.column("v").to_pylist() == [0, 1, 2, 3, 4, 5, 6, None, 8, 8, 10, 11]
    later = "BETWEEN 2024-03-15T10:15:00Z AND 2024-03-15T10:20:00Z INTERVAL 5m FILL carry"
    assert payments.ask(f"SELECT value AS v FROM payments.last {later}").table.column("v").to_pylist() == [
        None
    ]
    known = "BETWEEN 2024-03-15T10:35:00Z AND 2024-03-15T10:45:00Z INTERVAL 5m GROUP BY shop FILL carry"
    answer = payments.ask(f"SELECT value AS v FROM payments.last {known}")
    found = [(row["bucket"].minute, row["shop"], row["v"]) for row in answer.table.to_pylist()]
    # the last value of shop b before that is not known
    assert found == [(35, "a", 8), (35, "b", None), (40, "a", 10), (40, "b", None)]


def test_it_stays_said_when_raw_has_expired(payments):
    payments.declare(MICROS, retention="raw: 1d")
    payments.clock.advance(3 * DAY)
    payments.round(payment(0) | {"id": "new", "at": (NINE + 3 * DAY) // 10**6})
    with payments.open() as mill:
        mill.retention.expire(mill.retention.plan())
        assert mill.warehouse.expiries.horizons("payments")["raw"] > NINE + 12 * HOUR
    answer = payments.ask("SELECT sum(amount) AS v FROM payments BETWEEN 2024-03-15 AND 2024-03-16")
    assert answer.table.to_pylist() == [{"v": None}]
    assert missing(answer) == [WHAT]
    assert answer.completeness.missing[0].remedy.startswith("Nothing can be done")


def test_another_type_of_a_dimension_makes_its_group_unknown(payments):
    payments.declare(status="integer")
    answer = payments.ask("SELECT count AS n FROM payments.by_status GROUP BY status")
    assert answer.table.to_pylist() == [{"status": None, "n": None}]
    assert [one.why for one in answer.completeness.missing] == ["unfit"]
    assert payments.ask("SELECT count AS n FROM payments.by_status").table.to_pylist() == [{"n": 12}]


def test_objects_whose_state_does_not_fit_are_not_known_from_there_on(payments):
    payments.declare(status="integer")
    answer = payments.ask("SELECT states AS n FROM payments.orders")
    assert answer.table.to_pylist() == [{"n": None}]
    assert [one.why for one in answer.completeness.missing] == ["unfit"]
    later = payments.ask("SELECT transitions AS n FROM payments.orders BETWEEN 2024-03-16 AND 2024-03-17")
    assert later.table.to_pylist() == [{"n": None}]


def test_sql_and_results_of_streaming_windows_say_it(payments):
    payments.declare(MICROS)
    with payments.open() as mill:
        mill.run_until_idle()
        raw = mill.sql("SELECT count(*) FROM raw.payments")
        rollups = mill.sql("SELECT count(*) FROM rollups.payments")
        results = mill.sql("SELECT count(*) FROM windows.payments_hours")
        of_window = mill.missing_results("payments", "hours")
        before = mill.missing_results("payments", "hours", end="2024-03-15T10:00:00Z")
    for answer in (raw, rollups, results):
        assert [one.why for one in answer.completeness["payments"].missing] == ["unfit"]
    assert [(one.why, str(one.span)) for one in of_window] == [
        ("unfit", "[2024-03-15T10:10:00Z, 2024-03-15T10:10:00.000001Z)")
    ]
    assert before == []


def test_a_tenant_is_not_told_of_the_values_of_another(tmp_path):
    text = (STREAM % {"amount": CENTS, "status": "string", "keep": "true", "retention": ""}).replace(
        "    identity: id\n", "    identity: id\n    tenant: {column: shop}\n"
    )
    found = Payments(tmp_path, FakeClock(NINE + 3 * HOUR))
    (tmp_path / "tidemill.yaml").write_text(text)
    found.round(*map(payment, range(12)))
    (tmp_path / "tidemill.yaml").write_text(
        text.replace("amount: {type: decimal, scale: 2}", f"amount: {MICROS}")
    )
    found.round()
    for tenant, sum_, lacks in (("a", 30, []), ("b", None, [WHAT])):
        answer = found.ask("SELECT sum(amount) AS s FROM payments", tenant=tenant)
        assert (answer.table.to_pylist(), missing(answer)) == ([{"s": sum_}], lacks)
