"""State metrics: signed counts of objects that entered or left a state, and of transitions.

Merging adds the counts, and a row with the count 0 is dropped. It is associative and commutative; no cells
are the identity. So a contribution that cancels another leaves nothing, as if neither had been.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidemill.formats.arrow import one
from tidemill.outputs.rollups.accumulators.values import Folded
from tidemill.outputs.rollups.grouping import Groups
from tidemill.outputs.rollups.spec import Metric


def fields(metric: Metric) -> list[pa.Field]:
    return [pa.field("count", pa.int64())]


def merge(metric: Metric, groups: Groups, cells: pa.Table) -> Folded:
    counts = groups.sums(one(cells.column("count")).to_numpy())
    kept = np.flatnonzero(counts)
    return Folded({"count": pa.array(counts[kept])}, kept)
