"""Window ids, and codes of (window, group), for rows of a table.

`model.streaming.window_id` defines the id of one window; here ids are made for many windows, once for each.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

import numpy as np
import pyarrow as pa

from tidemill.formats.arrays import Ints
from tidemill.formats.arrow import one, string_buffers
from tidemill.model.streaming import WindowSpec
from tidemill.outputs.windows.aggregate import GROUP
from tidemill.outputs.windows.codes import codes, combined, integers

_ID: Final = 24  # characters of a window id


def window_ids(spec: WindowSpec, fresh: pa.Table) -> pa.StringArray:
    """For each fresh result, the id of its window."""
    named = [fresh.column(name) for name in ("tenant", *(GROUP + column for column in spec.key))]
    key_codes = combined([codes(column) for column in named], fresh.num_rows)
    positions = [fresh.column(name) for name in ("start", "ordinal")]
    windows = combined([key_codes, *(codes(column) for column in positions)], fresh.num_rows)
    _, heads, window = np.unique(windows.values, return_index=True, return_inverse=True)
    _, firsts, who = np.unique(key_codes.values[heads], return_index=True, return_inverse=True)
    # What windows of one key have in common is made once: the text is long, and the rest is two numbers.
    key_values = [one(column).take(pa.array(heads[firsts])).to_pylist() for column in named]
    common = [
        json.dumps([spec.stream, spec.name, tenant, key], ensure_ascii=False)[:-1].encode()
        for tenant, *key in zip(*key_values, strict=True)
    ]
    start, ordinal = (integers(column)[heads].tolist() for column in positions)
    ids = [
        sha256(b"%b, %d, %d]" % (common[key], begins, number)).hexdigest()[:24]
        for key, begins, number in zip(who.tolist(), start, ordinal, strict=True)
    ]
    return pa.array(ids, pa.string()).take(pa.array(window))


def id_words(ids: pa.ChunkedArray) -> list[Ints]:
    """Window ids as integers that sort as their texts do: all have the same length."""
    offsets, data = string_buffers(one(ids))
    assert (np.diff(offsets) == _ID).all()
    # ASCII, so the sign does not matter.
    words = data[offsets[0] : offsets[-1]].view(">u8").reshape(-1, _ID // 8)
    return [words[:, number].astype(np.int64) for number in range(_ID // 8)]


def result_codes(columns: Sequence[pa.ChunkedArray | pa.Array]) -> Ints:
    """For each row a number below the number of rows, equal for equal values, nulls included."""
    rows = len(columns[0])
    found = combined([codes(column) for column in columns], rows).values
    _, inverse = np.unique(found, return_inverse=True)
    return inverse.astype(np.int64)


def newest(table: pa.Table, group: Sequence[str]) -> pa.Table:
    """The row with the highest revision of each result, in table order."""
    if not table.num_rows:
        return table
    result = result_codes([table.column(name) for name in ("window_id", *group)])
    order = np.lexsort((table.column("revision").to_numpy(), result))
    last = np.flatnonzero(np.diff(result[order], append=-1))
    return table if last.size == order.size else table.take(pa.array(np.sort(order[last])))
