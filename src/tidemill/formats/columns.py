"""Turns spans of bytes into Arrow columns, one pass per column, without a Python object per value.

A value that cannot be read exactly is marked, never guessed; its record goes to `decide`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numba import uint64

from tidemill.formats.arrow import string_buffers
from tidemill.formats.byte_access import byte_at, copy_bytes, word_at
from tidemill.formats.compiled import step, walk
from tidemill.formats.json_core import (
    EXPONENT,
    FRACTION,
    INTEGER,
    MINUS,
    PLUS,
    POINT,
    digits_value,
    is_digit,
    same_bytes,
)
from tidemill.model.time import DAY, HOUR, MINUTE, SECOND
from tidemill.model.zones import wall_offset, zone_named

if TYPE_CHECKING:
    from tidemill.formats.arrays import Bytes, Ints, Mask, Offsets, Words

VIEW = 16  # bytes of an entry of an Arrow view array …
INLINE = 12  # … and of the longest text that is in its entry
SAFE_DIGITS = 18  # a number with so many digits fits 64 bits
_ALMOST_FULL = 922337203685477579  # ten times this plus a digit still fits 64 bits
_DECIMAL_END = 10**18
_HIGHS = np.uint64(0x8080808080808080)
_FIRST = np.uint64(0x9E3779B97F4A7C15)
_LAST = np.uint64(0xC2B2AE3D27D4EB4F)


@walk
def copy_at(b: Bytes, starts: Ints, ends: Ints, at: Ints, out: Bytes) -> None:
    """Copy each b[starts[i]:ends[i]] to out[at[i]:]."""
    for i in range(starts.size):
        copy_bytes(b, starts[i], ends[i], out, at[i])


@walk
def text_views(b: Bytes, starts: Ints, ends: Ints, buffer: int, out: Offsets, body: Bytes) -> None:
    """Each b[starts[i]:ends[i]] as the entry out[i] of an Arrow view array; `body` is `out` as bytes, all of
    them 0. The entry of a short text has all of it, that of another its first bytes and where it begins."""
    for i in range(starts.size):
        size = ends[i] - starts[i]
        out[i, 0] = size
        if size <= INLINE:
            copy_bytes(b, starts[i], ends[i], body, VIEW * i + 4)
        else:
            copy_bytes(b, starts[i], starts[i] + 4, body, VIEW * i + 4)
            out[i, 2] = buffer
            out[i, 3] = starts[i]


def strings(b: Bytes, starts: Ints, ends: Ints) -> pa.StringArray:
    """The spans as one Arrow array; the bytes are known to be UTF-8."""
    offsets = np.zeros(starts.size + 1, np.int32)
    np.cumsum(ends - starts, out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    copy_at(b, starts, ends, offsets, out)
    return pa.StringArray.from_buffers(starts.size, pa.py_buffer(offsets), pa.py_buffer(out))


@walk
def utf8_rows(b: Bytes, starts: Ints, ends: Ints, valid: Mask) -> None:
    """Which records are well-formed UTF-8 (no overlong forms, no surrogates)."""
    for i in range(starts.size):
        p = starts[i]
        e = ends[i]
        ok = True
        while p < e:
            if p + 8 <= e and word_at(b, p) & _HIGHS == 0:
                p += 8
                continue
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


def joined_texts(names: pa.DictionaryArray, ids: pa.StringArray, rows: Ints) -> pa.BinaryArray:
    """`name NUL id` of each of the rows."""
    name_offsets, name_data = string_buffers(names.dictionary)
    id_offsets, id_data = string_buffers(ids)
    codes = names.indices.to_numpy()[rows]
    offsets = np.zeros(rows.size + 1, np.int32)
    np.cumsum(np.diff(name_offsets)[codes] + 1 + np.diff(id_offsets)[rows], out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    _join_at(name_data, name_offsets, codes, id_data, id_offsets, rows, offsets, out)
    return pa.Array.from_buffers(pa.binary(), rows.size, [None, pa.py_buffer(offsets), pa.py_buffer(out)])


@walk
def _join_at(
    names: Bytes, name_offsets: Offsets, codes: Offsets, ids: Bytes, id_offsets: Offsets, rows: Ints,
    at: Offsets, out: Bytes,
) -> None:  # fmt: skip
    """Write each `name NUL id` to out[at[i]:]; `codes` are those of the rows."""
    for i in range(rows.size):
        r, t, o = rows[i], codes[i], at[i]
        copy_bytes(names, name_offsets[t], name_offsets[t + 1], out, o)
        o += name_offsets[t + 1] - name_offsets[t]
        out[o] = 0
        copy_bytes(ids, id_offsets[r], id_offsets[r + 1], out, o + 1)


@step
def _times_power(value: int, power: int, more: bool, rounds: bool) -> tuple[bool, int]:
    """`value` times 10**power; False if that does not fit, or is not a whole number and may not be rounded.

    `more`: the number had further digits, not all zero, behind those in `value`. It is rounded half to even.
    """
    if more and power >= 0:
        return False, value
    if value == 0:
        return True, value
    while power > 0 and value <= _ALMOST_FULL:
        value *= 10
        power -= 1
    if power > 0:
        return False, value
    if power == 0:
        return True, value
    divisor = 1
    while power < 0 and divisor <= _ALMOST_FULL:
        divisor *= 10
        power += 1
    if power < 0:
        return False, value
    rest = value % divisor
    value //= divisor
    if rest == 0 and not more:
        return True, value
    half = divisor // 2
    if rest > half or (rest == half and (more or value % 2 == 1)):
        value += 1
    return rounds, value


@walk
def _numbers(
    b: Bytes, starts: Ints, ends: Ints, tags: Bytes, scale: int, rounds: bool, values: Ints, exact: Mask
) -> None:
    """`-?digits[.digits][e…]` times 10**scale; exact[i] is False where the result is not certain.

    With `rounds`, rounded half to even to at most 18 digits, as decimals are; else 64-bit integers.
    """
    for i in range(starts.size):
        exact[i] = False
        if tags[i] != INTEGER and tags[i] != FRACTION and tags[i] != EXPONENT:
            continue
        p = starts[i]
        e = ends[i]
        negative = byte_at(b, p) == MINUS
        if negative:
            p += 1
        value = 0
        power = scale
        point = False
        fits = True
        more = False  # whether a digit that is left out is not zero
        while p < e:
            c = byte_at(b, p)
            if c == POINT:
                point = True
            elif not is_digit(c):
                break
            elif value <= _ALMOST_FULL:
                value = value * 10 + (c - 48)
                power -= point
            elif point:  # a digit so far behind the point only breaks ties
                more |= c != 48
            else:
                fits = False
                break
            p += 1
        if not fits:
            continue
        if p < e:  # the exponent; the scanner has checked it
            p += 1
            down = byte_at(b, p) == MINUS
            if down or byte_at(b, p) == PLUS:
                p += 1
            if e - p > 4:
                continue
            shift = digits_value(b, p, e)
            power += -shift if down else shift
        fits, value = _times_power(value, power, more, rounds)
        if not fits or (rounds and value >= _DECIMAL_END):
            continue
        values[i] = -value if negative else value
        exact[i] = True


@walk
def may_round(b: Bytes, ends: Ints, tags: Bytes, scale: int, found: Mask) -> None:
    """Which numbers may have more than `scale` digits after the point, trailing zeros aside."""
    for i in range(tags.size):
        found[i] = tags[i] == EXPONENT
        if tags[i] == FRACTION:
            p = ends[i] - 1
            while byte_at(b, p) == 48:
                p -= 1
            digits = 0
            while byte_at(b, p) != POINT:
                digits += 1
                p -= 1
            found[i] = digits > scale


def scaled_numbers(b: Bytes, starts: Ints, ends: Ints, tags: Bytes, scale: int) -> tuple[Ints, Mask]:
    """Decimals as unscaled integers of the given scale, and which of them are certain."""
    values = np.zeros(starts.size, np.int64)
    exact = np.empty(starts.size, np.bool_)
    _numbers(b, starts, ends, tags, scale, True, values, exact)
    return values, exact


def whole_numbers(b: Bytes, starts: Ints, ends: Ints, tags: Bytes) -> tuple[Ints, Mask]:
    """Integers (also spelled 7.0 or 7e0), and which of them are certain."""
    values = np.zeros(starts.size, np.int64)
    exact = np.empty(starts.size, np.bool_)
    _numbers(b, starts, ends, tags, 0, False, values, exact)
    return values, exact


@walk
def _number_spans(
    b: Bytes, starts: Ints, ends: Ints, row: int, codes: Offsets, slots: Offsets, table: Words, firsts: Ints,
    n: int,
) -> tuple[int, int]:  # fmt: skip
    """Number the distinct spans from `row` on in order of first occurrence, until half of the slots are
    taken; which row is next, and how many there are. `table` has the first and last bytes and the size of
    each, `firsts` where it first occurs."""
    mask = np.uint64(slots.size - 1)
    while row < starts.size and 2 * n < slots.size:
        s = starts[row]
        size = ends[row] - s
        first, last = _ends_of(b, s, size)
        at = _place_of(first, last, np.uint64(size)) & mask
        while True:
            code = slots[at]
            if code < 0:
                break
            same = table[0, code] == first and table[1, code] == last and table[2, code] == np.uint64(size)
            if same and (size <= 16 or same_bytes(b, s, b, starts[firsts[code]], size)):
                break
            at = (at + np.uint64(1)) & mask
        if code < 0:
            code = n
            table[0, n], table[1, n], table[2, n] = first, last, np.uint64(size)
            firsts[n] = row
            slots[at] = n
            n += 1
        codes[row] = code
        row += 1
    return row, n


@walk
def _place_all(table: Words, n: int, slots: Offsets) -> None:
    """Enter the first n spans of a table into slots that are empty."""
    mask = np.uint64(slots.size - 1)
    for code in range(n):
        at = _place_of(table[0, code], table[1, code], table[2, code]) & mask
        while slots[at] >= 0:
            at = (at + np.uint64(1)) & mask
        slots[at] = code


@step
def _ends_of(b: Bytes, start: int, size: int) -> tuple[uint64, uint64]:
    """The first and the last eight bytes of a span; all of it and 0 if it has fewer."""
    if size >= 8:
        return word_at(b, start), word_at(b, start + size - 8)
    if start + 8 <= b.size:
        return word_at(b, start) & ((np.uint64(1) << np.uint64(8 * size)) - np.uint64(1)), np.uint64(0)
    first = np.uint64(0)
    for q in range(size):
        first = (first << np.uint64(8)) | np.uint64(byte_at(b, start + size - 1 - q))
    return first, np.uint64(0)


@step
def _place_of(first: uint64, last: uint64, size: uint64) -> uint64:
    """A hash for a table in memory that checks equality."""
    mixed = (first ^ (last >> np.uint64(29))) * _FIRST + (last + size) * _LAST
    return mixed ^ (mixed >> np.uint64(32))


def _codes(b: Bytes, starts: Ints, ends: Ints, codes: Offsets) -> Ints:
    """Number the distinct spans in order of first occurrence; returns where they first occur."""
    row, n, room = 0, 0, 1024
    table, firsts = np.empty((3, room // 2), np.uint64), np.empty(room // 2, np.int64)
    while True:
        slots = np.full(room, -1, np.int32)
        _place_all(table, n, slots)
        row, n = _number_spans(b, starts, ends, row, codes, slots, table, firsts, n)
        if row == starts.size:
            return firsts[:n].copy()
        room *= 4
        table = np.concatenate((table, np.empty((3, room // 2 - n), np.uint64)), axis=1)
        firsts = np.concatenate((firsts, np.empty(room // 2 - n, np.int64)))


def coded_strings(b: Bytes, starts: Ints, ends: Ints) -> pa.DictionaryArray:
    """The spans as a dictionary-encoded array, for columns with few distinct values."""
    codes = np.empty(starts.size, np.int32)
    firsts = _codes(b, starts, ends, codes)
    return pa.DictionaryArray.from_arrays(pa.array(codes), strings(b, starts[firsts], ends[firsts]))


@step
def _two(b: Bytes, p: int) -> int:
    a = b[p] - 48
    c = b[p + 1] - 48
    if a < 0 or a > 9 or c < 0 or c > 9:
        return -1
    return a * 10 + c


@step
def _days(year: int, month: int, day: int) -> int:
    """Days since the epoch, by counting years from March, so that the leap day comes last."""
    y = year - (1 if month <= 2 else 0)
    era = y // 400
    of_era = y - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


@step
def _days_in(year: int, month: int) -> int:
    """How many days a month has."""
    if month == 2:
        leap = (year % 4 == 0 and year % 100 != 0) or year % 400 == 0
        return 29 if leap else 28
    return 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31


@step
def _fraction(b: Bytes, p: int, e: int) -> tuple[int, int]:
    """Microseconds of the digits at p, of which at most nine are read, and the position behind them."""
    micros = 0
    digits = 0
    while p < e and 48 <= b[p] <= 57 and digits < 9:
        if digits < 6:
            micros = micros * 10 + (b[p] - 48)
        digits += 1
        p += 1
    while digits < 6:
        micros *= 10
        digits += 1
    return micros, p


@walk
def _instants(b: Bytes, starts: Ints, ends: Ints, values: Ints, exact: Mask, local: Mask) -> None:
    """Reads `YYYY-MM-DDTHH:MM:SS[.fraction][Z|+hh:mm]`; any other spelling is left to `decide`. A time
    without an offset is marked `local` and read as UTC."""
    for i in range(starts.size):
        exact[i] = False
        local[i] = False
        p = starts[i]
        e = ends[i]
        if e - p < 19 or b[p + 4] != 0x2D or b[p + 7] != 0x2D or b[p + 13] != 0x3A or b[p + 16] != 0x3A:
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
        if day > _days_in(year, month):
            continue
        p += 19
        micros = 0
        if p < e and b[p] == 0x2E:
            point = p
            micros, p = _fraction(b, p + 1, e)
            if p == point + 1:
                continue
        offset = 0
        if p == e:
            local[i] = True
        elif p + 1 == e and b[p] == 0x5A:
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
        values[i] = (
            _days(year, month, day) * DAY + hour * HOUR + minute * MINUTE + second * SECOND + micros - offset
        )
        exact[i] = True


def instants(b: Bytes, starts: Ints, ends: Ints, zone: str | None = None) -> tuple[Ints, Mask]:
    """ISO 8601 texts as microseconds, and which of them are certain. Texts without an offset are local times
    in `zone`; if that is None they are not certain."""
    values = np.zeros(starts.size, np.int64)
    exact, local = np.empty(starts.size, np.bool_), np.empty(starts.size, np.bool_)
    _instants(b, starts, ends, values, exact, local)
    at = np.flatnonzero(local & exact)
    if at.size:
        values[at], exact[at] = _from_wall(values[at], zone)
    return values, exact


def _from_wall(shown: Ints, zone: str | None) -> tuple[Ints, Mask]:
    """Local times as instants, and which of them are certain: not those near a change of the clock, which are
    left to `decide`."""
    if zone is None:
        return shown, np.zeros(shown.size, np.bool_)
    hours, positions = np.unique(shown // HOUR, return_inverse=True)
    where = zone_named(zone)
    found = [wall_offset(where, hour * HOUR, hour * HOUR + HOUR - 1) for hour in hours.tolist()]
    offset = np.array([0 if one is None else one for one in found], np.int64)
    certain = np.array([one is not None for one in found], np.bool_)
    return shown - offset[positions], certain[positions]
