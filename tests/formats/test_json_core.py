"""Every walk over JSON agrees with Python's `json` on what is JSON, and where each value begins and ends."""

from __future__ import annotations

import json
import re
from json.decoder import scanstring
from random import Random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples

from tidemill.config.gateway import Requests
from tidemill.formats.arrays import Bytes, RecordChunk
from tidemill.formats.bodies.json_bodies import scanned
from tidemill.formats.bodies.limits import FITS, survey
from tidemill.formats.decide import RuleError, parse
from tidemill.formats.json_core import (
    ARRAY,
    ESCAPED,
    EXPONENT,
    FALSE,
    FRACTION,
    INTEGER,
    MISSING,
    NO_NUMBER,
    NULL,
    OBJECT,
    PROVEN,
    STRING,
    TOO_DEEP,
    TOO_LONG,
    TRUE,
    container_end,
    item_end,
    unescape,
    value_end,
)
from tidemill.formats.locate import locate, paths_of
from tidemill.formats.positional import inside, named
from tidemill.formats.scan import scan
from tidemill.formats.split import split_array
from tidemill.model.errors import InputError
from tidemill.model.slices import Reject

DEPTH = 30
LONG = 1000
SPACE = " \t\n\r"
LIMITS = Requests()

# --- texts: JSON in many spellings, JSON with a few bytes changed, and bytes that look like JSON

NAMES = st.sampled_from(["", "a", "b", "aa", "id", "longer than eight bytes", "é", "😀", 'q"', "\\", "\n"])
TEXTS = NAMES | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.sampled_from(
    ["0", "-0", "7", "-12", "1234567890123456789012", "0.5", "-0.250", "1e5", "1E-07", "10.01e+2", "0e0"]
)


class Spelled(str):
    """A number as it is to be written."""


VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS.map(Spelled) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=6)
DICE = st.integers(0, 2**32).map(Random)


def spelled(value: object, dice: Random) -> str:
    """The value as JSON, with white space and escapes that the dice choose."""

    def gap() -> str:
        return dice.choice(["", "", "", " ", "\n", "\r\t "])

    if isinstance(value, Spelled):
        return str(value)
    if isinstance(value, str):
        return '"' + "".join(_character(char, dice) for char in value) + '"'
    if isinstance(value, list):
        return "[" + ",".join(gap() + spelled(item, dice) + gap() for item in value) + (gap() + "]")
    if isinstance(value, dict):
        pairs = (
            gap() + spelled(key, dice) + gap() + ":" + gap() + spelled(item, dice) + gap()
            for key, item in value.items()
        )
        return "{" + ",".join(pairs) + (gap() + "}")
    return json.dumps(value)


def _character(char: str, dice: Random) -> str:
    must = char in '"\\' or ord(char) < 0x20
    if dice.random() < 0.1 and ord(char) < 0x10000:
        return f"\\u{ord(char):04{dice.choice('xX')}}"
    return json.dumps(char)[1:-1] if must or dice.random() < 0.1 else char


def hurt(text: bytes, dice: Random) -> bytes:
    """A few bytes dropped, put in or replaced."""
    found = bytearray(text)
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(found) + 1)
        found[at : at + dice.randint(0, 2)] = dice.choice([b"", b"", *(bytes([c]) for c in SOUP)])
    return bytes(found)


SOUP = b'[]{}":,\\/ \n\t\x00\x1f\x7f\xc3tfnu0123456789eE.+-a'
JSON = st.builds(lambda value, dice: spelled(value, dice).encode(), VALUES | OBJECTS, DICE)
ANY = (
    JSON
    | st.builds(hurt, JSON, DICE)
    | st.text(SOUP.decode("latin-1"), max_size=30).map(lambda text: text.encode("latin-1"))
)
ODD = [
    b"", b" ", b"-", b"01", b"-01", b"1.", b"1.e5", b"1e", b"1e+", b"0x1", b"+1", b".5", b"NaN", b"-Infinity",
    b"tru", b"truE", b"nul", b"falsey", b'"', b'"\\', b'"\\u', b'"\\u12', b'"\\u12g4"', b'"\\x"', b'"\x1f"',
    b'"a\nb"', b'"\\ud800"', b'"\x7f\xff"', b"[", b"]", b"[1", b"[1,", b"[1,]", b"[,1]", b"[1 2]", b"[1}",
    b"{", b"}", b'{"a"', b'{"a":', b'{"a":1', b'{"a":1,', b'{"a":1,}', b"{,}", b"{1:2}", b'{"a" 1}',
    b'{"a":1]', b'{"a":1 "b":2}', b"[[[]]", b"[[]]]", b'{"a":{}}}', b'["\\\\"]', b'["\\""]',
]  # fmt: skip


