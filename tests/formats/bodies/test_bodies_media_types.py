"""Which bodies are read, whose events they may hold, and the plain envelope."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.config import Stream
from tidemill.config.gateway import Requests
from tidemill.formats.bodies import MEDIA_TYPES, read_body
from tidemill.formats.bodies.media_types import media_type
from tidemill.model.errors import ForbiddenError, MediaTypeError
from tidemill.model.gateway import Submission

LIMITS = Requests()
JSON = "application/json"
NDJSON = "application/x-ndjson"
ENVELOPES = {
    "name": "requests",
    "schema": {
        "event_id": {"type": "string", "required": True},
        "ts": "string",
        "event_type": "string",
        "tenant": "string",
        "resource.service": "string",
        "attributes": "object",
        "outcome": "string",
    },
    "identity": "event_id",
    "event_time": {"column": "ts", "type": "iso8601"},
    "event_type": {"column": "event_type", "allowed": ["http.request"]},
    "tenant": {"column": "tenant"},
}


def stream(tenant: dict[str, str]) -> Stream:
    schema = {"id": "string", "tenant": "string", "resource.tenant": "string"}
    return Stream.model_validate({"name": "orders", "schema": schema, "identity": "id", "tenant": tenant})


FIXED = stream({"value": "acme"})
COLUMN = stream({"column": "tenant"})
NESTED = stream({"column": "resource.tenant"})


def read(
    body: bytes, media: str | None = NDJSON, declared: Stream = COLUMN, tenant: str | None = "acme"
) -> Submission:
    return read_body(body, media, declared, LIMITS, tenant, "http")


@pytest.mark.parametrize("media", MEDIA_TYPES)
def test_a_media_type_is_known_in_any_case_and_with_its_charset(media: str) -> None:
    assert media_type(media) == media
    assert media_type(f" {media.upper()} ; charset=UTF-8") == media
    assert media_type(f'{media};charset="utf-8"; profile=x') == media


@pytest.mark.parametrize(
    "content_type", [None, "", "text/plain", "application/x-www-form-urlencoded", "json"]
)
def test_another_type_or_none_is_refused_with_those_that_are_read(content_type: str | None) -> None:
    with pytest.raises(MediaTypeError) as caught:
        read(b"{}", content_type)
    for media in MEDIA_TYPES:
        assert media in caught.value.hint


def test_another_charset_is_refused() -> None:
    with pytest.raises(MediaTypeError, match="iso-8859-1"):
        read(b"{}", "application/json; charset=ISO-8859-1")


def test_seed_2s_envelope_goes_through_as_it_is() -> None:
    event = {
        "event_id": "e-1",
        "ts": "2024-01-15T14:23:45.123Z",
        "event_type": "http.request",
        "tenant": "acme",
        "resource": {"service": "checkout", "host": "a1"},
        "attributes": {"http.method": "GET", "ms": 12.50},
        "outcome": "ok",
    }
    body = json.dumps(event, indent=1).encode()
    taken = read_body(body, JSON, Stream.model_validate(ENVELOPES), LIMITS, "acme", "http")
    assert taken.content == body.replace(b"\n", b" ") + b"\n"
    assert (taken.stream, taken.records, taken.tenant, taken.unnamed) == ("requests", 1, "acme", ())


# Tenants.


def test_a_stream_of_another_tenant_is_forbidden_before_anything_is_read() -> None:
    with pytest.raises(ForbiddenError, match="does not belong to tenant 'other'"):
        read(b"no JSON", JSON, FIXED, "other")


@pytest.mark.parametrize("tenant", [None, "acme"])
def test_a_stream_of_the_tenant_needs_no_names_in_events(tenant: str | None) -> None:
    taken = read(b'{"id":"1","tenant":"whoever"}\n', declared=FIXED, tenant=tenant)
    assert (taken.records, taken.unnamed, taken.tenant) == (1, (), tenant)


def test_events_that_name_no_tenant_are_told_by_their_places() -> None:
    lines = [
        b'{"id":"0","tenant":"acme"}',
        b'{"id":"1"}',
        b'{"id":"2","tenant":null}',
        b'{"id":"3","tenant":""}',
        b'{"id":"4","tenant":7}',
        b"no JSON",
        b'{"id":"6","tenant":"acme","n":1e999}',
        b"5",
        b'{"id":"8","tenant":{"tenant":"other"}}',
        b'{"id":"9","tenant":"acme"',
    ]
    assert read(b"\n".join(lines)).unnamed == (1, 2, 3, 4, 5, 7, 8, 9)


@pytest.mark.parametrize(
    "event",
    [
        b'{"id":"2","tenant":"other"}',
        b'{"id":"2","tenant":"\\u006fther"}',
        b'{"id":"2","ten\\u0061nt":"other"}',
        b'{"id":"2","tenant":"other","n":1e999}',  # no double holds it, and the gate takes it
        b'{"id":"2","tenant":"other","n":' + b"9" * 5000 + b"}",
        b'{"id":"2","tenant":"acme ","n":1}',
        b'{"id":"2","tenant":"Acme"}',
    ],
)
@pytest.mark.parametrize("media", [JSON, NDJSON])
def test_an_event_of_another_tenant_is_forbidden_and_nothing_is_taken(event: bytes, media: str) -> None:
    own = b'{"id":"1","tenant":"acme"}'
    with pytest.raises(ForbiddenError) as caught:
        read(b"[%s,%s]" % (own, event) if media == JSON else b"%s\n%s\n" % (own, event), media)
    assert caught.value.where == "event 2"
    assert "operator" in caught.value.hint


def test_an_operator_brings_events_of_all_tenants() -> None:
    taken = read(b'{"id":"1","tenant":"a"}\n{"id":"2","tenant":"b"}\n{"id":"3"}\n', tenant=None)
    assert (taken.records, taken.unnamed, taken.tenant) == (3, (), None)


def test_a_tenant_can_stand_in_an_object() -> None:
    own = b'{"resource":{"tenant":"acme"}}\n{"resource.tenant":"other"}\n{"resource":[]}\n'
    assert read(own, declared=NESTED).unnamed == (1, 2)
    with pytest.raises(ForbiddenError):
        read(b'{"resource":{"tenant":"other"}}', declared=NESTED)


@given(st.lists(st.sampled_from(["acme", "other", "", None, 3, "é"]), min_size=1, max_size=6), st.booleans())
def test_no_event_of_another_tenant_ever_passes(named: list[object], ascii_only: bool) -> None:
    lines = [json.dumps({"id": "1", "tenant": value}, ensure_ascii=ascii_only) for value in named]
    body = "\n".join(lines).encode()
    if any(isinstance(value, str) and value not in ("", "acme") for value in named):
        with pytest.raises(ForbiddenError):
            read(body)
    else:
        assert read(body).unnamed == tuple(at for at, value in enumerate(named) if value != "acme")
