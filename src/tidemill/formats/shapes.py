"""The shapes of records: what is between their values.

Records of a feed mostly have the same keys in the same order. Where all text between the values of a record
is that of a record that was proven to be JSON, only its values have to be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numba import uint64

from tidemill.formats.byte_access import WIDE, byte_at, copy_bytes, copy_wide, word_at
from tidemill.formats.compiled import step, walk
from tidemill.formats.hashing import (
    SEED_FALSE,
    SEED_NULL,
    SEED_OBJECT,
    SEED_STRING,
    SEED_TRUE,
    closed,
    digit,
    element,
    member,
    number,
    xxh64,
)
from tidemill.formats.json_core import (
    ESCAPED,
    EXPONENT,
    FALSE,
    INTEGER,
    MINUS,
    MISSING,
    PLUS,
    POINT,
    QUOTE,
    STRING,
    TRUE,
    digits_value,
    is_digit,
    literal_end,
    number_end,
    skip_space,
    starts_number,
    string_end,
    unescape,
)

if TYPE_CHECKING:
    from tidemill.formats.arrays import Bytes, Ints, Mask, Offsets, Words

SHAPES: Final = 4  # that are remembered
_STEPS: Final = 192  # of a shape at most; records with more are always walked
_WORDS: Final = 768  # of eight bytes, in all leads of a shape
_POWER_DIGITS: Final = 9  # digits of an exponent; a number with more goes to `decide`

# Kinds of steps. Numba compiles a function once more for each Python number that is handed to it.
SCALAR, OPENED, CLOSED, BEHIND = np.int64(0), np.int64(1), np.int64(2), np.int64(3)
NO_COLUMN: Final = np.int64(-1)
NO_KEY: Final = np.uint64(0)


class Shapes(NamedTuple):
    """Shapes as lists of steps: each scalar with its lead, which is all text since the scalar before it;
    containers that are opened and closed in a lead; and the lead behind all."""

    steps: Ints  # [shape]: how many; 0: there is no such shape
    kinds: Bytes  # [shape, step]
    words: Ints  # [shape, step]: where its lead begins in `leads`
    sizes: Ints  # [shape, step]: bytes of the lead
    keys: Words  # [shape, step]: hash of the key that the value has
    members: Mask  # [shape, step]: whether it has a key, or is in an array
    fields: Ints  # [shape, step]: the column that a scalar is, or -1; the seed of a container that is closed
    leads: Words  # [shape, word]: the leads, each padded to words
    used: Ints  # [shape]: words of its leads; more than there are: it is too large
    rest: Ints  # [shape]: how many columns are no scalars in it
    rest_fields: Ints  # [shape, number]: these columns …
    rest_tags: Bytes  # … and what they are


class Noted(NamedTuple):
    """What a scan notes of records, and how far it has come."""

    tags: Bytes  # [column, record]: the kind of value
    texts: Bytes  # of kept columns, each with `room` bytes
    room: int
    spans: Ints  # [2, kept column, record]: start and end in its text
    froms: Offsets  # [column, record]: where its string (without quotes) or number begins in the record …
    tos: Offsets  # … and ends
    content: Words  # [record]: hash of the object
    slots: Ints  # [column]: its number among the kept ones; -1: it is not kept
    filled: Ints  # [kept column]: bytes of its text
    before: Ints  # [kept column]: the same, before the current record
    scratch: Bytes  # room for a string without its escapes


def no_shapes(columns: int) -> Shapes:
    """Room for shapes of records with so many columns."""

    def room(kind: type, *size: int) -> np.ndarray:
        return np.zeros((SHAPES, *size), kind)

    return Shapes(
        steps=room(np.int64),
        kinds=room(np.uint8, _STEPS),
        words=room(np.int64, _STEPS),
        sizes=room(np.int64, _STEPS),
        keys=room(np.uint64, _STEPS),
        members=room(np.bool_, _STEPS),
        fields=room(np.int64, _STEPS),
        leads=room(np.uint64, _WORDS),
        used=room(np.int64),
        rest=room(np.int64),
        rest_fields=room(np.int64, columns),
        rest_tags=room(np.uint8, columns),
    )


# -- scalars


@step
def _digits_hash(
    b: Bytes, p: int, end: int, acc: uint64, zeros: int, significant: bool
) -> tuple[int, uint64, int, bool]:
    """Add the digits at p to the hash. Gives where they end, the hash, the count of zeros since the last
    significant digit, and whether there was a significant one."""
    every = acc  # with the zeros behind the last significant digit
    for _ in range(zeros):
        every = digit(every, 0)
    while p < end and is_digit(byte_at(b, p)):
        d = byte_at(b, p) - 48
        significant |= d != 0
        every = digit(every, d) if significant else every
        acc = every if d != 0 else acc
        zeros = 0 if d != 0 else zeros + significant
        p += 1
    return p, acc, zeros, significant


@step
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


@step
def _scalar(b: Bytes, p: int, end: int, scratch: Bytes) -> tuple[int, int, uint64]:
    """The position behind the scalar at p, its tag and its hash. The position is negative if it is not valid
    or is left to `decide`."""
    c = byte_at(b, p)
    value = uint64(0)
    if c == QUOTE:
        s = p + 1
        p, tag = string_end(b, p, end)
        if tag == STRING:
            value = xxh64(b, s, p - 1, uint64(SEED_STRING))
        elif p >= 0:
            n = unescape(b, s, p - 1, scratch)
            value = xxh64(scratch, 0, max(n, 0), uint64(SEED_STRING))
            p = p if n >= 0 else -1
    elif starts_number(c):
        s = p
        p, tag = number_end(b, p, end)
        if p >= 0:
            exact, value = _number_hash(b, s, p, tag)
            p = p if exact else -1
    else:
        p, tag = literal_end(b, p, end)
        seed = SEED_TRUE if tag == TRUE else SEED_FALSE if tag == FALSE else SEED_NULL
        value = closed(uint64(0), seed)
    return p, tag, value


@step
def _no_scalar(field: int, tag: int, i: int, noted: Noted) -> None:
    """Note that the record i has something else than a scalar in a column."""
    noted.tags[field, i] = tag
    noted.froms[field, i] = 0
    noted.tos[field, i] = 0
    slot = noted.slots[field]
    if slot >= 0:
        noted.spans[0, slot, i] = 0
        noted.spans[1, slot, i] = 0


@step
def _note(b: Bytes, start: int, p: int, behind: int, tag: int, field: int, i: int, noted: Noted) -> None:
    """Note the scalar b[p:behind] of the record i, which begins at `start`, as the value of a column."""
    noted.tags[field, i] = tag
    if tag == STRING or tag == ESCAPED:  # noqa: SIM109 - it is compiled
        p += 1
        behind -= 1
    has_text = STRING <= tag <= EXPONENT
    noted.froms[field, i] = p - start if has_text else 0
    noted.tos[field, i] = behind - start if has_text else 0
    slot = noted.slots[field]
    if slot < 0:
        return
    at = noted.filled[slot]
    size = behind - p if has_text and tag != ESCAPED else 0
    noted.spans[0, slot, i] = at if size else 0
    noted.spans[1, slot, i] = at + size if size else 0
    if not size:
        return
    noted.filled[slot] = at + size
    if size <= WIDE and p + WIDE <= b.size and at + WIDE <= noted.room:
        copy_wide(b, p, noted.texts, slot * noted.room + at)  # the next one writes over what is behind
    else:
        copy_bytes(b, p, p + size, noted.texts, slot * noted.room + at)


@walk
def scalar(b: Bytes, p: int, end: int, scratch: Bytes) -> tuple[int, int, uint64]:
    """`_scalar`, for records that are walked: each copy of it takes seconds to compile."""
    return _scalar(b, p, end, scratch)


@walk
def note(b: Bytes, start: int, p: int, behind: int, tag: int, field: int, i: int, noted: Noted) -> None:
    """`_note`, for records that are walked."""
    _note(b, start, p, behind, tag, field, i, noted)


# -- shapes


@step
def _is_lead(b: Bytes, p: int, size: int, leads: Words, k: int, word: int) -> bool:
    """Whether b[p:p+size] is the lead of shape k that begins at this word. Eight bytes more can be read."""
    while size >= 8:
        if word_at(b, p) != leads[k, word]:
            return False
        p += 8
        word += 1
        size -= 8
    mask = (uint64(1) << uint64(8 * size)) - uint64(1)
    return bool(((word_at(b, p) ^ leads[k, word]) & mask) == 0)


@walk
def has_shape(
    b: Bytes, start: int, end: int, i: int, k: int, shapes: Shapes, noted: Noted, total: Words
) -> bool:
    """Whether the record i, b[start:end], has shape k and is valid; then its values are noted. `total` is
    scratch space for each level of nesting."""
    p = start
    depth = 0
    inner = uint64(0)  # hash of the innermost open container so far; `total` has those around it
    for n in range(shapes.steps[k]):
        kind = shapes.kinds[k, n]
        if kind == OPENED:
            total[depth] = inner
            depth += 1
            inner = uint64(0)
            continue
        value = uint64(0)
        if kind == CLOSED:
            value = closed(inner, shapes.fields[k, n])
            depth -= 1
            inner = total[depth]
        else:
            size = shapes.sizes[k, n]
            if p + size > end or p + size + 8 > b.size:
                return False
            if not _is_lead(b, p, size, shapes.leads, k, shapes.words[k, n]):
                return False
            p += size
            if kind == BEHIND:
                break
            if p >= end:
                return False
            at = p
            p, tag, value = _scalar(b, p, end, noted.scratch)
            if p < 0:
                return False
            field = shapes.fields[k, n]
            if field >= 0:
                _note(b, start, at, p, tag, field, i, noted)
        if shapes.members[k, n]:
            inner += member(shapes.keys[k, n], value)
        else:
            inner = element(inner, value)
    if skip_space(b, p, end) != end:
        return False
    for n in range(shapes.rest[k]):
        _no_scalar(shapes.rest_fields[k, n], shapes.rest_tags[k, n], i, noted)
    noted.content[i] = closed(inner, SEED_OBJECT)
    return True


@walk
def forget(shapes: Shapes, k: int) -> None:
    """There is no shape k any more."""
    shapes.steps[k] = 0
    shapes.used[k] = 0


@walk
def begin(shapes: Shapes, k: int, i: int, noted: Noted) -> None:
    """Begin to walk the record i, whose shape becomes shape k."""
    forget(shapes, k)
    for field in range(noted.tags.shape[0]):
        _no_scalar(field, np.uint8(MISSING), i, noted)


@walk
def add_step(
    b: Bytes, lead: int, p: int, kind: int, key: uint64, has_key: bool, field: int, k: int, shapes: Shapes
) -> None:
    """Add a step to shape k. The lead of a scalar is b[lead:p]."""
    n = shapes.steps[k]
    word = shapes.used[k]
    size = p - lead if kind == SCALAR or kind == BEHIND else 0  # noqa: SIM109 - it is compiled
    if word > _WORDS or n >= _STEPS or word + size // 8 + 1 > _WORDS:
        shapes.used[k] = _WORDS + 1
        return
    shapes.kinds[k, n] = kind
    shapes.words[k, n] = word
    shapes.sizes[k, n] = size
    shapes.keys[k, n] = key
    shapes.members[k, n] = has_key
    shapes.fields[k, n] = field
    shapes.steps[k] = n + 1
    for at in range(0, size + 1, 8):  # `_is_lead` reads a last word of less than eight bytes
        padded = uint64(0)
        for q in range(min(8, size - at)):
            padded |= uint64(byte_at(b, lead + at + q)) << uint64(8 * q)
        shapes.leads[k, word] = padded
        word += 1
    shapes.used[k] = word


@walk
def finish(shapes: Shapes, k: int, i: int, tags: Bytes) -> bool:
    """Whether shape k, which record i was found to have, can be remembered."""
    if shapes.used[k] > _WORDS:
        forget(shapes, k)
        return False
    n = 0
    for field in range(tags.shape[0]):
        tag = tags[field, i]
        if tag == MISSING or tag > FALSE:  # the others are scalars
            shapes.rest_fields[k, n] = field
            shapes.rest_tags[k, n] = tag
            n += 1
    shapes.rest[k] = n
    return True
