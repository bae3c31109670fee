"""One pass over the bytes of a chunk: finds records, proves them to be plain JSON objects, notes where
the declared columns stand, and hashes the content.

It never rejects anything: a record it cannot prove is left to `judge`, which knows rules and reasons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numba import njit, uint64

from tidemill.formats.hashing import (
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
from tidemill.formats.loads import byte_at, copy_bytes, first_marked, word_at
from tidemill.formats.split import is_space

if TYPE_CHECKING:
    from tidemill.formats.arrays import Bytes, Ints, Words

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

_REMEMBERED: Final = 64  # keys of the last record that the next one is compared with
_ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)
_SPACES = np.uint64(0x2020202020202020)
_QUOTES = np.uint64(0x2222222222222222)
_SLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)

# States of the scanner: what may stand next.
_VALUE, _KEY_OR_END, _KEY, _AFTER, _VALUE_OR_END = 0, 1, 2, 3, 4


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
def unescape(b: Bytes, start: int, end: int, out: Bytes) -> int:
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


@njit(cache=True, inline="always")
def plain_end(b: Bytes, p: int, end: int) -> int:
    """The first position from p on with a quote, a backslash or a control character; at most end.

    Eight bytes at a time: the lowest marked byte of `marks` is the first such one.
    """
    while p + 8 <= end:
        w = word_at(b, p)
        quote = w ^ _QUOTES
        slash = w ^ _SLASHES
        marks = (((quote - _ONES) & ~quote) | ((slash - _ONES) & ~slash) | ((w - _SPACES) & ~w)) & _HIGHS
        if marks != 0:
            return p + first_marked(marks)
        p += 8
    while p < end:
        c = byte_at(b, p)
        if c == 0x22 or c == 0x5C or c < 0x20:
            break
        p += 1
    return min(p, end)


@njit(cache=True, inline="always")
def _spelled(b: Bytes, p: int, end: int, first: int, second: int, third: int) -> bool:
    return (
        p + 3 <= end and byte_at(b, p) == first and byte_at(b, p + 1) == second and byte_at(b, p + 2) == third
    )


@njit(cache=True, inline="always")
def _same(b: Bytes, p: int, end: int, other: int, size: int) -> bool:
    """Whether b[p:] starts with the `size` bytes at `other` and then a quote."""
    if p + size >= end or byte_at(b, p + size) != 0x22:
        return False
    q = 0
    while q + 8 <= size:
        if word_at(b, p + q) != word_at(b, other + q):
            return False
        q += 8
    while q < size:
        if byte_at(b, p + q) != byte_at(b, other + q):
            return False
        q += 1
    return True


@njit(cache=True, nogil=True)
def _scan(
    b: Bytes,
    starts: Ints,
    ends: Ints,
    max_depth: int,
    paths: Words,
    slots: Ints,
    tags: Bytes,
    texts: Bytes,
    spans: Ints,
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
    last_key = np.empty(_REMEMBERED, np.int64)
    last_size = np.empty(_REMEMBERED, np.int64)
    last_hash = np.empty(_REMEMBERED, np.uint64)
    remembered = 0
    kept = spans.shape[1]
    room = texts.size // kept if kept else 0  # of each kept column in `texts`
    filled = np.zeros(kept, np.int64)
    guess = 0
    for i in range(starts.size):
        p = starts[i]
        end = ends[i]
        depth = 0
        nkeys = 0
        total_keys = 0
        field = -1
        state = _VALUE
        ok = False
        for f in range(fields):
            tags[f, i] = MISSING
        for f in range(kept):
            spans[0, f, i] = 0
            spans[1, f, i] = 0
        while True:
            while p < end and is_space(byte_at(b, p)):
                p += 1
            if p >= end:
                break
            c = byte_at(b, p)
            if state == _KEY or (state == _KEY_OR_END and c != 0x7D):
                if c != 0x22:
                    break
                p += 1
                # Records of one feed have their keys in the same order: look first at the last record's.
                if total_keys < remembered and _same(b, p, end, last_key[total_keys], last_size[total_keys]):
                    p += last_size[total_keys]
                    h = last_hash[total_keys]
                else:
                    s = p
                    p = plain_end(b, p, end)
                    if p >= end or byte_at(b, p) != 0x22:
                        break  # an escaped key may equal a plain one: `judge` compares them unescaped
                    h = xxh64(b, s, p, uint64(SEED_KEY))
                    if total_keys < _REMEMBERED:
                        last_key[total_keys] = s
                        last_size[total_keys] = p - s
                        last_hash[total_keys] = h
                        remembered = total_keys + 1
                total_keys += 1
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
                while p < end and is_space(byte_at(b, p)):
                    p += 1
                if p >= end or byte_at(b, p) != 0x3A:
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
                if depth == 0 or state in (_VALUE, _KEY):
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
                    while p < end and is_space(byte_at(b, p)):
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
                p = plain_end(b, p, end)
                while p < end and byte_at(b, p) == 0x5C:
                    tag = ESCAPED
                    p = plain_end(b, p + 2, end)
                if p >= end or byte_at(b, p) != 0x22:
                    break
                if tag == STRING:
                    value = xxh64(b, s, p, uint64(SEED_STRING))
                else:
                    n = unescape(b, s, p, scratch)
                    if n < 0:
                        break
                    value = xxh64(scratch, 0, n, uint64(SEED_STRING))
                if field >= 0:
                    tags[field, i] = tag
                    slot = slots[field]
                    if slot >= 0 and tag == STRING:
                        spans[0, slot, i] = filled[slot]
                        copy_bytes(b, s, p, texts, slot * room + filled[slot])
                        filled[slot] += p - s
                        spans[1, slot, i] = filled[slot]
                p += 1
            elif c == 0x2D or 48 <= c <= 57:
                s = p
                tag = INTEGER
                negative = c == 0x2D
                if negative:
                    p += 1
                if p >= end or not (48 <= byte_at(b, p) <= 57):
                    break
                if byte_at(b, p) == 48 and p + 1 < end and 48 <= byte_at(b, p + 1) <= 57:
                    break
                acc = uint64(0)
                zeros = 0  # zeros seen since the last significant digit
                scale = 0
                significant = False
                while p < end and 48 <= byte_at(b, p) <= 57:
                    d = byte_at(b, p) - 48
                    if d == 0:
                        zeros += significant
                    else:
                        for _ in range(zeros):
                            acc = digit(acc, 0)
                        zeros = 0
                        acc = digit(acc, d)
                        significant = True
                    p += 1
                if p < end and byte_at(b, p) == 0x2E:
                    tag = FRACTION
                    p += 1
                    if p >= end or not (48 <= byte_at(b, p) <= 57):
                        break
                    while p < end and 48 <= byte_at(b, p) <= 57:
                        d = byte_at(b, p) - 48
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
                if p < end and (byte_at(b, p) == 0x65 or byte_at(b, p) == 0x45):
                    tag = EXPONENT
                    p += 1
                    sign = 1
                    if p < end and (byte_at(b, p) == 0x2B or byte_at(b, p) == 0x2D):
                        sign = -1 if byte_at(b, p) == 0x2D else 1
                        p += 1
                    q = p
                    power = 0
                    while p < end and 48 <= byte_at(b, p) <= 57 and p - q < 10:
                        power = power * 10 + (byte_at(b, p) - 48)
                        p += 1
                    if p == q or p - q > 9:
                        break
                    exponent += sign * power
                value = number(acc, exponent, negative) if significant else number(uint64(0), 0, False)
                if field >= 0:
                    tags[field, i] = tag
                    slot = slots[field]
                    if slot >= 0:
                        spans[0, slot, i] = filled[slot]
                        copy_bytes(b, s, p, texts, slot * room + filled[slot])
                        filled[slot] += p - s
                        spans[1, slot, i] = filled[slot]
            elif c == 0x7B or c == 0x5B:
                if depth >= max_depth or (depth == 0 and c == 0x5B):
                    break
                if field >= 0:
                    tags[field, i] = OBJECT if c == 0x7B else ARRAY
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
            elif c == 0x74 and _spelled(b, p + 1, end, 0x72, 0x75, 0x65):
                p += 4
                value = closed(uint64(0), SEED_TRUE)
                if field >= 0:
                    tags[field, i] = TRUE
            elif (
                c == 0x66
                and p + 5 <= end
                and byte_at(b, p + 1) == 0x61
                and _spelled(b, p + 2, end, 0x6C, 0x73, 0x65)
            ):
                p += 5
                value = closed(uint64(0), SEED_FALSE)
                if field >= 0:
                    tags[field, i] = FALSE
            elif c == 0x6E and _spelled(b, p + 1, end, 0x75, 0x6C, 0x6C):
                p += 4
                value = closed(uint64(0), SEED_NULL)
                if field >= 0:
                    tags[field, i] = NULL
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
    tags: Bytes  # [column, record]: what stands there
    texts: Bytes  # [kept column]: its plain strings and numbers, one right behind the other
    spans: Ints  # [2, kept column, record]: from and to in its text
    content: Words  # hash of the object


def path_hash(column: str) -> int:
    """How the scanner knows a column, dots being steps into nested objects."""
    result = np.uint64(0)
    for step in column.split("."):
        result = mix(np.uint64((int(result) + hash_bytes(step.encode(), SEED_KEY)) & ((1 << 64) - 1)))
    return int(result)


def scan(
    data: Bytes,
    starts: Ints,
    ends: Ints,
    columns: Sequence[str] = (),
    keep: Sequence[str] = (),
    max_depth: int = MAX_DEPTH,
) -> Scanned:
    """Scan the records of a chunk for the given columns, and copy out the text of some of them."""
    n = starts.size
    paths = np.array([path_hash(c) for c in columns], np.uint64)
    slots = np.array([keep.index(c) if c in keep else -1 for c in columns], np.int64)
    found = Scanned(
        proven=np.zeros(n, np.uint8),
        tags=np.empty((len(columns), n), np.uint8),
        texts=np.empty((len(keep), data.size), np.uint8),
        spans=np.empty((2, len(keep), n), np.int64),
        content=np.empty(n, np.uint64),
    )
    flat = found.texts.reshape(-1)
    _scan(
        data, starts, ends, max_depth, paths, slots,
        found.tags, flat, found.spans, found.content, found.proven,
    )  # fmt: skip
    return found
