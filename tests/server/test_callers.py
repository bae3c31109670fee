"""Who may send what: tokens, scopes, tenants, rates; and a server without tokens serves its machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.mill import wall_clock
from tidemill.model.errors import ForbiddenError, MachineError
from tidemill.server.app import create_app
from tidemill.server.listener import serve

BEARER = 'Bearer realm="tidemill"'


def test_with_a_token_about_nobody_is_let_in_without_one(served):
    assert served.send("requests", served.request("a")).status_code == 202
    shown = served.token("ingest")
    refused = served.send("requests", served.request("a"))
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == BEARER
    assert refused.json()["code"] == "unauthorized"
    assert served.send("requests", served.request("a"), headers=shown).status_code == 202


def test_what_is_no_valid_token_is_401(served):
    served.token("ingest")
    for given in ("", "Bearer", "Basic dGlkZW1pbGw6eA==", "Bearer tm_0_0", "Bearer é", "tm_x_y"):
        headers = {"Authorization": given.encode("latin-1")}
        answer = served.send("requests", served.request("a"), headers=headers)
        assert answer.status_code == 401, given
        assert answer.headers["www-authenticate"] == BEARER


def test_a_revoked_and_an_expired_token_are_401_at_once(served):
    served.token("admin")
    shown = served.token("ingest")
    late = served.token("ingest", expires=wall_clock() + 3_600_000_000)
    assert served.send("requests", served.request("a"), headers=shown).status_code == 202
    assert served.send("requests", served.request("b"), headers=late).status_code == 202
    served.service.tokens.revoke(shown["Authorization"].split("_")[1], wall_clock())
    assert served.send("requests", served.request("c"), headers=shown).status_code == 401
    past = served.token("ingest", expires=wall_clock() - 1)
    assert served.send("requests", served.request("d"), headers=past).status_code == 401


def test_scopes(served):
    ingest, read, admin = (served.token(scope) for scope in ("ingest", "read", "admin"))
    sent = {
        name: served.send("requests", served.request(name), headers=shown).status_code
        for name, shown in (("ingest", ingest), ("read", read), ("admin", admin))
    }
    assert sent == {"ingest": 202, "read": 403, "admin": 202}
    refused = served.send("requests", served.request("a"), headers=read).json()
    assert (refused["code"], refused["hint"]) == (
        "forbidden",
        "make one with `tidemill token create --scope ingest`",
    )
    where = served.send("requests", served.request("x"), headers=ingest).headers["location"]
    assert [served.http.get(where, headers=shown).status_code for shown in (ingest, read, admin)] == [200] * 3
    assert served.http.get(where).status_code == 401
    slices = served.http.post("/v1/streams/requests/slices", json={}, headers=ingest)
    assert slices.status_code == 403


def test_an_ingestion_of_another_tenant_does_not_exist(served):
    acme, globex = (served.token("ingest", tenant=tenant) for tenant in ("acme", "globex"))
    operator = served.token("admin")
    where = served.send("events", served.event("a", "acme"), headers=acme).headers["location"]

    def asked() -> list[int]:
        return [served.http.get(where, headers=shown).status_code for shown in (acme, globex, operator)]

    assert asked() == [200, 404, 200]
    served.settle()
    assert asked() == [200, 404, 200]
    unknown = served.http.get("/v1/ingestions/0000deadbeef-1", headers=globex).json()
    other = served.http.get(where, headers=globex).json()
    assert (other["code"], other["hint"]) == (unknown["code"], unknown["hint"])


def test_a_stream_that_is_all_anothers_does_not_exist(served):
    globex = served.token("ingest", tenant="globex")
    answer = served.send("requests", served.request("a"), headers=globex)
    assert answer.status_code == 404
    assert answer.json()["hint"] == "streams: events"
    assert served.send("nothing", served.request("a"), headers=globex).json()["hint"] == "streams: events"
    logs = served.http.post("/v1/otlp/v1/logs", json={}, headers=globex)
    assert logs.status_code == 404


def test_an_event_that_names_another_tenant_is_refused_with_all_that_came_with_it(served):
    acme = served.token("ingest", tenant="acme")
    events = [served.event("a", "acme"), served.event("b", "globex")]
    answer = served.send("events", events, headers=acme)
    assert answer.status_code == 403
    assert answer.json()["code"] == "forbidden"
    assert served.gateway.status().acknowledged == 0


def test_an_event_without_a_tenant_is_rejected_and_known_to_be_its_senders(served):
    acme = served.token("ingest", tenant="acme")
    with served.ticking():
        answer = served.send("events", served.event("a", None), headers=acme, params={"wait": 1})
    assert answer.status_code == 422
    assert answer.json()["outcomes"][0]["code"] == "missing_field"


def test_each_event_counts_against_the_rate_and_retry_after_says_when(served):
    slow = served.token("ingest", rate=5)
    free = served.token("ingest")
    first = served.send("requests", [served.request(f"e{n}") for n in range(5)], headers=slow)
    assert first.status_code == 202
    answer = served.send("requests", served.request("f"), headers=slow)
    assert answer.status_code == 429
    assert (answer.json()["code"], answer.json()["retry"]) == ("rate_limited", "later")
    assert int(answer.headers["retry-after"]) >= 1
    assert served.send("requests", served.request("g"), headers=free).status_code == 202


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:80", "127.0.0.1", "127.9.9.9:1", "[::1]:8470", "LocalHost"]
)
def test_without_tokens_this_machine_is_served(still, host):
    assert still.send("requests", still.request("a"), headers={"Host": host}).status_code == 202


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1", "", "[::2]", "localhost.x:1"]
)
def test_without_tokens_no_other_name_is_served(still, host):
    answer = still.send("requests", still.request("a"), headers={"Host": host})
    assert answer.status_code == 403
    assert "tidemill token create" in answer.json()["hint"]


def test_with_tokens_the_name_of_the_server_does_not_matter(served):
    shown = served.token("ingest") | {"Host": "mill.example"}
    assert served.send("requests", served.request("a"), headers=shown).status_code == 202


def test_a_web_page_cannot_post_here(still):
    form = still.http.post(
        "/v1/streams/requests/events",
        content=b'{"event_id":"a"}',
        headers={"Content-Type": "text/plain", "Origin": "https://evil.example"},
    )
    assert form.status_code == 403
    asked = still.http.options(
        "/v1/streams/requests/events",
        headers={"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"},
    )
    assert asked.status_code == 405
    assert not [name for name in asked.headers if name.startswith("access-control")]
    plain = {"Content-Type": "text/plain"}
    assert still.http.post("/v1/streams/requests/events", content=b"{}", headers=plain).status_code == 415


def test_health_is_open_and_the_rest_is_not(served):
    served.token("admin")
    assert served.http.get("/healthz").status_code == 200
    assert served.http.get("/readyz").status_code == 200
    for path in ("/v1/ingestions/0000deadbeef-1", "/v1/streams/requests/events"):
        method = "POST" if path.endswith("events") else "GET"
        assert served.http.request(method, path).status_code == 401


def test_without_tokens_it_refuses_to_listen_beyond_this_machine(serving):
    for host in ("0.0.0.0", "::", "mill.example"):  # noqa: S104
        with pytest.raises(ForbiddenError) as error:
            serving(host=host)
        assert "tidemill token create" in error.value.hint


def test_a_server_that_all_can_reach_and_whose_last_token_went_serves_nobody(served):
    served.service.address = "0.0.0.0"  # noqa: S104
    answer = served.send("requests", served.request("a"))
    assert answer.status_code == 401
    assert answer.json()["detail"] == "a token is needed"


def test_the_door_stays_shut_when_the_last_token_is_revoked(served):
    token, _ = served.service.tokens.create(["admin"], tenant=None, now=served.service.clock())
    served.service.tokens.revoke(token.id, served.service.clock())
    answer = served.send("requests", served.request("a"))
    assert (answer.status_code, answer.json()["detail"]) == (401, "a token is needed")


def test_an_address_that_is_taken_is_told(served):
    port = int(served.url.rpartition(":")[2])
    with pytest.raises(MachineError) as error:
        serve(create_app(served.service), "127.0.0.1", port, served.service.stopping)
    assert f"127.0.0.1:{port}" in error.value.message
    assert "gateway.port" in error.value.hint


@pytest.mark.parametrize("host", ["localhost", "::1"])
def test_other_names_of_this_machine_can_be_listened_on(serving, host):
    if host == "::1" and not Path("/proc/net/if_inet6").exists():
        pytest.skip("there is no IPv6")
    served = serving(host=host)
    assert served.url.startswith("http://127.0.0.1:" if host == "localhost" else "http://[::1]:")
    assert served.send("requests", served.request("a")).status_code == 202


def test_a_host_nobody_knows_is_told(served):
    served.token("admin")
    with pytest.raises(MachineError) as error:
        serve(create_app(served.service), "no-such-host.invalid", 0, served.service.stopping)
    assert error.value.where == "gateway.host"
