"""CloudEvents 1.0 from the CNCF's own package, structured and batched, as records of a stream."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from cloudevents.core.bindings.http import to_structured
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from tidemill.config import Stream
from tidemill.config.gateway import Requests
from tidemill.eventtime import resolve
from tidemill.formats.bodies import read_body
from tidemill.model.errors import ForbiddenError, InputError, TidemillError, TooLargeError
from tidemill.model.time import DAY, to_datetime

LIMITS = Requests()
ONE = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
AT = datetime(2024, 1, 15, 14, 23, 45, 123456, UTC)
ATTRIBUTES = {"id": "a-1", "source": "/shop", "type": "order.placed", "time": AT, "specversion": "1.0"}


def stream(**changed: object) -> Stream:
    declared: dict[str, object] = {
        "name": "orders",
        "schema": {
            "event_id": "string", "number": "integer", "at.ms": "any", "kind": "string", "tenant": "string",
            "total": "any",
        },
        "identity": "event_id",
        "event_time": {"column": "at.ms", "type": "unixtimestamp_ms"},
        "event_type": {"column": "kind", "allowed": ["order.placed"]},
        "tenant": {"column": "tenant"},
    }  # fmt: skip
    return Stream.model_validate(declared | changed)


ORDERS = stream()


def record(
    event: dict[str, object] | bytes, declared: Stream = ORDERS, tenant: str | None = "acme"
) -> object:
    body = event if isinstance(event, bytes) else json.dumps(event).encode()
    taken = read_body(body, ONE, declared, LIMITS, tenant, "http")
    assert taken.records == 1
    return json.loads(taken.content)


def plain(**changed: object) -> dict[str, object]:
    """An event as JSON; None takes an attribute away."""
    event: dict[str, object] = {"specversion": "1.0", "id": "a-1", "source": "/shop", "type": "order.placed"}
    event |= {"data": {"total": 5}} | changed
    return {name: value for name, value in event.items() if value is not None}


def test_a_structured_event_fills_the_columns_that_the_stream_declares() -> None:
    event = CloudEvent(
        ATTRIBUTES | {"subject": "o/7", "traceparent": "00-ab"}, {"total": 12.5, "at": {"zone": "x"}}
    )
    message = to_structured(event, JSONFormat())
    taken = read_body(message.body, message.headers["content-type"], ORDERS, LIMITS, "acme", "http")
    assert (taken.stream, taken.records, taken.unnamed, taken.tenant) == ("orders", 1, (), "acme")
    assert json.loads(taken.content) == {
        "total": 12.5,
        "at": {"zone": "x", "ms": 1705328625123.456},
        "event_id": "/shop#a-1",
        "kind": "order.placed",
        "tenant": "acme",
        "cloudevent": {"id": "a-1", "source": "/shop", "subject": "o/7", "traceparent": "00-ab"},
    }
    assert b"1705328625123.456" in taken.content


def test_a_batch_is_its_events_in_order() -> None:
    events = [CloudEvent(ATTRIBUTES | {"id": str(n)}, {"total": n}) for n in range(3)]
    body = b"[" + b", ".join(JSONFormat().write(event) for event in events) + b"]"
    taken = read_body(body, BATCH + "; charset=utf-8", ORDERS, LIMITS, "acme", "http")
    records = [json.loads(line) for line in taken.content.splitlines()]
    assert taken.records == 3
    assert [(r["event_id"], r["total"]) for r in records] == [("/shop#0", 0), ("/shop#1", 1), ("/shop#2", 2)]


def test_the_same_event_sent_again_is_the_same_record() -> None:
    body = json.dumps(plain()).encode()
    assert read_body(body, ONE, ORDERS, LIMITS, None, "a") == read_body(body, ONE, ORDERS, LIMITS, None, "a")


def test_a_missing_time_is_left_out() -> None:
    assert "at" not in record(plain())


@given(
    st.integers(DAY, 230 * 365 * DAY),
    st.integers(-14 * 60, 14 * 60),
    st.sampled_from(
        ["unixtimestamp_s", "unixtimestamp_ms", "unixtimestamp_us", "unixtimestamp_ns", "iso8601"]
    ),
)
def test_the_time_is_that_of_the_event_in_the_declared_type(at: int, minutes: int, type: str) -> None:
    field = "string" if type == "iso8601" else "integer" if type == "unixtimestamp_ns" else "any"
    declared = stream(
        schema={"event_id": "string", "ts": field, "kind": "string", "tenant": "string"},
        event_time={"column": "ts", "type": type},
    )
    event = CloudEvent(
        ATTRIBUTES | {"time": to_datetime(at).astimezone(timezone(timedelta(minutes=minutes)))}, {}
    )
    body = to_structured(event, JSONFormat()).body
    line = read_body(body, ONE, declared, LIMITS, "acme", "http").content.decode()
    value = json.loads(line, parse_float=str)["ts"]
    assert resolve(type)(value) == at


def test_more_digits_than_nanoseconds_are_cut_off() -> None:
    declared = stream(
        schema={"event_id": "string", "ts": "string", "kind": "string", "tenant": "string"},
        event_time={"column": "ts", "type": "iso8601"},
    )
    for sent, kept in [
        ("2024-01-15T14:23:45.1234567891Z", "2024-01-15T14:23:45.123456789Z"),
        ("2024-01-15T14:23:45.5+02:00", "2024-01-15T14:23:45.5+02:00"),
    ]:
        found = record(plain(time=sent), declared)
        assert isinstance(found, dict)
        assert found["ts"] == kept


@pytest.mark.parametrize(
    "time", ["yesterday", "2024-01-15", "2024-01-15T14:23:45", "2024-13-15T14:23:45Z", 5, ""]
)
def test_a_time_that_is_no_instant_is_an_error_of_its_event(time: object) -> None:
    with pytest.raises(InputError) as caught:
        record(plain(time=time))
    assert caught.value.where == "event 1"


def test_what_data_says_itself_is_kept() -> None:
    data = {"event_id": "own", "at": {"ms": 1}, "kind": "own", "tenant": "acme"}
    assert record(plain(time="2024-01-15T14:23:45Z", data=data)) == data | {
        "cloudevent": {"id": "a-1", "source": "/shop", "type": "order.placed", "time": "2024-01-15T14:23:45Z"}
    }


@pytest.mark.parametrize("data", [[1, 2], "text", 7, True])
def test_data_that_is_no_object_stands_in_data(data: object) -> None:
    found = record(plain(data=data))
    assert isinstance(found, dict)
    assert found["data"] == data


def test_binary_data_stays_base64() -> None:
    event = CloudEvent(ATTRIBUTES | {"datacontenttype": "application/octet-stream"}, b"\x00\xff")
    found = record(to_structured(event, JSONFormat()).body)
    assert isinstance(found, dict)
    assert found["data_base64"] == "AP8="
    assert "data" not in found


def test_an_event_without_data_is_its_envelope() -> None:
    assert record(plain(data=None)) == {
        "event_id": "/shop#a-1",
        "kind": "order.placed",
        "tenant": "acme",
        "cloudevent": {"id": "a-1", "source": "/shop"},
    }


@pytest.mark.parametrize(
    "number", ["1e400", "123456789012345678901234567890", "0.1000000000000000055511151231257827"]
)
def test_numbers_keep_their_digits(number: str) -> None:
    body = json.dumps(plain(data={"total": 0})).replace('"total": 0', f'"total": {number}').encode()
    assert f'"total":{number},' in read_body(body, ONE, ORDERS, LIMITS, "acme", "http").content.decode()


def test_an_identity_of_several_columns_must_be_in_data() -> None:
    declared = stream(identity=["event_id", "number"])
    found = record(plain(data={"event_id": "x", "number": 1}), declared)
    assert isinstance(found, dict)
    assert found["number"] == 1
    with pytest.raises(InputError, match="data lacks number"):
        record(plain(data={"event_id": "x"}), declared)


def test_an_identity_that_is_a_number_is_not_filled_in() -> None:
    with pytest.raises(InputError, match="number, the identity, which is an integer"):
        record(plain(), stream(identity="number"))


def test_a_stream_by_arrival_without_type_tenant_or_gate_keeps_all_in_the_envelope() -> None:
    declared = Stream.model_validate({"name": "s", "schema": {"total": "any"}, "gate": "none"})
    assert record(plain(time="2024-01-15T14:23:45Z"), declared, None) == {
        "total": 5,
        "cloudevent": {
            "id": "a-1",
            "source": "/shop",
            "type": "order.placed",
            "time": "2024-01-15T14:23:45Z",
        },
    }


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"specversion": "0.3"}, "specversion must be '1.0', and it is '0.3'"),
        ({"specversion": None}, "there is none"),
        ({"id": None}, "id is missing"),
        ({"source": ""}, "source is missing"),
        ({"type": 5}, "type is missing, or is not a non-empty string"),
        ({"Upper": "x"}, "'Upper' is not a valid attribute name"),
        ({"extra": {"a": 1}}, "attribute extra is not a string"),
        ({"extra": 1.5}, "attribute extra is not a string"),
        ({"data_base64": "AP8="}, "both data and data_base64"),
        ({"data": None, "data_base64": "?"}, "data_base64 is not base64"),
        ({"data": {"cloudevent": 1}}, "member 'cloudevent'"),
        ({"time": "2024-01-15T14:23:45Z", "data": {"at": 5}}, "at is not an object"),
        ({"data": {"total": "\ud800"}}, "cannot be written as JSON"),
    ],
)
def test_an_event_that_is_none_is_named_by_its_number(changed: dict[str, object], said: str) -> None:
    body = json.dumps([plain(), plain(**changed)]).encode()
    with pytest.raises(InputError) as caught:
        read_body(body, BATCH, ORDERS, LIMITS, "acme", "http")
    assert said in caught.value.message
    assert caught.value.where == "event 2"
    assert caught.value.hint


def test_a_key_that_stands_twice_is_refused() -> None:
    body = b'{"specversion":"1.0","id":"1","source":"s","type":"order.placed","data":{"a":1,"a":2}}'
    with pytest.raises(InputError, match="'a' is repeated"):
        record(body)


def test_one_and_many_are_told_apart() -> None:
    for media, event in ((ONE, [plain()]), (BATCH, plain())):
        with pytest.raises(InputError, match="cloudevents"):
            read_body(json.dumps(event).encode(), media, ORDERS, LIMITS, "acme", "http")
    with pytest.raises(InputError, match="not a JSON object"):
        record(b"7")
    with pytest.raises(InputError, match="no events"):
        read_body(b"[]", BATCH, ORDERS, LIMITS, "acme", "http")


def test_an_event_of_another_tenant_is_forbidden() -> None:
    body = json.dumps([plain(), plain(data={"tenant": "other"})]).encode()
    with pytest.raises(ForbiddenError) as caught:
        read_body(body, BATCH, ORDERS, LIMITS, "acme", "http")
    assert caught.value.where == "event 2"


@pytest.mark.parametrize("tenant", [{"column": "tenant"}, {"value": "acme"}])
@pytest.mark.parametrize("named", ["other", 7])
def test_an_envelope_that_names_another_tenant_than_the_token_is_forbidden(tenant, named) -> None:
    body = json.dumps([plain(tenant="acme"), plain(tenant=named)]).encode()
    declared = stream(tenant=tenant)
    with pytest.raises(ForbiddenError, match="attribute tenant names tenant") as caught:
        read_body(body, BATCH, declared, LIMITS, "acme", "http")
    assert caught.value.where == "event 2"
    assert read_body(body, BATCH, declared, LIMITS, None, "http").records == 2  # an operator's


def test_an_operators_event_names_its_tenant_itself() -> None:
    found = record(plain(), tenant=None)
    assert isinstance(found, dict)
    assert found["tenant"] == "default"


def test_limits_hold_for_cloud_events_too() -> None:
    body = json.dumps([plain(), plain(data={"a": {"b": {"c": {}}}})]).encode()
    with pytest.raises(TooLargeError) as caught:
        read_body(body, BATCH, ORDERS, Requests(depth=4), "acme", "http")
    assert caught.value.where == "event 2"


@given(
    st.dictionaries(
        st.sampled_from(
            ["specversion", "id", "source", "type", "time", "data", "data_base64", "x", "subject"]
        ),
        st.one_of(
            st.sampled_from(["1.0", "a", "2024-01-15T14:23:45Z", ""]),
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(allow_nan=False, allow_infinity=False),
            st.dictionaries(
                st.sampled_from(["event_id", "at", "kind", "tenant"]), st.text(max_size=3), max_size=3
            ),
        ),
    )
)
def test_any_object_is_a_record_or_an_error_of_ours(event: dict[str, object]) -> None:
    try:
        found = record(event)
    except TidemillError:
        return
    assert isinstance(found, dict)
    assert found["tenant"] in ("acme", "")  # an empty one is for the gate to see
    assert "event_id" in found


def test_an_event_without_a_tenant_or_a_declared_type_is_whole_in_the_project_for_events():
    from pathlib import Path

    from tidemill.config.gateway import Requests
    from tidemill.config.loading import parse_project, read_template
    from tidemill.eventtime import registered
    from tidemill.formats.bodies import read_body

    stream = parse_project(read_template("events"), Path("tidemill.yaml"), registered(), {}).streams["events"]
    event = {"specversion": "1.0", "id": "1", "source": "/a", "type": "t", "time": "2024-01-15T12:00:00Z"}

    def read(more, tenant=None):
        body = json.dumps(event | more).encode()
        made = read_body(body, "application/cloudevents+json", stream, Requests(), tenant, "http")
        record = json.loads(made.content)
        return record["event_type"], record["tenant"], record["event_id"]

    assert read({}) == ("t", "default", "/a#1")
    assert read({"tenant": "acme"}) == ("t", "acme", "/a#1")
    assert read({"data": {"tenant": "globex"}}) == ("t", "globex", "/a#1")
    assert read({}, tenant="initech") == ("t", "initech", "/a#1")
