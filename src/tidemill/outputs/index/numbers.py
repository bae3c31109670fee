"""JSON numbers in the index: a double that orders them, and the exact value where the double is not exact.

No number is rounded: two numbers have equal keys exactly if they are equal.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemill.formats.arrays import Bytes, Ints, Mask
from tidemill.formats.arrow import string_buffers
from tidemill.formats.declared_columns import Column
from tidemill.formats.json_encodings import spelled
from tidemill.formats.json_values import parts_of

# Imports inside functions keep start-up short: a search reads the index without Numba.

Doubles = NDArray[np.float64]
Key = tuple[float, str | None]
"""The nearest double, and the exact number as `digits e exponent` unless the double stands for it."""

_DIGITS: Final = 15  # digits that every double keeps
_WHOLE: Final = 10**_DIGITS
_FAR: Final = 400  # beyond all doubles, in powers of ten
_FARTHEST: Final = 10**17  # largest exponent of a Decimal


def key_of(text: str) -> Key:
    """The key of a number as it is spelled in JSON."""
    digits, exponent, negative = parts_of(text)
    if not digits:
        return 0.0, None
    exponent = max(-_FARTHEST, min(_FARTHEST, exponent))
    exact = f"{'-' if negative else ''}{digits}e{exponent}"
    size = len(digits) + exponent
    if size < -_FAR:
        return 0.0, exact
    nearest = float(exact) if size <= _FAR else math.copysign(math.inf, -1 if negative else 1)
    if exponent >= 0:
        is_exact = len(digits) <= _DIGITS and math.isfinite(nearest)
    else:
        is_exact = Decimal(repr(nearest)) == Decimal(exact)
    return nearest + 0.0, None if is_exact else exact  # + 0.0: turns a negative zero into zero


def key_of_decimal(value: Decimal | int) -> Key:
    return key_of(format(Decimal(value), "E"))


def value_of(key: Key) -> Decimal:
    nearest, exact = key
    return Decimal(exact) if exact is not None else Decimal(repr(nearest))


def number_of(text: str) -> Decimal:
    """The value of a number as it is spelled in JSON."""
    return value_of(key_of(text))


def keys_of(data: Bytes, starts: Ints, ends: Ints, tags: Bytes) -> tuple[Doubles, pa.StringArray]:
    """`key_of` for many at once."""
    from tidemill.formats.columns import whole_numbers  # compiled: not needed by searches that read the index

    whole, is_whole = whole_numbers(data, starts, ends, tags)
    nearest, exact = keys_of_integers(np.where(is_whole, whole, 0))
    rest = np.flatnonzero(~is_whole)
    if rest.size:
        found, texts = _fractions(data, starts[rest], ends[rest], tags[rest])
        nearest[rest] = found
        if texts.null_count < rest.size:
            exact = _positioned(exact, ~is_whole, texts)
    return nearest, exact


def keys_of_integers(values: Ints) -> tuple[Doubles, pa.StringArray]:
    """The same for integers of 64 bits."""
    exact = pa.nulls(values.size, pa.string())
    long = (values >= _WHOLE) | (values <= -_WHOLE)
    if long.any():
        exact = _positioned(exact, long, _long_wholes(values[long]))
    return values.astype(np.float64), exact


def keys_of_decimals(array: pa.Array, column: Column) -> tuple[Doubles, pa.StringArray]:
    """The same for values of a column of decimals, without nulls."""
    from tidemill.formats.json_core import FRACTION, INTEGER

    texts = spelled(array, column, "short")
    offsets, data = string_buffers(texts)
    ends = offsets.astype(np.int64)
    tags = np.where(np.asarray(pc.match_substring(texts, ".")), FRACTION, INTEGER).astype(np.uint8)
    return keys_of(data.copy(), ends[:-1], ends[1:], tags)


def _positioned(into: pa.StringArray, where: Mask, texts: pa.StringArray) -> pa.StringArray:
    return pc.replace_with_mask(into, pa.array(where), texts)


def _long_wholes(values: Ints) -> pa.StringArray:
    """The exact texts of integers of more than 15 digits; null where a double is exact."""
    texts = pc.cast(pa.array(values), pa.string())
    digits = pc.utf8_rtrim(texts, characters="0")
    zeros = pc.cast(pc.subtract(pc.binary_length(texts), pc.binary_length(digits)), pa.string())
    exact = pc.binary_join_element_wise(digits, zeros, "e")
    short = pc.less_equal(pc.binary_length(pc.utf8_ltrim(digits, characters="-")), _DIGITS)
    return pc.if_else(short, pa.scalar(None, pa.string()), exact)


def _fractions(data: Bytes, starts: Ints, ends: Ints, tags: Bytes) -> tuple[Doubles, pa.StringArray]:
    """Keys of numbers that are not 64-bit integers. A short fraction, or one spelled like its double, is
    exact."""
    from tidemill.formats.columns import strings
    from tidemill.formats.json_core import FRACTION

    written = strings(data, starts, ends)
    nearest = np.array(pc.cast(written, pa.float64()))
    plain = tags == FRACTION
    size = ends - starts - 1 - (data[starts] == 0x2D)
    sure = plain & (size <= _DIGITS)
    unsure = np.flatnonzero(~sure)
    exact: list[str | None] = []
    if unsure.size:
        again = pc.cast(pa.array(nearest[unsure]), pa.string())
        same = np.asarray(pc.equal(again, written.take(pa.array(unsure)))) & plain[unsure]
        same &= np.abs(nearest[unsure]) < _WHOLE  # the digits of greater ones may not be exact
        sure[unsure[same]] = True
        known: dict[str, Key] = {}
        for row in np.flatnonzero(~sure).tolist():
            text = written[row].as_py()
            key = known.get(text)
            if key is None:
                key = known[text] = key_of(text)
            nearest[row] = key[0]
            exact.append(key[1])
    nearest += 0.0
    texts = pa.nulls(starts.size, pa.string())
    return nearest, _positioned(texts, ~sure, pa.array(exact, pa.string())) if exact else texts
