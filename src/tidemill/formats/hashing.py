"""Hashes that are stored on disk: each is defined over bytes and independent of any library's version.

XXH64 (tests compare it with the reference library), and based on it the hash of a JSON value that does not
depend on key order, white space or the spelling of numbers. `decide` has the same in Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numba import njit, uint64

from tidemill.formats.byte_access import byte_at, word_at
from tidemill.formats.compiled import step, walk

if TYPE_CHECKING:
    from tidemill.formats.arrays import Bytes, Ints, Words

_P1 = np.uint64(11400714785074694791)
_P2 = np.uint64(14029467366897019727)
_P3 = np.uint64(1609587929392839161)
_P4 = np.uint64(9650029242287828579)
_P5 = np.uint64(2870177450012600261)
_MASK: Final = (1 << 64) - 1

# Kinds of hashed values: the seed of their XXH64, or the constant mixed into it.
SEED_STRING: Final = 1
SEED_KEY: Final = 2
SEED_NUMBER: Final = 3
SEED_TRUE: Final = 4
SEED_FALSE: Final = 5
SEED_NULL: Final = 6
SEED_OBJECT: Final = 7
SEED_ARRAY: Final = 8
SEED_TENANT: Final = 9
SEED_SECOND_LANE: Final = 10
SEED_OBSERVATIONS: Final = 11


@step
def _rotl(x: uint64, r: int) -> uint64:
    return (x << uint64(r)) | (x >> uint64(64 - r))


@step
def _round(acc: uint64, lane: uint64) -> uint64:
    return _rotl(acc + lane * _P2, 31) * _P1


@step
def mix(x: uint64) -> uint64:
    """The avalanche of XXH64: a bijection on 64 bits."""
    x ^= x >> uint64(33)
    x *= _P2
    x ^= x >> uint64(29)
    x *= _P3
    x ^= x >> uint64(32)
    return x


@walk
def xxh64(b: Bytes, start: int, end: int, seed: uint64) -> uint64:
    """XXH64 of b[start:end]."""
    p = start
    seed = uint64(seed)
    if end - start >= 32:
        v1 = seed + _P1 + _P2
        v2 = seed + _P2
        v3 = seed
        v4 = seed - _P1
        while p + 32 <= end:
            v1 = _round(v1, word_at(b, p))
            v2 = _round(v2, word_at(b, p + 8))
            v3 = _round(v3, word_at(b, p + 16))
            v4 = _round(v4, word_at(b, p + 24))
            p += 32
        h = _rotl(v1, 1) + _rotl(v2, 7) + _rotl(v3, 12) + _rotl(v4, 18)
        h = (h ^ _round(uint64(0), v1)) * _P1 + _P4
        h = (h ^ _round(uint64(0), v2)) * _P1 + _P4
        h = (h ^ _round(uint64(0), v3)) * _P1 + _P4
        h = (h ^ _round(uint64(0), v4)) * _P1 + _P4
    else:
        h = seed + _P5
    h += uint64(end - start)
    while p + 8 <= end:
        h = _rotl(h ^ _round(uint64(0), word_at(b, p)), 27) * _P1 + _P4
        p += 8
    if p + 4 <= end:
        low = (
            uint64(byte_at(b, p))
            | (uint64(byte_at(b, p + 1)) << uint64(8))
            | (uint64(byte_at(b, p + 2)) << uint64(16))
            | (uint64(byte_at(b, p + 3)) << uint64(24))
        )
        h = _rotl(h ^ (low * _P1), 23) * _P2 + _P3
        p += 4
    while p < end:
        h = _rotl(h ^ (uint64(byte_at(b, p)) * _P5), 11) * _P1
        p += 1
    return mix(h)


@step
def member(key: uint64, value: uint64) -> uint64:
    """One member of an object; an object is the sum of its members, so their order is irrelevant."""
    return mix(key * _P1 + _rotl(value, 31))


@step
def element(before: uint64, value: uint64) -> uint64:
    """One more element of an array; order matters."""
    return mix(before * _P2 + value)


@step
def closed(total: uint64, seed: int) -> uint64:
    return mix(total + uint64(seed) * _P4)


@step
def digit(acc: uint64, value: int) -> uint64:
    """One more significant digit of a number."""
    return acc * _P1 + uint64(value + 1)


@step
def number(digits: uint64, exponent: int, negative: bool) -> uint64:
    """A number by its significant digits, with exponent and sign; zero has no digits at all."""
    return mix(digits + uint64(exponent) * _P2 + uint64(2 * SEED_NUMBER + (1 if negative else 0)) * _P3)


@njit(cache=True, nogil=True)
def key_lanes(data: Bytes, offsets: Ints, tenant_seed: Words, tenants: Ints) -> tuple[Words, Words]:
    """The 128-bit key of (tenant, event_id) for every row, as two arrays of 64 bits.

    `tenant_seed[code]` is the XXH64 of the tenant's name; it seeds the hash of the id.
    """
    n = offsets.size - 1
    high = np.empty(n, np.uint64)
    low = np.empty(n, np.uint64)
    for i in range(n):
        seed = tenant_seed[tenants[i]]
        high[i] = xxh64(data, offsets[i], offsets[i + 1], seed)
        low[i] = xxh64(data, offsets[i], offsets[i + 1], mix(seed + uint64(SEED_SECOND_LANE)))
    return high, low


def hash_bytes(data: bytes, seed: int) -> int:
    """XXH64 from Python."""
    return int(xxh64(np.frombuffer(data, np.uint8), 0, len(data), np.uint64(seed)))


# The same operations on Python integers, for `decide`.


def _mix_int(x: int) -> int:
    x ^= x >> 33
    x = x * int(_P2) & _MASK
    x ^= x >> 29
    x = x * int(_P3) & _MASK
    return x ^ (x >> 32)


def member_int(key: int, value: int) -> int:
    rotated = ((value << 31) | (value >> 33)) & _MASK
    return _mix_int((key * int(_P1) + rotated) & _MASK)


def element_int(before: int, value: int) -> int:
    return _mix_int((before * int(_P2) + value) & _MASK)


def closed_int(total: int, seed: int) -> int:
    return _mix_int((total + seed * int(_P4)) & _MASK)


def number_int(digits: str, exponent: int, negative: bool) -> int:
    acc = 0
    for d in digits:
        acc = (acc * int(_P1) + int(d) + 1) & _MASK
    sign = 2 * SEED_NUMBER + (1 if negative else 0)
    return _mix_int((acc + exponent * int(_P2) + sign * int(_P3)) & _MASK)
