"""Assigns rows to keys: tenant and key values as codes, and the bucket of a key.

A key has the same bucket in every process. Time does not matter here.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidemill.formats.arrays import Ints
from tidemill.formats.arrow import one
from tidemill.model.streaming import Value
from tidemill.outputs.windows.codes import codes, combined

Key = tuple[str, tuple[Value, ...]]  # tenant, and values of `WindowSpec.key`


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
