"""One pass over the bytes of a chunk: checks that records are plain JSON objects, notes the values of the
declared columns, and hashes the content.

It rejects nothing: a record that it cannot prove valid is left to `decide`, which has all rules and reasons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numba import njit, uint64

from tidemill.formats.byte_access import byte_at, copy_bytes
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
from tidemill.formats.json_core import (
    AFTER_VALUE,
    ARRAY,
    CLOSE_BRACE,
    COLON,
    COMMA,
    EXPONENT,
    FALSE,
    INTEGER,
    KEY,
    KEY_OR_END,
    MINUS,
    MISSING,
    OBJECT,
    OPEN_BRACE,
    OPEN_BRACKET,
    PLUS,
    POINT,
    QUOTE,
    STRING,
    TRUE,
    VALUE,
    VALUE_OR_END,
    digits_value,
    is_close,
    is_digit,
    is_open,
    literal_end,
    number_end,
    same_bytes,
    skip_space,
    starts_number,
    string_end,
    unescape,
)

if TYPE_CHECKING:
    from tidemill.formats.arrays import Bytes, Ints, Offsets, Words

MAX_DEPTH: Final = 64
_MAX_KEYS: Final = 512  # open keys of a record that are checked for repeats; more goes to `decide`
_POWER_DIGITS: Final = 9  # digits of an exponent; a number with more goes to `decide`
_REMEMBERED: Final = 64  # keys of the last record that the next one is compared with


@njit(cache=True, inline="always")
def _follows(b: Bytes, p: int, end: int, key: int, size: int) -> bool:
    """Whether b[p:] starts with the `size` bytes at `key` and then a quote."""
    return p + size < end and byte_at(b, p + size) == QUOTE and same_bytes(b, p, b, key, size)


@njit(cache=True, inline="always")
def _digits_hash(
    b: Bytes, p: int, end: int, acc: uint64, zeros: int, significant: bool
) -> tuple[int, uint64, int, bool]:
    """Add the digits at p to the hash. Gives where they end, the hash, the count of zeros since the last
    significant digit, and whether there was a significant one."""
    while p < end and is_digit(byte_at(b, p)):
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
    return p, acc, zeros, significant


@njit(cache=True, inline="always")
def _number_hash(b: Bytes, p: int, end: int, tag: int) -> tuple[bool, uint64]:
    """The hash of the value of a number, however it is spelled; False if its exponent is very long."""
    negative = byte_at(b, p) == MINUS
    if negative:
        p += 1
    p, acc, zeros, significant = _digits_hash(b, p, end, uint64(0), 0, False)
    exponent = 0
    if tag != INTEGER and byte_at(b, p) == POINT:
        point = p
        p, acc, zeros, significant = _digits_hash(b, p + 1, end, acc, zeros, significant)
        exponent = point + 1 - p
    exponent += zeros
    if tag == EXPONENT:
        p += 1
        down = byte_at(b, p) == MINUS
        if down or byte_at(b, p) == PLUS:
            p += 1
        if end - p > _POWER_DIGITS:
            return False, acc
        power = digits_value(b, p, end)
        exponent += -power if down else power
    return True, number(acc, exponent, negative) if significant else number(uint64(0), 0, False)


@njit(cache=True, inline="always")
def _keep(
    b: Bytes, start: int, end: int, slot: int, i: int, room: int, texts: Bytes, spans: Ints, filled: Ints
) -> None:
    """Append the text of a kept column of record i to those of the records before it."""
    spans[0, slot, i] = filled[slot]
    copy_bytes(b, start, end, texts, slot * room + filled[slot])
    filled[slot] += end - start
    spans[1, slot, i] = filled[slot]


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
    froms: Offsets,
    tos: Offsets,
    content: Words,
    proven: Bytes,
) -> None:
    fields = paths.size
    longest = 0
    for i in range(starts.size):
        longest = max(longest, ends[i] - starts[i])
    scratch = np.empty(longest + 8, np.uint8)
    seen = np.empty(_MAX_KEYS, np.uint64)  # key hashes of the open objects
    first = np.empty(max_depth + 2, np.int64)  # where those of each depth begin in `seen`
    is_object = np.empty(max_depth + 2, np.bool_)
    total = np.empty(max_depth + 2, np.uint64)  # hash of each open container so far
    key = np.empty(max_depth + 2, np.uint64)  # hash of the current key of each open object
    path = np.empty(max_depth + 2, np.uint64)  # hash of the path to it; 0 inside arrays
    last_key = np.empty(_REMEMBERED, np.int64)
    last_size = np.empty(_REMEMBERED, np.int64)
    last_hash = np.empty(_REMEMBERED, np.uint64)
    remembered = 0
    kept = spans.shape[1]
    room = texts.size // kept if kept else 0  # bytes for each kept column in `texts`
    filled = np.zeros(kept, np.int64)
    guess = 0
    for i in range(starts.size):
        p = starts[i]
        end = ends[i]
        depth = 0
        nkeys = 0
        total_keys = 0
        field = -1
        state = VALUE
        ok = False
        for f in range(fields):
            tags[f, i] = MISSING
            froms[f, i] = 0
            tos[f, i] = 0
        for f in range(kept):
            spans[0, f, i] = 0
            spans[1, f, i] = 0
        while True:
            p = skip_space(b, p, end)
            if p >= end:
                break
            c = byte_at(b, p)
            if state == KEY or (state == KEY_OR_END and c != CLOSE_BRACE):
                if c != QUOTE:
                    break
                s = p + 1
                # Records of a feed mostly have the same key order: compare with the last record's key first.
                if total_keys < remembered and _follows(
                    b, s, end, last_key[total_keys], last_size[total_keys]
                ):
                    p = s + last_size[total_keys] + 1
                    h = last_hash[total_keys]
                else:
                    p, tag = string_end(b, p, end)
                    if tag != STRING:
                        break  # an escaped key may equal a plain one: `decide` compares them unescaped
                    h = xxh64(b, s, p - 1, uint64(SEED_KEY))
                    if total_keys < _REMEMBERED:
                        last_key[total_keys] = s
                        last_size[total_keys] = p - 1 - s
                        last_hash[total_keys] = h
                        remembered = total_keys + 1
                total_keys += 1
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
                p = skip_space(b, p, end)
                if p >= end or byte_at(b, p) != COLON:
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
                state = VALUE
                continue
            value = uint64(0)
            if state == AFTER_VALUE and c == COMMA:
                p += 1
                state = KEY if is_object[depth] else VALUE
                continue
            if is_close(c):
                if depth == 0 or state == VALUE or is_object[depth] != (c == CLOSE_BRACE):
                    break
                if is_object[depth]:
                    nkeys = first[depth]
                    value = closed(total[depth], SEED_OBJECT)
                else:
                    value = closed(total[depth], SEED_ARRAY)
                p += 1
                depth -= 1
                if depth == 0:
                    ok = skip_space(b, p, end) == end
                    content[i] = value
                    break
            elif state == AFTER_VALUE:
                break
            elif c == QUOTE:
                s = p + 1
                p, tag = string_end(b, p, end)
                if p < 0:
                    break
                if tag == STRING:
                    value = xxh64(b, s, p - 1, uint64(SEED_STRING))
                else:
                    n = unescape(b, s, p - 1, scratch)
                    if n < 0:
                        break
                    value = xxh64(scratch, 0, n, uint64(SEED_STRING))
                if field >= 0:
                    tags[field, i] = tag
                    froms[field, i] = s - starts[i]
                    tos[field, i] = p - 1 - starts[i]
                    if slots[field] >= 0 and tag == STRING:
                        _keep(b, s, p - 1, slots[field], i, room, texts, spans, filled)
            elif starts_number(c):
                s = p
                p, tag = number_end(b, p, end)
                if p < 0:
                    break
                exact, value = _number_hash(b, s, p, tag)
                if not exact:
                    break
                if field >= 0:
                    tags[field, i] = tag
                    froms[field, i] = s - starts[i]
                    tos[field, i] = p - starts[i]
                    if slots[field] >= 0:
                        _keep(b, s, p, slots[field], i, room, texts, spans, filled)
            elif is_open(c):
                if depth >= max_depth or (depth == 0 and c == OPEN_BRACKET):
                    break
                if field >= 0:
                    tags[field, i] = OBJECT if c == OPEN_BRACE else ARRAY
                    field = -1
                depth += 1
                p += 1
                is_object[depth] = c == OPEN_BRACE
                total[depth] = uint64(0)
                first[depth] = nkeys
                if c == OPEN_BRACE:
                    state = KEY_OR_END
                    # The members of an object in an array have no path: columns do not lead through arrays.
                    if depth > 1 and not is_object[depth - 1]:
                        path[depth - 1] = uint64(0)
                else:
                    state = VALUE_OR_END
                continue
            else:
                p, tag = literal_end(b, p, end)
                if p < 0:
                    break
                seed = SEED_TRUE if tag == TRUE else SEED_FALSE if tag == FALSE else SEED_NULL
                value = closed(uint64(0), seed)
                if field >= 0:
                    tags[field, i] = tag
            # A whole value has been read: add it to its container.
            if depth == 0:
                break
            field = -1
            if is_object[depth]:
                total[depth] += member(key[depth], value)
            else:
                total[depth] = element(total[depth], value)
            state = AFTER_VALUE
        proven[i] = ok


@dataclass(frozen=True, slots=True)
class Scanned:
    """The result of a scan; row i is record i. Only rows with `proven` set are meaningful."""

    proven: Bytes  # 1: a plain JSON object
    tags: Bytes  # [column, record]: the kind of value
    texts: Bytes  # [kept column]: its plain strings and numbers, concatenated
    spans: Ints  # [2, kept column, record]: start and end in its text
    froms: Offsets  # [column, record]: where its string (without quotes) or number begins in the record …
    tos: Offsets  # … and ends
    content: Words  # hash of the object


def path_hash(column: str) -> int:
    """The hash by which the scanner knows a column; dots are steps into nested objects."""
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
        froms=np.empty((len(columns), n), np.int32),
        tos=np.empty((len(columns), n), np.int32),
        content=np.empty(n, np.uint64),
    )
    flat = found.texts.reshape(-1)
    _scan(
        data, starts, ends, max_depth, paths, slots,
        found.tags, flat, found.spans, found.froms, found.tos, found.content, found.proven,
    )  # fmt: skip
    return found
