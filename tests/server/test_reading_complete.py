"""What an answer lacks, and whose events it is about, over HTTP and by the clients."""

from __future__ import annotations

import json
import re

import pytest
from tests.support.served_project import PROJECT

from tidemill.client import Client, ClientError, Retries

COUNT = "SELECT count FROM shared.hits"
ASKED = (("/v1/query", {"q": COUNT}), ("/v1/streams/shared/search", {}))


def lines(tenant: str, *names: str) -> bytes:
    records = (
        {"event_id": name, "ts": f"2026-01-05T10:00:0{n}Z", "tenant": tenant, "api": "/cart"}
        for n, name in enumerate(names)
    )
    return "".join(json.dumps(record) + "\n" for record in records).encode()


@pytest.fixture
def shared(serving):
    """Two tenants, and a slice of one of them that is not accepted yet."""
    served = serving(text=PROJECT)
    served.mill.land("shared", lines("acme", "a1"))
    served.mill.land("shared", lines("globex", "b1", "b2"))
    served.mill.tick()
    served.mill.land("shared", lines("globex", "b3"))
    return served


def test_an_operator_names_a_tenant_or_asks_for_all(shared):
    for path, params in ASKED:
        for method in (shared.http.get, posted(shared)):
            refused = method(path, params=params)
            assert (refused.status_code, refused.json()["code"]) == (400, "input")
            assert refused.json()["hint"].endswith("tenants: acme, globex")
            unknown = method(path, params={**params, "tenant": "glob"})
            assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
            assert unknown.json()["hint"] == "did you mean globex? tenants: acme, globex"
            both = method(path, params={**params, "tenant": "acme", "all_tenants": True})
            assert (both.status_code, both.json()["code"]) == (400, "input")
    (row,) = shared.http.get("/v1/query", params={"q": COUNT, "all_tenants": "true"}).json()["rows"]
    assert row == {"count": 3}


def posted(served):
    """The same question in a body."""

    def ask(path: str, params: dict[str, object]):
        name = "query" if path == "/v1/query" else "search"
        body = {**params, **({name: params["q"]} if "q" in params else {})}
        body.pop("q", None)
        return served.http.post(path, json=body)

    return ask


def test_what_is_pending_is_told_and_refused_when_strict(shared):
    for path, params in ASKED:
        found = shared.http.get(path, params={**params, "tenant": "globex"}).json()["completeness"]
        (pending,) = found["pending"]
        assert (pending["what"], pending["count"], pending["bytes"]) == (
            "landed",
            1,
            len(lines("globex", "b3")),
        )
        assert (found["complete"], found["complete_through"], found["missing"]) == (False, None, [])
        for method in (shared.http.get, posted(shared)):
            strict = method(path, params={**params, "tenant": "globex", "strict": True})
            assert (strict.status_code, strict.json()["code"], strict.json()["retry"]) == (
                409, "incomplete", "later",
            )  # fmt: skip
    shared.mill.tick()
    done = shared.http.get("/v1/query", params={"q": COUNT, "tenant": "globex", "strict": "1"})
    assert (done.status_code, done.json()["rows"]) == (200, [{"count": 3}])


def test_a_tenant_learns_that_something_is_pending_and_no_numbers(shared):
    headers = shared.token("read", tenant="acme")
    for path, params in ASKED:
        found = shared.http.get(path, params=params, headers=headers).json()["completeness"]
        assert found["pending"] == [
            {
                "what": "landed",
                "count": None,
                "records": None,
                "bytes": None,
                "detail": "data of the stream has landed and is not accepted yet",
                "remedy": "The next rounds take care of it",
            }
        ]
        strict = shared.http.get(path, params={**params, "strict": "1"}, headers=headers)
        assert strict.status_code == 409
        assert "globex" not in strict.text
        every = shared.http.get(path, params={**params, "all_tenants": "1"}, headers=headers)
        assert (every.status_code, "globex" in every.text) == (403, False)


def test_a_tenant_without_events_is_told_of_none(shared):
    headers = shared.token("read", tenant="initech")
    (row,) = shared.http.get("/v1/query", params={"q": COUNT}, headers=headers).json()["rows"]
    assert row == {"count": 0}
    found = shared.http.get("/v1/streams/shared/search", headers=headers).json()
    assert (found["rows"], found["tenant"]) == ([], "initech")


def test_clients_say_whose_events_and_how_strictly(shared):
    with Client(shared.url, retries=Retries(total=0)) as client:
        assert client.query(COUNT, all_tenants=True)["rows"] == [{"count": 3}]
        page = client.search_page("shared", all_tenants=True, limit=2)
        assert (len(page["rows"]), page["completeness"]["pending"][0]["what"]) == (2, "landed")
        rest = client.search_page("shared", all_tenants=True, limit=2, cursor=page["cursor"])
        assert (len(rest["rows"]), rest["cursor"]) == (1, None)
        assert len(list(client.search("shared", tenant="globex"))) == 2
        for ask in (
            lambda: client.query(COUNT, tenant="acme", strict=True),
            lambda: list(client.search("shared", tenant="acme", strict=True)),
        ):
            with pytest.raises(ClientError, match="1 slice has landed") as caught:
                ask()
            assert (caught.value.status, caught.value.code) == (409, "incomplete")


def test_no_route_ignores_a_parameter_that_it_does_not_have(shared):
    """`tennant=acme` would be answered for somebody else."""
    walked = 0
    for path, item in shared.http.get("/openapi.json").json()["paths"].items():
        for method, operation in item.items():
            known = [one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"]
            headers = {"content-type": "application/json"} if method == "post" else {}
            answer = shared.http.request(
                method, re.sub(r"\{\w+\}", "shared", path), params={"tennant": "acme"}, headers=headers
            )
            assert answer.status_code == 400, (path, answer.text)
            assert "there is no parameter 'tennant' here" in answer.text
            if "otlp" not in path:  # its errors have a shape of their own
                assert answer.json()["where"] == "tennant"
                assert all(name in answer.json()["hint"] for name in known)
            walked += 1
    assert walked > 20


def test_results_say_what_they_do_not_include_yet(serving):
    """To the token of a tenant only of which kind it is, since the slice may be another's."""
    windows = "    windows: {minutes: {kind: tumbling, size: 1m, aggregates: {n: count}}}\n"
    served = serving(
        text=PROJECT.replace("    indexed: [api]\n  theirs:", f"    indexed: [api]\n{windows}  theirs:")
    )
    served.mill.land("shared", lines("acme", "a1"))
    served.mill.tick()
    path = "/v1/streams/shared/results/minutes"
    assert served.http.get(path).json()["pending"] == []
    served.mill.land("shared", lines("globex", "b1", "b2"))
    (pending,) = served.http.get(path).json()["pending"]
    assert (pending["what"], pending["count"]) == ("landed", 1)
    assert pending["remedy"] == "The next round accepts it: `tidemill run --once`"
    acme = served.token("read", tenant="acme")
    (seen,) = served.http.get(path, headers=acme).json()["pending"]
    assert (seen["what"], seen["count"], seen["bytes"]) == ("landed", None, None)
    assert "1" not in seen["detail"]
