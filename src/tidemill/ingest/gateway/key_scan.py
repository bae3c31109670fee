"""The keys of NDJSON lines in one compiled pass that lets other threads run.

It reads only plain lines, whose columns are at the top level and hold strings without escapes or integers;
other lines are marked, and the caller reads them in another way. What follows a key is not checked, except
whether the line is complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numba import njit

from tidemill.formats.byte_access import byte_at
from tidemill.formats.compiled import walk
from tidemill.formats.json_core import (
    CLOSE_BRACE,
    COLON,
    COMMA,
    INTEGER,
    OPEN_BRACE,
    QUOTE,
    is_digit,
    is_text,
    item_end,
    number_end,
    quoted_end,
    skip_space,
    trim_space,
)

if TYPE_CHECKING:
    from tidemill.formats.arrays import Bytes, Ints, Words

NONE: Final = 0  # the line has no key
FOUND: Final = 1
UNUSUAL: Final = 2  # it has to be read in another way

_SEED = np.uint64(14695981039346656037)
_PRIME = np.uint64(1099511628211)


@walk
def _hashed(b: Bytes, start: int, end: int, seed: np.uint64) -> np.uint64:
    found = seed
    for p in range(start, end):
        found = (found ^ np.uint64(b[p])) * _PRIME
    return (found ^ np.uint64(0x1F)) * _PRIME  # so that ("a", "bc") and ("ab", "c") differ


@walk
def _plain_value(b: Bytes, p: int, end: int, or_number: bool) -> tuple[int, int]:
    """Where a string without escapes begins and ends, without its quotes, or an integer; -1 if something else
    is there."""
    if p < end and byte_at(b, p) == QUOTE:
        close, plain = quoted_end(b, p, end)
        return (p + 1 if plain and close > p + 2 else -1), close - 1
    if p < end and or_number and is_digit(byte_at(b, p)):
        close, tag = number_end(b, p, end)
        is_whole = tag == INTEGER and not (close < end and is_digit(byte_at(b, close)))
        return (p if is_whole else -1), close
    return -1, p


@walk
def _line(b: Bytes, p: int, end: int, id_: Bytes, tenant: Bytes) -> tuple[int, np.uint64]:
    """Of one line: what was found, and its hash."""
    id_start = id_end = tenant_start = tenant_end = -1
    p = skip_space(b, p, end)
    if p >= end or byte_at(b, p) != OPEN_BRACE:
        return (NONE if p >= end else UNUSUAL), _SEED
    p = skip_space(b, p + 1, end)
    while True:
        if p < end and byte_at(b, p) == CLOSE_BRACE and skip_space(b, p + 1, end) == end:
            return NONE, _SEED
        if p >= end or byte_at(b, p) != QUOTE:
            return UNUSUAL, _SEED
        s = p + 1
        p, plain = quoted_end(b, p, end)
        if not plain:
            return UNUSUAL, _SEED
        is_id = is_text(b, s, p - 1, id_)
        is_tenant = not is_id and tenant.size > 0 and is_text(b, s, p - 1, tenant)
        p = skip_space(b, p, end)
        if p >= end or byte_at(b, p) != COLON:
            return UNUSUAL, _SEED
        p = skip_space(b, p + 1, end)
        if is_id or is_tenant:
            s, e = _plain_value(b, p, end, is_id)
            if s < 0:
                return UNUSUAL, _SEED
            if is_id:
                id_start, id_end = s, e
            else:
                tenant_start, tenant_end = s, e
            if id_start >= 0 and (tenant_start >= 0 or not tenant.size):
                break
        p = item_end(b, p, end)
        if p < end and byte_at(b, p) == COMMA:
            p = skip_space(b, p + 1, end)
    end = trim_space(b, p, end)
    if byte_at(b, end - 1) != CLOSE_BRACE:  # it was cut off
        return UNUSUAL, _SEED
    found = _SEED
    if tenant.size:
        found = _hashed(b, tenant_start, tenant_end, found)
    return FOUND, _hashed(b, id_start, id_end, found)


@walk
def scan_keys(b: Bytes, ends: Ints, id_: Bytes, tenant: Bytes, what: Bytes, hashes: Words) -> int:
    """Fill in what each line holds; how many lines there are. `ends` are where they end, in order; `tenant`
    is empty if it is not a column."""
    count = 0
    start = 0
    for at in range(ends.size):
        end = ends[at]
        if end > start:
            what[count], hashes[count] = _line(b, start, end, id_, tenant)
            count += 1
        start = end + 1
    return count


@njit(cache=True, nogil=True)
def distinct(hashes: Words) -> int:
    """How many distinct ones there are."""
    size = 16
    while size < 2 * hashes.size:
        size *= 2
    table = np.zeros(size, np.uint64)
    mask = np.uint64(size - 1)
    count = 0
    zero = False
    for at in range(hashes.size):
        one = hashes[at]
        if one == 0:
            zero = True
            continue
        offset = (one ^ (one >> np.uint64(32))) & mask
        while table[offset] != 0 and table[offset] != one:
            offset = (offset + np.uint64(1)) & mask
        if table[offset] == 0:
            table[offset] = one
            count += 1
    return count + zero


def key_hash(tenant: str | None, id_: str) -> int:
    """The hash that a line of this tenant and id has."""
    found = _SEED
    if tenant is not None:
        text = np.frombuffer(tenant.encode(), np.uint8)
        found = np.uint64(_hashed(text, 0, text.size, found))  # there it is a plain int
    text = np.frombuffer(id_.encode(), np.uint8)
    return int(_hashed(text, 0, text.size, found))
