"""Compiled loops over rows for which numpy has no fast function.

Finds where windows begin and end if that depends on the windows before: rows are sorted by key, and positions
refer to that order. Also sorts rows by small codes, and computes checksums of many texts.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit

from tidemill.formats.arrays import Bytes, Ints, Mask


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _states(opens: Mask, emits: Mask, begins: Mask, on_open: bool, spans: Ints) -> int:
    found, first = 0, -1
    for row in range(opens.size):
        if begins[row] and first >= 0:
            spans[0, found], spans[1, found] = first, row
            found, first = found + 1, -1
        if first < 0:
            if not opens[row]:
                continue
            first = row
            if not on_open:
                continue
        if emits[row]:
            spans[0, found], spans[1, found] = first, row + 1
            found, first = found + 1, -1
    if first >= 0:
        spans[0, found], spans[1, found] = first, opens.size
        found += 1
    return found


def state_spans(opens: Mask, emits: Mask, begins: Mask, *, on_open: bool) -> tuple[Ints, Ints]:
    """First position and the one after the last of each window: it begins with the first row that opens while
    none is open, and ends with the next that emits, which may be the same row if `on_open`."""
    spans = np.empty((2, opens.size), np.int64)
    found = _states(opens, emits, begins, on_open, spans)
    return spans[0, :found].copy(), spans[1, :found].copy()


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _reaches(at: Ints, key: Ints, back: int, ahead: int, spans: Ints) -> None:
    low = high = 0
    for row in range(at.size):
        if key[row] == row:
            low = row
        high = max(high, row + 1)
        while at[low] < at[row] - back:
            low += 1
        while high < at.size and key[high] == key[row] and at[high] <= at[row] + ahead:
            high += 1
        spans[0, row], spans[1, row] = low, high


def reaches(at: Ints, key: Ints, back: int, ahead: int) -> tuple[Ints, Ints]:
    """For each row the rows of its key from `back` before it to `ahead` after it, both included; `key` is the
    position of the first row of the same key."""
    spans = np.empty((2, at.size), np.int64)
    _reaches(at, key, back, ahead, spans)
    return spans[0], spans[1]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _count_and_position(values: Ints, next_position: Ints, order: Ints) -> None:
    for value in values:
        next_position[value + 1] += 1
    for value in range(next_position.size - 1):
        next_position[value + 1] += next_position[value]
    for row in range(values.size):
        value = values[row]
        order[next_position[value]] = row
        next_position[value] += 1


def counting_order(values: Ints, size: int) -> Ints:
    """Rows sorted by codes below `size`; stable. Takes one pass over the rows and one over all codes."""
    order = np.empty(values.size, np.int64)
    _count_and_position(np.require(values, np.int64, ["C", "W"]), np.zeros(size + 1, np.int64), order)
    return order


def _crc_table() -> Ints:
    values = np.arange(256, dtype=np.int64)
    for _ in range(8):
        values = np.where(values & 1, 0xEDB88320 ^ (values >> 1), values >> 1)
    return values


_CRC_TABLE: Final = _crc_table()


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _crc32(data: Bytes, offsets: Ints, table: Ints, out: Ints) -> None:
    for i in range(offsets.size - 1):
        crc = np.int64(0xFFFFFFFF)
        for p in range(offsets[i], offsets[i + 1]):
            crc = table[(crc ^ data[p]) & 0xFF] ^ (crc >> 8)
        out[i] = crc ^ 0xFFFFFFFF


def crc32_of(data: Bytes, offsets: Ints) -> Ints:
    """The CRC-32 of each text; they lie one after another in `data`."""
    out = np.empty(offsets.size - 1, np.int64)
    _crc32(data, offsets, _CRC_TABLE, out)
    return out
