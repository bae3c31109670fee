"""The buckets of many keys at once: `keys.bucket_of` over columns, with the same results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from tidemill.formats.arrays import Bytes, Ints
from tidemill.formats.arrow import one, string_buffers

_ESCAPED: Final = r'["\\\x00-\x1f]'  # characters that JSON must escape


def _crc_table() -> Ints:
    values = np.arange(256, dtype=np.int64)
    for _ in range(8):
        values = np.where(values & 1, 0xEDB88320 ^ (values >> 1), values >> 1)
    return values


_TABLE: Final = _crc_table()


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _crc32(data: Bytes, offsets: Ints, table: Ints, out: Ints) -> None:
    for i in range(offsets.size - 1):
        crc = np.int64(0xFFFFFFFF)
        for p in range(offsets[i], offsets[i + 1]):
            crc = table[(crc ^ data[p]) & 0xFF] ^ (crc >> 8)
        out[i] = crc ^ 0xFFFFFFFF


def buckets_of(
    tenant: pa.ChunkedArray | pa.Array, key: Sequence[pa.ChunkedArray | pa.Array], buckets: int
) -> Ints:
    """The bucket of each row's tenant and key."""
    key_texts = [_json(column) for column in key]
    values = pc.binary_join_element_wise(*key_texts, ", ") if key_texts else ""
    texts = one(pc.binary_join_element_wise("[", _json(tenant), ", [", values, "]]", ""))
    offsets, data = string_buffers(texts)
    out = np.empty(len(texts), np.int64)
    _crc32(data, offsets.astype(np.int64), _TABLE, out)
    return out % buckets


def _json(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Values as JSON texts. A key is a string, an integer or a boolean."""
    array = one(column)
    if pa.types.is_dictionary(array.type):
        return _json(array.dictionary).take(array.indices).fill_null("null")
    if not pa.types.is_string(array.type):
        assert pa.types.is_integer(array.type) or pa.types.is_boolean(array.type), array.type
        return array.cast(pa.string()).fill_null("null")
    plain = pc.binary_join_element_wise('"', array, '"', "")
    escaped = pc.fill_null(pc.match_substring_regex(array, _ESCAPED), False)
    if pc.any(escaped).as_py():
        odd = [json.dumps(text, ensure_ascii=False) for text in array.filter(escaped).to_pylist()]
        plain = pc.replace_with_mask(plain, escaped, pa.array(odd, pa.string()))
    return plain.fill_null("null")
