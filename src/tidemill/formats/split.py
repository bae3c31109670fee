"""Finds where the records of a buffer start and end: lines, or the elements of a JSON array.

Only line ends, brackets and strings are considered, so that one bad record does not hide its neighbours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from tidemill.formats.byte_access import byte_at, word_at
from tidemill.formats.compiled import walk
from tidemill.formats.json_core import (
    CLOSE_BRACE,
    CLOSE_BRACKET,
    OPEN_BRACKET,
    item_end,
    skip_space,
    trim_space,
)

if TYPE_CHECKING:
    from tidemill.formats.arrays import Bytes, Ints

_ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)
_LINE_ENDS = np.uint64(0x0A0A0A0A0A0A0A0A)


@walk
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
    found = np.empty((stop - start) // 64 + 16, np.int64)  # most records are longer
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
        if skip_space(b, s, e) < e:
            starts[kept] = s
            ends[kept] = e
            kept += 1
        s = following
    return starts[:kept], ends[:kept]


@njit(cache=True, nogil=True)
def split_array(b: Bytes) -> tuple[Ints, Ints]:
    """Starts and ends of the elements of a top-level JSON array; anything else is one record.

    Only brackets and strings are considered, so that one bad element does not hide its neighbours.
    """
    starts = np.empty(16, np.int64)
    ends = np.empty(16, np.int64)
    n = 0
    p = skip_space(b, 0, b.size)
    last = trim_space(b, p, b.size)
    done = p >= last or byte_at(b, p) != OPEN_BRACKET
    if not done:
        p += 1
    while p < last and not done:
        stop = item_end(b, p, last)
        while stop < last and byte_at(b, stop) == CLOSE_BRACE:  # a brace too many spoils only its own element
            stop = item_end(b, stop + 1, last)
        done = stop < last and byte_at(b, stop) == CLOSE_BRACKET
        start = skip_space(b, p, stop)
        if start < stop or not done:  # nothing precedes the bracket in `[]` and `[1,]`
            starts, ends = _with_room(starts, ends, n)
            starts[n] = start
            ends[n] = trim_space(b, start, stop)
            n += 1
        p = stop + 1
    p = skip_space(b, p, last)
    if p < last:  # no array, or something behind it: a record of its own
        starts, ends = _with_room(starts, ends, n)
        starts[n] = p
        ends[n] = last
        n += 1
    return starts[:n].copy(), ends[:n].copy()


@njit(cache=True, inline="always")
def _with_room(starts: Ints, ends: Ints, n: int) -> tuple[Ints, Ints]:
    if n < starts.size:
        return starts, ends
    more = np.empty(n, np.int64)
    return np.concatenate((starts, more)), np.concatenate((ends, more))