def array(text: bytes) -> Bytes:
    """Writable, as text that is decoded: kernels are compiled once for each kind of array."""
    return np.frombuffer(bytearray(text), np.uint8)


def body(text: bytes) -> Bytes:
    """Read-only, as what is posted."""
    return np.frombuffer(text, np.uint8)


# --- what Python's json says; one character is one byte

DECODER = json.JSONDecoder(parse_constant=lambda text: _refuse(text), parse_int=str, parse_float=str)


def _refuse(text: str) -> object:
    raise ValueError(text)


def gap_end(text: str, at: int) -> int:
    while at < len(text) and text[at] in SPACE:
        at += 1
    return at


def decoded(text: str, at: int) -> tuple[object, int] | None:
    """The value at a position and where it ends; None when there is none."""
    try:
        return DECODER.raw_decode(text, at)
    except ValueError:
        return None


def whole(data: bytes) -> tuple[str, object] | None:
    """The text and the value of bytes that are one JSON value."""
    text = data.decode("latin-1")
    found = decoded(text, gap_end(text, 0))
    return (text, found[0]) if found is not None and gap_end(text, found[1]) == len(text) else None


def members(text: str) -> list[tuple[str, int, int]]:
    """How each key of an object is spelled (of an array: no key), and where its value starts and ends."""
    found = []
    at = gap_end(text, 0)
    in_object = text[at] == "{"
    at = gap_end(text, at + 1)
    while text[at] not in "]}":
        key = ""
        if in_object:
            key = text[at : scanstring(text, at + 1)[1]]
            at = gap_end(text, gap_end(text, at + len(key)) + 1)
        value = decoded(text, at)
        assert value is not None
        found.append((key, at, value[1]))
        at = gap_end(text, value[1])
        at = gap_end(text, at + 1) if text[at] == "," else at
    return found


def elements(text: str) -> list[tuple[int, int]]:
    return [(start, end) for _, start, end in members(text)]


def strings(text: str) -> list[tuple[int, int]]:
    """Every string of a text that is JSON, quotes included."""
    found, at = [], text.find('"')
    while at >= 0:
        end = scanstring(text, at + 1)[1]
        found.append((at, end))
        at = text.find('"', end)
    return found


