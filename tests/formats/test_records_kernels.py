"""The kernels, each against the plainest model of it: hashes, splitting, numbers, instants, UTF-8."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Context, Decimal

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples

from tidemill.formats.arrays import Bytes, Ints
from tidemill.formats.columns import (
    copy_at,
    instants,
    scaled_numbers,
    strings,
    utf8_rows,
    whole_numbers,
)
from tidemill.formats.hashing import SEED_SECOND_LANE, SEED_TENANT, hash_bytes, key_lanes, mix, xxh64
from tidemill.formats.json_core import FRACTION, INTEGER, STRING
from tidemill.formats.split import split_array, split_lines
from tidemill.model.errors import InputError
from tidemill.model.time import format_instant, parse_instant

seeded = examples(150)
SPACE = b" \t\n\r"


def array(data: bytes) -> Bytes:
    return np.frombuffer(bytearray(data), np.uint8)


def spans(texts: list[bytes]) -> tuple[Bytes, Ints, Ints]:
    """Texts in one buffer, with something between them that must not be read."""
    data, starts, ends = bytearray(), [], []
    for text in texts:
        data += b"9"
        starts.append(len(data))
        data += text
        ends.append(len(data))
    data += b"9"
    return np.frombuffer(data, np.uint8), np.array(starts, np.int64), np.array(ends, np.int64)


# --- hashes


@seeded
@given(data=st.binary(max_size=200), seed=st.integers(0, 2**64 - 1), before=st.integers(0, 9))
@example(data=b"", seed=0, before=0)
@example(data=bytes(range(32)), seed=2**64 - 1, before=3)
@example(data=bytes(range(31)), seed=1, before=1)
def test_xxh64_is_the_reference(data: bytes, seed: int, before: int) -> None:
    expected = xxhash.xxh64(data, seed=seed).intdigest()
    assert hash_bytes(data, seed) == expected
    padded = array(b"x" * before + data + b"y" * 40)  # what stands around it is not read
    assert int(xxh64(padded, before, before + len(data), np.uint64(seed))) == expected


def test_every_length_around_the_blocks_of_xxh64() -> None:
    data = bytes(i * 7 % 256 for i in range(140))
    for size in range(len(data)):
        assert hash_bytes(data[:size], 5) == xxhash.xxh64(data[:size], seed=5).intdigest()


@seeded
@given(rows=st.lists(st.tuples(st.integers(0, 2), st.text(max_size=40)), max_size=20))
def test_a_key_is_two_hashes_of_the_id_seeded_by_the_tenant(rows: list[tuple[int, str]]) -> None:
    tenants = ["", "acme", "ténant"]
    seeds = [xxhash.xxh64(name.encode(), seed=SEED_TENANT).intdigest() for name in tenants]
    ids = pa.array([text for _, text in rows], pa.string())
    offsets = np.frombuffer(ids.buffers()[1] or b"\0\0\0\0", np.int32)[: len(rows) + 1]
    data = np.frombuffer(ids.buffers()[2] or b"", np.uint8)
    codes = np.array([code for code, _ in rows], np.int32)
    high, low = key_lanes(data, offsets, np.array(seeds, np.uint64), codes)
    for row, (code, text) in enumerate(rows):
        second = int(mix(np.uint64((seeds[code] + SEED_SECOND_LANE) % 2**64)))
        assert int(high[row]) == xxhash.xxh64(text.encode(), seed=seeds[code]).intdigest()
        assert int(low[row]) == xxhash.xxh64(text.encode(), seed=second).intdigest()


# --- splitting

LINES = st.lists(
    st.sampled_from([b"\n", b"\r", b"\r\n", b" ", b"\t", b"a", b"{}", b"\x00", b"\xff", b"x" * 70, b"\x0b"]),
    max_size=60,
).map(b"".join)


def lines_of(data: bytes) -> list[bytes]:
    lines = [line.removesuffix(b"\r") for line in data.split(b"\n")]
    return [line for line in lines if line.strip(SPACE)]


@seeded
@given(data=LINES, before=st.integers(0, 9))
@example(data=b"\n" * 100, before=0)
@example(data=b"a\n" * 100, before=1)
@example(data=b"a\r\r\n", before=0)
def test_lines_are_what_stands_between_line_feeds(data: bytes, before: int) -> None:
    whole = array(b"\n" * before + data + b"\nnot this")
    starts, ends = split_lines(whole, before, before + len(data))
    found = [whole[start:end].tobytes() for start, end in zip(starts, ends, strict=True)]
    assert found == lines_of(data)


def elements_of(data: bytes) -> list[bytes]:
    """The same rules as `split_array`, one byte at a time."""
    text = data.strip(SPACE)
    if not text.startswith(b"["):
        return [text] if text else []
    pieces, piece, depth, in_string, escaped = [], bytearray(), 0, False, False
    rest = text[1:]
    for at, c in enumerate(rest):
        char = bytes([c])
        if in_string:
            in_string = escaped or char != b'"'
            escaped = not escaped and char == b"\\"
        elif char == b'"':
            in_string = True
        elif char in b"[{":
            depth += 1
        elif depth and char in b"]}":
            depth -= 1
        elif char == b"]":
            last = bytes(piece).strip(SPACE)
            after = rest[at + 1 :].strip(SPACE)
            return pieces + [last] * bool(last) + [after] * bool(after)
        elif char == b"," and not depth:
            pieces.append(bytes(piece).strip(SPACE))
            piece = bytearray()
            continue
        piece += char
    last = bytes(piece).strip(SPACE)  # the array does not end: what there is of it counts
    return pieces + [last] * bool(last)


ARRAYS = st.lists(
    st.sampled_from([b"[", b"]", b"{", b"}", b",", b'"', b"\\", b" ", b"\n", b"1", b'{"a":1}', b'"],"',
    b"\xff"]),
    max_size=40,
).map(b"".join)  # fmt: skip


@seeded
@given(data=ARRAYS)
def test_elements_of_anything(data: bytes) -> None:
    split_as_the_model(data)
    split_as_the_model(b"[" + data + b"]")
    split_as_the_model(b" [" + b"{},".join([data] * 9) + b"] ")


def split_as_the_model(data: bytes) -> None:
    starts, ends = split_array(array(data))
    found = [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    assert found == elements_of(data), data


@pytest.mark.parametrize(
    ("text", "elements"),
    [
        (b"", []), (b" \n ", []), (b"[]", []), (b" [ ] ", []), (b"[", []), (b"{}", [b"{}"]), (b"null",
        [b"null"]),
        (b'[{"a":"]"},{"b":[1,2]}]', [b'{"a":"]"}', b'{"b":[1,2]}']), (b"[1, 2 ,3]", [b"1", b"2", b"3"]),
        (b"[1,,2]", [b"1", b"", b"2"]), (b"[,1]", [b"", b"1"]), (b"[1,]", [b"1"]), (b"[1,2", [b"1", b"2"]),
        (b"[1]x", [b"1", b"x"]), (b'["a\\"],"]', [b'"a\\"],"']), (b"[1][2]", [b"1", b"[2]"]),
        (b'[{"a":1}},{"b":2}]', [b'{"a":1}}', b'{"b":2}']), (b'[{"a":1],{"b":2}]', [b'{"a":1]', b'{"b":2}']),
    ],
)  # fmt: skip
def test_one_bad_element_does_not_hide_its_neighbours(text: bytes, elements: list[bytes]) -> None:
    assert elements_of(text) == elements
    split_as_the_model(text)


# --- numbers

NUMERALS = st.builds(
    lambda sign, whole, fraction: f"{sign}{whole}{'.' + fraction if fraction else ''}",
    st.sampled_from(["", "-"]),
    st.one_of(st.integers(0, 10**20).map(str), st.sampled_from(["0", "999", "9" * 18, "9" * 19,
    "1" + "0" * 18])),
    st.one_of(st.just(""), st.text("0123456789", min_size=1, max_size=22), st.text("05", min_size=1,
    max_size=5)),
)  # fmt: skip
EXACT = Context(prec=200, rounding=ROUND_HALF_EVEN)


def tags_of(texts: list[str]) -> Bytes:
    return np.array([FRACTION if "." in text else INTEGER for text in texts], np.uint8)


@seeded
@given(texts=st.lists(NUMERALS, min_size=1, max_size=12), scale=st.integers(0, 15))
@example(texts=["9900.999999999999999", "0.5", "1.5", "2.5", "-0.5", "0.49999999999999999999"], scale=15)
@example(texts=["0.5", "1.5", "-2.5", "2.50", "2.501", "-0.5", "0.05", "0.95"], scale=0)
def test_decimals_are_rounded_half_to_even_or_left_alone(texts: list[str], scale: int) -> None:
    data, starts, ends = spans([text.encode() for text in texts])
    values, exact = scaled_numbers(data, starts, ends, tags_of(texts), scale)
    for text, value, sure in zip(texts, values.tolist(), exact.tolist(), strict=True):
        wanted = int(EXACT.scaleb(Decimal(text), scale).to_integral_value(context=EXACT))
        if sure:
            assert value == wanted
        digits = len(text.lstrip("-").partition(".")[0].lstrip("0")) + scale
        assert sure or digits > 17, text  # what a 64-bit number surely holds is always read here


@seeded
@given(texts=st.lists(NUMERALS, min_size=1, max_size=12))
@example(texts=["-0", "7.0", "7.00", "7.01", "9" * 18, "-" + "9" * 18, "1" + "0" * 18])
def test_whole_numbers_are_read_exactly_or_left_alone(texts: list[str]) -> None:
    data, starts, ends = spans([text.encode() for text in texts])
    values, exact = whole_numbers(data, starts, ends, tags_of(texts))
    for text, value, sure in zip(texts, values.tolist(), exact.tolist(), strict=True):
        wanted = Decimal(text)
        if sure:
            assert value == wanted
        assert sure or wanted % 1 or abs(wanted) >= 10**18, text


def test_only_numbers_are_read_as_numbers() -> None:
    data, starts, ends = spans([b"7"])
    tags = np.array([STRING], np.uint8)
    assert not whole_numbers(data, starts, ends, tags)[1].any()
    assert not scaled_numbers(data, starts, ends, tags, 0)[1].any()


# --- instants


def read_instants(texts: list[str]) -> list[int | None]:
    data, starts, ends = spans([text.encode() for text in texts])
    values, exact = instants(data, starts, ends)
    return [value if sure else None for value, sure in zip(values.tolist(), exact.tolist(), strict=True)]


INSTANTS = st.integers(parse_instant("0001-01-01T00:00:00Z"), parse_instant("9999-12-31T23:59:59.999999Z"))


@seeded
@given(us=INSTANTS, zone=st.sampled_from(["Z", "+00:00", "-23:59", "+05:30"]), gap=st.sampled_from("T "))
def test_the_usual_spellings_of_an_instant_are_read_in_bulk(us: int, zone: str, gap: str) -> None:
    text = format_instant(us)[:-1].replace("T", gap) + zone
    assert read_instants([text]) == [parse_instant(text)]


@seeded
@given(
    texts=st.lists(
        st.one_of(
            st.text("0123456789-:T Z.+", max_size=30),
            st.from_regex(
                r"[0-9]{4}-[01][0-9]-[0-3][0-9][T t][0-2][0-9]:[0-6][0-9]:[0-6][0-9]([.,][0-9]{0,10})?"
                r"( ?[Zz]|[+-][0-9]{2}:?[0-9]{2}|)",
                fullmatch=True,
            ),
        ),
        max_size=20,
    )
)
def test_whatever_is_read_as_an_instant_is_that_instant(texts: list[str]) -> None:
    for text, value in zip(texts, read_instants(texts), strict=True):
        if value is not None:
            assert value == parse_instant(text), text


@pytest.mark.parametrize(
    "text", ["2023-02-29", "1900-02-29", "2024-04-31", "2024-00-01", "2024-01-00", "0000-01-01"]
)
def test_days_that_do_not_exist_are_left_to_the_rules(text: str) -> None:
    assert read_instants([f"{text}T00:00:00Z"]) == [None]
    with pytest.raises(InputError):
        parse_instant(f"{text}T00:00:00Z")


# --- bytes


@seeded
@given(texts=st.lists(st.one_of(st.binary(max_size=12), st.text(max_size=6).map(str.encode)), max_size=12))
@example(
    texts=[
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xf0\x80\x80\x80",
        b"\xe2\x82",
        b"\xf5",
        b"\x80",
    ]
)
def test_utf8_is_what_python_decodes(texts: list[bytes]) -> None:
    data, starts, ends = spans(texts)
    valid = np.empty(len(texts), np.bool_)
    utf8_rows(data, starts, ends, valid)
    assert valid.tolist() == [_decodes(text) for text in texts]


def _decodes(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


@seeded
@given(texts=st.lists(st.text(max_size=30), max_size=12))
def test_spans_become_a_column_and_are_copied_byte_for_byte(texts: list[str]) -> None:
    data, starts, ends = spans([text.encode() for text in texts])
    column = strings(data, starts, ends)
    column.validate(full=True)
    assert column.to_pylist() == texts
    out = array(b"." * (len(data) + 3))
    copy_at(data, starts[::-1].copy(), ends[::-1].copy(), starts[::-1] + 1, out)
    expected = bytearray(b"." * (len(data) + 3))
    for text, start in zip(texts, starts.tolist(), strict=True):
        expected[start + 1 : start + 1 + len(text.encode())] = text.encode()
    assert out.tobytes() == bytes(expected)


def test_every_length_is_copied_and_nothing_beside_it() -> None:
    text = bytes(range(1, 256)) + bytes(range(1, 100))
    for size in range(300):
        out = array(bytes(400))
        copy_at(array(text), np.array([3]), np.array([3 + size]), np.array([5]), out)
        assert out.tobytes() == bytes(5) + text[3 : 3 + size] + bytes(395 - size)


def test_a_span_that_ends_before_it_begins_has_no_bytes() -> None:
    out = array(b"....")
    copy_at(array(b"abcdef"), np.array([4, 1]), np.array([2, 3]), np.array([0, 1]), out)
    assert out.tobytes() == b".bc."
