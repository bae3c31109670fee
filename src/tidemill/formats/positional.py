"""Makes objects of JSON records that are arrays of values, by declared names; finds arrays inside objects.

Values are copied as they are: a number keeps its digits, a string its escapes. No record is dropped: an array
with more or fewer values than names is passed on unchanged, for the gate to reject.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from tidemill.formats.arrays import RecordChunk
from tidemill.formats.byte_access import byte_at, copy_bytes
from tidemill.formats.compiled import walk
from tidemill.formats.json_core import (
    CLOSE_BRACE,
    CLOSE_BRACKET,
    COLON,
    COMMA,
    OPEN_BRACE,
    OPEN_BRACKET,
    QUOTE,
    is_text,
    item_end,
    quoted_end,
    skip_space,
    trim_space,
)
from tidemill.formats.json_values import quoted

if TYPE_CHECKING:
    from tidemill.formats.arrays import Bytes, Ints


def named(chunks: Iterator[RecordChunk], columns: Sequence[str]) -> Iterator[RecordChunk]:
    """The same records; arrays become objects with these keys, in canonical order."""
    order = np.array(sorted(range(len(columns)), key=lambda position: columns[position]), np.int64)
    keys = [f"{quoted(columns[position])}:".encode() for position in order]
    text = np.frombuffer(bytearray(b"".join(keys)), np.uint8)
    ends = np.cumsum(np.array([len(key) for key in keys], np.int64))
    for chunk in chunks:
        data, starts = _objects(chunk.data, chunk.starts, chunk.ends, order, text, ends)
        yield RecordChunk(data, starts[:-1].copy(), starts[1:].copy())


def inside(data: Bytes, path: Sequence[str]) -> tuple[int, int]:
    """The start and the end of the value at `path` in the object `data`; of all of it if there is none."""
    low, high = 0, int(data.size)
    for key in path:
        start, end = _member(data[low:high], np.frombuffer(bytearray(quoted(key).encode()), np.uint8))
        if end == 0:
            return 0, int(data.size)
        low, high = low + start, low + end
    return low, high


@njit(cache=True, nogil=True)
def _objects(
    b: Bytes, starts: Ints, ends: Ints, order: Ints, keys: Bytes, key_ends: Ints
) -> tuple[Bytes, Ints]:
    """The records concatenated, and where each begins, with the end of the last."""
    width = order.size
    froms = np.empty(width, np.int64)
    tos = np.empty(width, np.int64)
    room = 0
    for i in range(starts.size):
        room += ends[i] - starts[i] + keys.size + 2
    out = np.empty(room, np.uint8)
    found = np.empty(starts.size + 1, np.int64)
    at = 0
    for i in range(starts.size):
        found[i] = at
        if _values(b, starts[i], ends[i], froms, tos) != width:
            copy_bytes(b, starts[i], ends[i], out, at)
            at += ends[i] - starts[i]
            continue
        out[at] = OPEN_BRACE
        at += 1
        key = 0
        for k in range(width):
            if k > 0:
                out[at] = COMMA
                at += 1
            copy_bytes(keys, key, key_ends[k], out, at)
            at += key_ends[k] - key
            key = key_ends[k]
            copy_bytes(b, froms[order[k]], tos[order[k]], out, at)
            at += tos[order[k]] - froms[order[k]]
        out[at] = CLOSE_BRACE
        at += 1
    found[starts.size] = at
    return out[:at], found


@walk
def _values(b: Bytes, start: int, end: int, froms: Ints, tos: Ints) -> int:
    """The spans of the values of the array b[start:end], and their number; -1: no array, or too many."""
    if end - start < 2 or byte_at(b, start) != OPEN_BRACKET or byte_at(b, end - 1) != CLOSE_BRACKET:
        return -1
    n = 0
    p = start
    while True:
        p = skip_space(b, p + 1, end)
        stop = item_end(b, p, end)
        if stop == end or stop <= p or n == froms.size:
            return -1
        froms[n] = p
        tos[n] = trim_space(b, p, stop)
        n += 1
        if byte_at(b, stop) != COMMA:
            return n if stop == end - 1 else -1
        p = stop


@walk
def _member(b: Bytes, key: Bytes) -> tuple[int, int]:
    """The span of the value of the first member with this key (in quotes); (0, 0) if there is none."""
    end = b.size
    p = skip_space(b, 0, end)
    if p >= end or byte_at(b, p) != OPEN_BRACE:
        return 0, 0
    while p < end and (byte_at(b, p) == OPEN_BRACE or byte_at(b, p) == COMMA):
        name = skip_space(b, p + 1, end)
        p = item_end(b, name, end)
        if p < end and byte_at(b, name) == QUOTE:
            name_end, _ = quoted_end(b, name, end)
            value = skip_space(b, name_end, p)
            if is_text(b, name, name_end, key) and value < p and byte_at(b, value) == COLON:
                value = skip_space(b, value + 1, p)
                return value, trim_space(b, value, p)
    return 0, 0
