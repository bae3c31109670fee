"""Assigns rows to keys: tenant and key values as codes, and the bucket of a key, or of many keys at once.

A key has the same bucket in every process. Time does not matter here.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.formats.arrays import Ints
from tidemill.formats.arrow import one, string_buffers
from tidemill.model.streaming import Value
from tidemill.outputs.windows.codes import codes, combined

# Imports inside functions keep start-up short: results are read without Numba.

Key = tuple[str, tuple[Value, ...]]  # tenant, and values of `WindowSpec.key`
_ESCAPED: Final = r'["\\\x00-\x1f]'  # characters that JSON must escape


def key_codes(columns: Sequence[pa.ChunkedArray | pa.Array]) -> tuple[Ints, list[tuple[Value, ...]]]:
    """For each row the number of its combination of values, and the combinations."""
    found = combined([codes(column) for column in columns], len(columns[0])).values
    _, heads, numbers = np.unique(found, return_index=True, return_inverse=True)
    identity = [one(column).take(pa.array(heads)).to_pylist() for column in columns]
    return numbers.astype(np.int64), list(zip(*identity, strict=True))


def bucket_of(key: Key, buckets: int) -> int:
    """The bucket in which the rows of a key are folded."""
    identity = json.dumps([key[0], list(key[1])], ensure_ascii=False)
    return zlib.crc32(identity.encode("utf-8", "surrogatepass")) % buckets


def buckets_of(
    tenant: pa.ChunkedArray | pa.Array, key: Sequence[pa.ChunkedArray | pa.Array], buckets: int
) -> Ints:
    """`bucket_of` for each row's tenant and key."""
    from tidemill.outputs.windows.numba_loops import crc32_of

    key_texts = [_json(column) for column in key]
    values = pc.binary_join_element_wise(*key_texts, ", ") if key_texts else ""
    texts = one(pc.binary_join_element_wise("[", _json(tenant), ", [", values, "]]", ""))
    offsets, data = string_buffers(texts)
    return crc32_of(data, offsets.astype(np.int64)) % buckets


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
