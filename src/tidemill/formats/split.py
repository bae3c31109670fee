"""Where the records of a buffer start and end: lines, or the elements of a JSON array.

Only line ends, brackets and strings are looked at, so that one bad record does not hide its neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from tidemill.formats.loads import byte_at, word_at

if TYPE_CHECKING:
    from tidemill.formats.arrays import Bytes, Ints

_ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)
_LINE_ENDS = np.uint64(0x0A0A0A0A0A0A0A0A)


@njit(cache=True, inline="always")
def is_space(c: int) -> bool:
    return c == 32 or c == 9 or c == 10 or c == 13


@njit(cache=True, nogil=True)
def _line_ends(b: Bytes, start: int, stop: int, found: Ints) -> int:
    """Positions of the line ends of b[start:stop], as many as fit; how many there are."""
    n = 0
    p = start
    while p < stop:
        if p + 8 <= stop:
            x = word_at(b, p) ^ _LINE_ENDS
            if (x - _ONES) & ~x & _HIGHS == 0:
                p += 8
                continue
        last = min(p + 8, stop)
        while p < last:
            if byte_at(b, p) == 10:
                if n < found.size:
                    found[n] = p
                n += 1
            p += 1
    return n


@njit(cache=True, nogil=True)
def split_lines(b: Bytes, start: int, stop: int) -> tuple[Ints, Ints]:
    """Starts and ends of the non-blank lines of b[start:stop], without line ends."""
    found = np.empty((stop - start) // 64 + 16, np.int64)  # most records are longer than that
    n = _line_ends(b, start, stop, found)
    if n > found.size:
        found = np.empty(n, np.int64)
        n = _line_ends(b, start, stop, found)
    starts = np.empty(n + 1, np.int64)
    ends = np.empty(n + 1, np.int64)
    kept = 0
    s = start
    for i in range(n + 1):
        e = found[i] if i < n else stop
        following = e + 1
        if e > s and byte_at(b, e - 1) == 13:
            e -= 1
        p = s
        while p < e and is_space(byte_at(b, p)):
            p += 1
        if p < e:
            starts[kept] = s
            ends[kept] = e
            kept += 1
        s = following
    return starts[:kept], ends[:kept]


@njit(cache=True, nogil=True)
def split_array(b: Bytes) -> tuple[Ints, Ints]:
    """Starts and ends of the elements of a top-level JSON array; anything else is one record.

    Only brackets and strings are looked at, so that one bad element does not hide its neighbours.
    """
    size = b.size
    p = 0
    while p < size and is_space(b[p]):
        p += 1
    last = size
    while last > p and is_space(b[last - 1]):
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
            depth = max(0, depth - 1)  # a brace too many belongs to its own element only
        elif c == 0x5D:
            cut = True
            done = True
        elif c == 0x2C and depth == 0:
            cut = True
        if cut or p >= last - 1:
            e = p if cut else last
            a = s
            while a < e and is_space(b[a]):
                a += 1
            z = e
            while z > a and is_space(b[z - 1]):
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
    while p < last and is_space(b[p]):
        p += 1
    if p < last:  # something after the array: it is part of no record, so it is one of its own
        if n == starts.size:
            starts = np.concatenate((starts, np.empty(n, np.int64)))
            ends = np.concatenate((ends, np.empty(n, np.int64)))
        starts[n] = p
        ends[n] = last
        n += 1
    return starts[:n].copy(), ends[:n].copy()