def depth(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


# --- the strict steps


def odd(test):  # type: ignore[no-untyped-def]
    for text in ODD:
        test = example(text)(test)
    return test


@odd
@given(ANY)
@examples(400)
def test_a_value_is_proven_exactly_where_json_reads_one(data: bytes) -> None:
    text = data.decode("latin-1")
    buffer = body(b'"' + data + b'"]}')  # what lies around the text must not matter
    start = 1 + gap_end(text, 0)
    ended, at = value_end(buffer, start, 1 + len(data), DEPTH, LONG, np.empty(DEPTH + 1, np.bool_))
    found = decoded(text, start - 1)
    if ended == PROVEN:
        assert found is not None
        assert at == 1 + found[1]
    elif found is not None:  # json ends a number before a point without digits; here it is no number
        assert ended == NO_NUMBER
        assert text[found[1]] in ".eE"
    assert start <= at <= 1 + len(data)


@given(JSON, st.integers(0, 4), st.integers(0, 12))
def test_a_value_beyond_a_limit_is_not_proven(data: bytes, deep: int, long: int) -> None:
    found = whole(data)
    assert found is not None
    ended, at = value_end(body(data), 0, len(data), deep, long, np.empty(deep + 1, np.bool_))
    longest = max((end - start - 2 for start, end in strings(found[0])), default=0)
    if ended == PROVEN:
        assert depth(found[1]) <= deep
        assert longest <= long
    elif ended == TOO_DEEP:
        assert depth(found[1]) > deep
        assert data[at : at + 1] in (b"[", b"{")
    else:
        assert ended == TOO_LONG
        assert longest > long


@given(TEXTS | st.sampled_from(["\ud800", "\udfff\ud800", "a\ud83d", "\ud83d\ude00"]), DICE)
def test_escapes_mean_what_json_reads(text: str, dice: Random) -> None:
    body = spelled(text, dice)[1:-1].encode("utf-8", "surrogatepass")
    out = np.zeros(len(body) + 1, np.uint8)
    size = unescape(array(b"xx" + body + b'"'), 2, 2 + len(body), out)
    read = json.loads('"' + body.decode("utf-8", "surrogatepass") + '"')
    lone = "\\" in body.decode("utf-8", "surrogatepass") and any(
        "\ud800" <= char <= "\udfff" for char in read
    )
    if size < 0:
        assert lone
    else:
        assert out[:size].tobytes() == read.encode("utf-8", "surrogatepass")


@given(st.text(SOUP.decode("latin-1"), max_size=12).map(lambda text: text.encode("latin-1")))
@example(b"\\")
@example(b"\\u")
@example(b"\\u00")
@example(b"\\u00e")
@example(b"\\ud83d\\u")
@example(b"\\ud83d\\n1234")
@example(b"\\u+123")
def test_anything_may_be_unescaped(body: bytes) -> None:
    out = np.zeros(len(body) + 1, np.uint8)
    size = unescape(array(body), 0, len(body), out)
    try:
        read = scanstring(body.decode("latin-1") + '"', 0, False)
    except ValueError:
        assert size < 0 or b'"' in body
        return
    if size >= 0 and b'"' not in body and body.isascii():
        assert out[:size].tobytes() == read[0].encode()


# --- the lenient steps and those who cut texts into records


@given(JSON)
def test_brackets_lead_to_the_end_of_a_value(data: bytes) -> None:
    found = whole(data)
    assert found is not None
    buffer = array(data + b",]}")
    assert item_end(buffer, 0, len(data)) == len(data)
    assert item_end(buffer, 0, buffer.size) == len(data)
    if data[:1] in (b"[", b"{"):
        assert container_end(buffer, 0, buffer.size) == len(data)
        assert container_end(buffer, 0, len(data) - 1) < 0


@odd
@given(ANY)
def test_lenient_steps_stay_inside_the_text(data: bytes) -> None:
    buffer = array(data + b'"]}')
    assert 0 <= item_end(buffer, 0, len(data)) <= len(data)
    behind = container_end(buffer, 0, len(data))
    assert behind == ~len(data) or 0 < behind <= len(data)


@given(st.lists(VALUES, max_size=6), DICE)
def test_elements_of_an_array_are_cut_where_json_ends_them(values: list[object], dice: Random) -> None:
    text = spelled(values, dice)
    data = text.encode()
    spans = elements(data.decode("latin-1"))
    starts, ends = split_array(array(data))
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == spans
    _, found = scanned(data, LIMITS)
    assert found.in_array
    assert list(found.spans) == spans
    names = [f"n{number}" for number in range(len(values))]
    chunk = RecordChunk(array(data), np.array([0]), np.array([len(data)]))
    (record,) = named(iter([chunk]), names)
    wanted = dict(zip(names, (data[start:end] for start, end in spans), strict=True))
    if values:
        joined = b",".join(b'"%s":%s' % (name.encode(), wanted[name]) for name in sorted(names))
        assert record.data.tobytes() == b"{" + joined + b"}"
    else:
        assert json.loads(record.data.tobytes()) in ([], {})


@odd
@given(ANY)
@examples(300)
def test_a_body_is_taken_exactly_when_json_reads_it(data: bytes) -> None:
    found = whole(data)
    try:
        data.decode()
    except UnicodeDecodeError:
        found = None
    try:
        _, body = scanned(data, LIMITS)
    except InputError:
        assert found is None or data.startswith(b"\x00")
        return
    assert found is not None
    text = found[0]
    one = gap_end(text, 0), len(text.rstrip(SPACE))
    assert list(body.spans) == (elements(text) if isinstance(found[1], list) else [one])


@given(OBJECTS, DICE)
def test_a_path_leads_to_the_value_that_json_reads(record: dict[str, object], dice: Random) -> None:
    data = spelled(record, dice).encode()
    for key, (spelling, start, end) in zip(record, members(data.decode("latin-1")), strict=True):
        is_plain = spelling.encode("latin-1") == json.dumps(key, ensure_ascii=False).encode()
        assert inside(array(data), [key]) == ((start, end) if is_plain else (0, len(data)))


@given(st.lists(OBJECTS, min_size=1, max_size=3), DICE, st.integers(0, 4))
def test_lines_are_as_deep_as_json_says(records: list[dict[str, object]], dice: Random, deep: int) -> None:
    lines = [spelled(record, dice).replace("\n", " ").encode() for record in records]
    data = body(b"".join(line + b"\n" for line in lines))
    _, number, broken = survey(data, np.flatnonzero(data == 10), deep, LONG)
    first = next((at for at, record in enumerate(records) if depth(record) > deep), -1)
    assert (number, broken) == (first, FITS if first < 0 else TOO_DEEP)


# --- those who read declared columns

COLUMNS = ("a", "b", "aa", "id", "longer than eight bytes", "é", "a.b", "a.a.id")


def tag_of(value: object, spelling: str) -> int:
    if spelling[0] in "-0123456789":
        return EXPONENT if "e" in spelling.lower() else FRACTION if "." in spelling else INTEGER
    if isinstance(value, str):
        return ESCAPED if "\\" in spelling else STRING
    if isinstance(value, bool):
        return TRUE if value else FALSE
    return {list: ARRAY, dict: OBJECT}.get(type(value), NULL)


def value_at(data: bytes, column: str) -> tuple[object, int, int] | None:
    """The value of a dotted column, and where it stands."""
    low, high, value = 0, len(data), json.loads(data)
    for step in column.split("."):
        if not isinstance(value, dict) or step not in value:
            return None
        start, end = elements(data[low:high].decode("latin-1"))[list(value).index(step)]
        low, high, value = low + start, low + end, value[step]
    return value, low, high


@given(st.lists(OBJECTS, min_size=1, max_size=4), DICE)
@examples(200)
def test_columns_are_located_where_json_reads_them(records: list[dict[str, object]], dice: Random) -> None:
    texts = [spelled(record, dice).encode() for record in records]
    ends = np.cumsum([len(text) for text in texts])
    starts = ends - [len(text) for text in texts]
    found = locate(array(b"".join(texts)), starts, ends, paths_of(COLUMNS))
    proof = scan(array(b"".join(texts)), starts, ends, COLUMNS)
    assert not found.damaged.any()
    for row, data in enumerate(texts):
        assert proof.proven[row] != unusual(data)
        for number, column in enumerate(COLUMNS):
            there = value_at(data, column)
            tag = found.tags[number, row]
            if there is None:
                assert tag == MISSING
                continue
            value, start, end = there
            assert tag == tag_of(value, data[start:end].decode("latin-1"))
            quotes = 1 if tag in (STRING, ESCAPED) else 0
            assert found.starts[number, row] == starts[row] + start + quotes
            assert found.ends[number, row] == starts[row] + end - quotes
            assert not proof.proven[row] or proof.tags[number, row] == tag


@odd
@given(ANY)
@examples(300)
def test_whatever_is_proven_is_an_object_to_json(data: bytes) -> None:
    found = scan(array(data + b'"]}'), np.array([0]), np.array([len(data)]), COLUMNS, max_depth=DEPTH)
    reason = why_refused(data)
    if reason is None:
        assert found.proven[0] != unusual(data)
    else:  # whether bytes are UTF-8 is not for the scan to say
        assert not found.proven[0] or reason is Reject.ENCODING


def why_refused(data: bytes) -> Reject | None:
    try:
        parse(data, DEPTH)
    except RuleError as error:
        return error.refused.reason
    return None


def unusual(data: bytes) -> bool:
    """Whether a record holds an escaped key, or a number with a very long exponent."""
    text = data.decode("latin-1")
    escaped = any("\\" in text[start:end] and text[gap_end(text, end)] == ":" for start, end in strings(text))
    return escaped or re.search(r"\d[eE][+-]?\d{10}", text) is not None


@odd
@given(ANY)
def test_locating_stays_inside_the_text(data: bytes) -> None:
    found = locate(array(data + b'"]}'), np.array([0]), np.array([len(data)]), paths_of(COLUMNS))
    assert ((found.starts >= 0) & (found.starts <= len(data))).all()
    assert ((found.ends >= 0) & (found.ends <= len(data))).all()


@pytest.mark.parametrize("text", [b'{"a":tru}', b'{"a":1.}', b'{"a":"\x01"}', b'{"a":[1}', b'{"a"', b"[1]"])
def test_a_damaged_record_is_marked(text: bytes) -> None:
    assert locate(array(text), np.array([0]), np.array([len(text)]), paths_of(("a",))).damaged[0]
