"""`tidemill rebuild --rollups` and `--index`: made again from raw as they were, and said."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

PROJECT = """
version: 1
streams:
  orders:
    schema: {id: {type: string, required: true}, at: {type: string, required: true}, price: integer}
    event_time: {column: at, type: iso8601}
    identity: id
    indexed: [region]
    metrics:
      orders: {kind: counter, measures: [price]}
      prices: {kind: histogram, value: price}
  plain:
    schema: {id: string}
    identity: id
    event_time: {mode: processing}
"""


def at(day, minute):
    return f"2024-01-{day}T12:{minute}:00Z"


def line(number, when):
    return json.dumps({"id": str(number), "at": when, "price": number, "region": "eu"})


@pytest.fixture
def shop(cli, tmp_path, monkeypatch):
    """Events of two days, and of two hours of tiles on the first of them."""
    (tmp_path / "tidemill.yaml").write_text(PROJECT)
    monkeypatch.chdir(tmp_path)
    times = [at(15, "00"), at(15, "30"), at(16, "00")]
    lines = "\n".join(line(number, when) for number, when in enumerate(times))
    assert cli("ingest", "orders", "-", "--format", "ndjson", stdin=lines).code == 0
    assert cli("run", "--once").code == 0
    return tmp_path


def bytes_of(folder: Path, kind: str) -> set[str]:
    """What the parts of a table hold, whatever they are called."""
    parts = (folder / "warehouse" / kind / "orders").rglob("*.parquet")
    return {hashlib.sha256(part.read_bytes()).hexdigest() for part in parts}


def rows(cli, text="SELECT count, sum(price) FROM orders.orders USING ROLLUP 5s"):
    return cli("query", text, "--output", "json").json["rows"]


def test_rollups_come_out_as_they_were_and_the_plan_says_what_is_done(cli, shop):
    before, answer = bytes_of(shop, "rollups"), rows(cli)
    plan = cli("rebuild", "orders", "--rollups", "--explain", "--output", "json").json
    assert (plan["stream"], plan["done"], plan["index"]) == ("orders", False, None)
    assert bytes_of(shop, "rollups") == before  # nothing was done
    done = cli("rebuild", "orders", "--rollups", "--output", "json").json
    assert done == {**plan, "done": True}
    assert list(done["rollups"]["tiles"]) == ["5s", "1m", "1h", "1d", "7d"]
    assert done["rollups"]["sealed_tiles"] == 0
    assert rows(cli) == answer
    assert cli("verify").code == 0


def test_index_comes_out_byte_by_byte(cli, shop):
    before = bytes_of(shop, "index")
    plan = cli("rebuild", "orders", "--index", "--explain", "--output", "json").json
    assert plan == {"stream": "orders", "done": False, "rollups": None, "index": {"parts": 1}}
    assert cli("rebuild", "orders", "--index", "--output", "json").json == {**plan, "done": True}
    assert bytes_of(shop, "index") == before


def test_a_span_is_made_again_and_nothing_else(cli, shop):
    span = ["--from", at(16, "00"), "--to", at(16, "01")]
    whole = cli("rebuild", "orders", "--rollups", "--index", "--output", "json").json
    plan = cli("rebuild", "orders", "--rollups", "--index", *span, "--explain", "--output", "json").json
    some = cli("rebuild", "orders", "--rollups", "--index", *span, "--output", "json").json
    assert some == {**plan, "done": True}
    assert some["index"] == {"parts": 1}
    assert some["rollups"]["tiles"]["5s"] < whole["rollups"]["tiles"]["5s"]
    assert some["rollups"]["tiles"]["7d"] == 1


def test_for_people(cli, shop):
    plan = cli("rebuild", "orders", "--rollups", "--index", "--explain")
    assert re.search(
        r"^orders rollups: \d+ tiles \(5s \d, 1m \d, 1h \d, 1d \d, 7d \d\) to make again$", plan.out, re.M
    )
    done = cli("rebuild", "orders", "--rollups", "--index")
    assert done.out == plan.out.replace("to make again", "made again")
    assert done.out.splitlines()[1] == "orders index: 1 part made again"


def test_the_plan_says_that_what_waits_comes_first(cli, shop):
    assert cli("ingest", "orders", "-", "--format", "ndjson", stdin=line(9, at(15, "40"))).code == 0
    done = cli("rebuild", "orders", "--rollups", "--explain")
    assert done.err == "what waits comes first: 1 landed, not accepted yet\n"
    assert cli("rebuild", "orders", "--rollups").code == 0
    assert sum(row["count"] for row in rows(cli)) == 4


def test_what_raw_is_gone_for_is_sealed_and_stays(cli, shop):
    answer = rows(cli, "SELECT count, sum(price) FROM orders.orders USING ROLLUP 1d")
    text = PROJECT.replace("    indexed: [region]\n", "    indexed: [region]\n    retention: {raw: 30d}\n")
    (shop / "tidemill.yaml").write_text(text)
    assert cli("expire").code == 0
    assert cli("status", "--output", "json").json["streams"][0]["sealed_before"] is not None
    done = cli("rebuild", "orders", "--rollups", "--output", "json").json
    assert done["rollups"]["sealed_tiles"] > 0
    assert "sealed: raw is gone" in cli("rebuild", "orders", "--rollups").out
    assert rows(cli, "SELECT count, sum(price) FROM orders.orders USING ROLLUP 1d") == answer


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["orders", "--rollups", "--window", at(15, "00")], "input", "--from T --to T"),
        (["orders", "--index", "--include-late"], "input", "--from T --to T"),
        (["orders", "--index", "--from", "noon"], "input", "RFC 3339"),
        (["plain", "--rollups"], "input", "metrics"),
        (["plain", "--index"], "input", "indexed"),
        (["plain", "--index", "--explain"], "input", "indexed"),
        (["nope", "--index"], "not_found", "orders"),
        (["orders"], "input", "aggregation_span"),
    ],
    ids=" ".join,
)
def test_wrong_combinations_have_a_code_and_a_hint(cli, shop, arguments, code, says):
    done = cli("rebuild", *arguments, "--output", "json")
    assert (done.code, done.out) == (2, "")
    assert done.error["code"] == code
    assert says in done.error["hint"]
