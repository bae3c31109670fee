"""What an operator has done over HTTP: the plan first, then exactly that, by the rounds."""

from __future__ import annotations

import pytest
from tests.support.served_project import HOUR, PROJECT

END = "2026-01-05T11:00:00Z"
SHOWN = "/v1/streams/requests"


@pytest.fixture
def served(serving):
    found = serving(text=PROJECT)
    found.send("requests", [found.request(f"e{n}", n) for n in range(3)])
    found.settle()
    return found


def post(served, path, said=None, **more):
    answer = served.http.post(f"/v1/streams/{path}", json=said or {}, **more)
    return answer.status_code, answer.json()


def test_the_plan_is_what_is_built_then(served):
    span = {"from": HOUR, "to": END}
    status, plan = post(served, "requests/rebuild", {**span, "explain": True})
    assert (status, plan["queued"]) == (200, 0)
    assert [(one["start"], one["action"], one["next_revision"]) for one in plan["steps"]] == [
        (HOUR, "build", 2)
    ]
    served.tick()
    assert served.http.get(f"{SHOWN}/windows/{HOUR}").json()["revision"] == 1  # nothing was done
    status, done = post(served, "requests/rebuild", span)
    assert (status, done["queued"], done["steps"]) == (200, 1, plan["steps"])
    served.tick()
    window = served.http.get(f"{SHOWN}/windows/{HOUR}").json()
    assert (window["revision"], [one["revision"] for one in window["revisions"]]) == (2, [1, 2])
    changes = served.http.get(f"{SHOWN}/windows/{HOUR}/revisions").json()
    assert (changes["from"], changes["to"], changes["added"], changes["removed"]) == (1, 2, 0, 0)


def test_records_of_quarantine_are_decided_again(served):
    served.send("requests", [{"event_id": "bad", "ts": "never"}, "no object"])
    served.settle()
    before = {one["reason"] for one in served.http.get(f"{SHOWN}/quarantine").json()["rows"]}
    assert before == {"bad_time", "malformed"}
    status, done = post(served, "requests/replay", {"reason": "bad_time"})
    assert (status, [one["source"] for one in done["slices"]]) == (200, ["replay"])
    left = {one["reason"] for one in served.http.get(f"{SHOWN}/quarantine").json()["rows"]}
    assert left == {"malformed"}
    served.tick()  # it is no better than before
    assert {one["reason"] for one in served.http.get(f"{SHOWN}/quarantine").json()["rows"]} == before


def test_what_is_asked_for_has_to_be_known(served):
    status, said = post(served, "requests/replay", {"reason": "ugly"})
    assert (status, said["detail"]) == (400, "there is no reason 'ugly'")
    assert post(served, "requests/rebuild", {"form": HOUR})[0] == 400
    assert post(served, "requests/retry", {"at": HOUR}) == (200, {"stream": "requests", "queued": 0})
    assert post(served, "bare/rebuild")[0] == 400


def test_only_an_operator_with_the_scope_admin_may(served):
    for headers in (served.token("read"), served.token("admin", tenant="acme")):
        for act in ("rebuild", "retry", "replay"):
            assert post(served, f"requests/{act}", headers=headers)[0] == 403
    assert post(served, "requests/retry", headers=served.token("admin"))[0] == 200


def test_ledger_and_quarantine_are_filtered_by_outcome_and_reason(served):
    served.send("requests", [served.request("e1", 1), served.request("e2", 2, status=500)])
    served.settle()
    served.send("requests", ["no object"])
    served.settle()
    first, second, third = [one.id for one in served.mill.ledger("requests")][::-1]

    def listed(**params):
        return [one["id"] for one in served.http.get(f"{SHOWN}/ledger", params=params).json()["slices"]]

    assert listed() == [third, second, first]
    assert listed(outcome="accepted") == [first]
    assert listed(outcome="duplicate") == listed(outcome="conflict") == [second]
    assert listed(outcome="rejected") == listed(reason="malformed") == [third]
    assert listed(reason="skew") == []
    held = served.http.get(f"{SHOWN}/quarantine", params={"outcome": "conflict"}).json()["rows"]
    assert [one["event_id"] for one in held] == ["e2"]


def test_slices_that_changed_a_span_come_a_page_at_a_time(served):
    for n in range(3):
        served.send("requests", [served.request(f"late-{n}", n)])
        served.settle()
    expected = [one.id for one in served.mill.ledger("requests")][::-1]
    found, params = [], {"after": "2026-01-01", "limit": 2, "from": HOUR, "to": END}
    while True:
        page = served.http.get(f"{SHOWN}/changes", params=params).json()
        assert page["total"] == len(expected)
        found += [one["slice"] for one in page["changes"]]
        if page["cursor"] is None:
            break
        params["cursor"] = page["cursor"]
    assert found == expected
    none = served.http.get(f"{SHOWN}/changes", params={"after": "2026-01-01", "from": END}).json()
    assert none["changes"] == []
    at = served.http.get(f"{SHOWN}/changes", params={"after": "2026-01-01"}).json()["changes"][1]["at"]
    query = {"q": "SELECT count FROM requests", "as_of": at}
    answer = served.http.get("/v1/query", params=query).json()
    assert (answer["rows"], answer["as_of"]["slices_after"]) == ([{"count": 4}], 2)
