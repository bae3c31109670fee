"""Counters: the number of events, and the values of each measure.

Merging adds the counts and merges the values. It is associative and commutative; no cells are the identity.
"""

from __future__ import annotations

import pyarrow as pa

from tidemill.formats.arrow import one
from tidemill.outputs.rollups.accumulators import values
from tidemill.outputs.rollups.accumulators.values import Folded
from tidemill.outputs.rollups.grouping import Groups
from tidemill.outputs.rollups.spec import Metric


def fields(metric: Metric) -> list[pa.Field]:
    measured = [field for i in range(len(metric.measures)) for field in values.fields(i)]
    return [pa.field("count", pa.int64()), *measured]


def accumulate(metric: Metric, groups: Groups, events: pa.Table) -> Folded:
    columns = {"count": pa.array(groups.counts())}
    for i, m in enumerate(metric.measures):
        columns |= values.accumulate(groups, events.column(f"m{m.at}"), i)
    return Folded(columns)


def merge(metric: Metric, groups: Groups, cells: pa.Table) -> Folded:
    columns = {"count": pa.array(groups.sums(one(cells.column("count")).to_numpy()))}
    for i in range(len(metric.measures)):
        columns |= values.merge(groups, cells, i)
    return Folded(columns)
