"""One pass over a JSON text: proves that it is one, and notes where the elements of its outer array stand.

It builds nothing of what it reads: a body takes no more memory than its bytes. Repeated keys and halves of
surrogate pairs are JSON, and are left to the gate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numba import njit

from tidemill.formats.bodies.limits import FITS, TOO_DEEP, TOO_LONG

if TYPE_CHECKING:
    from tidemill.formats.bodies.limits import Bytes, Ints

# How a scan ended: whole, beyond a limit, or without something.
WHOLE: Final = FITS
TOO_MANY: Final = 3
NO_VALUE: Final = 4
NO_KEY: Final = 5
NO_COLON: Final = 6
NO_COMMA: Final = 7
NO_END: Final = 8
NO_STRING: Final = 9
NO_NUMBER: Final = 10

WANTED: Final = {
    NO_VALUE: "a value is expected",
    NO_KEY: "a key in double quotes is expected",
    NO_COLON: "a colon is expected after a key",
    NO_COMMA: "a comma or a closing bracket is expected",
    NO_END: "nothing is expected after the value",
    NO_STRING: "the string has no end, or holds a control character or an invalid JSON escape sequence",
    NO_NUMBER: "not a valid JSON number",
}

# What may stand next.
_VALUE, _VALUE_OR_END, _KEY, _KEY_OR_END, _AFTER, _DONE = 0, 1, 2, 3, 4, 5


@njit(cache=True, inline="always")
def _is_digit(b: Bytes, p: int, end: int) -> bool:
    return p < end and 48 <= b[p] <= 57


@njit(cache=True, inline="always")
def _is_hex(c: int) -> bool:
    return 48 <= c <= 57 or 65 <= c <= 70 or 97 <= c <= 102


@njit(cache=True, nogil=True)
def _string_end(b: Bytes, p: int, end: int) -> int:
    """Where the closing quote stands, of a string whose body begins at p; -1 - place where it is none."""
    while p < end:
        c = b[p]
        if c == 0x22:
            return p
        if c < 0x20:
            return -1 - p
        p += 1
        if c != 0x5C:
            continue
        if p >= end:
            break
        c = b[p]
        p += 1
        if c == 0x75:
            for _ in range(4):
                if p >= end or not _is_hex(b[p]):
                    return -1 - min(p, end)
                p += 1
        elif not (
            c == 0x22
            or c == 0x5C
            or c == 0x2F
            or c == 0x62
            or c == 0x66
            or c == 0x6E
            or c == 0x72
            or c == 0x74
        ):
            return -p
    return -1 - end


@njit(cache=True, nogil=True)
def _number_end(b: Bytes, p: int, end: int) -> int:
    """Behind a number that begins at p; -1 - place where it is none."""
    if b[p] == 0x2D:
        p += 1
    if not _is_digit(b, p, end):
        return -1 - p
    if b[p] == 48:
        p += 1
    else:
        while _is_digit(b, p, end):
            p += 1
    if p < end and b[p] == 0x2E:
        p += 1
        if not _is_digit(b, p, end):
            return -1 - p
        while _is_digit(b, p, end):
            p += 1
    if p < end and (b[p] == 0x65 or b[p] == 0x45):
        p += 1
        if p < end and (b[p] == 0x2B or b[p] == 0x2D):
            p += 1
        if not _is_digit(b, p, end):
            return -1 - p
        while _is_digit(b, p, end):
            p += 1
    return p


@njit(cache=True, nogil=True)
def _word_end(b: Bytes, p: int, end: int) -> int:
    """Behind `true`, `false` or `null`; -1 when none of them stands at p."""
    c = b[p]
    if c == 0x74 and p + 4 <= end and b[p + 1] == 0x72 and b[p + 2] == 0x75 and b[p + 3] == 0x65:
        return p + 4
    if c == 0x6E and p + 4 <= end and b[p + 1] == 0x75 and b[p + 2] == 0x6C and b[p + 3] == 0x6C:
        return p + 4
    if (
        c == 0x66 and p + 5 <= end
        and b[p + 1] == 0x61 and b[p + 2] == 0x6C and b[p + 3] == 0x73 and b[p + 4] == 0x65
    ):  # fmt: skip
        return p + 5
    return -1


@njit(cache=True, nogil=True)
def _scan(b: Bytes, max_depth: int, max_text: int, starts: Ints, ends: Ints) -> tuple[int, int, int, bool]:
    """How it ended, where, how many elements there are, and whether they are those of an array."""
    end = b.size
    n = p = depth = 0
    state = _VALUE
    while p < end and (b[p] == 32 or b[p] == 10 or b[p] == 13 or b[p] == 9):
        p += 1
    outer = 1 if p < end and b[p] == 0x5B else 0  # the depth at which elements stand
    is_object = np.zeros(max_depth + 2, np.uint8)
    if outer:
        depth = 1
        state = _VALUE_OR_END
        p += 1
    while True:
        while p < end and (b[p] == 32 or b[p] == 10 or b[p] == 13 or b[p] == 9):
            p += 1
        if p >= end:
            break
        c = b[p]
        if state == _DONE:
            return NO_END, p, n, outer == 1
        if state == _AFTER:
            if c == 0x2C:
                state = _KEY if is_object[depth] else _VALUE
                p += 1
                continue
            if c != (0x7D if is_object[depth] else 0x5D):
                return NO_COMMA, p, n, outer == 1
        if state == _AFTER or (state == _KEY_OR_END and c == 0x7D) or (state == _VALUE_OR_END and c == 0x5D):
            p += 1
            depth -= 1
        elif state in (_KEY, _KEY_OR_END):
            if c != 0x22:
                return NO_KEY, p, n, outer == 1
            q = _string_end(b, p + 1, end)
            if q < 0:
                return NO_STRING, -1 - q, n, outer == 1
            if q - p - 1 > max_text:
                return TOO_LONG, p, n, outer == 1
            p = q + 1
            while p < end and (b[p] == 32 or b[p] == 10 or b[p] == 13 or b[p] == 9):
                p += 1
            if p >= end or b[p] != 0x3A:
                return NO_COLON, p, n, outer == 1
            p += 1
            state = _VALUE
            continue
        else:
            if depth == outer:
                if n == starts.size:
                    return TOO_MANY, p, n, outer == 1
                starts[n] = p
            if c == 0x7B or c == 0x5B:
                if depth - outer == max_depth:
                    return TOO_DEEP, p, n, outer == 1
                depth += 1
                is_object[depth] = c == 0x7B
                state = _KEY_OR_END if c == 0x7B else _VALUE_OR_END
                p += 1
                continue
            if c == 0x22:
                q = _string_end(b, p + 1, end)
                if q < 0:
                    return NO_STRING, -1 - q, n, outer == 1
                if q - p - 1 > max_text:
                    return TOO_LONG, p, n, outer == 1
                p = q + 1
            elif c == 0x2D or 48 <= c <= 57:
                q = _number_end(b, p, end)
                if q < 0:
                    return NO_NUMBER, -1 - q, n, outer == 1
                p = q
            else:
                q = _word_end(b, p, end)
                if q < 0:
                    return NO_VALUE, p, n, outer == 1
                p = q
        # A whole value has been read.
        if depth == outer:
            ends[n] = p
            n += 1
        state = _DONE if depth == 0 else _AFTER
    if state == _DONE:
        return WHOLE, p, n, outer == 1
    missing = NO_COMMA if state == _AFTER else NO_KEY if state in (_KEY, _KEY_OR_END) else NO_VALUE
    return missing, p, n, outer == 1


@dataclass(frozen=True, slots=True)
class ScannedJson:
    """Where the elements of an array stand, or the one value that the text is."""

    ended: int  # WHOLE, or why not
    place: int  # the byte at which the scan ended
    in_array: bool
    spans: tuple[tuple[int, int], ...]  # of the elements that were read whole


def scan_json(content: bytes, max_depth: int, max_text: int, max_elements: int) -> ScannedJson:
    """Depth counts from an element: the array around it is none of its own."""
    data = np.frombuffer(content, np.uint8)
    room = min(max_elements, len(content) // 2 + 1)  # an element is a byte and what parts it from the next
    starts, ends = np.empty(room, np.int64), np.empty(room, np.int64)
    ended, place, count, in_array = _scan(data, max_depth, max_text, starts, ends)
    spans = tuple(zip(starts[:count].tolist(), ends[:count].tolist(), strict=True))
    return ScannedJson(ended, place, in_array, spans)
