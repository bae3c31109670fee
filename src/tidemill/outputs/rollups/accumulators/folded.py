"""The result of an accumulator: columns of cells, and the group of each cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from tidemill.formats.arrays import Ints


@dataclass(frozen=True, slots=True)
class Folded:
    columns: Mapping[str, pa.Array]
    group: Ints | None = None  # of each cell; None: one cell for each group
