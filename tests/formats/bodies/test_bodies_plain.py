"""JSON and NDJSON bodies: the same records in the same order, byte for byte, whatever the layout."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.config import Stream
from tidemill.config.gateway import Requests
from tidemill.formats.bodies import MEDIA_TYPES, read_body
from tidemill.formats.bodies.json_bodies import json_lines, ndjson_lines
from tidemill.model.errors import InputError, TidemillError, TooLargeError
from tidemill.model.gateway import Submission
from tidemill.model.slices import Format

LIMITS = Requests()
JSON = "application/json"
NDJSON = "application/x-ndjson"
STREAM = Stream.model_validate({"name": "orders", "schema": {"id": "string"}, "identity": "id"})

TEXTS = st.one_of(
    st.sampled_from(
        ["", "{", "}]", '"', "\\", '\\"', "a,b", "\n", "\r\n", "\u2028", "é", "😀", "\x00", "[["]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
)
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXTS
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=8,
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=4)
SPACES = st.sampled_from(["", " ", "\n", "\r\n", "\t ", "\n\n  "])


def read(body: bytes, media: str, limits: Requests = LIMITS) -> Submission:
    return read_body(body, media, STREAM, limits, None, "http")


@st.composite
def written(draw: st.DrawFn, value: object) -> bytes:
    """JSON in some layout, with or without escapes."""
    indent = draw(st.sampled_from([None, 0, 2, "\t"]))
    separators = draw(st.sampled_from([(",", ":"), (" , ", " : "), (",\r\n", ":")]))
    ascii_only = draw(st.booleans())
    return json.dumps(value, indent=indent, separators=separators, ensure_ascii=ascii_only).encode()


def one_line(text: bytes) -> bytes:
    return text.replace(b"\r", b" ").replace(b"\n", b" ")


@given(st.lists(st.one_of(OBJECTS, VALUES), min_size=1, max_size=6), st.data())
def test_elements_of_an_array_come_out_as_they_stand(events: list[object], data: st.DataObject) -> None:
    texts = [data.draw(written(event)) for event in events]
    body = b"["
    for place, text in enumerate(texts):
        before, after = data.draw(SPACES).encode(), data.draw(SPACES).encode()
        body += (b"," if place else b"") + before + text + after
    body += b"]" + data.draw(SPACES).encode()
    taken = read(body, JSON)
    assert taken.records == len(events)
    assert taken.content == b"".join(one_line(text) + b"\n" for text in texts)
    assert [json.loads(line) for line in taken.content.split(b"\n")[:-1]] == events


@given(OBJECTS, SPACES, SPACES, st.data())
def test_one_object_is_one_record(event: object, before: str, after: str, data: st.DataObject) -> None:
    text = data.draw(written(event))
    taken = read(before.encode() + text + after.encode(), JSON)
    assert (taken.records, taken.content) == (1, one_line(text) + b"\n")


@given(st.lists(OBJECTS, min_size=1, max_size=8), st.data())
def test_lines_come_out_as_they_stand_and_blank_ones_go(
    events: list[dict[str, object]], data: st.DataObject
) -> None:
    ends = st.sampled_from([b"\n", b"\r\n", b"\n\n", b"\n \t\r\n", b"\r\n\r\n"])
    texts = [json.dumps(event, ensure_ascii=data.draw(st.booleans())).encode() for event in events]
    body = data.draw(st.sampled_from([b"", b"\n", b" \r\n", b"\xef\xbb\xbf"]))
    body += b"".join(text + data.draw(ends) for text in texts)
    if data.draw(st.booleans()):
        body = body.rstrip()
    taken = read(body, NDJSON)
    lines = taken.content.split(b"\n")
    assert lines.pop() == b""
    assert taken.records == len(events)
    assert [line.rstrip(b"\r") for line in lines] == texts


def test_lines_without_blanks_are_the_body_itself() -> None:
    body = b'{"id":"1"}\n{"id":"2"}\n'
    taken = read(body, NDJSON)
    assert taken.content is body
    assert taken == Submission("orders", "http", body, 2, Format.NDJSON, None, ())


@pytest.mark.parametrize(
    "line", [b"{", b"nonsense", b'{"a":1} trailing', b"\xff\xfe", b'"a', b"7", b"null", b"\x00"]
)
def test_a_line_that_is_no_event_is_taken_and_left_to_the_gate(line: bytes) -> None:
    body = b'{"id":"1"}\n' + line + b'\n{"id":"2"}\n'
    assert read(body, NDJSON).content == body


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        (b"7", b"7\n"),
        (b'"text"', b'"text"\n'),
        (b"[1, null, {}]", b"1\nnull\n{}\n"),
        (b"[[1],[2]]", b"[1]\n[2]\n"),
    ],
)
def test_a_value_that_is_no_object_is_a_record_all_the_same(body: bytes, lines: bytes) -> None:
    assert read(body, JSON).content == lines


@pytest.mark.parametrize(
    "text", [b'{"a":1e999}', b'{"a":"\\ud800"}', b'{"a":1,"a":2}', b'{"a":' + b"9" * 5000 + b"}"]
)
def test_json_that_parsers_differ_on_is_taken_as_it_is(text: bytes) -> None:
    """Whether it can be an event is decided once, by the gate."""
    assert read(b"[" + text + b"]", JSON).content == text + b"\n"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"a":1', "line 1 column 7"),
        (b'[\n  {"a":1},\n  {"b" 2}\n]', "a colon is expected after a key at line 3 column 8"),
        (b'[{"a":1} {"b":2}]', "a comma or a closing bracket is expected at line 1 column 10"),
        (b"[1,2,]", "a value is expected at line 1 column 6"),
        (b'{"a":1,}', "a key in double quotes is expected at line 1 column 8"),
        (b'{"a":1}\n{"a":2}', "nothing is expected after the value at line 2 column 1"),
        ('["é", 01]'.encode(), "line 1 column 8"),
        (b'["a\nb"]', "control character"),
        (b'["\\q"]', "invalid JSON escape sequence"),
        (b"[NaN]", "a value is expected"),
        (b"[1.]", "not a valid JSON number"),
        (b"{'a':1}", "a key in double quotes"),
        (b'{"a":1]', "a comma or a closing bracket"),
        (b"", "a value is expected"),
        (b'["\xff"]', "not UTF-8 at line 1 column 3"),
    ],
)
def test_json_that_does_not_parse_is_an_error_with_line_and_column(body: bytes, said: str) -> None:
    with pytest.raises(InputError) as caught:
        read(body, JSON)
    assert said in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("media", [JSON, NDJSON])
def test_a_byte_order_mark_is_skipped(media: str) -> None:
    assert read(b'\xef\xbb\xbf{"id":"1"}', media).content == b'{"id":"1"}\n'


@pytest.mark.parametrize("media", [JSON, NDJSON])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_utf16_and_utf32_are_refused_by_name(media: str, encoding: str) -> None:
    with pytest.raises(InputError, match="UTF-16"):
        read('{"id":"1"}'.encode(encoding), media)


@pytest.mark.parametrize(
    ("media", "body"), [(JSON, b"[]"), (JSON, b" [ ] "), (NDJSON, b""), (NDJSON, b"\n \r\n")]
)
def test_a_body_without_events_is_an_input_error(media: str, body: bytes) -> None:
    with pytest.raises(InputError, match="no events"):
        read(body, media)


@given(st.binary(max_size=60) | st.text('[]{}":,\\ntrue0123eE.-+ \n', max_size=40).map(str.encode))
def test_what_is_json_here_is_json_to_the_standard_library(body: bytes) -> None:
    try:
        lines, records = json_lines(body, LIMITS)
    except TidemillError:
        with suppress(ValueError):  # ours is as strict as the standard's strictest
            text = body.decode().removeprefix("\ufeff")
            value = json.loads(text, parse_int=str, parse_float=str, parse_constant=_refused)
            raise AssertionError(f"{value!r} was refused") from None
        return
    values = [json.loads(line, parse_int=str, parse_float=str) for line in lines.split(b"\n")[:-1]]
    whole = json.loads(body.decode().removeprefix("\ufeff"), parse_int=str, parse_float=str)
    assert len(values) == records
    assert values == (whole if isinstance(whole, list) else [whole])


def _refused(text: str) -> object:
    raise ValueError(text)


@given(st.binary(max_size=200), st.sampled_from(MEDIA_TYPES))
def test_any_bytes_are_a_submission_or_an_error_of_ours(body: bytes, media: str) -> None:
    with suppress(TidemillError):
        taken = read(body, media)
        assert taken.records > 0


# Limits.


def nested(depth: int) -> bytes:
    return b'{"a":' * (depth - 1) + b"{}" + b"}" * (depth - 1)


@pytest.mark.parametrize("media", [JSON, NDJSON])
def test_events_are_limited_and_blank_lines_do_not_count(media: str) -> None:
    limits = Requests(events=3)
    body = b"[{},{},{}]" if media == JSON else b"\n\n{}\n\n\n{}\n{}\n\n\n\n"
    assert read(body, media, limits).records == 3
    with pytest.raises(TooLargeError) as caught:
        read(b"[{},{},{},{}]" if media == JSON else b"{}\n" * 4, media, limits)
    assert "3 events" in caught.value.message
    assert "gateway.requests.events" in caught.value.hint


@pytest.mark.parametrize("layout", ["object", "array", "lines"])
def test_depth_is_limited_for_each_event_by_its_number(layout: str) -> None:
    limits = Requests(depth=5)
    flat, deep = nested(5), nested(6)
    first = {"object": b"%s", "array": b'[{"x":[{}]},%s]', "lines": b'{"x":[{}]}\n\n%s\n'}[layout]
    media = NDJSON if layout == "lines" else JSON
    assert read(first % flat, media, limits).records == (1 if layout == "object" else 2)
    with pytest.raises(TooLargeError) as caught:
        read(first % deep, media, limits)
    assert caught.value.where == ("event 1" if layout == "object" else "event 2")
    assert "5 deep" in caught.value.message
    assert "gateway.requests.depth" in caught.value.hint


def test_brackets_in_texts_and_beside_each_other_are_not_depth() -> None:
    limits = Requests(depth=3)
    event = b'{"a":"[[[[{{{{\\"[[","b":[[],[],[],[],{}],"c":{"d":[]}}'
    assert read(event, NDJSON, limits).records == 1
    assert read(event, JSON, limits).records == 1


@pytest.mark.parametrize("media", [JSON, NDJSON])
@pytest.mark.parametrize("shape", [b'{"a":"%s"}', b'{"%s":1}'])
def test_one_text_is_limited(media: str, shape: bytes) -> None:
    limits = Requests(field=100)
    for text in (b"x" * 100, b'\\"' * 50):
        assert read(shape % text, media, limits).records == 1
    with pytest.raises(TooLargeError) as caught:
        read(shape % (b"x" * 101), media, limits)
    assert caught.value.where == "event 1"
    assert "100 bytes" in caught.value.message
    assert "gateway.requests.field" in caught.value.hint


def test_the_body_is_limited() -> None:
    with pytest.raises(TooLargeError) as caught:
        read(b" " * 2000 + b"{}", JSON, Requests(body=2000))
    assert "gateway.requests.body" in caught.value.hint


@given(st.lists(VALUES, min_size=1, max_size=4), st.integers(1, 6))
def test_lines_and_arrays_are_measured_alike(events: list[object], depth: int) -> None:
    limits = Requests(depth=depth, field=16)

    def outcome(media: str, body: bytes) -> str:
        try:
            return str(read(body, media, limits).records)
        except TooLargeError as error:
            return f"{error.where}: {error.message}"

    texts = [json.dumps(event).encode() for event in events]
    # which limit of one event is named first may differ: a line is measured whole, an array as it is read
    by_line = outcome(NDJSON, b"\n".join(texts))
    by_array = outcome(JSON, b"[" + b",".join(texts) + b"]")
    assert by_line.split(":")[0] == by_array.split(":")[0]


def test_a_flood_of_line_ends_makes_nothing_for_each() -> None:
    assert ndjson_lines(b"\n" * 1_000_000 + b"{}", LIMITS) == (b"{}\n", 1)
