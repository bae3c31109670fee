"""One pass over the bytes of a chunk: checks that records are plain JSON objects, notes the values of the
declared columns, and hashes the content.

It rejects nothing: a record that it cannot prove valid is left to `decide`, which has all rules and reasons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numba import uint64

from tidemill.formats.byte_access import byte_at
from tidemill.formats.compiled import step, walk
from tidemill.formats.hashing import (
    SEED_ARRAY,
    SEED_KEY,
    SEED_OBJECT,
    closed,
    element,
    hash_bytes,
    member,
    mix,
    xxh64,
)
from tidemill.formats.json_core import (
    AFTER_VALUE,
    ARRAY,
    CLOSE_BRACE,
    COLON,
    COMMA,
    KEY,
    KEY_OR_END,
    OBJECT,
    OPEN_BRACE,
    OPEN_BRACKET,
    QUOTE,
    STRING,
    VALUE,
    VALUE_OR_END,
    is_close,
    is_open,
    same_bytes,
    skip_space,
    string_end,
)
from tidemill.formats.shapes import (
    BEHIND,
    CLOSED,
    NO_COLUMN,
    NO_KEY,
    OPENED,
    SCALAR,
    SHAPES,
    Noted,
    Shapes,
    add_step,
    begin,
    finish,
    forget,
    has_shape,
    no_shapes,
    note,
    scalar,
)

if TYPE_CHECKING:
    from tidemill.formats.arrays import Bytes, Ints, Mask, Offsets, Words

MAX_DEPTH: Final = 64
_MAX_KEYS: Final = 512  # open keys of a record that are checked for repeats; more goes to `decide`
_REMEMBERED: Final = 64  # keys of the last record that the next one is compared with
_MISSES: Final = 32  # records without a remembered shape, after which shapes are tried once in as many
_SLACK: Final = 64  # bytes behind a buffer that copies may write to


class _Open(NamedTuple):
    """Scratch space of a walk: what is open in a record, by depth; and the keys of the record before."""

    is_object: Mask
    first: Ints  # where its keys begin in `seen`
    total: Words  # its hash so far
    key: Words  # hash of the current key
    path: Words  # hash of the path to the current value; 0 inside arrays
    seen: Words  # hashes of the keys of all open objects
    key_at: Ints  # of the key of that number in the record before: where it is
    key_size: Ints
    key_hash: Words


def _nothing_open(max_depth: int) -> _Open:
    depths = max_depth + 2
    return _Open(
        is_object=np.zeros(depths, np.bool_),
        first=np.zeros(depths, np.int64),
        total=np.zeros(depths, np.uint64),
        key=np.zeros(depths, np.uint64),
        path=np.zeros(depths, np.uint64),
        seen=np.zeros(_MAX_KEYS, np.uint64),
        key_at=np.zeros(_REMEMBERED, np.int64),
        key_size=np.zeros(_REMEMBERED, np.int64),
        key_hash=np.zeros(_REMEMBERED, np.uint64),
    )


@step
def _follows(b: Bytes, p: int, end: int, key: int, size: int) -> bool:
    """Whether b[p:] starts with the `size` bytes at `key` and then a quote."""
    return p + size < end and byte_at(b, p + size) == QUOTE and same_bytes(b, p, b, key, size)


@step
def _column(paths: Words, here: uint64, guess: int) -> int:
    """The column with this path, which is most likely the one guessed; -1: none."""
    if here != 0:
        if guess < paths.size and paths[guess] == here:
            return guess
        for f in range(paths.size):
            if paths[f] == here:
                return f
    return -1


@walk
def _walk(
    b: Bytes, start: int, end: int, i: int, max_depth: int, paths: Words, remembered: int, k: int,
    shapes: Shapes, noted: Noted, open_: _Open,
) -> tuple[bool, int]:  # fmt: skip
    """Read the record i, b[start:end], and note its shape as shape k. Whether it is valid, and how many of
    its keys are remembered."""
    is_object, first, total, key, path, seen, key_at, key_size, key_hash = open_
    begin(shapes, k, i, noted)
    p = start
    lead = start  # behind the last scalar
    depth = 0
    nkeys = 0
    total_keys = 0
    field = -1
    guess = 0
    state = VALUE
    while True:
        p = skip_space(b, p, end)
        if p >= end:
            break
        c = byte_at(b, p)
        if state == KEY or (state == KEY_OR_END and c != CLOSE_BRACE):
            if c != QUOTE:
                break
            s = p + 1
            # Compare with the key of the record before first.
            if total_keys < remembered and _follows(b, s, end, key_at[total_keys], key_size[total_keys]):
                p = s + key_size[total_keys] + 1
                h = key_hash[total_keys]
            else:
                p, tag = string_end(b, p, end)
                if tag != STRING:
                    break  # an escaped key may equal a plain one: `decide` compares them unescaped
                h = xxh64(b, s, p - 1, uint64(SEED_KEY))
                if total_keys < _REMEMBERED:
                    key_at[total_keys] = s
                    key_size[total_keys] = p - 1 - s
                    key_hash[total_keys] = h
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
            here = uint64(0)
            if depth == 1:
                here = mix(h)
            elif path[depth - 1] != 0:
                here = mix(path[depth - 1] + h)
            path[depth] = here
            field = _column(paths, here, guess)
            guess = field + 1 if field >= 0 else guess
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
            seed = SEED_OBJECT if is_object[depth] else SEED_ARRAY
            if is_object[depth]:
                nkeys = first[depth]
            value = closed(total[depth], seed)
            p += 1
            depth -= 1
            if depth == 0:
                noted.content[i] = value
                add_step(b, lead, p, BEHIND, NO_KEY, is_object[depth], NO_COLUMN, k, shapes)
                return skip_space(b, p, end) == end, remembered
            add_step(b, p, p, CLOSED, key[depth], is_object[depth], seed, k, shapes)
        elif state == AFTER_VALUE:
            break
        elif is_open(c):
            if depth >= max_depth or (depth == 0 and c == OPEN_BRACKET):
                break
            if field >= 0:
                noted.tags[field, i] = OBJECT if c == OPEN_BRACE else ARRAY
                field = -1
            if depth > 0:
                add_step(b, p, p, OPENED, NO_KEY, is_object[depth], NO_COLUMN, k, shapes)
            depth += 1
            p += 1
            is_object[depth] = c == OPEN_BRACE
            total[depth] = uint64(0)
            first[depth] = nkeys
            state = KEY_OR_END if c == OPEN_BRACE else VALUE_OR_END
            # The members of an object in an array have no path: columns do not lead through arrays.
            if c == OPEN_BRACE and depth > 1 and not is_object[depth - 1]:
                path[depth - 1] = uint64(0)
            continue
        elif depth == 0:
            break  # a scalar is no record
        else:
            add_step(b, lead, p, SCALAR, key[depth], is_object[depth], field, k, shapes)
            at = p
            p, tag, value = scalar(b, p, end, noted.scratch)
            if p < 0:
                break
            if field >= 0:
                note(b, start, at, p, tag, field, i, noted)
            lead = p
        # A whole value has been read: add it to its container.
        field = -1
        if is_object[depth]:
            total[depth] += member(key[depth], value)
        else:
            total[depth] = element(total[depth], value)
        state = AFTER_VALUE
    return False, remembered


@walk
def _scan(
    b: Bytes, starts: Ints, ends: Ints, max_depth: int, paths: Words, shapes: Shapes, noted: Noted,
    open_: _Open, proven: Bytes, walked: Ints,
) -> None:  # fmt: skip
    zero = walked[0]  # Numba compiles a walk once more for a zero that it knows
    remembered = zero
    k = zero  # the shape of the last record that has one of those remembered
    spare = zero  # the shape that gives way to that of the next record which has none of them
    misses = 0
    for i in range(starts.size):
        start, end = starts[i], ends[i]
        for slot in range(noted.filled.size):
            noted.before[slot] = noted.filled[slot]
        # Where records have too many shapes, it is not worth trying them for each.
        ok = False
        tries = SHAPES if misses < _MISSES or i % _MISSES == 0 else 0
        for attempt in range(tries):
            at = (k + attempt) % SHAPES
            if shapes.steps[at] == 0:
                continue
            ok = has_shape(b, start, end, i, at, shapes, noted, open_.total)
            if ok:
                k = at
                misses = max(0, misses - 2)
                break
            for slot in range(noted.filled.size):
                noted.filled[slot] = noted.before[slot]
        if not ok:
            misses = min(misses + 1, _MISSES)
            walked[0] += 1
            ok, remembered = _walk(
                b, start, end, i, max_depth, paths, remembered, spare, shapes, noted, open_
            )
            if not ok:
                forget(shapes, spare)
            elif finish(shapes, spare, i, noted.tags):
                k = spare
                spare = (spare + 1) % SHAPES
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
    walked: int  # how many records had none of the shapes before


def path_hash(column: str) -> int:
    """The hash by which the scanner knows a column; dots are steps into nested objects."""
    result = np.uint64(0)
    for name in column.split("."):
        result = mix(np.uint64((int(result) + hash_bytes(name.encode(), SEED_KEY)) & ((1 << 64) - 1)))
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
    noted = Noted(
        tags=np.empty((len(columns), n), np.uint8),
        texts=np.empty(len(keep) * data.size, np.uint8),
        room=data.size,
        spans=np.empty((2, len(keep), n), np.int64),
        froms=np.empty((len(columns), n), np.int32),
        tos=np.empty((len(columns), n), np.int32),
        content=np.empty(n, np.uint64),
        slots=np.array([keep.index(c) if c in keep else -1 for c in columns], np.int64),
        filled=np.zeros(len(keep), np.int64),
        before=np.zeros(len(keep), np.int64),
        scratch=np.empty(int((ends - starts).max(initial=0)) + 8, np.uint8),
    )
    proven = np.zeros(n, np.uint8)
    shapes, open_ = no_shapes(len(columns)), _nothing_open(max_depth)
    walked = np.zeros(1, np.int64)
    _scan(data, starts, ends, max_depth, paths, shapes, noted, open_, proven, walked)
    texts = noted.texts.reshape(len(keep), data.size)
    return Scanned(
        proven, noted.tags, texts, noted.spans, noted.froms, noted.tos, noted.content, int(walked[0])
    )
