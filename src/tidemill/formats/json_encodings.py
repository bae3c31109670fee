"""How values of declared columns are written as JSON. A value whose text is one of these need not be kept
beside its column: the column and the name of the spelling give the text back, byte for byte.

A spelling may be wrong for some values. Code that leaves a text out compares both first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.formats.arrow import one, unscaled

if TYPE_CHECKING:
    from tidemill.formats.declared_columns import Column

_UNITS: Final = {"0": "s", "3": "ms", "6": "us"}  # digits behind the second
_ZONES: Final = {"z": "Z", "offset": "+00:00", "local": ""}
_NUMBERS: Final = ("short", "point", "fixed")  # 7, 7.0, 7.00
_TEXTS: Final = ("plain", "ascii")  # characters as they are, or beyond ASCII as \u00e9
_TIMES: Final = tuple(f"{sep}{digits}{zone}" for sep in ("T", " ") for digits in _UNITS for zone in _ZONES)
_SEPARATORS: Final = {"compact": ",", "spaced": ", "}  # of the elements of a list
_SPELLINGS: Final[Mapping[str, Sequence[str]]] = {
    "string": _TEXTS,
    "integer": ("short", "point"),
    "decimal": _NUMBERS,
    "float": ("point", "short"),
    "boolean": ("short",),
    "timestamp": _TIMES,
}
_SPECIAL: Final = {"plain": r'[\x00-\x1f"\\]', "ascii": r"[^ !#-\[\]-~]"}  # what has to be escaped


def spellings_of(column: Column) -> list[str]:
    """The ways in which values of a column may be written, by name."""
    if column.items is not None:
        return [f"{space} {each}" for space in _SEPARATORS for each in _SPELLINGS[column.items]]
    return list(_SPELLINGS[column.type])


def spelled(array: pa.Array, column: Column, spelling: str) -> pa.StringArray:
    """The JSON texts of values; null where there is no value."""
    if column.items is not None:
        return _lists(array, column, spelling)
    return one(_WRITERS[column.type](array, column, spelling))


def _joined(*pieces: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*pieces, "")


def _string(array: pa.Array, _column: Column, spelling: str) -> pa.Array:
    found = one(_joined('"', array, '"'))
    special = pc.fill_null(pc.match_substring_regex(array, _SPECIAL[spelling]), False)
    rows = np.flatnonzero(special.to_numpy(zero_copy_only=False))
    if not rows.size:
        return found
    texts = [json.dumps(text, ensure_ascii=spelling == "ascii") for text in array.take(rows).to_pylist()]
    return pc.replace_with_mask(found, special, pa.array(texts, pa.string()))


def _integer(array: pa.Array, _column: Column, spelling: str) -> pa.Array:
    whole = array.cast(pa.string())
    return whole if spelling == "short" else _joined(whole, ".0")


def _boolean(array: pa.Array, _column: Column, _spelling: str) -> pa.Array:
    return array.cast(pa.string())


def _float(array: pa.Array, _column: Column, spelling: str) -> pa.Array:
    """The shortest digits that give the number back; with an exponent where Python writes one."""
    texts = one(array.cast(pa.string()))
    scientific = pc.fill_null(pc.match_substring(texts, "e"), False)
    rows = np.flatnonzero(scientific.to_numpy(zero_copy_only=False))
    if rows.size:
        written = [repr(number).removesuffix(".0") for number in array.take(rows).to_pylist()]
        texts = pc.replace_with_mask(texts, scientific, pa.array(written, pa.string()))
    return texts if spelling == "short" else pc.replace_substring_regex(texts, r"^(-?\d+)$", r"\1.0")


def _decimal(array: pa.Array, column: Column, spelling: str) -> pa.Array:
    """By its digits: 18 of them fit an integer."""
    numbers = unscaled(array)
    absent = np.asarray(array.is_null()) if array.null_count else None
    sign = pa.array(np.where(numbers < 0, "-", ""), pa.string())
    whole, rest = np.divmod(np.abs(numbers), 10**column.scale)
    found = _joined(sign, pa.array(whole, mask=absent).cast(pa.string()))
    if column.scale == 0:
        return found if spelling != "point" else _joined(found, ".0")
    digits = pc.utf8_lpad(pa.array(rest).cast(pa.string()), width=column.scale, padding="0")
    if spelling == "fixed":
        return _joined(found, ".", digits)
    digits = pc.utf8_rtrim(digits, characters="0")
    is_whole = pa.array(rest == 0)
    tail = pc.if_else(is_whole, ".0" if spelling == "point" else "", _joined(".", digits))
    return _joined(found, tail)


def _timestamp(array: pa.Array, column: Column, spelling: str) -> pa.Array:
    sep, digits, zone = spelling[0], spelling[1], spelling[2:]
    shown = array
    if zone == "local" and column.zone is not None:
        shown = pc.local_timestamp(array.cast(pa.timestamp("us", column.zone)))
    plain = shown.view(pa.int64()).view(pa.timestamp("us"))
    texts = pc.cast(plain.cast(pa.timestamp(_UNITS[digits]), safe=False), pa.string())
    if sep == "T":
        texts = pc.utf8_replace_slice(texts, 10, 11, "T")
    return _joined('"', texts, _ZONES[zone], '"')


def _lists(array: pa.Array, column: Column, spelling: str) -> pa.Array:
    space, _, each = spelling.partition(" ")
    item = replace(column, type=column.items or "", items=None)
    texts = spelled(array.flatten(), item, each).fill_null("null")
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.append(0, np.cumsum(lengths)).astype(np.int32))
    lists = pa.ListArray.from_arrays(offsets, texts, mask=array.is_null() if array.null_count else None)
    return one(_joined("[", pc.binary_join(lists, _SEPARATORS[space]), "]"))


_Writer = Callable[[pa.Array, "Column", str], pa.Array]
_WRITERS: Final[Mapping[str, _Writer]] = {
    "string": _string,
    "integer": _integer,
    "decimal": _decimal,
    "float": _float,
    "boolean": _boolean,
    "timestamp": _timestamp,
}
