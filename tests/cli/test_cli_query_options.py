"""`tidemill query`: whose events, on which engine, and how the text is given."""

from __future__ import annotations

import json
from functools import partial

import pytest

from tidemill.mill import Mill

pytestmark = pytest.mark.long

PROJECT = """
version: 1
streams:
  orders:
    schema: {id: string, shop: {type: string, required: true}, region: string}
    identity: id
    event_time: {mode: processing}
    tenant: {column: shop}
    indexed: [region]
    metrics: {orders: {kind: counter, dimensions: [region]}}
  alone:
    schema: {id: string, shop: {type: string, required: true}}
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
COUNT = "SELECT count FROM orders GROUP BY region"
LINES = {
    "orders": [
        {"id": "1", "shop": "acme", "region": "eu"},
        {"id": "2", "shop": "acme", "region": "us"},
        {"id": "3", "shop": "globex", "region": "eu"},
    ],
    "alone": [{"id": "1", "shop": "acme"}],
    "ours": [{"id": "1"}],
}


@pytest.fixture
def shop(cli, tmp_path, monkeypatch):
    (tmp_path / "tidemill.yaml").write_text(PROJECT)
    monkeypatch.chdir(tmp_path)
    for stream, lines in LINES.items():
        text = "".join(json.dumps(line) + "\n" for line in lines)
        assert cli("ingest", stream, "-", "--format", "ndjson", stdin=text).code == 0
    assert cli("run", "--once").code == 0
    return tmp_path


def test_an_answer_goes_into_a_folder_that_is_there(cli, shop):
    done = cli("query", COUNT, "--all-tenants", "-o", "nowhere/answer.csv")
    assert (done.code, done.err.splitlines()[0]) == (2, "error[input]: nowhere: there is no such folder")
    assert not (shop / "nowhere").exists()


def answer(cli, *arguments, **more):
    done = cli("query", *arguments, "--output", "json", **more)
    assert done.code == 0, done
    return done.json


def counts(document):
    return {row["region"]: row["count"] for row in document["rows"]}


def test_a_stream_of_several_tenants_asks_which(cli, shop):
    for text in (COUNT, f"EXPLAIN {COUNT}", '{"select": ["count"], "from": "orders.orders"}'):
        done = cli("query", text, "--output", "json")
        assert (done.code, done.out) == (2, "")
        assert done.error["message"] == "stream 'orders' has events of several tenants, and none is named"
        assert done.error["hint"].startswith("name one with --tenant NAME (tenant=), or ask for all")
        assert done.error["hint"].endswith("; tenants: acme, globex")


def test_one_tenant_or_all_of_them(cli, shop):
    assert counts(answer(cli, COUNT, "--tenant", "acme")) == {"eu": 1, "us": 1}
    assert counts(answer(cli, COUNT, "--all-tenants")) == {"eu": 2, "us": 1}
    by_tenant = answer(cli, "SELECT count FROM orders GROUP BY tenant", "--all-tenants")
    assert by_tenant["rows"] == [{"tenant": "acme", "count": 2}, {"tenant": "globex", "count": 1}]
    both = cli("query", COUNT, "--tenant", "acme", "--all-tenants", "--output", "json")
    assert (both.code, both.error["code"]) == (2, "input")
    assert both.error["message"] == "both one tenant and all tenants are requested"


def test_a_tenant_that_is_not_there_is_refused_with_those_that_are(cli, shop):
    for command in (["query", COUNT], ["search", "orders"]):
        done = cli(*command, "--tenant", "amce", "--output", "json")
        assert (done.code, done.error["code"]) == (2, "not_found")
        assert done.error["message"] == "stream 'orders' has no events of a tenant 'amce'"
        assert done.error["hint"] == "did you mean acme? tenants: acme, globex"


def test_the_only_tenant_need_not_be_named(cli, shop):
    for stream in ("alone", "ours"):
        assert answer(cli, f"SELECT count FROM {stream}")["rows"] == [{"count": 1}]
        assert answer(cli, f"EXPLAIN SELECT count FROM {stream}")["tenant"] == "acme"
        assert answer(cli, f"EXPLAIN SELECT count FROM {stream}", "--all-tenants")["tenant"] is None
    other = cli("query", "SELECT count FROM ours", "--tenant", "globex", "--output", "json")
    assert (other.code, other.error["hint"]) == (2, "tenants: acme")


def test_a_document_and_standard_input_mean_the_same(cli, shop):
    document = json.dumps({"select": ["count"], "from": "orders", "group_by": ["region"]})
    expected = {"eu": 2, "us": 1}
    assert counts(answer(cli, document, "--all-tenants")) == expected
    assert counts(answer(cli, "-", "--all-tenants", stdin=document)) == expected
    assert counts(answer(cli, "-", "--all-tenants", stdin=COUNT + "\n")) == expected
    wrong = cli("query", "-", "--output", "json", stdin="SELECT")
    assert (wrong.code, wrong.error["code"]) == (2, "query")


def test_an_answer_says_how_fresh_it_is(cli, shop):
    found = answer(cli, COUNT, "--all-tenants")
    assert found["completeness"]["pending"] == []
    assert found["completeness"]["as_of"] is not None
    assert "Includes what arrived up to 2" in cli("query", COUNT, "--all-tenants").out


def test_spark_gives_the_same_rows(cli, shop, spark, monkeypatch):
    """Both doors: a query, and a search."""
    monkeypatch.setattr(Mill, "open", partial(Mill.open, spark=spark))
    local, remote = (answer(cli, COUNT, "--all-tenants", "--engine", name) for name in ("duckdb", "spark"))
    assert (local.pop("engine"), remote.pop("engine")) == ("duckdb", "spark")
    del local["completeness"], remote["completeness"]  # arrivals are the time: the watermark moves on
    assert local == remote
    ask = ["search", "orders", 'WHERE region = "eu"', "--all-tenants", "--output", "json"]
    found = [cli(*ask, "--engine", name).json["rows"] for name in ("local", "spark")]
    assert sorted(row["event_id"] for row in found[0]) == ["1", "3"]
    assert found[0] == found[1]


def test_an_unknown_stream_or_metric_is_pointed_at(cli, shop):
    done = cli("query", "SELECT count FROM nope", "--output", "json")
    assert (done.code, done.error["code"], done.error["position"]) == (2, "query", 18)
    assert "orders" in done.error["hint"]


def test_answers_as_tables(cli, shop):
    import pyarrow.parquet as pq
    from pyarrow import ipc

    query = "SELECT count, count / 3 AS third FROM orders GROUP BY region"
    done = cli("query", query, "--tenant", "acme", "--output", "csv")
    assert done.code == 0, done
    assert done.out == '"region","count","third"\n"eu",1,0.333333\n"us",1,0.333333\n'
    assert "complete" in done.err.lower()
    for name, read in (
        ("a.parquet", pq.read_table),
        ("a.arrow", lambda path: ipc.open_file(path).read_all()),
    ):
        assert cli("query", query, "--tenant", "acme", "-o", name).code == 0
        assert [row["region"] for row in read(shop / name).to_pylist()] == ["eu", "us"]
    assert cli("query", query, "--tenant", "acme", "-o", "a.json").code == 0
    assert json.loads((shop / "a.json").read_text())["columns"] == ["region", "count", "third"]
    done = cli("search", "orders", "WHERE region = 'eu'", "--tenant", "acme", "-o", "found.csv")
    assert done.code == 0, done
    header, row = (shop / "found.csv").read_text().splitlines()
    assert header.startswith('"event_time","tenant","event_id"')
    assert '"acme","1"' in row


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("query", COUNT, "--tenant", "acme", "-o", "a.txt"), "end it with .csv, .parquet, .arrow, .json"),
        (("query", COUNT, "--tenant", "acme", "-o", "."), "end it with"),
        (
            ("query", f"{COUNT} FORMAT series INTERVAL 1h", "--tenant", "acme", "--output", "csv"),
            "leave it out (of a query: FORMAT series)",
        ),
        (("status", "--output", "csv"), "use --output text or json"),
    ],
)
def test_tables_that_cannot_be_given(cli, shop, arguments, hint):
    done = cli(*arguments)
    assert done.code == 2, done
    assert hint in done.err


def test_a_cell_shows_its_events(cli, landed):
    assert cli("run", "--once").code == 0
    query = ("query", "SELECT count FROM requests", "--all-tenants")
    total = cli(*query, "--output", "json").json["rows"][0]["count"]
    found = cli(*query, "--cell", "total", "--output", "json").json
    assert (found["total"], found["values"], len(found["events"])) == (total, {"count": total}, 50)
    whole = {"start": "0001-01-01T00:00:00Z", "end": "9999-12-31T23:59:59.999999Z"}
    assert found["cell"] == {**whole, "group": {}}
    assert found["pieces"] == [{"source": "7d", **whole}]
    shown = cli(*query, "--cell", "total").out
    assert "read from 7d all time" in shown
    assert "requests.requests all time" in shown
    explained = cli("query", f"EXPLAIN {query[1]}", "--all-tenants", "--output", "json").json
    assert explained["reads"] == [{"source": "7d", "span": whole}]


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (("--cell", "total", "--group", "x"), "give one such as"),
        (("--cell", "2024-01-15T10:00:00Z"), "--cell total"),
        (("--group", "{}  "), "add --cell"),
        (("--cell", "total", "--strict"), "leave them out"),
    ],
)
def test_what_is_no_cell_is_refused(cli, shop, options, hint):
    done = cli("query", "SELECT count FROM orders", "--all-tenants", *options)
    assert done.code == 2, done
    assert hint in done.err


def test_changes_lists_the_slices_that_came_since(cli, shop):
    done = cli("changes", "orders", "--after", "1d", "--output", "json")
    said = json.loads(done.out)
    assert (done.code, said["stream"], said["total"]) == (0, "orders", 1)
    (change,) = said["changes"]
    assert (change["kind"], change["rows"], change["late"]) == ("accepted", len(LINES["orders"]), 0)
    shown = cli("changes", "orders", "--after", "1d").out
    assert "arrived" in shown
    assert change["slice"][:8] in shown
    assert "nothing has changed since" in cli("changes", "orders", "--after", change["at"]).out
    assert cli("changes", "orders", "--after", "1d", "--to", "1999-01-01", "--output", "json").code == 0
    refused = cli("changes", "orders", "--after", "tomorrow-ish")
    assert refused.code == 2
    assert "neither an instant nor a duration" in refused.err
