"""SQL over HTTP: for operators only, as JSON or as a file, with what is missing beside it."""

from __future__ import annotations

import io
import json
from decimal import Decimal

import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc

from tidemill import AsyncClient, Client
from tidemill.client import ClientError

pytestmark = pytest.mark.long

COUNT = "SELECT tenant, count(*) AS events FROM raw.events GROUP BY ALL ORDER BY 1"
WANTED = [{"tenant": "acme", "events": 2}, {"tenant": "globex", "events": 1}]


@pytest.fixture
def full(serving):
    served = serving()
    sent = [served.event("a"), served.event("b"), served.event("c", "globex")]
    assert served.send("events", sent).status_code < 300
    served.settle()
    return served


def test_rows_come_as_json_with_what_is_missing(full):
    said = full.http.get("/v1/sql", params={"q": COUNT, "all_tenants": "true"}).json()
    assert (said["columns"], said["rows"]) == (["tenant", "events"], WANTED)
    assert said["completeness"]["events"]["pending"] == []
    posted = full.http.post("/v1/sql", json={"sql": COUNT, "tenant": "acme"}).json()
    assert posted["rows"] == WANTED[:1]
    views = full.http.get("/v1/sql").json()["views"]
    assert {"name": "event_time", "type": "TIMESTAMP WITH TIME ZONE"} in views[0]["columns"]


def test_half_of_a_surrogate_pair_is_400(full):
    half = rb'{"sql": "SELECT 1", "tenant": "\ud800"}'
    answer = full.http.post("/v1/sql", content=half, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (400, "input")


def test_rows_come_as_a_file(full):
    read = {"csv": pacsv.read_csv, "parquet": pq.read_table, "arrow": lambda f: ipc.open_file(f).read_all()}
    for form, reader in read.items():
        answer = full.http.get("/v1/sql", params={"q": COUNT, "all_tenants": "true", "format": form})
        assert answer.status_code == 200
        assert reader(io.BytesIO(answer.content)).to_pylist() == WANTED
        assert json.loads(answer.headers["Tidemill-Completeness"])["events"]["missing"] == []


def test_the_token_of_a_tenant_may_not(full):
    for headers in (full.token("read", tenant="acme"), full.token("admin", tenant="acme")):
        for answer in (
            full.http.get("/v1/sql", params={"q": COUNT, "tenant": "acme"}, headers=headers),
            full.http.get("/v1/sql", headers=headers),
            full.http.post("/v1/sql", json={"sql": COUNT}, headers=headers),
        ):
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    allowed = full.http.get("/v1/sql", params={"q": COUNT, "all_tenants": "true"}, headers=full.token("read"))
    assert allowed.json()["rows"] == WANTED
    assert full.http.get("/v1/sql", headers=full.token("ingest")).status_code == 403


def test_what_cannot_be_run_is_a_problem_with_a_hint(full):
    for asked, status, code in (
        ({"sql": "SELECT * FROM read_text('/etc/passwd')"}, 400, "query"),
        ({"sql": "DROP VIEW raw.events"}, 400, "query"),
        ({"sql": "FROM raw.nothing"}, 404, "not_found"),
        ({"sql": COUNT}, 400, "input"),
        ({"sql": COUNT, "tenant": "nobody"}, 404, "not_found"),
        ({"sql": " "}, 400, "input"),
        ({"sql": 1}, 400, "input"),
        ({"sql": COUNT, "format": "xlsx"}, 400, "input"),
        ({"query": COUNT}, 400, "input"),
        ({"sql": "SELECT 1 FROM range(100001)"}, 400, "query"),
    ):
        answer = full.http.post("/v1/sql", json=asked)
        said = answer.json()
        assert (answer.status_code, said["code"]) == (status, code), asked
        assert said["hint"], asked


def test_an_error_while_rows_are_made_frees_the_place_of_the_statement(full):
    broken = "SELECT 1 FROM range(3) WHERE 'x'::INT = 1"
    for form in ("json", "csv") * 3:
        answer = full.http.get("/v1/sql", params={"q": broken, "format": form})
        assert (answer.status_code, answer.json()["code"]) == (400, "query")
    assert full.http.get("/v1/sql", params={"q": "SELECT 1 AS a"}).json()["rows"] == [{"a": 1}]


def test_what_has_landed_and_is_not_accepted_is_named(full):
    full.mill.land("events", json.dumps(full.event("d")).encode())
    answer = full.http.get("/v1/sql", params={"q": COUNT, "all_tenants": "true", "format": "csv"})
    (pending,) = json.loads(answer.headers["Tidemill-Completeness"])["events"]["pending"]
    assert (pending["what"], pending["count"]) == ("landed", 1)
    strict = full.http.get("/v1/sql", params={"q": COUNT, "all_tenants": "true", "strict": "true"})
    assert (strict.status_code, strict.json()["code"]) == (409, "incomplete")


def test_clients_run_sql(full):
    exact = "SELECT 1.10::DECIMAL(4, 2) AS price, count(*) AS n FROM raw.events"
    with Client(full.url) as client:
        assert client.sql(exact, all_tenants=True)["rows"] == [{"price": Decimal("1.10"), "n": 3}]
        file = client.sql_file(COUNT, "parquet", all_tenants=True)
        assert pq.read_table(io.BytesIO(file)).to_pylist() == WANTED
        with pytest.raises(ClientError) as error:
            client.sql("FROM raw.event")
        assert (error.value.code, error.value.hint.split("?")[0]) == ("not_found", "did you mean raw.events")


def test_asynchronous_clients_run_sql(full):
    import asyncio

    async def ask() -> object:
        async with AsyncClient(full.url) as client:
            rows = (await client.sql(COUNT, all_tenants=True))["rows"]
            file = await client.sql_file(COUNT, "arrow", all_tenants=True)
            return rows, ipc.open_file(io.BytesIO(file)).read_all().to_pylist()

    assert asyncio.run(ask()) == (WANTED, WANTED)
