"""Gauges: a counter of one value that also keeps the first and the last, with the time and id of their
events.

Merging takes the lesser of the firsts and the greater of the lasts by (time, id, value), ids by their bytes.
That is a total order, so merging is associative and commutative; no cells are the identity.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numba import njit

from tidemill.formats.arrays import Bytes, Ints, Mask, Offsets
from tidemill.formats.arrow import one, string_buffers
from tidemill.outputs.rollups.accumulators import counter
from tidemill.outputs.rollups.accumulators.values import Folded, filled, present
from tidemill.outputs.rollups.grouping import Groups
from tidemill.outputs.rollups.spec import Metric

ENDS = ("first", "last")


def fields(metric: Metric) -> list[pa.Field]:
    found = counter.fields(metric)
    for end in ENDS:
        found += [
            pa.field(f"v0_{end}", pa.int64()),
            pa.field(f"v0_{end}_time", pa.int64()),
            pa.field(f"v0_{end}_id", pa.string()),
        ]
    return found


def accumulate(metric: Metric, groups: Groups, events: pa.Table) -> Folded:
    value = groups.chosen(events.column(f"m{metric.measures[0].at}"))
    time = groups.chosen(events.column("event_time")).cast(pa.int64())
    ids = groups.chosen(events.column("event_id"))
    columns = dict(counter.accumulate(metric, groups, events).columns)
    for end in ENDS:
        columns |= _end(groups, value, time, ids, end)
    return Folded(columns)


def merge(metric: Metric, groups: Groups, cells: pa.Table) -> Folded:
    columns = dict(counter.merge(metric, groups, cells).columns)
    for end in ENDS:
        value, time, ids = (one(cells.column(f"v0_{end}{of}")) for of in ("", "_time", "_id"))
        columns |= _end(groups, value, time, ids, end)
    return Folded(columns)


def _end(
    groups: Groups, value: pa.Array, time: pa.Array, ids: pa.StringArray, end: str
) -> Mapping[str, pa.Array]:
    """The first or last value of each group, null if no row has a value."""
    offsets, data = string_buffers(ids)
    rows = _outermost(
        groups.of,
        filled(time, 0),
        offsets,
        data,
        filled(value, 0),
        present(value),
        groups.size,
        end == "last",
    )
    none = rows < 0
    at = pa.array(rows, mask=none if none.any() else None)
    return {f"v0_{end}": value.take(at), f"v0_{end}_time": time.take(at), f"v0_{end}_id": ids.take(at)}


@njit(cache=True, nogil=True)
def _outermost(
    of: Ints, time: Ints, offsets: Offsets, data: Bytes, value: Ints, present: Mask, size: int, last: bool
) -> Ints:
    """For each group the row whose (time, id, value) is the least, or the greatest; -1: none."""
    best = np.full(size, -1, np.int64)
    outermost = np.zeros(size, np.int64)  # its time, in an array of its own for locality
    everywhere = present.size == 0
    for i in range(of.size):
        if not everywhere and not present[i]:
            continue
        g = of[i]
        if best[g] < 0:
            best[g], outermost[g] = i, time[i]
        elif time[i] != outermost[g]:
            if (time[i] > outermost[g]) == last:
                best[g], outermost[g] = i, time[i]
        else:
            order = _id_order(offsets, data, i, best[g])
            if order == 0:
                order = np.int64(value[i] > value[best[g]]) - np.int64(value[i] < value[best[g]])
            if (order > 0 and last) or (order < 0 and not last):
                best[g] = i
    return best


@njit(cache=True, nogil=True)
def _id_order(offsets: Offsets, data: Bytes, a: int, b: int) -> np.int64:
    """-1, 0 or 1: compares the ids of rows a and b."""
    length_a, length_b = offsets[a + 1] - offsets[a], offsets[b + 1] - offsets[b]
    for k in range(min(length_a, length_b)):
        x, y = data[offsets[a] + k], data[offsets[b] + k]
        if x != y:
            return np.int64(1) if x > y else np.int64(-1)
    return np.int64(length_a > length_b) - np.int64(length_a < length_b)
