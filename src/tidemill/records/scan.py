"""One pass over the bytes of a chunk: finds records, proves them to be plain JSON objects, notes where
the declared columns stand, and hashes the content.

It never rejects anything: a record it can not prove is left to `judge`, which knows the rules and the reasons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numba import njit, uint64

from tidemill.records.hashing import (
    SEED_ARRAY,
    SEED_FALSE,
    SEED_KEY,
    SEED_NULL,
    SEED_OBJECT,
    SEED_STRING,
    SEED_TRUE,
    closed,
    digit,
    element,
    hash_bytes,
    member,
    mix,
    number,
    xxh64,
)

if TYPE_CHECKING:
    from tidemill.records.arrays import Bytes, Ints, Offsets, Words

# What stands in a declared column of a record.
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

MAX_DEPTH: Final = 64
_MAX_KEYS: Final = 512  # open keys of one record that are checked for repeats; more goes to `judge`

_PLAIN = np.zeros(256, np.uint8)
_PLAIN[0x20:] = 1
_PLAIN[0x22] = 0
_PLAIN[0x5C] = 0

# States of the scanner: what may stand next.
_VALUE, _KEY_OR_END, _KEY, _AFTER, _VALUE_OR_END = 0, 1, 2, 3, 4


@njit(cache=True, inline="always")
def _space(c: int) -> bool:
    return c == 32 or c == 9 or c == 10 or c == 13


@njit(cache=True, nogil=True)
def split_lines(b: Bytes, start: int, stop: int) -> tuple[Ints, Ints]:
    """Starts and ends of the non-blank lines of b[start:stop], without line ends."""
    count = 1
    for i in range(start, stop):
        count += b[i] == 10
    starts = np.empty(count, np.int64)
    ends = np.empty(count, np.int64)
    n = 0
    s = start
    for i in range(start, stop):
        if b[i] == 10:
            starts[n] = s
            ends[n] = i
            n += 1
            s = i + 1
    if s < stop:
        starts[n] = s
        ends[n] = stop
        n += 1
    kept = 0
    for i in range(n):
        s = starts[i]
        e = ends[i]
        if e > s and b[e - 1] == 13:
            e -= 1
        p = s
        while p < e and _space(b[p]):
            p += 1
        if p < e:
            starts[kept] = s
            ends[kept] = e
            kept += 1
    return starts[:kept], ends[:kept]


@njit(cache=True, nogil=True)
def split_array(b: Bytes) -> tuple[Ints, Ints]:
    """Starts and ends of the elements of a top-level JSON array; anything else is one record.

    Only brackets and strings are looked at, so that one bad element does not hide its neighbours.
    """
    size = b.size
    p = 0
    while p < size and _space(b[p]):
        p += 1
    last = size
    while last > p and _space(b[last - 1]):
        last -= 1
    starts = np.empty(16, np.int64)
    ends = np.empty(16, np.int64)
    n = 0
    if p >= last:
        return starts[:0].copy(), ends[:0].copy()
    if b[p] != 0x5B:
        starts[0] = p
        ends[0] = last
        return starts[:1].copy(), ends[:1].copy()
    p += 1
    s = p
    depth = 0
    in_string = False
    done = False
    while p < last and not done:
        c = b[p]
        cut = False
        if in_string:
            if c == 0x5C:
                p += 1
            elif c == 0x22:
                in_string = False
        elif c == 0x22:
            in_string = True
        elif c == 0x7B or c == 0x5B:
            depth += 1
        elif c == 0x7D or (c == 0x5D and depth > 0):
            depth -= 1
        elif c == 0x5D:
            cut = True
            done = True
        elif c == 0x2C and depth == 0:
            cut = True
        if cut or p >= last - 1:
            e = p if cut else last
            a = s
            while a < e and _space(b[a]):
                a += 1
            z = e
            while z > a and _space(b[z - 1]):
                z -= 1
            # `[]` and a final `[1,2]` leave an empty piece only before the closing bracket.
            if z > a or not done or (n > 0 and cut and c == 0x2C):
                if n == starts.size:
                    starts = np.concatenate((starts, np.empty(n, np.int64)))
                    ends = np.concatenate((ends, np.empty(n, np.int64)))
                starts[n] = a
                ends[n] = z
                n += 1
            s = p + 1
        p += 1
    while p < last and _space(b[p]):
        p += 1
    if p < last:  # something after the array: it is part of no record, so it is one of its own
        if n == starts.size:
            starts = np.concatenate((starts, np.empty(n, np.int64)))
            ends = np.concatenate((ends, np.empty(n, np.int64)))
        starts[n] = p
        ends[n] = last
        n += 1
    return starts[:n].copy(), ends[:n].copy()


@njit(cache=True, inline="always")
def _hex(c: int) -> int:
    if 48 <= c <= 57:
        return c - 48
    if 65 <= c <= 70:
        return c - 55
    if 97 <= c <= 102:
        return c - 87
    return -1


@njit(cache=True)
def _hex4(b: Bytes, p: int, end: int) -> int:
    if p + 4 > end:
        return -1
    value = 0
    for q in range(4):
        h = _hex(b[p + q])
        if h < 0:
            return -1
        value = value * 16 + h
    return value


@njit(cache=True)
def _unescape(b: Bytes, start: int, end: int, out: Bytes) -> int:
    """Writes the UTF-8 of a JSON string body to `out`; its length, or -1 when it is not valid."""
    n = 0
    p = start
    while p < end:
        c = b[p]
        if c != 0x5C:
            out[n] = c
            n += 1
            p += 1
            continue
        p += 1
        if p >= end:
            return -1
        c = b[p]
        p += 1
        if c == 0x75:
            code = _hex4(b, p, end)
            p += 4
            if code < 0:
                return -1
            if 0xD800 <= code <= 0xDFFF:
                if code >= 0xDC00 or p + 2 > end or b[p] != 0x5C or b[p + 1] != 0x75:
                    return -1
                second = _hex4(b, p + 2, end)
                if second < 0xDC00 or second > 0xDFFF:
                    return -1
                p += 6
                code = 0x10000 + ((code - 0xD800) << 10) + (second - 0xDC00)
            if code < 0x80:
                out[n] = code
                n += 1
            elif code < 0x800:
                out[n] = 0xC0 | (code >> 6)
                out[n + 1] = 0x80 | (code & 0x3F)
                n += 2
            elif code < 0x10000:
                out[n] = 0xE0 | (code >> 12)
                out[n + 1] = 0x80 | ((code >> 6) & 0x3F)
                out[n + 2] = 0x80 | (code & 0x3F)
                n += 3
            else:
                out[n] = 0xF0 | (code >> 18)
                out[n + 1] = 0x80 | ((code >> 12) & 0x3F)
                out[n + 2] = 0x80 | ((code >> 6) & 0x3F)
                out[n + 3] = 0x80 | (code & 0x3F)
                n += 4
            continue
        if c == 0x6E:
            c = 10
        elif c == 0x74:
            c = 9
        elif c == 0x72:
            c = 13
        elif c == 0x62:
            c = 8
        elif c == 0x66:
            c = 12
        elif c != 0x22 and c != 0x5C and c != 0x2F:
            return -1
        out[n] = c
        n += 1
    return n


@njit(cache=True, nogil=True)
def _scan(
    b: Bytes,
    starts: Ints,
    ends: Ints,
    plain: Bytes,
    max_depth: int,
    paths: Words,
    tags: Bytes,
    spans: Offsets,
    content: Words,
    proven: Bytes,
) -> None:
    fields = paths.size
    longest = 0
    for i in range(starts.size):
        longest = max(longest, ends[i] - starts[i])
    scratch = np.empty(longest + 8, np.uint8)
    seen = np.empty(_MAX_KEYS, np.uint64)  # key hashes of the open objects
    first = np.empty(max_depth + 2, np.int64)  # where those of each depth begin
    is_object = np.empty(max_depth + 2, np.bool_)
    total = np.empty(max_depth + 2, np.uint64)  # hash of each open container so far
    key = np.empty(max_depth + 2, np.uint64)  # hash of the key each open object stands at
    path = np.empty(max_depth + 2, np.uint64)  # hash of the path to it; 0 inside arrays
    guess = 0
    for i in range(starts.size):
        p = starts[i]
        end = ends[i]
        depth = 0
        nkeys = 0
        field = -1
        state = _VALUE
        ok = False
        for f in range(fields):
            tags[i, f] = MISSING
        while True:
            while p < end and _space(b[p]):
                p += 1
            if p >= end:
                break
            c = b[p]
            if state == _KEY or (state == _KEY_OR_END and c != 0x7D):
                if c != 0x22:
                    break
                p += 1
                s = p
                while p < end and plain[b[p]]:
                    p += 1
                if p >= end or b[p] != 0x22:
                    break  # an escaped key may equal a plain one: `judge` compares them unescaped
                h = xxh64(b, s, p, uint64(SEED_KEY))
                p += 1
                repeated = nkeys >= _MAX_KEYS
                for q in range(first[depth], nkeys):
                    if seen[q] == h:
                        repeated = True
                        break
                if repeated:
                    break
                seen[nkeys] = h
                nkeys += 1
                key[depth] = h
                while p < end and _space(b[p]):
                    p += 1
                if p >= end or b[p] != 0x3A:
                    break
                p += 1
                field = -1
                if depth == 1:
                    here = mix(h)
                elif path[depth - 1] != 0:
                    here = mix(path[depth - 1] + h)
                else:
                    here = uint64(0)
                path[depth] = here
                if here != 0:
                    if guess < fields and paths[guess] == here:
                        field = guess
                        guess += 1
                    else:
                        for f in range(fields):
                            if paths[f] == here:
                                field = f
                                guess = f + 1
                                break
                state = _VALUE
                continue
            value = uint64(0)
            if state == _AFTER and c == 0x2C:
                p += 1
                state = _KEY if is_object[depth] else _VALUE
                continue
            if c == 0x7D or c == 0x5D:  # the end of a container
                if depth == 0 or not (state == _AFTER or state == _KEY_OR_END or state == _VALUE_OR_END):
                    break
                if is_object[depth] != (c == 0x7D):
                    break
                if is_object[depth]:
                    nkeys = first[depth]
                    value = closed(total[depth], SEED_OBJECT)
                else:
                    value = closed(total[depth], SEED_ARRAY)
                p += 1
                depth -= 1
                if depth == 0:
                    while p < end and _space(b[p]):
                        p += 1
                    ok = p == end
                    content[i] = value
                    break
            elif state == _AFTER:
                break
            elif c == 0x22:
                p += 1
                s = p
                tag = STRING
                while p < end:
                    if plain[b[p]]:
                        p += 1
                    elif b[p] == 0x5C:
                        tag = ESCAPED
                        p += 2
                    else:
                        break
                if p >= end or b[p] != 0x22:
                    break
                if tag == STRING:
                    value = xxh64(b, s, p, uint64(SEED_STRING))
                else:
                    n = _unescape(b, s, p, scratch)
                    if n < 0:
                        break
                    value = xxh64(scratch, 0, n, uint64(SEED_STRING))
                if field >= 0:
                    tags[i, field] = tag
                    spans[i, field, 0] = s - starts[i]
                    spans[i, field, 1] = p - starts[i]
                p += 1
            elif c == 0x2D or 48 <= c <= 57:
                s = p
                tag = INTEGER
                negative = c == 0x2D
                if negative:
                    p += 1
                if p >= end or not (48 <= b[p] <= 57):
                    break
                if b[p] == 48 and p + 1 < end and 48 <= b[p + 1] <= 57:
                    break
                acc = uint64(0)
                zeros = 0  # zeros seen since the last significant digit
                scale = 0
                significant = False
                while p < end and 48 <= b[p] <= 57:
                    d = b[p] - 48
                    if d == 0:
                        zeros += significant
                    else:
                        for _ in range(zeros):
                            acc = digit(acc, 0)
                        zeros = 0
                        acc = digit(acc, d)
                        significant = True
                    p += 1
                if p < end and b[p] == 0x2E:
                    tag = FRACTION
                    p += 1
                    if p >= end or not (48 <= b[p] <= 57):
                        break
                    while p < end and 48 <= b[p] <= 57:
                        d = b[p] - 48
                        scale += 1
                        if d == 0:
                            zeros += significant
                        else:
                            for _ in range(zeros):
                                acc = digit(acc, 0)
                            zeros = 0
                            acc = digit(acc, d)
                            significant = True
                        p += 1
                exponent = zeros - scale
                if p < end and (b[p] == 0x65 or b[p] == 0x45):
                    tag = EXPONENT
                    p += 1
                    sign = 1
                    if p < end and (b[p] == 0x2B or b[p] == 0x2D):
                        sign = -1 if b[p] == 0x2D else 1
                        p += 1
                    q = p
                    power = 0
                    while p < end and 48 <= b[p] <= 57 and p - q < 10:
                        power = power * 10 + (b[p] - 48)
                        p += 1
                    if p == q or p - q > 9:
                        break
                    exponent += sign * power
                if significant:
                    value = number(acc, exponent, negative)
                else:
                    value = number(uint64(0), 0, False)
                if field >= 0:
                    tags[i, field] = tag
                    spans[i, field, 0] = s - starts[i]
                    spans[i, field, 1] = p - starts[i]
            elif c == 0x7B or c == 0x5B:
                if depth >= max_depth or (depth == 0 and c == 0x5B):
                    break
                if field >= 0:
                    tags[i, field] = OBJECT if c == 0x7B else ARRAY
                    field = -1
                depth += 1
                p += 1
                is_object[depth] = c == 0x7B
                total[depth] = uint64(0)
                first[depth] = nkeys
                if c == 0x7B:
                    state = _KEY_OR_END
                    # The members of an object in an array have no path: an array fans out, a column does not.
                    if depth > 1 and not is_object[depth - 1]:
                        path[depth - 1] = uint64(0)
                else:
                    state = _VALUE_OR_END
                continue
            elif c == 0x74 and p + 4 <= end and b[p + 1] == 0x72 and b[p + 2] == 0x75 and b[p + 3] == 0x65:
                p += 4
                value = closed(uint64(0), SEED_TRUE)
                if field >= 0:
                    tags[i, field] = TRUE
            elif (
                c == 0x66
                and p + 5 <= end
                and b[p + 1] == 0x61
                and b[p + 2] == 0x6C
                and b[p + 3] == 0x73
                and b[p + 4] == 0x65
            ):
                p += 5
                value = closed(uint64(0), SEED_FALSE)
                if field >= 0:
                    tags[i, field] = FALSE
            elif c == 0x6E and p + 4 <= end and b[p + 1] == 0x75 and b[p + 2] == 0x6C and b[p + 3] == 0x6C:
                p += 4
                value = closed(uint64(0), SEED_NULL)
                if field >= 0:
                    tags[i, field] = NULL
            else:
                break
            # A whole value has been read: add it to the container it stands in.
            if depth == 0:
                break
            field = -1
            if is_object[depth]:
                total[depth] += member(key[depth], value)
            else:
                total[depth] = element(total[depth], value)
            state = _AFTER
        proven[i] = ok


@dataclass(frozen=True, slots=True)
class Scanned:
    """What the scan found; row i is record i. Only rows with `proven` set mean anything."""

    proven: Bytes  # 1: a plain JSON object
    tags: Bytes  # [record, column]: what stands there
    spans: Offsets  # [record, column, 2]: from and to, within the record, of strings and numbers
    content: Words  # hash of the object


def path_hash(column: str) -> int:
    """How the scanner knows a column, dots being steps into nested objects."""
    result = np.uint64(0)
    for step in column.split("."):
        result = mix(np.uint64((int(result) + hash_bytes(step.encode(), SEED_KEY)) & ((1 << 64) - 1)))
    return int(result)


def scan(
    data: Bytes, starts: Ints, ends: Ints, columns: Sequence[str], max_depth: int = MAX_DEPTH
) -> Scanned:
    """Scan the records of a chunk for the given columns."""
    n = starts.size
    paths = np.array([path_hash(c) for c in columns], np.uint64)
    found = Scanned(
        proven=np.zeros(n, np.uint8),
        tags=np.empty((n, len(columns)), np.uint8),
        spans=np.empty((n, len(columns), 2), np.int32),
        content=np.empty(n, np.uint64),
    )
    _scan(
        data, starts, ends, _PLAIN, max_depth, paths,
        found.tags, found.spans, found.content, found.proven,
    )  # fmt: skip
    return found
