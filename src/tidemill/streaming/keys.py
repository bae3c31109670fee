"""Whose rows are whose: tenant and key values as codes, and the bucket that a key is folded in.

The same key has the same bucket in every process. Nothing here looks at time.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.streaming import Value
from tidemill.records.arrays import Ints
from tidemill.records.arrow import one

_TABLE: Final = 1 << 22  # codes that are renumbered by a table instead of by sorting

Key = tuple[str, tuple[Value, ...]]  # tenant, and values of `WindowSpec.key`


def key_codes(columns: Sequence[pa.ChunkedArray | pa.Array]) -> tuple[Ints, list[tuple[Value, ...]]]:
    """Per row the number of its combination of values, and the combinations."""
    codes, size = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        encoded = one(column)
        if not pa.types.is_dictionary(encoded.type):
            encoded = encoded.dictionary_encode()
        values = len(encoded.dictionary) + 1  # null has a code of its own
        mine = pc.fill_null(encoded.indices.cast(pa.int64()), values - 1).to_numpy(zero_copy_only=False)
        codes, size = _dense(codes * values + mine, size * values)
    first = np.full(size, -1, np.int64)
    first[codes[::-1]] = np.arange(codes.size - 1, -1, -1)
    heads = pa.array(first)
    told = [one(column).take(heads).to_pylist() for column in columns]
    return codes, list(zip(*told, strict=True))


def _dense(codes: Ints, size: int) -> tuple[Ints, int]:
    """Codes below `size` renumbered without holes, in their order, so that no product of sizes overflows."""
    if size > _TABLE:
        found, dense = np.unique(codes, return_inverse=True)
        return dense.astype(np.int64), int(found.size)
    there = np.zeros(size, np.bool_)
    there[codes] = True
    rank = np.cumsum(there) - 1
    return rank[codes], int(np.count_nonzero(there))


def bucket_of(key: Key, buckets: int) -> int:
    """Where the rows of a key are folded."""
    told = json.dumps([key[0], list(key[1])], ensure_ascii=False)
    return zlib.crc32(told.encode("utf-8", "surrogatepass")) % buckets
