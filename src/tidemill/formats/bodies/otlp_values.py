"""Attribute values of OTLP as JSON values; what JSON lacks is spelled as in protobuf's JSON mapping.

Nothing is rounded. The nesting of values is limited before they are followed.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from dataclasses import dataclass
from math import isfinite
from typing import Final

from tidemill.config.gateway import Requests
from tidemill.formats.bodies.limits import beyond
from tidemill.formats.json_core import TOO_DEEP
from tidemill.model.errors import InputError

MAX_NESTED: Final = 120  # deeper JSON cannot be written
INT64: Final = range(-(1 << 63), 1 << 63)
UINT64: Final = range(1 << 64)
UINT32: Final = range(1 << 32)
INT32: Final = range(-(1 << 31), 1 << 31)
_UNBOUND: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_URL_SAFE: Final = str.maketrans("-_", "+/")


@dataclass(slots=True)
class Depth:
    """The nesting limit for values of a request, and the position of the record being read, for errors."""

    limits: Requests
    position: int = 0  # from 0

    def check(self, nested: int) -> None:
        if nested > self.limits.depth:
            raise beyond(TOO_DEEP, self.position, self.limits)
        if nested > MAX_NESTED:
            raise wrong("a value is nested too deeply", f"nest values {MAX_NESTED} deep at most")


def wrong(message: str, hint: str) -> InputError:
    return InputError(message, where="body", hint=hint)


def number(value: float) -> float | str:
    """A double; NaN and the infinities become strings, since JSON has no such numbers."""
    if isfinite(value):
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"


def number_of(text: str) -> float:
    """A double that JSON holds as a string."""
    try:
        return _UNBOUND[text] if text in _UNBOUND else float(text)
    except ValueError:
        raise wrong(
            f"{text[:40]!r} is not a double", "write a number, or NaN, Infinity or -Infinity"
        ) from None


def integer_of(value: object, key: str, allowed: range) -> int:
    """An integer that JSON holds as a number or, as 64-bit integers are spelled, as a string."""
    found: object = value
    if isinstance(value, str):
        digits = value[1:] if value[:1] == "-" else value
        found = int(value) if digits.isascii() and digits.isdigit() and len(digits) <= 20 else None
    elif isinstance(value, float) and value.is_integer():
        found = int(value)
    if isinstance(found, bool) or not isinstance(found, int) or found not in allowed:
        raise wrong(
            f"{key} is not an integer in range",
            f"write it as a number, or as a string of digits, from {allowed.start} to {allowed.stop - 1}",
        )
    return found


def base64_of(content: bytes) -> str:
    return b64encode(content).decode("ascii")


def base64_again(text: str, key: str) -> str:
    """Base64 of any variant, in the standard one."""
    plain = text.translate(_URL_SAFE).rstrip("=")
    try:
        return base64_of(b64decode(plain + "=" * (-len(plain) % 4), validate=True))
    except (NotBase64, ValueError):
        raise wrong(f"{key} is not in base64", "encode the bytes with base64") from None


def hex_id(text: str, length: int, key: str) -> str:
    """An id of `length` bytes in lower case; "" if there is none."""
    if not text:
        return ""
    try:
        content = bytes.fromhex(text) if text.isalnum() else b""
    except ValueError:
        content = b""
    return id_of(content, length, key) if content else _no_id(key, length)


def id_of(content: bytes, length: int, key: str) -> str:
    """`hex_id` for an id that came as bytes. An id of zeros only means none, as the specification says."""
    if len(content) not in (0, length):
        return _no_id(key, length)
    return content.hex() if any(content) else ""


def _no_id(key: str, length: int) -> str:
    raise wrong(f"{key} is not {length} bytes long", f"send {length} bytes; in JSON {2 * length} hex digits")
