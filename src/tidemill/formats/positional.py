"""JSON records that are arrays of values, made objects by the names of their places; arrays inside objects.

Values are copied as they stand: a number keeps its digits, a string its escapes. It never drops a record: an
array with more or fewer values than there are names is handed on as it is, for the gate to reject.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from tidemill.formats.chunk import RecordChunk
from tidemill.formats.fragments import quoted
from tidemill.formats.loads import copy_bytes
from tidemill.formats.split import is_space

if TYPE_CHECKING:
    from tidemill.formats.arrays import Bytes, Ints


def named(chunks: Iterator[RecordChunk], columns: Sequence[str]) -> Iterator[RecordChunk]:
    """The same records; those that are arrays become objects with these keys, in canonical order."""
    order = np.array(sorted(range(len(columns)), key=lambda place: columns[place]), np.int64)
    keys = [f"{quoted(columns[place])}:".encode() for place in order]
    text = np.frombuffer(bytearray(b"".join(keys)), np.uint8)
    ends = np.cumsum(np.array([len(key) for key in keys], np.int64))
    for chunk in chunks:
        data, starts = _objects(chunk.data, chunk.starts, chunk.ends, order, text, ends)
        yield RecordChunk(data, starts[:-1].copy(), starts[1:].copy())


def inside(data: Bytes, path: Sequence[str]) -> tuple[int, int]:
    """Where in the object that `data` is `path` leads to: from, to. All of it when it leads nowhere."""
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
    """The records one after another, and where each starts, with the end of the last."""
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
        out[at] = 0x7B
        at += 1
        key = 0
        for k in range(width):
            if k > 0:
                out[at] = 0x2C
                at += 1
            copy_bytes(keys, key, key_ends[k], out, at)
            at += key_ends[k] - key
            key = key_ends[k]
            copy_bytes(b, froms[order[k]], tos[order[k]], out, at)
            at += tos[order[k]] - froms[order[k]]
        out[at] = 0x7D
        at += 1
    found[starts.size] = at
    return out[:at], found


@njit(cache=True, nogil=True)
def _values(b: Bytes, start: int, end: int, froms: Ints, tos: Ints) -> int:
    """Where the values of the array b[start:end] stand, and how many; -1: no array, or more than fit."""
    if end - start < 2 or b[start] != 0x5B or b[end - 1] != 0x5D:
        return -1
    n = 0
    depth = 0
    in_string = False
    s = start + 1
    p = start + 1
    while p < end:
        c = b[p]
        if in_string:
            if c == 0x5C:
                p += 1
            elif c == 0x22:
                in_string = False
        elif c == 0x22:
            in_string = True
        elif c == 0x7B or c == 0x5B:
            depth += 1
        elif depth > 0:
            if c == 0x7D or c == 0x5D:
                depth -= 1
        elif c == 0x7D or (c == 0x5D and p != end - 1):
            return -1
        elif c == 0x2C or c == 0x5D:
            a = s
            while a < p and is_space(b[a]):
                a += 1
            z = p
            while z > a and is_space(b[z - 1]):
                z -= 1
            if z == a or n == froms.size:
                return -1
            froms[n] = a
            tos[n] = z
            n += 1
            s = p + 1
            if c == 0x5D:
                return n
        p += 1
    return -1


@njit(cache=True, nogil=True)
def _member(b: Bytes, key: Bytes) -> tuple[int, int]:
    """Where the value of the first member with this key (in quotes) stands; (0, 0) when there is none."""
    p = 0
    while p < b.size and is_space(b[p]):
        p += 1
    if p >= b.size or b[p] != 0x7B:
        return 0, 0
    p += 1
    depth = 0
    in_string = False
    opened = 0  # where the string at hand began
    matched = False  # the string before this place is the key
    value = 0  # where the value of the key began
    while p < b.size:
        c = b[p]
        if in_string:
            if c == 0x5C:
                p += 1
            elif c == 0x22:
                in_string = False
                if depth == 0 and value == 0 and p + 1 - opened == key.size:
                    matched = True
                    for i in range(key.size):
                        if b[opened + i] != key[i]:
                            matched = False
                            break
        elif c == 0x22:
            in_string = True
            opened = p
            matched = False
        elif c == 0x7B or c == 0x5B:
            depth += 1
        elif depth > 0:
            if c == 0x7D or c == 0x5D:
                depth -= 1
        elif c == 0x3A:
            if matched and value == 0:
                value = p + 1
        elif c == 0x2C or c == 0x7D or c == 0x5D:
            if value > 0:
                a = value
                while a < p and is_space(b[a]):
                    a += 1
                z = p
                while z > a and is_space(b[z - 1]):
                    z -= 1
                return a, z
            matched = False
            if c != 0x2C:
                return 0, 0
        p += 1
    return 0, 0
