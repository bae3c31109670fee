"""Finds which records of a chunk are certainly deltas, for all of them at once.

`decide` defines what a delta is; unusual records are left to it. Numbers are not computed: their spelling
shows whether they fit.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit

from tidemill.formats.arrays import Bytes, Ints, Mask, RecordChunk
from tidemill.formats.byte_access import byte_at
from tidemill.formats.compiled import step, walk
from tidemill.formats.json_core import (
    ARRAY,
    CLOSE_BRACKET,
    COMMA,
    EXPONENT,
    INTEGER,
    MINUS,
    MISSING,
    NULL,
    STRING,
    digits_value,
    is_digit,
    is_space,
    number_end,
    same_bytes,
    starts_number,
)
from tidemill.formats.locate import locate, paths_of
from tidemill.formats.read_plan import MAX_ID_BYTES, DeltaRule
from tidemill.model.deltas import Op

_OPS: Final = tuple(Op)
_REPLACE: Final = _OPS.index(Op.REPLACE)
_SCALE: Final = _OPS.index(Op.SCALE)
_OFFSET: Final = _OPS.index(Op.OFFSET)
_DELETE: Final = _OPS.index(Op.DELETE)
_NAMES: Final = np.frombuffer(bytearray().join(op.value.encode() for op in _OPS), np.uint8)
_NAME_AT: Final = np.cumsum([0, *(len(op.value) for op in _OPS)], dtype=np.int64)
_ID_DIGITS: Final = 18  # an integer with so many digits fits 64 bits
_INDEX_DIGITS: Final = 9
_NUMBER_BYTES: Final = 100  # with two digits of exponent, a number of this length fits float64
_POWER_DIGITS: Final = 2
_UNUSUAL: Final = -1


def surely_deltas(rule: DeltaRule, chunk: RecordChunk, rows: Ints) -> Mask:
    """For each row, whether `decide` would certainly accept it as a delta; the rows are valid JSON."""
    columns = (rule.id, rule.op, rule.values, rule.indices)
    found = locate(chunk.data, chunk.starts[rows], chunk.ends[rows], paths_of(columns))
    sure = np.zeros(rows.size, np.bool_)
    _check(chunk.data, found.tags, found.starts, found.ends, rule.dimension, _NAMES, _NAME_AT, sure)
    return sure


@njit(cache=True, nogil=True)
def _check(
    b: Bytes, tags: Bytes, starts: Ints, ends: Ints, dimension: int, names: Bytes, name_at: Ints, sure: Mask
) -> None:
    seen = np.zeros(dimension, np.int64)  # the last record, counted from 1, that named the component
    for i in range(sure.size):
        size = ends[0, i] - starts[0, i]
        if tags[0, i] == STRING:
            if not 0 < size <= MAX_ID_BYTES:
                continue
        elif tags[0, i] != INTEGER or size > _ID_DIGITS:
            continue
        if tags[1, i] != STRING:
            continue
        op = _name(b, starts[1, i], ends[1, i], names, name_at)
        if op < 0:
            continue
        indices = -1
        if tags[3, i] == ARRAY:
            if op in (_REPLACE, _DELETE):
                continue
            indices = _indices(b, starts[3, i], ends[3, i], seen, i + 1)
            if indices == _UNUSUAL:
                continue
        elif tags[3, i] not in (MISSING, NULL):
            continue
        values = 0
        if tags[2, i] == ARRAY:
            values = _values(b, starts[2, i], ends[2, i])
        elif tags[2, i] not in (MISSING, NULL):
            continue
        if op == _DELETE:
            sure[i] = values == 0
        elif op == _OFFSET:
            sure[i] = values == 1
        elif indices >= 0:
            sure[i] = values == indices
        else:
            sure[i] = values == dimension or (op == _SCALE and values == 1)


@step
def _name(b: Bytes, start: int, end: int, names: Bytes, name_at: Ints) -> int:
    for op in range(name_at.size - 1):
        low = name_at[op]
        size = name_at[op + 1] - low
        if size == end - start and same_bytes(b, start, names, low, size):
            return op
    return -1


@step
def _next_item(b: Bytes, p: int) -> int:
    """The next element of a valid array, or its closing bracket."""
    while byte_at(b, p) == COMMA or is_space(byte_at(b, p)):
        p += 1
    return p


@walk
def _indices(b: Bytes, p: int, end: int, seen: Ints, record: int) -> int:
    """How many components an array names; _UNUSUAL unless all are plain, distinct and in range."""
    count = 0
    p = _next_item(b, p + 1)
    while byte_at(b, p) != CLOSE_BRACKET:
        if not is_digit(byte_at(b, p)):
            return _UNUSUAL
        start = p
        p, tag = number_end(b, p, end)
        if tag != INTEGER or p - start > _INDEX_DIGITS:
            return _UNUSUAL
        index = digits_value(b, start, p)
        if index >= seen.size or seen[index] == record:
            return _UNUSUAL
        seen[index] = record
        count += 1
        p = _next_item(b, p)
    return count


@walk
def _values(b: Bytes, p: int, end: int) -> int:
    """How many numbers an array holds; _UNUSUAL if one may not be a finite number."""
    count = 0
    p = _next_item(b, p + 1)
    while byte_at(b, p) != CLOSE_BRACKET:
        if not starts_number(byte_at(b, p)):
            return _UNUSUAL
        start = p
        p, tag = number_end(b, p, end)
        if p - start > _NUMBER_BYTES or (tag == EXPONENT and _is_huge(b, p)):
            return _UNUSUAL
        count += 1
        p = _next_item(b, p)
    return count


@step
def _is_huge(b: Bytes, end: int) -> bool:
    """Whether the exponent that ends there is positive and may be too large for a float64."""
    p = end
    while is_digit(byte_at(b, p - 1)):
        p -= 1
    return end - p > _POWER_DIGITS and byte_at(b, p - 1) != MINUS


__all__ = ["surely_deltas"]
