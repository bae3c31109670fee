from __future__ import annotations

from random import Random

import pytest
from tests.support.oracles.spelling import respelled
from tests.support.oracles.strictjson import MalformedError, Number, canonical, nesting, read_object


def n(text: str) -> Number:
    return Number.parse(text)


@pytest.mark.parametrize("text", ["1.0", "1e0", "1E+0", "10e-1", "0.1e1", "1.000", "100e-2"])
def test_one_is_one_however_it_is_spelled(text: str) -> None:
    assert n(text) == n("1")
    assert str(n(text)) == "1"


@pytest.mark.parametrize("text", ["0", "-0", "0.0", "-0e9", "0e-400"])
def test_zero_has_one_spelling(text: str) -> None:
    assert str(n(text)) == "0"


def test_close_numbers_differ_beyond_what_a_float_can_hold() -> None:
    assert n("9007199254740993") != n("9007199254740992")
    assert n("0.1") != n("0.1000000000000000055511151231257827")
    assert n("1e400") != n("1e401")
    assert n("1") != n("-1")


def test_absurd_numbers_are_read_without_writing_them_out() -> None:
    assert n("1e999999999999999999999").integer() is None
    assert n("-1e-999999999999999999999").floored(6) == -1
    assert n("1e-999999999999999999999").rounded(3) == 0
    assert n("9" * 6000).rounded(3) is None
    assert n("1e" + "9" * 6000) == n("10e" + "9" * 5999 + "8")
    assert str(n("1e" + "9" * 6000)) == "1e" + "9" * 6000


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), ("1e3", 1000), ("-2.50e1", -25), ("9223372036854775807", 2**63 - 1),
     ("-9223372036854775808", -(2**63)), ("9223372036854775808", None), ("1.5", None), ("0e7", 0)],
)  # fmt: skip
def test_integers(text: str, value: int | None) -> None:
    assert n(text).integer() == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("1.0005", 1000), ("1.0015", 1002), ("1.00051", 1001), ("1.00049", 1000), ("-1.0015", -1002),
     ("0.0005", 0), ("0.00051", 1), ("0.0015", 2), ("0.00005", 0), ("12", 12000), ("1.25e2", 125000)],
)  # fmt: skip
def test_decimals_round_half_to_even(text: str, value: int) -> None:
    assert n(text).rounded(3) == value


def test_times_round_down() -> None:
    assert n("1.0000019").floored(6) == 1_000_001
    assert n("-1.0000011").floored(6) == -1_000_002
    assert n("1999").floored(-3) == 1
    assert n("-1").floored(-3) == -1


def test_canonical_spelling() -> None:
    text = ' {"b":[1.50, "\\u0041/\\n"], "a" : {"z":null,"y":true} } '
    assert canonical(read_object(text, 64)) == '{"a":{"y":true,"z":null},"b":[15e-1,"A/\\n"]}'


def test_true_is_not_one_and_arrays_have_an_order() -> None:
    assert canonical([True, n("1")]) != canonical([n("1"), True])
    assert canonical(True) != canonical(n("1"))


@pytest.mark.parametrize(
    "text",
    ["", "nil", "[]", "1", '"a"', "null", "{}{}", "{} x", '{"a":NaN}', '{"a":-Infinity}', '{"a":01}',
     '{"a":1.}', '{"a":.5}', '{"a":+1}', "{'a':1}", '{"a":1,}', '{"a"}', '{"a":1', '{"a":"\t"}',
     '{"a":"\\x"}', '{"a":"\\u12g4"}', '{"a":1,"\\u0061":2}', '{"b":[{"a":1,"a":1}]}', "\ufeff{}",
     "\u00a0{}", '{"a":\x00}', '{"a":"\x00"}', '{"a":\u0661}'],
)  # fmt: skip
def test_what_is_not_one_strict_json_object(text: str) -> None:
    with pytest.raises(MalformedError):
        read_object(text, 64)


def test_depth_counts_the_object_itself_and_not_brackets_in_strings() -> None:
    assert nesting('{"a":[[1],{}], "b":"[[[[{\\"[["}') == 3
    assert read_object('{"a":[[]]}', 3) == {"a": [[]]}
    with pytest.raises(MalformedError):
        read_object('{"a":[[]]}', 2)
    with pytest.raises(MalformedError):
        read_object('{"a":' + "[" * 100_000 + "]" * 100_000 + "}", 64)


def test_the_deepest_allowed_nesting_is_read_and_spelled() -> None:
    text = '{"a":' * 512 + "1" + "}" * 512
    assert canonical(read_object(text, 512)) == text
    assert canonical(read_object(respelled(read_object(text, 512), Random(3)), 512)) == text
