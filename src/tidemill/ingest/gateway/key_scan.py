"""The keys of NDJSON lines in one compiled pass that lets other threads run: which line holds which.

It reads plain lines only, those whose columns are at the top and hold text without escapes or whole numbers;
of any other it says so, and whoever asks reads it in another way. What stands behind
a key is not looked at, except whether the line has an end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes: TypeAlias = NDArray[np.uint8]
    Words: TypeAlias = NDArray[np.uint64]
    Flags: TypeAlias = NDArray[np.uint8]
    Places: TypeAlias = NDArray[np.int64]

NONE: Final = 0  # the line has no key
FOUND: Final = 1
UNUSUAL: Final = 2  # it has to be read in another way

_SEED = np.uint64(14695981039346656037)
_PRIME = np.uint64(1099511628211)


@njit(cache=True, nogil=True)
def _hashed(b: Bytes, start: int, end: int, seed: np.uint64) -> np.uint64:
    found = seed
    for p in range(start, end):
        found = (found ^ np.uint64(b[p])) * _PRIME
    return (found ^ np.uint64(0x1F)) * _PRIME  # so that ("a", "bc") and ("ab", "c") differ


@njit(cache=True, nogil=True)
def _is(b: Bytes, start: int, end: int, name: Bytes) -> bool:
    if end - start != name.size:
        return False
    for at in range(name.size):  # noqa: SIM110 - numba has no generators
        if b[start + at] != name[at]:
            return False
    return True


@njit(cache=True, nogil=True)
def _quoted_end(b: Bytes, p: int, end: int) -> tuple[int, bool]:
    """Where the quote stands that ends the text whose body begins at p (`end`: nowhere), and whether there
    is an escape in it."""
    escaped = False
    while p < end:
        c = b[p]
        if c == 0x22:
            return p, escaped
        if c == 0x5C:
            escaped = True
            p += 1
        p += 1
    return end, escaped


@njit(cache=True, nogil=True)
def _line(b: Bytes, p: int, end: int, id_: Bytes, tenant: Bytes) -> tuple[int, np.uint64]:
    """Of one line: what was found, and its hash."""
    depth = 0
    is_key = False
    seeing = 0  # 1: the value of the identity comes, 2: that of the tenant
    id_start = id_end = tenant_start = tenant_end = -1
    while p < end:
        c = b[p]
        if c == 0x22:
            close, escaped = _quoted_end(b, p + 1, end)
            if close >= end:
                return UNUSUAL, _SEED
            if depth == 1:
                if is_key:
                    if escaped:
                        return UNUSUAL, _SEED
                    seeing = 1 if _is(b, p + 1, close, id_) else 2 if _is(b, p + 1, close, tenant) else 0
                    is_key = False
                elif seeing:
                    if escaped or close == p + 1:
                        return UNUSUAL, _SEED
                    if seeing == 1:
                        id_start, id_end = p + 1, close
                    else:
                        tenant_start, tenant_end = p + 1, close
                    seeing = 0
                    if id_start >= 0 and (tenant_start >= 0 or not tenant.size):
                        break
            p = close
        elif c == 0x7B or c == 0x5B:
            if seeing or (depth == 0 and c == 0x5B):
                return UNUSUAL, _SEED
            depth += 1
            is_key = depth == 1
        elif c == 0x7D or c == 0x5D:
            depth -= 1
        elif c == 0x2C:
            is_key = depth == 1
        elif seeing == 1 and (48 <= c <= 57):
            start = p
            while p < end and 48 <= b[p] <= 57:
                p += 1
            if p < end and (b[p] == 0x2E or b[p] == 0x65 or b[p] == 0x45):
                return UNUSUAL, _SEED
            if b[start] == 48 and p > start + 1:
                return UNUSUAL, _SEED
            id_start, id_end = start, p
            seeing = 0
            if tenant_start >= 0 or not tenant.size:
                break
            continue
        elif seeing and c != 0x3A and c != 0x20 and c != 0x09 and c != 0x0D:
            return UNUSUAL, _SEED
        p += 1
    if id_start < 0 or (tenant.size and tenant_start < 0):
        return (NONE if depth == 0 else UNUSUAL), _SEED
    while end > p and b[end - 1] <= 0x20:
        end -= 1
    if b[end - 1] != 0x7D:  # it was cut off
        return UNUSUAL, _SEED
    found = _SEED
    if tenant.size:
        found = _hashed(b, tenant_start, tenant_end, found)
    return FOUND, _hashed(b, id_start, id_end, found)


@njit(cache=True, nogil=True)
def scan_keys(b: Bytes, ends: Places, id_: Bytes, tenant: Bytes, what: Flags, hashes: Words) -> int:
    """Fill in what each line holds; how many lines there are. `ends` are where they end, in order; `tenant`
    is empty when it is no column."""
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
    """How many different ones there are."""
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
        place = (one ^ (one >> np.uint64(32))) & mask
        while table[place] != 0 and table[place] != one:
            place = (place + np.uint64(1)) & mask
        if table[place] == 0:
            table[place] = one
            count += 1
    return count + zero


def key_hash(tenant: str | None, id_: str) -> int:
    """The hash that a line of this tenant and id has."""
    found = _SEED
    if tenant is not None:
        text = np.frombuffer(tenant.encode(), np.uint8)
        found = np.uint64(_hashed(text, 0, text.size, found))  # from there it comes as a plain int
    text = np.frombuffer(id_.encode(), np.uint8)
    return int(_hashed(text, 0, text.size, found))
