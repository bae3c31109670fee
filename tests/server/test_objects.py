"""Objects that are in storage: registered with their bounds, and only from the folders that are named."""

from __future__ import annotations

import json

import pytest

BOUNDS = {"start": "2026-01-05T10:00:00Z", "end": "2026-01-05T11:00:00Z"}


@pytest.fixture
def store(tmp_path):
    folder = tmp_path / "store"
    folder.mkdir()
    return folder


@pytest.fixture
def registering(serving, store):
    """A server, an object in its store, and a way to register."""
    served = serving(gateway=f"objects: [{store}]")
    lines = [json.dumps(served.request(f"e{n}", n)) for n in range(3)]
    (store / "hour-10.ndjson").write_text("\n".join(lines) + "\n")

    def register(stream="requests", headers=None, **fields):
        return served.http.post(f"/v1/streams/{stream}/slices", json=BOUNDS | fields, headers=headers)

    served.register = register
    return served


def test_an_object_becomes_a_slice_with_its_bounds(registering):
    answer = registering.register(location="hour-10.ndjson", metadata={"dataset": {"name": "requests"}})
    assert answer.status_code == 201
    document = answer.json()
    entry = registering.mill.slice(document["slice"])
    assert document == {
        "slice": entry.id,
        "stream": "requests",
        "new": True,
        "status": "pending",
        "format": "ndjson",
        "bytes": entry.slice.size,
        "start": "2026-01-05T10:00:00Z",
        "end": "2026-01-05T11:00:00Z",
        "source": "storage",
        "name": "hour-10.ndjson",
    }
    assert answer.headers["location"] == f"/v1/slices/{entry.id}"
    assert registering.landed.is_set()
    assert entry.slice.metadata == '{"dataset":{"name":"requests"}}'
    registering.tick()
    assert registering.mill.slice(entry.id).counts.accepted == 3


def test_an_object_that_was_retracted_is_refused(registering):
    first = registering.register(location="hour-10.ndjson")
    mill = registering.mill
    mill.retract(mill.plan_retraction(first.json()["slice"], "wrong hour"))
    again = registering.register(location="hour-10.ndjson")
    assert (again.status_code, again.json()["code"]) == (409, "retracted")


def test_the_same_object_again_is_the_same_slice(registering):
    first = registering.register(location="hour-10.ndjson")
    again = registering.register(location="hour-10.ndjson")
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["new"] is False
    assert again.json()["slice"] == first.json()["slice"]


def test_without_a_location_nothing_happened_in_the_bounds(registering):
    answer = registering.register()
    assert (answer.status_code, answer.json()["bytes"]) == (201, 0)
    entry = registering.mill.slice(answer.json()["slice"])
    assert (entry.slice.name, entry.slice.size) == ("nothing", 0)
    assert entry.slice.declared is not None


def test_a_location_may_be_a_file_url(registering, store):
    answer = registering.register(location=f"file://{store}/hour-10.ndjson", source="nightly")
    assert (answer.status_code, answer.json()["source"]) == (201, "nightly")


def test_what_lies_elsewhere_cannot_be_reached(registering, store, tmp_path):
    secret = tmp_path / "secret.ndjson"
    secret.write_text(json.dumps(registering.request("a")))
    (store / "link.ndjson").symlink_to(secret)
    (store / "out").symlink_to(tmp_path)
    (store / "folder.ndjson").mkdir()
    answers = [
        registering.register(location=location)
        for location in (
            str(secret),
            "../secret.ndjson",
            "link.ndjson",
            "out/secret.ndjson",
            "folder.ndjson",
            "nothing.ndjson",
            f"file://{secret}",
            "/etc/passwd",
        )
    ]
    assert {answer.status_code for answer in answers} == {404}
    assert {answer.json()["hint"] for answer in answers} == {
        "name a file in one of gateway.objects: a path, or file:///..."
    }
    assert registering.mill.ledger("requests") == []


def test_without_folders_it_is_403_and_the_setting_is_named(served):
    answer = served.http.post("/v1/streams/requests/slices", json=BOUNDS | {"location": "x"})
    assert answer.status_code == 403
    assert "gateway.objects" in answer.json()["hint"]


def test_it_is_for_operators(registering):
    tenant = registering.token("admin", tenant="acme")
    ingest, admin = registering.token("ingest"), registering.token("admin")
    answers = [
        registering.register(location="hour-10.ndjson", headers=shown).status_code
        for shown in ({}, tenant, ingest, admin)
    ]
    assert answers == [401, 403, 403, 201]


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"start": "2026-01-05T10:00:00"}, "start"),
        ({"location": 7}, "location"),
        ({"location": "http://example.com/x"}, "location"),
        ({"location": "file://elsewhere/x"}, "location"),
        ({"location": "file://["}, "location"),
        ({"location": "hour-10.ndjson", "start": None}, "start"),
        ({"location": "hour-10.ndjson", "start": "soon"}, "start"),
        ({"location": "hour-10.ndjson", "end": "2026-01-05T10:00:00Z"}, "end"),
        ({"location": "hour-10.ndjson", "end": 7}, "end"),
        ({"location": "hour-10.ndjson", "format": "xml"}, "format"),
        ({"location": "hour-10.ndjson", "source": "a b"}, "source"),
        ({"location": "hour-10.ndjson", "metadata": [1]}, "metadata"),
        ({"location": "hour-10.ndjson", "metadata": {"window": {}}}, "metadata"),
        ({"location": "hour-10.ndjson", "colour": "red"}, "colour"),
    ],
)
def test_what_is_wrong_is_400_and_says_where(still, fields, where):
    answer = still.http.post("/v1/streams/requests/slices", json=BOUNDS | fields)
    assert answer.status_code == 400, answer.text
    assert (answer.json()["code"], answer.json()["where"]) == ("input", where)
    assert answer.json()["hint"]


def test_its_body_is_one_small_json_object(still):
    path = "/v1/streams/requests/slices"
    json_ = {"Content-Type": "application/json"}
    assert still.http.post(path, content=b"{", headers=json_).status_code == 400
    assert still.http.post(path, content=b"[]", headers=json_).status_code == 400
    assert still.http.post(path, content=b" " * (2 << 20), headers=json_).status_code == 413
    assert still.http.post(path, content=b"{}").status_code == 415
