"""Whose rows are whose: tenant and key values as codes, and the bucket that a key is folded in.

The same key has the same bucket in every process. Nothing here looks at time.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.streaming import Value
from tidemill.records.arrays import Ints
from tidemill.records.arrow import one

Key = tuple[str, tuple[Value, ...]]  # tenant, and values of `WindowSpec.key`


def key_codes(columns: Sequence[pa.ChunkedArray | pa.Array]) -> tuple[Ints, list[tuple[Value, ...]]]:
    """Per row the number of its combination of values, and the combinations, numbered as they first come."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        encoded = one(column)
        if not pa.types.is_dictionary(encoded.type):
            encoded = encoded.dictionary_encode()
        size = len(encoded.dictionary) + 1  # null has a code of its own
        mine = pc.fill_null(encoded.indices.cast(pa.int64()), size - 1).to_numpy(zero_copy_only=False)
        _, codes = np.unique(codes * size + mine, return_inverse=True)  # dense, so that no product overflows
    _, first, codes = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(order.size, np.int64)
    rank[order] = np.arange(order.size)
    heads = pa.array(first[order])
    values = [one(column).take(heads).to_pylist() for column in columns]
    return rank[codes], list(zip(*values, strict=True)) if values else []


def bucket_of(key: Key, buckets: int) -> int:
    """Where the rows of a key are folded."""
    told = json.dumps([key[0], list(key[1])], ensure_ascii=False)
    return zlib.crc32(told.encode("utf-8", "surrogatepass")) % buckets
