"""The steps of a walk over JSON text, out of which every compiled reader of JSON is made.

Cursor: a step takes the array `b`, a position `p` and the `end` of the text, with `p <= end <= b.size`, and
returns the position behind what it read. No byte at `end` or behind it counts, since the text may be one
record in the middle of a larger buffer. It copies nothing and allocates nothing.

Errors: a strict step that does not find what it is named after returns `~place`, which is negative: `place`
is the first byte that is wrong, or `end` where the text stops too early. No step raises.

Strict and lenient: `string_end`, `number_end`, `literal_end` and `value_end` prove that the text is JSON (RFC
8259, as Python's `json` reads it, without NaN and Infinity). `quoted_end`, `container_end` and `item_end` see
only quotes and brackets. They are for text that was proven before, and for text that is cut into records
before any of them is decided on: a bad one must not hide its neighbours. On valid JSON both agree.

What JSON leaves open is left to the callers: repeated keys, halves of surrogate pairs (which only `unescape`
refuses), how deep values nest, and how large numbers are.

Numba's cache of a compiled walk does not notice a change in this file: delete the `*.nbi` files after one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tidemill.formats.byte_access import WIDE, byte_at, first_marked, first_unplain, word_at
from tidemill.formats.compiled import step, walk

if TYPE_CHECKING:
    from tidemill.formats.arrays import Bytes, Mask

QUOTE: Final = 0x22
BACKSLASH: Final = 0x5C
COMMA: Final = 0x2C
COLON: Final = 0x3A
OPEN_BRACE: Final = 0x7B
CLOSE_BRACE: Final = 0x7D
OPEN_BRACKET: Final = 0x5B
CLOSE_BRACKET: Final = 0x5D
MINUS: Final = 0x2D
PLUS: Final = 0x2B
POINT: Final = 0x2E
ZERO: Final = 0x30

# What a value is.
MISSING: Final = 0
NULL: Final = 1
STRING: Final = 2  # no escapes: the bytes are the text
ESCAPED: Final = 3
INTEGER: Final = 4  # -?digits
FRACTION: Final = 5  # -?digits.digits
EXPONENT: Final = 6
TRUE: Final = 7
FALSE: Final = 8
OBJECT: Final = 9
ARRAY: Final = 10

# States of a strict walk: what may come next. From KEY on a key may.
AFTER_VALUE, VALUE, VALUE_OR_END, KEY, KEY_OR_END = 0, 1, 2, 3, 4

# How `value_end` ended: the value is proven, is beyond a limit, or lacks something.
PROVEN: Final = 0
TOO_DEEP: Final = 1
TOO_LONG: Final = 2
NO_VALUE: Final = 3
NO_KEY: Final = 4
NO_COLON: Final = 5
NO_COMMA: Final = 6
NO_STRING: Final = 7
NO_NUMBER: Final = 8

_ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)
_SPACES = np.uint64(0x2020202020202020)
_QUOTES = np.uint64(0x2222222222222222)
_BACKSLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_ZEROS = np.uint64(0x3030303030303030)
_LOWS = np.uint64(0x7F7F7F7F7F7F7F7F)
_NOT_DIGITS = np.uint64(0x7676767676767676)  # added to 10 or more, it sets the high bit
_OPEN_BRACES = np.uint64(0x7B7B7B7B7B7B7B7B)
_CLOSE_BRACES = np.uint64(0x7D7D7D7D7D7D7D7D)


@step
def is_space(c: int) -> bool:
    return c == 32 or c == 9 or c == 10 or c == 13


@step
def is_digit(c: int) -> bool:
    return 48 <= c <= 57


@step
def is_open(c: int) -> bool:
    return (c | 0x20) == OPEN_BRACE  # a bracket differs from a brace in this bit only


@step
def is_close(c: int) -> bool:
    return (c | 0x20) == CLOSE_BRACE


@step
def starts_number(c: int) -> bool:
    return c == MINUS or 48 <= c <= 57


@step
def skip_space(b: Bytes, p: int, end: int) -> int:
    while p < end and is_space(byte_at(b, p)):
        p += 1
    return p


@step
def trim_space(b: Bytes, start: int, end: int) -> int:
    """The end of b[start:end] without the white space at its end."""
    while end > start and is_space(byte_at(b, end - 1)):
        end -= 1
    return end


@step
def same_bytes(a: Bytes, p: int, b: Bytes, q: int, size: int) -> bool:
    """Whether a[p:p+size] equals b[q:q+size]; both lie inside their arrays."""
    if size >= 8:
        last = size - 8
        i = 0
        while i < last:
            if word_at(a, p + i) != word_at(b, q + i):
                return False
            i += 8
        return bool(word_at(a, p + last) == word_at(b, q + last))  # may overlap the one before
    for i in range(size):  # noqa: SIM110 - numba has no generators
        if byte_at(a, p + i) != byte_at(b, q + i):
            return False
    return True


@walk
def is_text(b: Bytes, start: int, end: int, text: Bytes) -> bool:
    """Whether b[start:end] is this text."""
    return end - start == text.size and same_bytes(b, start, text, 0, text.size)


# -- strings


@step
def is_quoted(b: Bytes, p: int, end: int, text: Bytes, at: int, size: int) -> bool:
    """Whether the string whose body starts at p is text[at:at+size], which holds nothing to escape."""
    return p + size < end and byte_at(b, p + size) == QUOTE and same_bytes(b, p, text, at, size)


@step
def plain_end(b: Bytes, p: int, end: int) -> int:
    """The first position from p on with a quote, a backslash or a control character; at most end.

    As many bytes at a time as there are: then the lowest marked byte of `marks` is the first such one.
    """
    while p + WIDE <= b.size and p < end:
        plain = first_unplain(b, p)
        p += plain
        if plain < WIDE:
            return min(p, end)
    while p + 8 <= end:
        w = word_at(b, p)
        quote = w ^ _QUOTES
        slash = w ^ _BACKSLASHES
        marks = (((quote - _ONES) & ~quote) | ((slash - _ONES) & ~slash) | ((w - _SPACES) & ~w)) & _HIGHS
        if marks != 0:
            return p + first_marked(marks)
        p += 8
    while p < end:
        c = byte_at(b, p)
        if c < 0x20 or c == QUOTE or c == BACKSLASH:  # noqa: SIM109 - it is compiled
            break
        p += 1
    return min(p, end)


@step
def string_end(b: Bytes, p: int, end: int) -> tuple[int, int]:
    """The position behind the string whose opening quote is at p, and STRING or ESCAPED. Strict."""
    p = plain_end(b, p + 1, end)
    if p < end and byte_at(b, p) == QUOTE:
        return p + 1, STRING
    return _escaped_end(b, p, end), ESCAPED


@walk
def _escaped_end(b: Bytes, p: int, end: int) -> int:
    """`string_end` from the first byte on that is not plain."""
    while p < end and byte_at(b, p) == BACKSLASH:
        p = _escape_end(b, p, end)
        if p < 0:
            return p
        p = plain_end(b, p, end)
    if p >= end or byte_at(b, p) != QUOTE:
        return ~p
    return p + 1


@walk
def _escape_end(b: Bytes, p: int, end: int) -> int:
    """The position behind the escape sequence whose backslash is at p."""
    p += 1
    if p >= end:
        return ~end
    c = byte_at(b, p)
    if c == 0x75:  # u
        for q in range(p + 1, p + 5):
            if q >= end or _hex_digit(byte_at(b, q)) < 0:
                return ~q
        return p + 5
    return p + 1 if _escape_means(c) >= 0 else ~p


@step
def _hex_digit(c: int) -> int:
    if 48 <= c <= 57:
        return c - 48
    if 65 <= c <= 70:
        return c - 55
    if 97 <= c <= 102:
        return c - 87
    return -1


@step
def _escape_means(c: int) -> int:
    """The byte that a backslash and c stand for; -1 if they are not a one-letter escape sequence."""
    if c == QUOTE or c == BACKSLASH or c == 0x2F:  # noqa: SIM109 - it is compiled
        return c
    if c == 0x6E:  # n
        return 10
    if c == 0x74:  # t
        return 9
    if c == 0x72:  # r
        return 13
    if c == 0x62:  # b
        return 8
    if c == 0x66:  # f
        return 12
    return -1


@walk
def _code_unit(b: Bytes, p: int, end: int) -> int:
    """The UTF-16 code unit of the four hexadecimal digits at p; -1 if they are not there."""
    if p + 4 > end:
        return -1
    unit = 0
    for q in range(p, p + 4):
        digit = _hex_digit(byte_at(b, q))
        if digit < 0:
            return -1
        unit = unit * 16 + digit
    return unit


@walk
def unescape(b: Bytes, start: int, end: int, out: Bytes) -> int:
    """Write the UTF-8 of the string body b[start:end] to `out`, which has room for as many bytes. Returns the
    length, or -1 for an invalid escape sequence, which includes half of a surrogate pair."""
    n = 0
    p = start
    while p < end:
        c = byte_at(b, p)
        p += 1
        if c != BACKSLASH:
            out[n] = c
            n += 1
            continue
        if p >= end:
            return -1
        c = byte_at(b, p)
        p += 1
        if c != 0x75:
            c = _escape_means(c)
            if c < 0:
                return -1
            out[n] = c
            n += 1
            continue
        code = _code_unit(b, p, end)
        p += 4
        if code < 0:
            return -1
        if 0xD800 <= code <= 0xDFFF:
            if code >= 0xDC00 or p + 2 > end or byte_at(b, p) != BACKSLASH or byte_at(b, p + 1) != 0x75:
                return -1
            second = _code_unit(b, p + 2, end)
            if second < 0xDC00 or second > 0xDFFF:
                return -1
            p += 6
            code = 0x10000 + ((code - 0xD800) << 10) + (second - 0xDC00)
        n = _put_utf8(out, n, code)
    return n


@walk
def _put_utf8(out: Bytes, n: int, code: int) -> int:
    """Write a code point at n; returns the position behind it."""
    if code < 0x80:
        out[n] = code
        return n + 1
    if code < 0x800:
        out[n] = 0xC0 | (code >> 6)
        out[n + 1] = 0x80 | (code & 0x3F)
        return n + 2
    if code < 0x10000:
        out[n] = 0xE0 | (code >> 12)
        out[n + 1] = 0x80 | ((code >> 6) & 0x3F)
        out[n + 2] = 0x80 | (code & 0x3F)
        return n + 3
    out[n] = 0xF0 | (code >> 18)
    out[n + 1] = 0x80 | ((code >> 12) & 0x3F)
    out[n + 2] = 0x80 | ((code >> 6) & 0x3F)
    out[n + 3] = 0x80 | (code & 0x3F)
    return n + 4


@step
def quoted_end(b: Bytes, p: int, end: int) -> tuple[int, bool]:
    """The position behind the closing quote of the string whose opening quote is at p, or ~end; and whether
    it is free of backslashes and control characters. Lenient: any byte may occur in it, and any after a
    backslash."""
    p = plain_end(b, p + 1, end)
    if p < end and byte_at(b, p) == QUOTE:
        return p + 1, True
    return _odd_end(b, p, end), False


@walk
def _odd_end(b: Bytes, p: int, end: int) -> int:
    """`quoted_end` from the first byte on that is not plain."""
    while p < end:
        c = byte_at(b, p)
        if c == QUOTE:
            return p + 1
        p = plain_end(b, p + (2 if c == BACKSLASH else 1), end)
    return ~end


# -- numbers and literals


@step
def digits_end(b: Bytes, p: int, end: int) -> int:
    """The position behind the digits at p; there may be none. Eight bytes at a time, see `plain_end`."""
    while p + 8 <= end:
        w = word_at(b, p) ^ _ZEROS  # a digit is now below 10
        marks = (((w & _LOWS) + _NOT_DIGITS) | w) & _HIGHS
        if marks != 0:
            return p + first_marked(marks)
        p += 8
    while p < end and is_digit(byte_at(b, p)):
        p += 1
    return p


@step
def digits_value(b: Bytes, start: int, end: int) -> int:
    """The number that the digits b[start:end] spell; there are at most 18."""
    value = 0
    for p in range(start, end):
        value = value * 10 + (byte_at(b, p) - 48)
    return value


@step
def number_end(b: Bytes, p: int, end: int) -> tuple[int, int]:
    """The position behind the number at p, where a digit or a minus sign is, and INTEGER, FRACTION or
    EXPONENT. Strict; like `json`, a leading zero ends the number."""
    tag = INTEGER
    if byte_at(b, p) == MINUS:
        p += 1
    start = p
    if p < end and byte_at(b, p) == ZERO:
        p += 1
    else:
        p = digits_end(b, p, end)
    if p == start:
        return ~p, tag
    if p < end and byte_at(b, p) == POINT:
        tag = FRACTION
        start = p + 1
        p = digits_end(b, start, end)
        if p == start:
            return ~p, tag
    if p < end and (byte_at(b, p) | 0x20) == 0x65:  # e or E
        tag = EXPONENT
        start = p + 1
        if start < end and (byte_at(b, start) == PLUS or byte_at(b, start) == MINUS):
            start += 1
        p = digits_end(b, start, end)
        if p == start:
            return ~p, tag
    return p, tag


@step
def _spelled(b: Bytes, p: int, end: int, first: int, second: int, third: int) -> bool:
    return (
        p + 3 <= end and byte_at(b, p) == first and byte_at(b, p + 1) == second and byte_at(b, p + 2) == third
    )


@walk
def literal_end(b: Bytes, p: int, end: int) -> tuple[int, int]:
    """The position behind `true`, `false` or `null` at p, and which it is. Strict."""
    c = byte_at(b, p)
    if c == 0x74 and _spelled(b, p + 1, end, 0x72, 0x75, 0x65):
        return p + 4, TRUE
    if c == 0x6E and _spelled(b, p + 1, end, 0x75, 0x6C, 0x6C):
        return p + 4, NULL
    if c == 0x66 and p + 1 < end and byte_at(b, p + 1) == 0x61 and _spelled(b, p + 2, end, 0x6C, 0x73, 0x65):
        return p + 5, FALSE
    return ~p, MISSING


# -- values


@walk
def container_end(b: Bytes, p: int, end: int) -> int:
    """The position behind the bracket that closes the one at p, or ~end. Lenient: braces count as
    brackets."""
    depth = 0
    while p < end:
        if p + 8 <= end:  # as in `plain_end`; a brace is a bracket with the bit of a space set
            w = word_at(b, p)
            quote = w ^ _QUOTES
            opening = (w | _SPACES) ^ _OPEN_BRACES
            closing = (w | _SPACES) ^ _CLOSE_BRACES
            marks = (
                ((quote - _ONES) & ~quote) | ((opening - _ONES) & ~opening) | ((closing - _ONES) & ~closing)
            )
            marks &= _HIGHS
            if marks == 0:
                p += 8
                continue
            p += first_marked(marks)
        c = byte_at(b, p)
        if c == QUOTE:
            p, _ = quoted_end(b, p, end)
            if p < 0:
                return ~end
            continue
        p += 1
        if is_open(c):
            depth += 1
        elif is_close(c):
            depth -= 1
            if depth == 0:
                return p
    return ~end


@walk
def item_end(b: Bytes, p: int, end: int) -> int:
    """The position of the first comma or closing bracket from p on outside of strings and of brackets opened
    since; `end` if there is none. Lenient: what precedes it need not be a value."""
    while p < end:
        c = byte_at(b, p)
        if c == COMMA or is_close(c):
            return p
        if c == QUOTE:
            p, _ = quoted_end(b, p, end)
        elif is_open(c):
            p = container_end(b, p, end)
        else:
            p += 1
        if p < 0:
            return end
    return p


@walk
def value_end(b: Bytes, p: int, end: int, max_depth: int, max_text: int, is_object: Mask) -> tuple[int, int]:
    """Check that a valid JSON value is at p: PROVEN and the position behind it, or why not and where. Values
    may be nested `max_depth` deep; keys and strings may have `max_text` bytes before unescaping. `is_object`
    is scratch space of `max_depth + 1` elements."""
    depth = 0
    state = VALUE
    while True:
        p = skip_space(b, p, end)
        if p >= end:
            return (NO_KEY if state >= KEY else NO_COMMA if state == AFTER_VALUE else NO_VALUE), p
        c = byte_at(b, p)
        if state == AFTER_VALUE:
            if c == COMMA:
                state = KEY if is_object[depth] else VALUE
                p += 1
                continue
            if c != (CLOSE_BRACE if is_object[depth] else CLOSE_BRACKET):
                return NO_COMMA, p
            p += 1
            depth -= 1
        elif (state == KEY_OR_END and c == CLOSE_BRACE) or (state == VALUE_OR_END and c == CLOSE_BRACKET):
            p += 1
            depth -= 1
        elif state >= KEY or c == QUOTE:
            if c != QUOTE:
                return NO_KEY, p
            close, _ = string_end(b, p, end)
            if close < 0:
                return NO_STRING, ~close
            if close - p - 2 > max_text:
                return TOO_LONG, p
            p = close
            if state >= KEY:
                p = skip_space(b, p, end)
                if p >= end or byte_at(b, p) != COLON:
                    return NO_COLON, p
                p += 1
                state = VALUE
                continue
        elif is_open(c):
            if depth == max_depth:
                return TOO_DEEP, p
            depth += 1
            is_object[depth] = c == OPEN_BRACE
            state = KEY_OR_END if c == OPEN_BRACE else VALUE_OR_END
            p += 1
            continue
        elif starts_number(c):
            p, _ = number_end(b, p, end)
            if p < 0:
                return NO_NUMBER, ~p
        else:
            q, _ = literal_end(b, p, end)
            if q < 0:
                return NO_VALUE, p
            p = q
        if depth == 0:
            return PROVEN, p
        state = AFTER_VALUE
