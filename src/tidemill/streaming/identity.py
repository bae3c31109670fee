"""Which window and which result a row of a table is about: window ids, and codes of (window, group).

`model.streaming.window_id` says what an id is; here it is said of many windows, once for each.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidemill.model.streaming import Value, WindowSpec
from tidemill.records.arrays import Ints
from tidemill.records.arrow import one
from tidemill.streaming.aggregate import GROUP
from tidemill.streaming.codes import codes, combined


def window_ids(spec: WindowSpec, fresh: pa.Table) -> pa.StringArray:
    """Of each fresh result, the id of its window."""
    keys = [GROUP + column for column in spec.key]
    named = [fresh.column(name) for name in ("tenant", *keys, "start", "ordinal")]
    windows = combined([codes(column) for column in named], fresh.num_rows).values
    _, heads, inverse = np.unique(windows, return_index=True, return_inverse=True)
    tenant, *key, start, ordinal = (one(column).take(pa.array(heads)).to_pylist() for column in named)
    opening: dict[tuple[Value, ...], str] = {}
    ids = []
    whose = zip(tenant, *key, strict=True)
    for who, begins, number in zip(whose, start, ordinal, strict=True):
        told = opening.get(who)
        if told is None:
            told = json.dumps([spec.stream, spec.name, who[0], list(who[1:])], ensure_ascii=False)[:-1]
            opening[who] = told
        text = f"{told}, {begins}, {number}]"
        ids.append(hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24])
    return pa.array(ids, pa.string()).take(pa.array(inverse))


def result_codes(columns: Sequence[pa.ChunkedArray | pa.Array]) -> Ints:
    """Per row a number below how many rows there are: the same for the same values, nulls among them."""
    rows = len(columns[0])
    found = combined([codes(column) for column in columns], rows).values
    _, inverse = np.unique(found, return_inverse=True)
    return inverse.astype(np.int64)


def newest(table: pa.Table, group: Sequence[str]) -> pa.Table:
    """Of each result the row with the highest revision, in the order they stand in the table."""
    if not table.num_rows:
        return table
    result = result_codes([table.column(name) for name in ("window_id", *group)])
    order = np.lexsort((table.column("revision").to_numpy(), result))
    last = np.flatnonzero(np.diff(result[order], append=-1))
    return table if last.size == order.size else table.take(pa.array(np.sort(order[last])))
