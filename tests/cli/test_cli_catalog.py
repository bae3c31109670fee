"""`tidemill catalog`: what there is to ask for, for people and programs."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.long

PROJECT = """
version: 1
streams:
  orders:
    description: What was bought
    keywords: [shop]
    schema:
      id: {type: string, required: true}
      kind: {type: string, required: true}
      shop: {type: string, required: true}
      step: string
      price: {type: decimal, scale: 2}
    event_time: {mode: processing}
    event_type: {column: kind, allowed: [order, refund]}
    identity: id
    tenant: {column: shop}
    indexed: [region, price, gift]
    metrics:
      orders: {kind: counter, dimensions: [kind], measures: [price], max_cardinality: 100}
      refunds: {kind: counter, filter: 'kind = "refund"'}
      prices: {kind: histogram, value: price, accuracy: 0.02}
      steps: {kind: state, object: id, state: step, transitions: {paid: {to: [paid]}}}
      refunded: {kind: ratio, numerator: refunds, denominator: orders}
  plain:
    schema: {id: string}
    identity: id
    event_time: {mode: processing}
"""
LINES = [
    {"id": "1", "kind": "order", "shop": "acme", "region": "eu", "price": 1.50, "gift": True},
    {"id": "2", "kind": "order", "shop": "acme", "region": "eu", "price": 2},
    {"id": "3", "kind": "refund", "shop": "globex", "region": "[bold]us"},
]


@pytest.fixture
def shop(cli, tmp_path, monkeypatch):
    (tmp_path / "tidemill.yaml").write_text(PROJECT)
    monkeypatch.chdir(tmp_path)
    lines = "".join(json.dumps(line) + "\n" for line in LINES)
    far = '{"id": "4", "kind": "order", "shop": "globex", "region": "eu", "price": 2.00, "gift": 1e99999}\n'
    assert cli("ingest", "orders", "-", "--format", "ndjson", stdin=lines + far).code == 0
    assert cli("run", "--once").code == 0
    return tmp_path


def test_the_catalog_names_the_tenants_of_a_stream(cli, shop, monkeypatch):
    assert "tenants acme, globex" in " ".join(cli("catalog", "orders").out.split())
    one = cli("catalog", "orders", "--tenant", "acme", "--output", "json").json["streams"][0]
    assert one["tenants"] == {"names": ["acme"], "more": 0}
    none = cli("catalog", "orders", "--tenant", "initech", "--output", "json").json["streams"][0]
    assert none["tenants"] == {"names": [], "more": 0}
    monkeypatch.setattr("tidemill.query.tenants.MOST_LISTED", 1)
    assert "tenants acme and 1 more" in " ".join(cli("catalog", "orders").out.split())


def test_the_catalog_in_json(cli, shop):
    done = cli("catalog", "--output", "json")
    orders, plain = done.json["streams"]
    assert (orders["stream"], orders["description"], orders["keywords"]) == (
        "orders", "What was bought", ["shop"],
    )  # fmt: skip
    assert orders["event_types"] == ["order", "refund"]
    assert orders["fields"]["price"] == "decimal"
    metrics = {metric.pop("metric"): metric for metric in orders["metrics"]}
    assert list(metrics) == ["orders", "refunds", "prices", "steps", "refunded"]
    assert metrics["orders"] == {
        "kind": "counter",
        "dimensions": ["kind"],
        "values": ["count", "rate", "sum(price)", "avg(price)", "min(price)", "max(price)"],
        "of": ["price"],
        "filter": None,
        "max_cardinality": 100,
        "detail": "",
    }
    assert metrics["refunds"]["filter"] == 'kind = "refund"'
    assert metrics["steps"]["values"] == ["states", "transitions", "transitions(paid)"]
    assert metrics["refunded"]["detail"] == "refunds / orders"
    assert orders["tenants"] == {"names": ["acme", "globex"], "more": 0}
    assert plain["tenants"] is None
    found = orders["attributes"]
    assert (found["events"], found["parts"], found["left_out"]) == (4, 1, 0)
    paths = {one["path"]: one for one in found["paths"]}
    assert paths["region"]["top"] == [{"value": "eu", "events": 3}, {"value": "[bold]us", "events": 1}]
    assert paths["price"]["top"] == [{"value": 2, "events": 2}, {"value": 1.5, "events": 1}]
    assert (paths["gift"]["kinds"], paths["gift"]["events"]) == (["boolean", "number"], 2)
    assert '"value":1E+99999,' in done.out  # as it was sent, not spelled out
    assert (plain["metrics"], plain["attributes"]) == ([], None)


def test_values_of_one_tenant(cli, shop):
    (orders,) = cli("catalog", "orders", "--tenant", "globex", "--output", "json").json["streams"]
    assert orders["attributes"]["events"] == 2
    region = orders["attributes"]["paths"][0]
    assert {one["value"]: one["events"] for one in region["top"]} == {"eu": 1, "[bold]us": 1}


def test_the_catalog_for_people(cli, shop):
    done = cli("catalog")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert "description What was bought" in lines
    assert "event types order, refund" in lines
    assert "indexed 4 events in 1 part" in lines
    assert "region string 4 2 eu (3), [bold]us (1)" in lines
    assert "price number 3 2 2 (2), 1.5 (1)" in lines
    assert "prices histogram count, rate, sum, avg, min, max, p50, p99.9 price " in " ".join(lines)
    assert any(line.startswith("refunded ratio") and line.endswith("refunds / orders") for line in lines)
    assert any("100 keys at most" in line for line in lines)
    assert "indexed nothing" in lines
    assert "a search can name in WHERE" in done.err
    assert cli("catalog", "orders").err == ""


def test_an_unknown_stream_is_named(cli, shop):
    done = cli("catalog", "nope", "--output", "json")
    assert (done.code, done.error["hint"]) == (2, "streams: orders, plain")
