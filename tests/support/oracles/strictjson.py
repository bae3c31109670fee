"""JSON as Tidemill understands it: RFC 8259 to the letter, numbers exact, one canonical spelling.

It never turns a number into a float, and never accepts what two parsers could read differently.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import NoReturn

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
_MOST_DIGITS = 40  # more than any number that a rule accepts; keeps 1e999999999 from being written out

_NUMBER = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?")
_STRUCTURE = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}]', re.DOTALL)


class MalformedError(ValueError):
    """The text is not one JSON object."""


@dataclass(frozen=True, slots=True)
class Number:
    """±digits x 10^exponent. Digits neither start nor end with 0 and zero has none, so equal values
    are equal objects: 1 == 1.0 == 1e0 and -0 == 0."""

    negative: bool
    digits: str
    exponent: int

    @classmethod
    def parse(cls, text: str) -> Number:
        match = _NUMBER.fullmatch(text)
        if match is None:
            raise MalformedError(f"not a number: {text!r}")
        sign, whole, fraction, power = match.groups()
        written = whole + (fraction or "")
        digits = written.strip("0")
        if not digits:
            return cls(False, "", 0)
        trailing = len(written) - len(written.rstrip("0"))
        # through Decimal, because int(str) refuses more than 4300 digits
        exponent = int(Decimal(power or 0)) - len(fraction or "") + trailing
        return cls(sign == "-", digits, exponent)

    def integer(self) -> int | None:
        """The value when it is an integer that fits int64."""
        value = self._times_ten_to(0) if self.exponent >= 0 else None
        return value if value is not None and INT64_MIN <= value <= INT64_MAX else None

    def rounded(self, scale: int) -> int | None:
        """value x 10^scale, rounded half to even; None when it is beyond any limit."""
        cut = -(self.exponent + scale)
        if cut <= 0:
            return self._times_ten_to(scale)
        if cut > len(self.digits):
            return 0
        head, tail = self.digits[:-cut], self.digits[-cut:]
        if len(head) > _MOST_DIGITS:
            return None
        magnitude = int(head or "0")
        # no trailing zeros, so a tail that is exactly one half can only be "5"
        magnitude += tail > "5" or (tail == "5" and magnitude % 2 == 1)
        return -magnitude if self.negative else magnitude

    def floored(self, scale: int) -> int | None:
        """value x 10^scale, rounded down; None when it is beyond any limit."""
        cut = -(self.exponent + scale)
        if cut <= 0:
            return self._times_ten_to(scale)
        head = self.digits[:-cut]
        if len(head) > _MOST_DIGITS:
            return None
        magnitude = int(head or "0")
        return -magnitude - 1 if self.negative else magnitude

    def _times_ten_to(self, scale: int) -> int | None:
        if not self.digits:
            return 0
        zeros = self.exponent + scale
        if len(self.digits) + zeros > _MOST_DIGITS:
            return None
        value = int(self.digits + "0" * zeros)
        return -value if self.negative else value

    def __str__(self) -> str:
        """The canonical spelling, itself JSON: 0, 15e-1, -1e2, 7."""
        if not self.digits:
            return "0"
        power = f"e{Decimal(self.exponent)}" if self.exponent else ""
        return f"{'-' if self.negative else ''}{self.digits}{power}"


Json = dict[str, "Json"] | list["Json"] | str | Number | bool | None


def read_object(text: str, depth: int) -> dict[str, Json]:
    """The one JSON object in `text`, nested at most `depth` deep (the object itself is 1)."""
    if nesting(text) > depth:
        raise MalformedError(f"nested deeper than {depth}")
    try:
        value: Json = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise MalformedError(str(error)) from None
    if not isinstance(value, dict):
        raise MalformedError("not an object")
    return value


def nesting(text: str) -> int:
    """How deep objects and arrays nest; brackets inside strings do not count."""
    deepest = level = 0
    for token in _STRUCTURE.finditer(text):
        if token.group() in ("{", "["):
            level += 1
            deepest = max(deepest, level)
        elif token.group() in ("}", "]"):
            level -= 1
    return deepest


def canonical(value: Json) -> str:
    """Equal texts mean equal values: sorted keys, no white space, normalised numbers."""
    if isinstance(value, dict):
        members = []
        for key in sorted(value):  # a loop, because a comprehension would double the depth of the stack
            members.append(f"{canonical(key)}:{canonical(value[key])}")
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    if isinstance(value, Number):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def has_lone_surrogate(text: str) -> bool:
    """A `\\ud800` escape without its other half: no such text can be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise MalformedError("a key appears twice")
    return found


def _refuse(constant: str) -> NoReturn:
    raise MalformedError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=Number.parse,  # the hooks may return what they like; typeshed says float and int
    parse_float=Number.parse,
    parse_constant=_refuse,
)
