"""From spans of bytes to Arrow columns, one pass per column and no Python object per value.

A value that a pass can not read exactly is marked, never guessed; `stage` sends its record to `judge`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numba import njit

from tidemill.model.time import DAY, HOUR, MINUTE, SECOND
from tidemill.records.loads import put_word, word_at
from tidemill.records.scan import FRACTION, INTEGER

if TYPE_CHECKING:
    from tidemill.records.arrays import Bytes, Ints, Mask

SAFE_DIGITS = 18  # of a number that surely fits 64 bits


@njit(cache=True, inline="always")
def _copy(b: Bytes, start: int, end: int, out: Bytes, at: int) -> None:
    while start + 8 <= end:
        put_word(out, at, word_at(b, start))
        start += 8
        at += 8
    while start < end:
        out[at] = b[start]
        start += 1
        at += 1


@njit(cache=True, nogil=True)
def copy_at(b: Bytes, starts: Ints, ends: Ints, at: Ints, out: Bytes) -> None:
    """Copy each b[starts[i]:ends[i]] to out[at[i]:]."""
    for i in range(starts.size):
        _copy(b, starts[i], ends[i], out, at[i])


def strings(b: Bytes, starts: Ints, ends: Ints) -> pa.StringArray:
    """The spans as one Arrow array; they are known to be UTF-8."""
    offsets = np.zeros(starts.size + 1, np.int32)
    np.cumsum(ends - starts, out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    copy_at(b, starts, ends, offsets, out)
    return pa.StringArray.from_buffers(starts.size, pa.py_buffer(offsets), pa.py_buffer(out))


@njit(cache=True, nogil=True)
def utf8_rows(b: Bytes, starts: Ints, ends: Ints, valid: Mask) -> None:
    """Which records are well-formed UTF-8 (no overlong forms, no surrogates)."""
    for i in range(starts.size):
        p = starts[i]
        e = ends[i]
        ok = True
        while p < e:
            c = b[p]
            if c < 0x80:
                p += 1
                continue
            low, high = 0x80, 0xBF
            if 0xC2 <= c <= 0xDF:
                more = 1
            elif 0xE0 <= c <= 0xEF:
                more = 2
                if c == 0xE0:
                    low = 0xA0
                elif c == 0xED:
                    high = 0x9F
            elif 0xF0 <= c <= 0xF4:
                more = 3
                if c == 0xF0:
                    low = 0x90
                elif c == 0xF4:
                    high = 0x8F
            else:
                ok = False
                break
            if p + more >= e:
                ok = False
                break
            for q in range(1, more + 1):
                if b[p + q] < low or b[p + q] > high:
                    ok = False
                low, high = 0x80, 0xBF
            if not ok:
                break
            p += more + 1
        valid[i] = ok


@njit(cache=True, nogil=True)
def join_at(
    names: Bytes,
    name_offsets: Ints,
    codes: Ints,
    ids: Bytes,
    id_offsets: Ints,
    rows: Ints,
    at: Ints,
    out: Bytes,
) -> None:
    """Write `name NUL id` of each row to out[at[i]:]."""
    for i in range(rows.size):
        r = rows[i]
        o = at[i]
        t = codes[r]
        _copy(names, name_offsets[t], name_offsets[t + 1], out, o)
        o += name_offsets[t + 1] - name_offsets[t]
        out[o] = 0
        _copy(ids, id_offsets[r], id_offsets[r + 1], out, o + 1)


@njit(cache=True, nogil=True)
def _numbers(b: Bytes, starts: Ints, ends: Ints, tags: Bytes, scale: int, values: Ints, exact: Mask) -> None:
    """`-?digits[.digits]` times 10**scale, half to even; exact[i] is False where that is not certain."""
    for i in range(starts.size):
        exact[i] = False
        if tags[i] != INTEGER and tags[i] != FRACTION:
            continue
        p = starts[i]
        e = ends[i]
        negative = b[p] == 0x2D
        if negative:
            p += 1
        value = 0
        digits = 0
        kept = scale  # how many digits may still come after the point
        rest = 0  # -1 below half, 0 nothing dropped, 1 half, 2 above half
        first_dropped = True
        point = False
        while p < e:
            c = b[p]
            p += 1
            if c == 0x2E:
                point = True
                continue
            d = c - 48
            if point and kept == 0:
                if first_dropped:
                    rest = 2 if d > 5 else (1 if d == 5 else (-1 if d > 0 else 0))
                    first_dropped = False
                elif d > 0:
                    if rest == 1:
                        rest = 2
                    elif rest == 0:
                        rest = -1
                continue
            if point:
                kept -= 1
            value = value * 10 + d
            digits += value != 0  # not `> 0`: the 19th digit can wrap around
            if digits > SAFE_DIGITS:
                break
        while kept > 0 and digits <= SAFE_DIGITS:
            value *= 10
            digits += value != 0
            kept -= 1
        if digits > SAFE_DIGITS:
            continue
        if rest == 2 or (rest == 1 and value % 2 == 1):
            value += 1
        if value >= 1000000000000000000:
            continue
        values[i] = -value if negative else value
        exact[i] = True


def scaled_numbers(b: Bytes, starts: Ints, ends: Ints, tags: Bytes, scale: int) -> tuple[Ints, Mask]:
    """Decimals as integers of the given scale, and where they are certain."""
    values = np.zeros(starts.size, np.int64)
    exact = np.empty(starts.size, np.bool_)
    _numbers(b, starts, ends, tags, scale, values, exact)
    return values, exact


@njit(cache=True, nogil=True)
def _whole(b: Bytes, starts: Ints, ends: Ints, tags: Bytes, values: Ints, exact: Mask) -> None:
    for i in range(starts.size):
        exact[i] = False
        if tags[i] != INTEGER and tags[i] != FRACTION:
            continue
        p = starts[i]
        e = ends[i]
        negative = b[p] == 0x2D
        if negative:
            p += 1
        value = 0
        s = p
        while p < e and b[p] != 0x2E:
            if p - s >= SAFE_DIGITS:
                break
            value = value * 10 + (b[p] - 48)
            p += 1
        if p < e and b[p] == 0x2E:
            p += 1
            while p < e and b[p] == 48:
                p += 1
        if p < e:
            continue
        values[i] = -value if negative else value
        exact[i] = True


def whole_numbers(b: Bytes, starts: Ints, ends: Ints, tags: Bytes) -> tuple[Ints, Mask]:
    """Integers (also spelled 7.0), and where they are certain."""
    values = np.zeros(starts.size, np.int64)
    exact = np.empty(starts.size, np.bool_)
    _whole(b, starts, ends, tags, values, exact)
    return values, exact


@njit(cache=True, inline="always")
def _two(b: Bytes, p: int) -> int:
    a = b[p] - 48
    c = b[p + 1] - 48
    if a < 0 or a > 9 or c < 0 or c > 9:
        return -1
    return a * 10 + c


@njit(cache=True, nogil=True)
def _instants(b: Bytes, starts: Ints, ends: Ints, values: Ints, exact: Mask) -> None:
    """The usual spelling `YYYY-MM-DDTHH:MM:SS[.fraction](Z|+hh:mm)`; any other is left to `judge`."""
    for i in range(starts.size):
        exact[i] = False
        p = starts[i]
        e = ends[i]
        if e - p < 20 or b[p + 4] != 0x2D or b[p + 7] != 0x2D or b[p + 13] != 0x3A or b[p + 16] != 0x3A:
            continue
        if b[p + 10] != 0x54 and b[p + 10] != 0x20:
            continue
        century = _two(b, p)
        year = _two(b, p + 2)
        month = _two(b, p + 5)
        day = _two(b, p + 8)
        hour = _two(b, p + 11)
        minute = _two(b, p + 14)
        second = _two(b, p + 17)
        if century < 0 or year < 0 or month < 1 or month > 12 or day < 1:
            continue
        if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
            continue
        year += century * 100
        if year < 1:
            continue
        leap = (year % 4 == 0 and year % 100 != 0) or year % 400 == 0
        if month == 2:
            last = 29 if leap else 28
        elif month == 4 or month == 6 or month == 9 or month == 11:
            last = 30
        else:
            last = 31
        if day > last:
            continue
        p += 19
        micros = 0
        if b[p] == 0x2E:
            p += 1
            digits = 0
            while p < e and 48 <= b[p] <= 57 and digits < 9:
                if digits < 6:
                    micros = micros * 10 + (b[p] - 48)
                digits += 1
                p += 1
            if digits == 0:
                continue
            while digits < 6:
                micros *= 10
                digits += 1
        offset = 0
        if p + 1 == e and b[p] == 0x5A:
            pass
        elif p + 6 == e and (b[p] == 0x2B or b[p] == 0x2D) and b[p + 3] == 0x3A:
            hours = _two(b, p + 1)
            minutes = _two(b, p + 4)
            if hours < 0 or hours > 23 or minutes < 0 or minutes > 59:
                continue
            offset = hours * HOUR + minutes * MINUTE
            if b[p] == 0x2D:
                offset = -offset
        else:
            continue
        # Days since the epoch by counting years from March, so that the leap day comes last.
        y = year - (1 if month <= 2 else 0)
        era = y // 400
        of_era = y - era * 400
        of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
        days = era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468
        values[i] = days * DAY + hour * HOUR + minute * MINUTE + second * SECOND + micros - offset
        exact[i] = True


def instants(b: Bytes, starts: Ints, ends: Ints) -> tuple[Ints, Mask]:
    """ISO 8601 texts as microseconds, and where they are certain."""
    values = np.zeros(starts.size, np.int64)
    exact = np.empty(starts.size, np.bool_)
    _instants(b, starts, ends, values, exact)
    return values, exact
