"""The OpenAPI document: whole, with examples that are true, and held against the server by schemathesis."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import product

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.support.hypothesis_settings import examples
from tests.support.patience import PATIENCE

ENDLESS = ["/v1/events", "/v1/overview/events"]  # streams of events: they do not end

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def document(still):
    return still.http.get("/openapi.json").json()


def operations(document):
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield f"{method} {path}", operation


def test_every_operation_is_described_and_may_ask_for_a_token(document):
    for name, operation in operations(document):
        assert operation["summary"], name
        assert operation["operationId"], name
        assert operation["tags"], name
        if "/v1/" in name or name.endswith("/metrics"):
            assert operation["security"] == [{"token": []}, {}], name
            assert {"400", "401", "403", "429", "500", "503"} <= set(operation["responses"]), name
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    ids = [operation["operationId"] for _, operation in operations(document)]
    assert len(set(ids)) == len(ids)


def test_every_example_is_what_its_schema_says(document):
    shown = 0
    for name, operation in operations(document):
        for holder in [*operation["responses"].values(), operation.get("requestBody", {})]:
            for media in holder.get("content", {}).values():
                examples = [e["value"] for e in media.get("examples", {}).values()]
                for example in [*examples, *([media["example"]] if "example" in media else [])]:
                    whole = {**media["schema"], "components": document["components"]}
                    errors = [e.message for e in jsonschema_rs.validator_for(whole).iter_errors(example)]
                    assert errors == [], (name, example)
                    shown += 1
    assert shown > 20


def test_the_examples_of_events_can_be_sent(still, document):
    content = document["paths"]["/v1/streams/{stream}/events"]["post"]["requestBody"]["content"]
    for media, described in content.items():
        examples = [e["value"] for e in described.get("examples", {}).values()]
        for example in [*examples, *([described["example"]] if "example" in described else [])]:
            body = example if isinstance(example, str) else json.dumps(example)
            answer = still.http.post(
                "/v1/streams/requests/events", content=body.encode(), headers={"Content-Type": media}
            )
            assert answer.status_code == 202, (media, answer.text)


def test_every_media_type_that_is_read_is_described(still, document):
    content = document["paths"]["/v1/streams/{stream}/events"]["post"]["requestBody"]["content"]
    headers = {"Content-Type": "text/plain"}
    hint = still.http.post("/v1/streams/requests/events", content=b"x", headers=headers).json()["hint"]
    listed = set(hint.removeprefix("set Content-Type to one of ").split(", "))
    others = {"application/ndjson", "application/jsonl"}  # other names of what is described
    assert listed - others == set(content)


@pytest.mark.long
@pytest.mark.parametrize("count", [5, pytest.param(200, marks=pytest.mark.soak)])
def test_what_it_answers_is_what_it_says(still, count):
    """Requests that nobody thought of, over the real connection: none is a fault of the server, and each
    answer has a status, a media type, headers and a shape that are declared."""
    load_all_checks()
    schema = schemathesis.openapi.from_url(f"{still.url}/openapi.json").exclude(path=ENDLESS)
    where = still.send("requests", [still.request(f"e{n}") for n in range(3)]).headers["location"]
    still.settle()
    real = {
        "stream": st.sampled_from(["requests", "events"]),
        "ingestion": st.just(where.rpartition("/")[2]),
        "slice_id": st.just(still.mill.ledger("requests")[0].id),
        "start": st.just("2026-01-05T10:00:00Z"),
    }
    failures: list[str] = []
    statuses: defaultdict[str, set[int]] = defaultdict(set)
    with still.ticking():
        for result, mode in product(schema.get_all_operations(), GenerationMode):
            operation = result.ok()
            try:
                _holds(operation, mode, count, real, statuses[operation.label])
            except Unsatisfiable:  # nothing can be wrong with a request that takes nothing
                continue
            except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - all operations are told of
                failures.append(f"{operation.label}: {error}")
    assert not failures, "\n\n".join(failures)
    assert {200, 400, 404} <= set().union(*statuses.values())


def _holds(operation, mode, count, real, statuses) -> None:
    @given(case=operation.as_strategy(generation_mode=mode), known=st.booleans(), data=st.data())
    @examples(count, shrink=False)
    def holds(case, known, data):
        if known:  # what is there is found by chance only
            case.path_parameters.update(
                {name: data.draw(real[name]) for name in case.path_parameters if name in real}
            )
        statuses.add(case.call_and_validate(checks=CHECKS, timeout=PATIENCE).status_code)

    holds()
