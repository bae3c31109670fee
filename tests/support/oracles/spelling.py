"""Writing one JSON value in many ways that mean the same, and in ways that mean nothing.

It never writes a line feed: a record must stay one line of an NDJSON slice.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Final

from tests.support.oracles.strictjson import Json, Number

_SPACES = ("", "", "", " ", "\t", "\r", "  ")
_WRITTEN_OUT = 40  # longest run of zeros that is written out

_LONE_SURROGATES = ('"\\ud800":1', '"s":"\\udfff"', '"s":"\\uD83D\\u0041"', '"s":["\\ude00\\ud83d"]')
_INVALID_UTF8 = (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82")


def plain(value: Json) -> str:
    """The spelling most writers would choose: compact, keys as they come."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{plain(key)}:{plain(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(plain, value)) + "]"
    if isinstance(value, Number):
        return plain_number(value)
    # ASCII only where it must be: a lone surrogate can be written only as an escape
    return json.dumps(value, ensure_ascii=isinstance(value, str) and _has_surrogate(value))


def respelled(value: Json, random: Random) -> str:
    """The same value with another order of keys, other white space, escapes and numbers."""
    items: list[str] = []
    if isinstance(value, dict):
        for key, item in value.items():
            items.append(
                f"{_padded(respelled(key, random), random)}:{_padded(respelled(item, random), random)}"
            )
        random.shuffle(items)
        return "{" + (",".join(items) or _space(random)) + "}"
    if isinstance(value, list):
        for item in value:
            items.append(_padded(respelled(item, random), random))
        return "[" + (",".join(items) or _space(random)) + "]"
    if isinstance(value, Number):
        return random.choice(number_spellings(value))
    if isinstance(value, str):
        return '"' + "".join(_character(char, random) for char in value) + '"'
    return plain(value)


def plain_number(number: Number) -> str:
    """Written out where that is reasonable: 1500, -0.25; else 15e400."""
    sign, digits, exponent = "-" if number.negative else "", number.digits, number.exponent
    if not digits:
        return "0"
    if abs(exponent) > _WRITTEN_OUT:
        return str(number)
    if exponent >= 0:
        return sign + digits + "0" * exponent
    padded = digits.rjust(1 - exponent, "0")
    return f"{sign}{padded[:exponent]}.{padded[exponent:]}"


def number_spellings(number: Number) -> list[str]:
    """Several JSON texts of the same value."""
    text = plain_number(number)
    if not number.digits:
        return ["0", "-0", "0.0", "0e5", "-0.00E-3"]
    if "e" in text:
        return [text, text.replace("e", ".0e"), text.replace("e", ".000E")]
    sign = "-" if number.negative else ""
    spellings = [text, str(number), text + ("0" if "." in text else ".0"), text + "e0", text + "E-0"]
    spellings.append(f"{sign}0.{number.digits}e{number.exponent + len(number.digits)}")
    spellings.append(f"{sign}{number.digits}00E{number.exponent - 2:+d}")
    return spellings


def _padded(text: str, random: Random) -> str:
    return _space(random) + text + _space(random)


def _space(random: Random) -> str:
    return random.choice(_SPACES)


def _character(char: str, random: Random) -> str:
    if _has_surrogate(char) or random.random() < 0.2:
        units = char.encode("utf-16-be", "surrogatepass")
        pairs = [units[i : i + 2].hex() for i in range(0, len(units), 2)]
        return "".join(f"\\u{pair.upper() if random.random() < 0.5 else pair}" for pair in pairs)
    if char == "/" and random.random() < 0.5:
        return "\\/"
    return json.dumps(char, ensure_ascii=False)[1:-1]


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)


def _inside(text: str, more: str) -> bytes:
    """The object of `text` with something more at its end."""
    return f"{text.rstrip()[:-1]},{more}}}".encode()


# Each turns the text of a good record into bytes that no strict reader accepts.
SPOILED_TEXT: Final[dict[str, Callable[[str, Random], bytes]]] = {
    "truncated": lambda text, random: text.strip().encode()[: random.randrange(1, len(text.strip()))],
    "trailing": lambda text, random: (text + random.choice(["}", ",", "{}", "x", "\x00"])).encode(),
    "array": lambda text, random: f"[{text}]".encode(),
    "scalar": lambda text, random: random.choice([b"null", b"1", b'"x"', b"true", b"x", b"{]", b"\x00"]),
    "bom": lambda text, random: b"\xef\xbb\xbf" + text.encode(),
    "constant": lambda text, random: _inside(
        text, '"n":' + random.choice(["NaN", "Infinity", "-Infinity", "nan", "None", "True"])
    ),
    "number": lambda text, random: _inside(
        text, '"n":' + random.choice(["01", "1.", ".5", "+1", "1e", "0x1", "--1", "1_0", "\u0661"])
    ),
    "twice": lambda text, random: _inside(
        text, random.choice(['"k":1,"k":1', '"k":1,"\\u006b":2', '"o":[{"a":1,"a":1}]'])
    ),
    "control": lambda text, random: _inside(text, f'"c":"{chr(random.choice([0, 1, 9, 13, 27, 31]))}"'),
    "escape": lambda text, random: _inside(
        text, '"e":"' + random.choice(["\\x", "\\u12g4", "\\u12", "\\"]) + '"'
    ),
    "comma": lambda text, random: text.rstrip().encode()[:-1] + b",}",
    "space": lambda text, random: "\u00a0".encode() + text.encode(),
    "surrogate": lambda text, random: _inside(text, random.choice(_LONE_SURROGATES)),
    "utf8": lambda text, random: _inside(text, '"u":"?"').replace(
        b'"?"', b'"' + random.choice(_INVALID_UTF8) + b'"'
    ),
}
