"""Records that are made here: each instant reads back as itself in the type that the stream declares."""

from __future__ import annotations

from decimal import Decimal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.config import Stream
from tidemill.eventtime import register, registry, resolve
from tidemill.formats.bodies.rendering import check_filled, line, put, spelled
from tidemill.model.errors import InputError
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, parse_instant

AT = parse_instant("2024-01-15T14:23:45.123456Z")
UNITS = {"unixtimestamp_s": 10**6, "unixtimestamp_ms": 1_000, "unixtimestamp_us": 1}


def stream(type: str, field: object = "any") -> Stream:
    return Stream.model_validate(
        {
            "name": "s",
            "schema": {"id": "string", "ts": field},
            "identity": "id",
            "event_time": {"column": "ts", "type": type},
        }
    )


def written(instant: int, declared: Stream, nanos: int = 0) -> str:
    record: dict[str, object] = {}
    put(record, "ts", spelled(instant, declared, nanos))
    return line(record).decode()


@pytest.mark.parametrize(
    ("type", "field", "text"),
    [
        ("unixtimestamp_s", "any", "1705328625.123456789"),
        ("unixtimestamp_s", "string", '"1705328625.123456789"'),
        ("unixtimestamp_s", "integer", "1705328625"),
        ("unixtimestamp_ms", "any", "1705328625123.456789"),
        ("unixtimestamp_ms", {"type": "decimal", "scale": 3}, "1705328625123.456789"),
        ("unixtimestamp_us", "any", "1705328625123456.789"),
        ("unixtimestamp_us", "integer", "1705328625123456"),
        ("unixtimestamp_ns", "integer", "1705328625123456789"),
        ("unixtimestamp_ns", "string", '"1705328625123456789"'),
        ("iso8601", "string", '"2024-01-15T14:23:45.123456789Z"'),
    ],
)
def test_an_instant_is_spelled_as_the_stream_declares_it(type: str, field: object, text: str) -> None:
    assert written(AT, stream(type, field), 789) == f'{{"ts":{text}}}\n'


def test_whole_units_have_no_fraction_and_those_before_1970_a_sign() -> None:
    assert written(5_000_000, stream("unixtimestamp_s")) == '{"ts":5}\n'
    assert written(-1_500_000, stream("unixtimestamp_s")) == '{"ts":-1.5}\n'
    assert written(-1_500_000, stream("unixtimestamp_s", "integer")) == '{"ts":-2}\n'  # down, as it is read
    assert written(AT, stream("iso8601", "string")) == '{"ts":"2024-01-15T14:23:45.123456Z"}\n'


@given(
    st.integers(MIN_INSTANT, MAX_INSTANT - 1),
    st.integers(0, 999),
    st.sampled_from(
        ["unixtimestamp_s", "unixtimestamp_ms", "unixtimestamp_us", "unixtimestamp_ns", "iso8601"]
    ),
    st.sampled_from(["any", "string", "integer"]),
)
def test_what_is_spelled_is_read_back(instant: int, nanos: int, type: str, field: str) -> None:
    if type == "iso8601" and field == "integer":
        field = "string"
    record = written(instant, stream(type, field), nanos)
    text = record.removeprefix('{"ts":').removesuffix("}\n")
    value = text.strip('"') if text.startswith('"') else Decimal(text) if "." in text else int(text)
    unit = UNITS.get(type, 1) if field == "integer" else 1
    assert resolve(type)(value) == instant - instant % unit


def test_a_type_of_a_third_party_cannot_be_filled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_parsers", dict(registry._parsers))  # others do not see it
    register("bodies_test_days", lambda value: 0)
    declared = stream("bodies_test_days")
    with pytest.raises(InputError) as caught:
        check_filled(declared)
    assert "unixtimestamp_ms" in caught.value.hint
    assert "iso8601" in caught.value.hint
    with pytest.raises(InputError):
        spelled(AT, declared)


def test_a_stream_by_arrival_needs_no_time() -> None:
    check_filled(Stream.model_validate({"name": "s", "schema": {"id": "string"}, "identity": "id"}))


def test_put_makes_the_objects_on_the_way_and_keeps_what_is_there() -> None:
    record: dict[str, object] = {"a": {"b": 1}}
    put(record, "a.c.d", 2)
    put(record, "e", 3)
    assert record == {"a": {"b": 1, "c": {"d": 2}}, "e": 3}


def test_put_does_not_write_over_a_value_that_is_no_object() -> None:
    with pytest.raises(InputError, match=r"'a\.b\.c' cannot be filled in: a\.b is not an object"):
        put({"a": {"b": 1}}, "a.b.c", 2)


@pytest.mark.parametrize("value", ["\ud800", 2**70])
def test_what_json_cannot_hold_is_an_input_error(value: object) -> None:
    with pytest.raises(InputError) as caught:
        line({"a": value})
    assert caught.value.hint


def test_a_line_is_compact_json_in_utf8() -> None:
    assert line({"a": "é\n", "b": orjson.Fragment(b"1e400")}) == '{"a":"é\\n","b":1e400}\n'.encode()
