"""`tidemill search`: pages of events for people and programs, and whose events they are."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from decimal import Decimal

import pytest

from tidemill.mill import Mill

PROJECT = """
version: 1
streams:
  orders:
    schema:
      id: {type: string, required: true}
      at: {type: string, required: true}
      shop: {type: string, required: true}
      kind: {type: string, required: true}
    event_time: {column: at, type: iso8601}
    event_type: {column: kind, allowed: [order, refund]}
    identity: id
    tenant: {column: shop}
    skew: {past: null, future: null}
    indexed: [region, tags, price]
    metrics: {orders: {kind: counter}}
  alone:
    schema: {id: string, shop: string}
    identity: id
    event_time: {mode: processing}
    tenant: {column: shop}
    metrics: {seen: {kind: counter}}
  ours:
    schema: {id: string}
    identity: id
    event_time: {mode: processing}
    tenant: {value: acme}
    metrics: {seen: {kind: counter}}
"""
LONG = "x" * 200


def order(number, shop, region, **more):
    start = {"id": f"o{number}", "at": f"2024-01-15T12:00:0{number}Z", "shop": shop, "kind": "order"}
    return json.dumps({**start, "region": region, **more}, ensure_ascii=False)


ORDERS = [
    order(1, "acme", "eu", tags=["a", "b"], price=1),
    order(2, "acme", "us", note="naïve\u2028"),
    order(3, "globex", "eu", price=2, note=LONG),
    order(4, "acme", "eu", tags=["a"]).replace("}", ', "price": 12345678901234567890.10}'),
    order(5, "globex", "eu"),
]


def land(cli, stream, *lines):
    done = cli("ingest", stream, "-", "--format", "ndjson", stdin="\n".join(lines) + "\n")
    assert done.code == 0, done


@pytest.fixture
def shop(cli, tmp_path, monkeypatch):
    """Orders of two tenants, accepted and indexed."""
    (tmp_path / "tidemill.yaml").write_text(PROJECT)
    monkeypatch.chdir(tmp_path)
    land(cli, "orders", *ORDERS)
    land(cli, "alone", '{"id": "1", "shop": "acme"}', '{"id": "2", "shop": "acme"}')
    land(cli, "ours", '{"id": "1"}')
    done = cli("run", "--once")
    assert done.code == 0, done
    assert re.search(r"orders: 1 slice, .*; 1 index part built; ", done.out)
    return tmp_path


def found(cli, *arguments, **more):
    done = cli("search", *arguments, "--output", "json", **more)
    assert done.code == 0, done
    return done.json


def ids(document):
    return [row["event_id"] for row in document["rows"]]


def test_a_search_in_json_has_rows_total_cursor_and_facts(cli, shop):
    page = found(cli, "orders", 'WHERE region = "eu"', "--tenant", "acme", "--limit", "1", "--total")
    assert (page["stream"], page["tenant"], page["total"], page["span"]) == ("orders", "acme", 2, None)
    (row,) = page["rows"]
    assert list(row) == [
        "event_time", "tenant", "event_id", "event_type", "arrival", "slice", "line", "payload",
    ]  # fmt: skip
    assert (row["event_time"], row["event_type"], row["line"]) == ("2024-01-15T12:00:04Z", "order", 4)
    assert (page["facts"]["parts"], page["facts"]["scanned"], page["facts"]["rows_filtered"]) == (1, 0, 0)
    last = found(
        cli, "orders", 'WHERE region = "eu"', "--tenant", "acme", "--limit", "1", "--cursor", page["cursor"]
    )
    assert (ids(last), last["cursor"], last["total"]) == (["o1"], None, None)


def test_payloads_are_json_values_digit_by_digit(cli, shop):
    text = cli("search", "orders", "WHERE price > 2", "--all-tenants", "--output", "json").out
    (row,) = json.loads(text, parse_float=Decimal)["rows"]
    assert row["payload"]["price"] == Decimal("12345678901234567890.10")
    note = cli("search", "orders", 'WHERE region = "us"', "--all-tenants", "--output", "json")
    assert note.out.isascii()
    assert note.json["rows"][0]["payload"]["note"] == "naïve\u2028"


def test_for_people_a_table_the_facts_and_the_next_page_to_paste(cli, shop):
    done = cli("search", "orders", 'WHERE region = "eu" LIMIT 2', "--all-tenants", "--total")
    assert (done.code, done.err) == (0, "")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert "time tenant id type payload" in lines
    assert [line.split()[:4] for line in lines if line.startswith("2024")] == [
        ["2024-01-15T12:00:05Z", "globex", "o5", "order"],
        ["2024-01-15T12:00:04Z", "acme", "o4", "order"],
    ]
    facts = next(line for line in lines if line.startswith("2 events of 4"))
    assert re.search(r"; 1 part, 0 pruned; 5 index entries, \d+ rows fetched; version 1$", facts)
    *_, option = lines
    name, cursor = option.removeprefix("next page: ").split()
    second = cli("search", "orders", 'WHERE region = "eu" LIMIT 2', "--all-tenants", name, cursor)
    assert "next page" not in second.out
    assert re.search(r"^ *2024-01-15T12:00:03Z .*region.*…\s*$", second.out, re.MULTILINE)
    assert LONG not in second.out
    assert "no events" in cli("search", "orders", 'WHERE region = "ap"', "--tenant", "acme").out


def test_the_text_may_be_a_document_or_come_on_standard_input(cli, shop):
    text = 'WHERE tags = "a" FILTER price >= 1 ORDER BY ts ASC'
    document = {
        "where": {"field": "tags", "op": "=", "value": "a"},
        "filter": {"field": "price", "op": ">=", "value": 1},
        "order_by": ["ts"],
    }
    expected = ["o1", "o4"]
    assert ids(found(cli, "orders", text, "--all-tenants")) == expected
    assert ids(found(cli, "orders", "-", "--all-tenants", stdin=text)) == expected
    assert ids(found(cli, "orders", json.dumps(document), "--all-tenants")) == expected
    assert ids(found(cli, "orders", "-", "--all-tenants", stdin=json.dumps(document))) == expected
    wrong = cli("search", "orders", "-", "--all-tenants", "--output", "json", stdin=b"\xff")
    assert (wrong.code, wrong.error["hint"]) == (2, "save the text as UTF-8")


def test_without_a_text_it_shows_the_newest_events(cli, shop):
    assert ids(found(cli, "orders", "--all-tenants", "--limit", "2")) == ["o5", "o4"]


def test_explain_prints_the_plan(cli, shop):
    plan = found(cli, "orders", 'EXPLAIN WHERE region = "eu" FILTER price > 1', "--tenant", "acme")
    assert (plan["stream"], plan["tenant"], plan["order"], plan["parts"]) == ("orders", "acme", "ts desc", 1)
    assert (plan["payloads"], plan["indexed"]) == (True, ["region", "tags", "price"])
    shown = cli("search", "orders", "EXPLAIN SINCE 2h", "--all-tenants").out
    words = " ".join(shown.split())
    assert "search of orders tenant all span [" in words
    assert "indexed region, tags, price" in words


def test_parts_without_an_index_are_said(cli, shop):
    (shop / "tidemill.yaml").write_text(PROJECT.replace("[region, tags, price]", "[region, tags]"))
    done = cli("search", "orders", 'WHERE tags = "b"', "--all-tenants")
    assert "1 part with 5 rows not indexed yet" in done.out
    (stream, *_) = cli("status", "--output", "json").json["streams"]
    assert stream["index"] == {"parts": 1, "unindexed_parts": 1}
    assert re.search(r"index +1 part; 1 raw part without", cli("status").out)


def test_a_round_tells_what_it_indexed(cli, shop):
    land(cli, "orders", order(6, "acme", "ap", tags=["c", "d"]))
    (line,) = cli("run", "--once", "--output", "json").out.splitlines()
    (stream,) = json.loads(line)["streams"]
    assert stream["index"] == {"built": 1, "removed": 0, "entries": 3}
    land(cli, "orders", order(7, "acme", "ap"))
    with Mill.open(shop) as mill:
        mill.meter.tick(mill.tick())
        assert 'tidemill_index_parts_built_total{stream="orders"} 1.0' in mill.meter.text()
    land(cli, "orders", order(7, "acme", "ap") + " ")  # a replay: nothing to index
    (line,) = cli("run", "--once", "--output", "json").out.splitlines()
    assert json.loads(line)["streams"][0]["index"] == {"built": 0, "removed": 0, "entries": 0}


# -- whose events


def test_a_stream_of_several_tenants_asks_which(cli, shop):
    for command in (["search", "orders"], ["search", "orders", "EXPLAIN"]):
        done = cli(*command, "--output", "json")
        assert (done.code, done.out) == (2, "")
        assert done.error["message"] == "stream 'orders' has events of several tenants, and none is named"
        assert "; tenants: acme, " in done.error["hint"]


def test_the_only_tenant_need_not_be_named(cli, shop):
    for stream, events in (("alone", 2), ("ours", 1)):
        page = found(cli, stream)
        assert (page["tenant"], len(page["rows"])) == ("acme", events)
    assert found(cli, "ours", "--all-tenants")["tenant"] is None
    assert cli("search", "ours", "--tenant", "globex", "--output", "json").error["hint"] == "tenants: acme"
    land(cli, "alone", '{"id": "3", "shop": "globex"}')
    assert cli("run", "--once").code == 0
    assert cli("search", "alone").code == 2
    assert len(found(cli, "alone", "--tenant", "globex")["rows"]) == 1


def test_one_tenant_and_all_of_them_contradict_each_other(cli, shop):
    done = cli("search", "orders", "--tenant", "acme", "--all-tenants", "--output", "json")
    assert (done.code, done.error["message"]) == (2, "both one tenant and all tenants are requested")


# -- what goes wrong


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["nope"], "not_found", "orders"),
        (["orders", "WHERE note = 1", "--all-tenants"], "query", "indexed: price, region, tags, tenant"),
        (["orders", "WHERE shop", "--all-tenants"], "query", "one of ="),
        (["orders", "LIMIT 0", "--all-tenants"], "query", "LIMIT is 1 to 100000"),
        (["orders", "--limit", "0"], "usage", "tidemill search --help"),
        (["orders", "--engine", "abacus"], "usage", "tidemill search --help"),
        (["orders", "--cursor", "zzz", "--all-tenants"], "query", ""),
    ],
    ids=" ".join,
)
def test_wrong_searches_have_a_code_and_a_hint(cli, shop, arguments, code, says):
    if code == "usage":
        done = subprocess.run(
            [sys.executable, "-m", "tidemill.cli.main", "search", *arguments, "--output", "json"],
            cwd=shop, capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        error, left = json.loads(done.stderr)["error"], done.returncode
    else:
        ran = cli("search", *arguments, "--output", "json")
        error, left = ran.error, ran.code
    assert (left, error["code"]) == (2, code)
    assert says in error["hint"]


def test_nothing_accepted_yet(cli, tmp_path, monkeypatch):
    (tmp_path / "tidemill.yaml").write_text(PROJECT)
    monkeypatch.chdir(tmp_path)
    page = found(cli, "orders")
    assert (page["rows"], page["completeness"]["pending"]) == ([], [])
    land(cli, "orders", '{"id": "1", "shop": "acme"}')
    assert [one["what"] for one in found(cli, "orders")["completeness"]["pending"]] == ["landed"]


def test_searching_the_index_imports_neither_spark_nor_numba_and_payloads_no_spark(shop):
    script = """
import sys
from tidemill.cli.main import main
for command in (
    ["search", "orders", 'WHERE region = "eu" AND price >= 1', "--all-tenants", "--total"],
    ["search", "orders", 'EXPLAIN WHERE price > 1.5', "--tenant", "acme"],
    ["catalog"], ["catalog", "orders", "--tenant", "acme"], ["status"],
    ["search", "orders", 'FILTER note LIKE "x%"', "--all-tenants"],
):
    try:
        main(command)
    except SystemExit as left:
        assert left.code == 0, command
    heavy = {"pyspark", "py4j"} | (set() if "FILTER" in str(command) else {"numba"})
    assert not heavy & set(sys.modules), command
"""
    subprocess.run(
        [sys.executable, "-c", script], cwd=shop, check=True, capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
