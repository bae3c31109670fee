"""`tidemill sql`: the views without a text, rows in every format, what is missing on standard error."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
from pyarrow import ipc
from tests.support.sql_shop import ORDERS, build_shop

pytestmark = pytest.mark.long

COUNT = "SELECT tenant, count(*) AS n FROM raw.orders GROUP BY ALL ORDER BY 1"
WANTED = [{"tenant": name, "n": sum(one.tenant == name for one in ORDERS)} for name in ("acme", "globex")]


@pytest.fixture(scope="module")
def shop_project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sql_cli") / "shop"
    build_shop(folder)
    return folder


@pytest.fixture
def sql(cli, shop_project, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *words: cli("sql", *words, "--project", str(shop_project))


def test_without_a_text_the_views_are_listed(sql):
    shown = sql().out
    assert "windows.orders_ten_history" in shown
    assert "latency" not in shown
    said = json.loads(sql("--output", "json").out)
    assert said["views"][0]["view"] == "raw.orders"
    assert {"name": "event_time", "type": "TIMESTAMP WITH TIME ZONE"} in said["views"][0]["columns"]


def test_rows_are_shown_and_what_is_missing_beside_them(sql):
    shown = sql(COUNT, "--all-tenants")
    assert f"acme     {WANTED[0]['n']}" in shown.out
    assert "orders: Complete through" in shown.out
    said = json.loads(sql(COUNT, "--all-tenants", "--output", "json").out)
    assert said["rows"] == WANTED
    assert list(said["completeness"]) == ["orders"]


def test_rows_are_written_in_every_format(sql, tmp_path):
    done = sql(COUNT, "--all-tenants", "--output", "csv")
    assert done.out.splitlines() == ['"tenant","n"', *(f'"{row["tenant"]}",{row["n"]}' for row in WANTED)]
    assert "orders: Complete through" in done.err
    for name, read in (
        ("x.parquet", pq.read_table),
        ("x.arrow", lambda path: ipc.open_file(path).read_all()),
    ):
        assert f"2 rows in {name}" in sql(COUNT, "--all-tenants", "-o", name).err
        assert read(str(tmp_path / name)).to_pylist() == WANTED
    sql(COUNT, "--tenant", "acme", "-o", "x.json")
    assert json.loads((tmp_path / "x.json").read_text())["rows"] == WANTED[:1]


def test_mistakes_are_told_with_what_to_type(sql):
    for words, code, part in (
        ((COUNT,), 2, "--all-tenants"),
        (("FROM raw.order", "--all-tenants"), 2, "did you mean raw.orders?"),
        (("COPY raw.orders TO 'x.csv'",), 2, "only reads"),
        (("SELECT interval 1 day AS i", "-o", "x.parquet"), 2, "holds intervals"),
        (("SELECT count(*) FROM range(1000000000000)", "--timeout", "20ms"), 2, "--timeout"),
        (("SELECT 1", "--memory", "much"), 2, "is not a size"),
    ):
        done = sql(*words)
        assert done.code == code, words
        assert part in done.err, words
